/* What happens by the clock: leases are renewed, we are marked as alive, groups of pods that are not are removed, and the
 * lag of shared groups is looked up.
 *
 * A pod is dead when its mark has expired, its group was read by nobody for as long, and we have seen it so for as long
 * again: a pod of another make that marks nothing is safe as long as it reads. */
#include "bus/redis/inside.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"

enum { LOOK_MS = 2000 };

static struct metric_family lag_family = {
    .name = "redis_stream_lag",
    .help = "Entries of the streams that the group has not handled yet.",
    .type = METRIC_GAUGE,
    .labels = {"topic", "group"},
};
static struct metric_family reconnects_family = {
    .name = "redis_connections_total",
    .help = "Connections to Redis nodes that were opened.",
    .type = METRIC_COUNTER,
};
static struct metric_family redirects_family = {
    .name = "redis_redirects_total",
    .help = "Requests that a node of the cluster sent to another one.",
    .type = METRIC_COUNTER,
};

void redis_upkeep_attach(struct redis *redis)
{
    metrics_register(&lag_family);
    metrics_register(&reconnects_family);
    metrics_register(&redirects_family);
    redis->cluster.reconnects = metric_series_get(&reconnects_family, NULL);
    redis->cluster.redirects = metric_series_get(&redirects_family, NULL);
}

/* What it has in hand is not handled yet; of a shared group Redis knows that itself. */
static int64_t lag_of(const struct redis_stream *stream)
{
    size_t in_hand = redis_stream_is_shared(stream) ? 0 : stream->message_count - stream->message_at;

    return stream->lag + (int64_t)in_hand;
}

void redis_upkeep_show_lag(struct redis_reader *reader)
{
    const struct str labels[] = {reader->consumer.topic->name, str_from(reader->consumer.spec.group)};
    int64_t lag = 0;

    if (!reader->lag)
        reader->lag = metric_series_get(&lag_family, labels);
    for (unsigned i = 0; i < reader->topic->state->spec.partitions; i++)
        lag += lag_of(&reader->streams[i]);
    metric_set(reader->lag, (double)lag);
    metric_set(reader->consumer.lag, (double)lag);
}

/* ---- leases ---- */

static void on_renewed(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, renew));

    (void)error;
    if (status != STATUS_OK || !stream->held)
        return; /* it may still be ours: held_until_ns knows */
    if (request->replies[0]->kind == REDIS_INTEGER && request->replies[0]->integer == 1)
        stream->held_until_ns = clock_deadline_ms(stream->reader->redis->config.lease_ms);
    else
        redis_stream_lost_lease(stream);
}

static void renew(struct redis_stream *stream)
{
    if (!stream->held || stream->renew.busy)
        return;
    if (stream->held_until_ns < clock_mono_ns()) {
        redis_stream_lost_lease(stream);
        return;
    }
    redis_script_renew(stream, &stream->renew);
    redis_cluster_ask(&stream->reader->redis->cluster, &stream->renew);
}

/* ---- dead pods, lag ---- */

static void forget_others(struct redis_stream *stream, const struct redis_reply *found)
{
    size_t kept = 0;

    for (size_t i = 0; i < stream->suspect_count; i++) {
        bool still = false;
        for (size_t at = 1; at < found->count && !still; at++)
            still = hash_seeded(found->items[at].text) == stream->suspects[i].name_hash;
        if (still)
            stream->suspects[kept++] = stream->suspects[i];
    }
    stream->suspect_count = kept;
}

/* Since when has this one been dead, as far as we have seen? */
static int64_t dead_since(struct redis_stream *stream, struct str group)
{
    uint64_t hash = hash_seeded(group);

    for (size_t i = 0; i < stream->suspect_count; i++)
        if (stream->suspects[i].name_hash == hash)
            return stream->suspects[i].since_ns;
    if (!stream->suspects)
        stream->suspects = memory_alloc(REDIS_SUSPECTS_MAX * sizeof stream->suspects[0]);
    if (stream->suspect_count < REDIS_SUSPECTS_MAX)
        stream->suspects[stream->suspect_count++] =
            (struct redis_suspect){.name_hash = hash, .since_ns = clock_mono_ns()};
    return clock_mono_ns();
}

static void bury_one(struct redis_stream *stream, const struct redis_reply *found)
{
    int64_t limit_ns = clock_mono_ns() - stream->reader->redis->config.pod_dead_ms * CLOCK_NS_PER_MS;

    for (size_t i = 1; i < found->count; i++) {
        struct str group = found->items[i].text;
        if (found->items[i].kind != REDIS_TEXT || dead_since(stream, group) > limit_ns)
            continue;
        log_info("redis_dead_pod_removed", LOG_STR("group", str_utf8_cut(group, 200)),
                 LOG_CSTR("stream", stream->names->stream));
        char *name = str_dup(group); /* it lies in the arena that is emptied for the next question */
        redis_script_bury(stream, &stream->upkeep, str_of(name, group.len));
        free(name);
        redis_cluster_ask(&stream->reader->redis->cluster, &stream->upkeep);
        return; /* one at a time */
    }
}

static void on_looked(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, upkeep));
    const struct redis_reply *found = request->replies[0];

    (void)error;
    if (status != STATUS_OK || found->kind != REDIS_ARRAY || found->count == 0)
        return; /* nothing was found, or this was a burial */
    if (redis_stream_is_shared(stream) && found->items[0].integer >= 0) {
        stream->lag = found->items[0].integer;
        redis_upkeep_show_lag(stream->reader);
    }
    forget_others(stream, found);
    bury_one(stream, found);
}

/* Every pod looks at every other's group, so it does so rarely. */
static void look(struct redis_stream *stream, int64_t now_ns)
{
    const struct bus_redis_config *config = &stream->reader->redis->config;

    if (!stream->grouped || stream->upkeep.busy || now_ns < stream->look_at_ns)
        return;
    bool first = stream->look_at_ns == 0;
    stream->look_at_ns =
        clock_deadline_ms(redis_stream_is_shared(stream) ? LOOK_MS : config->pod_dead_ms / 4);
    if (first && !redis_stream_is_shared(stream)) { /* a fleet that starts at once does not look at once */
        stream->look_at_ns -=
            (int64_t)(random_u64() % (uint64_t)(config->pod_dead_ms / 4 + 1)) * CLOCK_NS_PER_MS;
        return;
    }
    redis_script_look(stream, &stream->upkeep);
    redis_cluster_ask(&stream->reader->redis->cluster, &stream->upkeep);
}

/* ---- the clock ---- */

static int64_t shortest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void on_tick(struct loop_timer *timer)
{
    struct redis *redis = (struct redis *)((char *)timer - offsetof(struct redis, upkeep_timer));
    int64_t now_ns = clock_mono_ns();

    for (size_t i = 0; i < redis->reader_count; i++) {
        struct redis_reader *reader = redis->readers[i];
        redis_work_reader(reader);
        for (unsigned p = 0; p < reader->topic->state->spec.partitions; p++) {
            renew(&reader->streams[p]);
            look(&reader->streams[p], now_ns);
        }
    }
    redis_upkeep_start(redis);
}

void redis_upkeep_start(struct redis *redis)
{
    const struct bus_redis_config *config = &redis->config;
    int64_t tick_ms = shortest(shortest(config->lease_ms / 3, config->pod_dead_ms / 4), LOOK_MS);

    loop_timer_start(redis->loop, &redis->upkeep_timer, clock_deadline_ms(tick_ms > 0 ? tick_ms : 1),
                     on_tick);
}

void redis_upkeep_init(struct redis_stream *stream)
{
    redis_request_init(&stream->renew, on_renewed);
    redis_request_init(&stream->upkeep, on_looked);
}
