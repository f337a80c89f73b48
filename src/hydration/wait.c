/* Asking from a thread that may block: each need goes to the loop that its entity's hash selects, so that one entity is looked up
 * and remembered in one place; the thread sleeps until the last outcome is there.
 *
 * A batch is shared by the thread, a message to each loop and its waiters; the last of them frees it. So a thread may stop waiting
 * for a loop that hangs or has ended. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum {
    SLACK_MS = 1000, /* after the timeout: then a loop hangs */
};

struct waiting {
    struct hydration_waiter waiter;
    struct batch *batch;
    struct hydration_need need;       /* of the batch's arena */
    struct hydration_outcome outcome; /* its texts too; the loop's until all are done */
    struct buf text;
    unsigned loop;
};

struct part {
    struct loop_message message;
    struct batch *batch;
};

struct batch {
    struct hydration *hydration;
    struct hydration_policy policy;
    struct arena arena;
    struct waiting *waitings;
    struct part *parts; /* one for each loop */
    size_t count;
    atomic_size_t holders;
    pthread_mutex_t lock;
    pthread_cond_t all_done;
    size_t left; /* under the lock */
};

static void batch_release(struct batch *batch)
{
    if (atomic_fetch_sub(&batch->holders, 1) != 1)
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
    struct batch *batch = waiting->batch;

    waiting->outcome = *outcome;
    buf_put_str(&waiting->text, outcome->data);
    buf_put_str(&waiting->text, outcome->source_module);
    buf_put_char(&waiting->text, '\0'); /* never NULL */
    waiting->outcome.data = str_of(waiting->text.data, outcome->data.len);
    pthread_mutex_lock(&batch->lock);
    if (--batch->left == 0)
        pthread_cond_signal(&batch->all_done);
    pthread_mutex_unlock(&batch->lock);
    batch_release(batch);
}

static void on_part(struct loop *loop, struct loop_message *message)
{
    struct batch *batch = ((struct part *)message)->batch;
    unsigned index = loop_index(loop);

    for (size_t i = 0; i < batch->count; i++) {
        struct waiting *waiting = &batch->waitings[i];
        if (waiting->loop == index)
            hydration_ask(batch->hydration, &batch->policy, &waiting->need, false, loop, &waiting->waiter,
                          on_waiting_done);
    }
    batch_release(batch);
}

/* ---- on the thread ---- */

static void copy_need(struct arena *arena, struct hydration_need *copy, const struct hydration_need *need)
{
    *copy = *need;
    copy->tenant = arena_str(arena, need->tenant);
    copy->subject = arena_str(arena, need->subject);
    copy->entity_type = arena_str(arena, need->entity_type);
    copy->entity_id = arena_str(arena, need->entity_id);
    copy->cover = hydration_cover_copy(&need->cover, arena);
}

static struct batch *make_batch(struct hydration *hydration, const struct hydration_policy *policy,
                                const struct hydration_need *needs, size_t count)
{
    struct batch *batch = memory_zalloc(sizeof *batch);
    unsigned loops = loop_group_count(hydration->config.loops);

    arena_init(&batch->arena, HYDRATION_ARENA_BYTES);
    batch->hydration = hydration;
    batch->policy = *policy;
    batch->count = batch->left = count;
    batch->waitings = arena_zalloc(&batch->arena, count * sizeof batch->waitings[0]);
    batch->parts = arena_zalloc(&batch->arena, loops * sizeof batch->parts[0]);
    for (size_t i = 0; i < count; i++) {
        struct waiting *waiting = &batch->waitings[i];
        waiting->batch = batch;
        waiting->loop =
            (unsigned)(hydration_entity_hash(needs[i].tenant, needs[i].entity_type, needs[i].entity_id) %
                       loops);
        copy_need(&batch->arena, &waiting->need, &needs[i]);
        buf_init(&waiting->text);
    }
    atomic_init(&batch->holders, 1 + loops + count); /* the thread, the messages, the waiters */
    pthread_mutex_init(&batch->lock, NULL);
    pthread_cond_init(&batch->all_done, NULL);
    return batch;
}

static void post_to_loops(struct batch *batch)
{
    struct loop_group *loops = batch->hydration->config.loops;
    struct part *parts = batch->parts; /* the batch may be freed by the last loop */
    for (unsigned i = 0; i < loop_group_count(loops); i++) {
        parts[i] = (struct part){.message.on_message = on_part, .batch = batch};
        loop_post(loop_group_loop(loops, i), &parts[i].message);
    }
}

static bool await_batch(struct batch *batch)
{
    int64_t deadline_ns = clock_deadline_ms(batch->policy.wait_timeout_ms + SLACK_MS);
    bool in_time = true;

    pthread_mutex_lock(&batch->lock);
    while (batch->left > 0 && in_time)
        in_time = clock_cond_wait(&batch->all_done, &batch->lock, deadline_ns);
    bool are_all_done = batch->left == 0;
    pthread_mutex_unlock(&batch->lock);
    return are_all_done;
}

static void copy_outcome(const struct waiting *waiting, struct arena *arena,
                         struct hydration_outcome *outcome)
{
    *outcome = waiting->outcome;
    outcome->data = arena_str(arena, waiting->outcome.data);
    outcome->source_module = arena_str(
        arena, str_of(waiting->text.data + waiting->outcome.data.len, waiting->outcome.source_module.len));
}

void hydration_ask_and_wait(struct hydration *hydration, const struct hydration_policy *policy,
                            const struct hydration_need *needs, size_t count, struct arena *arena,
                            struct hydration_outcome *outcomes)
{
    for (size_t i = 0; i < count; i++)
        outcomes[i] =
            (struct hydration_outcome){.result = HYDRATION_UNAVAILABLE, .way = HYDRATION_BY_JOINING};
    if (count == 0 || atomic_load(&hydration->stopping))
        return;
    struct batch *batch = make_batch(hydration, policy, needs, count);
    post_to_loops(batch);
    if (await_batch(batch))
        for (size_t i = 0; i < count; i++)
            copy_outcome(&batch->waitings[i], arena, &outcomes[i]);
    batch_release(batch);
}
