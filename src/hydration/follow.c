/* Following a source's own events: whatever they are about is looked up and told. A change that cannot be told now is told
 * later, in its turn; of several changes of one entity in a batch only the last one's look is needed. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum { ARENA_BYTES = 4096, BATCH_MAX = 100 };

struct hydration_follower {
    struct hydration *hydration;
    const char *entity_type;
    hydration_read_fn *read;
    void *context;
};

static bool comes_again(const struct hydration_subject *subjects, size_t at, size_t count)
{
    for (size_t i = at + 1; i < count; i++)
        if (str_eq(subjects[at].entity_id, subjects[i].entity_id) &&
            str_eq(subjects[at].tenant, subjects[i].tenant))
            return true;
    return false;
}

/* False: this one and those behind it come again. */
static bool tell(struct hydration_follower *follower, struct bus_batch *batch, size_t at,
                 const struct hydration_subject *subject)
{
    struct error error = {0};
    enum status status = hydration_tell(follower->hydration, follower->entity_type, subject->tenant,
                                        subject->entity_id, batch->deadline_ns, &error);
    if (status == STATUS_OK)
        return true;
    if (status_retryable(status)) {
        bus_batch_retry(batch, at, "%s", error.message);
        return false;
    }
    /* It would fail the same way for ever. Copies age out without it. */
    log_error("hydration_change_untold", LOG_CSTR("entity_type", follower->entity_type),
              LOG_STR("entity_id", subject->entity_id), LOG_STR("tenant_id", subject->tenant),
              LOG_ERROR_FIELDS(&error));
    return true;
}

/* Most changes are of entities that nobody holds: one question for the whole batch finds those that somebody does. */
static void on_events(void *context, struct bus_batch *batch)
{
    struct hydration_follower *follower = context;
    struct hydration_subject *subjects;
    struct arena arena;
    struct error error = {0};
    arena_init(&arena, ARENA_BYTES);
    subjects = arena_zalloc(&arena, batch->count * sizeof subjects[0]);
    bool *held = arena_zalloc(&arena, batch->count * sizeof held[0]);
    for (size_t i = 0; i < batch->count; i++)
        if (!follower->read(follower->context, &batch->messages[i], &arena, &subjects[i]))
            subjects[i] = (struct hydration_subject){STR(""), STR("")};
    bool goes_on = hydration_find_held(follower->hydration, follower->entity_type, subjects, batch->count,
                                       batch->deadline_ns, held, &error) == STATUS_OK;
    if (!goes_on)
        bus_batch_retry(batch, 0, "%s", error.message);
    for (size_t i = 0; i < batch->count && goes_on; i++)
        if (held[i] && subjects[i].entity_id.len && !comes_again(subjects, i, batch->count))
            goes_on = tell(follower, batch, i, &subjects[i]);
    arena_deinit(&arena);
}

/* While no consumer asks for entities of this type, their changes wait for the bus's poll and are read many at a time. */
static bool wakes(void *context, const struct bus_message *message)
{
    const struct hydration_follower *follower = context;
    (void)message;
    return hydration_is_asked_for(follower->hydration, follower->entity_type);
}

static struct hydration_follower *add_follower(struct hydration *hydration)
{
    hydration->followers = memory_realloc_array(hydration->followers, hydration->follower_count + 1,
                                                sizeof hydration->followers[0]);
    return hydration->followers[hydration->follower_count++] =
               memory_zalloc(sizeof(struct hydration_follower));
}

/* From now on, not from the start: whatever was copied was looked up after this group was made, and what happened before
 * concerns no copy. */
enum status hydration_follow(struct hydration *hydration, struct bus *events, const char *topic,
                             const char *entity_type, hydration_read_fn *read, void *context,
                             struct error *error)
{
    struct hydration_follower *follower = add_follower(hydration);
    char group[sizeof "entity-" + HYDRATION_TYPE_BYTES_MAX];
    *follower = (struct hydration_follower){hydration, entity_type, read, context};
    snprintf(group, sizeof group, "entity-%s", entity_type);
    return bus_subscribe(events,
                         &(struct bus_subscription){
                             .topic = topic,
                             .group = group,
                             .mode = BUS_SHARED,
                             .from = BUS_FROM_NOW,
                             .batch_max = BATCH_MAX,
                             .relaxed = true, /* what was told stands before the position in the log */
                             .wakes = wakes,
                             .parallel = 1,
                             .context = follower,
                             .handler = on_events,
                         },
                         error);
}
