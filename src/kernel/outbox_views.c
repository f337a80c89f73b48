/* Views of outboxes. Each state is read by the partial index that its rows are in, at most OPS_SCAN_ROWS of them at once: no index is made
 * for lists, since every event would pay for it. */
#include "kernel/outbox_views.h"

#define COLUMNS                                                                                 \
    "SELECT e.@id AS own_id, e.@id::text AS id, @about AS aggregate, @number AS sequence,"      \
    " (@event_type)::text AS event_type, (@state)::text AS state, e.@attempts AS attempts,"     \
    " e.@claims AS claims, e.@created_at AS created_at, e.@published_at AS published_at,"       \
    " CASE WHEN @live THEN e.@next_attempt_at END AS next_retry_at, e.@locked_by AS locked_by," \
    " @error AS last_error, (@tenant_or_null)::text AS tenant_id, "
#define PAYLOAD                                            \
    "substr((@payload_value)::text, 1, 65536) AS payload," \
    " CASE WHEN length((@payload_value)::text) > 65536 THEN true END AS payload_truncated, "

static const struct ops_column event_columns[] = {
    {"id", "r.id", .type = OPS_TEXT},
    {"aggregate", "r.aggregate", .type = OPS_TEXT},
    {"sequence", "r.sequence", .type = OPS_NUMBER},
    {"event_type", "r.event_type", .type = OPS_TEXT},
    {"state", "r.state", .type = OPS_TEXT},
    {"attempts", "r.attempts", .type = OPS_NUMBER},
    {"claims", "r.claims", .type = OPS_NUMBER},
    {"age_seconds", "greatest(0, extract(epoch from clock_timestamp() - r.created_at))::bigint",
     .type = OPS_NUMBER},
    {"created_at", "r.created_at", .type = OPS_TIME},
    {"next_retry_at", "r.next_retry_at", .type = OPS_TIME},
    {"locked_by", "r.locked_by", .type = OPS_TEXT},
    {"last_error", "r.last_error", .type = OPS_TEXT},
    {"tenant_id", "r.tenant_id", OPS_TEXT, .is_optional = true},
    /* of one event */
    {"payload", "r.payload", .type = OPS_TEXT},
    {"payload_truncated", "r.payload_truncated", OPS_BOOL, .is_optional = true},
    {.name = NULL},
};
enum { LIST_COLUMNS = 13 };

/* The scan reads the rows of an index; which of them are in that state is looked at afterwards. */
static const struct ops_choice states[] = {
    {"stuck", "r.is_stuck"},
    {"pending", "r.state = 'pending'"},
    {"in_flight", "r.state = 'in_flight'"},
    {"failed", "true"},
    {"published", "true"},
    {NULL, NULL},
};
static const struct ops_filter event_filters[] = {
    {"state", OPS_TEXT, "true", .choices = states, .fallback = "stuck"},
    {"event_type", OPS_TEXT, .sql = "r.event_type = $?"},
    {"aggregate", OPS_TEXT, .sql = "r.aggregate = $?"},
    {"from", OPS_TIME, .sql = "r.created_at >= $?"},
    {"to", OPS_TIME, .sql = "r.created_at < $?"},
    {.name = NULL},
};

/* ---- SQL ---- */

/* "e.tenant_id AS k1, …, e.sequence AS k3", and the same as keys. */
static struct str put_keys(struct ops_view *view, const struct outbox_table *table, struct arena *arena)
{
    static const char *const names[OPS_KEYS_MAX] = {"r.k1", "r.k2", "r.k3", "r.k4"};
    struct str sql = STR("");
    unsigned count = 0;
    for (; table->aggregate[count].name; count++) {
        const struct outbox_column *column = &table->aggregate[count];
        bool is_uuid = strcmp(column->type, "uuid") == 0;
        sql = arena_printf(arena, "%.*se.%s AS k%u, ", STR_ARG(sql), column->name, count + 1);
        view->keys[count] = (struct ops_key){names[count], is_uuid ? OPS_UUID : OPS_TEXT};
    }
    view->keys[count] = (struct ops_key){names[count], OPS_NUMBER};
    return arena_printf(arena, "%.*se.%s AS k%u", STR_ARG(sql), table->sequence, count + 1);
}

/* "(SELECT …) r" of a template. */
static const char *rows_from(const struct outbox_table *table, struct str template, struct arena *arena)
{
    return arena_printf(arena, "(%.*s) r", STR_ARG(outbox_expand(table, template.ptr, arena))).ptr;
}

/* ---- views ---- */

static enum ops_place place_of(const struct outbox_table *table)
{
    return strcmp(table->module, "refdata") == 0 ? OPS_DATABASES : OPS_STORE;
}

static const struct ops_column *first_columns(const struct ops_column *all, size_t count, struct arena *arena)
{
    struct ops_column *columns = arena_zalloc(arena, (count + 1) * sizeof *columns);
    return memcpy(columns, all, count * sizeof *columns);
}

/* The rows of one index: published, failed or live ones. */
static struct ops_view *list_view(const struct outbox_table *table, enum outbox_state of, struct arena *arena)
{
    struct ops_view *view = arena_zalloc(arena, sizeof *view);
    struct str keys = put_keys(view, table, arena);
    bool is_published = of == OUTBOX_PUBLISHED, is_live = !is_published && of != OUTBOX_FAILED;
    struct str rows = arena_printf(arena, COLUMNS "(%s) AS is_stuck, %.*s FROM @table e WHERE %s",
                                   is_live ? outbox_condition(OUTBOX_STUCK) : "true", STR_ARG(keys),
                                   is_live ? "@live" : outbox_condition(of));
    if (is_published) {
        memset(view->keys, 0, sizeof view->keys);
        view->keys[0] = (struct ops_key){"r.published_at", OPS_TIME};
        view->keys[1] = (struct ops_key){"r.id collate \"C\"", OPS_TEXT};
    }
    view->place = place_of(table);
    view->from = rows_from(table, rows, arena);
    view->tenant = "r.tenant_id";
    view->tenant_is_indexed = !is_published && strcmp(table->aggregate[0].name, "tenant_id") == 0;
    view->columns = first_columns(event_columns, LIST_COLUMNS, arena);
    view->filters = event_filters;
    view->is_descending = is_published;
    view->is_scanned = true;
    return view;
}

size_t kernel_outbox_events(const struct outbox_table *table, enum outbox_state state, struct arena *arena,
                            const struct ops_view *views[KERNEL_OUTBOX_VIEWS])
{
    const char *name =
        arena_printf(arena, "outboxes/%s/events/%s", table->name, outbox_state_name(state)).ptr;
    const enum outbox_state lists[KERNEL_OUTBOX_VIEWS] = {state == OUTBOX_STUCK ? OUTBOX_FAILED : state,
                                                          OUTBOX_STUCK};
    size_t count = state == OUTBOX_STUCK ? KERNEL_OUTBOX_VIEWS : 1;
    for (size_t i = 0; i < count; i++) {
        struct ops_view *view = list_view(table, lists[i], arena);
        view->name = name;
        views[i] = view;
    }
    return count;
}

const struct ops_view *kernel_outbox_event(const struct outbox_table *table, struct arena *arena)
{
    struct ops_view *view = arena_zalloc(arena, sizeof *view);
    struct ops_filter *filters = arena_zalloc(arena, 2 * sizeof *filters);
    bool is_uuid = strcmp(table->id.type, "uuid") == 0;
    *filters = (struct ops_filter){"id", is_uuid ? OPS_UUID : OPS_NUMBER, "r.own_id = $?", .is_path = true,
                                   .is_indexed = true};
    *view = (struct ops_view){
        .name = arena_printf(arena, "outboxes/%s/events/{id}", table->name).ptr,
        .place = place_of(table),
        .from = rows_from(table, STR(COLUMNS PAYLOAD "e.@id AS k1 FROM @table e"), arena),
        .tenant = "r.tenant_id",
        .columns = event_columns,
        .filters = filters,
        .keys = {{"r.k1", is_uuid ? OPS_UUID : OPS_NUMBER}},
        .is_single = true,
    };
    return view;
}

/* ---- as dead letters ---- */

static const struct ops_column dead_columns[] = {
    {"id", "r.id", .type = OPS_TEXT},
    {"topic", "null::text", .type = OPS_TEXT},
    {"partition", "null::bigint", .type = OPS_NUMBER},
    {"offset", "null::bigint", .type = OPS_NUMBER},
    {"key", "r.aggregate", .type = OPS_TEXT},
    {"reason", "r.last_error", .type = OPS_TEXT},
    {"at", "r.created_at", .type = OPS_TIME},
    {"state", "case r.state when 'failed' then 'open' else 'discarded' end", .type = OPS_TEXT},
    {"event_type", "r.event_type", .type = OPS_TEXT},
    {"tenant_id", "r.tenant_id", OPS_TEXT, .is_optional = true},
    {"bytes", "octet_length(r.payload)", .type = OPS_NUMBER},
    /* of one */
    {"payload", "r.payload", .type = OPS_TEXT},
    {"payload_truncated", "r.payload_truncated", OPS_BOOL, .is_optional = true},
    {"headers", "'{}'::jsonb", .type = OPS_JSON},
    {.name = NULL},
};
enum { DEAD_LIST_COLUMNS = 11 };

/* A requeued event is an event like any other again: none is listed. */
static const struct ops_choice dead_states[] = {{"open", "r.state = 'failed'"},
                                                {"requeued", "false"},
                                                {"discarded", "r.state <> 'failed'"},
                                                {NULL, NULL}};
static const struct ops_filter dead_filters[] = {
    {"state", OPS_TEXT, "true", .choices = dead_states, .fallback = "open"},
    {"reason", OPS_TEXT, .sql = "position($? in coalesce(r.last_error, '')) > 0"},
    {"from", OPS_TIME, .sql = "r.created_at >= $?"},
    {"to", OPS_TIME, .sql = "r.created_at < $?"},
    {.name = NULL},
};

const struct ops_view *kernel_outbox_dead(const struct outbox_table *table, bool is_discarded,
                                          struct arena *arena)
{
    struct ops_view *view = list_view(table, is_discarded ? OUTBOX_PUBLISHED : OUTBOX_FAILED, arena);
    struct str keys = put_keys(&(struct ops_view){0}, table, arena);
    struct str rows = arena_printf(arena, COLUMNS PAYLOAD "%.*s FROM @table e WHERE %s", STR_ARG(keys),
                                   is_discarded ? "@is_published AND (@is_discarded)" : "@is_failed");
    view->name = arena_printf(arena, "dead-letters/%s%s", table->name, is_discarded ? "/discarded" : "").ptr;
    view->from = rows_from(table, rows, arena);
    view->columns = first_columns(dead_columns, DEAD_LIST_COLUMNS, arena);
    view->filters = dead_filters;
    return view;
}

const struct ops_view *kernel_outbox_dead_one(const struct outbox_table *table, struct arena *arena)
{
    struct ops_view *view = arena_zalloc(arena, sizeof *view);
    *view = *kernel_outbox_event(table, arena);
    const struct str rows = STR(COLUMNS PAYLOAD "e.@id AS k1 FROM @table e"
                                                " WHERE (@is_failed) OR (@is_published AND (@is_discarded))");
    view->name = arena_printf(arena, "dead-letters/%s/{id}", table->name).ptr;
    view->from = rows_from(table, rows, arena);
    view->columns = dead_columns;
    return view;
}

/* ---- counts ---- */

/* $1 tenant or NULL, $2 rows that are counted. */
static const char count_template[] =
    "WITH live AS (SELECT (@leased) IS TRUE AS is_leased, e.@created_at AS at FROM @table e"
    "     WHERE @live AND ($1::text IS NULL OR @tenant = $1) LIMIT $2),"
    " failed AS (SELECT e.@created_at AS at, @error AS why FROM @table e"
    "     WHERE @is_failed AND ($1::text IS NULL OR @tenant = $1) LIMIT $2)"
    " SELECT count(*) FILTER (WHERE NOT is_leased), count(*) FILTER (WHERE is_leased),"
    "     (SELECT count(*) FROM failed), count(*),"
    "     CASE WHEN count(*) FILTER (WHERE NOT is_leased) > 0" /* greatest() leaves NULL out */
    "         THEN greatest(0, extract(epoch FROM clock_timestamp() - min(at) FILTER (WHERE NOT is_leased)))::bigint END,"
    "     (SELECT why FROM failed ORDER BY at DESC LIMIT 1),"
    "     (SELECT (extract(epoch FROM min(at)) * 1000000)::bigint FROM failed) FROM live";

static int64_t capped(int64_t count)
{
    return count < KERNEL_COUNT_MAX ? count : KERNEL_COUNT_MAX;
}

enum status kernel_outbox_count(struct db_conn *conn, const struct outbox_table *table, struct str tenant,
                                struct arena *arena, int64_t deadline_ns, struct kernel_outbox_counts *counts,
                                struct error *error)
{
    struct db_result *rows = NULL;
    struct db_statement statement = db_statement_of(outbox_expand(table, count_template, arena));
    *counts = (struct kernel_outbox_counts){.oldest_pending_age_s = -1};
    enum status status = db_query(conn, &statement, DB_PARAMS(db_text(tenant), db_i64(KERNEL_COUNT_MAX + 1)),
                                  deadline_ns, &rows, error);
    if (status != STATUS_OK)
        return status;
    counts->pending = capped(db_result_i64(rows, 0, 0));
    counts->in_flight = capped(db_result_i64(rows, 0, 1));
    counts->failed = capped(db_result_i64(rows, 0, 2));
    counts->has_more =
        db_result_i64(rows, 0, 2) > KERNEL_COUNT_MAX || db_result_i64(rows, 0, 3) > KERNEL_COUNT_MAX;
    if (!db_result_is_null(rows, 0, 4))
        counts->oldest_pending_age_s = db_result_i64(rows, 0, 4);
    counts->oldest_failed_us = db_result_i64(rows, 0, 6);
    if (!db_result_is_null(rows, 0, 5))
        counts->last_error = arena_str(arena, db_result_str(rows, 0, 5));
    db_result_free(rows);
    return STATUS_OK;
}

const struct outbox_table *kernel_outbox_find(const struct module *const *modules, struct str name,
                                              const struct module **module)
{
    for (; *modules; modules++)
        for (const struct outbox_table *const *at = (*modules)->outboxes; at && *at; at++)
            if (str_eq(name, str_from((*at)->name))) {
                *module = *modules;
                return *at;
            }
    return NULL;
}
