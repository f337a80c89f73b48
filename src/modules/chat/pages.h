/* Pages of chat.event_log, and the two ways an event is written on a stream. */
#ifndef FRESHET_CHAT_PAGES_H
#define FRESHET_CHAT_PAGES_H

#include "modules/chat/chat.h"
#include "stream/stream.h"

enum chat_format { CHAT_NDJSON, CHAT_SSE, CHAT_FORMATS };

/* Whose session: what a room is known by. Texts are NUL-terminated and the owner's. */
struct chat_key {
    struct str tenant, project, session, user;
};

struct chat_page {
    struct db_result *rows; /* chat_page_deinit() */
    bool is_found;          /* there is such a session, and it is the caller's */
    int64_t last;           /* committed in it */
    int64_t forgotten;      /* up to here the log was cleaned up */
    int64_t logged;         /* the newest in the log */
    size_t count;           /* of events on this page */
};

void chat_pages_init(struct chat *chat);
/* On a worker: what the log has behind `after` (-1 = from the oldest), bounded. */
enum status chat_page_read(struct chat *chat, const struct chat_key *key, int64_t after,
                           struct chat_page *page, struct error *error) MUST_CHECK;
void chat_page_deinit(struct chat_page *page);
int64_t chat_page_sequence(const struct chat_page *page, size_t at);
struct str chat_page_line(const struct chat_page *page, size_t at);
/* The whole page from `after` on; NULL when it is empty. */
struct stream_segment *chat_page_segment(const struct chat_page *page, int64_t after,
                                         enum chat_format format);

/* ---- lines ---- */
void chat_line_put(struct buf *out, enum chat_format format, int64_t sequence, struct str line);
extern const struct chat_lines {
    struct str content_type;
    void (*put_up_to_date)(struct buf *out, int64_t sequence);
    void (*put_heartbeat)(struct buf *out, int64_t sequence);
    void (*put_cut_off)(struct buf *out, int64_t sequence);
} chat_lines[CHAT_FORMATS];

#endif
