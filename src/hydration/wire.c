/* The wire: the three events on the bus of events, whichever it is (inside.h). Questions are read as fast as they arrive and wait in
 * their owner's queue (questions.c), not on the bus, where those of one tenant would be ahead of all others; questions that a process
 * had in its queue when it died are asked again. Invalid messages are dead-lettered by the shared groups alone, so that each has one
 * dead letter, not one for each process. NATS calls its handlers on the client's thread, which never waits here. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_nats.h"
#include "hydration/inside.h"

enum {
    QUESTIONS_AT_ONCE = 100,
    STORED_AT_ONCE = 200,
    STORE_ATTEMPTS = 5, /* then an event that PostgreSQL refuses is dead-lettered */
    LOG_MS = 1000,
};

struct hydration_wire {
    struct hydration_wire_config config;
    atomic_llong log_at_ns; /* the next line about an invalid message */
    atomic_uint not_logged; /* invalid messages since the last one */
};

/* ---- sending ---- */

/* By one key all events of an entity stay in order within their topic. What a reader would refuse is not sent (H1). */
static enum status send_event(struct hydration_wire *wire, const struct hydration_event *event, bool is_plain,
                              int64_t deadline_ns, struct error *error)
{
    struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX];
    struct hydration_event again;
    struct arena arena;
    struct buf payload;

    arena_init(&arena, HYDRATION_ARENA_BYTES);
    buf_init(&payload);
    unsigned count = hydration_event_put(event, &arena, &payload, headers);
    struct bus_message message = {
        .topic = str_from(hydration_topics[event->kind]),
        .key = arena_printf(&arena, "%.*s/%.*s/%.*s", STR_ARG(event->tenant), STR_ARG(event->entity_type),
                            STR_ARG(event->entity_id)),
        .payload = buf_str(&payload),
        .headers = headers,
        .header_count = count,
    };
    enum status status = hydration_event_read(event->kind, message.payload, message.headers,
                                              message.header_count, &arena, &again, error);
    if (status == STATUS_OK && is_plain)
        status = bus_nats_send(wire->config.bus,
                               &(struct bus_nats_plain){.subject = message.topic,
                                                        .payload = message.payload,
                                                        .headers = message.headers,
                                                        .header_count = message.header_count},
                               error);
    else if (status == STATUS_OK)
        status = bus_publish(wire->config.bus, &message, 1, deadline_ns, error);
    buf_deinit(&payload);
    arena_deinit(&arena);
    return status;
}

enum status hydration_wire_send(struct hydration_wire *wire, const struct hydration_event *event,
                                int64_t deadline_ns, struct error *error)
{
    return send_event(wire, event, wire->config.is_plain, deadline_ns, error);
}

enum status hydration_wire_send_change(struct hydration_wire *wire, const struct hydration_event *event,
                                       int64_t deadline_ns, struct error *error)
{
    return send_event(wire, event, false, deadline_ns, error);
}

/* ---- reading ---- */

static enum hydration_kind kind_of(struct str topic)
{
    enum hydration_kind kind = HYDRATION_EVENT_UNKNOWN;
    while (kind < HYDRATION_EVENT_NOT_FOUND && !str_eq(topic, str_from(hydration_topics[kind])))
        kind++;
    return kind;
}

static enum status read_message(const struct bus_message *message, struct arena *arena,
                                struct hydration_event *event, struct error *error)
{
    return hydration_event_read(kind_of(message->topic), message->payload, message->headers,
                                message->header_count, arena, event, error);
}

static enum status read_plain(enum hydration_kind kind, const struct bus_nats_plain *plain,
                              struct arena *arena, struct hydration_event *event, struct error *error)
{
    if (plain->poison)
        return error_set(error, STATUS_BAD_REQUEST, "%s", plain->poison);
    return hydration_event_read(kind, plain->payload, plain->headers, plain->header_count, arena, event,
                                error);
}

/* At most once a second: a client that sends nothing else must not fill the log. */
static void count_invalid(struct hydration_wire *wire, enum hydration_kind kind, const struct error *error)
{
    long long now_ns = clock_mono_ns(), due_ns = atomic_load(&wire->log_at_ns);
    hydration_count_ignored("malformed");
    if (now_ns < due_ns ||
        !atomic_compare_exchange_strong(&wire->log_at_ns, &due_ns, now_ns + LOG_MS * CLOCK_NS_PER_MS)) {
        atomic_fetch_add(&wire->not_logged, 1);
        return;
    }
    log_warn("hydration_event_malformed", LOG_CSTR("topic", hydration_topics[kind]), LOG_ERROR_FIELDS(error),
             LOG_INT("more", atomic_exchange(&wire->not_logged, 0)));
}

/* ---- questions ---- */

static struct hydration_wire *wire_of(const struct hydration_owner_slot *slot)
{
    return atomic_load(&slot->hydration->wire);
}

/* Every owner reads every question: an invalid one is reported by the owner that it names, or by all if it names none. */
static bool is_reported_by(const struct hydration_owner_slot *slot, struct str payload)
{
    struct json_value body, type;
    bool has_type = json_parse_stored(payload, JSON_DEPTH_LIMIT, &body, NULL) == STATUS_OK &&
                    json_get_string(&body, STR("entity_type"), &type);
    return !has_type || json_str_eq(type.raw, str_from(slot->row.entity_type));
}

static void take_question(struct hydration_owner_slot *slot, const struct hydration_event *question)
{
    if (str_eq(question->entity_type, str_from(slot->row.entity_type)))
        hydration_questions_put(slot->questions, question, NULL);
}

static void on_bus_questions(void *context, struct bus_batch *batch)
{
    struct hydration_owner_slot *slot = context;
    struct hydration_event question;
    struct error error = {0};
    struct arena arena;

    arena_init(&arena, HYDRATION_ARENA_BYTES);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(&batch->messages[i], &arena, &question, &error) == STATUS_OK) {
            take_question(slot, &question);
        } else if (is_reported_by(slot, batch->messages[i].payload)) {
            count_invalid(wire_of(slot), HYDRATION_EVENT_UNKNOWN, &error);
            bus_batch_term(batch, i, "invalid event: %s", error.message);
        }
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

/* By the key, TENANT/TYPE/ID: only the owner of the type wakes up. */
static bool wakes_owner(void *context, const struct bus_message *message)
{
    const struct hydration_owner_slot *slot = context;
    struct str rest = message->key, tenant, type;
    return str_split(&rest, '/', &tenant) && str_split(&rest, '/', &type) &&
           str_eq(type, str_from(slot->row.entity_type));
}

static void on_plain_question(void *context, const struct bus_nats_plain *plain)
{
    struct hydration_owner_slot *slot = context;
    struct hydration_event question;
    struct error error = {0};
    struct arena arena;

    arena_init(&arena, HYDRATION_ARENA_BYTES);
    if (read_plain(HYDRATION_EVENT_UNKNOWN, plain, &arena, &question, &error) == STATUS_OK)
        take_question(slot, &question);
    else if (is_reported_by(slot, plain->payload))
        count_invalid(wire_of(slot), HYDRATION_EVENT_UNKNOWN, &error);
    arena_deinit(&arena);
}

static enum status subscribe_owner(struct hydration_wire *wire, struct hydration_owner_slot *slot,
                                   struct error *error)
{
    const char *topic = hydration_topics[HYDRATION_EVENT_UNKNOWN];
    if (wire->config.is_plain)
        return bus_nats_listen(wire->config.bus, topic, slot->row.entity_type, on_plain_question, slot,
                               error);
    return bus_subscribe(wire->config.bus,
                         &(struct bus_subscription){
                             .topic = topic,
                             .group = slot->group,
                             .mode = BUS_SHARED,
                             .from = BUS_FROM_NOW, /* lookups from before this owner have ended */
                             .batch_max = QUESTIONS_AT_ONCE,
                             .wakes = wakes_owner,
                             .relaxed = true, /* as the question is: both are lost, or neither */
                             .parallel = HYDRATION_PARALLEL,
                             .context = slot,
                             .handler = on_bus_questions,
                         },
                         error);
}

/* ---- answers and changes, in every process ---- */

static void on_bus_events(void *context, struct bus_batch *batch)
{
    struct hydration_wire *wire = context;
    struct hydration_event event;
    struct error error;
    struct arena arena;

    arena_init(&arena, HYDRATION_ARENA_BYTES);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(&batch->messages[i], &arena, &event, &error) == STATUS_OK)
            wire->config.on_event(wire->config.context, &event);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static void on_plain_event(struct hydration_wire *wire, enum hydration_kind kind,
                           const struct bus_nats_plain *plain)
{
    struct hydration_event event;
    struct error error;
    struct arena arena;

    arena_init(&arena, HYDRATION_ARENA_BYTES);
    if (read_plain(kind, plain, &arena, &event, &error) == STATUS_OK)
        wire->config.on_event(wire->config.context, &event);
    arena_deinit(&arena);
}

static void on_plain_updated(void *context, const struct bus_nats_plain *plain)
{
    on_plain_event(context, HYDRATION_EVENT_UPDATED, plain);
}

static void on_plain_not_found(void *context, const struct bus_nats_plain *plain)
{
    on_plain_event(context, HYDRATION_EVENT_NOT_FOUND, plain);
}

/* ---- answers and changes, in one process of all ---- */

static void on_stored_events(void *context, struct bus_batch *batch)
{
    struct hydration_wire *wire = context;
    struct error error = {0};
    struct arena arena;
    size_t count = 0;

    arena_init(&arena, HYDRATION_ARENA_BYTES);
    struct hydration_event *events = arena_alloc(&arena, batch->count * sizeof events[0]);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(&batch->messages[i], &arena, &events[count], &error) == STATUS_OK) {
            count++;
            continue;
        }
        count_invalid(wire, kind_of(batch->messages[i].topic), &error);
        bus_batch_term(batch, i, "invalid event: %s", error.message);
    }
    FAILPOINT("hydration.before_store");
    enum status status = count ? wire->config.on_store(wire->config.context, events, count, batch->conn,
                                                       batch->deadline_ns, &error)
                               : STATUS_OK;
    /* The bus finds a lost connection itself, and reads the batch again as it was. */
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
    arena_deinit(&arena);
}

static enum status subscribe_events(struct hydration_wire *wire, enum hydration_kind kind,
                                    struct error *error)
{
    const struct hydration_wire_config *config = &wire->config;
    enum status status = STATUS_OK;
    if (config->on_event && config->is_plain)
        status = bus_nats_listen(config->bus, hydration_topics[kind], NULL,
                                 kind == HYDRATION_EVENT_UPDATED ? on_plain_updated : on_plain_not_found,
                                 wire, error);
    else if (config->on_event)
        status = bus_subscribe(config->bus,
                               &(struct bus_subscription){
                                   .topic = hydration_topics[kind],
                                   .group = "hydration-heard",
                                   .mode = BUS_EVERY,
                                   .from = BUS_FROM_NOW, /* no lookup waits for earlier ones */
                                   .context = wire,
                                   .handler = on_bus_events,
                               },
                               error);
    if (status == STATUS_OK && config->on_store)
        status = bus_subscribe(config->bus,
                               &(struct bus_subscription){
                                   .topic = hydration_topics[kind],
                                   .group = "hydration",
                                   .mode = BUS_SHARED,
                                   .from = BUS_FROM_START,
                                   .batch_max = STORED_AT_ONCE,
                                   .relaxed = true,
                                   .parallel = HYDRATION_PARALLEL,
                                   .attempts_max = STORE_ATTEMPTS,
                                   .context = wire,
                                   .handler = on_stored_events,
                               },
                               error);
    return status;
}

/* ---- life ---- */

enum status hydration_wire_open(const struct hydration_wire_config *config, struct hydration_wire **out,
                                struct error *error)
{
    struct hydration_wire *wire = memory_zalloc(sizeof *wire);
    struct hydration *hydration = config->hydration;
    enum status status = STATUS_OK;

    wire->config = *config;
    for (size_t i = 0; i < hydration->owner_count && status == STATUS_OK; i++)
        status = subscribe_owner(wire, &hydration->owners[i], error);
    if (status == STATUS_OK)
        status = subscribe_events(wire, HYDRATION_EVENT_UPDATED, error);
    if (status == STATUS_OK)
        status = subscribe_events(wire, HYDRATION_EVENT_NOT_FOUND, error);
    if (status != STATUS_OK) {
        free(wire);
        return status;
    }
    *out = wire;
    return STATUS_OK;
}

void hydration_wire_destroy(struct hydration_wire *wire)
{
    free(wire);
}
