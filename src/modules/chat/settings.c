/* The rows of `chat:`, and the checks that concern several of them. */
#include "modules/chat/chat.h"

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
     URL_BYTES_MAX, AGENT_PLACE(url_place)},
    {"timeout", SETTING_DURATION_MS, AGENT(timeout_ms), "Longest wait for the URL.", "5s", 10, 20000},
    {.name = NULL},
};

static const struct setting_row stream_rows[] = {
    {"heartbeat", SETTING_DURATION_MS, ROW(stream.heartbeat_ms),
     "A heartbeat is sent after this time without an event.", "15s", 10, HOUR_MS},
    {"buffer-events", SETTING_INT, ROW(stream.buffer_events),
     "A reader that is more than this many events of its session behind is disconnected.", "1000", 1,
     1000000},
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

static const struct setting_row idempotency_rows[] = {
    {"ttl", SETTING_DURATION_MS, ROW(idempotency.ttl_ms),
     "How long the answer to an Idempotency-Key is kept; replays do not prolong it.", "1h", 1, YEAR_MS},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(idempotency.cleanup_ms),
     "How often older ones are deleted.", "10m", 10, 24 * HOUR_MS},
    {.name = NULL},
};

static const struct setting_row rows[] = {
    {"agents", SETTING_OBJECT_LIST, ROW(agents), "Agents that answer messages.", "", 0, AGENTS_MAX,
     .rows = agent_rows, .element_bytes = sizeof(struct chat_agent)},
    {"default-agent", SETTING_STRING, ROW(default_agent),
     "The agent for messages without a keyword; empty = an agent called assistant that repeats them.", "", 0,
     64, .place_offset = 1 + offsetof(struct chat_settings, default_place)},
    {"agent-calls", SETTING_INT, ROW(agent_calls),
     "Calls of agents with a URL at once, a thread each; as many more wait, further ones are answered 503.",
     "64", 1, 1000},
    {"content-max", SETTING_SIZE, ROW(content_bytes_max), "Longest message, and longest answer.", "32KiB", 1,
     128 * 1024},
    {"stream", SETTING_OBJECT, .help = "Live streams of sessions.", .rows = stream_rows, .fallback = ""},
    {"retention", SETTING_OBJECT, .help = "How long events are kept.", .rows = retention_rows,
     .fallback = ""},
    {"idempotency", SETTING_OBJECT, .help = "Idempotency-Key of messages.", .rows = idempotency_rows,
     .fallback = ""},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events are published.", "", .rows = outbox_setting_rows},
    {.name = NULL},
};

const struct config_section chat_section = {
    .name = "chat",
    .help = "Chats: messages, agents that answer them, and live streams of events.",
    .rows = rows,
    .struct_bytes = sizeof(struct chat_settings),
};

/* ---- checks ---- */

static bool is_http_url(struct str url)
{
    for (size_t i = 0; i < url.len; i++)
        if ((unsigned char)url.ptr[i] <= ' ' || url.ptr[i] == 0x7f)
            return false;
    return (str_starts_with(url, STR("http://")) && url.len > 7) ||
           (str_starts_with(url, STR("https://")) && url.len > 8);
}

static bool has_agent(const struct chat_agent *agents, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(agents[i].name, name))
            return true;
    return false;
}

static enum status check_agent(const struct config *config, const struct chat_agent *agent,
                               struct error *error)
{
    if (!agent->reply.len == !agent->url.len)
        return config_error_at(config, agent->name_place, "chat.agents.reply", error,
                               "an agent needs either a reply or a url");
    if (agent->url.len && !is_http_url(agent->url))
        return config_error_at(config, agent->url_place, "chat.agents.url", error,
                               "must be an http or https URL");
    for (size_t i = 0; i < agent->keywords.count; i++)
        if (!agent->keywords.items[i].len)
            return config_error_at(config, agent->keywords_place, "chat.agents.keywords", error,
                                   "a keyword must not be empty");
    return STATUS_OK;
}

enum status chat_settings_check(const struct config *config, const void *section, struct error *error)
{
    const struct chat_settings *settings = section;
    const struct chat_agent *agents = settings->agents.items;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < settings->agents.count && status == STATUS_OK; i++) {
        status = check_agent(config, &agents[i], error);
        if (status == STATUS_OK && has_agent(agents, i, agents[i].name))
            status = config_error_at(config, agents[i].name_place, "chat.agents.name", error,
                                     "another agent has this name");
    }
    if (status == STATUS_OK && settings->default_agent.len &&
        !has_agent(agents, settings->agents.count, settings->default_agent))
        status = config_error_at(config, settings->default_place, "chat.default-agent", error,
                                 "must be the name of one of chat.agents");
    return status;
}
