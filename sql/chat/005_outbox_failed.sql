-- Events that could not be published, in the order in which operators list an outbox (src/kernel/outbox_views.c).
create index event_outbox_failed_order on chat.event_outbox (tenant_id, aggregate_id, sequence) where status = 'failed';
