/* Questions on their way from the bus to the workers: each entity type has a bounded queue that a few lanes take from, so a type
 * whose owner hangs holds up no other. Tenants take turns, and each has a bounded part of the queue:
 *
 *     tenants ─▶ greedy: q1 ─▶ q2 ─▶ … ─▶ q128
 *             ─▶ modest: q1                          a lane takes greedy's q1, then modest's q1, then greedy's q2
 *
 * What is too much, or was not taken while its asker waits, is dropped and counted: the oldest first, since its asker is the next
 * to give up. Whoever asked asks again. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "hydration/inside.h"
#include "hydration/wire_inside.h"

enum {
    QUEUE_MAX = 1024,
    TENANT_MAX = 128, /* of one tenant */
};

struct waiting {          /* a question in the queue */
    struct waiting *next; /* of the same tenant */
    struct wire_source *source;
    int64_t expires_ns;
    struct arena arena;
    struct hydration_event question;
    /* Of a tenant's first: */
    struct waiting *next_tenant, *last;
    size_t count;
};

struct lane {
    struct worker_job job;
    struct wire_lanes *lanes;
    bool is_busy;
};

struct wire_lanes {
    struct worker_pool *workers;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t idle;
    struct waiting *tenants, **last_tenant;
    size_t queued, busy;
    bool stopping;
    struct lane lanes[WIRE_PARALLEL];
};

static void free_waiting(struct waiting *waiting)
{
    arena_deinit(&waiting->arena);
    free(waiting);
}

static void drop(struct waiting *waiting)
{
    hydration_count_ignored("overload");
    free_waiting(waiting);
}

/* ---- the queue: under the lock ---- */

static struct waiting **find_tenant(struct wire_lanes *lanes, struct str tenant)
{
    struct waiting **place = &lanes->tenants;
    while (*place && !str_eq((*place)->question.tenant, tenant))
        place = &(*place)->next_tenant;
    return place;
}

static struct waiting **find_longest(struct wire_lanes *lanes)
{
    struct waiting **longest = &lanes->tenants;
    for (struct waiting **place = longest; *place; place = &(*place)->next_tenant)
        if ((*place)->count > (*longest)->count)
            longest = place;
    return longest;
}

static void set_place(struct wire_lanes *lanes, struct waiting **place, struct waiting *first)
{
    struct waiting *behind = (*place)->next_tenant;
    *place = first ? first : behind;
    if (first)
        first->next_tenant = behind;
    if (!behind)
        lanes->last_tenant = first ? &first->next_tenant : place;
}

/* The oldest of the tenant at `place`; its next one takes that place. */
static struct waiting *take_from(struct wire_lanes *lanes, struct waiting **place)
{
    struct waiting *first = *place, *next = first->next;
    if (next) {
        next->last = first->last;
        next->count = first->count - 1;
    }
    set_place(lanes, place, next);
    lanes->queued--;
    return first;
}

static void append_tenant(struct wire_lanes *lanes, struct waiting *first)
{
    first->next_tenant = NULL;
    *lanes->last_tenant = first;
    lanes->last_tenant = &first->next_tenant;
}

/* The oldest of the tenant whose turn it is, which goes to the end of the line; NULL: there is none. */
static struct waiting *take_question(struct wire_lanes *lanes)
{
    if (!lanes->tenants)
        return NULL;
    struct waiting *taken = take_from(lanes, &lanes->tenants), *rest = taken->next;
    if (rest && rest->next_tenant) {
        set_place(lanes, &lanes->tenants, NULL);
        append_tenant(lanes, rest);
    }
    return taken;
}

static void put_question(struct wire_lanes *lanes, struct waiting *waiting)
{
    struct waiting *first = *find_tenant(lanes, waiting->question.tenant);
    waiting->next = NULL;
    waiting->last = waiting;
    waiting->count = 1;
    lanes->queued++;
    if (!first) {
        append_tenant(lanes, waiting);
        return;
    }
    first->last->next = waiting;
    first->last = waiting;
    first->count++;
}

/* What has to go before one more of this tenant can come; NULL: there is room. */
static struct waiting *make_room(struct wire_lanes *lanes, struct str tenant)
{
    struct waiting **place = find_tenant(lanes, tenant);
    if (*place && (*place)->count == TENANT_MAX)
        return take_from(lanes, place);
    return lanes->queued == QUEUE_MAX ? take_from(lanes, find_longest(lanes)) : NULL;
}

static void drop_all(struct wire_lanes *lanes)
{
    for (struct waiting *waiting; (waiting = take_question(lanes)) != NULL;)
        drop(waiting);
}

/* ---- lanes: under the lock ---- */

static void start_lane(struct wire_lanes *lanes, struct lane *lane)
{
    lane->is_busy = worker_pool_submit(lanes->workers, &lane->job);
    lanes->busy += lane->is_busy;
}

static void start_idle(struct wire_lanes *lanes)
{
    for (size_t i = 0; i < WIRE_PARALLEL; i++)
        if (!lanes->lanes[i].is_busy) {
            start_lane(lanes, &lanes->lanes[i]);
            break;
        }
    if (lanes->busy == 0) /* the workers are swamped, or gone */
        drop_all(lanes);
}

/* ---- lanes: on a worker, one question at a time ---- */

/* What has expired is nobody's turn. */
static struct waiting *take_current(struct wire_lanes *lanes)
{
    int64_t now_ns = clock_mono_ns();
    pthread_mutex_lock(&lanes->lock);
    while (lanes->tenants && lanes->tenants->expires_ns <= now_ns)
        drop(take_from(lanes, &lanes->tenants));
    struct waiting *waiting = take_question(lanes);
    pthread_mutex_unlock(&lanes->lock);
    return waiting;
}

static void run_lane(struct worker_job *job)
{
    struct waiting *waiting = take_current(((struct lane *)job)->lanes);
    struct hydration_reply reply;
    if (!waiting)
        return;
    hydration_wire_answer(waiting->source, &waiting->question, clock_deadline_ms(WIRE_LOOK_MS), &reply);
    free_waiting(waiting);
}

static void end_lane(struct worker_job *job)
{
    struct lane *lane = (struct lane *)job;
    struct wire_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    lane->is_busy = false;
    lanes->busy--;
    if (lanes->stopping || job->cancelled)
        drop_all(lanes);
    if (lanes->tenants)
        start_idle(lanes);
    if (lanes->busy == 0)
        pthread_cond_broadcast(&lanes->idle);
    pthread_mutex_unlock(&lanes->lock);
}

/* ---- life ---- */

struct wire_lanes *hydration_lanes_create(struct worker_pool *workers)
{
    struct wire_lanes *lanes = memory_zalloc(sizeof *lanes);
    lanes->workers = workers;
    lanes->last_tenant = &lanes->tenants;
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_cond_init(&lanes->idle, NULL);
    for (size_t i = 0; i < WIRE_PARALLEL; i++)
        lanes->lanes[i] = (struct lane){.job = {.run = run_lane, .done = end_lane}, .lanes = lanes};
    return lanes;
}

void hydration_lanes_destroy(struct wire_lanes *lanes)
{
    if (!lanes)
        return;
    pthread_mutex_lock(&lanes->lock);
    lanes->stopping = true;
    drop_all(lanes);
    while (lanes->busy > 0)
        pthread_cond_wait(&lanes->idle, &lanes->lock);
    pthread_mutex_unlock(&lanes->lock);
    pthread_cond_destroy(&lanes->idle);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
}

void hydration_lanes_put(struct wire_source *source, const struct hydration_event *question)
{
    struct wire_lanes *lanes = source->lanes;
    struct waiting *waiting = memory_zalloc(sizeof *waiting), *dropped = NULL;
    arena_init(&waiting->arena, WIRE_ARENA_BYTES);
    hydration_event_copy(question, &waiting->arena, &waiting->question);
    waiting->source = source;
    waiting->expires_ns = clock_deadline_ms(question->wait_ms > 0 ? question->wait_ms : WIRE_LOOK_MS);
    pthread_mutex_lock(&lanes->lock);
    if (lanes->stopping) {
        dropped = waiting;
    } else {
        dropped = make_room(lanes, waiting->question.tenant);
        put_question(lanes, waiting);
        start_idle(lanes);
    }
    pthread_mutex_unlock(&lanes->lock);
    if (dropped)
        drop(dropped);
}
