/* The Pub/Sub subscription of the process: a message on a topic's channel means that its stream has a new entry. It has a
 * connection of its own, to any node, since a cluster forwards messages to all of them. Messages that are published while it
 * is down are lost, so every stream is read once it is up again. A PING finds out whether a silent connection is alive. */
#include "bus/redis/inside.h"

#include "base/log.h"
#include "base/memory.h"

enum {
    RETRY_MIN_MS = 50,
    RETRY_MAX_MS = 2000,
    PING_MS = 5000,
    FAILURES_LOGGED = 3,
};

static void on_channel_timer(struct loop_timer *timer);

static void channel_timer_in(struct redis_channel *channel, int64_t ms)
{
    loop_timer_start(channel->redis->loop, &channel->timer, clock_deadline_ms(ms), on_channel_timer);
}

static void on_channel_closed(struct redis_link *link, const struct error *error)
{
    struct redis_channel *channel = (struct redis_channel *)link;
    int64_t wait_ms = backoff_next_ms(&channel->backoff);

    if (channel->backoff.failures == FAILURES_LOGGED && !channel->is_down) {
        channel->is_down = true;
        log_warn("redis_channel_down", LOG_ERROR_FIELDS(error));
    }
    channel_timer_in(channel, wait_ms);
}

static void channel_fail(struct redis_channel *channel, const struct error *error)
{
    redis_link_close(&channel->link);
    on_channel_closed(&channel->link, error);
}

/* ---- replies ---- */

/* Wakes the readers of the channel. Those with hints get the message at once, while there is room: the stream has it too. */
static void channel_deliver(struct redis *redis, struct str name, struct str payload)
{
    for (size_t i = 0; i < redis->reader_count; i++) {
        struct redis_reader *reader = redis->readers[i];
        struct redis_hints *hints = reader->hints;
        if (!str_eq(str_from(reader->topic->channel), name))
            continue;
        if (payload.ptr && reader->consumer.spec.hints && reader->is_ready &&
            hints->count < sizeof hints->messages / sizeof hints->messages[0] &&
            hints->bytes <= bus_batch_bytes_max(&reader->consumer)) {
            hints->bytes += payload.len;
            hints->messages[hints->count++] =
                (struct bus_message){.topic = reader->consumer.topic->name,
                                     .payload = arena_str(&hints->arena, payload),
                                     .offset = -1};
            task_wake(reader->task);
        }
        redis_reader_wake(reader);
    }
}

static void on_channel_reply(struct redis_link *link, const struct redis_reply *reply)
{
    struct redis_channel *channel = (struct redis_channel *)link;
    struct str kind = redis_reply_at(reply, 0)->text, name = redis_reply_at(reply, 1)->text;
    struct error error;

    channel->awaits_reply = false;
    if (reply->kind == REDIS_ERROR) {
        error_set(&error, STATUS_DB_DOWN, "SUBSCRIBE is refused: %.*s",
                  STR_ARG(str_utf8_cut(reply->text, 160)));
        channel_fail(channel, &error);
        return;
    }
    if (str_eq(kind, STR("message"))) {
        channel_deliver(channel->redis, name, redis_reply_at(reply, 2)->text);
    } else if (str_eq(kind, STR("subscribe"))) {
        if (channel->is_down)
            log_info("redis_channel_up");
        channel->is_down = false;
        backoff_reset(&channel->backoff);
        channel_timer_in(channel, PING_MS);
        channel_deliver(channel->redis, name, STR_NONE); /* reads what was published before */
    }
    arena_reset(&channel->arena);
}

/* ---- connection ---- */

static void channel_subscribe(struct redis_channel *channel)
{
    struct redis *redis = channel->redis;
    struct error error;
    struct buf commands = {0};

    if (redis_link_open(&channel->link, &redis_cluster_next(&redis->cluster)->address, &error) != STATUS_OK) {
        on_channel_closed(&channel->link, &error);
        return;
    }
    channel->awaits_reply = true;
    for (size_t i = 0; i < redis->reader_count; i++)
        redis_command_put(&commands,
                          (struct str[]){STR("SUBSCRIBE"), str_from(redis->readers[i]->topic->channel)}, 2);
    redis_link_send(&channel->link, buf_str(&commands));
    buf_deinit(&commands);
    channel_timer_in(channel, redis->config.connect_ms);
}

static void on_channel_timer(struct loop_timer *timer)
{
    struct redis_channel *channel = CONTAINER_OF(timer, struct redis_channel, timer);
    struct error error;

    if (channel->link.state == REDIS_LINK_CLOSED) {
        channel_subscribe(channel);
    } else if (channel->awaits_reply) {
        error_set(&error, STATUS_TIMEOUT, "the subscription does not answer");
        channel_fail(channel, &error);
    } else {
        redis_link_send(&channel->link, STR("*1\r\n$4\r\nPING\r\n"));
        channel->awaits_reply = true;
        channel_timer_in(channel, channel->redis->config.answer_ms);
    }
}

void redis_channel_init(struct redis *redis)
{
    struct redis_channel *channel = &redis->channel;

    redis_link_init(&channel->link, redis->loop, &redis->access);
    channel->arena = ARENA(4096);
    channel->redis = redis;
    channel->backoff = (struct backoff){.min_ms = RETRY_MIN_MS, .max_ms = RETRY_MAX_MS};
    channel->link.arena = &channel->arena;
    channel->link.on_reply = on_channel_reply;
    channel->link.on_closed = on_channel_closed;
}

void redis_channel_start(struct redis *redis)
{
    if (redis->reader_count > 0)
        channel_subscribe(&redis->channel);
}

void redis_channel_close(struct redis *redis)
{
    loop_timer_stop(redis->loop, &redis->channel.timer);
    redis_link_close(&redis->channel.link);
}
