/* GET …/messages: the history of a session in the order of its sequence; GET …/events: the events of the caller's sessions of a
 * project in the order of their times, out of chat.event_log, and on the first page how many there are of each type and on each
 * day (M4). Both answer a page at a time, bounded in rows and bytes. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/chat/chat.h"

enum {
    HISTORY_MS = 5000,
    EVENTS_MS = 10000,
    LIMIT_DEFAULT = 100,
    LIMIT_MAX = 1000,
    PAGE_BYTES = 1024 * 1024
};

static const char bad_cursor[] = "must be the next_cursor of an answer";

/* ---- history ---- */

/* $1 … $4 the session, $5 after this sequence, $6 rows at most, $7 bytes (exceeded by at most one message). No row: there is
 * no such session. A row without a message: the page is empty. */
static const struct db_statement history_sql = DB_STATEMENT(
    "select s.last_message_sequence, m.sequence, m.message"
    " from chat.chat_sessions s left join lateral ("
    "    select x.sequence, row_to_json((select j from (select x.message_id, x.sequence, x.role, x.content, x.agent,"
    "               x.routing_score, platform.rfc3339(x.created_at) as created_at) j)) as message"
    "    from ("
    "        select w.*, sum(octet_length(w.content)) over (order by w.sequence) - octet_length(w.content) as before"
    "        from (select * from chat.messages h where h.tenant_id = s.tenant_id and h.session_id = s.session_id"
    "                  and h.sequence > $5 order by h.sequence limit $6) w) x"
    "    where x.before < $7) m on true"
    " where s.tenant_id = $1 and s.session_id = $3 and s.project_id = $2 and s.user_id = $4"
    " order by m.sequence");
enum history_column { LAST, SEQUENCE, MESSAGE };

/* [{…},{…}] */
static void put_rows(struct buf *body, const struct db_result *rows, unsigned column, size_t count)
{
    buf_put_char(body, '[');
    for (size_t i = 0; i < count; i++) {
        if (i)
            buf_put_char(body, ',');
        buf_put_str(body, db_result_str(rows, i, column));
    }
    buf_put_char(body, ']');
}

static void send_body(struct http_request *request, struct buf *body)
{
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(body)});
    buf_deinit(body);
}

void chat_get_messages(struct http_request *request)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    struct chat *chat = request->context;
    struct chat_key caller;
    struct db_result *rows = NULL;
    struct error error = {0};
    int64_t limit = LIMIT_DEFAULT, after = 0;
    enum status status = http_request_query_only(request, names, &error);
    if (status == STATUS_OK)
        status = chat_key_read(request, &caller, &error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, LIMIT_MAX, &limit, &error);
    if (status == STATUS_OK &&
        http_request_query_i64(request, "cursor", 1, INT64_MAX, &after, &error) != STATUS_OK)
        status = error_set_field(&error, STATUS_BAD_REQUEST, "cursor", "%s", bad_cursor);
    if (status == STATUS_OK)
        status = kernel_store_query(chat->kernel, &history_sql,
                                    DB_PARAMS(db_text(caller.tenant), db_uuid(caller.project),
                                              db_uuid(caller.session), db_uuid(caller.user), db_i64(after),
                                              db_i64(limit), db_i64(PAGE_BYTES)),
                                    clock_deadline_ms(HISTORY_MS), &rows, &error);
    if (status == STATUS_OK && db_result_rows(rows) == 0)
        status = error_set(&error, STATUS_SESSION_NOT_FOUND, "no such session");
    if (status == STATUS_OK) {
        size_t count = db_result_is_null(rows, 0, MESSAGE) ? 0 : db_result_rows(rows);
        bool has_more = count && db_result_i64(rows, 0, LAST) > db_result_i64(rows, count - 1, SEQUENCE);
        struct buf body = {0};
        buf_put_str(&body, STR("{\"messages\":"));
        put_rows(&body, rows, MESSAGE, count);
        json_put_member_str_or_null(&body, "next_cursor",
                                    has_more ? db_result_str(rows, count - 1, SEQUENCE) : STR_NONE);
        buf_put_char(&body, '}');
        send_body(request, &body);
    } else {
        http_send_error(request, &error);
    }
    db_result_free(rows);
}

/* ---- events ---- */

#define LAST_MICROSECOND INT64_C(253402300799999999) /* of the year 9999 */

/* $1 … $3 tenant, project and user, $4 the type, $5 from and $6 to, in microseconds since 1970, NULL = any; $7 and $8 after this
 * time and id, $9 rows at most, $10 bytes. A last row without a line: more events follow. */
static const struct db_statement event_page_sql =
    DB_STATEMENT("select x.line, (extract(epoch from x.created_at) * 1000000)::bigint, x.event_id"
                 " from chat.events_of($1, $2, $3, $4, timestamptz 'epoch' + $5 * interval '1 microsecond',"
                 "                     timestamptz 'epoch' + $6 * interval '1 microsecond',"
                 "                     timestamptz 'epoch' + $7 * interval '1 microsecond', $8, $9, $10) x");
enum event_column { EVENT_LINE, EVENT_AT, EVENT_ID };

/* $1 … $6 the same. By event_log_user, whose order is asked for: planned on an empty table, the index by session costs the same. How many there are of each type, and of each type on each day: both as JSON. */
static const struct db_statement event_count_sql = DB_STATEMENT(
    "with days as (select to_char(g.created_at at time zone 'UTC', 'YYYY-MM-DD') as day, g.event_type, count(*) as count"
    "    from (select e.created_at, e.event_type from chat.event_log e"
    "        where e.tenant_id = $1 and e.project_id = $2 and e.user_id = $3 and ($4::text is null or e.event_type = $4)"
    "        and e.created_at >= coalesce(timestamptz 'epoch' + $5 * interval '1 microsecond', '-infinity')"
    "        and e.created_at < coalesce(timestamptz 'epoch' + $6 * interval '1 microsecond', 'infinity')"
    "        order by e.created_at, e.event_id offset 0) g group by 1, 2),"
    " types as (select event_type, sum(count) as count, min(day) as day from days group by 1)"
    " select (select '{' || coalesce(string_agg(to_json(event_type)::text || ':' || count, ','"
    "                                           order by day, event_type), '') || '}' from types),"
    "        (select '[' || coalesce(string_agg(row_to_json(days)::text, ',' order by day, event_type), '') || ']'"
    "         from days)");
enum count_column { COUNTS, DAYS };

enum { COUNT_PARAMS = 6 };

struct event_query {
    struct chat_key caller;
    struct str type, from, to; /* ptr NULL = any */
    struct str after, after_id;
    int64_t limit;
    bool is_first; /* page: the counts are on it */
};

static enum status read_time(const struct http_request *request, const char *name, struct str *micros,
                             struct error *error)
{
    bool found;
    struct str text;
    int64_t unix_us;
    *micros = STR_NONE;
    enum status status = http_request_query(request, str_from(name), &found, &text, error);
    if (status != STATUS_OK || !found)
        return status;
    if (!clock_rfc3339_parse(text, &unix_us))
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a time in RFC 3339 format");
    *micros = arena_printf(request->arena, "%lld", (long long)unix_us);
    return STATUS_OK;
}

/* A cursor is "MICROSECONDS.EVENT_ID" of the last event of the previous page. */
static enum status read_event_query(const struct http_request *request, struct event_query *query,
                                    struct error *error)
{
    static const char *const names[] = {"event_type", "from", "to", "limit", "cursor", NULL};
    bool found = false;
    struct str cursor;
    struct uuid id;
    int64_t number;
    *query = (struct event_query){.limit = LIMIT_DEFAULT,
                                  .after = STR("-62135596800000000"),
                                  .after_id = STR("00000000-0000-0000-0000-000000000000")};
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = chat_key_read(request, &query->caller, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("event_type"), &found, &query->type, error);
    if (status == STATUS_OK)
        status = read_time(request, "from", &query->from, error);
    if (status == STATUS_OK)
        status = read_time(request, "to", &query->to, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, LIMIT_MAX, &query->limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &found, &cursor, error);
    query->is_first = !found;
    if (status != STATUS_OK || !found)
        return status;
    (void)str_split(&cursor, '.', &query->after);
    query->after_id = cursor;
    if (!str_to_i64(query->after, &number) || number < 0 || number > LAST_MICROSECOND ||
        !uuid_parse(query->after_id, &id))
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor", "%s", bad_cursor);
    return STATUS_OK;
}

void chat_get_events(struct http_request *request)
{
    struct chat *chat = request->context;
    int64_t deadline_ns = clock_deadline_ms(EVENTS_MS);
    struct event_query query;
    struct db_result *page = NULL, *counts = NULL;
    struct error error = {0};
    enum status status = read_event_query(request, &query, &error);
    const struct db_param params[] = {
        db_text(query.caller.tenant),
        db_uuid(query.caller.project),
        db_uuid(query.caller.user),
        db_text(query.type),
        db_bigint(query.from),
        db_bigint(query.to),
        db_bigint(query.after),
        db_uuid(query.after_id),
        db_i64(query.limit),
        db_i64(PAGE_BYTES),
        DB_END,
    };
    struct db_param count_params[COUNT_PARAMS + 1] = {[COUNT_PARAMS] = DB_END};
    memcpy(count_params, params, COUNT_PARAMS * sizeof *params);
    if (status == STATUS_OK)
        status = kernel_store_query(chat->kernel, &event_page_sql, params, deadline_ns, &page, &error);
    if (status == STATUS_OK && query.is_first)
        status =
            kernel_store_query(chat->kernel, &event_count_sql, count_params, deadline_ns, &counts, &error);
    if (status == STATUS_OK) {
        struct buf body = {0};
        size_t count = db_result_rows(page), shown = count;
        if (count && db_result_is_null(page, count - 1, EVENT_LINE))
            shown--;
        buf_put_char(&body, '{');
        json_put_key(&body, STR("events"));
        put_rows(&body, page, EVENT_LINE, shown);
        json_put_key(&body, STR("next_cursor"));
        if (shown && shown < count)
            buf_printf(&body, "\"%.*s.%.*s\"", STR_ARG(db_result_str(page, shown - 1, EVENT_AT)),
                       STR_ARG(db_result_str(page, shown - 1, EVENT_ID)));
        else
            buf_put_str(&body, STR("null"));
        if (counts) {
            json_put_member_raw(&body, "counts", db_result_str(counts, 0, COUNTS));
            json_put_member_raw(&body, "days", db_result_str(counts, 0, DAYS));
        }
        buf_put_char(&body, '}');
        send_body(request, &body);
    } else {
        http_send_error(request, &error);
    }
    db_result_free(page);
    db_result_free(counts);
}
