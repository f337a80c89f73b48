/* Handlers and callbacks on workers. A stream's job has its messages and its delivery for as long as it runs; the reader's
 * own job tells that it is ready, and hands over what the channel told. */
#include "bus/redis/inside.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"

/* ---- a stream's ---- */

static struct redis_stream *stream_of(struct worker_job *job)
{
    return (struct redis_stream *)((char *)job - offsetof(struct redis_stream, job));
}

static void run_stream(struct worker_job *job)
{
    struct redis_stream *stream = stream_of(job);
    const struct bus_subscription *spec = &stream->reader->consumer.spec;

    if (stream->gap && spec->on_gap)
        spec->on_gap(spec->context, stream->partition, stream->gap_from, stream->gap_next);
    stream->gap = false;
    if (stream->message_at < stream->message_count)
        stream->settled = bus_deliver(&stream->delivery, stream->messages + stream->message_at,
                                      stream->message_count - stream->message_at, &stream->wait_ms);
}

static void stream_done(struct worker_job *job)
{
    struct redis_stream *stream = stream_of(job);
    struct redis *redis = stream->reader->redis;

    redis_stream_handled(stream);
    redis_job_ended(redis);
}

bool redis_work_stream(struct redis_stream *stream)
{
    stream->settled = 0;
    stream->wait_ms = 0;
    stream->job =
        (struct worker_job){.loop = stream->reader->redis->loop, .run = run_stream, .done = stream_done};
    return redis_job_submit(stream->reader->redis, &stream->job);
}

/* ---- the reader's ---- */

static struct redis_reader *reader_of(struct worker_job *job)
{
    return (struct redis_reader *)((char *)job - offsetof(struct redis_reader, job));
}

/* No verdicts are asked for: whatever the handler says, nothing comes of it. */
static void hand_hints(struct redis_reader *reader)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    size_t count = reader->hints_taken_count;
    struct arena arena;

    if (count == 0)
        return;
    arena_init(&arena, 16384);
    struct bus_message *messages = arena_zalloc(&arena, count * sizeof messages[0]);
    for (size_t i = 0; i < count; i++) {
        const struct redis_hint *hint = &reader->hints_taken[i];
        messages[i] = (struct bus_message){.topic = reader->consumer.topic->name,
                                           .payload = str_of(hint->payload, hint->len),
                                           .partition = hint->partition,
                                           .offset = -1};
    }
    struct bus_batch batch = {.messages = messages,
                              .count = count,
                              .verdicts = arena_zalloc(&arena, count * sizeof(struct bus_verdict)),
                              .deadline_ns = clock_deadline_ms(reader->redis->config.handler_ms)};
    spec->handler(spec->context, &batch);
    if (spec->on_committed)
        spec->on_committed(spec->context, &batch, 0);
    arena_deinit(&arena);
}

static void run_reader(struct worker_job *job)
{
    struct redis_reader *reader = reader_of(job);
    const struct bus_subscription *spec = &reader->consumer.spec;

    if (reader->ready_due && spec->on_ready)
        spec->on_ready(spec->context);
    reader->ready_due = false;
    hand_hints(reader);
}

static void free_hints(struct redis_hint *hints, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(hints[i].payload);
}

static void reader_done(struct worker_job *job)
{
    struct redis_reader *reader = reader_of(job);

    free_hints(reader->hints_taken, reader->hints_taken_count);
    free(reader->hints_taken);
    reader->hints_taken = NULL;
    reader->hints_taken_count = 0;
    reader->job_busy = false;
    redis_work_reader(reader);
    redis_job_ended(reader->redis);
}

void redis_work_reader(struct redis_reader *reader)
{
    if (reader->job_busy || reader->redis->quiet || (!reader->ready_due && reader->hint_count == 0))
        return;
    reader->hints_taken_count = reader->hint_count;
    if (reader->hint_count > 0) {
        reader->hints_taken = memory_alloc(reader->hint_count * sizeof reader->hints[0]);
        memcpy(reader->hints_taken, reader->hints, reader->hint_count * sizeof reader->hints[0]);
    }
    reader->hint_count = 0;
    reader->hint_bytes = 0;
    reader->job = (struct worker_job){.loop = reader->redis->loop, .run = run_reader, .done = reader_done};
    reader->job_busy = redis_job_submit(reader->redis, &reader->job);
    if (reader->job_busy)
        return;
    free_hints(reader->hints_taken,
               reader->hints_taken_count); /* they come from the stream; upkeep tries again */
    free(reader->hints_taken);
    reader->hints_taken = NULL;
    reader->hints_taken_count = 0;
}

void redis_hint_add(struct redis_reader *reader, unsigned partition, struct str payload)
{
    const struct bus_subscription *spec = &reader->consumer.spec;

    if (!spec->hints || !reader->ready || reader->hint_count == REDIS_HINTS_MAX ||
        reader->hint_bytes > spec->batch_bytes_max)
        return; /* the stream has it */
    reader->hint_bytes += payload.len;
    reader->hints[reader->hint_count++] =
        (struct redis_hint){.partition = partition, .payload = str_dup(payload), .len = payload.len};
    redis_work_reader(reader);
}
