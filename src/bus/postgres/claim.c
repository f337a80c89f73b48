/* A claim: the cursor of one partition that has something to handle, locked, and its messages, in one statement. */
#include "base/clock.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

static const char begin_sql[] = "BEGIN";

/* $1 group, $2 topic, $3 messages and $4 bytes at most, $5 the partition to look at first, $6 the longest
 * backoff: one that would end later was written before the clock went back. $7: a process that hangs or is frozen in
 * a handler for so long loses its connection, and so its partition.
 *
 * The cursor's lock is the right to handle its partition; what others hold is skipped. The messages are read
 * by the same snapshot: it sees a prefix of the offsets, since these are given out in the order of commits.
 * `others` says that another partition waits too, perhaps for the caller to start another job. No message at
 * all although there should be one: retention took them. */
#define DUE                                                  \
    "(c.retry_at IS NULL OR c.retry_at <= clock_timestamp()" \
    " OR c.retry_at > clock_timestamp() + $6 * interval '1 ms')"
/* `place`: which partitions; `others`: whether more of them wait; `messages`: the m of POSTGRES_MESSAGE_COLUMNS. */
#define CLAIM(place, others, messages)                                                              \
    "WITH due AS MATERIALIZED ("                                                                    \
    "    SELECT c.partition, c.position, c.careful_until, c.attempts, c.last_error, p.next_offset," \
    "           set_config('idle_in_transaction_session_timeout', $7, true)"                        \
    "    FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"         \
    "    WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset"                   \
    "      AND " DUE place "    LIMIT 1 FOR UPDATE OF c SKIP LOCKED)"                               \
    " SELECT due.partition::text, due.position::text, due.attempts::text, due.last_error,"          \
    "        due.next_offset::text, " others ", " POSTGRES_MESSAGE_COLUMNS                          \
    " FROM due LEFT JOIN LATERAL (" messages ") m ON true"

static const char claim_sql[] =
    CLAIM("    ORDER BY (c.partition - $5 + 65536) % 256",
          "EXISTS (SELECT FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
          "                WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset"
          "                  AND c.partition <> due.partition"
          "                  AND " DUE ")::text",
          "    SELECT * FROM ("
          "        SELECT w.*, sum(octet_length(w.payload)) OVER (ORDER BY w.message_offset)"
          "                    - octet_length(w.payload) AS before"
          "        FROM (SELECT * FROM platform.bus_message"
          "              WHERE topic = $2 AND partition = due.partition AND message_offset >= due.position"
          "              ORDER BY message_offset"
          "              LIMIT CASE WHEN due.position < due.careful_until THEN 1 ELSE $3 END) w) x"
          "    WHERE x.before < $4") " ORDER BY m.message_offset";
/* $5 the partition, the only one: it is told of one by one, so it has one message or the caller comes back for many. */
static const char claim_there_sql[] =
    CLAIM(" AND c.partition = $5", "'false'",
          "    SELECT * FROM platform.bus_message"
          "    WHERE topic = $2 AND partition = $5 AND message_offset >= due.position"
          "    ORDER BY message_offset LIMIT 1");

static enum status add_claim(struct claim *claim, int place, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_TEXT, DB_BIGINT, DB_BIGINT, DB_INT, DB_BIGINT, DB_TEXT};
    const struct bus_consumer *consumer = &claim->reader->consumer;
    bool anywhere = place == POSTGRES_ANYWHERE;
    unsigned turn = anywhere ? atomic_fetch_add(&claim->reader->turn, 1) % consumer->topic->spec.partitions
                             : (unsigned)place;
    struct postgres_number numbers[5];
    struct db_statement statement;
    struct db_param params[] = {{str_from(consumer->spec.group)},
                                {consumer->topic->name},
                                bus_postgres_param(&numbers[0], consumer->spec.batch_max),
                                bus_postgres_param(&numbers[1], (int64_t)consumer->spec.batch_bytes_max),
                                bus_postgres_param(&numbers[2], turn),
                                bus_postgres_param(&numbers[3], 2 * consumer->spec.backoff_max_ms),
                                bus_postgres_param(&numbers[4], claim->reader->postgres->config.handler_ms)};

    db_statement_init(&statement, anywhere ? claim_sql : claim_there_sql, 7, types);
    statement.binary_results = true;
    return db_pipeline_add_checked(claim->conn, &statement, params, error);
}

enum status bus_postgres_claim_open(struct claim *claim, int place, struct error *error)
{
    struct db_statement begin;

    db_statement_init(&begin, begin_sql, 0, NULL);
    enum status status = db_pipeline_begin_checked(claim->conn, error);
    if (status == STATUS_OK)
        status = db_pipeline_add_checked(claim->conn, &begin, NULL, error);
    return status == STATUS_OK ? add_claim(claim, place, error) : status;
}

enum status bus_postgres_claim_send(struct claim *claim, int place, int64_t deadline_ns, struct error *error)
{
    struct db_result *results[2];
    enum status status = bus_postgres_claim_open(claim, place, error);

    if (status == STATUS_OK)
        status = db_pipeline_end(claim->conn, deadline_ns, results, 2, NULL, error);
    if (status != STATUS_OK)
        return status;
    db_result_free(results[0]);
    claim->rows = results[1];
    return STATUS_OK;
}

void bus_postgres_claim_read(struct claim *claim)
{
    size_t count = db_result_rows(claim->rows);
    struct bus_message *messages = arena_zalloc(&claim->arena, count * sizeof messages[0]);

    claim->partition = (unsigned)db_result_i64(claim->rows, 0, CLAIM_PARTITION);
    claim->position = db_result_i64(claim->rows, 0, CLAIM_POSITION);
    claim->next_offset = db_result_i64(claim->rows, 0, CLAIM_NEXT_OFFSET);
    if (db_result_is_null(claim->rows, 0, CLAIM_MESSAGE))
        count = 0;
    for (size_t i = 0; i < count; i++) {
        messages[i].topic = claim->reader->consumer.topic->name;
        messages[i].partition = claim->partition;
        bus_postgres_row_message(claim->rows, i, CLAIM_MESSAGE, &claim->arena, &messages[i]);
    }
    claim->batch = (struct bus_batch){
        .messages = messages,
        .count = count,
        .verdicts = arena_zalloc(&claim->arena, (count + 1) * sizeof(struct bus_verdict)),
        .conn = claim->conn,
        .deadline_ns = clock_deadline_ms(claim->reader->postgres->config.handler_ms),
        .attempt = (unsigned)db_result_i64(claim->rows, 0, CLAIM_ATTEMPTS),
    };
}

/* Did retention take something this group had not handled? Then it goes on behind it. */
void bus_postgres_claim_look_for_gap(struct claim *claim)
{
    const struct bus_subscription *spec = &claim->reader->consumer.spec;
    int64_t first = claim->batch.count ? claim->batch.messages[0].offset : claim->next_offset;

    if (first == claim->position)
        return;
    log_warn("bus_gap", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", claim->partition), LOG_INT("offset", claim->position),
             LOG_INT("next", first));
    if (spec->on_gap)
        spec->on_gap(spec->context, claim->partition, claim->position, first);
    claim->batch.attempt = 0;
}
