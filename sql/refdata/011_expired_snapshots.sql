-- Snapshots that were not completed in time: upkeep finds by this index whose chunks it still has to delete.
create index snapshot_incomplete on refdata.snapshot (tenant_id, dict_code, snapshot_id)
    where error_code = 'SNAPSHOT_INCOMPLETE';
