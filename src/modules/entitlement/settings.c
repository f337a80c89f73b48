/* The rows of `entitlement:`, and what they must be together. */
#include "modules/entitlement/settings.h"

#include "kernel/kernel.h"

#define ROW(member) .offset = offsetof(struct entitlement_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct entitlement_settings, member)

enum { HOUR_MS = 3600 * 1000, MARGIN_MS = 60 * 1000, NAME_BYTES_MAX = 170 };

static const struct setting_row nats_rows[] = {
    {"subject", SETTING_STRING, ROW(nats.subject),
     "The subject events are published to. Required once bus.events is nats.", "", 0, NAME_BYTES_MAX,
     PLACE(nats.subject_place)},
    {"stream", SETTING_STRING, ROW(nats.stream),
     "The JetStream stream that takes them; made where it is missing. Required once bus.events is nats.", "",
     0, NAME_BYTES_MAX, PLACE(nats.stream_place)},
    {"duplicate-window", SETTING_DURATION_MS, ROW(nats.duplicate_window_ms),
     "How long the stream drops a repeated Nats-Msg-Id. Must be longer than all retries of an event can take; 0 = as long "
     "as that, and a minute more.",
     "0", 0, INT64_C(365) * 24 * HOUR_MS, PLACE(nats.window_place)},
    {.name = NULL},
};

static const struct setting_row idempotency_rows[] = {
    {"ttl", SETTING_DURATION_MS, ROW(idempotency.ttl_ms),
     "How long the answer to an Idempotency-Key is kept. Replays do not extend it.", "24h", 1000,
     INT64_C(365) * 24 * HOUR_MS},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(idempotency.cleanup_ms),
     "How often expired answers are deleted.", "1h", 10, 24 * HOUR_MS},
    {.name = NULL},
};

static const struct setting_row audit_rows[] = {
    {"months-ahead", SETTING_INT, ROW(audit.months_ahead),
     "Monthly partitions of entitlement_audit that stand ready beyond this month's.", "3", 1, 120},
    {"keep-months", SETTING_INT, ROW(audit.keep_months),
     "Whole months kept beside this one; older partitions are dropped. 0 = all are kept.", "0", 0, 1200},
    {.name = NULL},
};

static const struct setting_row rows[] = {
    {"nats", SETTING_OBJECT, .help = "Where events go, once bus.events is nats.", .rows = nats_rows,
     .fallback = ""},
    {"idempotency", SETTING_OBJECT, .help = "Idempotency-Key of grants and revokes.",
     .rows = idempotency_rows, .fallback = ""},
    {"audit", SETTING_OBJECT, .help = "The history of changes, partitioned by month.", .rows = audit_rows,
     .fallback = ""},
    {"hydration", SETTING_OBJECT, ROW(hydration),
     "Whether a grant asks for the item of its stock_keeping_unit first: one that is not there is refused.",
     "", .rows = hydration_use_rows_off},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events are published.", "", .rows = outbox_setting_rows},
    {.name = NULL},
};

const struct config_section entitlement_section = {
    .name = "entitlement",
    .help = "Entitlements: granted and revoked, with an event for each change.",
    .rows = rows,
    .struct_bytes = sizeof(struct entitlement_settings),
};

/* ---- the window ---- */

int64_t entitlement_retry_horizon_ms(const struct outbox_settings *outbox)
{
    int64_t pauses_ms = 0, pause_ms = outbox->backoff_base_ms;
    int64_t jitter = outbox->jitter_max > outbox->jitter_min ? outbox->jitter_max : outbox->jitter_min;
    for (int64_t attempt = 1; attempt < outbox->attempts_max; attempt++) {
        int64_t capped_ms = pause_ms < outbox->backoff_max_ms ? pause_ms : outbox->backoff_max_ms;
        int64_t longest_ms = capped_ms * jitter / 1000;
        pauses_ms += longest_ms > outbox->backoff_min_ms ? longest_ms : outbox->backoff_min_ms;
        if (pause_ms < outbox->backoff_max_ms)
            pause_ms *= 2;
    }
    return pauses_ms + outbox->attempts_max * outbox->lease_ms;
}

int64_t entitlement_duplicate_window_ms(const struct entitlement_settings *settings)
{
    int64_t own_ms = settings->nats.duplicate_window_ms;
    return own_ms ? own_ms : entitlement_retry_horizon_ms(&settings->outbox) + MARGIN_MS;
}

/* ---- checks ---- */

static bool is_stream(struct str name)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] == '.' || !str_is_name(str_of(name.ptr + i, 1)))
            return false;
    return name.len > 0;
}

/* Tokens joined by dots, none of them empty or a wildcard. */
static bool is_subject(struct str name)
{
    struct str token;
    if (!name.len || name.ptr[name.len - 1] == '.')
        return false;
    while (str_split(&name, '.', &token))
        if (!is_stream(token))
            return false;
    return true;
}

static enum status check_nats(const struct config *config, const struct entitlement_settings *settings,
                              struct error *error)
{
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    bool needed = bus->events == KERNEL_NATS;
    if (needed && !settings->nats.subject.len)
        return config_error_at(config, bus->events_place, "entitlement.nats.subject", error,
                               "bus.events is nats: then say which subject events are published to");
    if (needed && !settings->nats.stream.len)
        return config_error_at(config, bus->events_place, "entitlement.nats.stream", error,
                               "bus.events is nats: then say which stream takes the events");
    if (settings->nats.subject.len && !is_subject(settings->nats.subject))
        return config_error_at(config, settings->nats.subject_place, "entitlement.nats.subject", error,
                               "a subject is of [A-Za-z0-9_-] and single dots between");
    if (settings->nats.stream.len && !is_stream(settings->nats.stream))
        return config_error_at(config, settings->nats.stream_place, "entitlement.nats.stream", error,
                               "a stream's name is of [A-Za-z0-9_-]");
    return STATUS_OK;
}

enum status entitlement_settings_check(const struct config *config, const void *section, struct error *error)
{
    const struct entitlement_settings *settings = section;
    int64_t horizon_ms = entitlement_retry_horizon_ms(&settings->outbox);
    enum status status = check_nats(config, settings, error);
    if (status == STATUS_OK && entitlement_duplicate_window_ms(settings) <= horizon_ms)
        return config_error_at(
            config, settings->nats.window_place, "entitlement.nats.duplicate-window", error,
            "an event's retries can take %lld s by entitlement.outbox: the window must be longer, or 0",
            (long long)(horizon_ms / 1000));
    return status;
}
