/* GET …/events: what happened in the caller's sessions of a project, out of chat.event_log (M4). A page of events in the
 * order of their times, bounded in rows and bytes; with the first one, how many there are of each type, and on each day. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/chat/chat.h"

enum { READ_MS = 10000, LIMIT_DEFAULT = 100, LIMIT_MAX = 1000, PAGE_BYTES = 1024 * 1024 };
#define LAST_MICROSECOND INT64_C(253402300799999999) /* of the year 9999 */

/* $1 … $3 whose, $4 the type, $5 from and $6 to, in microseconds since 1970, NULL = any; $7 and $8 behind this time and id,
 * $9 rows at most, $10 bytes. A last row without a line: more follows. */
static const char page_sql[] =
    "select x.line, (extract(epoch from x.created_at) * 1000000)::bigint, x.event_id"
    " from chat.events_of($1, $2, $3, $4, timestamptz 'epoch' + $5 * interval '1 microsecond',"
    "                     timestamptz 'epoch' + $6 * interval '1 microsecond',"
    "                     timestamptz 'epoch' + $7 * interval '1 microsecond', $8, $9, $10) x";
enum page_column { LINE, AT, ID };

/* $1 … $6 the same. By event_log_user. */
static const char count_sql[] =
    "select to_char(g.created_at at time zone 'UTC', 'YYYY-MM-DD'), g.event_type, count(*)"
    " from chat.event_log g where g.tenant_id = $1 and g.project_id = $2 and g.user_id = $3"
    " and ($4::text is null or g.event_type = $4)"
    " and g.created_at >= coalesce(timestamptz 'epoch' + $5 * interval '1 microsecond', '-infinity')"
    " and g.created_at < coalesce(timestamptz 'epoch' + $6 * interval '1 microsecond', 'infinity')"
    " group by 1, 2 order by 1, 2";
enum count_column { DAY, TYPE, COUNT };

enum { COUNT_PARAMS = 6, PAGE_PARAMS = 10 };
static const enum db_type types[PAGE_PARAMS] = {DB_TEXT,   DB_UUID,   DB_UUID, DB_TEXT,   DB_BIGINT,
                                                DB_BIGINT, DB_BIGINT, DB_UUID, DB_BIGINT, DB_BIGINT};

void chat_events_init(struct chat *chat)
{
    db_statement_init(&chat->event_page, page_sql, PAGE_PARAMS, types);
    db_statement_init(&chat->event_count, count_sql, COUNT_PARAMS, types);
}

/* ---- the question ---- */

struct question {
    struct chat_caller caller;
    struct str type, from, to; /* ptr NULL = any */
    struct str after, after_id;
    int64_t limit;
    bool is_first;
};

static enum status take_time(const struct http_request *request, const char *name, struct str *micros,
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
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a time as RFC 3339 writes it");
    *micros = arena_printf(request->arena, "%lld", (long long)unix_us);
    return STATUS_OK;
}

static enum status take_limit(const struct http_request *request, struct question *question,
                              struct error *error)
{
    bool found;
    struct str text;
    question->limit = LIMIT_DEFAULT;
    enum status status = http_request_query(request, STR("limit"), &found, &text, error);
    if (status == STATUS_OK && found &&
        (!str_to_i64(text, &question->limit) || question->limit < 1 || question->limit > LIMIT_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "limit", "must be a number from 1 to %d",
                               LIMIT_MAX);
    return status;
}

/* "MICROSECONDS.EVENT_ID" of the last event that was given. */
static enum status take_cursor(const struct http_request *request, struct question *question,
                               struct error *error)
{
    bool found;
    struct str text;
    struct uuid id;
    int64_t number;
    enum status status = http_request_query(request, STR("cursor"), &found, &text, error);
    question->is_first = status == STATUS_OK && !found;
    question->after = STR("-62135596800000000");
    question->after_id = STR("00000000-0000-0000-0000-000000000000");
    if (status != STATUS_OK || !found)
        return status;
    (void)str_split(&text, '.', &question->after);
    question->after_id = text;
    if (!str_to_i64(question->after, &number) || number < 0 || number > LAST_MICROSECOND ||
        !uuid_parse(question->after_id, &id))
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor", "must be the next_cursor of an answer");
    return STATUS_OK;
}

static enum status take_type(const struct http_request *request, struct question *question,
                             struct error *error)
{
    bool found;
    enum status status = http_request_query(request, STR("event_type"), &found, &question->type, error);
    if (status == STATUS_OK && !found)
        question->type = STR_NONE;
    return status;
}

static enum status take_question(const struct http_request *request, struct question *question,
                                 struct error *error)
{
    static const char *const names[] = {"event_type", "from", "to", "limit", "cursor", NULL};
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = chat_caller_read(request, &question->caller, error);
    if (status == STATUS_OK)
        status = take_type(request, question, error);
    if (status == STATUS_OK)
        status = take_time(request, "from", &question->from, error);
    if (status == STATUS_OK)
        status = take_time(request, "to", &question->to, error);
    if (status == STATUS_OK)
        status = take_limit(request, question, error);
    return status == STATUS_OK ? take_cursor(request, question, error) : status;
}

/* ---- the answer ---- */

static void put_events(struct buf *body, const struct db_result *rows)
{
    size_t count = db_result_rows(rows), shown = count;
    if (count && db_result_is_null(rows, count - 1, LINE))
        shown--;
    json_put_key(body, STR("events"));
    buf_put_char(body, '[');
    for (size_t i = 0; i < shown; i++) {
        if (i)
            buf_put_char(body, ',');
        buf_put_str(body, db_result_str(rows, i, LINE));
    }
    buf_put_char(body, ']');
    json_put_key(body, STR("next_cursor"));
    if (shown && shown < count)
        buf_printf(body, "\"%.*s.%.*s\"", STR_ARG(db_result_str(rows, shown - 1, AT)),
                   STR_ARG(db_result_str(rows, shown - 1, ID)));
    else
        buf_put_str(body, STR("null"));
}

static int64_t count_of_type(const struct db_result *rows, struct str type)
{
    int64_t sum = 0;
    for (size_t i = 0; i < db_result_rows(rows); i++)
        if (str_eq(db_result_str(rows, i, TYPE), type))
            sum += db_result_i64(rows, i, COUNT);
    return sum;
}

static bool is_first_of_type(const struct db_result *rows, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (str_eq(db_result_str(rows, i, TYPE), db_result_str(rows, at, TYPE)))
            return false;
    return true;
}

static void put_counts(struct buf *body, const struct db_result *rows)
{
    json_put_key(body, STR("counts"));
    buf_put_char(body, '{');
    for (size_t i = 0; i < db_result_rows(rows); i++)
        if (is_first_of_type(rows, i)) {
            json_put_key(body, db_result_str(rows, i, TYPE));
            json_put_i64(body, count_of_type(rows, db_result_str(rows, i, TYPE)));
        }
    buf_put_char(body, '}');
    json_put_key(body, STR("days"));
    buf_put_char(body, '[');
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        buf_put_str(body, i ? STR(",{") : STR("{"));
        json_put_member_str(body, "day", db_result_str(rows, i, DAY));
        json_put_member_str(body, "event_type", db_result_str(rows, i, TYPE));
        json_put_member_raw(body, "count", db_result_str(rows, i, COUNT));
        buf_put_char(body, '}');
    }
    buf_put_char(body, ']');
}

static enum status read_events(struct http_request *request, const struct question *question,
                               struct db_result **page, struct db_result **counts, struct error *error)
{
    struct chat *chat = request->context;
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    struct db_conn *conn = NULL;
    const struct db_param params[PAGE_PARAMS] = {
        {question->caller.tenant},
        {str_from(question->caller.project)},
        {str_from(question->caller.user)},
        {question->type},
        {question->from},
        {question->to},
        {question->after},
        {question->after_id},
        {arena_printf(request->arena, "%lld", (long long)question->limit)},
        {arena_printf(request->arena, "%d", PAGE_BYTES)},
    };
    enum status status = chat_store_check(chat, error);
    if (status == STATUS_OK)
        status = db_acquire(kernel_store_pool(chat->kernel), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &chat->event_page, params, deadline_ns, page, error);
    if (status == STATUS_OK && question->is_first)
        status = db_query(conn, &chat->event_count, params, deadline_ns, counts, error);
    if (conn)
        db_release(conn);
    return status;
}

void chat_get_events(struct http_request *request)
{
    struct question question;
    struct db_result *page = NULL, *counts = NULL;
    struct error error = {0};
    enum status status = take_question(request, &question, &error);
    if (status == STATUS_OK)
        status = read_events(request, &question, &page, &counts, &error);
    if (status == STATUS_OK) {
        struct buf body;
        buf_init(&body);
        buf_put_char(&body, '{');
        put_events(&body, page);
        if (counts)
            put_counts(&body, counts);
        buf_put_char(&body, '}');
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
        buf_deinit(&body);
    } else {
        http_send_error(request, &error);
    }
    db_result_free(page);
    db_result_free(counts);
}
