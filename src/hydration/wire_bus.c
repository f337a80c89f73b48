/* Hydration's events as topics of the bus. Questions are read as fast as they come and wait in the queue of their type
 * (lanes.c), not on the bus, where one tenant's would stand before all others'; those that a process had in its queue when it died
 * are asked again. Who only listens buries nothing: the shared groups do, so that what is no
 * event has one letter, not one for each process. */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/memory.h"
#include "hydration/wire_inside.h"

enum {
    QUESTIONS_AT_ONCE = 100,
    SETTLED_AT_ONCE = 200,
    SETTLE_ATTEMPTS = 5, /* what PostgreSQL refuses every time is a letter then */
};

static enum status read_message(enum hydration_kind kind, const struct bus_message *message,
                                struct arena *arena, struct hydration_event *event, struct error *error)
{
    return hydration_event_read(kind, message->payload, message->headers, message->header_count, arena, event,
                                error);
}

/* ---- questions ---- */

static void refuse_question(struct wire_source *source, struct bus_batch *batch, size_t at,
                            const struct error *error)
{
    if (!hydration_wire_is_blamed(source, batch->messages[at].payload))
        return;
    hydration_wire_complain(source->wire, hydration_topics[HYDRATION_EVENT_UNKNOWN], error);
    bus_batch_term(batch, at, "no event: %s", error->message);
}

static void on_questions(void *context, struct bus_batch *batch)
{
    struct wire_source *source = context;
    struct hydration_event question;
    struct error error = {0};
    struct arena arena;
    arena_init(&arena, WIRE_ARENA_BYTES);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(HYDRATION_EVENT_UNKNOWN, &batch->messages[i], &arena, &question, &error) !=
            STATUS_OK)
            refuse_question(source, batch, i, &error);
        else if (str_eq(question.entity_type, str_from(source->entity_type)))
            hydration_lanes_put(source, &question);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

/* By the key, TENANT/TYPE/ID: of all the sources here one alone goes to look. */
static bool is_for(void *context, const struct bus_message *message)
{
    const struct wire_source *source = context;
    struct str rest = message->key, tenant, type;
    return str_split(&rest, '/', &tenant) && str_split(&rest, '/', &type) &&
           str_eq(type, str_from(source->entity_type));
}

enum status hydration_wire_bus_questions(struct wire_source *source, struct error *error)
{
    return bus_subscribe(source->wire->config.bus,
                         &(struct bus_subscription){
                             .topic = hydration_topics[HYDRATION_EVENT_UNKNOWN],
                             .group = source->group,
                             .mode = BUS_SHARED,
                             .from = BUS_FROM_NOW, /* who asked before there was a source has given up */
                             .batch_max = QUESTIONS_AT_ONCE,
                             .wakes = is_for,
                             .relaxed = true, /* as the question is: both are lost, or neither */
                             .parallel = WIRE_PARALLEL,
                             .context = source,
                             .handler = on_questions,
                         },
                         error);
}

/* ---- answers, to every process ---- */

static void hear(struct hydration_wire *wire, enum hydration_kind kind, const struct bus_batch *batch)
{
    struct hydration_event event;
    struct error error;
    struct arena arena;
    arena_init(&arena, WIRE_ARENA_BYTES);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(kind, &batch->messages[i], &arena, &event, &error) == STATUS_OK)
            wire->config.on_heard(wire->config.context, &event);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static void on_updated(void *context, struct bus_batch *batch)
{
    hear(context, HYDRATION_EVENT_UPDATED, batch);
}

static void on_not_found(void *context, struct bus_batch *batch)
{
    hear(context, HYDRATION_EVENT_NOT_FOUND, batch);
}

enum status hydration_wire_bus_answers(struct hydration_wire *wire, enum hydration_kind kind,
                                       struct error *error)
{
    return bus_subscribe(wire->config.bus,
                         &(struct bus_subscription){
                             .topic = hydration_topics[kind],
                             .group = "hydration-heard",
                             .mode = BUS_EVERY,
                             .from = BUS_FROM_NOW, /* nobody here waits for what was before */
                             .context = wire,
                             .handler = kind == HYDRATION_EVENT_UPDATED ? on_updated : on_not_found,
                         },
                         error);
}

/* ---- answers, to one process of all ---- */

static size_t read_settled(struct hydration_wire *wire, enum hydration_kind kind, struct bus_batch *batch,
                           struct arena *arena, struct hydration_event *events)
{
    struct error error = {0};
    size_t count = 0;
    for (size_t i = 0; i < batch->count; i++) {
        if (read_message(kind, &batch->messages[i], arena, &events[count], &error) == STATUS_OK) {
            count++;
            continue;
        }
        hydration_wire_complain(wire, hydration_topics[kind], &error);
        bus_batch_term(batch, i, "no event: %s", error.message);
    }
    return count;
}

static void settle(struct hydration_wire *wire, enum hydration_kind kind, struct bus_batch *batch)
{
    struct hydration_event *events;
    struct error error = {0};
    struct arena arena;
    arena_init(&arena, WIRE_ARENA_BYTES);
    events = arena_alloc(&arena, batch->count * sizeof events[0]);
    size_t count = read_settled(wire, kind, batch, &arena, events);
    FAILPOINT("hydration.before_settle");
    enum status status = count ? wire->config.on_settle(wire->config.context, events, count, batch->conn,
                                                        batch->deadline_ns, &error)
                               : STATUS_OK;
    /* A lost connection is the bus's to find: it takes the batch up again as it was. */
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
    arena_deinit(&arena);
}

static void on_settle_updated(void *context, struct bus_batch *batch)
{
    settle(context, HYDRATION_EVENT_UPDATED, batch);
}

static void on_settle_not_found(void *context, struct bus_batch *batch)
{
    settle(context, HYDRATION_EVENT_NOT_FOUND, batch);
}

enum status hydration_wire_bus_settled(struct hydration_wire *wire, enum hydration_kind kind,
                                       struct error *error)
{
    return bus_subscribe(
        wire->config.bus,
        &(struct bus_subscription){
            .topic = hydration_topics[kind],
            .group = "hydration",
            .mode = BUS_SHARED,
            .from = BUS_FROM_START,
            .batch_max = SETTLED_AT_ONCE,
            .relaxed = true,
            .parallel = WIRE_PARALLEL,
            .attempts_max = SETTLE_ATTEMPTS,
            .context = wire,
            .handler = kind == HYDRATION_EVENT_UPDATED ? on_settle_updated : on_settle_not_found,
        },
        error);
}
