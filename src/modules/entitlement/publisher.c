/* The outbox's way to the bus: which table, and what is written on each message (E4). */
#include "base/failpoint.h"
#include "base/trace.h"
#include "modules/entitlement/entitlement.h"
#include "modules/entitlement/event.h"
#include "outbox/letters.h"

enum { EXTRA_TENANT, EXTRA_TRACEPARENT };
enum { HEADERS_MAX = 7, TRACE_ID_AT = 3, TRACE_ID_BYTES = 32 }; /* 00-TRACE_ID-… */

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
    .created_at = "created_at",
    .attempts = "attempt_count",
    .claims = "claim_count",
    .claim_id = "claim_id",
    .locked_by = "locked_by",
    .locked_until = "lease_until",
    .locked_at = "locked_at",
    .next_attempt_at = "next_retry_at",
    .last_error = "last_error",
};

static void put_trace(struct bus_message *message, struct bus_header *headers, struct str traceparent)
{
    struct trace trace;
    if (!trace_parse(traceparent, &trace))
        return;
    struct str trace_id = str_of(traceparent.ptr + TRACE_ID_AT, TRACE_ID_BYTES);
    headers[message->header_count++] = (struct bus_header){STR("trace_id"), trace_id};
    headers[message->header_count++] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), traceparent};
}

static bool write_letter(void *context, const struct outbox_event *event, struct bus_message *message,
                         struct arena *arena, const char **reason)
{
    (void)context;
    struct str tenant = event->extra[EXTRA_TENANT], key = event->aggregate[0];
    struct entitlement_event encoded;
    const struct entitlement_event_row row = {event->id, event->event_type, tenant};
    if (!entitlement_event_encode(event->payload, &row, arena, &encoded, reason))
        return false;
    struct bus_header *headers = arena_alloc(arena, HEADERS_MAX * sizeof *headers);
    *message = (struct bus_message){
        .topic = STR(ENTITLEMENT_TOPIC), .key = key, .payload = encoded.message, .headers = headers};
    headers[message->header_count++] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), event->id};
    headers[message->header_count++] = (struct bus_header){STR("event_type"), event->event_type};
    headers[message->header_count++] = (struct bus_header){STR("aggregate_key"), key};
    headers[message->header_count++] = (struct bus_header){STR("occurred_at"), encoded.occurred_at};
    headers[message->header_count++] = (struct bus_header){STR("tenant_id"), tenant};
    put_trace(message, headers, event->extra[EXTRA_TRACEPARENT]);
    return true;
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct entitlement *entitlement = context;
    FAILPOINT("entitlement.after_claim");
    outbox_letters_publish(kernel_events(entitlement->kernel), batch, write_letter, NULL);
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
    struct kernel *kernel = entitlement->kernel;
    return outbox_create(&(struct outbox_config){.table = &entitlement_outbox_table,
                                                 .settings = &entitlement->settings->outbox,
                                                 .loop = kernel_store_loop(kernel),
                                                 .workers = kernel_store_workers(kernel),
                                                 .target = kernel_store_target(kernel),
                                                 .context = entitlement,
                                                 .publish = publish,
                                                 .on_settled = on_settled},
                         &entitlement->outbox, error);
}
