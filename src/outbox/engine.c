/* An engine's life: who wakes it, and how it ends. It is woken by a commit in this process (at once), by
 * another process's bell, by the poll timer (the net under both), and when a backoff is over. Only the timer
 * and the ear live on the loop; the work is in jobs.c. */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "outbox/outbox_inside.h"

enum { UPKEEP_INTERVAL_MS = 5000, PACE_MS = 4 };

/* ---- wakes ---- */

void outbox_wake(struct outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    outbox_jobs_wake(outbox);
    pthread_mutex_unlock(&outbox->lock);
}

static void on_notice(void *context, struct str channel, struct str payload)
{
    (void)channel;
    (void)payload;
    outbox_wake(context);
}

static void on_listening(void *context)
{
    outbox_wake(context);
}

/* ---- the timer, on the loop ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void on_timer(struct loop_timer *timer);

static void arm(struct outbox *outbox)
{
    int64_t at_ns = least(outbox->poll_at_ns, outbox->upkeep_at_ns);
    pthread_mutex_lock(&outbox->lock);
    at_ns = least(at_ns, least(outbox->due_ns, outbox->renew_ns));
    if (outbox->paced)
        at_ns = least(at_ns, outbox->pace_ns);
    outbox->armed_ns = at_ns;
    bool stopping = outbox->stopping;
    pthread_mutex_unlock(&outbox->lock);
    if (!stopping)
        loop_timer_start(outbox->config.loop, &outbox->timer, at_ns, on_timer);
}

static void on_timer(struct loop_timer *timer)
{
    struct outbox *outbox = (struct outbox *)((char *)timer - offsetof(struct outbox, timer));
    int64_t now_ns = clock_mono_ns();
    int64_t upkeep_ms = UPKEEP_INTERVAL_MS;
    if (outbox->settings.keep_ms > 0)
        upkeep_ms = least(upkeep_ms, outbox->settings.cleanup_ms);
    pthread_mutex_lock(&outbox->lock);
    bool is_time = outbox->paced && now_ns >= outbox->pace_ns;
    outbox->paced &= !is_time;
    if (is_time || now_ns >= outbox->poll_at_ns || now_ns >= outbox->due_ns)
        outbox_jobs_wake(outbox);
    if (now_ns >= outbox->renew_ns)
        outbox_jobs_renew(outbox);
    if (now_ns >= outbox->upkeep_at_ns)
        outbox_jobs_upkeep(outbox);
    pthread_mutex_unlock(&outbox->lock);
    if (now_ns >= outbox->poll_at_ns)
        outbox->poll_at_ns = now_ns + outbox->settings.poll_ms * CLOCK_NS_PER_MS;
    if (now_ns >= outbox->upkeep_at_ns)
        outbox->upkeep_at_ns = now_ns + upkeep_ms * CLOCK_NS_PER_MS;
    arm(outbox);
}

static void free_outbox(void *memory);

static void on_rearm(struct loop *loop, struct loop_message *message)
{
    struct outbox *outbox = (struct outbox *)((char *)message - offsetof(struct outbox, rearm));
    pthread_mutex_lock(&outbox->lock);
    outbox->rearm_posted = false;
    bool destroyed = outbox->destroyed;
    pthread_mutex_unlock(&outbox->lock);
    if (destroyed)
        loop_free_later(loop, outbox, free_outbox);
    else
        arm(outbox);
}

/* ---- creation ---- */

static void name_worker(char *out, size_t size)
{
    const char *from_environment = getenv("HOSTNAME");
    if (from_environment && *from_environment && str_is_utf8(str_from(from_environment)))
        snprintf(out, size, "%s", from_environment);
    else if (gethostname(out, size - 1) != 0)
        snprintf(out, size, "unknown");
}

/* Steps and renewals take turns at one connection, so that what a step published is settled by the one it was claimed by,
 * unless that was lost. Upkeep, which may take long, has another. */
static enum status create_pools(struct outbox *outbox, const struct db_target *target, struct error *error)
{
    struct arena *arena = &outbox->arena;
    outbox->target = *target;
    outbox->target.name = arena_printf(arena, "%s-%s", target->name, outbox->config.table->name).ptr;
    outbox->target.url = arena_str(arena, target->url);
    outbox->target.username = arena_str(arena, target->username);
    outbox->target.password = arena_str(arena, target->password);
    outbox->target.schema = arena_str(arena, target->schema);
    outbox->target.connections_max = 1;
    enum status status = db_pool_create(&outbox->target, &outbox->pool, error);
    return status == STATUS_OK ? db_pool_create(&outbox->target, &outbox->upkeep_pool, error) : status;
}

static void init_sync(struct outbox *outbox)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&outbox->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&outbox->idle, &attributes);
    pthread_condattr_destroy(&attributes);
    outbox->rearm.on_message = on_rearm;
    outbox->due_ns = outbox->renew_ns = outbox->armed_ns = CLOCK_NEVER;
}

enum status outbox_create(const struct outbox_config *config, struct outbox **out, struct error *error)
{
    struct outbox *outbox = memory_zalloc(sizeof *outbox);
    *out = NULL;
    arena_init(&outbox->arena, 8192);
    outbox->config = *config;
    outbox->settings = *config->settings;
    outbox->config.pace_ms = config->pace_ms ? config->pace_ms : PACE_MS;
    outbox->config.settings = NULL;
    outbox->config.target = NULL;
    init_sync(outbox);
    outbox_jobs_init(outbox);
    outbox_metrics_init();
    outbox_sql_init(&outbox->sql, config->table, &outbox->arena);
    name_worker(outbox->worker, sizeof outbox->worker);
    outbox->claims.table = config->table;
    outbox->claims.settings = &outbox->settings;
    outbox->claims.sql = &outbox->sql;
    outbox->claims.worker = str_from(outbox->worker);
    outbox_claims_init(&outbox->claims);
    enum status status = create_pools(outbox, config->target, error);
    if (status == STATUS_OK)
        *out = outbox;
    else
        free_outbox(outbox);
    return status;
}

void outbox_start(struct outbox *outbox)
{
    char channel[64];
    outbox_channel(outbox->config.table, channel);
    const char *const channels[] = {channel, NULL};
    pthread_mutex_lock(&outbox->lock);
    outbox->started = true;
    outbox->cleanup_ns = clock_mono_ns();
    pthread_mutex_unlock(&outbox->lock);
    outbox->listener = db_listener_create(&(struct db_listener_config){.loop = outbox->config.loop,
                                                                       .target = &outbox->target,
                                                                       .channels = channels,
                                                                       .on_notice = on_notice,
                                                                       .on_listening = on_listening,
                                                                       .context = outbox});
    outbox->poll_at_ns = outbox->upkeep_at_ns = clock_mono_ns();
    arm(outbox);
}

/* ---- the end ---- */

static bool wait_idle(struct outbox *outbox, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / CLOCK_NS_PER_S, .tv_nsec = deadline_ns % CLOCK_NS_PER_S};
    int rc = 0;
    while ((outbox->step_busy || outbox->renewal_busy || outbox->upkeep_busy) && rc == 0)
        rc = deadline_ns == CLOCK_NEVER ? pthread_cond_wait(&outbox->idle, &outbox->lock)
                                        : pthread_cond_timedwait(&outbox->idle, &outbox->lock, &until);
    return rc == 0;
}

void outbox_stop(struct outbox *outbox, int64_t grace_ms)
{
    pthread_mutex_lock(&outbox->lock);
    outbox->stopping = true;
    if (outbox->owes && !outbox->step_busy) /* one more try */
        outbox->step_busy = worker_pool_submit(outbox->config.workers, &outbox->step);
    bool idle = wait_idle(outbox, clock_deadline_ms(grace_ms));
    pthread_mutex_unlock(&outbox->lock);
    outbox_interrupt(outbox);
    if (idle)
        return;
    pthread_mutex_lock(&outbox->lock);
    wait_idle(outbox, CLOCK_NEVER);
    pthread_mutex_unlock(&outbox->lock);
}

void outbox_interrupt(struct outbox *outbox)
{
    db_pool_interrupt(outbox->pool);
    db_pool_interrupt(outbox->upkeep_pool);
}

static void free_outbox(void *memory)
{
    struct outbox *outbox = memory;
    for (size_t i = 0; i < outbox->gauged_count; i++)
        free((char *)outbox->gauged[i].ptr);
    free(outbox->gauged);
    outbox_claims_deinit(&outbox->claims);
    if (outbox->pool)
        db_pool_destroy(outbox->pool);
    if (outbox->upkeep_pool)
        db_pool_destroy(outbox->upkeep_pool);
    arena_deinit(&outbox->arena);
    pthread_cond_destroy(&outbox->idle);
    pthread_mutex_destroy(&outbox->lock);
    free(outbox);
}

void outbox_destroy(struct outbox *outbox)
{
    if (!outbox)
        return;
    if (outbox->started)
        loop_timer_stop(outbox->config.loop, &outbox->timer);
    if (outbox->listener)
        db_listener_destroy(outbox->listener);
    pthread_mutex_lock(&outbox->lock);
    outbox->destroyed = true;
    bool posted = outbox->rearm_posted; /* then on_rearm() frees it */
    pthread_mutex_unlock(&outbox->lock);
    if (!posted)
        loop_free_later(outbox->config.loop, outbox, free_outbox);
}
