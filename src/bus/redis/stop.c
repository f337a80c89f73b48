/* How it ends: handlers get their time, what is settled is acknowledged, leases and the pod's own groups are given up, and
 * none of it waits for a server longer than a moment. */
#include "bus/redis/inside.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum { FAREWELL_MS = 500 }; /* for the last questions */

static void on_quiet(struct loop *loop, struct loop_message *message)
{
    ((struct redis_errand *)message)->redis->quiet = true;
    loop_free_later(loop, message, free);
}

static void close_all(struct redis *redis)
{
    loop_timer_stop(redis->loop, &redis->upkeep_timer);
    loop_timer_stop(redis->loop, &redis->farewell_timer);
    redis_channel_close(redis);
    redis_cluster_close(&redis->cluster);
    for (size_t i = 0; i < redis->reader_count; i++)
        for (unsigned p = 0; p < redis->readers[i]->topic->state->spec.partitions; p++)
            loop_timer_stop(redis->loop, &redis->readers[i]->streams[p].timer);
    pthread_mutex_lock(&redis->lock);
    redis->said_farewell = true;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
}

static void on_farewell_due(struct loop_timer *timer)
{
    close_all((struct redis *)((char *)timer - offsetof(struct redis, farewell_timer)));
}

/* One thing less that a stop waits for. */
static void said_one(struct redis *redis)
{
    if (--redis->farewells == 0)
        loop_timer_start(redis->loop, &redis->farewell_timer, 0, on_farewell_due);
}

static void on_farewell_answer(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, ask));

    (void)status;
    (void)error;
    said_one(stream->reader->redis);
}

/* What is settled is acknowledged; the lease goes to whoever wants it, a group of our own is nobody's any more. */
void redis_stream_leave(struct redis_stream *stream)
{
    struct redis *redis = stream->reader->redis;
    bool shared = redis_stream_is_shared(stream);

    if (!stream->grouped || (shared && !stream->held)) {
        said_one(redis);
        return;
    }
    redis_stream_flush_acks(stream);
    if (shared)
        redis_script_release(stream, &stream->ask);
    else
        redis_script_leave(stream, &stream->ask);
    stream->ask.on_done = on_farewell_answer;
    redis_cluster_ask(&redis->cluster, &stream->ask);
}

/* One that is being read may get a lease by the answer: then it leaves when that has come. */
static void take_leave(struct redis_stream *stream)
{
    if (!stream->grouped)
        return;
    stream->reader->redis->farewells++;
    stream->leaving = true;
    if (!stream->ask.busy)
        redis_stream_leave(stream);
}

static void on_farewell(struct loop *loop, struct loop_message *message)
{
    struct redis *redis = ((struct redis_errand *)message)->redis;

    loop_free_later(loop, message, free);
    pthread_mutex_lock(&redis->lock);
    bool hurry = redis->interrupted;
    pthread_mutex_unlock(&redis->lock);
    loop_timer_start(redis->loop, &redis->farewell_timer, clock_deadline_ms(FAREWELL_MS), on_farewell_due);
    redis->farewells = 1; /* this one ends when all have been sent */
    if (!hurry)
        redis_each_stream(redis, take_leave);
    said_one(redis);
}

void bus_redis_interrupt(struct bus *bus)
{
    struct redis *redis = (struct redis *)bus;

    if (redis->pool)
        db_pool_interrupt(redis->pool);
    pthread_mutex_lock(&redis->lock);
    redis->interrupted = true;
    redis->stopping = true;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
}

/* Till nobody handles, or it is too late. Under the lock. */
static void wait_handled(struct redis *redis, int64_t grace_ms)
{
    int64_t deadline_ns = clock_deadline_ms(grace_ms);
    struct timespec until = {.tv_sec = deadline_ns / CLOCK_NS_PER_S, .tv_nsec = deadline_ns % CLOCK_NS_PER_S};
    int rc = 0;

    while (redis->handling > 0 && !redis->interrupted && rc == 0)
        rc = pthread_cond_timedwait(&redis->changed, &redis->lock, &until);
}

static void wait_all_left(struct redis *redis)
{
    while (redis->handling > 0 || redis->publishers > 0)
        pthread_cond_wait(&redis->changed, &redis->lock);
}

static void end_thread(struct redis *redis)
{
    if (!redis->has_thread)
        return;
    loop_stop(redis->loop);
    pthread_join(redis->thread, NULL);
    redis->has_thread = false;
}

void bus_redis_stop(struct bus *bus, int64_t grace_ms)
{
    struct redis *redis = (struct redis *)bus;

    pthread_mutex_lock(&redis->lock);
    bool ended = redis->ended;
    redis->stopping = redis->ended = true;
    pthread_mutex_unlock(&redis->lock);
    if (ended)
        return;
    redis_run_on_loop(redis, on_quiet);
    pthread_mutex_lock(&redis->lock);
    wait_handled(redis, grace_ms);
    bool late = redis->handling > 0;
    pthread_mutex_unlock(&redis->lock);
    if (late)
        bus_redis_interrupt(bus);
    pthread_mutex_lock(&redis->lock);
    wait_all_left(redis);
    pthread_mutex_unlock(&redis->lock);
    redis_run_on_loop(redis, on_farewell);
    pthread_mutex_lock(&redis->lock);
    while (!redis->said_farewell)
        pthread_cond_wait(&redis->changed, &redis->lock);
    pthread_mutex_unlock(&redis->lock);
    end_thread(redis);
}
