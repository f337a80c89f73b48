-- What a role needs to run `freshet serve` on the tables of refdata without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema refdata to :role;
grant execute on all functions in schema refdata to :role;
-- dictionaries: a version only rises, and its row stays
grant select, insert, update on refdata.dictionary_meta to :role;
grant select, insert, update, delete on refdata.dictionary_item to :role;
-- updates on their way, deleted by retention
grant select, insert, update, delete on refdata.update_request, refdata.snapshot to :role;
grant select, insert, update, delete on refdata.snapshot_chunk, refdata.chunk_request to :role;
grant select, insert, update, delete on refdata.update_key, refdata.processed_event to :role;
grant select, insert, delete on refdata.snapshot_delta to :role;
-- the outboxes
grant select, insert, update, delete on refdata.outbox_event, refdata.command_outbox, refdata.item_change to :role;
grant usage on sequence refdata.outbox_event_id_seq, refdata.command_outbox_id_seq, refdata.item_change_id_seq to :role;
-- one row: where the auditor stands
grant select, update on refdata.audit to :role;
