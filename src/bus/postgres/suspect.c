/* Messages that kill their process. The crash rolls back everything that could tell of it, so it is found out
 * by what starts have in common: a group that stands where it stood at the last starts too. From there on this
 * process takes messages one by one and marks each before it is handled, by a connection of its own, since the
 * mark must outlive the transaction. Nothing of this costs a group that moves anything but one compare. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define STARTS_MAX 3 /* at the same position; then it is suspect */
#define DEATHS_MAX 5 /* more of them make a dead letter; kill -9 does not hit the same message that often */
#define MARK_MS 10000

static const char note_sql[] =
    "INSERT INTO platform.bus_suspect AS s (group_name, topic, partition, position, starts, deaths)"
    " SELECT c.group_name, c.topic, c.partition, c.position, 1, 0"
    " FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    " WHERE c.group_name = $1 AND c.topic = $2 AND c.position < p.next_offset ORDER BY c.partition"
    " ON CONFLICT (group_name, topic, partition) DO UPDATE SET position = excluded.position,"
    "     starts = CASE WHEN s.position = excluded.position THEN s.starts + 1 ELSE 1 END,"
    "     deaths = CASE WHEN s.position = excluded.position THEN s.deaths ELSE 0 END"
    " RETURNING partition, position, starts";

/* $6: this process has marked it before and could not remove the mark. It lives: that mark is no death. */
static const char mark_sql[] =
    "INSERT INTO platform.bus_suspect AS s (group_name, topic, partition, position, starts, deaths)"
    " VALUES ($1, $2, $3, $4, $5, 1)"
    " ON CONFLICT (group_name, topic, partition) DO UPDATE SET position = $4,"
    "     starts = CASE WHEN s.position = $4 THEN s.starts ELSE $5 END,"
    "     deaths = CASE WHEN s.position <> $4 THEN 1 WHEN $6 THEN greatest(s.deaths, 1) ELSE s.deaths + 1 END"
    " RETURNING deaths - 1";

static const char unmark_sql[] = "UPDATE platform.bus_suspect SET deaths = 0"
                                 " WHERE group_name = $1 AND topic = $2 AND partition = $3";

enum status bus_postgres_suspects_note(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                                       struct error *error)
{
    const struct bus_consumer *consumer = &reader->consumer;
    struct db_param params[] = {{str_from(consumer->spec.group)}, {consumer->topic->name}};
    struct db_statement statement;
    struct db_result *result;

    db_statement_init(&statement, note_sql, 2, (enum db_type[]){DB_TEXT, DB_TEXT});
    enum status status = db_query(conn, &statement, params, deadline_ns, &result, error);
    if (status != STATUS_OK)
        return status;
    if (!reader->suspect_until)
        reader->suspect_until =
            memory_zalloc(consumer->topic->spec.partitions * sizeof reader->suspect_until[0]);
    if (!reader->marked_until)
        reader->marked_until =
            memory_zalloc(consumer->topic->spec.partitions * sizeof reader->marked_until[0]);
    for (size_t row = 0; row < db_result_rows(result); row++) {
        int64_t partition = db_result_i64(result, row, 0), position = db_result_i64(result, row, 1);
        if (db_result_i64(result, row, 2) < STARTS_MAX)
            continue;
        reader->suspect_until[partition] = position + consumer->spec.batch_max;
        log_warn("bus_partition_stands_still", LOG_CSTR("topic", consumer->spec.topic),
                 LOG_CSTR("group", consumer->spec.group), LOG_INT("partition", partition),
                 LOG_INT("offset", position), LOG_INT("starts", db_result_i64(result, row, 2)));
    }
    db_result_free(result);
    return STATUS_OK;
}

bool bus_postgres_is_suspect(const struct reader *reader, unsigned partition, int64_t position)
{
    return position < reader->suspect_until[partition];
}

/* By the publishers' connections: the readers' may all be in use, each by one who comes here. */
static enum status run(struct reader *reader, const char *sql, unsigned param_count,
                       const struct db_param *params, struct db_result **result, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_TEXT, DB_INT, DB_BIGINT, DB_INT, DB_BOOL};
    int64_t deadline_ns = clock_deadline_ms(MARK_MS);
    struct db_statement statement;
    struct db_conn *conn;

    *result = NULL;
    db_statement_init(&statement, sql, param_count, types);
    enum status status = db_acquire(reader->postgres->publish_pool, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &statement, params, deadline_ns, result, error);
    db_release(conn);
    return status;
}

enum status bus_postgres_suspect_mark(struct reader *reader, unsigned partition, int64_t position,
                                      enum suspicion *suspicion, struct error *error)
{
    struct postgres_number numbers[3];
    struct db_param params[] = {
        {str_from(reader->consumer.spec.group)},
        {reader->consumer.topic->name},
        bus_postgres_param(&numbers[0], partition),
        bus_postgres_param(&numbers[1], position),
        bus_postgres_param(&numbers[2], STARTS_MAX),
        {reader->marked_until[partition] == position + 1 ? STR("true") : STR("false")}};
    struct db_result *result;

    reader->marked_until[partition] = position + 1; /* also when the answer is lost */
    enum status status = run(reader, mark_sql, 6, params, &result, error);

    int64_t deaths = status == STATUS_OK ? db_result_i64(result, 0, 0) : 0;
    *suspicion = deaths < DEATHS_MAX       ? SUSPECT_HANDLE
                 : deaths < 2 * DEATHS_MAX ? SUSPECT_GIVE_UP
                                           : SUSPECT_DROP;
    db_result_free(result);
    return status;
}

void bus_postgres_suspect_unmark(struct reader *reader, unsigned partition)
{
    struct postgres_number number;
    struct db_param params[] = {{str_from(reader->consumer.spec.group)},
                                {reader->consumer.topic->name},
                                bus_postgres_param(&number, partition)};
    struct db_result *result;
    struct error error = {0};

    if (run(reader, unmark_sql, 3, params, &result, &error) == STATUS_OK)
        reader->marked_until[partition] = 0;
    else /* it counts for a death where another process handles the message next */
        log_warn("bus_suspect_not_unmarked", LOG_ERROR_FIELDS(&error));
    db_result_free(result);
}
