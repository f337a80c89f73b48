/* The relay (R12): tells everybody, by the invalidations topic, what apply has committed. An outbox engine
 * over refdata.outbox_event where this process has the role; else the bell that wakes one elsewhere. Any
 * number of relays may run side by side. */
#include "modules/refdata/relay/relay.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/flow.h"

enum { STOP_GRACE_MS = 1500, HEADERS = 2, PAYLOAD_DEPTH_MAX = 4 };

enum { EXTRA_EVENT_ID, EXTRA_TRACEPARENT };

const struct outbox_table refdata_outbox_table = {
    .module = "refdata",
    .name = "refdata.outbox_event",
    .id = {"id", "bigint"},
    .aggregate = {{"tenant_id", "text"}, {"dict_code", "text"}},
    .sequence = "id",
    .event_type = "'invalidation'",
    .payload = "e.payload",
    .logged = {{"eventId", "e.event_id", false},
               {"tenantId", "e.tenant_id", false},
               {"dictCode", "e.dict_code", false},
               {"version", "e.version", .is_number = true}},
    .extra = {[EXTRA_EVENT_ID] = "e.event_id", [EXTRA_TRACEPARENT] = "e.traceparent"},
    .published = "published",
    .failed_at = "failed_at",
    .published_at = "published_at",
    .created_at = "created_at",
    .attempts = "attempt_count",
    .claims = "claim_count",
    .claim_id = "claim_id",
    .locked_by = "locked_by",
    .locked_until = "locked_until",
    .next_attempt_at = "next_attempt_at",
    .last_error = "last_error",
};

struct refdata_relay {
    struct refdata_flow *flow;
    struct outbox *engine; /* one of the two */
    struct outbox_bell *bell;
};

/* ---- publishing, on a worker ---- */

/* Seed §8.2: all five, or receivers could do nothing with it. */
static bool is_invalidation(struct str payload)
{
    static const char *const texts[] = {"eventId", "tenantId", "dictCode", "committedAt"};
    struct json_value body, member;
    struct error error;
    if (json_parse(payload, PAYLOAD_DEPTH_MAX, &body, &error) != STATUS_OK || body.type != JSON_OBJECT)
        return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!json_get(&body, str_from(texts[i]), &member) || member.type != JSON_STRING)
            return false;
    return json_get(&body, STR("version"), &member) && member.type == JSON_NUMBER;
}

static void make_message(const struct outbox_event *event, struct bus_message *message, struct arena *arena)
{
    struct bus_header *headers = arena_alloc(arena, HEADERS * sizeof *headers);
    headers[0] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), event->extra[EXTRA_EVENT_ID]};
    headers[1] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), event->extra[EXTRA_TRACEPARENT]};
    *message = (struct bus_message){
        .topic = STR(REFDATA_INVALIDATIONS),
        .key = arena_printf(arena, "%.*s:%.*s", STR_ARG(event->aggregate[0]), STR_ARG(event->aggregate[1])),
        .payload = event->payload,
        .headers = headers,
        .header_count = headers[1].value.len ? 2 : 1,
    };
}

/* An outage is no event's fault, so it counts as no attempt of one: however long the bus is gone, none ends FAILED
 * for it. What the bus refuses it will always refuse. */
static void judge(struct outbox_batch *batch, size_t at, const struct error *error)
{
    switch (error->status) {
    case STATUS_OK: break;
    case STATUS_DB_DOWN:
    case STATUS_DB_RETRY:
    case STATUS_TIMEOUT:
    case STATUS_CANCELLED: outbox_batch_leave(batch, at); break;
    case STATUS_BAD_REQUEST:
    case STATUS_PAYLOAD_TOO_LARGE: outbox_batch_poison(batch, at, "%s", error->message); break;
    default: outbox_batch_retry(batch, at, "%s", error->message);
    }
}

/* Messages and the events they were made of. */
struct letters {
    struct bus_message *messages;
    size_t *places, count;
};

static struct letters write_letters(struct outbox_batch *batch, struct arena *arena)
{
    struct letters letters = {
        .messages = arena_alloc(arena, batch->count * sizeof *letters.messages),
        .places = arena_alloc(arena, batch->count * sizeof *letters.places),
    };
    for (size_t i = 0; i < batch->count; i++) {
        if (!is_invalidation(batch->events[i].payload)) {
            outbox_batch_poison(batch, i, "the payload is no invalidation");
            continue;
        }
        make_message(&batch->events[i], &letters.messages[letters.count], arena);
        letters.places[letters.count++] = i;
    }
    return letters;
}

/* All in one commit of the bus; where that fails, one by one, so that each one's failure is its own. */
static void publish_letters(struct refdata_relay *relay, struct outbox_batch *batch,
                            const struct letters *letters)
{
    struct bus *bus = relay->flow->buses.invalidations;
    struct error error = {0};
    if (letters->count == 0 ||
        bus_publish(bus, letters->messages, letters->count, batch->deadline_ns, &error) == STATUS_OK)
        return;
    for (size_t i = 0; i < letters->count; i++) {
        size_t at = letters->places[i];
        if (outbox_batch_is_held(batch, at))
            continue;
        error = (struct error){0};
        error.status = bus_publish(bus, &letters->messages[i], 1, batch->deadline_ns, &error);
        judge(batch, at, &error);
    }
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct arena arena;
    FAILPOINT("relay.after_claim");
    arena_init(&arena, 16384);
    struct letters letters = write_letters(batch, &arena);
    publish_letters(context, batch, &letters);
    arena_deinit(&arena);
    FAILPOINT("relay.after_publish");
}

static void on_settled(void *context, size_t count)
{
    (void)context;
    (void)count;
    FAILPOINT("relay.after_finalize");
}

/* ---- life ---- */

static struct outbox *make_engine(struct refdata_relay *relay)
{
    struct refdata_flow *flow = relay->flow;
    const struct refdata_catalog *catalog = flow->catalog;
    struct outbox *engine;
    struct error error = {0};
    enum status status = outbox_create(&(struct outbox_config){.table = &refdata_outbox_table,
                                                               .settings = &catalog->outbox,
                                                               .loop = flow->refdata->home,
                                                               .workers = flow->workers,
                                                               .target = &flow->database->target,
                                                               .context = relay,
                                                               .publish = publish,
                                                               .on_settled = on_settled},
                                       &engine, &error);
    if (status != STATUS_OK) /* its target was understood before: cannot happen */
        log_error("relay_not_started", LOG_STR("database", flow->database->name), LOG_ERROR_FIELDS(&error));
    return engine;
}

struct refdata_relay *refdata_relay_create(struct refdata_flow *flow)
{
    struct refdata_relay *relay = memory_zalloc(sizeof *relay);
    relay->flow = flow;
    if (refdata_has_role(flow->refdata, "relay"))
        relay->engine = make_engine(relay);
    else
        relay->bell = outbox_bell_create(&refdata_outbox_table, flow->refdata->home, &flow->database->target);
    return relay;
}

void refdata_relay_start(struct refdata_relay *relay)
{
    if (relay->engine)
        outbox_start(relay->engine);
}

void refdata_relay_wake(struct refdata_relay *relay)
{
    log_debug("outbox_event_enqueued", LOG_CSTR("module", refdata_outbox_table.module));
    if (relay->engine)
        outbox_wake(relay->engine);
    else if (relay->bell)
        outbox_bell_ring(relay->bell);
}

void refdata_relay_stop(struct refdata_relay *relay)
{
    if (relay->engine)
        outbox_stop(relay->engine, STOP_GRACE_MS);
}

void refdata_relay_destroy(struct refdata_relay *relay)
{
    outbox_destroy(relay->engine);
    outbox_bell_destroy(relay->bell);
    free(relay);
}
