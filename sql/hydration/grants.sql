-- What a role needs to run `freshet serve` on the tables of hydration without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema hydration to :role;
grant execute on all functions in schema hydration to :role;
grant select, insert, update, delete on hydration.copies, hydration.absences, hydration.flights to :role;
