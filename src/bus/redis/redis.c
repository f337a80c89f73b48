/* The Redis driver's life. It has a loop and a thread of its own, so that it delays no other loop; only handlers and waiting
 * publishers use other threads. A stop waits at most LEAVE_MS for Redis. */
#include "bus/redis/inside.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

enum { LEAVE_MS = 500 }; /* for the removal of our groups */
#define REPLY_BYTES_MIN (64u << 20)

static struct metric_family connections_family = {
    .name = "redis_connections_total",
    .help = "Connections to Redis nodes that were opened.",
    .type = METRIC_COUNTER,
};
static struct metric_family redirects_family = {
    .name = "redis_redirects_total",
    .help = "Requests that a node of the cluster redirected to another one.",
    .type = METRIC_COUNTER,
};

struct redis_topic *redis_topic_of(struct redis *redis, const struct bus_topic_state *state)
{
    return &redis->topics[state - redis->bus.topics];
}

/* ---- start and stop ---- */

static void on_start(struct loop *loop, struct loop_message *message)
{
    struct redis *redis = CONTAINER_OF(message, struct redis, start);

    (void)loop;
    redis_cluster_start(&redis->cluster, &redis->topics[0]);
    redis_channel_start(redis);
    for (size_t i = 0; i < redis->reader_count; i++)
        redis_reader_step(redis->readers[i]);
}

static void redis_start(struct bus *bus)
{
    struct redis *redis = (struct redis *)bus;

    for (size_t i = 0; i < redis->reader_count; i++)
        task_start(redis->readers[i]->task, TASK_IDLE);
    redis->start.on_message = on_start;
    loop_post(redis->loop, &redis->start);
}

/* All replies have arrived, or LEAVE_MS is over. */
static void on_leave_timer(struct loop_timer *timer)
{
    struct redis *redis = CONTAINER_OF(timer, struct redis, leave_timer);

    redis_channel_close(redis);
    redis_cluster_close(&redis->cluster);
    pthread_mutex_lock(&redis->lock);
    redis->has_left = true;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
}

void redis_leave_replied(struct redis *redis)
{
    if (--redis->leaving == 0)
        loop_timer_start(redis->loop, &redis->leave_timer, 0, on_leave_timer);
}

static void on_leave_posted(struct loop *loop, struct loop_message *message)
{
    struct redis *redis = CONTAINER_OF(message, struct redis, leave);

    (void)loop;
    pthread_mutex_lock(&redis->lock);
    bool is_interrupted = redis->is_interrupted;
    pthread_mutex_unlock(&redis->lock);
    loop_timer_start(redis->loop, &redis->leave_timer, clock_deadline_ms(LEAVE_MS), on_leave_timer);
    redis->leaving = 1; /* until all requests are sent */
    for (size_t i = 0; i < redis->reader_count; i++) {
        redis->leaving++;
        redis_reader_leave(redis->readers[i], !is_interrupted);
    }
    redis_leave_replied(redis);
}

static void redis_interrupt(struct bus *bus)
{
    struct redis *redis = (struct redis *)bus;

    pthread_mutex_lock(&redis->lock);
    redis->is_interrupted = true;
    redis->is_stopping = true;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
}

static void redis_stop(struct bus *bus, int64_t grace_ms)
{
    struct redis *redis = (struct redis *)bus;
    int64_t deadline_ns = clock_deadline_ms(grace_ms);

    if (!redis->has_thread)
        return;
    pthread_mutex_lock(&redis->lock);
    redis->is_stopping = true;
    pthread_mutex_unlock(&redis->lock);
    for (size_t i = 0; i < redis->reader_count; i++) {
        int64_t left_ns = deadline_ns - clock_mono_ns();
        if (!task_stop(redis->readers[i]->task, left_ns > 0 ? left_ns : 0))
            redis_interrupt(bus); /* what the handler publishes is cancelled */
    }
    for (size_t i = 0; i < redis->reader_count; i++)
        if (!task_stop(redis->readers[i]->task, TASK_FOREVER))
            abort();
    pthread_mutex_lock(&redis->lock);
    while (redis->publishers > 0)
        pthread_cond_wait(&redis->changed, &redis->lock);
    pthread_mutex_unlock(&redis->lock);
    redis->leave.on_message = on_leave_posted;
    loop_post(redis->loop, &redis->leave);
    pthread_mutex_lock(&redis->lock);
    while (!redis->has_left)
        pthread_cond_wait(&redis->changed, &redis->lock);
    pthread_mutex_unlock(&redis->lock);
    loop_stop(redis->loop);
    pthread_join(redis->thread, NULL);
    redis->has_thread = false;
}

static void redis_destroy(struct bus *bus)
{
    struct redis *redis = (struct redis *)bus;

    redis_stop(bus, 0);
    for (size_t i = 0; i < redis->reader_count; i++)
        redis_reader_destroy(redis->readers[i]);
    free(redis->readers);
    if (redis->loop) {
        redis_link_deinit(&redis->channel.link);
        arena_deinit(&redis->channel.arena);
        redis_cluster_deinit(&redis->cluster);
        loop_destroy(redis->loop);
    }
    free(redis->cluster.configured);
    redis_access_deinit(&redis->access);
    for (size_t i = 0; redis->topics && i < redis->bus.topic_count; i++) {
        free(redis->topics[i].stream);
        free(redis->topics[i].channel);
    }
    free(redis->topics);
    free(redis->pod);
    pthread_cond_destroy(&redis->changed);
    pthread_mutex_destroy(&redis->lock);
    bus_deinit(&redis->bus);
    free(redis);
}

static const struct bus_driver redis_driver = {
    .name = "Redis",
    .engine = "redis",
    .lacks_shared = true,
    .publish = bus_redis_publish,
    .subscribe = redis_reader_create,
    .start = redis_start,
    .stop = redis_stop,
    .interrupt = redis_interrupt,
    .destroy = redis_destroy,
};

/* ---- creation ---- */

static char *topic_name(const char *configured, const char *topic, const char *suffix)
{
    char name[256];

    snprintf(name, sizeof name, "%s:%s", topic, suffix);
    return str_dup(str_from(configured ? configured : name));
}

/* Nodes and topics. */
static enum status redis_configure(struct redis *redis, const struct bus_redis_config *config,
                                   struct error *error)
{
    struct redis_cluster *cluster = &redis->cluster;

    if (config->node_count == 0)
        return error_set(error, STATUS_CONFIG, "Redis has no nodes: set redis.nodes");
    cluster->configured_count = config->cluster ? config->node_count : 1;
    cluster->configured = memory_zalloc(cluster->configured_count * sizeof cluster->configured[0]);
    for (size_t i = 0; i < cluster->configured_count; i++)
        if (!redis_address_parse(str_from(config->nodes[i]), &cluster->configured[i]))
            return error_set(error, STATUS_CONFIG, "a Redis node is HOST:PORT, not \"%.*s\"",
                             STR_ARG(str_utf8_cut(str_from(config->nodes[i]), 100)));
    redis->topics = memory_zalloc(redis->bus.topic_count * sizeof redis->topics[0]);
    for (size_t i = 0; i < redis->bus.topic_count; i++) {
        struct redis_topic *topic = &redis->topics[i];
        struct bus_topic_state *state = &redis->bus.topics[i];
        topic->state = state;
        topic->stream = topic_name(i == 0 ? config->stream : NULL, state->spec.name, "stream");
        topic->channel = topic_name(i == 0 ? config->channel : NULL, state->spec.name, "pub");
        atomic_store(&state->known, true);
        if (state->spec.partitions != 1)
            return error_set(error, STATUS_CONFIG, "topic %s has %u partitions: on Redis a topic has one",
                             state->spec.name, state->spec.partitions);
    }
    return STATUS_OK;
}

static void *run_loop(void *loop)
{
    pthread_setname_np(pthread_self(), "bus-redis");
    loop_run(loop);
    return NULL;
}

enum status bus_redis_create(const struct bus_redis_config *config, struct bus **bus, struct error *error)
{
    struct redis *redis = memory_zalloc(sizeof *redis);

    *bus = NULL;
    pthread_mutex_init(&redis->lock, NULL);
    pthread_cond_init(&redis->changed, NULL);
    metrics_register(&connections_family);
    metrics_register(&redirects_family);
    redis->cluster.connections = metric_series_get(&connections_family, NULL);
    redis->cluster.redirects = metric_series_get(&redirects_family, NULL);
    redis->config = (struct bus_redis_config){
        .workers = config->workers,
        .cluster = config->cluster,
        .connect_ms = config->connect_ms ? config->connect_ms : 2000,
        .answer_ms = config->answer_ms ? config->answer_ms : 2000,
        .poll_ms = config->poll_ms ? config->poll_ms : 1000,
        .pod_dead_ms = config->pod_dead_ms ? config->pod_dead_ms : 600000,
        .handler_ms = config->handler_ms ? config->handler_ms : 30000,
    };
    redis->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : 4u << 20;
    redis->pod = str_dup(str_from(config->pod));
    enum status status = bus_init(&redis->bus, &redis_driver, config->topics, config->topic_count,
                                  config->keep_dead_ms, error);
    if (status == STATUS_OK)
        status = redis_configure(redis, config, error);
    if (status == STATUS_OK)
        status = redis_access_init(&redis->access, &config->security,
                                   REPLY_BYTES_MIN + 4 * redis->bus.message_bytes_max, error);
    if (status == STATUS_OK) {
        redis->loop = loop_create(0, 0);
        redis_cluster_init(&redis->cluster, redis);
        redis_channel_init(redis);
        redis->has_thread = pthread_create(&redis->thread, NULL, run_loop, redis->loop) == 0;
        if (!redis->has_thread)
            status = error_set(error, STATUS_NO_MEMORY, "the thread of the Redis driver cannot be created");
    }
    if (status == STATUS_OK)
        *bus = &redis->bus;
    else
        redis_destroy(&redis->bus);
    return status;
}
