/* The wire: which way an event goes on the bus of events at hand. */
#include "hydration/wire.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"
#include "hydration/wire_inside.h"

#define COMPLAINT_MS 1000

/* ---- on the way out ---- */

/* By one key all events of an entity stay in order within their topic. */
static enum status send_message(struct hydration_wire *wire, const struct hydration_event *event,
                                struct bus_message *message, bool is_plain, struct arena *arena,
                                int64_t deadline_ns, struct error *error)
{
    struct hydration_event again;
    message->topic = str_from(hydration_topics[event->kind]);
    message->key = arena_printf(arena, "%.*s/%.*s/%.*s", STR_ARG(event->tenant), STR_ARG(event->entity_type),
                                STR_ARG(event->entity_id));
    /* Both sides validate (H1): what nobody could read is not sent. */
    enum status status = hydration_event_read(event->kind, message->payload, message->headers,
                                              message->header_count, arena, &again, error);
    if (status != STATUS_OK)
        return status;
    return is_plain ? hydration_wire_nats_send(wire, message, error)
                    : bus_publish(wire->config.bus, message, 1, deadline_ns, error);
}

static enum status send(struct hydration_wire *wire, const struct hydration_event *event, bool is_plain,
                        int64_t deadline_ns, struct error *error)
{
    struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX];
    struct arena arena;
    struct buf payload;
    arena_init(&arena, WIRE_ARENA_BYTES);
    buf_init(&payload);
    unsigned count = hydration_event_put(event, &arena, &payload, headers);
    struct bus_message message = {.payload = buf_str(&payload), .headers = headers, .header_count = count};
    enum status status = send_message(wire, event, &message, is_plain, &arena, deadline_ns, error);
    buf_deinit(&payload);
    arena_deinit(&arena);
    return status;
}

enum status hydration_wire_ask(struct hydration_wire *wire, const struct hydration_event *question,
                               int64_t deadline_ns, struct error *error)
{
    return send(wire, question, wire->config.is_plain, deadline_ns, error);
}

enum status hydration_wire_tell(struct hydration_wire *wire, const struct hydration_event *event,
                                int64_t deadline_ns, struct error *error)
{
    return send(wire, event, false, deadline_ns, error);
}

/* ---- questions and their answers ---- */

enum status hydration_reply_send(struct hydration_reply *reply, const struct hydration_event *answer,
                                 struct error *error)
{
    struct hydration_wire *wire = reply->wire;
    return send(wire, answer, wire->config.is_plain, reply->deadline_ns, error);
}

void hydration_wire_answer(struct wire_source *source, const struct hydration_event *question,
                           int64_t deadline_ns, struct hydration_reply *reply)
{
    struct hydration_wire *wire = source->wire;
    *reply = (struct hydration_reply){.wire = wire, .deadline_ns = deadline_ns};
    wire->config.on_question(wire->config.context, question, deadline_ns, reply);
}

/* ---- what is no event ---- */

bool hydration_wire_is_blamed(const struct wire_source *source, struct str payload)
{
    struct json_value body, type;
    bool says = json_parse_stored(payload, JSON_DEPTH_LIMIT, &body, NULL) == STATUS_OK &&
                json_get(&body, STR("entity_type"), &type) && type.type == JSON_STRING;
    return !says || json_str_eq(type.raw, str_from(source->entity_type));
}

/* A peer that sends nothing else must not fill the log. */
void hydration_wire_complain(struct hydration_wire *wire, const char *topic, const struct error *error)
{
    long long now_ns = clock_mono_ns(), due_ns = atomic_load(&wire->complain_at_ns);
    hydration_count_ignored("malformed");
    if (now_ns < due_ns || !atomic_compare_exchange_strong(&wire->complain_at_ns, &due_ns,
                                                           now_ns + COMPLAINT_MS * CLOCK_NS_PER_MS)) {
        atomic_fetch_add(&wire->untold, 1);
        return;
    }
    log_warn("hydration_event_malformed", LOG_CSTR("topic", topic), LOG_ERROR_FIELDS(error),
             LOG_INT("more", atomic_exchange(&wire->untold, 0)));
}

/* ---- life ---- */

static enum status open_sources(struct hydration_wire *wire, struct error *error)
{
    enum status status = STATUS_OK;
    wire->sources = memory_zalloc((wire->config.type_count + 1) * sizeof wire->sources[0]);
    for (size_t i = 0; i < wire->config.type_count && status == STATUS_OK; i++) {
        struct wire_source *source = &wire->sources[i];
        source->wire = wire;
        source->entity_type = wire->config.entity_types[i];
        source->lanes = hydration_lanes_create(wire->config.workers);
        snprintf(source->group, sizeof source->group, "entity-%s", source->entity_type);
        status = wire->config.is_plain ? hydration_wire_nats_questions(source, error)
                                       : hydration_wire_bus_questions(source, error);
    }
    return status;
}

static enum status open_answers(struct hydration_wire *wire, enum hydration_kind kind, struct error *error)
{
    enum status status = STATUS_OK;
    if (wire->config.on_heard)
        status = wire->config.is_plain ? hydration_wire_nats_answers(wire, kind, error)
                                       : hydration_wire_bus_answers(wire, kind, error);
    if (status == STATUS_OK && wire->config.on_settle)
        status = hydration_wire_bus_settled(wire, kind, error);
    return status;
}

enum status hydration_wire_open(const struct hydration_wire_config *config, struct hydration_wire **out,
                                struct error *error)
{
    struct hydration_wire *wire = memory_zalloc(sizeof *wire);
    wire->config = *config;
    enum status status = open_sources(wire, error);
    if (status == STATUS_OK)
        status = open_answers(wire, HYDRATION_EVENT_UPDATED, error);
    if (status == STATUS_OK)
        status = open_answers(wire, HYDRATION_EVENT_NOT_FOUND, error);
    if (status != STATUS_OK) {
        hydration_wire_destroy(wire);
        return status;
    }
    *out = wire;
    return STATUS_OK;
}

void hydration_wire_destroy(struct hydration_wire *wire)
{
    if (!wire)
        return;
    for (size_t i = 0; wire->sources && i < wire->config.type_count; i++)
        hydration_lanes_destroy(wire->sources[i].lanes);
    free(wire->sources);
    free(wire);
}
