/* Events of items on their way to the bus: an outbox engine over intake.event_outbox in every process of the role. */
#include "base/failpoint.h"
#include "base/json.h"
#include "bus/bus.h"
#include "kernel/store.h"
#include "modules/intake/intake.h"
#include "outbox/messages.h"

enum { EXTRA_TENANT, EXTRA_SKU, EXTRA_OCCURRED_AT, EXTRA_TRACEPARENT };

const struct outbox_table intake_outbox_table = {
    .module = "intake",
    .name = "intake.event_outbox",
    .id = {"event_id", "uuid"},
    .aggregate = {{"tenant_id", "text"}, {"sku", "text"}},
    .sequence = "sequence",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .extra = {[EXTRA_TENANT] = "e.tenant_id",
              [EXTRA_SKU] = "e.sku",
              [EXTRA_OCCURRED_AT] = "platform.rfc3339(e.created_at)",
              [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false}, {"tenantId", "e.tenant_id", false}},
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

/* ---- publishing, on a worker ---- */

static bool is_event(struct str payload)
{
    struct json_value body, member;
    return json_parse_stored(payload, JSON_DEPTH_LIMIT, &body, NULL) == STATUS_OK &&
           body.type == JSON_OBJECT && json_get(&body, STR("event_id"), &member) &&
           member.type == JSON_STRING && json_get(&body, STR("item"), &member) && member.type == JSON_OBJECT;
}

/* A part of an aggregate's key, in which '/' stands between parts. */
static void put_part(struct buf *key, struct str part)
{
    for (size_t i = 0; i < part.len; i++) {
        if (part.ptr[i] == '/')
            buf_put_str(key, STR("%2F"));
        else if (part.ptr[i] == '%')
            buf_put_str(key, STR("%25"));
        else
            buf_put_char(key, part.ptr[i]);
    }
}

static struct str aggregate_key(const struct outbox_event *event, struct arena *arena)
{
    struct buf key = {0};
    put_part(&key, event->extra[EXTRA_TENANT]);
    buf_put_char(&key, '/');
    put_part(&key, event->extra[EXTRA_SKU]);
    struct str copy = arena_str(arena, buf_str(&key));
    buf_deinit(&key);
    return copy;
}

static bool write_letter(void *context, const struct outbox_event *event, struct bus_message *message,
                         struct arena *arena, const char **reason)
{
    (void)context;
    *reason = "the payload is no event";
    if (!is_event(event->payload))
        return false;
    const struct outbox_message letter = {
        .topic = STR(INTAKE_EVENTS),
        .key = aggregate_key(event, arena),
        .payload = event->payload,
        .tenant = event->extra[EXTRA_TENANT],
        .occurred_at = event->extra[EXTRA_OCCURRED_AT],
        .traceparent = event->extra[EXTRA_TRACEPARENT],
    };
    outbox_message_write(&letter, event, message, arena);
    return true;
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct intake *intake = context;
    FAILPOINT("intake.after_claim");
    outbox_messages_publish(kernel_events(intake->kernel), batch, write_letter, NULL);
    FAILPOINT("intake.after_publish");
}

static void on_settled(void *context, size_t count)
{
    (void)context;
    (void)count;
    FAILPOINT("intake.after_finalize");
}

enum status intake_publisher_create(struct intake *intake, struct error *error)
{
    return kernel_outbox_create(intake->kernel,
                                &(struct outbox_config){.table = &intake_outbox_table,
                                                        .settings = &intake->settings->outbox,
                                                        .context = intake,
                                                        .publish = publish,
                                                        .on_settled = on_settled},
                                &intake->publisher, error);
}
