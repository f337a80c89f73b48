/* One stream of a subscription: makes its group, asks for entries, has them handled, acknowledges. redis_stream_step() looks
 * at what there is and does the next thing; everything that changes something ends by calling it. */
#include "bus/redis_inside.h"

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

static void give_turn(struct redis_stream *stream)
{
    struct redis_reader *reader = stream->reader;
    struct redis_stream *next = reader->first_waiting;

    if (!stream->has_turn)
        return;
    stream->has_turn = false;
    reader->turns_used--;
    if (!next)
        return;
    reader->first_waiting = next->next_waiting;
    if (!reader->first_waiting)
        reader->last_waiting = &reader->first_waiting;
    next->waits_for_turn = false;
    redis_stream_step(next);
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
    give_turn(stream);
    rest_until(stream, stream->wait_until_ns);
}

static void failed(struct redis_stream *stream, enum status status, const struct error *error)
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
    stream->woken = true; /* whatever the channel told meanwhile was not read */
    wait(stream, wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)wait_ms));
}

static void refused(struct redis_stream *stream, const struct redis_reply *reply)
{
    struct error error;

    error_set(&error, STATUS_DB_ERROR, "%.*s", STR_ARG(str_utf8_cut(reply->text, 200)));
    failed(stream, STATUS_DB_ERROR, &error);
}

void redis_stream_wake(struct redis_stream *stream)
{
    stream->woken = true;
    redis_stream_step(stream);
}

/* ---- gaps ---- */

static void note_gap(struct redis_stream *stream, int64_t next)
{
    const struct bus_subscription *spec = &stream->reader->consumer.spec;

    if (!stream->gap)
        stream->gap_from = redis_id_offset(stream->done) + 1;
    stream->gap = true;
    stream->gap_next = next;
    log_warn("bus_gap", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", stream->group),
             LOG_INT("partition", stream->partition), LOG_INT("offset", stream->gap_from),
             LOG_INT("next", next));
}

/* ---- the group ---- */

static void is_ready(struct redis_reader *reader)
{
    if (reader->ready)
        return;
    for (unsigned i = 0; i < reader->topic->state->spec.partitions; i++)
        if (!reader->streams[i].grouped)
            return;
    reader->ready = reader->ready_due = true;
    redis_work_reader(reader);
}

static int64_t first_read_count(const struct redis_stream *stream, int64_t added, int64_t length)
{
    enum bus_from from = stream->reader->consumer.spec.from;

    if (stream->regroup || added < 0 || from == BUS_FROM_OFFSETS)
        return -1;
    return from == BUS_FROM_START ? added - length : added;
}

static void grouped(struct redis_stream *stream, const struct redis_reply *reply)
{
    const struct redis_reply *added = redis_reply_at(reply, 0), *length = redis_reply_at(reply, 1);
    struct redis_id last = {0};

    stream->read_count = first_read_count(stream, added->integer, length->integer);
    redis_id_parse(redis_reply_at(reply, 2)->text, &last);
    if (stream->regroup) {
        if (redis_id_compare(last, stream->done) < 0) /* it is another stream: all of it is new */
            stream->done = (struct redis_id){0};
        note_gap(stream, redis_id_offset(stream->done) + 1);
    } else if (stream->reader->consumer.spec.from == BUS_FROM_NOW && !redis_stream_is_shared(stream)) {
        stream->done = last;
    }
    stream->regroup = false;
    stream->grouped = true;
    stream->woken = true;
    is_ready(stream->reader);
}

/* It was there and is gone: the data was lost, or somebody took us for dead. */
static void lost_group(struct redis_stream *stream)
{
    log_warn("redis_group_lost", LOG_CSTR("topic", stream->reader->consumer.spec.topic),
             LOG_CSTR("group", stream->group), LOG_INT("partition", stream->partition));
    stream->grouped = false;
    stream->regroup = true;
    stream->held = false;
    stream->ack_count = 0;
    give_turn(stream);
    redis_stream_step(stream);
}

/* ---- entries ---- */

static void remember_ack(struct redis_stream *stream, struct redis_id id)
{
    if (stream->ack_count == stream->ack_capacity) {
        if (stream->ack_capacity >= ACKS_MAX)
            return; /* it comes once more, and is acknowledged then */
        stream->ack_capacity = stream->ack_capacity ? 2 * stream->ack_capacity : 64;
        stream->acks = memory_realloc_array(stream->acks, stream->ack_capacity, sizeof stream->acks[0]);
    }
    stream->acks[stream->ack_count++] = id;
}

/* Streams tell how many entries were ever added and how many are there: what is missing before our place was taken away
 * after we had it, what is missing behind it before. And ids only go back when data was lost. */
static void look_for_gap(struct redis_stream *stream, int64_t added, int64_t length, struct redis_id last)
{
    bool backwards = redis_id_compare(last, stream->done) < 0;
    bool trimmed = stream->read_count >= 0 && added >= 0 && added - length > stream->read_count;

    if (backwards)
        stream->done = (struct redis_id){0};
    if (redis_stream_is_shared(stream) ? false : backwards || trimmed)
        note_gap(stream, redis_id_offset(stream->done) + 1);
    if (backwards || trimmed)
        stream->read_count = trimmed && !backwards ? added - length : -1;
}

static void count_read(struct redis_stream *stream, int64_t added, size_t fresh, bool all)
{
    if (all)
        stream->read_count = added;
    else if (stream->read_count >= 0)
        stream->read_count += (int64_t)fresh;
    if (!redis_stream_is_shared(stream)) /* what others of a shared group had is not counted here */
        stream->lag = stream->read_count >= 0 && added >= 0 ? added - stream->read_count : 0;
}

/* Entries that we have settled and that come again only because their acknowledgement was lost are not handled again. */
static size_t drop_settled(struct redis_stream *stream, struct redis_entries *entries)
{
    size_t kept = 0;

    for (size_t i = 0; i < entries->gone_count; i++)
        remember_ack(stream, entries->gone[i]);
    for (size_t i = 0; i < entries->count; i++) {
        if (redis_id_compare(entries->ids[i], stream->done) <= 0) {
            remember_ack(stream, entries->ids[i]);
            continue;
        }
        entries->ids[kept] = entries->ids[i];
        entries->messages[kept] = entries->messages[i];
        entries->messages[kept].topic = stream->reader->consumer.topic->name;
        entries->messages[kept++].partition = stream->partition;
    }
    return kept;
}

/* So many that they are about as many bytes as a batch may have. */
static void adapt_count(struct redis_stream *stream)
{
    const struct bus_subscription *spec = &stream->reader->consumer.spec;
    size_t bytes = 1;

    for (size_t i = 0; i < stream->message_count; i++)
        bytes += stream->messages[i].payload.len;
    if (bytes >= spec->batch_bytes_max && stream->count_max > 1)
        stream->count_max /= 2;
    else if (bytes < spec->batch_bytes_max / 4 && stream->message_count == stream->count_max)
        stream->count_max *= 2;
    if (stream->count_max > spec->batch_max)
        stream->count_max = spec->batch_max;
}

static void have_entries(struct redis_stream *stream, struct redis_entries *entries)
{
    bool gone_unread = false;

    for (size_t i = 0; i < entries->gone_count; i++)
        gone_unread |= redis_id_compare(entries->gone[i], stream->done) > 0;
    stream->message_count = drop_settled(stream, entries);
    stream->message_at = 0;
    stream->messages = entries->messages;
    stream->ids = entries->ids;
    if (gone_unread) {
        struct redis_id last = entries->gone[entries->gone_count - 1];
        note_gap(stream, stream->message_count ? stream->messages[0].offset : redis_id_offset(last) + 1);
    }
    adapt_count(stream);
    redis_stream_flush_acks(stream);
}

static void nothing_there(struct redis_stream *stream)
{
    stream->held = false;
    stream->message_count = stream->message_at = 0;
    give_turn(stream);
}

static void take_answer(struct redis_stream *stream, const struct redis_reply *reply)
{
    int64_t added = redis_reply_at(reply, 0)->integer, length = redis_reply_at(reply, 1)->integer;
    struct redis_entries entries;
    struct redis_id last;
    struct error error;

    if (reply->kind != REDIS_ARRAY || !redis_id_parse(redis_reply_at(reply, 2)->text, &last))
        error_set(&error, STATUS_IO, "what the stream answers makes no sense");
    else
        error.status = redis_entries_parse(redis_reply_at(reply, 3), &stream->ask.arena, &entries, &error);
    if (error.status != STATUS_OK) {
        failed(stream, error.status, &error);
        return;
    }
    look_for_gap(stream, added, length, last);
    size_t found = entries.count + entries.gone_count;
    size_t fresh = 0;
    for (size_t i = 0; i < entries.count; i++)
        fresh += redis_id_compare(entries.ids[i], stream->done) > 0;
    have_entries(stream, &entries);
    count_read(stream, added, fresh, found == 0);
    redis_upkeep_show_lag(stream->reader);
    if (found == 0) {
        nothing_there(stream);
        return;
    }
    stream->held = redis_stream_is_shared(stream);
    stream->held_until_ns = clock_deadline_ms(stream->reader->redis->config.lease_ms);
    stream->woken = true; /* there may be more behind them */
    if (stream->message_count == 0)
        stream->wait_until_ns = clock_deadline_ms(FAILURE_WAIT_MIN_MS); /* acknowledgements first */
}

static void take_reply(struct redis_stream *stream, enum status status, const struct error *error)
{
    const struct redis_reply *reply = stream->ask.replies[0];

    if (status == STATUS_IO && stream->count_max > 1)
        stream->count_max /= 2; /* perhaps it was just too much */
    if (status != STATUS_OK) {
        failed(stream, status, error);
        return;
    }
    stream->activity = REDIS_IDLE;
    if (redis_reply_is_error(reply, "NOGROUP")) {
        lost_group(stream);
        return;
    }
    if (reply->kind == REDIS_ERROR) {
        refused(stream, reply);
        return;
    }
    stream->failures = 0;
    if (!stream->grouped)
        grouped(stream, reply);
    else if (reply->kind == REDIS_NIL) /* another member has it */
        nothing_there(stream);
    else
        take_answer(stream, reply);
    redis_stream_step(stream);
}

static void on_asked(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, ask));

    take_reply(stream, status, error);
    if (stream->leaving)
        redis_stream_leave(stream);
}

/* ---- acknowledging ---- */

static void on_acked(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_stream *stream =
        (struct redis_stream *)((char *)request - offsetof(struct redis_stream, ack));

    (void)error;
    if (status == STATUS_OK && stream->acking <= stream->ack_count) {
        stream->ack_count -= stream->acking;
        memmove(stream->acks, stream->acks + stream->acking, stream->ack_count * sizeof stream->acks[0]);
    }
    stream->acking = 0;
    if (status == STATUS_OK)
        redis_stream_flush_acks(stream);
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

void redis_stream_handled(struct redis_stream *stream)
{
    stream->activity = REDIS_IDLE;
    for (size_t i = 0; i < stream->settled; i++)
        remember_ack(stream, stream->ids[stream->message_at + i]);
    if (stream->settled > 0)
        stream->done = stream->ids[stream->message_at + stream->settled - 1];
    stream->message_at += stream->settled;
    FAILPOINT("redis.before_ack");
    redis_stream_flush_acks(stream);
    if (redis_stream_is_shared(stream) && !stream->held && stream->message_at < stream->message_count)
        drop_hand(stream);
    else if (stream->wait_ms > 0)
        wait(stream, stream->wait_ms);
    if (!redis_stream_is_shared(stream) || stream->reader->first_waiting)
        give_turn(stream);
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

static void ask(struct redis_stream *stream)
{
    struct redis *redis = stream->reader->redis;

    stream->activity = REDIS_ASKING;
    stream->woken = false;
    stream->poll_at_ns = clock_deadline_ms(redis->config.poll_ms);
    if (stream->grouped)
        redis_script_read(stream, &stream->ask);
    else
        redis_script_group(stream, &stream->ask);
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
        give_turn(stream);
        rest_until(stream, stream->poll_at_ns);
        return;
    }
    if (stream->grouped && redis_stream_is_shared(stream) && !take_turn(stream))
        return;
    ask(stream);
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
