-- Events that could not be published, in the order in which operators list an outbox (src/kernel/outbox_views.c). Other rows are not in it,
-- so that writing and publishing an event cost nothing more.
create index outbox_event_failed on refdata.outbox_event (tenant_id, dict_code, id) where failed_at is not null and not published;
create index command_outbox_failed_order on refdata.command_outbox (tenant_id, dict_code, id)
    where failed_at is not null and not published;
