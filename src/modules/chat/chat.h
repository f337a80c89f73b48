/* The files of the chat module:
 *
 *   POST …/message ─ agents.c: which agent answers, and what ─ post.c: one call of chat.post_message() with its
 *        Idempotency-Key ─ COMMIT ─ publisher.c is woken ─ outbox engine ─ chat.event_log ─ bus, topic chat.events
 *        ─ in every process: rooms.c, on the home loop: a room for each session that is followed ─ src/stream
 *
 *   GET …/stream ─ streams.c parks the request ─ pages.c: does the session belong to the caller, and which events did it
 *        miss ─ rooms.c admits it
 *   GET …/messages, …/events ─ reads.c
 *
 * chat.event_log is what streams show: events appear in it in the order of their session's sequence. The bus only announces
 * events: a repeated one is recognised by its sequence, a missing one is read from the log. */
#ifndef FRESHET_CHAT_CHAT_H
#define FRESHET_CHAT_CHAT_H

#include "base/uuid.h"
#include "bus/bus.h"
#include "idempotency/idempotency.h"
#include "kernel/config.h"
#include "kernel/kernel.h"
#include "kernel/store.h"
#include "outbox/outbox.h"

#define CHAT_TOPIC "chat.events"
#define CHAT_HEADER_SESSION "session_id" /* of its messages, in addition to the headers of every module */
#define CHAT_HEADER_SEQUENCE "sequence"

/* ---- chat.c: `chat:` of the file, read once, at the start ---- */
struct chat_agent { /* one of chat.agents: it has a reply or a URL */
    struct str name;
    struct setting_strings keywords;
    struct str reply; /* a template */
    struct str url;   /* which returns the reply */
    int64_t timeout_ms;
    struct setting_place name_place, keywords_place, url_place;
};

struct chat_settings {
    struct setting_objects agents; /* struct chat_agent */
    struct str default_agent;      /* empty = one that repeats the message */
    struct setting_place default_place;
    int64_t agent_calls;
    int64_t content_bytes_max;
    struct {
        int64_t heartbeat_ms, buffer_events, buffer_bytes;
    } stream;
    struct {
        int64_t keep_ms, interval_ms;
    } retention; /* of event_log */
    struct idempotency_settings idempotency;
    struct outbox_settings outbox;
};

struct chat_rooms;

struct chat {
    struct kernel *kernel;
    const struct chat_settings *settings;
    struct idempotency_table keys;
    struct outbox *publisher;
    struct worker_pool *agent_callers; /* threads that wait for agents' URLs; NULL = no agent has one */
    struct chat_rooms *rooms;
};

/* The session with its owner: the caller of a request, and what identifies a room. Texts are NUL-terminated and belong to the holder. */
struct chat_key {
    struct str tenant, project, session, user;
};
/* From the token and the path, in the request's arena; BAD_REQUEST where an id is not a UUID. `session` is empty when the path has
 * none. */
enum status chat_key_read(const struct http_request *request, struct chat_key *key,
                          struct error *error) MUST_CHECK;
struct chat_key chat_key_copy(const struct chat_key *key, struct arena *arena);
void chat_user_id(struct str tenant, struct str subject, char out[UUID_TEXT_BYTES]);
extern const struct db_migration chat_migrations[]; /* sql/chat */
extern const char chat_grants[];

/* ---- agents.c: which agent answers a message, and what (M2) ---- */
struct chat_choice {
    const struct chat_agent *agent;
    int64_t score; /* thousandths: the share of its keywords that the message contains */
};
/* The agent with the highest score, the first in the file among equals; without any match the default agent with 0. A pure
 * function of settings and message. */
struct chat_choice chat_agent_choose(const struct chat_settings *settings, struct str content,
                                     struct arena *arena);
/* The template with {content} filled in, at most `bytes_max`, no character split. */
struct str chat_agent_fill(struct str reply, struct str content, size_t bytes_max, struct arena *arena);
/* On a worker, blocking: the reply of the agent's URL, in the request's arena, 1 to `bytes_max` bytes. A failure has been logged. */
enum status chat_agent_call(const struct chat_agent *agent, const struct chat_key *caller, struct str content,
                            const struct http_request *request, size_t bytes_max, struct str *reply,
                            struct error *error) MUST_CHECK;

/* ---- post.c, reads.c, streams.c: routes ---- */
http_handler_fn chat_post_message, chat_get_messages, chat_get_events, chat_get_stream;
extern struct metric_family chat_messages_family;

/* ---- publisher.c ---- */
extern const struct outbox_table chat_outbox_table;
void chat_publish(void *chat, struct outbox_batch *batch); /* of the outbox */
enum status chat_publisher_subscribe(void *chat, struct bus *events, struct error *error) MUST_CHECK;

/* ---- owner.c: sessions for hydration (H6) ---- */
void chat_owner_provide(struct chat *chat);
bool chat_owner_is_id(struct str id); /* a UUID as chat writes it */

#endif
