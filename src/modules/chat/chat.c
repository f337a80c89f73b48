/* The chat module: its settings, routes, topic and life, and the caller of a request. */
#include "modules/chat/chat.h"

#include <stdlib.h>

#include "auth/digest.h"
#include "base/memory.h"
#include "fetch/fetch.h"
#include "kernel/audit.h"
#include "kernel/books.h"
#include "modules/chat/rooms.h"

enum { PARTITIONS = 4, BODY_BYTES_MAX = 1024 * 1024, POST_MS = 28000 };

/* ---- settings ---- */

#define ROW(member) .offset = offsetof(struct chat_settings, member)
#define AGENT(member) .offset = offsetof(struct chat_agent, member)
#define AGENT_PLACE(member) .place_offset = 1 + offsetof(struct chat_agent, member)

#define HOUR_MS INT64_C(3600000)
#define YEAR_MS (365 * 24 * HOUR_MS)
enum { AGENTS_MAX = 100, KEYWORDS_MAX = 1000, URL_BYTES_MAX = 2048, REPLY_BYTES_MAX = 4096 };

static const struct setting_row agent_rows[] = {
    {"name", SETTING_STRING, AGENT(name), "Its name in answers and events.", NULL, 1, 64,
     AGENT_PLACE(name_place)},
    {"keywords", SETTING_STRING_LIST, AGENT(keywords),
     "The more of them a message contains, the higher is this agent's score. A keyword of Latin letters matches whole words "
     "only; case does not matter.",
     "", 0, KEYWORDS_MAX, AGENT_PLACE(keywords_place)},
    {"reply", SETTING_STRING, AGENT(reply), "Its answer; {content} stands for the message.", "", 0,
     REPLY_BYTES_MAX},
    {"url", SETTING_STRING, AGENT(url), "Or the http or https URL that returns its answer to a POST.", "", 0,
     URL_BYTES_MAX, AGENT_PLACE(url_place), .secret = true},
    {"timeout", SETTING_DURATION_MS, AGENT(timeout_ms), "Longest wait for the URL.", "5s", 10, 20000},
    {.name = NULL},
};

static const struct setting_row stream_rows[] = {
    {"heartbeat", SETTING_DURATION_MS, ROW(stream.heartbeat_ms),
     "A heartbeat is sent after this time without an event.", "15s", 10, HOUR_MS},
    {"buffer-events", SETTING_INT, ROW(stream.buffer_events),
     "A reader that lags by more than this many events of its session is disconnected.", "1000", 1, 1000000},
    {"buffer-bytes", SETTING_SIZE, ROW(stream.buffer_bytes), "The same in bytes.", "256KiB", 1024,
     INT64_C(1) << 30},
    {.name = NULL},
};

static const struct setting_row retention_rows[] = {
    {"event-log", SETTING_DURATION_MS, ROW(retention.keep_ms),
     "How long event_log keeps events, and so how long a reader of a stream may be disconnected without missing any.",
     "30d", 1000, 100 * YEAR_MS},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(retention.interval_ms), "How often older ones are deleted.",
     "1h", 10, 24 * HOUR_MS},
    {.name = NULL},
};

static const struct setting_row chat_rows[] = {
    {"agents", SETTING_OBJECT_LIST, ROW(agents), "Agents that answer messages.", "", 0, AGENTS_MAX,
     .rows = agent_rows, .element_bytes = sizeof(struct chat_agent)},
    {"default-agent", SETTING_STRING, ROW(default_agent),
     "The agent for messages without a keyword; empty = an agent called assistant that repeats them.", "", 0,
     64, .place_offset = 1 + offsetof(struct chat_settings, default_place)},
    {"agent-calls", SETTING_INT, ROW(agent_calls),
     "Calls of agents with a URL at once for one tenant, a thread each, and a fifth more for the others; as many wait, further ones are answered 503.",
     "64", 1, 1000},
    {"content-max", SETTING_SIZE, ROW(content_bytes_max), "Longest message, and longest answer.", "32KiB", 1,
     128 * 1024},
    {"stream", SETTING_OBJECT, .help = "Live streams of sessions.", .rows = stream_rows, .fallback = ""},
    {"retention", SETTING_OBJECT, .help = "How long events are kept.", .rows = retention_rows,
     .fallback = ""},
    {"idempotency", SETTING_OBJECT, ROW(idempotency), "Idempotency-Key of messages.", "",
     .rows = idempotency_setting_rows},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events are published.", "", .rows = outbox_setting_rows},
    {.name = NULL},
};

static const struct config_section chat_section = {
    .name = "chat",
    .help = "Chats: messages, agents that answer them, and live streams of events.",
    .rows = chat_rows,
    .struct_bytes = sizeof(struct chat_settings),
};

static bool has_agent(const struct chat_agent *agents, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(agents[i].name, name))
            return true;
    return false;
}

static enum status check_chat(const struct config *config, const void *section, struct error *error)
{
    const struct chat_settings *settings = section;
    const struct chat_agent *agents = settings->agents.items;
    for (size_t i = 0; i < settings->agents.count; i++) {
        const struct chat_agent *agent = &agents[i];
        if (!agent->reply.len == !agent->url.len)
            return config_error_at(config, agent->name_place, "chat.agents.reply", error,
                                   "an agent needs either a reply or a url");
        if (agent->url.len && !fetch_is_url(agent->url))
            return config_error_at(config, agent->url_place, "chat.agents.url", error,
                                   "must be an http or https URL");
        for (size_t k = 0; k < agent->keywords.count; k++)
            if (!agent->keywords.items[k].len)
                return config_error_at(config, agent->keywords_place, "chat.agents.keywords", error,
                                       "a keyword must not be empty");
        if (has_agent(agents, i, agent->name))
            return config_error_at(config, agent->name_place, "chat.agents.name", error,
                                   "another agent has this name");
    }
    if (settings->default_agent.len && !has_agent(agents, settings->agents.count, settings->default_agent))
        return config_error_at(config, settings->default_place, "chat.default-agent", error,
                               "must be the name of one of chat.agents");
    return STATUS_OK;
}

/* ---- routes and topic ---- */

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

/* The publisher writes an event to the log before it is published. */
static const struct kernel_audit log_audit = {
    .kind = "chat.events",
    .table = &chat_outbox_table,
    .lost_sql = DB_STATEMENT(
        "select e.id::text from chat.event_outbox e"
        " where e.status = 'published' and e.last_error is null and e.published_at >= now() - $1 * interval '1 ms'"
        "   and e.created_at >= now() - $2 * interval '1 ms'"
        "   and not exists (select from chat.event_log l where l.event_id = e.id)"
        " order by e.published_at limit 10000")};

/* Relaxed: a crash that loses messages loses their results in the outbox too, so they are published again. */
static const struct kernel_topic chat_topic = {
    .topic = {.name = CHAT_TOPIC, .partitions = PARTITIONS, .relaxed = true}};

/* ---- the caller ---- */

/* A user whose `sub` is not a UUID gets a named UUID in the namespace of the tenant, which is itself a named UUID in this one
 * (RFC 9562's for object ids). */
static const struct uuid tenant_namespace = {
    {0x6b, 0xa7, 0xb8, 0x12, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}};

void chat_user_id(struct str tenant, struct str subject, char out[UUID_TEXT_BYTES])
{
    struct uuid user;
    if (!uuid_parse(subject, &user)) {
        struct uuid space = auth_uuid_named(&tenant_namespace, tenant);
        user = auth_uuid_named(&space, subject);
    }
    uuid_format(&user, out);
}

static enum status read_id(const struct http_request *request, const char *name, struct str *id,
                           struct error *error)
{
    char text[UUID_TEXT_BYTES];
    struct uuid uuid;
    enum status status = http_request_param(request, name, id, error);
    if (status == STATUS_OK && !uuid_parse(*id, &uuid))
        return error_set_field(error, STATUS_BAD_REQUEST, name, "must be a UUID");
    if (status == STATUS_OK) {
        uuid_format(&uuid, text);
        *id = arena_str(request->arena, str_from(text));
    }
    return status;
}

enum status chat_key_read(const struct http_request *request, struct chat_key *key, struct error *error)
{
    const struct auth_identity *identity = kernel_identity(request);
    char user[UUID_TEXT_BYTES];
    chat_user_id(identity->tenant, identity->subject, user);
    *key = (struct chat_key){
        .tenant = identity->tenant, .session = STR(""), .user = arena_str(request->arena, str_from(user))};
    enum status status = read_id(request, "project_id", &key->project, error);
    if (status == STATUS_OK && strstr(request->route->path, "{session_id}"))
        status = read_id(request, "session_id", &key->session, error);
    return status;
}

struct chat_key chat_key_copy(const struct chat_key *key, struct arena *arena)
{
    return (struct chat_key){arena_str(arena, key->tenant), arena_str(arena, key->project),
                             arena_str(arena, key->session), arena_str(arena, key->user)};
}

/* ---- life ---- */

static enum status chat_start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    (void)error;
    struct chat *chat = memory_zalloc(sizeof *chat);
    chat->kernel = kernel;
    chat->settings = section;
    chat->keys = (struct idempotency_table){.name = "chat.idempotency_keys",
                                            .ttl_ms = chat->settings->idempotency.ttl_ms,
                                            .expires_inclusive = false};
    chat->publisher =
        kernel_outbox_create(kernel, &chat_outbox_table, &chat->settings->outbox, chat_publish, chat);
    chat->rooms = chat_rooms_create(chat);
    const struct chat_agent *agents = chat->settings->agents.items;
    for (size_t i = 0; i < chat->settings->agents.count && !chat->agent_callers; i++)
        if (agents[i].url.len)
            chat->agent_callers =
                worker_pool_create("agents", (unsigned)turns_places((size_t)chat->settings->agent_calls),
                                   (size_t)chat->settings->agent_calls);
    chat_owner_provide(chat);
    kernel_retention_add_keys(chat->kernel, &chat->keys, chat->settings->idempotency.cleanup_ms);
    kernel_retention_add(chat->kernel,
                         &(struct retention_rule){.name = "chat.event_log",
                                                  .sql = log_cleanup_sql,
                                                  .keep_ms = chat->settings->retention.keep_ms,
                                                  .interval_ms = chat->settings->retention.interval_ms});
    kernel_audit_add(kernel, &log_audit, chat->settings->retention.keep_ms);
    *state = chat;
    return STATUS_OK;
}

static enum status chat_books(struct books *books, struct db_conn *conn, struct error *error)
{
    const struct chat_settings *settings = config_section(books->config, "chat");
    return kernel_books_count_lost(books, conn, &log_audit, settings->retention.keep_ms,
                                   "was published, and is not in chat.event_log", error);
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

static void chat_report(void *state, struct buf *out)
{
    chat_rooms_report(((const struct chat *)state)->rooms, out);
}

const struct module chat_module = {
    .name = "chat",
    .roles = (const char *const[]){"chat", NULL},
    .section = &chat_section,
    .routes = (const struct module_routes[]){{"chat", routes}, {.role = NULL}},
    .metrics = (struct metric_family *const[]){&chat_messages_family, &chat_streams_family,
                                               &chat_stream_lines_family, &chat_stream_cuts_family, NULL},
    .migrations = chat_migrations,
    .grants = chat_grants,
    .check = check_chat,
    .start = chat_start,
    .stop = chat_stop,
    .destroy = chat_destroy,
    .keeps_store = true,
    .provides = (const char *const[]){"chat_session", NULL},
    .topic = &chat_topic,
    .subscribe = chat_publisher_subscribe,
    .outboxes = (const struct outbox_table *const[]){&chat_outbox_table, NULL},
    .books = chat_books,
    .report = chat_report,
};
