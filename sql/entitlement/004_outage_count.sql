-- Attempts that failed only because the engine was away (O1): they count in the attempts that a row shows, and never towards
-- FAILED. NULL = none, which takes no space.
alter table entitlement.outbox_events add column outage_count integer;
