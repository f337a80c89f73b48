-- What a role needs to run `freshet serve` on the tables of entitlement without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema entitlement to :role;
grant execute on all functions in schema entitlement to :role;
grant select, insert, update on entitlement.entitlements to :role;
-- its partitions are created and dropped by functions that run as their owner
grant insert on entitlement.entitlement_audit to :role;
grant select, insert, update, delete on entitlement.outbox_events to :role;
grant select, insert, update, delete on entitlement.idempotency_keys to :role;
