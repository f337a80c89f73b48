/* An engine: three tasks on the workers.
 *
 *   step    settles the published batch and claims the next in one round trip, publishes it, and runs again until it claims nothing
 *   lease   extends the lease of a batch that takes long to publish
 *   upkeep  counts pending events; deletes published ones by retention (O6)
 *
 * The step is woken by a commit in this process and by a notice of another one, by the poll while the table has live events, which
 * covers lost notices, and when a backoff ends. It polls by itself while the poll has no connection. Until it is woken for the first time
 * it claims nothing while the poll finds nothing: PostgreSQL plans a claim for 10 ms, and a process has up to eight engines. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "outbox/outbox_inside.h"

enum {
    EXCHANGE_MS = 10000,
    PACE_MS = 4,
    RETRY_MIN_MS = 50, /* after a failed exchange; doubles up to RETRY_MAX_MS */
    RETRY_MAX_MS = 2000,
    RELEASED_WAIT_MS = 100,
    OLDER_TRIES = 50, /* to get a connection that is older than the batch, */
    OLDER_WAIT_MS = 10,
    OUTAGE_PAUSE_MS_MIN = 50,
    UPKEEP_INTERVAL_MS = 5000,
    UPKEEP_MS = 10000,
    CLEANUP_ROWS = 1000,
    CLEANUP_BATCHES_MAX = 1000,
    WALK_ROWS_MIN = 100, /* most of them may be waiting */
    MEASURE_SHARE = 20,  /* counting takes at most a twentieth of the time */
};

/* ---- the step ---- */

/* A connection opened after the batch was published does not know whether the server crashed in between and lost relaxed
 * messages. An older one that is in use comes back soon, and vouches for the newer ones; else the server may have crashed: the
 * events are released, and published again. */
static enum status outbox_exchange(struct outbox *outbox, bool claims, int64_t deadline_ns,
                                   struct error *error)
{
    struct outbox_claim *claim = &outbox->claim;
    struct db_conn *conn = NULL;
    bool is_doubtful = false;
    enum status status = STATUS_OK;
    for (int tries = 0; tries < OLDER_TRIES; tries++) {
        status = db_acquire(outbox->pool, deadline_ns, &conn, error);
        is_doubtful = status == STATUS_OK && claim->count > 0 && claim->is_relaxed &&
                      db_conn_opened_ns(conn) > claim->published_ns;
        if (!is_doubtful || tries == OLDER_TRIES - 1)
            break;
        db_release(conn);
        nanosleep(&(struct timespec){.tv_nsec = OLDER_WAIT_MS * CLOCK_NS_PER_MS}, NULL);
    }
    if (is_doubtful)
        log_info("outbox_published_again", LOG_CSTR("module", outbox->config.table->module),
                 LOG_INT("events", (int64_t)claim->count));
    for (size_t i = 0; i < claim->count && is_doubtful; i++)
        if (claim->results[i].kind == OUTBOX_DONE)
            claim->results[i].kind = OUTBOX_RELEASE;
    claim->is_relaxed &= !is_doubtful;
    if (status == STATUS_OK)
        status = outbox_claim_exchange(outbox, conn, claims, deadline_ns, error);
    db_release(conn);
    if (status != STATUS_OK)
        return status;
    int64_t due_ns = claim->backoff_ms > 0 ? clock_deadline_ms(claim->backoff_ms) : CLOCK_NEVER;
    if (due_ns < outbox->due_ns)
        outbox->due_ns = due_ns;
    if (claim->settled > 0)
        FAILPOINT("outbox.after_settle");
    return STATUS_OK;
}

static int64_t exchange_failed(struct outbox *outbox, const struct error *error)
{
    if (task_failures(outbox->step) == 0 && !task_is_stopping(outbox->step) &&
        error->status != STATUS_CANCELLED)
        log_warn("outbox_waits", LOG_CSTR("module", outbox->config.table->module), LOG_ERROR_FIELDS(error));
    return task_retry(outbox->step);
}

static void set_publishing(struct outbox *outbox, bool is_publishing)
{
    pthread_mutex_lock(&outbox->lock);
    outbox->is_publishing = is_publishing;
    outbox->leased_ns = outbox->claim.claimed_ns;
    pthread_mutex_unlock(&outbox->lock);
}

/* Also without a batch, when only late events are under way. */
static void publish_batch(struct outbox *outbox, int64_t until_ns)
{
    struct outbox_claim *claim = &outbox->claim;
    const struct outbox_event *first = claim->count > 0 ? &claim->events[0] : NULL;
    int64_t lost_claims = first ? first->claims - first->attempts - 1 : 0; /* a suspect is claimed alone */
    struct outbox_batch batch = {
        .events = claim->events,
        .count = claim->count,
        .results = claim->results,
        .deadline_ns = claim->claimed_ns + outbox->settings.lease_ms * CLOCK_NS_PER_MS,
        .late = outbox->late,
        .late_count = outbox->late_count,
        .until_ns = until_ns,
    };
    if (task_is_stopping(outbox->step)) {
        for (size_t i = 0; i < batch.count; i++)
            outbox_batch_set(&batch, i, OUTBOX_RELEASE, "not tried");
    } else if (lost_claims >= outbox->settings.attempts_max) {
        outbox_batch_set(&batch, 0, OUTBOX_POISON, "claimed %lld times by workers that died",
                         (long long)lost_claims);
    } else {
        set_publishing(outbox, true);
        claim->published_ns = clock_mono_ns();
        outbox->config.publish(outbox->config.context, &batch);
        set_publishing(outbox, false);
    }
    claim->is_relaxed = batch.is_relaxed;
    outbox_late_add(outbox);
    outbox_results_conclude(outbox);
}

static void end_late(struct outbox *outbox)
{
    struct outbox_batch batch = {.late = outbox->late, .late_count = outbox->late_count, .is_last = true};
    if (batch.late_count > 0)
        outbox->config.publish(outbox->config.context, &batch);
    outbox_results_conclude(outbox);
}

static int64_t outbox_step(struct task *task, void *context)
{
    struct outbox *outbox = context;
    struct outbox_claim *claim = &outbox->claim;
    int64_t now_ns = clock_mono_ns();
    struct error error = {0};
    if (!atomic_load(&outbox->is_woken) && atomic_load(&outbox->is_empty) && db_poll_is_up(outbox->poll))
        return TASK_IDLE;
    /* What is due now may be before the place where the round is: then another round follows. */
    if (atomic_exchange(&outbox->is_new, false) || now_ns >= outbox->due_ns)
        outbox->walk.is_partial = true;
    if (now_ns >= outbox->due_ns)
        outbox->due_ns = CLOCK_NEVER;
    error.status = outbox_exchange(outbox, !task_is_stopping(task), clock_deadline_ms(EXCHANGE_MS), &error);
    if (error.status != STATUS_OK)
        return exchange_failed(outbox, &error);
    if (claim->count == 0 && claim->more)
        return TASK_NOW;
    int64_t pause_ns =
        db_poll_is_up(outbox->poll) ? TASK_IDLE : TASK_MS(backoff_spread_ms(outbox->settings.poll_ms));
    if (outbox->due_ns != CLOCK_NEVER && outbox->due_ns - now_ns < pause_ns)
        pause_ns = outbox->due_ns - now_ns;
    if (claim->count == 0 && outbox->late_count == 0)
        return pause_ns;
    publish_batch(outbox, pause_ns == TASK_IDLE ? CLOCK_NEVER : now_ns + pause_ns);
    if (claim->count == 0) /* also when it stops: outbox_stop() ends what is under way */
        return TASK_NOW;
    const struct outbox_result *outage = NULL;
    bool is_any_tried = false;
    for (size_t i = 0; i < claim->count; i++) {
        outage = !outage && claim->results[i].kind == OUTBOX_OUTAGE ? &claim->results[i] : outage;
        is_any_tried |= claim->results[i].kind != OUTBOX_RELEASE;
    }
    if (outage) { /* the rows show it at once; no commit wakes the step, so that a million waiting rows are not all tried */
        if (outbox->outage.failures == 0) {
            outbox->outage_ns = clock_mono_ns();
            log_warn("outbox_engine_away", LOG_CSTR("module", outbox->config.table->module),
                     LOG_CSTR("table", outbox->config.table->name), LOG_CSTR("error", outage->reason));
        }
        int64_t pause_ms = claim->outage_pause_ms = backoff_next_ms(&outbox->outage);
        error.status = outbox_exchange(outbox, false, clock_deadline_ms(EXCHANGE_MS), &error);
        task_hold(task, TASK_MS(pause_ms));
        return error.status == STATUS_OK ? TASK_MS(pause_ms) : exchange_failed(outbox, &error);
    }
    if (!is_any_tried)
        return TASK_MS(RELEASED_WAIT_MS);
    if (outbox->outage.failures > 0) {
        backoff_reset(&outbox->outage);
        log_info("outbox_engine_back", LOG_CSTR("module", outbox->config.table->module),
                 LOG_CSTR("table", outbox->config.table->name),
                 LOG_INT("seconds", (clock_mono_ns() - outbox->outage_ns) / CLOCK_NS_PER_S));
    }
    if (claim->count >= (size_t)outbox->settings.batch)
        return TASK_NOW;
    /* The results are settled together with the next claim. While events trickle in, that waits a moment, so that each does not
     * cost transactions of its own; an event that finds the outbox idle is claimed at once. */
    task_hold(task, TASK_MS(outbox->config.pace_ms));
    return TASK_MS(outbox->config.pace_ms);
}

/* ---- the lease ---- */

/* Three times per lease. A batch claimed less than a sixth of a lease ago is extended by the next run, in time. */
static int64_t outbox_extend_lease(struct task *task, void *context)
{
    struct outbox *outbox = context;
    int64_t lease_ns = outbox->settings.lease_ms * CLOCK_NS_PER_MS, now_ns = clock_mono_ns();
    struct buf claims = {0}, ids = {0};
    pthread_mutex_lock(&outbox->lock);
    bool is_due =
        outbox->is_publishing && outbox->claim.count > 0 && now_ns - outbox->leased_ns >= lease_ns / 6;
    for (size_t i = 0; i < outbox->claim.count && is_due; i++) {
        db_array_put(&claims, str_from(outbox->claim.id));
        db_array_put(&ids, outbox->claim.events[i].id);
        outbox->leased_ns = now_ns;
    }
    if (is_due)
        outbox->claim.is_moved = true;
    for (size_t i = 0; i < outbox->late_count; i++) {
        db_array_put(&claims, str_from(outbox->late[i].claim_id));
        db_array_put(&ids, str_from(outbox->late[i].id));
    }
    is_due |= outbox->late_count > 0;
    pthread_mutex_unlock(&outbox->lock);
    if (is_due && !task_is_stopping(task)) {
        struct error error = {0};
        enum status status =
            db_pool_exec(outbox->pool, &outbox->sql.renew,
                         DB_PARAMS(db_text_array(db_array_end(&claims)), db_i64(outbox->settings.lease_ms),
                                   db_text_array(db_array_end(&ids))),
                         clock_deadline_ms(EXCHANGE_MS), NULL, &error);
        if (status != STATUS_OK)
            log_warn("outbox_lease_not_renewed", LOG_CSTR("module", outbox->config.table->module),
                     LOG_ERROR_FIELDS(&error));
    }
    buf_deinit(&claims);
    buf_deinit(&ids);
    return lease_ns / 3;
}

/* ---- upkeep: any number of processes at the same time ---- */

static enum status delete_published(struct outbox *outbox, struct db_conn *conn, struct error *error)
{
    int64_t deleted = CLEANUP_ROWS, total = 0, now_ns = clock_mono_ns();
    enum status status = STATUS_OK;
    if (outbox->settings.keep_ms == 0 || now_ns < outbox->cleanup_ns)
        return STATUS_OK;
    outbox->cleanup_ns = now_ns + outbox->settings.cleanup_ms * CLOCK_NS_PER_MS;
    for (int i = 0; i < CLEANUP_BATCHES_MAX && deleted == CLEANUP_ROWS && status == STATUS_OK; i++) {
        if (task_is_stopping(outbox->upkeep))
            break;
        status = db_exec(conn, &outbox->sql.cleanup,
                         DB_PARAMS(db_i64(outbox->settings.keep_ms), db_i64(CLEANUP_ROWS)),
                         clock_deadline_ms(UPKEEP_MS), &deleted, error);
        total += status == STATUS_OK ? deleted : 0;
    }
    metric_add(metric_of_deleted(str_from(outbox->config.table->name)), (uint64_t)total);
    if (total > 0)
        log_info("outbox_cleaned_up", LOG_CSTR("module", outbox->config.table->module),
                 LOG_INT("events", total));
    return status;
}

static int64_t outbox_upkeep(struct task *task, void *context)
{
    struct outbox *outbox = context;
    const struct outbox_settings *settings = &outbox->settings;
    struct error error = {0};
    struct db_conn *conn = NULL;
    (void)task;
    struct db_result *rows = NULL;
    enum status status = db_acquire(outbox->upkeep_pool, clock_deadline_ms(UPKEEP_MS), &conn, &error);
    int64_t began_ns = clock_mono_ns();
    bool is_known = outbox->is_gauged_empty && atomic_load(&outbox->is_empty);
    if (status == STATUS_OK && began_ns >= outbox->measure_ns && !is_known) {
        status = db_query(conn, &outbox->sql.gauge, NULL, clock_deadline_ms(UPKEEP_MS), &rows, &error);
        int64_t ended_ns = clock_mono_ns();
        outbox->measure_ns = ended_ns + MEASURE_SHARE * (ended_ns - began_ns);
    }
    if (rows) {
        outbox_gauges_set(&outbox->gauges, outbox->config.table->module, rows);
        outbox->is_gauged_empty = db_result_rows(rows) == 0;
    }
    db_result_free(rows);
    if (status == STATUS_OK)
        status = delete_published(outbox, conn, &error);
    db_release(conn);
    if (status != STATUS_OK && status != STATUS_CANCELLED &&
        status != STATUS_DB_DOWN) /* the pool logs that */
        log_warn("outbox_upkeep_failed", LOG_CSTR("module", outbox->config.table->module),
                 LOG_ERROR_FIELDS(&error));
    bool is_often = settings->keep_ms > 0 && settings->cleanup_ms < UPKEEP_INTERVAL_MS;
    return TASK_MS(backoff_spread_ms(is_often ? settings->cleanup_ms : UPKEEP_INTERVAL_MS));
}

/* ---- notices: sent after the commit, never in it, where NOTIFY would serialise all commits ---- */

/* "refdata.outbox_event" → "outbox_refdata_outbox_event" */
static void write_channel(const struct outbox_table *table, char out[64])
{
    snprintf(out, 64, "outbox_%s", table->name);
    for (char *c = out; *c; c++)
        if (*c == '.')
            *c = '_';
}

void outbox_notify(const struct outbox_table *table, struct db_notifier *notifier)
{
    char channel[64];
    write_channel(table, channel);
    db_notify(notifier, str_from(channel), STR(""));
}

static void on_notice(void *context, struct str channel, struct str payload)
{
    (void)channel;
    (void)payload;
    outbox_wake(context);
}

/* Notices may have been lost. Before the first one the poll is enough. */
static void on_listening(void *context)
{
    struct outbox *outbox = context;
    if (atomic_load(&outbox->is_woken))
        outbox_wake(outbox);
}

static void on_poll(void *context, int64_t pending)
{
    struct outbox *outbox = context;
    atomic_store(&outbox->is_empty, pending == 0);
    if (pending != 0)
        outbox_wake(outbox);
}

/* ---- life ---- */

static struct task *create_task(struct outbox *outbox, const char *name, task_run_fn *run)
{
    return task_create(&(struct task_config){.name = name,
                                             .loop = outbox->config.loop,
                                             .pool = outbox->config.workers,
                                             .run = run,
                                             .context = outbox,
                                             .retry_min_ms = RETRY_MIN_MS,
                                             .retry_max_ms = RETRY_MAX_MS});
}

enum status outbox_create(const struct outbox_config *config, struct outbox **out, struct error *error)
{
    struct outbox *outbox = memory_zalloc(sizeof *outbox);
    const char *hostname = getenv("HOSTNAME");
    *out = NULL;
    outbox->arena = ARENA(8192);
    pthread_mutex_init(&outbox->lock, NULL);
    outbox->config = *config;
    outbox->settings = *config->settings;
    outbox->config.pace_ms = config->pace_ms ? config->pace_ms : PACE_MS;
    outbox->config.settings = NULL;
    outbox->config.target = NULL;
    outbox->due_ns = CLOCK_NEVER;
    int64_t pause_ms_max = outbox->settings.backoff_max_ms < OUTBOX_OUTAGE_PAUSE_MS_MAX
                               ? outbox->settings.backoff_max_ms
                               : OUTBOX_OUTAGE_PAUSE_MS_MAX;
    outbox->outage = (struct backoff){.min_ms = OUTAGE_PAUSE_MS_MIN, .max_ms = pause_ms_max};
    outbox_metrics_init();
    outbox_sql_init(&outbox->sql, config->table, &outbox->arena);
    if (hostname && *hostname && str_is_utf8(str_from(hostname)))
        snprintf(outbox->worker, sizeof outbox->worker, "%s", hostname);
    else if (gethostname(outbox->worker, sizeof outbox->worker - 1) != 0)
        snprintf(outbox->worker, sizeof outbox->worker, "unknown");
    outbox->claim.arena = ARENA(8192);
    outbox->walk.rows_max = WALK_ROWS_MIN;
    outbox->target = db_target_copy(config->target, config->table->name, &outbox->arena);
    outbox->target.connections_max = 1;
    enum status status = db_pool_create(&outbox->target, &outbox->pool, error);
    if (status == STATUS_OK)
        status = db_pool_create(&outbox->target, &outbox->upkeep_pool, error);
    if (status != STATUS_OK) {
        outbox_destroy(outbox);
        return status;
    }
    outbox->step = create_task(outbox, "outbox-step", outbox_step);
    outbox->lease = create_task(outbox, "outbox-lease", outbox_extend_lease);
    outbox->upkeep = create_task(outbox, "outbox-upkeep", outbox_upkeep);
    *out = outbox;
    return STATUS_OK;
}

void outbox_start(struct outbox *outbox)
{
    char channel[64];
    write_channel(outbox->config.table, channel);
    const char *kept = arena_str(&outbox->arena, str_from(channel)).ptr;
    outbox->listener = db_listener_create(&(struct db_listener_config){.loop = outbox->config.loop,
                                                                       .target = &outbox->target,
                                                                       .channels = {kept},
                                                                       .on_notice = on_notice,
                                                                       .on_listening = on_listening,
                                                                       .context = outbox});
    outbox->poll = db_poll_create(&(struct db_poll_config){.loop = outbox->config.loop,
                                                           .target = &outbox->target,
                                                           .sql = outbox->sql.pending.text.ptr,
                                                           .every_ms = outbox->settings.poll_ms,
                                                           .on_value = on_poll,
                                                           .context = outbox});
    task_start(outbox->step, outbox->poll ? TASK_MS(outbox->settings.poll_ms) : TASK_NOW);
    task_start(outbox->lease, TASK_MS(outbox->settings.lease_ms / 3));
    task_start(outbox->upkeep, TASK_NOW);
}

void outbox_wake(struct outbox *outbox)
{
    atomic_store(&outbox->is_woken, true);
    atomic_store(&outbox->is_new, true);
    task_wake(outbox->step);
    if (outbox->config.later)
        outbox->config.later->wake(outbox->config.context);
}

void outbox_stop(struct outbox *outbox, int64_t grace_ms)
{
    int64_t deadline_ns = clock_deadline_ms(grace_ms);
    bool is_ended = task_stop(outbox->step, TASK_MS(grace_ms));
    if (is_ended)
        end_late(outbox);
    if (is_ended && (outbox->claim.count > 0 || outbox->claim.doubtful[0] || outbox_late_ended(outbox) > 0)) {
        struct error error = {0};
        if (outbox_exchange(outbox, false, deadline_ns, &error) != STATUS_OK)
            log_warn("outbox_not_settled", LOG_CSTR("module", outbox->config.table->module),
                     LOG_ERROR_FIELDS(&error));
    }
    outbox_interrupt(outbox);
    task_stop(outbox->step, TASK_FOREVER);
    task_stop(outbox->lease, TASK_FOREVER);
    task_stop(outbox->upkeep, TASK_FOREVER);
}

void outbox_interrupt(struct outbox *outbox)
{
    db_pool_interrupt(outbox->pool);
    db_pool_interrupt(outbox->upkeep_pool);
}

void outbox_destroy(struct outbox *outbox)
{
    if (!outbox)
        return;
    task_destroy(outbox->step);
    task_destroy(outbox->lease);
    task_destroy(outbox->upkeep);
    db_listener_destroy(outbox->listener);
    db_poll_destroy(outbox->poll);
    outbox_gauges_deinit(&outbox->gauges);
    db_result_free(outbox->claim.rows);
    arena_deinit(&outbox->claim.arena);
    buf_deinit(&outbox->claim.places);
    outbox_walk_deinit(&outbox->walk);
    db_pool_destroy(outbox->pool);
    db_pool_destroy(outbox->upkeep_pool);
    free(outbox->late);
    arena_deinit(&outbox->arena);
    pthread_mutex_destroy(&outbox->lock);
    free(outbox);
}
