-- What a role needs to run `freshet serve` on the tables of intake without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema intake to :role;
grant execute on all functions in schema intake to :role;
grant select, insert on intake.items to :role;
grant select, insert, update, delete on intake.event_outbox to :role;
grant select, insert, update, delete on intake.idempotency_keys to :role;
