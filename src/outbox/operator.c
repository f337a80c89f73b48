/* Operations of `freshet outbox` (O4). Each is one statement on the caller's connection, which selects, locks and changes the
 * rows, so that a running engine sees all of the change or none. */
#include "outbox/outbox_inside.h"

/* $1 ids, read once by the sub-select and not for every row, $2 and $3 sequence from and to, $4 aggregate, $5 created since, $6 rows at
 * most, $7 created before, $8 event type, $9 tenant, $10 of a retry: failed ones only, of an unlock: stuck ones only, $11 a part of the last error. A table without a sequence has no rows in any range of it. */
#define SELECTED                                                                             \
    " AND ($1::text[] IS NULL OR e.@id = ANY ((SELECT $1::text[]::@id_type[])::@id_type[]))" \
    " AND ($2::text IS NULL OR @number >= $2::text::bigint)"                                 \
    " AND ($3::text IS NULL OR @number <= $3::text::bigint)"                                 \
    " AND ($4::text IS NULL OR @about = $4::text)"                                           \
    " AND ($5::text IS NULL OR e.@created_at >= $5::text::timestamptz)"                      \
    " AND ($7::text IS NULL OR e.@created_at < $7::text::timestamptz)"                       \
    " AND ($8::text IS NULL OR (@event_type)::text = $8::text)"                              \
    " AND ($9::text IS NULL OR @is_of_tenant)"                                               \
    " AND ($11::text IS NULL OR position($11::text IN coalesce(@error, '')) > 0)"
#define CHOSEN(where) "SELECT e.@id FROM @table e WHERE (" where ")" SELECTED " ORDER BY @order LIMIT $6"
#define CHANGE(set, where) \
    "UPDATE @table e SET " set " WHERE e.@id = ANY (ARRAY(" CHOSEN(where) " FOR UPDATE))"
#define COUNT(where) "SELECT count(*) FROM (" CHOSEN(where) ") c"
#define AS_NEW "@set_alive @attempts = 0, @claims = 0, @no_outages @next_attempt_at = NULL, @unlock"

#define LEASED_TOO_LONG                                                      \
    "@leased AND (e.@created_at < now() - interval '" OUTBOX_LEASED_LONG_SQL \
    "' OR e.@locked_until > now() + interval '2 hours')"

/* What a change applies to. Discarded events are among the published ones, with their error; they are republished only by id. */
#define RETRIED "(@is_failed) OR (NOT $10 AND @live AND e.@attempts > 0 AND (@leased) IS NOT TRUE)"
#define REPUBLISHED "@is_published AND ($1::text[] IS NOT NULL OR NOT (@is_discarded))"
#define UNLOCKED "@live AND @leased AND (NOT $10 OR e.@attempts > 0 OR (" LEASED_TOO_LONG "))"
static const struct {
    const char *change, *count;
} change_templates[] = {
    [OUTBOX_CHANGE_RETRY] = {CHANGE(AS_NEW, RETRIED), COUNT(RETRIED)},
    [OUTBOX_CHANGE_DISCARD] = {CHANGE("@set_discarded @unlock", "@is_failed"), COUNT("@is_failed")},
    [OUTBOX_CHANGE_REPUBLISH] = {CHANGE(AS_NEW, REPUBLISHED), COUNT(REPUBLISHED)},
    [OUTBOX_CHANGE_UNLOCK] = {CHANGE("@set_pending @unlock", UNLOCKED), COUNT(UNLOCKED)},
};

/* ---- lists ---- */

static const char *const conditions[] = {
    [OUTBOX_PENDING] = "@live AND (@leased) IS NOT TRUE",
    [OUTBOX_IN_FLIGHT] = "@live AND @leased",
    [OUTBOX_PUBLISHED] = "@is_published",
    [OUTBOX_FAILED] = "@is_failed",
    [OUTBOX_STUCK] = "@live AND (e.@attempts > 0 OR (" LEASED_TOO_LONG "))",
};
static const char list_columns[] =
    "SELECT e.@id::text, @about, @number, (@event_type)::text, e.@attempts, e.@claims,"
    "       greatest(0, extract(epoch FROM now() - e.@created_at))::bigint, @error, @state, e.@locked_by,"
    "       CASE WHEN @live THEN to_char(e.@next_attempt_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') END"
    " FROM @table e WHERE (";

const char *outbox_condition(enum outbox_state state)
{
    return conditions[state];
}

struct str outbox_expand(const struct outbox_table *table, const char *template, struct arena *arena)
{
    return outbox_sql_expand(table, template, arena).text;
}

/* ---- books ---- */

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
                                        [OUTBOX_FAILED] = "failed",
                                        [OUTBOX_STUCK] = "stuck"};
    return names[state];
}

static enum status run_template(struct db_conn *conn, const struct outbox_table *table, const char *template,
                                const struct outbox_selection *selection, int64_t deadline_ns,
                                struct db_result **rows, struct error *error)
{
    struct arena arena = ARENA(4096);
    struct db_statement statement = outbox_sql_expand(table, template, &arena);
    enum status status = db_query(
        conn, &statement,
        DB_PARAMS(db_text_array(selection->ids), db_text(selection->first), db_text(selection->last),
                  db_text(selection->aggregate), db_text(selection->since), db_i64(selection->rows_max),
                  db_text(selection->until), db_text(selection->event_type), db_text(selection->tenant),
                  db_bool(selection->is_narrow), db_text(selection->error)),
        deadline_ns, rows, error);
    arena_deinit(&arena);
    return status;
}

enum status outbox_list(struct db_conn *conn, const struct outbox_table *table, enum outbox_state state,
                        const struct outbox_selection *selection, int64_t deadline_ns,
                        struct db_result **rows, struct error *error)
{
    struct buf template = {0};
    buf_printf(&template, "%s%s%s%s)%s", list_columns, conditions[state], state == OUTBOX_STUCK ? " OR " : "",
               state == OUTBOX_STUCK ? conditions[OUTBOX_FAILED] : "", SELECTED " ORDER BY @order LIMIT $6");
    buf_put_char(&template, '\0');
    enum status status =
        run_template(conn, table, buf_str(&template).ptr, selection, deadline_ns, rows, error);
    buf_deinit(&template);
    return status;
}

enum status outbox_change(struct db_conn *conn, const struct outbox_table *table, enum outbox_change change,
                          const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                          struct error *error)
{
    struct db_result *rows = NULL;
    enum status status =
        run_template(conn, table, change_templates[change].change, selection, deadline_ns, &rows, error);
    *count = status == STATUS_OK ? db_result_affected(rows) : 0;
    db_result_free(rows);
    return status;
}

enum status outbox_change_count(struct db_conn *conn, const struct outbox_table *table,
                                enum outbox_change change, const struct outbox_selection *selection,
                                int64_t deadline_ns, int64_t *count, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status =
        run_template(conn, table, change_templates[change].count, selection, deadline_ns, &rows, error);
    *count = status == STATUS_OK ? db_result_i64(rows, 0, 0) : 0;
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
