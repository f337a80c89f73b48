/* Asking from a thread that may block: each need goes to the loop that its entity's hash selects, so that one entity is looked up
 * and remembered in one place; the thread sleeps until the last outcome is there.
 *
 * A batch is shared by the thread and its waiters; the last of them frees it. So a thread may stop waiting for a loop that hangs or
 * has ended. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum {
    SLACK_MS = 1000, /* after the timeout the thread waits this much longer; then a loop hangs or has ended */
};

struct waiting {
    struct loop_message message;
    struct hydration_waiter waiter;
    struct batch *batch;
    struct hydration_need need;       /* of the batch's arena */
    struct hydration_outcome outcome; /* written by the loop, read by the thread when all are done */
    struct buf text;                  /* of the outcome: its data and its source_module */
};

struct batch {
    struct hydration *hydration;
    struct hydration_policy policy;
    struct arena arena;
    struct waiting *waitings;
    size_t count;
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t holders; /* under the lock: the thread, and waiters that are not done */
};

static void batch_release(struct batch *batch)
{
    pthread_mutex_lock(&batch->lock);
    size_t left = --batch->holders;
    if (left == 1)
        pthread_cond_signal(&batch->all_done);
    pthread_mutex_unlock(&batch->lock);
    if (left > 0)
        return;
    for (size_t i = 0; i < batch->count; i++)
        buf_deinit(&batch->waitings[i].text);
    pthread_cond_destroy(&batch->all_done);
    pthread_mutex_destroy(&batch->lock);
    arena_deinit(&batch->arena);
    free(batch);
}

/* ---- on the loops ---- */

static void on_waiting_done(struct hydration_waiter *waiter, const struct hydration_outcome *outcome)
{
    struct waiting *waiting = CONTAINER_OF(waiter, struct waiting, waiter);

    waiting->outcome = *outcome;
    buf_put_str(&waiting->text, outcome->data);
    buf_put_str(&waiting->text, outcome->source_module);
    batch_release(waiting->batch);
}

static void on_waiting(struct loop *loop, struct loop_message *message)
{
    struct waiting *waiting = CONTAINER_OF(message, struct waiting, message);
    hydration_ask(waiting->batch->hydration, &waiting->batch->policy, &waiting->need, false, loop,
                  &waiting->waiter, on_waiting_done);
}

/* ---- on the thread ---- */

static struct batch *make_batch(struct hydration *hydration, const struct hydration_policy *policy,
                                const struct hydration_need *needs, size_t count)
{
    struct batch *batch = memory_zalloc(sizeof *batch);
    struct arena *arena = &batch->arena;

    *arena = ARENA(HYDRATION_ARENA_BYTES);
    batch->hydration = hydration;
    batch->policy = *policy;
    batch->count = count;
    batch->holders = 1 + count;
    batch->waitings = arena_zalloc(arena, count * sizeof batch->waitings[0]);
    for (size_t i = 0; i < count; i++) {
        struct waiting *waiting = &batch->waitings[i];
        *waiting = (struct waiting){.message.on_message = on_waiting, .batch = batch, .need = needs[i]};
        hydration_need_keep(&waiting->need, arena_alloc(arena, hydration_need_bytes(&needs[i])));
    }
    pthread_mutex_init(&batch->lock, NULL);
    pthread_cond_init(&batch->all_done, NULL);
    return batch;
}

void hydration_ask_and_wait(struct hydration *hydration, const struct hydration_policy *policy,
                            const struct hydration_need *needs, size_t count, struct arena *arena,
                            struct hydration_outcome *outcomes)
{
    struct loop_group *loops = hydration->config.loops;

    for (size_t i = 0; i < count; i++)
        outcomes[i] =
            (struct hydration_outcome){.result = HYDRATION_UNAVAILABLE, .way = HYDRATION_BY_JOINING};
    if (count == 0 || atomic_load(&hydration->stopping))
        return;
    struct batch *batch = make_batch(hydration, policy, needs, count);
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = hydration_entity_hash(needs[i].tenant, needs[i].entity_type, needs[i].entity_id);
        loop_post(loop_group_loop(loops, (unsigned)(hash % loop_group_count(loops))),
                  &batch->waitings[i].message);
    }
    int64_t deadline_ns = clock_deadline_ms(policy->wait_timeout_ms + SLACK_MS);
    bool in_time = true;
    pthread_mutex_lock(&batch->lock);
    while (batch->holders > 1 && in_time)
        in_time = clock_cond_wait(&batch->all_done, &batch->lock, deadline_ns);
    bool are_all_done = batch->holders == 1;
    pthread_mutex_unlock(&batch->lock);
    for (size_t i = 0; i < count && are_all_done; i++) {
        const struct waiting *waiting = &batch->waitings[i];
        struct str text = arena_str(arena, buf_str(&waiting->text));
        size_t data_len = waiting->outcome.data.len;
        outcomes[i] = waiting->outcome;
        outcomes[i].data = str_of(text.ptr, data_len);
        outcomes[i].source_module = str_of(text.ptr + data_len, waiting->outcome.source_module.len);
    }
    batch_release(batch);
}
