/* Hydration's events as plain messages of NATS. The client's thread reads what came and never waits: answers go on at once,
 * questions into a bounded queue that a few lanes of the workers take from. Each type has its own: one whose owner hangs holds
 * up no other. What does not fit, or was not taken in time, is dropped and counted: whoever asked asks again. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bus/bus_nats.h"
#include "hydration/inside.h"
#include "hydration/wire_inside.h"

#define QUEUE_MAX 1024

struct waiting { /* a question in the queue */
    struct waiting *next;
    struct wire_source *source;
    int64_t deadline_ns;
    struct arena arena;
    struct hydration_event question;
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
    struct waiting *first, **last_next;
    size_t queued, busy;
    bool stopping;
    struct lane lanes[WIRE_PARALLEL];
};

static void free_waiting(struct waiting *waiting)
{
    arena_deinit(&waiting->arena);
    free(waiting);
}

/* ---- lanes: under the lock ---- */

static struct waiting *take(struct wire_lanes *lanes)
{
    struct waiting *waiting = lanes->first;
    if (!waiting)
        return NULL;
    lanes->first = waiting->next;
    if (!lanes->first)
        lanes->last_next = &lanes->first;
    lanes->queued--;
    return waiting;
}

static void drop_all(struct wire_lanes *lanes)
{
    for (struct waiting *waiting; (waiting = take(lanes)) != NULL; free_waiting(waiting))
        hydration_count_ignored("overload");
}

static void start(struct wire_lanes *lanes, struct lane *lane)
{
    lane->is_busy = worker_pool_submit(lanes->workers, &lane->job);
    lanes->busy += lane->is_busy;
}

static void start_idle(struct wire_lanes *lanes)
{
    for (size_t i = 0; i < WIRE_PARALLEL; i++)
        if (!lanes->lanes[i].is_busy) {
            start(lanes, &lanes->lanes[i]);
            break;
        }
    if (lanes->busy == 0) /* the workers are swamped, or gone */
        drop_all(lanes);
}

/* ---- lanes: on a worker, one question at a time ---- */

static void run_lane(struct worker_job *job)
{
    struct wire_lanes *lanes = ((struct lane *)job)->lanes;
    struct hydration_reply reply;
    pthread_mutex_lock(&lanes->lock);
    struct waiting *waiting = take(lanes);
    pthread_mutex_unlock(&lanes->lock);
    if (!waiting)
        return;
    if (clock_mono_ns() < waiting->deadline_ns)
        hydration_wire_answer(waiting->source, &waiting->question, waiting->deadline_ns, &reply);
    else
        hydration_count_ignored("overload");
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
    if (lanes->first)
        start_idle(lanes);
    if (lanes->busy == 0)
        pthread_cond_broadcast(&lanes->idle);
    pthread_mutex_unlock(&lanes->lock);
}

static struct wire_lanes *create_lanes(struct worker_pool *workers)
{
    struct wire_lanes *lanes = memory_zalloc(sizeof *lanes);
    lanes->workers = workers;
    lanes->last_next = &lanes->first;
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_cond_init(&lanes->idle, NULL);
    for (size_t i = 0; i < WIRE_PARALLEL; i++)
        lanes->lanes[i] = (struct lane){.job = {.run = run_lane, .done = end_lane}, .lanes = lanes};
    return lanes;
}

void hydration_wire_nats_destroy(struct wire_lanes *lanes)
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

static void queue(struct wire_lanes *lanes, struct waiting *waiting)
{
    pthread_mutex_lock(&lanes->lock);
    bool fits = lanes->queued < QUEUE_MAX && !lanes->stopping;
    if (fits) {
        *lanes->last_next = waiting;
        lanes->last_next = &waiting->next;
        lanes->queued++;
        start_idle(lanes);
    }
    pthread_mutex_unlock(&lanes->lock);
    if (fits)
        return;
    hydration_count_ignored("overload");
    free_waiting(waiting);
}

static void on_question(void *context, const struct bus_nats_plain *plain)
{
    struct wire_source *source = context;
    struct hydration_event question;
    struct error error = {0};
    struct waiting *waiting = memory_zalloc(sizeof *waiting);
    arena_init(&waiting->arena, WIRE_ARENA_BYTES);
    enum status status = read_plain(HYDRATION_EVENT_UNKNOWN, plain, &waiting->arena, &question, &error);
    if (status == STATUS_OK && str_eq(question.entity_type, str_from(source->entity_type))) {
        hydration_event_copy(&question, &waiting->arena, &waiting->question);
        waiting->source = source;
        waiting->deadline_ns = clock_deadline_ms(WIRE_LOOK_MS);
        queue(source->lanes, waiting);
        return;
    }
    if (status != STATUS_OK && hydration_wire_is_blamed(source, plain->payload))
        hydration_wire_complain(source->wire, hydration_topics[HYDRATION_EVENT_UNKNOWN], &error);
    free_waiting(waiting);
}

enum status hydration_wire_nats_questions(struct wire_source *source, struct error *error)
{
    struct hydration_wire *wire = source->wire;
    source->lanes = create_lanes(wire->config.workers);
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
