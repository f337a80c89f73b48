-- Tenants take turns in the claims of deliveries (src/outbox): one range of the index is what is due of a tenant, and the next tenant is
-- one step away, whatever the number of rows between them.
create index notifications_turns on notification.notifications
    (tenant_id, (coalesce(greatest(next_retry_at, lease_until), created_at))) where status in ('PENDING', 'PROCESSING');
drop index notification.notifications_due;
