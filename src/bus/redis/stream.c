/* One stream of a subscription: makes its group, asks for entries, has them handled, acknowledges. redis_stream_step() looks
 * at what there is and does the next thing; everything that changes something ends by calling it. */
#include "bus/redis/inside.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    FAILURE_WAIT_MIN_MS = 20,
    FAILURE_WAIT_MAX_MS = 2000,
    SWAMPED_WAIT_MS = 20,
    FIRST_COUNT = 16, /* entries asked for before anything is known of their size */
    ACKS_MAX = 4096,  /* more wait for the next ones */
};

bool redis_stream_is_shared(const struct redis_stream *stream)
{
    return stream->reader->consumer.spec.mode == BUS_SHARED;
}

/* ---- turns: as many of a reader's streams as it may handle at once ---- */

static bool take_turn(struct redis_stream *stream)
{
    struct redis_reader *reader = stream->reader;

    if (stream->has_turn)
        return true;
    if (reader->turns_used < reader->consumer.spec.parallel) {
        reader->turns_used++;
        stream->has_turn = true;
        return true;
    }
    if (!stream->waits_for_turn) {
        stream->waits_for_turn = true;
        stream->next_waiting = NULL;
        *reader->last_waiting = stream;
        reader->last_waiting = &stream->next_waiting;
    }
    return false;
}

void redis_stream_give_turn(struct redis_stream *stream)
{
    struct redis_reader *reader = stream->reader;

    if (!stream->has_turn)
        return;
    stream->has_turn = false;
    reader->turns_used--;
    while (reader->first_waiting && reader->turns_used < reader->consumer.spec.parallel) {
        struct redis_stream *next = reader->first_waiting;
        reader->first_waiting = next->next_waiting;
        if (!reader->first_waiting)
            reader->last_waiting = &reader->first_waiting;
        next->waits_for_turn = false;
        redis_stream_step(next); /* which may not need it any more */
    }
}

/* ---- waiting ---- */

static void on_timer(struct loop_timer *timer)
{
    redis_stream_step((struct redis_stream *)((char *)timer - offsetof(struct redis_stream, timer)));
}

static void rest_until(struct redis_stream *stream, int64_t at_ns)
{
    loop_timer_start(stream->reader->redis->loop, &stream->timer, at_ns, on_timer);
}

static void wait(struct redis_stream *stream, int64_t ms)
{
    stream->wait_until_ns = clock_deadline_ms(ms);
    redis_stream_give_turn(stream);
    rest_until(stream, stream->wait_until_ns);
}

void redis_stream_failed(struct redis_stream *stream, enum status status, const struct error *error)
{
    int64_t wait_ms = FAILURE_WAIT_MIN_MS;

    stream->activity = REDIS_IDLE;
    if (status == STATUS_CANCELLED)
        return;
    if (stream->failures++ == 2) /* a cut or a failover is over by then */
        log_warn("bus_reader_waits", LOG_CSTR("topic", stream->reader->consumer.spec.topic),
                 LOG_CSTR("group", stream->group), LOG_INT("partition", stream->partition),
                 LOG_ERROR_FIELDS(error));
    for (unsigned i = 1; i < stream->failures && wait_ms < FAILURE_WAIT_MAX_MS; i++)
        wait_ms *= 2;
    stream->woken = true;    /* whatever the channel told meanwhile was not read … */
    stream->check_at_ns = 0; /* … or was, and the answer got lost */
    wait(stream, wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms));
}

void redis_stream_wake(struct redis_stream *stream)
{
    stream->woken = true;
    redis_stream_step(stream);
}

/* ---- acknowledging ---- */

void redis_stream_remember_ack(struct redis_stream *stream, struct redis_id id)
{
    if (stream->ack_count == stream->ack_capacity) {
        if (stream->ack_capacity >= ACKS_MAX)
            return; /* it comes once more, and is acknowledged then */
        stream->ack_capacity = stream->ack_capacity ? 2 * stream->ack_capacity : 64;
        stream->acks = memory_realloc_array(stream->acks, stream->ack_capacity, sizeof stream->acks[0]);
    }
    stream->acks[stream->ack_count++] = id;
}

static void on_acked(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, ack));

    (void)error;
    if (status == STATUS_OK && request->replies[0]->kind == REDIS_ERROR && !stream->ack_refused) {
        stream->ack_refused = true;
        log_error("redis_ack_refused", LOG_CSTR("stream", stream->names->stream),
                  LOG_STR("error", str_utf8_cut(request->replies[0]->text, 200)));
    }
    if (status == STATUS_OK && stream->acking <= stream->ack_count) {
        stream->ack_count -= stream->acking;
        memmove(stream->acks, stream->acks + stream->acking, stream->ack_count * sizeof stream->acks[0]);
    }
    stream->acking = 0;
    if (status == STATUS_OK)
        redis_stream_flush_acks(stream);
    else
        stream->check_at_ns = 0; /* they are pending: ask for them, and acknowledge them then */
}

void redis_stream_flush_acks(struct redis_stream *stream)
{
    if (stream->ack.busy || stream->ack_count == 0)
        return;
    stream->acking = stream->ack_count;
    redis_script_ack(stream, &stream->ack);
    redis_cluster_ask(&stream->reader->redis->cluster, &stream->ack);
}

/* ---- handling ---- */

static void drop_hand(struct redis_stream *stream)
{
    stream->message_count = stream->message_at = 0;
    stream->held = false;
    bus_delivery_forget(&stream->delivery);
    stream->wait_until_ns = 0;
}

void redis_stream_lost_lease(struct redis_stream *stream)
{
    log_warn("redis_lease_lost", LOG_CSTR("topic", stream->reader->consumer.spec.topic),
             LOG_CSTR("group", stream->group), LOG_INT("partition", stream->partition));
    stream->held = false;
    if (stream->activity != REDIS_HANDLING) {
        drop_hand(stream);
        redis_stream_step(stream);
    }
}

/* Others of ours wait for a turn: then somebody else may have the stream meanwhile. */
static void let_others(struct redis_stream *stream)
{
    if (stream->message_at == stream->message_count && stream->held && !stream->renew.busy) {
        stream->held = false;
        redis_script_release(stream, &stream->renew);
        redis_cluster_ask(&stream->reader->redis->cluster, &stream->renew);
    }
    redis_stream_give_turn(stream);
}

void redis_stream_handled(struct redis_stream *stream)
{
    stream->activity = REDIS_IDLE;
    for (size_t i = 0; i < stream->settled; i++)
        redis_stream_remember_ack(stream, stream->ids[stream->message_at + i]);
    if (stream->settled > 0)
        stream->done = stream->ids[stream->message_at + stream->settled - 1];
    stream->message_at += stream->settled;
    FAILPOINT("redis.before_ack");
    if (redis_stream_is_shared(
            stream)) /* of our own group nobody else waits for it: it goes with the next question */
        redis_stream_flush_acks(stream);
    if (redis_stream_is_shared(stream) && !stream->held && stream->message_at < stream->message_count)
        drop_hand(stream);
    else if (stream->wait_ms > 0)
        wait(stream, stream->wait_ms);
    if (!redis_stream_is_shared(stream))
        redis_stream_give_turn(stream);
    else if (stream->reader->first_waiting)
        let_others(stream);
    redis_upkeep_show_lag(stream->reader);
    redis_stream_step(stream);
}

static void handle(struct redis_stream *stream)
{
    if (!take_turn(stream))
        return;
    stream->activity = REDIS_HANDLING;
    if (redis_work_stream(stream))
        return;
    stream->activity = REDIS_IDLE;
    wait(stream, SWAMPED_WAIT_MS);
}

/* ---- what is next ---- */

static void on_asked(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, ask));

    redis_answer_take(stream, status, error);
    if (stream->leaving)
        redis_stream_leave(stream);
}

/* New entries alone are a cheap question. What is pending and what became of the stream itself is looked at after
 * failures and from time to time, and by a shared group always, since its lease goes with it. */
static void ask(struct redis_stream *stream, int64_t now_ns)
{
    struct redis *redis = stream->reader->redis;

    stream->activity = REDIS_ASKING;
    stream->woken = false;
    stream->poll_at_ns = now_ns + redis->config.poll_ms * CLOCK_NS_PER_MS;
    stream->checking = redis_stream_is_shared(stream) || stream->check_at_ns <= now_ns;
    redis_stream_flush_acks(stream);
    if (!stream->grouped) {
        redis_script_group(stream, &stream->ask);
    } else if (stream->checking) {
        stream->check_at_ns = stream->poll_at_ns;
        redis_script_check(stream, &stream->ask);
    } else {
        redis_script_read(stream, &stream->ask);
    }
    redis_cluster_ask(&redis->cluster, &stream->ask);
}

void redis_stream_step(struct redis_stream *stream)
{
    int64_t now_ns = clock_mono_ns();

    if (stream->activity != REDIS_IDLE || stream->reader->redis->quiet)
        return;
    if (stream->wait_until_ns > now_ns) {
        rest_until(stream, stream->wait_until_ns);
        return;
    }
    if (stream->gap || stream->message_at < stream->message_count) {
        handle(stream);
        return;
    }
    if (stream->grouped && !stream->woken && stream->poll_at_ns > now_ns) {
        redis_stream_give_turn(stream);
        rest_until(stream, stream->poll_at_ns);
        return;
    }
    if (stream->grouped && redis_stream_is_shared(stream) && !take_turn(stream))
        return;
    ask(stream, now_ns);
}

/* ---- life ---- */

/* In the stream's slot: behind the hash tag it has, or with all of it as one. */
static char *key_beside(const struct redis_stream *stream, const char *what, const char *group)
{
    const char *name = stream->names->stream;
    struct buf key;

    buf_init(&key);
    buf_printf(&key, strchr(name, '{') ? "%s:%s:%s" : "{%s}:%s:%s", name, what, group);
    char *text = str_dup(buf_str(&key));
    buf_deinit(&key);
    return text;
}

/* A process may hear everything twice, and each has a place of its own. */
static unsigned twin_count(const struct redis_reader *reader)
{
    const struct redis *redis = reader->redis;
    unsigned twins = 0;

    for (size_t i = 0; i < redis->reader_count; i++) {
        const struct bus_consumer *other = &redis->readers[i]->consumer;
        twins += other->topic == reader->consumer.topic && other->spec.mode == reader->consumer.spec.mode &&
                 strcmp(other->spec.group, reader->consumer.spec.group) == 0;
    }
    return twins;
}

void redis_stream_init(struct redis_stream *stream, struct redis_reader *reader, unsigned partition)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    struct redis *redis = reader->redis;
    struct buf group;

    *stream =
        (struct redis_stream){.reader = reader,
                              .names = &reader->topic->partitions[partition],
                              .partition = partition,
                              .read_count = -1,
                              .count_max = spec->batch_max < FIRST_COUNT ? spec->batch_max : FIRST_COUNT};
    unsigned twins = twin_count(reader);
    buf_init(&group);
    buf_put_str(&group, str_from(spec->group));
    if (spec->mode == BUS_EVERY)
        buf_printf(&group, ":%s", redis->pod);
    if (spec->mode == BUS_EVERY && twins > 0)
        buf_printf(&group, ":%u", twins + 1);
    stream->group = str_dup(buf_str(&group));
    buf_deinit(&group);
    if (spec->mode == BUS_EVERY)
        stream->alive = key_beside(stream, "alive", stream->group);
    else
        stream->lease = key_beside(stream, "lease", stream->group);
    redis_request_init(&stream->ask, on_asked);
    redis_request_init(&stream->ack, on_acked);
    redis_upkeep_init(stream);
    stream->delivery = (struct bus_delivery){.bus = &redis->bus,
                                             .consumer = &reader->consumer,
                                             .pool = spec->mode == BUS_SHARED ? redis->pool : NULL,
                                             .handler_ms = redis->config.handler_ms};
}

void redis_stream_deinit(struct redis_stream *stream)
{
    redis_request_deinit(&stream->ask);
    redis_request_deinit(&stream->ack);
    redis_request_deinit(&stream->renew);
    redis_request_deinit(&stream->upkeep);
    free(stream->acks);
    free(stream->suspects);
    free(stream->group);
    free(stream->lease);
    free(stream->alive);
}
