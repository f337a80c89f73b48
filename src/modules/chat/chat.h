/* chat's own layout: what the files of this module share.
 *
 *   POST ─ agents.c: who answers, and what ─ post.c: one call of chat.post_message() by way of the idempotency engine
 *        ─ COMMIT ─ publisher.c is woken ─ outbox engine ─ chat.event_log ─ bus, topic chat.events ─ every process:
 *   rooms.c, the home loop: a room for each session that somebody follows here ─ src/stream ─ followers on all loops
 *
 *   GET …/stream ─ follow.c parks the request ─ room ─ pages.c: is it the caller's, and what was missed ─ admitted
 *
 * event_log is the truth of streams, and the order of a session's sequence is the order of its rows appearing there. The bus
 * only says that there is more: what it repeats is known by its sequence, what it leaves out is read from the log. */
#ifndef FRESHET_CHAT_CHAT_H
#define FRESHET_CHAT_CHAT_H

#include "base/uuid.h"
#include "bus/bus.h"
#include "idempotency/idempotency.h"
#include "kernel/kernel.h"
#include "kernel/store.h"
#include "modules/chat/settings.h"

#define CHAT_TOPIC "chat.events"
#define CHAT_HEADER_SESSION "session_id" /* of its messages, beside those that every module's have */
#define CHAT_HEADER_SEQUENCE "sequence"

struct chat_rooms;

struct chat {
    struct kernel *kernel;
    const struct chat_settings *settings; /* as they were at the start */
    struct idempotency_table keys;
    struct db_statement post, history, look, page, log, event_page, event_count;
    struct outbox *publisher;
    struct worker_pool *askers; /* who waits for agents elsewhere; NULL = there are none */
    struct chat_rooms *rooms;
};

/* ---- caller.c: whose session it is ---- */
struct chat_caller {
    struct str tenant; /* the identity's */
    char project[UUID_TEXT_BYTES], session[UUID_TEXT_BYTES], user[UUID_TEXT_BYTES];
};
/* Of the token and the path; BAD_REQUEST where an id is no UUID. A path without a session leaves it empty. */
enum status chat_caller_read(const struct http_request *request, struct chat_caller *caller,
                             struct error *error) MUST_CHECK;
void chat_user_id(struct str tenant, struct str subject, char out[UUID_TEXT_BYTES]);
enum status chat_store_check(const struct chat *chat, struct error *error) MUST_CHECK; /* is it there? */

/* ---- post.c, history.c, events.c, follow.c: routes ---- */
void chat_post_init(struct chat *chat);
void chat_history_init(struct chat *chat);
void chat_events_init(struct chat *chat);
http_handler_fn chat_post_message, chat_get_messages, chat_get_events, chat_get_stream;
extern struct metric_family chat_messages_family;

/* ---- publisher.c ---- */
extern const struct outbox_table chat_outbox_table;
enum status chat_publisher_create(struct chat *chat, struct error *error) MUST_CHECK;
enum status chat_events_subscribe(struct chat *chat, struct bus *events, struct error *error) MUST_CHECK;

/* ---- source.c: sessions for whoever lacks one (H6) ---- */
void chat_source_provide(struct chat *chat);
enum status chat_source_follow(struct chat *chat, struct bus *events, struct error *error) MUST_CHECK;
bool chat_source_is_id(struct str id); /* a UUID as chat writes it */

extern const struct db_migration chat_migrations[]; /* sql/chat */
extern const struct module chat_module;

#endif
