-- What a role needs to run `freshet serve` on the tables of chat without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema chat to :role;
grant execute on all functions in schema chat to :role;
-- messages are never changed
grant select, insert on chat.messages to :role;
grant select, insert, update on chat.chat_sessions to :role;
grant select, insert, update, delete on chat.event_log to :role;
grant select, insert, update, delete on chat.event_outbox to :role;
grant select, insert, update, delete on chat.idempotency_keys to :role;
