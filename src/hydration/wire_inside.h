/* What the files of the wire share.
 *
 *   wire.c       life; questions, answers and changes on their way out
 *   wire_bus.c   topics of the bus: questions and answers in the embedded one, what is settled in either
 *   wire_nats.c  plain subjects of NATS
 *   lanes.c      each type's questions are handed to the workers by a bounded queue, tenant by tenant in turn */
#ifndef FRESHET_HYDRATION_WIRE_INSIDE_H
#define FRESHET_HYDRATION_WIRE_INSIDE_H

#include <stdatomic.h>

#include "hydration/wire.h"
#include "loop/worker.h"

enum {
    WIRE_ARENA_BYTES = 4096,
    /* How many questions of a type are looked up at once: a source that hangs must leave workers to others. */
    WIRE_PARALLEL = 2,
    /* How long a source has; who asked has given up by then, or asks again. */
    WIRE_LOOK_MS = 5000,
};

struct wire_lanes;

/* Whoever answers questions of one type. */
struct wire_source {
    struct hydration_wire *wire;
    const char *entity_type;
    struct wire_lanes *lanes;
    char group[sizeof "entity-" + HYDRATION_TYPE_BYTES_MAX];
};

struct hydration_wire {
    struct hydration_wire_config config;
    struct wire_source *sources; /* config.type_count of them */
    atomic_llong complain_at_ns; /* the next line about what is no event */
    atomic_uint untold;          /* of those that had none since */
};

struct hydration_reply {
    struct hydration_wire *wire;
    int64_t deadline_ns;
};

/* ---- wire.c ---- */
void hydration_wire_answer(struct wire_source *source, const struct hydration_event *question,
                           int64_t deadline_ns, struct hydration_reply *reply);
/* What is no question: is it this source's to complain about? It is, unless it says that it is another's. */
bool hydration_wire_is_blamed(const struct wire_source *source, struct str payload);
void hydration_wire_complain(struct hydration_wire *wire, const char *topic, const struct error *error);

/* ---- wire_bus.c ---- */
enum status hydration_wire_bus_questions(struct wire_source *source, struct error *error) MUST_CHECK;
enum status hydration_wire_bus_answers(struct hydration_wire *wire, enum hydration_kind kind,
                                       struct error *error) MUST_CHECK;
enum status hydration_wire_bus_settled(struct hydration_wire *wire, enum hydration_kind kind,
                                       struct error *error) MUST_CHECK;

/* ---- wire_nats.c ---- */
enum status hydration_wire_nats_questions(struct wire_source *source, struct error *error) MUST_CHECK;
enum status hydration_wire_nats_answers(struct hydration_wire *wire, enum hydration_kind kind,
                                        struct error *error) MUST_CHECK;
enum status hydration_wire_nats_send(struct hydration_wire *wire, const struct bus_message *message,
                                     struct error *error) MUST_CHECK;

/* ---- lanes.c ---- */
struct wire_lanes *hydration_lanes_create(struct worker_pool *workers);
void hydration_lanes_destroy(struct wire_lanes *lanes); /* waits for what runs; NULL is fine */
/* Any thread, never blocks. The question is borrowed. It is answered, or dropped and counted: then its asker asks again. */
void hydration_lanes_put(struct wire_source *source, const struct hydration_event *question);

#endif
