/* Events: from the outbox (JSON) to the bus (protobuf). A payload must agree with its row, or it is not published. */
#include <entitlement.pb-c.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/uuid.h"
#include "http/http.h"
#include "modules/entitlement/entitlement.h"
#include "outbox/outbox.h"

enum { PAYLOAD_DEPTH_MAX = 2 };

typedef Freshet__Entitlement__V1__EntitlementEvent proto_event;

/* The texts of a payload and of a message. */
enum { EVENT_ID, EVENT_TYPE, OCCURRED_AT, USER_ID, SKU, SOURCE, SOURCE_ID, TENANT_ID, TEXTS };

#define TEXT(member)                                                                                \
    {                                                                                               \
        {#member, sizeof #member - 1}, "the payload has no " #member, offsetof(proto_event, member) \
    }
static const struct text {
    struct str name;
    const char *reason;
    size_t offset;
} texts[TEXTS] = {
    [EVENT_ID] = TEXT(event_id),   [EVENT_TYPE] = TEXT(event_type),  [OCCURRED_AT] = TEXT(occurred_at),
    [USER_ID] = TEXT(user_id),     [SKU] = TEXT(stock_keeping_unit), [SOURCE] = TEXT(source),
    [SOURCE_ID] = TEXT(source_id), [TENANT_ID] = TEXT(tenant_id),
};

static bool refuse_event(const char **reason, const char *sentence)
{
    *reason = sentence;
    return false;
}

bool entitlement_event_encode(struct str payload, const struct entitlement_event_row *row,
                              struct arena *arena, struct entitlement_event *event, const char **reason)
{
    struct json_value body, member;
    struct str values[TEXTS];
    struct error error;
    struct uuid uuid;
    int64_t version = 0, at_us;
    if (json_parse(payload, PAYLOAD_DEPTH_MAX, &body, &error) != STATUS_OK || body.type != JSON_OBJECT)
        return refuse_event(reason, "the payload is not a JSON object");
    if (json_has_duplicates(&body, arena))
        return refuse_event(reason, "the payload has a duplicate member");
    for (int i = 0; i < TEXTS; i++) {
        /* Protobuf's texts are C's: a NUL inside would cut them short, and PostgreSQL has none. */
        if (!json_get_string(&body, texts[i].name, &member) || json_has_nul_escape(member.raw))
            return refuse_event(reason, texts[i].reason);
        values[i] = arena_str(arena, json_str_decode(member.raw, arena));
        if (!values[i].len)
            return refuse_event(reason, texts[i].reason);
    }
    if (!json_get_i64(&body, STR("version"), &version))
        return refuse_event(reason, "the payload has no version");
    if (!uuid_parse(values[EVENT_ID], &uuid) || !str_eq(values[EVENT_ID], row->event_id))
        return refuse_event(reason, "the payload's event_id is not the row's");
    if (!str_eq(values[TENANT_ID], row->tenant_id))
        return refuse_event(reason, "the payload's tenant_id is not the row's");
    if (!str_eq(values[EVENT_TYPE], row->event_type) ||
        (!str_eq(row->event_type, STR("EntitlementGranted")) &&
         !str_eq(row->event_type, STR("EntitlementRevoked"))))
        return refuse_event(reason, "the payload's event_type is not the row's, or not known");
    if (!clock_rfc3339_parse(values[OCCURRED_AT], &at_us))
        return refuse_event(reason, "the payload's occurred_at is not a time");
    if (version < 1)
        return refuse_event(reason, "the payload's version is not 1 or more");
    proto_event message = FRESHET__ENTITLEMENT__V1__ENTITLEMENT_EVENT__INIT;
    for (int i = 0; i < TEXTS; i++) /* protobuf-c does not write to what it packs */
        *(char **)((char *)&message + texts[i].offset) = (char *)(uintptr_t)values[i].ptr;
    message.version = version;
    uint8_t *bytes =
        arena_alloc(arena, freshet__entitlement__v1__entitlement_event__get_packed_size(&message));
    event->message =
        str_of((const char *)bytes, freshet__entitlement__v1__entitlement_event__pack(&message, bytes));
    event->occurred_at = values[OCCURRED_AT];
    return true;
}

/* ---- keys ---- */

struct str entitlement_aggregate_key(struct str tenant, struct str user, struct str sku, struct arena *arena)
{
    return outbox_key((struct str[]){tenant, user, sku}, 3, arena);
}

static bool read_part(struct str part, struct arena *arena, struct str *text)
{
    struct error error;
    return part.len && http_percent_decode(part, false, arena, "id", text, &error) == STATUS_OK;
}

/* One entitlement has one id, so that changes reach every copy: the parts must encode to the same id. */
bool entitlement_id_read(struct str id, struct arena *arena, struct str *user, struct str *sku)
{
    static const struct str tenant = {"t", 1};
    struct str rest = id, part;
    if (!str_split(&rest, '/', &part) || !read_part(part, arena, user) || !read_part(rest, arena, sku))
        return false;
    struct str key = entitlement_aggregate_key(tenant, *user, *sku, arena);
    return str_eq(str_of(key.ptr + tenant.len + 1, key.len - tenant.len - 1), id);
}

/* ---- the outbox (E4) ---- */

enum { EXTRA_TENANT, EXTRA_TRACEPARENT };

const struct outbox_table entitlement_outbox_table = {
    .module = "entitlement",
    .name = "entitlement.outbox_events",
    .id = {"event_id", "uuid"},
    .aggregate = {{"aggregate_key", "text"}},
    .sequence = "sequence",
    .turn = "aggregate_key",
    .turn_end = "/",
    .tenant = "e.tenant_id",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .size = "octet_length(e.payload)",
    .extra = {[EXTRA_TENANT] = "e.tenant_id", [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false},
               {"tenantId", "e.tenant_id", false},
               {"version", "e.sequence", .is_number = true},
               OUTBOX_LOGGED_TRACE},
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

static bool write_event(void *context, const struct outbox_event *event, struct bus_message *message,
                        struct arena *arena, const char **reason)
{
    (void)context;
    struct entitlement_event encoded;
    const struct entitlement_event_row row = {event->id, event->event_type, event->extra[EXTRA_TENANT]};
    if (!entitlement_event_encode(event->payload, &row, arena, &encoded, reason))
        return false;
    const struct outbox_message fields = {
        .topic = STR(ENTITLEMENT_TOPIC),
        .key = event->aggregate[0],
        .payload = encoded.message,
        .tenant = row.tenant_id,
        .occurred_at = encoded.occurred_at,
        .traceparent = event->extra[EXTRA_TRACEPARENT],
    };
    outbox_message_write(&fields, event, message, arena);
    return true;
}

void entitlement_publish(void *context, struct outbox_batch *batch)
{
    struct entitlement *entitlement = context;
    FAILPOINT("entitlement.after_claim");
    outbox_messages_publish(kernel_events(entitlement->kernel), batch, write_event, NULL);
    FAILPOINT("entitlement.after_publish");
}
