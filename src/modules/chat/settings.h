/* `chat:` of the file. Read once, at the start. */
#ifndef FRESHET_CHAT_SETTINGS_H
#define FRESHET_CHAT_SETTINGS_H

#include "kernel/config.h"
#include "outbox/outbox.h"

struct chat_agent { /* one of chat.agents */
    struct str name;
    struct setting_strings keywords;
    struct str reply; /* a template; or */
    struct str url;   /* where it is asked for one */
    int64_t timeout_ms;
    struct setting_place name_place, keywords_place, url_place;
};

struct chat_settings {
    struct setting_objects agents; /* struct chat_agent */
    struct str default_agent;      /* empty = one that repeats what it was told */
    struct setting_place default_place;
    int64_t agent_calls;
    int64_t content_bytes_max;
    struct {
        int64_t heartbeat_ms, buffer_events, buffer_bytes;
    } stream;
    struct {
        int64_t keep_ms, interval_ms;
    } retention; /* of event_log */
    struct {
        int64_t ttl_ms, cleanup_ms;
    } idempotency;
    struct outbox_settings outbox;
};

extern const struct config_section chat_section;
enum status chat_settings_check(const struct config *config, const void *section,
                                struct error *error) MUST_CHECK;

#endif
