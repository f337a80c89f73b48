/* Reads an event of entitlements from the bus: protobuf and headers, every field checked. Unknown fields are ignored: a later
 * version may have them. */
#include <entitlement.pb-c.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/span.h"
#include "modules/notification/notification.h"
#include "outbox/outbox.h"

/* The namespace of notification ids, which are made of tenant and event. Never changes. */
static const struct uuid space = {
    {0x5b, 0x0f, 0x3a, 0x61, 0x7c, 0x0e, 0x4d, 0x9b, 0x93, 0x2e, 0x6a, 0x1d, 0x84, 0xc7, 0x20, 0xf5}};

typedef Freshet__Entitlement__V1__EntitlementEvent proto_event;

static bool take_text(const char *text, size_t min, struct arena *arena, struct str *out)
{
    struct str found = str_from(text);
    if (found.len < min || found.len > NOTIFICATION_TEXT_BYTES_MAX || !str_is_utf8(found))
        return false;
    *out = arena_str(arena, found);
    return true;
}

static const char *read_fields(const proto_event *raw, struct arena *arena, struct notification_event *event)
{
    struct uuid uuid;
    if (!uuid_parse(str_from(raw->event_id), &uuid))
        return "event_id is not a UUID";
    uuid_format(&uuid, event->event_id);
    event->event_type = str_from(raw->event_type);
    if (!str_eq(event->event_type, STR("EntitlementGranted")) &&
        !str_eq(event->event_type, STR("EntitlementRevoked")))
        return "event_type is not known";
    event->event_type = arena_str(arena, event->event_type);
    if (!clock_rfc3339_parse(str_from(raw->occurred_at), &event->occurred_us))
        return "occurred_at is not a time of RFC 3339";
    if (raw->version < 1)
        return "version is not positive";
    event->version = raw->version;
    if (!str_is_name(str_from(raw->tenant_id)))
        return "tenant_id is not a tenant name";
    event->tenant = arena_str(arena, str_from(raw->tenant_id));
    if (!take_text(raw->user_id, 1, arena, &event->user_id))
        return "user_id is not 1 to 1024 bytes of text";
    if (!take_text(raw->stock_keeping_unit, 1, arena, &event->sku))
        return "stock_keeping_unit is not 1 to 1024 bytes of text";
    if (!take_text(raw->source, 0, arena, &event->source) ||
        !take_text(raw->source_id, 0, arena, &event->source_id))
        return "source or source_id is not at most 1024 bytes of text";
    return NULL;
}

/* Headers must agree with the payload. The event-id of a requeued message is the event's with a suffix, so that engines do not drop
 * it as a duplicate. */
static const char *compare_headers(const struct bus_message *message, const struct notification_event *event)
{
    struct str id = bus_message_header(message, STR(BUS_HEADER_EVENT_ID));
    struct str type = bus_message_header(message, STR(OUTBOX_HEADER_EVENT_TYPE));
    struct str tenant = bus_message_header(message, STR(OUTBOX_HEADER_TENANT));
    struct str own = str_from(event->event_id);
    if (id.ptr && (id.len < own.len || !str_eq_nocase(str_of(id.ptr, own.len), own) ||
                   (id.len > own.len && id.ptr[own.len] != '-')))
        return "the header event-id is not the event's";
    if (type.ptr && !str_eq(type, event->event_type))
        return "the header event_type is not the event's";
    if (tenant.ptr && !str_eq(tenant, event->tenant))
        return "the header tenant_id is not the event's";
    return NULL;
}

enum status notification_event_read(const struct bus_message *message, struct arena *arena,
                                    struct notification_event *event, struct error *error)
{
    struct trace trace;
    *event = (struct notification_event){0};
    proto_event *raw = message->payload.len == 0
                           ? NULL
                           : freshet__entitlement__v1__entitlement_event__unpack(
                                 NULL, message->payload.len, (const uint8_t *)message->payload.ptr);
    if (!raw)
        return error_set(error, STATUS_BAD_REQUEST, "the payload is not its protobuf");
    /* Texts end at a NUL: the rest of a text after one is missing when the event is packed again. */
    bool has_hidden_text =
        memchr(message->payload.ptr, '\0', message->payload.len) &&
        freshet__entitlement__v1__entitlement_event__get_packed_size(raw) != message->payload.len;
    const char *wrong = has_hidden_text ? "a text has a NUL in it" : read_fields(raw, arena, event);
    freshet__entitlement__v1__entitlement_event__free_unpacked(raw, NULL);
    if (!wrong)
        wrong = compare_headers(message, event);
    if (wrong)
        return error_set(error, STATUS_BAD_REQUEST, "%s", wrong);
    struct str traceparent = bus_message_header(message, STR(BUS_HEADER_TRACEPARENT));
    if (trace_parse(traceparent, &trace))
        event->traceparent =
            span_follow(&event->span, SPAN_CONSUMER, "accept event", arena_str(arena, traceparent), arena);
    span_put_str(event->span, "messaging.destination.name", message->topic);
    span_put_str(event->span, "freshet.tenant.id", event->tenant);
    span_put_str(event->span, "freshet.event.id", str_from(event->event_id));
    struct uuid id =
        auth_uuid_named(&space, arena_printf(arena, "%.*s/%s", STR_ARG(event->tenant), event->event_id));
    uuid_format(&id, event->notification_id);
    return STATUS_OK;
}

void notification_event_put(const struct notification_event *event, struct buf *out)
{
    char occurred_at[CLOCK_RFC3339_BYTES];
    clock_rfc3339(event->occurred_us, occurred_at);
    buf_put_char(out, '{');
    json_put_member_str(out, "notification_id", str_from(event->notification_id));
    json_put_member_str(out, "event_id", str_from(event->event_id));
    json_put_member_str(out, "event_type", event->event_type);
    json_put_member_str(out, "occurred_at", str_from(occurred_at));
    json_put_member_str(out, "tenant_id", event->tenant);
    json_put_member_str(out, "user_id", event->user_id);
    json_put_member_str(out, "stock_keeping_unit", event->sku);
    json_put_member_str(out, "source", event->source);
    json_put_member_str(out, "source_id", event->source_id);
    json_put_member_i64(out, "version", event->version);
    if (event->item_title.len)
        json_put_member_str(out, "item_title", event->item_title);
    buf_put_char(out, '}');
}
