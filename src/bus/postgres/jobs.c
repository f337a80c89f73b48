/* Jobs on the worker pool: a reader's, each one batch at a time, and the upkeep's. No thread is held while
 * there is nothing to do; inside.h draws a job's states. */
#include <stddef.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "bus/postgres/inside.h"

#define FAILURE_WAIT_MIN_MS 50
#define FAILURE_WAIT_MAX_MS 2000

/* ---- jobs: all of this under the lock ---- */

static void submit(struct reader_job *job)
{
    struct reader *reader = job->reader;

    job->busy = worker_pool_submit(reader->postgres->config.workers, &job->work);
    if (!job->busy)
        return; /* the workers are swamped, or gone: the poll comes back to it */
    reader->busy++;
    reader->postgres->busy++;
}

static bool start_idle_job(struct reader *reader)
{
    /* Until it is ready there is one job to make it so, and one on_ready. */
    unsigned usable = atomic_load(&reader->ready) ? reader->consumer.spec.parallel : 1;

    for (unsigned i = 0; i < usable; i++)
        if (!reader->jobs[i].busy) {
            submit(&reader->jobs[i]);
            return true;
        }
    return false;
}

static void mark(struct reader *reader, int partition)
{
    if (partition == POSTGRES_ANYWHERE)
        reader->anywhere = true;
    else
        reader->marked[partition / 64] |= UINT64_C(1) << (partition % 64);
}

/* Is there a place that nobody is at? */
static bool has_place(const struct reader *reader)
{
    bool any = reader->anywhere;

    for (size_t i = 0; i < sizeof reader->marked / sizeof reader->marked[0]; i++)
        any |= (reader->marked[i] & ~reader->taken[i]) != 0;
    return any;
}

#define NOWHERE (-2)

/* One of the places where something may be. Who looks anywhere looks into all of them, but for those that others are at:
 * these look once more. */
static int take_place(struct reader *reader)
{
    if (reader->anywhere) {
        reader->anywhere = false;
        memcpy(reader->marked, reader->taken, sizeof reader->marked);
        return POSTGRES_ANYWHERE;
    }
    for (int i = 0; i < BUS_PARTITIONS_MAX / 64; i++) {
        uint64_t free = reader->marked[i] & ~reader->taken[i];
        if (!free)
            continue;
        uint64_t bit = free & -free;
        reader->marked[i] &= ~bit;
        reader->taken[i] |= bit;
        if (has_place(reader))
            start_idle_job(reader);
        return 64 * i + __builtin_ctzll(bit);
    }
    return NOWHERE;
}

/* Whoever was told of something there meanwhile found it locked, or the mark is still here. */
static void leave_place(struct reader *reader, int place, enum bus_postgres_step step)
{
    if (place != POSTGRES_ANYWHERE)
        reader->taken[place / 64] &= ~(UINT64_C(1) << (place % 64));
    bool one_of_many = place == POSTGRES_ANYWHERE && reader->consumer.spec.mode == BUS_SHARED;
    if (step == STEP_FOUND || (step == STEP_DRAINED && one_of_many))
        mark(reader, POSTGRES_ANYWHERE); /* there were more of them: many at once, then */
}

void bus_postgres_jobs_wake(struct reader *reader, int partition)
{
    struct postgres *postgres = reader->postgres;

    if (postgres->stopping || !postgres->started)
        return;
    mark(reader, partition);
    /* A backoff that is not over stays to be looked at, and so does one of another partition. */
    if (partition == POSTGRES_ANYWHERE && reader->due_ns <= clock_mono_ns())
        reader->due_ns = CLOCK_NEVER;
    if (!start_idle_job(reader))
        reader->woken = true;
}

void bus_postgres_jobs_preview(struct reader *reader, int partition, struct str preview)
{
    bus_postgres_preview_free(reader->preview);
    reader->preview = bus_postgres_preview_take(preview, partition);
}

static bool is_marked(const struct reader *reader, int partition)
{
    return reader->anywhere || partition == POSTGRES_ANYWHERE ||
           (reader->marked[partition / 64] >> (partition % 64) & 1);
}

/* Only what it is woken for by nothing else: whoever takes a message that was handed over does not look for others there. And only
 * with its time, which every.c compares after a crash of the server: without it the message is read. */
void bus_postgres_jobs_hand(struct reader *reader, int partition, const struct bus_message *message)
{
    bool is_handed = message && message->created_us > 0 && !is_marked(reader, partition);

    bus_postgres_preview_free(reader->preview);
    reader->preview = is_handed ? bus_postgres_preview_copy(message) : NULL;
}

struct postgres_preview *bus_postgres_reader_handed(struct reader *reader, int place)
{
    struct postgres_preview *handed = NULL;

    pthread_mutex_lock(&reader->postgres->lock);
    if (reader->preview && reader->preview->partition == place) {
        handed = reader->preview;
        reader->preview = NULL;
    }
    pthread_mutex_unlock(&reader->postgres->lock);
    return handed;
}

struct postgres_preview *bus_postgres_reader_preview(struct reader *reader, int place)
{
    struct postgres_preview *preview = NULL;

    pthread_mutex_lock(&reader->postgres->lock);
    if (reader->preview && (place == POSTGRES_ANYWHERE || reader->preview->partition == place)) {
        preview = reader->preview;
        reader->preview = NULL;
    }
    pthread_mutex_unlock(&reader->postgres->lock);
    if (!preview || (place != POSTGRES_ANYWHERE && atomic_load(&reader->was_last[place])))
        return preview;
    bus_postgres_preview_free(preview); /* what is claimed without it must not be tried again with it */
    return NULL;
}

static void due_locked(struct reader *reader, int64_t at_ns)
{
    struct postgres *postgres = reader->postgres;

    if (at_ns >= reader->due_ns)
        return;
    reader->due_ns = at_ns;
    if (postgres->rearm_posted || postgres->stopping)
        return;
    postgres->rearm_posted = true;
    loop_post(postgres->config.loop, &postgres->rearm);
}

static int64_t failure_wait_ms(struct reader *reader)
{
    int64_t wait_ms = FAILURE_WAIT_MIN_MS;

    for (unsigned i = 0; i < reader->failures && wait_ms < FAILURE_WAIT_MAX_MS; i++)
        wait_ms *= 2;
    reader->failures++;
    return wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms);
}

static void finish_job(struct reader_job *job)
{
    struct reader *reader = job->reader;
    struct postgres *postgres = reader->postgres;

    job->busy = false;
    reader->busy--;
    postgres->busy--;
    bool more = reader->woken || has_place(reader);
    if (more && !postgres->stopping && !job->work.cancelled) {
        reader->woken = false;
        submit(job);
    }
    if (postgres->busy == 0)
        pthread_cond_broadcast(&postgres->idle);
}

/* ---- jobs: on a worker ---- */

static void on_failed(struct reader *reader, const struct error *error)
{
    struct postgres *postgres = reader->postgres;

    pthread_mutex_lock(&postgres->lock);
    bool first = reader->failures == 0 && !postgres->stopping;
    due_locked(reader, clock_deadline_ms(failure_wait_ms(reader)));
    pthread_mutex_unlock(&postgres->lock);
    if (first && error->status != STATUS_CANCELLED)
        log_warn("bus_reader_waits", LOG_CSTR("topic", reader->consumer.spec.topic),
                 LOG_CSTR("group", reader->consumer.spec.group), LOG_ERROR_FIELDS(error));
}

static void run_job(struct worker_job *work)
{
    struct reader_job *job = (struct reader_job *)work;
    struct reader *reader = job->reader;
    struct error error = {0};

    pthread_mutex_lock(&reader->postgres->lock);
    int place = reader->postgres->stopping ? NOWHERE : take_place(reader);
    pthread_mutex_unlock(&reader->postgres->lock);
    if (place == NOWHERE)
        return;
    enum bus_postgres_step step = reader->consumer.spec.mode == BUS_SHARED
                                      ? bus_postgres_shared_step(reader, place, &error)
                                      : bus_postgres_every_step(reader, place, &error);
    if (step == STEP_FAILED)
        on_failed(reader, &error);
    pthread_mutex_lock(&reader->postgres->lock);
    if (step != STEP_FAILED)
        reader->failures = 0;
    leave_place(reader, place, step);
    pthread_mutex_unlock(&reader->postgres->lock);
}

static void job_done(struct worker_job *work)
{
    struct reader_job *job = (struct reader_job *)work;
    struct postgres *postgres = job->reader->postgres;

    pthread_mutex_lock(&postgres->lock);
    finish_job(job);
    pthread_mutex_unlock(&postgres->lock);
}

void bus_postgres_reader_wake(struct reader *reader)
{
    pthread_mutex_lock(&reader->postgres->lock);
    bus_postgres_jobs_wake(reader, POSTGRES_ANYWHERE);
    pthread_mutex_unlock(&reader->postgres->lock);
}

void bus_postgres_reader_due(struct reader *reader, int64_t wait_ms)
{
    pthread_mutex_lock(&reader->postgres->lock);
    due_locked(reader, clock_deadline_ms(wait_ms));
    pthread_mutex_unlock(&reader->postgres->lock);
}

bool bus_postgres_is_stopping(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    bool stopping = postgres->stopping;
    pthread_mutex_unlock(&postgres->lock);
    return stopping;
}

bool bus_postgres_handling_begin(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    bool begins = !postgres->stopping;
    postgres->handling += begins;
    pthread_mutex_unlock(&postgres->lock);
    return begins;
}

void bus_postgres_handling_end(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    if (--postgres->handling == 0)
        pthread_cond_broadcast(&postgres->idle);
    pthread_mutex_unlock(&postgres->lock);
}

static struct postgres *postgres_of_upkeep(struct worker_job *work)
{
    return (struct postgres *)((char *)work - offsetof(struct postgres, upkeep));
}

static void run_upkeep(struct worker_job *work)
{
    bus_postgres_upkeep_run(postgres_of_upkeep(work));
}

static void upkeep_done(struct worker_job *work)
{
    struct postgres *postgres = postgres_of_upkeep(work);

    pthread_mutex_lock(&postgres->lock);
    postgres->upkeep_busy = false;
    if (--postgres->busy == 0)
        pthread_cond_broadcast(&postgres->idle);
    pthread_mutex_unlock(&postgres->lock);
}

void bus_postgres_jobs_upkeep(struct postgres *postgres)
{
    if (postgres->upkeep_busy || postgres->stopping)
        return;
    postgres->upkeep_busy = worker_pool_submit(postgres->config.workers, &postgres->upkeep);
    postgres->busy += postgres->upkeep_busy;
}

void bus_postgres_jobs_init(struct reader_job *job, struct reader *reader)
{
    job->reader = reader;
    job->work.run = run_job;
    job->work.done = job_done;
}

void bus_postgres_jobs_init_upkeep(struct postgres *postgres)
{
    postgres->upkeep.run = run_upkeep;
    postgres->upkeep.done = upkeep_done;
}
