/* What a stream is answered: that its group is there or gone, its entries, and what can be seen from them of entries that
 * are missing. */
#include "bus/redis/inside.h"

#include "base/clock.h"
#include "base/log.h"

enum { ACKS_FIRST_MS = 20 }; /* before entries are asked for again that were settled already */

static void refused(struct redis_stream *stream, const struct redis_reply *reply)
{
    struct error error;

    error_set(&error, STATUS_DB_ERROR, "%.*s", STR_ARG(str_utf8_cut(reply->text, 200)));
    redis_stream_failed(stream, STATUS_DB_ERROR, &error);
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

    if (stream->regroup || added < 0)
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
    stream->check_at_ns = 0;
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
    redis_stream_give_turn(stream);
    redis_stream_step(stream);
}

/* ---- entries ---- */

/* Streams tell how many entries were ever added and how many are there: what is missing before our place was taken away
 * after we had it, what is missing behind it before. And ids only go back when data was lost. */
static void look_for_gap(struct redis_stream *stream, int64_t added, int64_t length, struct redis_id last)
{
    bool backwards = redis_id_compare(last, stream->done) < 0;
    bool trimmed = stream->read_count >= 0 && added >= 0 && added - length > stream->read_count;

    if (backwards)
        stream->done = (struct redis_id){0};
    if ((backwards || trimmed) && !redis_stream_is_shared(stream))
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
        redis_stream_remember_ack(stream, entries->gone[i]);
    for (size_t i = 0; i < entries->count; i++) {
        if (redis_id_compare(entries->ids[i], stream->done) <= 0) {
            redis_stream_remember_ack(stream, entries->ids[i]);
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
    redis_stream_give_turn(stream);
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
        redis_stream_failed(stream, error.status, &error);
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
    stream->woken = true;    /* there may be more behind them … */
    stream->check_at_ns = 0; /* … also of those that were pending */
    if (stream->message_count == 0)
        stream->wait_until_ns = clock_deadline_ms(ACKS_FIRST_MS); /* acknowledgements first */
}

/* Of a plain XREADGROUP: [[stream, entries]]. */
static void take_new(struct redis_stream *stream, const struct redis_reply *reply)
{
    const struct redis_reply *list = redis_reply_at(redis_reply_at(reply, 0), 1);
    size_t asked = stream->count_max;
    struct redis_entries entries;
    struct error error;

    error.status = redis_entries_parse(list, &stream->ask.arena, &entries, &error);
    if (error.status != STATUS_OK) {
        redis_stream_failed(stream, error.status, &error);
        return;
    }
    stream->woken |= entries.count >= asked;
    have_entries(stream, &entries);
    count_read(stream, -1, stream->message_count, false);
}

void redis_answer_take(struct redis_stream *stream, enum status status, const struct error *error)
{
    const struct redis_reply *reply = stream->ask.replies[0];

    if (status == STATUS_IO && stream->count_max > 1)
        stream->count_max /= 2; /* perhaps it was just too much */
    if (status != STATUS_OK) {
        redis_stream_failed(stream, status, error);
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
    else if (stream->checking)
        take_answer(stream, reply);
    else
        take_new(stream, reply);
    redis_stream_step(stream);
}
