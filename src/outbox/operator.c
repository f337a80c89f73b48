/* Operations of `freshet outbox` (O4). Each is one statement on the caller's connection, which selects, locks and changes the
 * rows, so that a running engine sees all of the change or none. */
#include "outbox/outbox_inside.h"

/* $1 ids, read once by the sub-select and not for every row, $2 and $3 sequence from and to, $4 aggregate, $5 created since, $6 rows at
 * most. A table without a sequence has no rows in any range of it. */
#define SELECTED                                                                             \
    " AND ($1::text[] IS NULL OR e.@id = ANY ((SELECT $1::text[]::@id_type[])::@id_type[]))" \
    " AND ($2::text IS NULL OR @number >= $2::text::bigint)"                                 \
    " AND ($3::text IS NULL OR @number <= $3::text::bigint)"                                 \
    " AND ($4::text IS NULL OR @about = $4::text)"                                           \
    " AND ($5::text IS NULL OR e.@created_at >= $5::text::timestamptz)"
#define CHANGE(set, where)                                  \
    "UPDATE @table e SET " set " WHERE e.@id = ANY (ARRAY(" \
    "    SELECT e.@id FROM @table e WHERE " where SELECTED "    ORDER BY @order LIMIT $6 FOR UPDATE))"
#define AS_NEW "@set_alive @attempts = 0, @claims = 0, @no_outages @next_attempt_at = NULL, @unlock"
#define LIST(where)                                                                                         \
    "SELECT e.@id::text, @about, @number, (@event_type)::text,"                                             \
    "       e.@attempts, e.@claims, greatest(0, extract(epoch FROM now() - e.@created_at))::bigint, @error" \
    " FROM @table e WHERE " where SELECTED " ORDER BY @order LIMIT $6"

static const char *const list_templates[] = {
    [OUTBOX_PENDING] = LIST("@live AND (@leased) IS NOT TRUE"),
    [OUTBOX_IN_FLIGHT] = LIST("@live AND @leased"),
    [OUTBOX_PUBLISHED] = LIST("@is_published"),
    [OUTBOX_FAILED] = LIST("@is_failed"),
};
static const char *const change_templates[] = {
    [OUTBOX_CHANGE_RETRY] = CHANGE(AS_NEW, "@is_failed"),
    [OUTBOX_CHANGE_DISCARD] = CHANGE("@set_discarded @unlock", "@is_failed"),
    /* Discarded events are among the published ones, with their error; they are republished only by id. */
    [OUTBOX_CHANGE_REPUBLISH] =
        CHANGE(AS_NEW, "@is_published AND ($1::text[] IS NOT NULL OR NOT (@is_discarded))"),
    [OUTBOX_CHANGE_UNLOCK] = CHANGE("@set_pending @unlock", "@live AND @leased"),
};

#define STUCK "@live AND e.@locked_until > now() + interval '2 hours'"
static const char count_template[] =
    "SELECT count(*), count(*) FILTER (WHERE (@live) IS NOT TRUE), count(*) FILTER (WHERE " STUCK "),"
    "       array_to_string(ARRAY(SELECT e.@id::text FROM @table e WHERE " STUCK " LIMIT 20), ' ')"
    " FROM @table e";

const char *outbox_state_name(enum outbox_state state)
{
    static const char *const names[] = {[OUTBOX_PENDING] = "pending",
                                        [OUTBOX_IN_FLIGHT] = "in_flight",
                                        [OUTBOX_PUBLISHED] = "published",
                                        [OUTBOX_FAILED] = "failed"};
    return names[state];
}

static enum status run_template(struct db_conn *conn, const struct outbox_table *table, const char *template,
                                const struct outbox_selection *selection, int64_t deadline_ns,
                                struct db_result **rows, struct error *error)
{
    struct arena arena = ARENA(4096);
    struct db_statement statement = outbox_sql_expand(table, template, &arena);
    enum status status = db_query(conn, &statement,
                                  DB_PARAMS(db_text_array(selection->ids), db_text(selection->first),
                                            db_text(selection->last), db_text(selection->aggregate),
                                            db_text(selection->since), db_i64(selection->rows_max)),
                                  deadline_ns, rows, error);
    arena_deinit(&arena);
    return status;
}

enum status outbox_list(struct db_conn *conn, const struct outbox_table *table, enum outbox_state state,
                        const struct outbox_selection *selection, int64_t deadline_ns,
                        struct db_result **rows, struct error *error)
{
    return run_template(conn, table, list_templates[state], selection, deadline_ns, rows, error);
}

enum status outbox_change(struct db_conn *conn, const struct outbox_table *table, enum outbox_change change,
                          const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                          struct error *error)
{
    struct db_result *rows = NULL;
    enum status status =
        run_template(conn, table, change_templates[change], selection, deadline_ns, &rows, error);
    *count = status == STATUS_OK ? db_result_affected(rows) : 0;
    db_result_free(rows);
    return status;
}

enum status outbox_count(struct db_conn *conn, const struct outbox_table *table, int64_t deadline_ns,
                         struct db_result **counts, struct error *error)
{
    struct arena arena = ARENA(4096);
    struct db_statement statement = outbox_sql_expand(table, count_template, &arena);
    enum status status = db_query(conn, &statement, DB_NO_PARAMS, deadline_ns, counts, error);
    arena_deinit(&arena);
    return status;
}
