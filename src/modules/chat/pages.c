/* Pages of chat.event_log, and their events as lines of a stream (M3). */
#include "base/clock.h"
#include "modules/chat/rooms.h"

enum { READ_MS = 5000, PAGE_EVENTS = 200, PAGE_BYTES = 32768 };

/* $1 … $4 the session, $5 after this sequence, $6 rows at most, $7 bytes (exceeded by at most one event). One statement, so
 * that session and page are of one moment. */
static const struct db_statement page_sql = DB_STATEMENT(
    "select s.last_sequence, s.forgotten_sequence, greatest(l.logged, s.forgotten_sequence), e.sequence, e.line"
    " from chat.chat_sessions s"
    " cross join lateral (select max(n.sequence) as logged from chat.event_log n"
    "                     where n.tenant_id = s.tenant_id and n.session_id = s.session_id) l"
    " left join lateral chat.events_after(s.tenant_id, s.session_id, greatest($5, s.forgotten_sequence), $6, $7) e"
    "   on true"
    " where s.tenant_id = $1 and s.session_id = $3 and s.project_id = $2 and s.user_id = $4"
    " order by e.sequence");
enum column { LAST, FORGOTTEN, LOGGED, SEQUENCE, LINE };

enum status chat_page_read(struct chat *chat, const struct chat_key *key, int64_t after,
                           struct chat_page *page, struct error *error)
{
    *page = (struct chat_page){0};
    enum status status = kernel_store_query(chat->kernel, &page_sql,
                                            DB_PARAMS(db_text(key->tenant), db_uuid(key->project),
                                                      db_uuid(key->session), db_uuid(key->user),
                                                      db_i64(after), db_i64(PAGE_EVENTS), db_i64(PAGE_BYTES)),
                                            clock_deadline_ms(READ_MS), &page->rows, error);
    if (status != STATUS_OK || db_result_rows(page->rows) == 0)
        return status;
    page->is_found = true;
    page->last = db_result_i64(page->rows, 0, LAST);
    page->forgotten = db_result_i64(page->rows, 0, FORGOTTEN);
    page->logged = db_result_i64(page->rows, 0, LOGGED);
    page->count = db_result_is_null(page->rows, 0, SEQUENCE) ? 0 : db_result_rows(page->rows);
    return STATUS_OK;
}

void chat_page_deinit(struct chat_page *page)
{
    db_result_free(page->rows);
    *page = (struct chat_page){0};
}

int64_t chat_page_sequence(const struct chat_page *page, size_t at)
{
    return db_result_i64(page->rows, at, SEQUENCE);
}

struct str chat_page_line(const struct chat_page *page, size_t at)
{
    return db_result_str(page->rows, at, LINE);
}

struct stream_segment *chat_page_segment(const struct chat_page *page, int64_t after,
                                         enum stream_format format)
{
    struct buf bytes = {0};
    if (page->count == 0)
        return NULL;
    for (size_t i = 0; i < page->count; i++)
        stream_line_put(&bytes, format, chat_page_sequence(page, i), chat_page_line(page, i));
    struct stream_segment *segment =
        stream_segment_create(&(struct stream_step){.from = after,
                                                    .to = chat_page_sequence(page, page->count - 1),
                                                    .lines = (unsigned)page->count,
                                                    .bytes = buf_str(&bytes)});
    buf_deinit(&bytes);
    return segment;
}
