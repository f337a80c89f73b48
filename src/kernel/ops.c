/* Views of operators: from rows to SQL, and from SQL to JSON. */
#include "kernel/ops.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/uuid.h"
#include "kernel/kernel_inside.h"

struct db_server *kernel_server_of(struct kernel *kernel, const struct db_target *target)
{
    return db_server_find(&kernel->servers, target);
}

/* ---- values ---- */

static bool is_choice(const struct ops_filter *filter, struct str value, const char **sql)
{
    for (const struct ops_choice *choice = filter->choices; choice->name; choice++)
        if (str_eq(value, str_from(choice->name))) {
            *sql = choice->sql ? choice->sql : filter->sql;
            return true;
        }
    return false;
}

static enum status refuse_choice(const struct ops_filter *filter, struct error *error)
{
    struct buf known = {0};
    for (const struct ops_choice *choice = filter->choices; choice->name; choice++)
        buf_printf(&known, "%s%s", choice == filter->choices ? "" : ", ", choice->name);
    enum status status = error_set_field(error, STATUS_BAD_REQUEST, filter->name, "%s must be one of: %.*s",
                                         filter->name, STR_ARG(buf_str(&known)));
    buf_deinit(&known);
    return status;
}

enum status kernel_ops_value_check(const struct ops_filter *filter, struct str *value, struct arena *arena,
                                   struct error *error)
{
    const char *sql, *expected = NULL;
    struct uuid uuid;
    int64_t number, unix_us;
    char time[CLOCK_RFC3339_BYTES];
    if (filter->choices)
        return is_choice(filter, *value, &sql) ? STATUS_OK : refuse_choice(filter, error);
    switch (filter->type) {
    case OPS_UUID: expected = uuid_parse(*value, &uuid) ? NULL : "a UUID"; break;
    case OPS_NUMBER: expected = str_to_i64(*value, &number) ? NULL : "a whole number"; break;
    case OPS_BOOL:
        expected = str_eq(*value, STR("true")) || str_eq(*value, STR("false")) ? NULL : "true or false";
        break;
    case OPS_TIME:
        if (clock_rfc3339_parse(*value, &unix_us))
            *value = arena_str(arena, str_of(time, clock_rfc3339(unix_us, time)));
        else
            *value = STR_NONE;
        if (!value->ptr || str_starts_with(*value, STR("0000"))) /* PostgreSQL has no year 0 */
            expected = "a time as 2026-01-31T12:00:00Z";
        break;
    case OPS_TEXT:
    case OPS_JSON: expected = str_is_text(*value) ? NULL : "text"; break;
    }
    return expected ? error_set_field(error, STATUS_BAD_REQUEST, filter->name, "%s must be %s", filter->name,
                                      expected)
                    : STATUS_OK;
}

/* ---- SQL ---- */

struct composer {
    struct buf *sql;
    struct db_param *params;
    unsigned count;
    bool has_condition;
};

static void put_param(struct composer *composer, enum ops_type type, struct str value)
{
    static const enum db_type types[] = {
        [OPS_TEXT] = DB_TEXT, [OPS_NUMBER] = DB_BIGINT, [OPS_BOOL] = DB_BOOL,
        [OPS_UUID] = DB_UUID, [OPS_TIME] = DB_TEXT,     [OPS_JSON] = DB_TEXT};
    composer->params[composer->count++] = DB_VALUE(value, types[type]);
    buf_printf(composer->sql, "$%u%s", composer->count, type == OPS_TIME ? "::timestamptz" : "");
}

static void put_and(struct composer *composer)
{
    buf_put_str(composer->sql, composer->has_condition ? STR(" and ") : STR(" where "));
    composer->has_condition = true;
}

/* With the value for every $?. */
static void put_condition(struct composer *composer, const char *sql, enum ops_type type, struct str value)
{
    struct str rest = str_from(sql);
    put_and(composer);
    buf_put_char(composer->sql, '(');
    for (const char *at; (at = memmem(rest.ptr, rest.len, "$?", 2));
         rest = str_skip(rest, (size_t)(at - rest.ptr) + 2)) {
        buf_put(composer->sql, rest.ptr, (size_t)(at - rest.ptr));
        put_param(composer, type, value);
    }
    buf_put_str(composer->sql, rest);
    buf_put_char(composer->sql, ')');
}

static void put_column(struct buf *out, const char *sql, enum ops_type type)
{
    buf_printf(out, type == OPS_TIME ? "platform.rfc3339(%s)" : type == OPS_UUID ? "(%s)::text" : "%s", sql);
}

/* Of a view that is scanned: those that the scan has, or the others. */
static void put_filters(struct composer *composer, const struct ops_view *view,
                        const struct ops_question *question, bool of_scan)
{
    size_t i = 0;
    for (const struct ops_filter *filter = view->filters; filter && filter->name; filter++, i++) {
        const char *sql = filter->sql;
        struct str value = question->values[i].ptr ? question->values[i] : str_from(filter->fallback);
        bool is_of_scan = filter->is_indexed && (!view->tenant_is_indexed || question->tenant.ptr);
        if (view->is_scanned && is_of_scan != of_scan)
            continue;
        if (value.ptr && (!filter->choices || is_choice(filter, value, &sql)))
            put_condition(composer, sql, filter->type, value);
    }
}

static void put_tenant(struct composer *composer, const struct ops_view *view,
                       const struct ops_question *question)
{
    if (!view->tenant || !question->tenant.ptr)
        return;
    put_and(composer);
    buf_printf(composer->sql, "%s = ", view->tenant);
    put_param(composer, OPS_TEXT, question->tenant);
}

static void put_after(struct composer *composer, const struct ops_view *view,
                      const struct ops_question *question)
{
    size_t count = 0;
    put_and(composer);
    for (; count < OPS_KEYS_MAX && view->keys[count].sql; count++)
        buf_printf(composer->sql, "%c%s", count ? ',' : '(', view->keys[count].sql);
    buf_printf(composer->sql, ") %s%s ", view->is_descending ? "<" : ">",
               question->includes_after ? "=" : "");
    for (size_t i = 0; i < count; i++) {
        buf_put_char(composer->sql, i ? ',' : '(');
        put_param(composer, view->keys[i].type, question->after[i]);
    }
    buf_put_char(composer->sql, ')');
}

static void put_order(struct composer *composer, const struct ops_view *view, int64_t limit)
{
    for (size_t i = 0; i < OPS_KEYS_MAX && view->keys[i].sql; i++)
        buf_printf(composer->sql, "%s %s%s", i ? "," : " order by", view->keys[i].sql,
                   view->is_descending ? " desc" : "");
    composer->params[composer->count++] = db_i64(limit);
    buf_printf(composer->sql, " limit $%u", composer->count);
}

static void put_key_columns(struct buf *sql, const struct ops_view *view)
{
    for (size_t i = 0; i < OPS_KEYS_MAX && view->keys[i].sql; i++) {
        if (i)
            buf_put_char(sql, ',');
        put_column(sql, view->keys[i].sql, view->keys[i].type);
    }
}

/* What the index has, in its order. */
static void put_indexed(struct composer *composer, const struct ops_view *view,
                        const struct ops_question *question)
{
    if (view->where) {
        put_and(composer);
        buf_printf(composer->sql, "(%s)", view->where);
    }
    if (!view->is_scanned || view->tenant_is_indexed)
        put_tenant(composer, view, question);
    put_filters(composer, view, question, true);
    if (question->has_after)
        put_after(composer, view, question);
}

static void put_scan(struct composer *composer, const struct ops_view *view,
                     const struct ops_question *question)
{
    buf_printf(composer->sql, " from (select r.* from %s", view->from);
    put_indexed(composer, view, question);
    put_order(composer, view, OPS_SCAN_ROWS);
    buf_put_str(composer->sql, STR(") r"));
    composer->has_condition = false;
}

/* The parameters end in DB_END and borrow from the question. */
static void compose_list(const struct ops_view *view, const struct ops_question *question, struct buf *sql,
                         struct db_param params[DB_PARAMS_MAX])
{
    struct composer composer = {.sql = sql, .params = params};
    buf_put_str(sql, STR("select "));
    for (const struct ops_column *column = view->columns; column->name; column++) {
        put_column(sql, column->sql, column->type);
        buf_put_char(sql, ',');
    }
    put_key_columns(sql, view);
    if (view->is_scanned)
        put_scan(&composer, view, question);
    else
        buf_printf(sql, " from %s", view->from);
    if (view->join)
        buf_printf(sql, " %s", view->join);
    if (!view->is_scanned) {
        put_indexed(&composer, view, question);
    } else {
        if (!view->tenant_is_indexed)
            put_tenant(&composer, view, question);
        put_filters(&composer, view, question, false);
    }
    put_order(&composer, view, question->limit);
    params[composer.count] = DB_END;
}

/* The keys of the last row that a whole scan has read. */
static void compose_end(const struct ops_view *view, const struct ops_question *question, struct buf *sql,
                        struct db_param params[DB_PARAMS_MAX])
{
    struct composer composer = {.sql = sql, .params = params};
    buf_put_str(sql, STR("select "));
    put_key_columns(sql, view);
    put_scan(&composer, view, question);
    put_order(&composer, view, 1);
    params[composer.count++] = db_i64(OPS_SCAN_ROWS - 1);
    buf_printf(sql, " offset $%u", composer.count);
    params[composer.count] = DB_END;
}

static enum status run_composed(struct db_conn *conn, struct buf *sql, const struct db_param *params,
                                int64_t deadline_ns, struct db_result **rows, struct error *error)
{
    buf_put_char(sql, '\0');
    struct db_statement statement = db_statement_of(str_of(buf_str(sql).ptr, buf_len(sql) - 1));
    enum status status = db_query(conn, &statement, params, deadline_ns, rows, error);
    buf_clear(sql);
    return status;
}

enum status kernel_ops_list(struct db_conn *conn, const struct ops_view *view,
                            const struct ops_question *question, int64_t deadline_ns,
                            struct ops_answer *answer, struct error *error)
{
    struct buf sql = {0};
    struct db_param params[DB_PARAMS_MAX];
    *answer = (struct ops_answer){0};
    compose_list(view, question, &sql, params);
    enum status status = run_composed(conn, &sql, params, deadline_ns, &answer->rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(answer->rows) : 0;
    if (count && (int64_t)count >= question->limit) {
        answer->has_more = true;
        kernel_ops_row_keys(view, answer->rows, count - 1, answer->stop);
    } else if (status == STATUS_OK && view->is_scanned) {
        compose_end(view, question, &sql, params);
        status = run_composed(conn, &sql, params, deadline_ns, &answer->end, error);
        answer->has_more = status == STATUS_OK && db_result_rows(answer->end) > 0;
        for (unsigned i = 0; answer->has_more && i < OPS_KEYS_MAX && view->keys[i].sql; i++)
            answer->stop[i] = db_result_str(answer->end, 0, i);
    }
    buf_deinit(&sql);
    if (status != STATUS_OK)
        kernel_ops_answer_free(answer);
    return status;
}

void kernel_ops_answer_free(struct ops_answer *answer)
{
    db_result_free(answer->rows);
    db_result_free(answer->end);
    *answer = (struct ops_answer){0};
}

/* ---- rows ---- */

static void put_value(struct buf *out, enum ops_type type, struct str value)
{
    if (type == OPS_NUMBER || type == OPS_JSON)
        buf_put_str(out, value);
    else if (type == OPS_BOOL)
        buf_put_str(out, str_eq(value, STR("t")) ? STR("true") : STR("false"));
    else
        json_put_string(out, value);
}

void kernel_ops_put_row(struct buf *out, const struct ops_view *view, const struct db_result *rows,
                        size_t row, const char *database)
{
    unsigned at = 0;
    json_put_open(out, NULL, '{');
    if (database)
        json_put_member_str(out, "database", str_from(database));
    for (const struct ops_column *column = view->columns; column->name; column++, at++) {
        bool is_null = db_result_is_null(rows, row, at);
        if (is_null && column->is_optional)
            continue;
        json_put_key(out, str_from(column->name));
        if (is_null)
            buf_put_str(out, STR("null"));
        else
            put_value(out, column->type, db_result_str(rows, row, at));
    }
    buf_put_char(out, '}');
}

void kernel_ops_row_keys(const struct ops_view *view, const struct db_result *rows, size_t row,
                         struct str keys[OPS_KEYS_MAX])
{
    unsigned at = 0;
    for (const struct ops_column *column = view->columns; column->name; column++)
        at++;
    for (unsigned i = 0; i < OPS_KEYS_MAX && view->keys[i].sql; i++)
        keys[i] = db_result_str(rows, row, at + i);
}

int kernel_ops_keys_compare(const struct ops_view *view, const struct str *a, const struct str *b)
{
    for (size_t i = 0; i < OPS_KEYS_MAX && view->keys[i].sql; i++) {
        int64_t x = 0, y = 0;
        int order = str_compare(a[i], b[i]); /* of a time too: all have the same length */
        if (view->keys[i].type == OPS_NUMBER && str_to_i64(a[i], &x) && str_to_i64(b[i], &y))
            order = (x > y) - (x < y);
        if (order)
            return view->is_descending ? -order : order;
    }
    return 0;
}

/* ---- the audit ---- */

static const struct db_statement audit_sql = DB_STATEMENT(
    "insert into platform.ops_audit (tenant_id, who, action, target, ids, filter, matched, changed, reason)"
    " values ($1, $2, $3, $4, $5, $6, $7, $8, $9)");

enum status kernel_ops_audit_write(struct db_conn *conn, const struct ops_audit *audit, int64_t deadline_ns,
                                   struct error *error)
{
    return db_exec(conn, &audit_sql,
                   DB_PARAMS(db_text(audit->tenant), db_text(audit->who), db_text(audit->action),
                             db_text(audit->target), db_jsonb(audit->ids), db_jsonb(audit->filter),
                             db_i64(audit->matched), db_i64(audit->changed), db_text(audit->reason)),
                   deadline_ns, NULL, error);
}
