/* The ledger's statements. Each is one round trip, except the list of held entities, which is read in pages. The SQL functions are
 * in sql/hydration; hydration.claim() finds a copy or an absence, or begins a flight. */
#include <stdio.h>
#include <string.h>

#include "hydration/inside.h"

enum {
    HELD_PAGE = 1000,
    KEYS_MAX = 256, /* names of members of a change without a cover */
};

/* Separates names of fields in results: no name has a control character. */
#define SEPARATOR '\n'

static struct str text_of(struct str text)
{
    return text.ptr ? text : STR("");
}

static struct str put_fields(struct buf *out, const struct str *fields, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        db_array_put(out, fields[i]);
    return db_array_end(out);
}

/* ---- lookups ---- */

/* Reads are by primary key; concurrent calls for one entity wait only for its flight row. */
#define ASKED_MS_AGO(table)                                                                     \
    "(select hydration.milliseconds(clock_timestamp() - t.asked_at) from hydration." table " t" \
    " where t.tenant_id = $1 and t.entity_type = $2 and t.entity_id = $3 and t.subject = c.subject)"
static const struct db_statement find_sql = DB_STATEMENT(
    "select c.verdict, c.subject, c.data, c.source_module, c.mode, array_to_string(c.fields, E'\\n'), c.reason,"
    "       c.version, c.ttl_ms,"
    "       case c.verdict when 'copy' then " ASKED_MS_AGO("copies") "                      when 'absent' then " ASKED_MS_AGO(
        "absences") " end"
                    " from hydration.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) c");
enum { KIND, SUBJECT, DATA, SOURCE_MODULE, MODE, FIELDS, REASON, VERSION, TTL_MS, ASKED_MS };

static struct hydration_cover read_cover(const struct db_result *rows, struct arena *arena)
{
    struct hydration_cover cover = {.mode = (enum hydration_mode)db_result_i64(rows, 0, MODE)};
    struct str rest = cover.mode == HYDRATION_PARTIAL ? db_result_str(rows, 0, FIELDS) : STR_NONE, field;
    unsigned count = rest.len > 0;
    for (size_t i = 0; i < rest.len; i++)
        count += rest.ptr[i] == SEPARATOR;
    struct str *fields = arena_alloc(arena, (count + 1) * sizeof *fields);
    while (cover.field_count < count && str_split(&rest, SEPARATOR, &field))
        fields[cover.field_count++] = arena_str(arena, field);
    cover.fields = fields;
    return cover;
}

enum status hydration_ledger_find(struct db_pool *pool, const struct hydration_need *need,
                                  const struct hydration_policy *policy, struct str correlation_id,
                                  int64_t copy_ttl_ms, int64_t deadline_ns, struct arena *arena,
                                  struct hydration_finding *finding, struct error *error)
{
    struct db_result *rows = NULL;
    struct buf fields = {0};
    int64_t begun_ns = clock_mono_ns();

    struct str field_array = put_fields(&fields, need->cover.fields, need->cover.field_count);
    enum status status =
        db_pool_query(pool, &find_sql,
                      DB_PARAMS(db_text(need->tenant), db_text(need->entity_type), db_text(need->entity_id),
                                db_text(text_of(need->caller)), db_int((int64_t)need->cover.mode),
                                db_text_array(field_array), db_text(text_of(correlation_id)),
                                db_i64(policy->in_flight_window_ms), db_int(policy->max_retries),
                                db_i64(policy->negative_cache_ttl_ms), db_i64(copy_ttl_ms)),
                      deadline_ns, &rows, error);
    if (status == STATUS_OK) {
        struct str kind = db_result_str(rows, 0, KIND), caller = db_result_str(rows, 0, SUBJECT);
        int64_t ttl_ms = db_result_i64(rows, 0, TTL_MS);
        finding->kind = str_eq(kind, STR("copy"))     ? HYDRATION_LEDGER_COPY
                        : str_eq(kind, STR("absent")) ? HYDRATION_LEDGER_ABSENT
                        : str_eq(kind, STR("ask"))    ? HYDRATION_LEDGER_ASK
                                                      : HYDRATION_LEDGER_JOIN;
        finding->ttl_ms = ttl_ms > 0 ? ttl_ms : 0;
        finding->asked_ns = db_result_is_null(rows, 0, ASKED_MS)
                                ? 0
                                : begun_ns - (db_result_i64(rows, 0, ASKED_MS) + 1) * CLOCK_NS_PER_MS;
        finding->event = (struct hydration_event){
            .kind =
                finding->kind == HYDRATION_LEDGER_COPY ? HYDRATION_EVENT_UPDATED : HYDRATION_EVENT_NOT_FOUND,
            .tenant = need->tenant,
            .entity_type = need->entity_type,
            .entity_id = need->entity_id,
            .caller = arena_str(arena, caller),
            .is_private = caller.len > 0,
            .data = arena_str(arena, db_result_str(rows, 0, DATA)),
            .module = arena_str(arena, db_result_str(rows, 0, SOURCE_MODULE)),
            .has_cover = true,
            .cover = read_cover(rows, arena),
            .reason = (enum hydration_reason)db_result_i64(rows, 0, REASON),
            .version = db_result_i64(rows, 0, VERSION),
        };
    }
    db_result_free(rows);
    buf_deinit(&fields);
    return status;
}

static const struct db_statement retry_sql =
    DB_STATEMENT("select hydration.retry($1, $2, $3, $4, $5, $6)::integer");

enum status hydration_ledger_retry(struct db_pool *pool, const struct hydration_need *need,
                                   const struct hydration_policy *policy, struct str correlation_id,
                                   int64_t deadline_ns, bool *granted, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_pool_query(pool, &retry_sql,
                                       DB_PARAMS(db_text(need->tenant), db_text(need->entity_type),
                                                 db_text(need->entity_id), db_text(text_of(need->caller)),
                                                 db_text(correlation_id), db_int(policy->max_retries)),
                                       deadline_ns, &rows, error);
    *granted = status == STATUS_OK && db_result_i64(rows, 0, 0) == 1;
    db_result_free(rows);
    return status;
}

/* ---- events: an array for each column ---- */

static const struct db_statement store_sql =
    DB_STATEMENT("select hydration.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)");
enum {
    EVENT_TENANT,
    EVENT_TYPE,
    EVENT_ID,
    EVENT_SUBJECT,
    EVENT_KIND,
    EVENT_PRIVATE,
    EVENT_VERSION,
    EVENT_MODE,
    EVENT_FIELDS,
    EVENT_KEYS,
    EVENT_CORRELATION,
    EVENT_SOURCE,
    EVENT_DATA,
    EVENT_COLUMNS
};

/* Adds an array of texts as one element of a column. */
static void put_nested(struct buf *column, const struct str *fields, unsigned count)
{
    struct buf array = {0};
    db_array_put(column, put_fields(&array, fields, count));
    buf_deinit(&array);
}

/* The names of the members, sorted: they show what a change without a cover contains. */
static void put_keys(struct buf *column, struct str object)
{
    const struct json_value whole = {JSON_OBJECT, object};
    struct str names[KEYS_MAX], raw;
    struct json_value member;
    struct json_iter it;
    struct arena arena = ARENA(1024);
    unsigned count = 0;
    json_iter_init(&it, &whole);
    while (count < KEYS_MAX && json_iter_next(&it, &raw, &member)) {
        struct str name = json_str_decode(raw, &arena);
        if (hydration_is_text(name, HYDRATION_FIELD_BYTES_MAX))
            names[count++] = name;
    }
    put_nested(column, names, (unsigned)str_sort(names, count));
    arena_deinit(&arena);
}

static void put_event(struct buf columns[EVENT_COLUMNS], const struct hydration_event *event)
{
    bool is_updated = event->kind == HYDRATION_EVENT_UPDATED;
    bool is_hidden = !is_updated && event->reason == HYDRATION_INACCESSIBLE;
    bool is_private = event->is_private || is_hidden;

    db_array_put(&columns[EVENT_TENANT], event->tenant);
    db_array_put(&columns[EVENT_TYPE], event->entity_type);
    db_array_put(&columns[EVENT_ID], event->entity_id);
    db_array_put(&columns[EVENT_SUBJECT], is_private ? text_of(event->caller) : STR(""));
    db_array_put(&columns[EVENT_KIND], is_updated  ? STR("updated")
                                       : is_hidden ? STR("inaccessible")
                                                   : STR("absent"));
    db_array_put(&columns[EVENT_PRIVATE], is_private ? STR("t") : STR("f"));
    db_array_put_i64(&columns[EVENT_VERSION], event->version);
    db_array_put(&columns[EVENT_CORRELATION], text_of(event->correlation_id));
    db_array_put(&columns[EVENT_SOURCE], event->module);
    if (event->has_cover)
        db_array_put_i64(&columns[EVENT_MODE], (int64_t)event->cover.mode);
    else
        db_array_put_null(&columns[EVENT_MODE]);
    put_nested(&columns[EVENT_FIELDS], event->cover.fields, event->cover.field_count);
    put_keys(&columns[EVENT_KEYS], is_updated && !event->has_cover ? event->data : STR("{}"));
    db_array_put(&columns[EVENT_DATA], is_updated ? event->data : STR("{}"));
}

enum status hydration_ledger_store(struct db_conn *conn, const struct hydration_event *events, size_t count,
                                   int64_t deadline_ns, struct error *error)
{
    struct buf columns[EVENT_COLUMNS] = {{0}};
    struct db_param params[EVENT_COLUMNS + 1];
    for (size_t i = 0; i < count; i++)
        if (events[i].kind != HYDRATION_EVENT_UNKNOWN)
            put_event(columns, &events[i]);
    for (size_t i = 0; i < EVENT_COLUMNS; i++)
        params[i] = db_text_array(db_array_end(&columns[i]));
    params[EVENT_COLUMNS] = DB_END;
    enum status status = db_exec(conn, &store_sql, params, deadline_ns, NULL, error);
    for (size_t i = 0; i < EVENT_COLUMNS; i++)
        buf_deinit(&columns[i]);
    return status;
}

/* ---- held entities ---- */

/* By the primary keys, page by page from the last id up to the end of the prefix. */
#define HELD_IN(table)                                                                     \
    "(select entity_id from hydration." table " where tenant_id = $1 and entity_type = $2" \
    " and entity_id > $4 and entity_id >= $3 and entity_id < $3 || U&'\\+10FFFF'"          \
    " group by entity_id order by entity_id limit $5)"
static const struct db_statement list_held_sql =
    DB_STATEMENT("select entity_id from (" HELD_IN("copies") " union " HELD_IN("absences") " union " HELD_IN(
        "flights") ") held order by entity_id limit $5");

enum status hydration_list_held(struct hydration *hydration, const char *entity_type, struct str tenant,
                                struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                struct hydration_ref **refs, size_t *count, struct error *error)
{
    struct str last = STR("");
    size_t rows_count = HELD_PAGE;
    enum status status = STATUS_OK;

    *refs = NULL;
    *count = 0;
    while (status == STATUS_OK && rows_count == HELD_PAGE) {
        struct db_result *rows = NULL;
        status = db_pool_query(hydration->config.pool, &list_held_sql,
                               DB_PARAMS(db_text(tenant), db_cstr(entity_type), db_text(text_of(id_prefix)),
                                         db_text(last), db_int(HELD_PAGE)),
                               deadline_ns, &rows, error);
        rows_count = status == STATUS_OK ? db_result_rows(rows) : 0;
        struct hydration_ref *all = arena_alloc(arena, (*count + rows_count + 1) * sizeof *all);
        if (*count > 0)
            memcpy(all, *refs, *count * sizeof *all);
        for (size_t i = 0; i < rows_count; i++)
            all[(*count)++] =
                (struct hydration_ref){tenant, last = arena_str(arena, db_result_str(rows, i, 0))};
        *refs = all;
        db_result_free(rows);
    }
    return status;
}

/* By the primary keys: `offset 0` keeps the planner from reading all entities of the type into a hash table. */
#define IS_IN(table)                                                            \
    "exists (select from hydration." table " h where h.tenant_id = u.tenant_id" \
    " and h.entity_type = $1 and h.entity_id = u.entity_id offset 0)"
static const struct db_statement find_held_sql =
    DB_STATEMENT("select u.at from unnest($2, $3) with ordinality as u (tenant_id, entity_id, at)"
                 " where " IS_IN("copies") " or " IS_IN("absences") " or " IS_IN("flights"));

enum status hydration_ledger_find_held(struct db_pool *pool, struct str entity_type,
                                       const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                       bool *held, struct error *error)
{
    struct buf tenants = {0}, ids = {0};
    struct db_result *rows = NULL;
    for (size_t i = 0; i < count; i++) {
        held[i] = false;
        db_array_put(&tenants, refs[i].tenant);
        db_array_put(&ids, refs[i].entity_id);
    }
    enum status status = db_pool_query(pool, &find_held_sql,
                                       DB_PARAMS(db_text(entity_type), db_text_array(db_array_end(&tenants)),
                                                 db_text_array(db_array_end(&ids))),
                                       deadline_ns, &rows, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(rows); i++)
        held[db_result_i64(rows, i, 0) - 1] = true;
    db_result_free(rows);
    buf_deinit(&tenants);
    buf_deinit(&ids);
    return status;
}

/* ---- clean-up: expired rows, and the oldest of too many. A row takes more than 64 bytes, so the rows of a
 * small table are not counted. ---- */

#define CLEANUP(table, until, keep)                                                                  \
    "delete from hydration." table " where ctid = any(array("                                        \
    "    select t.ctid from hydration." table " t"                                                   \
    "    where t." until " <= greatest(clock_timestamp() - interval '" keep "', ("                   \
    "        select o." until " from hydration." table " o where pg_relation_size('hydration." table \
    "') > $1 * 64"                                                                                   \
    "        order by o." until " desc offset $1 limit 1))"                                          \
    "    order by t." until " limit $2 for update skip locked))"

const char hydration_absences_cleanup_sql[] = CLEANUP("absences", "kept_until", "0 s");
const char hydration_copies_cleanup_sql[] = CLEANUP("copies", "until", "1 h");
const char hydration_flights_cleanup_sql[] = CLEANUP("flights", "window_until", "60 s");
