/* Jobs on the worker pool: the step, the renewal of a lease, and upkeep; one of each at a time. No thread is
 * held while there is nothing to do. */
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "outbox/outbox_inside.h"

enum {
    EXCHANGE_MS = 10000,
    FAILURE_WAIT_MIN_MS = 50,
    FAILURE_WAIT_MAX_MS = 2000,
    LEFT_WAIT_MS = 100,
    AWAY_WAIT_MIN_MS = 100,
};

#define OUTBOX_OF(job, member) ((struct outbox *)((char *)(job)-offsetof(struct outbox, member)))

bool outbox_is_stopping(struct outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    bool stopping = outbox->stopping;
    pthread_mutex_unlock(&outbox->lock);
    return stopping;
}

/* ---- under the lock ---- */

static void submit(struct outbox *outbox, struct worker_job *job, bool *busy)
{
    /* Refused when the workers are swamped, or gone: the poll comes back to it. */
    *busy = worker_pool_submit(outbox->config.workers, job);
}

static void tell_timer(struct outbox *outbox, int64_t at_ns)
{
    if (at_ns >= outbox->armed_ns || outbox->rearm_posted || outbox->stopping)
        return;
    outbox->rearm_posted = true;
    loop_post(outbox->config.loop, &outbox->rearm);
}

static void look_again(struct outbox *outbox, int64_t wait_ms)
{
    int64_t at_ns = clock_deadline_ms(wait_ms);
    if (at_ns < outbox->due_ns)
        outbox->due_ns = at_ns;
    tell_timer(outbox, outbox->due_ns);
}

/* What was published is settled together with the claim of what came meanwhile. An event that comes to a quiet outbox is
 * claimed at once; behind others that trickle in, it waits a moment instead of having transactions of its own. */
static void pace(struct outbox *outbox, int64_t at_ns)
{
    outbox->paced = true;
    outbox->pace_ns = at_ns;
    tell_timer(outbox, at_ns);
}

void outbox_jobs_wake(struct outbox *outbox)
{
    if (outbox->stopping || !outbox->started)
        return;
    int64_t now_ns = clock_mono_ns();
    if (now_ns >= outbox->due_ns) /* a backoff that is not over is waited for all the same */
        outbox->due_ns = CLOCK_NEVER;
    if (outbox->step_busy)
        outbox->woken = true;
    else if (now_ns < outbox->pace_ns)
        pace(outbox, outbox->pace_ns);
    else
        submit(outbox, &outbox->step, &outbox->step_busy);
}

void outbox_jobs_renew(struct outbox *outbox)
{
    if (!outbox->renewal_busy && !outbox->stopping)
        submit(outbox, &outbox->renewal, &outbox->renewal_busy);
    outbox->renew_ns = clock_deadline_ms(outbox->settings.lease_ms / 3);
}

void outbox_jobs_upkeep(struct outbox *outbox)
{
    if (!outbox->upkeep_busy && !outbox->stopping)
        submit(outbox, &outbox->upkeep, &outbox->upkeep_busy);
}

static void ended(struct outbox *outbox)
{
    if (!outbox->step_busy && !outbox->renewal_busy && !outbox->upkeep_busy)
        pthread_cond_broadcast(&outbox->idle);
}

/* ---- the step ---- */

static void on_failed(struct outbox *outbox, const struct error *error)
{
    int64_t wait_ms = FAILURE_WAIT_MIN_MS;
    pthread_mutex_lock(&outbox->lock);
    bool first = outbox->failures == 0 && !outbox->stopping;
    for (unsigned i = 0; i < outbox->failures && wait_ms < FAILURE_WAIT_MAX_MS; i++)
        wait_ms *= 2;
    outbox->failures++;
    look_again(outbox, wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms));
    pthread_mutex_unlock(&outbox->lock);
    if (first && error->status != STATUS_CANCELLED)
        log_warn("outbox_waits", LOG_CSTR("module", outbox->config.table->module), LOG_ERROR_FIELDS(error));
}

static bool exchange(struct outbox *outbox, bool claim)
{
    struct outbox_claims *claims = &outbox->claims;
    int64_t deadline_ns = clock_deadline_ms(EXCHANGE_MS);
    struct error error = {0};
    struct db_conn *conn = NULL;
    enum status status = db_acquire(outbox->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK && claims->is_relaxed && db_conn_opened_ns(conn) > claims->published_ns)
        outbox_verdicts_doubt(claims);
    if (status == STATUS_OK)
        status = outbox_claims_exchange(claims, conn, claim, deadline_ns, &error);
    db_release(conn);
    if (status != STATUS_OK) {
        on_failed(outbox, &error);
        return false;
    }
    pthread_mutex_lock(&outbox->lock);
    outbox->failures = 0;
    if (claims->backoff_ms > 0)
        look_again(outbox, claims->backoff_ms);
    claims->backoff_ms = 0;
    pthread_mutex_unlock(&outbox->lock);
    if (claims->settled > 0 && outbox->config.on_settled)
        outbox->config.on_settled(outbox->config.context, claims->settled);
    return true;
}

/* From here until disarm_renewal() the timer sees to the lease. */
static void arm_renewal(struct outbox *outbox)
{
    int64_t third_ns = outbox->settings.lease_ms * CLOCK_NS_PER_MS / 3;
    pthread_mutex_lock(&outbox->lock);
    memcpy(outbox->renew_id, outbox->claims.id, sizeof outbox->renew_id);
    outbox->renew_ids = str_dup(buf_str(&outbox->claims.ids));
    outbox->renew_ns = outbox->claims.claimed_ns + third_ns;
    tell_timer(outbox, outbox->renew_ns);
    pthread_mutex_unlock(&outbox->lock);
}

static void disarm_renewal(struct outbox *outbox)
{
    pthread_mutex_lock(&outbox->lock);
    outbox->renew_ns = CLOCK_NEVER;
    free(outbox->renew_ids);
    outbox->renew_ids = NULL;
    pthread_mutex_unlock(&outbox->lock);
}

/* A suspect comes alone, so a look at the first is enough. */
static bool is_worn_out(const struct outbox *outbox)
{
    const struct outbox_event *event = &outbox->claims.events[0];
    return event->claims - event->attempts > outbox->settings.attempts_max;
}

static void publish(struct outbox *outbox)
{
    struct outbox_claims *claims = &outbox->claims;
    struct outbox_batch batch = {
        .events = claims->events,
        .count = claims->count,
        .verdicts = claims->verdicts,
        .deadline_ns = claims->claimed_ns + outbox->settings.lease_ms * CLOCK_NS_PER_MS,
    };
    if (outbox_is_stopping(outbox)) {
        for (size_t i = 0; i < batch.count; i++)
            outbox_batch_release(&batch, i);
    } else if (is_worn_out(outbox)) {
        outbox_batch_poison(&batch, 0, "claimed %lld times and nobody came back",
                            (long long)(claims->events[0].claims - claims->events[0].attempts - 1));
    } else {
        arm_renewal(outbox);
        claims->published_ns = clock_mono_ns();
        outbox->config.publish(outbox->config.context, &batch);
        disarm_renewal(outbox);
    }
    claims->is_relaxed = batch.is_relaxed;
    outbox_verdicts_conclude(claims);
}

static bool all_left(const struct outbox_claims *claims)
{
    for (size_t i = 0; i < claims->count; i++)
        if (claims->verdicts[i].kind != OUTBOX_RELEASE)
            return false;
    return true;
}

/* ---- the engine is away ---- */

static const struct outbox_verdict *find_away(const struct outbox_claims *claims)
{
    for (size_t i = 0; i < claims->count; i++)
        if (claims->verdicts[i].kind == OUTBOX_OUTAGE)
            return &claims->verdicts[i];
    return NULL;
}

/* Doubled each time up to a bound, so that a million waiting rows are neither all tried nor kept waiting when it is back. */
static int64_t away_wait_ms(const struct outbox *outbox)
{
    int64_t wait_ms = AWAY_WAIT_MIN_MS;
    int64_t max_ms = outbox->settings.backoff_max_ms < OUTBOX_OUTAGE_PAUSE_MS_MAX
                         ? outbox->settings.backoff_max_ms
                         : OUTBOX_OUTAGE_PAUSE_MS_MAX;
    for (unsigned i = 1; i < outbox->outages && 2 * wait_ms <= max_ms; i++)
        wait_ms *= 2;
    return wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)(wait_ms / 2 + 1));
}

/* Rows show it at once. The next step tries again; what is committed meanwhile wakes none before. */
static void on_away(struct outbox *outbox, const struct outbox_verdict *verdict)
{
    if (outbox->outages++ == 0) {
        outbox->away_since_ns = clock_mono_ns();
        log_warn("outbox_engine_away", LOG_CSTR("module", outbox->config.table->module),
                 LOG_CSTR("table", outbox->config.table->name), LOG_CSTR("error", verdict->reason));
    }
    outbox->claims.away_ms = away_wait_ms(outbox);
    (void)exchange(outbox, false);
    pthread_mutex_lock(&outbox->lock);
    outbox->again = true;
    pace(outbox, clock_deadline_ms(outbox->claims.away_ms));
    pthread_mutex_unlock(&outbox->lock);
}

static void on_back(struct outbox *outbox)
{
    if (outbox->outages == 0)
        return;
    outbox->outages = 0;
    log_info("outbox_engine_back", LOG_CSTR("module", outbox->config.table->module),
             LOG_CSTR("table", outbox->config.table->name),
             LOG_INT("seconds", (clock_mono_ns() - outbox->away_since_ns) / CLOCK_NS_PER_S));
}

/* The verdicts are settled when the next step comes: at once, or a little later if nothing could be done, so as
 * not to turn in circles. */
static void run_step(struct worker_job *job)
{
    struct outbox *outbox = OUTBOX_OF(job, step);
    struct outbox_claims *claims = &outbox->claims;
    outbox->again = false;
    if (!exchange(outbox, !outbox_is_stopping(outbox)))
        return;
    outbox->again = claims->count > 0 || claims->more;
    if (claims->count == 0)
        return;
    publish(outbox);
    const struct outbox_verdict *away = find_away(claims);
    if (away) {
        on_away(outbox, away);
    } else if (!all_left(claims)) {
        on_back(outbox);
    } else if (!outbox_is_stopping(outbox)) {
        pthread_mutex_lock(&outbox->lock);
        outbox->again = false;
        look_again(outbox, LEFT_WAIT_MS);
        pthread_mutex_unlock(&outbox->lock);
    }
}

/* A stop lets the step come once more where verdicts wait to be written. */
static void step_done(struct worker_job *job)
{
    struct outbox *outbox = OUTBOX_OF(job, step);
    pthread_mutex_lock(&outbox->lock);
    outbox->step_busy = false;
    outbox->owes = outbox->claims.count > 0 || outbox->claims.doubtful[0];
    bool more = outbox->stopping ? outbox->owes && outbox->failures == 0 : outbox->again || outbox->woken;
    if (more && !job->cancelled) {
        /* Who found nothing, and was woken meanwhile, is at the beginning of something: that is not kept waiting. */
        bool paced = !outbox->stopping && outbox->claims.count > 0 &&
                     outbox->claims.count < (size_t)outbox->settings.batch;
        outbox->woken = false;
        if (outbox->outages > 0 && !outbox->stopping)
            pace(outbox, outbox->pace_ns);
        else if (paced)
            pace(outbox, clock_deadline_ms(outbox->config.pace_ms));
        else
            submit(outbox, job, &outbox->step_busy);
    }
    ended(outbox);
    pthread_mutex_unlock(&outbox->lock);
}

/* ---- renewal ---- */

static void run_renewal(struct worker_job *job)
{
    struct outbox *outbox = OUTBOX_OF(job, renewal);
    struct error error = {0};
    struct db_conn *conn = NULL;
    char id[UUID_TEXT_BYTES], *ids = NULL;
    pthread_mutex_lock(&outbox->lock);
    memcpy(id, outbox->renew_id, sizeof id);
    if (outbox->renew_ids)
        ids = str_dup(str_from(outbox->renew_ids));
    pthread_mutex_unlock(&outbox->lock);
    if (!ids)
        return; /* it has ended meanwhile */
    struct buf lease;
    buf_init(&lease);
    buf_put_u64(&lease, (uint64_t)outbox->settings.lease_ms);
    int64_t deadline_ns = clock_deadline_ms(EXCHANGE_MS);
    enum status status = db_acquire(outbox->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = db_exec(conn, &outbox->sql.renew,
                         (struct db_param[]){{str_from(id)}, {buf_str(&lease)}, {str_from(ids)}}, deadline_ns,
                         NULL, &error);
    db_release(conn);
    if (status != STATUS_OK)
        log_warn("outbox_lease_not_renewed", LOG_CSTR("module", outbox->config.table->module),
                 LOG_ERROR_FIELDS(&error));
    buf_deinit(&lease);
    free(ids);
}

static void renewal_done(struct worker_job *job)
{
    struct outbox *outbox = OUTBOX_OF(job, renewal);
    pthread_mutex_lock(&outbox->lock);
    outbox->renewal_busy = false;
    ended(outbox);
    pthread_mutex_unlock(&outbox->lock);
}

/* ---- upkeep ---- */

static void run_upkeep(struct worker_job *job)
{
    struct outbox *outbox = OUTBOX_OF(job, upkeep);
    int64_t now_ns = clock_mono_ns();
    pthread_mutex_lock(&outbox->lock);
    bool cleanup = outbox->settings.keep_ms > 0 && now_ns >= outbox->cleanup_ns;
    if (cleanup)
        outbox->cleanup_ns = now_ns + outbox->settings.cleanup_ms * CLOCK_NS_PER_MS;
    pthread_mutex_unlock(&outbox->lock);
    outbox_upkeep_run(outbox, cleanup);
}

static void upkeep_done(struct worker_job *job)
{
    struct outbox *outbox = OUTBOX_OF(job, upkeep);
    pthread_mutex_lock(&outbox->lock);
    outbox->upkeep_busy = false;
    ended(outbox);
    pthread_mutex_unlock(&outbox->lock);
}

void outbox_jobs_init(struct outbox *outbox)
{
    outbox->step.run = run_step;
    outbox->step.done = step_done;
    outbox->renewal.run = run_renewal;
    outbox->renewal.done = renewal_done;
    outbox->upkeep.run = run_upkeep;
    outbox->upkeep.done = upkeep_done;
}
