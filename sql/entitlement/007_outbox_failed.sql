-- Events that could not be published, in the order in which operators list an outbox (src/kernel/outbox_views.c).
create index outbox_events_failed_order on entitlement.outbox_events (aggregate_key, sequence) where status = 'FAILED';
