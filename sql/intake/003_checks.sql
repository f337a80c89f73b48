-- As in entitlement/005_checks.sql: the engine alone writes the states, and a CHECK constraint costs every statement that writes.
alter table intake.event_outbox drop constraint event_outbox_status_check;
