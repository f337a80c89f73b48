/* GET …/messages: the history of a session in the order of its sequence (M4), a page at a time, bounded in rows and bytes. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/chat/chat.h"

enum { READ_MS = 5000, LIMIT_DEFAULT = 100, LIMIT_MAX = 1000, PAGE_BYTES = 1024 * 1024 };

/* $1 … $4 whose session, $5 behind this sequence, $6 rows at most, $7 bytes (exceeded by at most one message). No row: there
 * is no such session. A row without a message: no message follows. */
static const char history_sql[] =
    "select s.last_message_sequence, m.message_id, m.sequence, m.role, m.content, m.agent, m.routing_score,"
    "       platform.rfc3339(m.created_at)"
    " from chat.chat_sessions s left join lateral ("
    "    select * from ("
    "        select w.*, sum(octet_length(w.content)) over (order by w.sequence) - octet_length(w.content) as before"
    "        from (select * from chat.messages h where h.tenant_id = s.tenant_id and h.session_id = s.session_id"
    "                  and h.sequence > $5 order by h.sequence limit $6) w) x"
    "    where x.before < $7) m on true"
    " where s.tenant_id = $1 and s.session_id = $3 and s.project_id = $2 and s.user_id = $4"
    " order by m.sequence";
enum column { LAST, MESSAGE_ID, SEQUENCE, ROLE, CONTENT, AGENT, ROUTING_SCORE, CREATED_AT };

void chat_history_init(struct chat *chat)
{
    db_statement_init(
        &chat->history, history_sql, 7,
        (const enum db_type[]){DB_TEXT, DB_UUID, DB_UUID, DB_UUID, DB_BIGINT, DB_BIGINT, DB_BIGINT});
}

/* ---- the question ---- */

struct page {
    struct chat_caller caller;
    int64_t limit, after;
};

static enum status take_number(const struct http_request *request, const char *name, int64_t min, int64_t max,
                               int64_t *value, struct error *error)
{
    bool found;
    struct str text;
    enum status status = http_request_query(request, str_from(name), &found, &text, error);
    if (status == STATUS_OK && found && (!str_to_i64(text, value) || *value < min || *value > max))
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a number from %lld to %lld",
                               (long long)min, (long long)max);
    return status;
}

static enum status take_page(const struct http_request *request, struct page *page, struct error *error)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    page->limit = LIMIT_DEFAULT;
    page->after = 0;
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = chat_caller_read(request, &page->caller, error);
    if (status == STATUS_OK)
        status = take_number(request, "limit", 1, LIMIT_MAX, &page->limit, error);
    if (status == STATUS_OK && take_number(request, "cursor", 1, INT64_MAX, &page->after, error) != STATUS_OK)
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor", "must be the next_cursor of an answer");
    return status;
}

/* ---- the answer ---- */

static void put_or_null(struct buf *body, const char *name, const struct db_result *rows, size_t row,
                        enum column column)
{
    if (db_result_is_null(rows, row, column))
        json_put_member_raw(body, name, STR("null"));
    else if (column == ROUTING_SCORE)
        json_put_member_raw(body, name, db_result_str(rows, row, column));
    else
        json_put_member_str(body, name, db_result_str(rows, row, column));
}

static void put_message(struct buf *body, const struct db_result *rows, size_t row)
{
    buf_put_str(body, row ? STR(",{") : STR("{"));
    json_put_member_str(body, "message_id", db_result_str(rows, row, MESSAGE_ID));
    json_put_member_raw(body, "sequence", db_result_str(rows, row, SEQUENCE));
    json_put_member_str(body, "role", db_result_str(rows, row, ROLE));
    json_put_member_str(body, "content", db_result_str(rows, row, CONTENT));
    put_or_null(body, "agent", rows, row, AGENT);
    put_or_null(body, "routing_score", rows, row, ROUTING_SCORE);
    json_put_member_str(body, "created_at", db_result_str(rows, row, CREATED_AT));
    buf_put_char(body, '}');
}

static void send_page(struct http_request *request, const struct db_result *rows)
{
    size_t count = db_result_rows(rows);
    bool is_empty = db_result_is_null(rows, 0, MESSAGE_ID);
    struct buf body;
    buf_init(&body);
    buf_put_char(&body, '{');
    json_put_key(&body, STR("messages"));
    buf_put_char(&body, '[');
    for (size_t i = 0; i < count && !is_empty; i++)
        put_message(&body, rows, i);
    buf_put_char(&body, ']');
    bool goes_on = !is_empty && db_result_i64(rows, 0, LAST) > db_result_i64(rows, count - 1, SEQUENCE);
    if (goes_on)
        json_put_member_str(&body, "next_cursor", db_result_str(rows, count - 1, SEQUENCE));
    else
        json_put_member_raw(&body, "next_cursor", STR("null"));
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
}

static enum status read_page(struct http_request *request, const struct page *page, struct db_result **rows,
                             struct error *error)
{
    struct chat *chat = request->context;
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    struct db_conn *conn = NULL;
    const struct db_param params[] = {
        {page->caller.tenant},
        {str_from(page->caller.project)},
        {str_from(page->caller.session)},
        {str_from(page->caller.user)},
        {arena_printf(request->arena, "%lld", (long long)page->after)},
        {arena_printf(request->arena, "%lld", (long long)page->limit)},
        {arena_printf(request->arena, "%d", PAGE_BYTES)},
    };
    enum status status = chat_store_check(chat, error);
    if (status == STATUS_OK)
        status = db_acquire(kernel_store_pool(chat->kernel), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &chat->history, params, deadline_ns, rows, error);
    if (conn)
        db_release(conn);
    if (status == STATUS_OK && db_result_rows(*rows) == 0)
        status = error_set(error, STATUS_SESSION_NOT_FOUND, "no such session");
    return status;
}

void chat_get_messages(struct http_request *request)
{
    struct page page;
    struct db_result *rows = NULL;
    struct error error = {0};
    enum status status = take_page(request, &page, &error);
    if (status == STATUS_OK)
        status = read_page(request, &page, &rows, &error);
    if (status == STATUS_OK)
        send_page(request, rows);
    else
        http_send_error(request, &error);
    db_result_free(rows);
}
