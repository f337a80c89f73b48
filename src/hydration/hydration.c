/* The engine: a desk for each loop, the wire, the sources. What is heard of the bus is copied once for all loops and handed
 * to each one's desk. */
#include "hydration/hydration.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"
#include "hydration/inside.h"

#define HEARD_ARENA_BYTES 2048

/* ---- what is heard, from the bus to the desks ---- */

/* One for all loops; the last of them frees it. */
struct heard {
    struct arena arena;
    struct hydration_event event;
    atomic_uint refs;
    struct heard_message {
        struct loop_message message;
        struct heard *heard;
        struct hydration_desk *desk;
    } messages[];
};

static void on_message(struct loop *loop, struct loop_message *message)
{
    struct heard_message *own = (struct heard_message *)message;
    struct heard *heard = own->heard;
    (void)loop;
    hydration_desk_hear(own->desk, &heard->event);
    if (atomic_fetch_sub(&heard->refs, 1) > 1)
        return;
    arena_deinit(&heard->arena);
    free(heard);
}

static void on_heard(void *context, const struct hydration_event *event)
{
    struct hydration *hydration = context;
    struct loop_group *loops = hydration->config.loops;
    unsigned count = loop_group_count(loops);
    struct heard *heard;
    if (atomic_load(&hydration->stopping))
        return;
    heard = memory_alloc(sizeof *heard + count * sizeof heard->messages[0]);
    arena_init(&heard->arena, HEARD_ARENA_BYTES);
    hydration_event_copy(event, &heard->arena, &heard->event);
    atomic_init(&heard->refs, count);
    for (unsigned i = 0; i < count; i++) {
        heard->messages[i] = (struct heard_message){{.on_message = on_message}, heard, hydration->desks[i]};
        loop_post(loop_group_loop(loops, i), &heard->messages[i].message);
    }
}

static enum status on_settle(void *context, const struct hydration_event *events, size_t count,
                             struct db_conn *conn, int64_t deadline_ns, struct error *error)
{
    (void)context;
    return hydration_ledger_write(conn, events, count, deadline_ns, error);
}

/* ---- life ---- */

struct hydration *hydration_create(const struct hydration_config *config)
{
    struct hydration *hydration = memory_zalloc(sizeof *hydration);
    unsigned count = loop_group_count(config->loops);
    hydration->config = *config;
    hydration->desks = memory_zalloc(count * sizeof hydration->desks[0]);
    for (unsigned i = 0; i < count; i++)
        hydration->desks[i] = hydration_desk_create(hydration, loop_group_loop(config->loops, i));
    return hydration;
}

void hydration_provide(struct hydration *hydration, const struct hydration_source *source)
{
    assert(hydration->source_count < HYDRATION_SOURCES_MAX);
    hydration->sources[hydration->source_count++] = *source;
}

enum status hydration_open(struct hydration *hydration, struct bus *events, bool consumes,
                           struct error *error)
{
    const char *types[HYDRATION_SOURCES_MAX];
    struct hydration_wire *wire;
    for (size_t i = 0; i < hydration->source_count; i++)
        types[i] = hydration->sources[i].entity_type;
    enum status status = hydration_wire_open(
        &(struct hydration_wire_config){
            .bus = events,
            .is_plain = hydration->config.is_plain,
            .workers = hydration->config.workers,
            .context = hydration,
            .entity_types = types,
            .type_count = hydration->source_count,
            .on_question = hydration_source_answer,
            .on_heard = consumes ? on_heard : NULL,
            .on_settle = consumes ? on_settle : NULL,
        },
        &wire, error);
    if (status == STATUS_OK)
        atomic_store(&hydration->wire, wire);
    return status;
}

static void stop_desk(struct loop *loop, void *arg)
{
    struct hydration *hydration = arg;
    hydration_desk_stop(hydration->desks[loop_index(loop)]);
}

void hydration_stop(struct hydration *hydration)
{
    atomic_store(&hydration->stopping, true);
    if (loop_group_is_running(hydration->config.loops))
        loop_group_broadcast(hydration->config.loops, stop_desk, hydration);
    else
        for (unsigned i = 0; i < loop_group_count(hydration->config.loops); i++)
            hydration_desk_stop(hydration->desks[i]);
}

void hydration_destroy(struct hydration *hydration)
{
    if (!hydration)
        return;
    hydration_wire_destroy(atomic_load(&hydration->wire));
    for (unsigned i = 0; i < loop_group_count(hydration->config.loops); i++)
        hydration_desk_destroy(hydration->desks[i]);
    for (size_t i = 0; i < hydration->follower_count; i++)
        free(hydration->followers[i]);
    free(hydration->followers);
    free(hydration->desks);
    free(hydration);
}
