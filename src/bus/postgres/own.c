/* Work that could have gone through a topic, done at once: whoever holds a group's cursors, with nothing queued behind
 * them, is the group for as long as its transaction lasts. Consumers meanwhile skip those partitions; what was published
 * to them in that time they are told of at the end, or it would lie there till the next poll. */
#include "bus/postgres/inside.h"

/* $3 the partitions. Never waits: what is locked is being handled. */
static const char own_sql[] =
    "SELECT count(*) FROM ("
    "    SELECT FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    "    WHERE c.group_name = $1 AND c.topic = $2 AND c.partition = ANY ($3::text::int[])"
    "      AND c.position = p.next_offset"
    "    FOR UPDATE OF c SKIP LOCKED) owned";

static const char commit_sql[] = "COMMIT";

enum status bus_postgres_own_ask(struct bus *bus, struct db_conn *conn, const struct bus_topic_state *topic,
                                 const char *group, const unsigned *partitions, size_t count, uint64_t *mark,
                                 struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_TEXT, DB_TEXT};
    struct db_statement statement;
    struct buf list;

    (void)bus;
    *mark = atomic_load(&topic->wakes);
    buf_init(&list);
    db_array_begin(&list);
    for (size_t i = 0; i < count; i++)
        bus_postgres_array_put_i64(&list, partitions[i]);
    db_array_end(&list);
    db_statement_init(&statement, own_sql, 3, types);
    struct db_param params[] = {{str_from(group)}, {topic->name}, {buf_str(&list)}};
    enum status status = db_pipeline_add_checked(conn, &statement, params, error);
    buf_deinit(&list);
    return status;
}

bool bus_own_is_granted(const struct db_result *answer, size_t count)
{
    return db_result_rows(answer) == 1 && db_result_i64(answer, 0, 0) == (int64_t)count;
}

enum status bus_postgres_own_commit(struct bus *bus, struct db_conn *conn, struct bus_topic_state *topic,
                                    uint64_t mark, int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct db_statement commit;

    db_statement_init(&commit, commit_sql, 0, NULL);
    enum status status = db_pipeline_begin_checked(conn, error);
    if (status == STATUS_OK)
        status = db_pipeline_add_checked(conn, &commit, NULL, error);
    if (status == STATUS_OK)
        status = db_pipeline_end(conn, deadline_ns, NULL, 0, NULL, error);
    if (atomic_load(&topic->wakes) != mark)
        bus_postgres_wake_topic(postgres, topic->name, POSTGRES_ANYWHERE, STR_NONE, NULL);
    return status;
}
