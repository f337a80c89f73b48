/* The Redis driver's life. It has a loop and a thread of its own, on which everything happens but the handlers and the
 * waiting of those who publish: nobody else's loop is held up by it, and a stop never waits for a server. */
#include "bus/redis/inside.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"

#define REPLY_BYTES_MIN (64u << 20)

/* ---- jobs ---- */

bool redis_job_submit(struct redis *redis, struct worker_job *job)
{
    pthread_mutex_lock(&redis->lock);
    redis->handling++;
    pthread_mutex_unlock(&redis->lock);
    if (worker_pool_submit(redis->config.workers, job))
        return true;
    redis_job_ended(redis);
    return false;
}

void redis_job_ended(struct redis *redis)
{
    pthread_mutex_lock(&redis->lock);
    redis->handling--;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
}

/* ---- subscriptions ---- */

struct redis_topic *redis_topic_of(struct redis *redis, const struct bus_topic_state *state)
{
    return &redis->topics[state - redis->bus.topics];
}

static void redis_subscribe(struct bus *bus, const struct bus_consumer *consumer)
{
    struct redis *redis = (struct redis *)bus;
    struct redis_reader *reader = memory_zalloc(sizeof *reader);
    unsigned partitions = consumer->topic->spec.partitions;

    reader->consumer = *consumer;
    reader->redis = redis;
    reader->topic = redis_topic_of(redis, consumer->topic);
    reader->last_waiting = &reader->first_waiting;
    reader->streams = memory_zalloc(partitions * sizeof reader->streams[0]);
    for (unsigned i = 0; i < partitions; i++)
        redis_stream_init(&reader->streams[i], reader, i);
    redis->readers = memory_realloc_array(redis->readers, redis->reader_count + 1, sizeof redis->readers[0]);
    redis->readers[redis->reader_count++] = reader;
}

void redis_each_stream(struct redis *redis, void (*fn)(struct redis_stream *stream))
{
    for (size_t i = 0; i < redis->reader_count; i++)
        for (unsigned p = 0; p < redis->readers[i]->topic->state->spec.partitions; p++)
            fn(&redis->readers[i]->streams[p]);
}

/* ---- wakes ---- */

static void on_wake(struct loop *loop, struct loop_message *message)
{
    struct redis_errand *errand = (struct redis_errand *)message;
    struct redis *redis = errand->redis;

    for (size_t i = 0; i < redis->reader_count; i++) {
        struct redis_reader *reader = redis->readers[i];
        if (atomic_load(&reader->topic->state->wakes) == 0)
            continue;
        for (unsigned p = 0; p < reader->topic->state->spec.partitions; p++)
            redis_stream_wake(&reader->streams[p]);
    }
    for (size_t i = 0; i < redis->bus.topic_count; i++)
        atomic_store(&redis->bus.topics[i].wakes, 0);
    loop_free_later(loop, errand, free);
}

void redis_run_on_loop(struct redis *redis, loop_message_fn *fn)
{
    struct redis_errand *errand = memory_zalloc(sizeof *errand);

    errand->message.on_message = fn;
    errand->redis = redis;
    loop_post(redis->loop, &errand->message);
}

/* Elsewhere they were told by the channel. */
static void redis_wake(struct bus *bus, struct bus_topic_state *topic)
{
    if (atomic_exchange(&topic->wakes, 1) == 0)
        redis_run_on_loop((struct redis *)bus, on_wake);
}

/* ---- start ---- */

static void on_start(struct loop *loop, struct loop_message *message)
{
    struct redis_errand *errand = (struct redis_errand *)message;
    struct redis *redis = errand->redis;

    redis_cluster_start(&redis->cluster);
    redis_channel_start(redis);
    redis_upkeep_start(redis);
    redis_each_stream(redis, redis_stream_step);
    loop_free_later(loop, errand, free);
}

static void redis_start(struct bus *bus)
{
    struct redis *redis = (struct redis *)bus;

    pthread_mutex_lock(&redis->lock);
    redis->started = true;
    pthread_mutex_unlock(&redis->lock);
    redis_run_on_loop(redis, on_start);
}

/* ---- the end ---- */

static void free_reader(struct redis_reader *reader)
{
    for (unsigned i = 0; i < reader->topic->state->spec.partitions; i++)
        redis_stream_deinit(&reader->streams[i]);
    for (size_t i = 0; i < reader->hint_count; i++)
        free(reader->hints[i].payload);
    bus_consumer_deinit(&reader->consumer);
    free(reader->streams);
    free(reader);
}

static void free_topics(struct redis *redis)
{
    for (size_t i = 0; redis->topics && i < redis->bus.topic_count; i++) {
        struct redis_topic *topic = &redis->topics[i];
        for (unsigned p = 0; topic->partitions && p < topic->state->spec.partitions; p++) {
            free(topic->partitions[p].stream);
            free(topic->partitions[p].channel);
        }
        free(topic->partitions);
    }
    free(redis->topics);
}

static void redis_destroy(struct bus *bus)
{
    struct redis *redis = (struct redis *)bus;

    if (redis->has_thread)
        bus_redis_stop(bus, 0);
    for (size_t i = 0; i < redis->reader_count; i++)
        free_reader(redis->readers[i]);
    redis->reader_count = 0; /* late wakes are run with the loop's end */
    free(redis->readers);
    if (redis->loop) {
        redis_link_deinit(&redis->channel.link);
        arena_deinit(&redis->channel.arena);
        redis_cluster_deinit(&redis->cluster);
        loop_destroy(redis->loop);
    }
    free(redis->cluster.seeds);
    redis_access_deinit(&redis->access);
    free_topics(redis);
    db_pool_destroy(redis->pool);
    free(redis->pod);
    pthread_cond_destroy(&redis->changed);
    pthread_mutex_destroy(&redis->lock);
    bus_deinit(&redis->bus);
    free(redis);
}

static const struct bus_driver driver = {
    .name = "Redis",
    .publish = bus_redis_publish,
    .wake = redis_wake,
    .subscribe = redis_subscribe,
    .start = redis_start,
    .stop = bus_redis_stop,
    .interrupt = bus_redis_interrupt,
    .destroy = redis_destroy,
};

/* ---- creation ---- */

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

static void take_config(struct redis *redis, const struct bus_redis_config *config)
{
    struct bus_redis_config *own = &redis->config;

    *own = *config;
    own->connect_ms = or_default(config->connect_ms, 2000);
    own->answer_ms = or_default(config->answer_ms, 2000);
    own->poll_ms = or_default(config->poll_ms, 1000);
    own->pod_dead_ms = or_default(config->pod_dead_ms, 600000);
    own->lease_ms = or_default(config->lease_ms, 8000);
    own->handler_ms = or_default(config->handler_ms, 30000);
    own->keep_dead_ms = or_default(config->keep_dead_ms, INT64_C(30) * 24 * 3600 * 1000);
    redis->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : 4u << 20;
    redis->pod = str_dup(str_from(config->pod ? config->pod : redis->instance));
    own->security = (struct bus_redis_security){0}; /* these are the caller's */
    own->nodes = NULL;
    own->topics = NULL;
    own->names = NULL;
    own->target = NULL;
    own->pod = NULL;
}

static enum status take_nodes(struct redis *redis, const struct bus_redis_config *config, struct error *error)
{
    struct redis_cluster *cluster = &redis->cluster;

    if (config->node_count == 0)
        return error_set(error, STATUS_CONFIG, "Redis needs a node");
    cluster->seed_count = config->cluster ? config->node_count : 1;
    cluster->seeds = memory_zalloc(cluster->seed_count * sizeof cluster->seeds[0]);
    for (size_t i = 0; i < cluster->seed_count; i++)
        if (!redis_address_parse(str_from(config->nodes[i]), &cluster->seeds[i]))
            return error_set(error, STATUS_CONFIG, "a Redis node is HOST:PORT, not \"%.*s\"",
                             STR_ARG(str_utf8_cut(str_from(config->nodes[i]), 100)));
    cluster->single = !config->cluster;
    cluster->connect_ms = redis->config.connect_ms;
    cluster->answer_ms = redis->config.answer_ms;
    return STATUS_OK;
}

static char *name_of(const char *given, const char *topic, const char *suffix, unsigned partition,
                     unsigned partitions)
{
    struct buf name;

    buf_init(&name);
    if (given)
        buf_put_str(&name, str_from(given));
    else
        buf_printf(&name, "%s:%s", topic, suffix);
    if (partitions > 1)
        buf_printf(&name, ":%u", partition);
    char *text = str_dup(buf_str(&name));
    buf_deinit(&name);
    return text;
}

/* A brace that begins no hash tag would leave no way to put a key beside the stream. */
static bool has_odd_braces(const char *name)
{
    const char *open = strchr(name, '{'), *close = open ? strchr(open, '}') : strchr(name, '}');

    return open ? !close || close == open + 1 : close != NULL;
}

static enum status take_names(struct redis *redis, const struct bus_redis_config *config, struct error *error)
{
    redis->topics = memory_zalloc(redis->bus.topic_count * sizeof redis->topics[0]);
    for (size_t i = 0; i < redis->bus.topic_count; i++) {
        struct bus_topic_state *state = &redis->bus.topics[i];
        const struct bus_redis_names *given = &(struct bus_redis_names){0};
        unsigned partitions = state->spec.partitions;
        for (size_t n = 0; n < config->name_count; n++)
            if (str_eq(str_from(config->names[n].topic), state->name))
                given = &config->names[n];
        struct redis_topic *topic = &redis->topics[i];
        topic->state = state;
        atomic_store(&state->known, true);
        topic->partitions = memory_zalloc(partitions * sizeof topic->partitions[0]);
        for (unsigned p = 0; p < partitions; p++) {
            struct redis_names *names = &topic->partitions[p];
            names->stream = name_of(given->stream, state->spec.name, "stream", p, partitions);
            names->channel = name_of(given->channel, state->spec.name, "pub", p, partitions);
            names->slot = redis_slot_of(str_from(names->stream));
            if (has_odd_braces(names->stream))
                return error_set(error, STATUS_CONFIG, "a stream called \"%s\" has a brace but no hash tag",
                                 names->stream);
        }
    }
    return STATUS_OK;
}

static void *run_loop(void *loop)
{
    pthread_setname_np(pthread_self(), "bus-redis");
    loop_run(loop);
    return NULL;
}

static enum status start_thread(struct redis *redis, struct error *error)
{
    redis->loop = loop_create(&(struct loop_options){0});
    redis_cluster_init(&redis->cluster, redis->loop, &redis->access);
    redis_channel_init(redis);
    redis->has_thread = pthread_create(&redis->thread, NULL, run_loop, redis->loop) == 0;
    return redis->has_thread ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no thread for Redis");
}

static void init_sync(struct redis *redis)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&redis->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&redis->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    snprintf(redis->instance, sizeof redis->instance, "%016llx", (unsigned long long)random_u64());
}

enum status bus_redis_create(const struct bus_redis_config *config, struct bus **bus, struct error *error)
{
    struct redis *redis = memory_zalloc(sizeof *redis);
    size_t reply_bytes;

    *bus = NULL;
    init_sync(redis);
    take_config(redis, config);
    reply_bytes = REPLY_BYTES_MIN + 4 * redis->bus.message_bytes_max;
    redis_upkeep_attach(redis);
    enum status status = bus_init(&redis->bus, &driver, config->topics, config->topic_count,
                                  redis->config.keep_dead_ms, error);
    if (status == STATUS_OK)
        status = take_nodes(redis, config, error);
    if (status == STATUS_OK)
        status = take_names(redis, config, error);
    if (status == STATUS_OK)
        status = redis_access_init(&redis->access, &config->security, reply_bytes, error);
    if (status == STATUS_OK && config->target)
        status = db_pool_create(config->target, &redis->pool, error);
    if (status == STATUS_OK)
        status = start_thread(redis, error);
    if (status == STATUS_OK)
        *bus = &redis->bus;
    else
        redis_destroy(&redis->bus);
    return status;
}

bool bus_redis_is_up(const struct bus *bus)
{
    return atomic_load(&((const struct redis *)bus)->cluster.is_up);
}
