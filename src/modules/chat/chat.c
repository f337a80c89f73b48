/* The chat module: its routes, topic and life, and the caller of a request. */
#include "modules/chat/chat.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernel/retention.h"
#include "modules/chat/rooms.h"

enum { PARTITIONS = 4, BODY_BYTES_MAX = 1024 * 1024, POST_MS = 28000 };

#define SESSION_PATH "/my/projects/{project_id}/chat/{session_id}"

static const struct http_route routes[] = {
    {HTTP_POST, SESSION_PATH "/message", chat_post_message, HTTP_WORKER, .needs_user = true,
     .idempotency = HTTP_KEY_REJECT, .body_bytes_max = BODY_BYTES_MAX, .deadline_ms = POST_MS},
    {HTTP_GET, SESSION_PATH "/messages", chat_get_messages, .kind = HTTP_WORKER, .needs_user = true},
    {HTTP_GET, "/my/projects/{project_id}/events", chat_get_events, .kind = HTTP_WORKER, .needs_user = true},
    {HTTP_GET, SESSION_PATH "/stream", chat_get_stream, .kind = HTTP_STREAM, .needs_user = true},
    {.handler = NULL},
};

/* By index event_log_age; skips rows that another process is deleting. */
static const char log_cleanup_sql[] =
    "delete from chat.event_log where ctid = any(array("
    "    select e.ctid from chat.event_log e where e.created_at < now() - $1 * interval '1 ms'"
    "    order by e.created_at limit $2 for update skip locked))";

static void chat_each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                            void *arg)
{
    (void)section;
    /* Relaxed: a crash that loses messages loses the outbox's marks too, so they are published again. */
    fn(&(struct kernel_topic){.topic = {.name = CHAT_TOPIC, .partitions = PARTITIONS, .relaxed = true}}, arg);
}

/* ---- the caller ---- */

/* A user whose `sub` is not a UUID gets a named UUID in the namespace of the tenant, which is itself a named UUID in this one
 * (RFC 9562's for object ids). */
static const struct uuid tenant_namespace = {
    {0x6b, 0xa7, 0xb8, 0x12, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}};

void chat_user_id(struct str tenant, struct str subject, char out[UUID_TEXT_BYTES])
{
    struct uuid user;
    if (!uuid_parse(subject, &user)) {
        struct uuid space = uuid_named(&tenant_namespace, tenant);
        user = uuid_named(&space, subject);
    }
    uuid_format(&user, out);
}

static enum status read_id(const struct http_request *request, const char *name, char out[UUID_TEXT_BYTES],
                           struct error *error)
{
    struct str text;
    struct uuid id;
    enum status status = http_request_param(request, name, &text, error);
    if (status == STATUS_OK && !uuid_parse(text, &id))
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a UUID");
    if (status == STATUS_OK)
        uuid_format(&id, out);
    return status;
}

enum status chat_caller_read(const struct http_request *request, struct chat_caller *caller,
                             struct error *error)
{
    const struct auth_identity *identity = kernel_identity(request);
    caller->tenant = identity->tenant;
    caller->session[0] = '\0';
    chat_user_id(identity->tenant, identity->subject, caller->user);
    enum status status = read_id(request, "project_id", caller->project, error);
    if (status == STATUS_OK && strstr(request->route->path, "{session_id}"))
        status = read_id(request, "session_id", caller->session, error);
    return status;
}

enum status chat_store_check(const struct chat *chat, struct error *error)
{
    return kernel_store_is_ready(chat->kernel)
               ? STATUS_OK
               : error_set(error, STATUS_UNAVAILABLE, "the database is not ready yet");
}

enum status chat_acquire(const struct chat *chat, int64_t deadline_ns, struct db_conn **conn,
                         struct error *error)
{
    enum status status = chat_store_check(chat, error);
    *conn = NULL;
    return status == STATUS_OK ? db_acquire(kernel_store_pool(chat->kernel), deadline_ns, conn, error)
                               : status;
}

/* ---- life ---- */

static enum status chat_start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    struct chat *chat = memory_zalloc(sizeof *chat);
    chat->kernel = kernel;
    chat->settings = section;
    chat->keys = (struct idempotency_table){.name = "chat.idempotency_keys",
                                            .ttl_ms = chat->settings->idempotency.ttl_ms,
                                            .expires_inclusive = false};
    enum status status = chat_publisher_create(chat, error);
    if (status != STATUS_OK) {
        free(chat);
        return status;
    }
    chat->rooms = chat_rooms_create(chat);
    const struct chat_agent *agents = chat->settings->agents.items;
    for (size_t i = 0; i < chat->settings->agents.count && !chat->agent_callers; i++)
        if (agents[i].url.len)
            chat->agent_callers = worker_pool_create("agents", (unsigned)chat->settings->agent_calls,
                                                     (size_t)chat->settings->agent_calls);
    chat_owner_provide(chat);
    *state = chat;
    return STATUS_OK;
}

static enum status chat_subscribe(void *state, struct bus *events, struct error *error)
{
    enum status status = chat_publisher_subscribe(state, events, error);
    return status == STATUS_OK ? chat_owner_follow(state, events, error) : status;
}

static void chat_on_store(void *state)
{
    struct chat *chat = state;
    kernel_retention_add_keys(chat->kernel, &chat->keys, chat->settings->idempotency.cleanup_ms);
    kernel_retention_add(chat->kernel,
                         &(struct retention_rule){.name = "chat.event_log",
                                                  .sql = log_cleanup_sql,
                                                  .keep_ms = chat->settings->retention.keep_ms,
                                                  .interval_ms = chat->settings->retention.interval_ms});
}

static void chat_stop(void *state)
{
    struct chat *chat = state;
    if (chat->agent_callers)
        worker_pool_stop(chat->agent_callers);
}

static void chat_destroy(void *state)
{
    struct chat *chat = state;
    if (chat->agent_callers)
        worker_pool_destroy(chat->agent_callers);
    chat_rooms_destroy(chat->rooms);
    free(chat);
}

static struct metric_family *const metrics[] = {&chat_messages_family, &chat_streams_family,
                                                &chat_stream_lines_family, &chat_stream_cuts_family, NULL};

const struct module chat_module = {
    .name = "chat",
    .roles = (const char *const[]){"chat", NULL},
    .section = &chat_section,
    .routes = (const struct module_routes[]){{"chat", routes}, {.role = NULL}},
    .metrics = metrics,
    .migrations = chat_migrations,
    .check = chat_settings_check,
    .start = chat_start,
    .stop = chat_stop,
    .destroy = chat_destroy,
    .keeps_store = true,
    .provides = (const char *const[]){"chat_session", NULL},
    .each_topic = chat_each_topic,
    .subscribe = chat_subscribe,
    .on_store = chat_on_store,
    .outboxes = (const struct outbox_table *const[]){&chat_outbox_table, NULL},
};
