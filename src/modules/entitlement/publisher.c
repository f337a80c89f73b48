/* The outbox's way to the bus: which table, and what is written on each message (E4). */
#include "base/failpoint.h"
#include "modules/entitlement/entitlement.h"
#include "modules/entitlement/event.h"
#include "outbox/messages.h"

enum { EXTRA_TENANT, EXTRA_TRACEPARENT };

const struct outbox_table entitlement_outbox_table = {
    .module = "entitlement",
    .name = "entitlement.outbox_events",
    .id = {"event_id", "uuid"},
    .aggregate = {{"aggregate_key", "text"}},
    .sequence = "sequence",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .extra = {[EXTRA_TENANT] = "e.tenant_id", [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false},
               {"tenantId", "e.tenant_id", false},
               {"version", "e.sequence", .is_number = true}},
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

static bool write_letter(void *context, const struct outbox_event *event, struct bus_message *message,
                         struct arena *arena, const char **reason)
{
    (void)context;
    struct entitlement_event encoded;
    const struct entitlement_event_row row = {event->id, event->event_type, event->extra[EXTRA_TENANT]};
    if (!entitlement_event_encode(event->payload, &row, arena, &encoded, reason))
        return false;
    const struct outbox_message letter = {
        .topic = STR(ENTITLEMENT_TOPIC),
        .key = event->aggregate[0],
        .payload = encoded.message,
        .tenant = row.tenant_id,
        .occurred_at = encoded.occurred_at,
        .traceparent = event->extra[EXTRA_TRACEPARENT],
    };
    outbox_message_write(&letter, event, message, arena);
    return true;
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct entitlement *entitlement = context;
    FAILPOINT("entitlement.after_claim");
    outbox_messages_publish(kernel_events(entitlement->kernel), batch, write_letter, NULL);
    FAILPOINT("entitlement.after_publish");
}

static void on_settled(void *context, size_t count)
{
    (void)context;
    (void)count;
    FAILPOINT("entitlement.after_finalize");
}

enum status entitlement_publisher_create(struct entitlement *entitlement, struct error *error)
{
    return kernel_outbox_create(entitlement->kernel,
                                &(struct outbox_config){.table = &entitlement_outbox_table,
                                                        .settings = &entitlement->settings->outbox,
                                                        .context = entitlement,
                                                        .publish = publish,
                                                        .on_settled = on_settled},
                                &entitlement->outbox, error);
}
