/* The module: routes, life and health of chats. */
#include "modules/chat/chat.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernel/retention.h"
#include "modules/chat/pages.h"
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

/* By index event_log_age; what another process is deleting is skipped. */
static const char log_cleanup_sql[] =
    "delete from chat.event_log where ctid = any(array("
    "    select e.ctid from chat.event_log e where e.created_at < now() - $1 * interval '1 ms'"
    "    order by e.created_at limit $2 for update skip locked))";

static void each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg)
{
    (void)section;
    /* What its server loses in a crash, the outbox loses the mark of: it is published again. */
    fn(&(struct kernel_topic){.topic = {.name = CHAT_TOPIC, .partitions = PARTITIONS, .relaxed = true}}, arg);
}

/* ---- life ---- */

static bool has_agents_elsewhere(const struct chat_settings *settings)
{
    const struct chat_agent *agents = settings->agents.items;
    for (size_t i = 0; i < settings->agents.count; i++)
        if (agents[i].url.len)
            return true;
    return false;
}

static enum status start(struct kernel *kernel, const void *section, void **state, struct error *error)
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
    chat_post_init(chat);
    chat_history_init(chat);
    chat_events_init(chat);
    chat_pages_init(chat);
    chat->rooms = chat_rooms_create(chat);
    if (has_agents_elsewhere(chat->settings))
        chat->askers = worker_pool_create("agents", (unsigned)chat->settings->agent_calls,
                                          (size_t)chat->settings->agent_calls);
    chat_source_provide(chat);
    *state = chat;
    return STATUS_OK;
}

static enum status subscribe(void *state, struct bus *events, struct error *error)
{
    enum status status = chat_events_subscribe(state, events, error);
    return status == STATUS_OK ? chat_source_follow(state, events, error) : status;
}

static void on_store(void *state)
{
    struct chat *chat = state;
    kernel_retention_add_keys(chat->kernel, &chat->keys, chat->settings->idempotency.cleanup_ms);
    kernel_retention_add(chat->kernel,
                         &(struct retention_rule){.name = "chat.event_log",
                                                  .sql = log_cleanup_sql,
                                                  .keep_ms = chat->settings->retention.keep_ms,
                                                  .interval_ms = chat->settings->retention.interval_ms});
}

static void stop(void *state)
{
    struct chat *chat = state;
    if (chat->askers)
        worker_pool_stop(chat->askers);
}

static void destroy(void *state)
{
    struct chat *chat = state;
    if (chat->askers)
        worker_pool_destroy(chat->askers);
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
    .start = start,
    .stop = stop,
    .destroy = destroy,
    .keeps_store = true,
    .provides = (const char *const[]){"chat_session", NULL},
    .each_topic = each_topic,
    .subscribe = subscribe,
    .on_store = on_store,
    .outboxes = (const struct outbox_table *const[]){&chat_outbox_table, NULL},
};
