/* The process's one subscription: a message on a channel says that its stream has something. It is a connection of its own,
 * to any node, since a cluster tells all of them. What is told while it is down is lost, so once it stands again every
 * stream is read. A silent one is asked from time to time whether it still lives. */
#include "bus/redis/inside.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

enum {
    RETRY_MIN_MS = 50,
    RETRY_MAX_MS = 2000,
    PING_MS = 5000,
};

static void on_timer(struct loop_timer *timer);

static void in_ms(struct redis *redis, int64_t ms)
{
    loop_timer_start(redis->loop, &redis->channel.timer, clock_deadline_ms(ms), on_timer);
}

static void lost(struct redis *redis, const struct error *error)
{
    struct redis_channel *channel = &redis->channel;
    int64_t wait_ms = RETRY_MIN_MS;

    channel->subscribed = false;
    for (unsigned i = 0; i < channel->failures && wait_ms < RETRY_MAX_MS; i++)
        wait_ms *= 2;
    channel->failures++;
    channel->turn++;
    if (channel->failures == 3 && !channel->complained) {
        channel->complained = true;
        log_warn("redis_channel_down", LOG_ERROR_FIELDS(error));
    }
    if (!redis->quiet)
        in_ms(redis, wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms));
}

static void on_closed(struct redis_link *link, const struct error *error)
{
    lost(((struct redis_channel *)link)->redis, error);
}

/* ---- what comes ---- */

/* `payload` is nothing where the channel itself is the news. */
static void on_message(struct redis *redis, struct str name, struct str payload)
{
    for (size_t i = 0; i < redis->reader_count; i++) {
        struct redis_reader *reader = redis->readers[i];
        for (unsigned p = 0; p < reader->topic->state->spec.partitions; p++) {
            if (!str_eq(str_from(reader->topic->partitions[p].channel), name))
                continue;
            if (payload.ptr)
                redis_hint_add(reader, p, payload);
            redis_stream_wake(&reader->streams[p]);
        }
    }
}

static void refused(struct redis_channel *channel, const struct redis_reply *reply)
{
    struct error error;

    error_set(&error, STATUS_DB_DOWN, "SUBSCRIBE is refused: %.*s", STR_ARG(str_utf8_cut(reply->text, 160)));
    redis_link_close(&channel->link);
    lost(channel->redis, &error);
}

static void come_up(struct redis_channel *channel)
{
    if (channel->subscribed)
        return;
    if (channel->complained)
        log_info("redis_channel_up");
    channel->subscribed = true;
    channel->complained = false;
    channel->failures = 0;
    in_ms(channel->redis, PING_MS);
}

static void on_reply(struct redis_link *link, const struct redis_reply *reply)
{
    struct redis_channel *channel = (struct redis_channel *)link;
    struct str kind = redis_reply_at(reply, 0)->text;

    channel->ping_sent = false;
    if (reply->kind == REDIS_ERROR) {
        refused(channel, reply);
        return;
    }
    if (str_eq(kind, STR("message")))
        on_message(channel->redis, redis_reply_at(reply, 1)->text, redis_reply_at(reply, 2)->text);
    else if (str_eq(kind, STR("subscribe"))) {
        come_up(channel);
        on_message(channel->redis, redis_reply_at(reply, 1)->text,
                   STR_NONE); /* read what came before it stood */
    }
    if (link->state != REDIS_LINK_CLOSED)
        arena_reset(&channel->arena);
}

/* ---- its life ---- */

static void put_subscribe(struct redis *redis, struct buf *out)
{
    for (size_t i = 0; i < redis->reader_count; i++) {
        const struct redis_reader *reader = redis->readers[i];
        for (unsigned p = 0; p < reader->topic->state->spec.partitions; p++)
            REDIS_COMMAND(out, STR("SUBSCRIBE"), str_from(reader->topic->partitions[p].channel));
    }
}

static void subscribe(struct redis *redis)
{
    struct redis_channel *channel = &redis->channel;
    const struct redis_address *address = redis_cluster_any(&redis->cluster, channel->turn);
    struct error error;
    struct buf commands;

    if (redis_link_open(&channel->link, address, &error) != STATUS_OK) {
        lost(redis, &error);
        return;
    }
    channel->ping_sent = true; /* an answer is due */
    buf_init(&commands);
    put_subscribe(redis, &commands);
    redis_link_send(&channel->link, buf_str(&commands));
    buf_deinit(&commands);
    in_ms(redis, redis->config.connect_ms);
}

static void on_timer(struct loop_timer *timer)
{
    struct redis_channel *channel =
        (struct redis_channel *)((char *)timer - offsetof(struct redis_channel, timer));
    struct error error;

    if (channel->link.state == REDIS_LINK_CLOSED) {
        subscribe(channel->redis);
        return;
    }
    if (channel->ping_sent) {
        error_set(&error, STATUS_TIMEOUT, "the subscription is silent");
        redis_link_close(&channel->link);
        lost(channel->redis, &error);
        return;
    }
    struct buf ping;
    buf_init(&ping);
    REDIS_COMMAND(&ping, STR("PING"));
    redis_link_send(&channel->link, buf_str(&ping));
    buf_deinit(&ping);
    channel->ping_sent = true;
    in_ms(channel->redis, channel->redis->config.answer_ms);
}

void redis_channel_init(struct redis *redis)
{
    struct redis_channel *channel = &redis->channel;

    redis_link_init(&channel->link, redis->loop, &redis->access);
    arena_init(&channel->arena, 4096);
    channel->redis = redis;
    channel->link.arena = &channel->arena;
    channel->link.on_reply = on_reply;
    channel->link.on_closed = on_closed;
}

void redis_channel_start(struct redis *redis)
{
    if (redis->reader_count > 0)
        subscribe(redis);
}

void redis_channel_close(struct redis *redis)
{
    loop_timer_stop(redis->loop, &redis->channel.timer);
    redis_link_close(&redis->channel.link);
}
