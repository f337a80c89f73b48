/* Requeued messages on their way back to their topic: an outbox engine over the rows of notification_nats_dlq that somebody
 * decided to send again. The payload is what it was; the event-id header is a new one each time, since engines drop what
 * they have seen. The event inside is still the same, so one that was handled meanwhile makes nothing. */
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/log.h"
#include "modules/notification/notification.h"
#include "outbox/messages.h"

enum { EXTRA_TOPIC, EXTRA_KEY, EXTRA_HEADERS, EXTRA_REQUEUE_ID, EXTRA_PLACE };

#define MARK "-requeue-"

const struct outbox_table notification_requeue_table = {
    .module = "notification",
    .name = "notification.notification_nats_dlq",
    .id = {"dlq_id", "bigint"},
    .event_type = "'requeue'",
    .payload = "e.payload",
    .payload_is_bytes = true,
    .extra = {[EXTRA_TOPIC] = "e.topic",
              [EXTRA_KEY] = "encode(e.message_key, 'hex')",
              [EXTRA_HEADERS] = "e.headers",
              [EXTRA_REQUEUE_ID] = "e.requeue_id",
              [EXTRA_PLACE] = "concat_ws(':', e.stream, e.partition, e.stream_seq)"},
    .logged = {{"eventId", "coalesce(e.event_id, '')", false}, {"dlqId", "e.dlq_id", .is_number = true}},
    .words = {"status", "REQUEUE", "PUBLISHING", "REQUEUED", "DEAD"},
    .published_at = "requeued_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

static const struct outbox_settings settings = {
    .poll_ms = 1000,
    .batch = 50,
    .lease_ms = 30000,
    .attempts_max = 10,
    .backoff_base_ms = 1000,
    .backoff_max_ms = 60000,
    .jitter_min = 500,
    .jitter_max = 1500,
};

/* ---- a row as a message ---- */

/* The event's own id, or the place of a message that has none, and the number of this requeue behind it. */
static struct str new_id(struct str id, const struct outbox_event *event, struct arena *arena)
{
    const char *mark = id.len ? memmem(id.ptr, id.len, MARK, sizeof MARK - 1) : NULL;
    struct str base = !id.len ? event->extra[EXTRA_PLACE]
                      : mark  ? str_of(id.ptr, (size_t)(mark - id.ptr))
                              : id;
    return arena_printf(arena, "%.*s" MARK "%.*s", STR_ARG(base), STR_ARG(event->extra[EXTRA_REQUEUE_ID]));
}

static bool take_headers(const struct outbox_event *event, struct bus_message *message, struct arena *arena)
{
    struct bus_header *headers = arena_alloc(arena, (BUS_HEADERS_MAX + 1) * sizeof *headers);
    struct json_value object, member;
    struct json_iter it;
    struct str name, id = STR_NONE;
    if (json_parse_stored(event->extra[EXTRA_HEADERS], JSON_DEPTH_MAX, &object, NULL) != STATUS_OK)
        return false;
    unsigned count = 1;
    for (json_iter_init(&it, &object); json_iter_next(&it, &name, &member) && count < BUS_HEADERS_MAX;) {
        struct bus_header header = {json_str_decode(name, arena), json_str_decode(member.raw, arena)};
        if (str_eq(header.name, STR(BUS_HEADER_EVENT_ID)))
            id = header.value;
        else if (header.name.len)
            headers[count++] = header;
    }
    headers[0] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), new_id(id, event, arena)};
    message->headers = headers;
    message->header_count = count;
    return true;
}

static bool take_key(struct str hex, struct bus_message *message, struct arena *arena)
{
    if (!hex.ptr)
        return true;
    uint8_t *key = arena_alloc(arena, hex.len / 2 + 1);
    message->key = str_of((const char *)key, hex.len / 2);
    return hex_get(hex.ptr, key, hex.len / 2);
}

static bool write_letter(void *context, const struct outbox_event *event, struct bus_message *message,
                         struct arena *arena, const char **reason)
{
    (void)context;
    *message = (struct bus_message){.topic = event->extra[EXTRA_TOPIC], .payload = event->payload};
    *reason = "its headers or its key cannot be read";
    return take_headers(event, message, arena) && take_key(event->extra[EXTRA_KEY], message, arena);
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct notification *notification = context;
    FAILPOINT("requeue.after_claim");
    outbox_messages_publish(kernel_events(notification->kernel), batch, write_letter, NULL);
    FAILPOINT("requeue.after_publish");
    for (size_t i = 0; i < batch->count; i++)
        if (batch->results[i].kind == OUTBOX_DONE)
            log_info("notification_requeued", LOG_STR("dlqId", batch->events[i].id));
}

enum status notification_requeue_create(struct notification *notification, struct error *error)
{
    return kernel_outbox_create(notification->kernel,
                                &(struct outbox_config){.table = &notification_requeue_table,
                                                        .settings = &settings,
                                                        .context = notification,
                                                        .publish = publish},
                                &notification->requeue, error);
}
