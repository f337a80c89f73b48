-- What operators decided about dead letters of topics (docs/OPS.md). The letters themselves are where their engine keeps them: in
-- platform.bus_message, in Kafka or in NATS. A letter without a row waits for a decision.
--
-- A letter is named by its place and its time (microseconds since 1970): a topic or stream that was created again has other letters at the
-- same places. The row of a requeued letter commits after the message is published, on PostgreSQL together with it; so a crash leaves a
-- letter that still waits, never one that is lost. Two operators: the second one waits for the first one's row and finds the decision.
create table platform.dead_letter_decision (
    engine         text        not null collate "C",
    topic          text        not null collate "C", -- of the dead letters: "refdata.commands.dlq"
    partition      integer     not null,
    message_offset bigint      not null,
    letter_us      bigint      not null,
    state          text        not null check (state in ('requeued', 'discarded')),
    decided_at     timestamptz not null default clock_timestamp(),
    decided_by     text        not null,
    reason         text        not null,
    primary key (engine, topic, partition, message_offset, letter_us)
);
-- Rows are deleted some time after their letters.
create index dead_letter_decision_age on platform.dead_letter_decision (letter_us);
