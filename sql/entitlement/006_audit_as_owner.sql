-- The audit's partitions are created and dropped by their owner, whichever role calls: a role that runs `serve` and does not
-- migrate owns no table (`freshet migrate --grants`). Their one argument is a number, and all names in them are qualified.
alter function entitlement.audit_make(integer) security definer set search_path = pg_catalog, pg_temp;
alter function entitlement.audit_drop(integer) security definer set search_path = pg_catalog, pg_temp;
revoke execute on function entitlement.audit_make(integer), entitlement.audit_drop(integer) from public;
