/* The wire: the three events on the bus of events.
 *
 * PostgreSQL: three topics. A question goes to one process of the owner's group (entity-TYPE), an answer to every process that
 * asks, and also to one process of the group `hydration`, which stores it in the ledger, in the transaction of the bus.
 * NATS: questions and answers are plain messages on the events' subjects, so that a module outside needs nothing but a NATS client;
 * a question goes to one member of the owner's queue group. entity.updated and entity.not-found are subjects of NATS streams too:
 * what the ledger stores, and changes, are not lost while no process reads. The NATS client calls the handlers on its own
 * thread; they never wait.
 *
 * Questions are read as fast as they arrive and wait in their owner's queue (owner.c), not on the bus, where those of one tenant
 * would be ahead of all others; questions that a process had in its queue when it died are asked again. Invalid messages are
 * dead-lettered by the shared groups alone, so that each has one dead letter, not one for each process. */
#include "base/failpoint.h"
#include "base/log.h"
#include "bus/bus_nats.h"
#include "hydration/inside.h"

enum {
    QUESTIONS_AT_ONCE = 100,
    STORED_AT_ONCE = 200,
    STORE_ATTEMPTS = 5, /* then an event that PostgreSQL refuses is dead-lettered */
};

/* ---- sending ---- */

/* All events of an entity have the same key, so they stay in order within their topic. An event that a reader would refuse is not sent (H1). */
enum status hydration_wire_send(struct hydration *hydration, const struct hydration_event *events,
                                size_t count, int64_t deadline_ns, struct error *error)
{
    struct bus *bus = atomic_load(&hydration->bus);
    struct hydration_event again;
    enum status status = STATUS_OK;
    struct arena arena = ARENA(HYDRATION_ARENA_BYTES);
    struct buf payload = {0};
    bool is_change = false;

    struct bus_message *messages = arena_zalloc(&arena, (count + 1) * sizeof *messages);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        const struct hydration_event *event = &events[i];
        struct bus_header *headers = arena_alloc(&arena, HYDRATION_EVENT_HEADERS_MAX * sizeof *headers);
        buf_clear(&payload);
        unsigned header_count = hydration_event_put(event, &arena, &payload, headers);
        messages[i] = (struct bus_message){
            .topic = str_from(hydration_topics[event->kind]),
            .key = arena_printf(&arena, "%.*s/%.*s/%.*s", STR_ARG(event->tenant), STR_ARG(event->entity_type),
                                STR_ARG(event->entity_id)),
            .payload = arena_str(&arena, buf_str(&payload)),
            .headers = headers,
            .header_count = header_count,
        };
        is_change = event->kind != HYDRATION_EVENT_UNKNOWN && !event->correlation_id.len;
        status = hydration_event_read(event->kind, messages[i].payload, headers, header_count, &arena, &again,
                                      error);
    }
    bool is_plain = hydration->config.is_plain && !is_change;
    for (size_t i = 0; i < count && is_plain && status == STATUS_OK; i++)
        status = bus_nats_send(bus, &messages[i], error);
    if (!is_plain && count > 0 && status == STATUS_OK)
        status = bus_publish(bus, messages, count, deadline_ns, error);
    buf_deinit(&payload);
    arena_deinit(&arena);
    return status;
}

/* ---- reading ---- */

static enum status read_message(const struct bus_message *message, struct arena *arena,
                                struct hydration_event *event, struct error *error)
{
    enum hydration_kind kind = HYDRATION_EVENT_UNKNOWN;
    if (message->poison)
        return error_set(error, STATUS_BAD_REQUEST, "%s", message->poison);
    while (kind < HYDRATION_EVENT_NOT_FOUND && !str_eq(message->topic, str_from(hydration_topics[kind])))
        kind++;
    return hydration_event_read(kind, message->payload, message->headers, message->header_count, arena, event,
                                error);
}

static void count_invalid(struct hydration *hydration, struct str topic, const struct error *error)
{
    hydration_count_ignored("malformed");
    if (hydration_may_log(&hydration->invalid_logged_ns))
        log_warn("hydration_event_malformed", LOG_STR("topic", topic), LOG_ERROR_FIELDS(error),
                 LOG_INT("more", atomic_exchange(&hydration->invalid_not_logged, 0)));
    else
        atomic_fetch_add(&hydration->invalid_not_logged, 1);
}

/* ---- questions ---- */

/* False: it is invalid, and this owner has to report it. Every owner reads every question: an invalid one is reported by the owner of
 * its type, or by all owners if it has no type. */
static bool take_question(struct hydration_owner_slot *slot, const struct bus_message *message,
                          struct arena *arena, struct error *error)
{
    struct str own_type = str_from(slot->row.entity_type);
    struct hydration_event question;
    struct json_value body, type;

    if (read_message(message, arena, &question, error) == STATUS_OK) {
        if (str_eq(question.entity_type, own_type))
            hydration_owner_ask(slot, &question, NULL);
        return true;
    }
    if (json_parse_stored(message->payload, JSON_DEPTH_LIMIT, &body, NULL) == STATUS_OK &&
        json_get_string(&body, STR("entity_type"), &type) && !json_str_eq(type.raw, own_type))
        return true;
    count_invalid(slot->hydration, message->topic, error);
    return false;
}

static void on_bus_questions(void *context, struct bus_batch *batch)
{
    struct error error = {0};
    struct arena arena = ARENA(HYDRATION_ARENA_BYTES);

    for (size_t i = 0; i < batch->count; i++) {
        if (!take_question(context, &batch->messages[i], &arena, &error))
            bus_batch_term(batch, i, "invalid event: %s", error.message);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static void on_plain_question(void *context, const struct bus_message *message)
{
    struct bus_verdict ignored_verdict = {0};
    on_bus_questions(context,
                     &(struct bus_batch){.messages = message, .count = 1, .verdicts = &ignored_verdict});
}

/* By the key, TENANT/TYPE/ID: only the owner of the type wakes up. */
static bool wakes_owner(void *context, const struct bus_message *message)
{
    const struct hydration_owner_slot *slot = context;
    struct str rest = message->key, tenant, type;
    return str_split(&rest, '/', &tenant) && str_split(&rest, '/', &type) &&
           str_eq(type, str_from(slot->row.entity_type));
}

/* ---- answers and changes, in every process ---- */

static void on_bus_events(void *context, struct bus_batch *batch)
{
    struct hydration *hydration = context;
    struct hydration_event event;
    struct error error;
    struct arena arena = ARENA(HYDRATION_ARENA_BYTES);

    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(&batch->messages[i], &arena, &event, &error) == STATUS_OK &&
            !atomic_load(&hydration->stopping))
            hydration_post(hydration, NULL, &event);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static void on_plain_event(void *context, const struct bus_message *message)
{
    on_bus_events(context, &(struct bus_batch){.messages = message, .count = 1});
}

/* ---- answers and changes, stored by one process of the group ---- */

static void on_stored_events(void *context, struct bus_batch *batch)
{
    struct error error = {0};
    struct arena arena = ARENA(HYDRATION_ARENA_BYTES);
    size_t count = 0;

    struct hydration_event *events = arena_alloc(&arena, batch->count * sizeof events[0]);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(&batch->messages[i], &arena, &events[count], &error) == STATUS_OK) {
            count++;
            continue;
        }
        count_invalid(context, batch->messages[i].topic, &error);
        bus_batch_term(batch, i, "invalid event: %s", error.message);
    }
    FAILPOINT("hydration.before_store");
    enum status status =
        count ? hydration_ledger_store(batch->conn, events, count, batch->deadline_ns, &error) : STATUS_OK;
    /* The bus notices a lost connection itself, and delivers the batch again. */
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
    arena_deinit(&arena);
}

/* ---- subscribing ---- */

/* BUS_FROM_NOW is enough: lookups that began before this owner started have ended. */
static enum status subscribe_owner(struct hydration_owner_slot *slot, struct bus *bus, struct error *error)
{
    const char *topic = hydration_topics[HYDRATION_EVENT_UNKNOWN];
    if (slot->hydration->config.is_plain)
        return bus_nats_listen(bus, topic, slot->row.entity_type, on_plain_question, slot, error);
    return bus_subscribe(bus,
                         &(struct bus_subscription){
                             .topic = topic,
                             .group = slot->group,
                             .mode = BUS_SHARED,
                             .from = BUS_FROM_NOW,
                             .batch_max = QUESTIONS_AT_ONCE,
                             .wakes = wakes_owner,
                             .relaxed = true, /* as the question is: both are lost, or neither */
                             .parallel = HYDRATION_PARALLEL,
                             .context = slot,
                             .handler = on_bus_questions,
                         },
                         error);
}

static enum status subscribe_events(struct hydration *hydration, struct bus *bus, const char *topic,
                                    struct error *error)
{
    const struct bus_subscription every = {
        .topic = topic,
        .group = "hydration-received",
        .mode = BUS_EVERY,
        .from = BUS_FROM_NOW, /* no lookup waits for earlier ones */
        .context = hydration,
        .handler = on_bus_events,
    };
    const struct bus_subscription stored = {
        .topic = topic,
        .group = "hydration",
        .mode = BUS_SHARED,
        .from = BUS_FROM_START,
        .batch_max = STORED_AT_ONCE,
        .relaxed = true,
        .parallel = HYDRATION_PARALLEL,
        .attempts_max = STORE_ATTEMPTS,
        .context = hydration,
        .handler = on_stored_events,
    };
    enum status status = hydration->config.is_plain
                             ? bus_nats_listen(bus, topic, NULL, on_plain_event, hydration, error)
                             : bus_subscribe(bus, &every, error);
    return status == STATUS_OK ? bus_subscribe(bus, &stored, error) : status;
}

enum status hydration_wire_subscribe(struct hydration *hydration, struct bus *events, bool consumes,
                                     struct error *error)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < hydration->owner_count && status == STATUS_OK; i++)
        status = subscribe_owner(&hydration->owners[i], events, error);
    for (int kind = HYDRATION_EVENT_UPDATED; kind < HYDRATION_KINDS && consumes && status == STATUS_OK;
         kind++)
        status = subscribe_events(hydration, events, hydration_topics[kind], error);
    return status;
}
