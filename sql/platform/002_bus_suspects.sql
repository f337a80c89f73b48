-- Who kills. A message whose handler ends the process leaves no trace: its transaction is rolled back. So every
-- start writes down where the group stands; where it has stood at several starts in a row, messages come one by
-- one, and each is marked here before its handler is called. A mark that is still there at the next start is a
-- death, and a message with too many of them is a dead letter.
create table platform.bus_suspect (
    group_name text    not null collate "C",
    topic      text    not null collate "C",
    partition  integer not null,
    position   bigint  not null,
    starts     integer not null, -- that found the cursor at this position
    deaths     integer not null, -- handlers that began the message at this position and did not come back
    primary key (group_name, topic, partition)
);
