-- What a role needs to run `freshet serve` on the tables of platform without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema platform to :role;
grant execute on all functions in schema platform to :role;
-- written by `freshet migrate`; read to find out whether the schema is in place and not too new
grant select on platform.schema_migration to :role;
-- the embedded bus
grant select, insert, update on platform.bus_partition to :role;
grant select, insert, delete on platform.bus_message to :role;
grant select, insert, update on platform.bus_cursor, platform.bus_suspect to :role;
-- processes report themselves; what operators do is only added
grant select, insert, update, delete on platform.pod to :role;
grant select, insert on platform.ops_audit to :role;
-- decisions of operators about dead letters; those of letters that are gone are deleted
grant select, insert, delete on platform.dead_letter_decision to :role;
