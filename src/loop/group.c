/* Loop groups: threads for the loops, and the grace period. A grace period is one message per loop: a loop that runs
 * it has returned from every callback it was in when the message was posted. */
#include "loop/group.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/metrics.h"
#include "loop/loop_inside.h"

struct loop_group {
    struct loop **loops;
    pthread_t *threads;
    unsigned count;
    atomic_bool running;
};

struct loop_group *loop_group_create(unsigned count, unsigned parked_max)
{
    struct loop_group *group = memory_zalloc(sizeof *group);
    group->count = count;
    group->loops = memory_zalloc(count * sizeof *group->loops);
    group->threads = memory_zalloc(count * sizeof *group->threads);
    for (unsigned i = 0; i < count; i++)
        group->loops[i] = loop_create(i, parked_max);
    return group;
}

static void *run_thread(void *arg)
{
    struct loop *loop = arg;
    char name[16];
    snprintf(name, sizeof name, "loop-%u", loop_index(loop));
    pthread_setname_np(pthread_self(), name);
    metrics_thread_take_shard();
    loop_run(loop);
    return NULL;
}

void loop_group_start(struct loop_group *group)
{
    atomic_store(&group->running, true);
    for (unsigned i = 0; i < group->count; i++)
        if (pthread_create(&group->threads[i], NULL, run_thread, group->loops[i]) != 0)
            abort(); /* at start only: without its loops the process is nothing */
}

void loop_group_stop(struct loop_group *group)
{
    bool ran = atomic_load(&group->running);
    for (unsigned i = 0; i < group->count && ran; i++)
        loop_stop(group->loops[i]);
    for (unsigned i = 0; i < group->count && ran; i++)
        pthread_join(group->threads[i], NULL);
    for (unsigned i = 0; i < group->count; i++)
        loop_timers_close(&group->loops[i]->timers);
    /* What was still on its way when the threads ended is run here, while everybody it concerns still lives. A message may have
     * been answered to an earlier loop. */
    for (unsigned i = 0; i < group->count && ran;)
        i = loop_settle(group->loops[i]) ? 0 : i + 1;
    atomic_store(&group->running,
                 false); /* only now: a grace period asked for meanwhile must wait for the threads */
}

void loop_group_destroy(struct loop_group *group)
{
    for (unsigned i = 0; i < group->count; i++)
        loop_destroy(group->loops[i]);
    free(group->loops);
    free(group->threads);
    free(group);
}

bool loop_group_is_running(const struct loop_group *group)
{
    return atomic_load(&group->running);
}

unsigned loop_group_count(const struct loop_group *group)
{
    return group->count;
}

struct loop *loop_group_loop(const struct loop_group *group, unsigned index)
{
    return group->loops[index];
}

/* A message to each of the first `count` loops, all in one allocation that the last loop frees. */
struct broadcast {
    void (*each)(struct loop *loop, void *arg); /* on every loop; or NULL */
    void (*after)(void *arg);                   /* once, on the last; or NULL */
    void *arg;
    sem_t *done; /* posted after that; or NULL */
    atomic_uint left;
    struct broadcast_message {
        struct loop_message message;
        struct broadcast *broadcast;
    } messages[];
};

static void on_broadcast(struct loop *loop, struct loop_message *message)
{
    struct broadcast *broadcast = ((struct broadcast_message *)message)->broadcast;
    if (broadcast->each)
        broadcast->each(loop, broadcast->arg);
    if (atomic_fetch_sub(&broadcast->left, 1) > 1)
        return;
    if (broadcast->after)
        broadcast->after(broadcast->arg);
    if (broadcast->done)
        sem_post(broadcast->done);
    free(broadcast);
}

/* After the last post the loops may have freed the group. */
static void post_to_loops(struct loop_group *group, unsigned count, const struct broadcast *made)
{
    struct broadcast *broadcast = memory_alloc(sizeof *broadcast + count * sizeof broadcast->messages[0]);
    *broadcast = *made;
    atomic_init(&broadcast->left, count);
    for (unsigned i = 0; i < count; i++) {
        broadcast->messages[i] = (struct broadcast_message){{.on_message = on_broadcast}, broadcast};
        loop_post(group->loops[i], &broadcast->messages[i].message);
    }
}

static void post_and_wait(struct loop_group *group, unsigned count, void (*after)(void *arg), void *arg)
{
    sem_t done;
    sem_init(&done, 0, 0);
    post_to_loops(group, count, &(struct broadcast){.after = after, .arg = arg, .done = &done});
    while (sem_wait(&done) != 0)
        ; /* interrupted by a signal */
    sem_destroy(&done);
}

void loop_group_broadcast(struct loop_group *group, void (*fn)(struct loop *loop, void *arg), void *arg)
{
    post_to_loops(group, group->count, &(struct broadcast){.each = fn, .arg = arg});
}

void loop_group_synchronize(struct loop_group *group, void (*fn)(void *arg), void *arg)
{
    if (atomic_load(&group->running))
        post_to_loops(group, group->count, &(struct broadcast){.after = fn, .arg = arg});
    else
        fn(arg);
}

void loop_group_wait(struct loop_group *group)
{
    if (atomic_load(&group->running))
        post_and_wait(group, group->count, NULL, NULL);
}

void loop_group_call(struct loop_group *group, void (*fn)(void *arg), void *arg)
{
    if (atomic_load(&group->running))
        post_and_wait(group, 1, fn, arg);
    else
        fn(arg); /* no other thread is there */
}
