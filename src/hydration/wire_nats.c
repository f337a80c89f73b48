/* Hydration's events on plain subjects of NATS. The client's thread never waits: answers go on at once, questions into the queue
 * of their type (lanes.c). */
#include "bus/bus_nats.h"
#include "hydration/inside.h"
#include "hydration/wire_inside.h"

/* ---- reading ---- */

static enum status read_plain(enum hydration_kind kind, const struct bus_nats_plain *plain,
                              struct arena *arena, struct hydration_event *event, struct error *error)
{
    if (plain->poison)
        return error_set(error, STATUS_BAD_REQUEST, "%s", plain->poison);
    return hydration_event_read(kind, plain->payload, plain->headers, plain->header_count, arena, event,
                                error);
}

/* ---- questions, on the client's thread ---- */

static void on_question(void *context, const struct bus_nats_plain *plain)
{
    struct wire_source *source = context;
    struct hydration_event question;
    struct error error = {0};
    struct arena arena;
    arena_init(&arena, WIRE_ARENA_BYTES);
    enum status status = read_plain(HYDRATION_EVENT_UNKNOWN, plain, &arena, &question, &error);
    if (status == STATUS_OK && str_eq(question.entity_type, str_from(source->entity_type)))
        hydration_lanes_put(source, &question);
    else if (status != STATUS_OK && hydration_wire_is_blamed(source, plain->payload))
        hydration_wire_complain(source->wire, hydration_topics[HYDRATION_EVENT_UNKNOWN], &error);
    arena_deinit(&arena);
}

enum status hydration_wire_nats_questions(struct wire_source *source, struct error *error)
{
    struct hydration_wire *wire = source->wire;
    return bus_nats_listen(wire->config.bus, hydration_topics[HYDRATION_EVENT_UNKNOWN], source->entity_type,
                           on_question, source, error);
}

/* ---- answers, on the client's thread; what is no event is buried by whoever settles it ---- */

static void hear(struct hydration_wire *wire, enum hydration_kind kind, const struct bus_nats_plain *plain)
{
    struct hydration_event event;
    struct error error;
    struct arena arena;
    arena_init(&arena, WIRE_ARENA_BYTES);
    if (read_plain(kind, plain, &arena, &event, &error) == STATUS_OK)
        wire->config.on_heard(wire->config.context, &event);
    arena_deinit(&arena);
}

static void on_updated(void *context, const struct bus_nats_plain *plain)
{
    hear(context, HYDRATION_EVENT_UPDATED, plain);
}

static void on_not_found(void *context, const struct bus_nats_plain *plain)
{
    hear(context, HYDRATION_EVENT_NOT_FOUND, plain);
}

enum status hydration_wire_nats_answers(struct hydration_wire *wire, enum hydration_kind kind,
                                        struct error *error)
{
    return bus_nats_listen(wire->config.bus, hydration_topics[kind], NULL,
                           kind == HYDRATION_EVENT_UPDATED ? on_updated : on_not_found, wire, error);
}

enum status hydration_wire_nats_send(struct hydration_wire *wire, const struct bus_message *message,
                                     struct error *error)
{
    return bus_nats_send(wire->config.bus,
                         &(struct bus_nats_plain){.subject = message->topic,
                                                  .payload = message->payload,
                                                  .headers = message->headers,
                                                  .header_count = message->header_count},
                         error);
}
