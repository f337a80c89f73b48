-- What a role needs to run `freshet serve` on the tables of notification without migrating them, and nothing more.
-- `freshet migrate --grants ROLE` prints it.
grant usage on schema notification to :role;
grant execute on all functions in schema notification to :role;
grant select, insert, update, delete on notification.notifications to :role;
grant select, insert, update, delete on notification.processed_events to :role;
grant select, insert, update, delete on notification.notification_dlq, notification.notification_nats_dlq to :role;
-- decisions of operators, by `freshet dlq`, are never changed
grant select, insert on notification.dlq_audit to :role;
grant select, update on notification.audit to :role;
