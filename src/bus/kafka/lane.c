/* A lane: one partition as this process has it. What the pump read waits here in order; one job at a time hands it to the
 * handler, so a partition is never handled by two at once, also when it went away and came back meanwhile. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum { ARENA_BYTES = 16384, BATCHES_AHEAD = 8 };

/* ---- what waits ---- */

struct kafka_lane *bus_kafka_lane_get(struct kafka_reader *reader, unsigned partition)
{
    if (partition >= reader->lane_count) {
        reader->lanes = memory_realloc_array(reader->lanes, partition + 1, sizeof reader->lanes[0]);
        while (reader->lane_count <= partition)
            reader->lanes[reader->lane_count++] = NULL;
    }
    if (!reader->lanes[partition]) {
        struct kafka_lane *lane = memory_zalloc(sizeof *lane);
        struct kafka *kafka = reader->kafka;
        *lane =
            (struct kafka_lane){.reader = reader, .partition = partition, .position = -1, .committed = -1};
        lane->delivery = (struct bus_delivery){
            .bus = &kafka->bus,
            .consumer = &reader->consumer,
            .pool = bus_kafka_reader_is_shared(reader) ? kafka->pool : NULL,
            .handler_ms = kafka->config.handler_ms,
        };
        reader->lanes[partition] = lane;
    }
    return reader->lanes[partition];
}

static void make_room(struct kafka_lane *lane)
{
    if (lane->head + lane->count < lane->capacity)
        return;
    if (lane->head >= lane->capacity / 2 && lane->head > 0) {
        memmove(lane->items, lane->items + lane->head, lane->count * sizeof lane->items[0]);
        lane->head = 0;
        return;
    }
    lane->capacity = lane->capacity ? 2 * lane->capacity : 64;
    lane->items = memory_realloc_array(lane->items, lane->capacity, sizeof lane->items[0]);
}

void bus_kafka_lane_put(struct kafka_lane *lane, rd_kafka_message_t *message)
{
    if (!lane->owned || message->offset < lane->fetch_at) {
        rd_kafka_message_destroy(message);
        return;
    }
    make_room(lane);
    lane->items[lane->head + lane->count++] = message;
    lane->bytes += message->len;
    lane->fetch_at = message->offset + 1;
}

static void drop(struct kafka_lane *lane, size_t from, size_t count)
{
    rd_kafka_message_t **first = lane->items + lane->head + from;

    for (size_t i = 0; i < count; i++) {
        lane->bytes -= first[i]->len;
        rd_kafka_message_destroy(first[i]);
    }
    if (from == 0)
        lane->head += count;
    lane->count -= count;
    if (lane->count == 0)
        lane->head = 0;
}

bool bus_kafka_lane_is_full(const struct kafka_lane *lane)
{
    const struct bus_subscription *spec = &lane->reader->consumer.spec;

    return lane->count >= BATCHES_AHEAD * (size_t)spec->batch_max || lane->bytes >= 2 * spec->batch_bytes_max;
}

bool bus_kafka_lane_is_low(const struct kafka_lane *lane)
{
    const struct bus_subscription *spec = &lane->reader->consumer.spec;

    return lane->count <= spec->batch_max && lane->bytes < spec->batch_bytes_max;
}

void bus_kafka_lane_place(struct kafka_lane *lane, int64_t offset)
{
    lane->position = offset;
    lane->fetch_at = offset;
    lane->committed = -1;
    lane->due_ns = 0;
}

void bus_kafka_lane_gap(struct kafka_lane *lane, int64_t next)
{
    if (!lane->gap) {
        lane->gap_from = lane->fetch_at;
        lane->before_gap = lane->count;
    }
    lane->gap = true;
    lane->gap_next = next;
    lane->fetch_at = next;
}

void bus_kafka_lane_leave(struct kafka_lane *lane)
{
    lane->owned = false;
    lane->epoch++;
    lane->gap = false;
    lane->position = -1;
    drop(lane, lane->taken, lane->count - lane->taken);
}

void bus_kafka_lane_destroy(struct kafka_lane *lane)
{
    drop(lane, 0, lane->count);
    free(lane->items);
    free(lane);
}

/* ---- a job: one batch ---- */

static bool reader_is_halted(const struct kafka_reader *reader)
{
    return reader->halted || atomic_load(&reader->kafka->stopping);
}

struct batch {
    struct bus_message *messages;
    size_t count;
    unsigned epoch;
    bool gap;
    int64_t gap_from, gap_next;
};

static void take(struct kafka_lane *lane, struct arena *arena, struct batch *batch)
{
    const struct bus_consumer *consumer = &lane->reader->consumer;
    rd_kafka_message_t **items;
    size_t limit;

    pthread_mutex_lock(&lane->reader->lock);
    if (lane->tried_in !=
        lane->epoch) /* it was another's meanwhile: what stands first may never have been tried */
        bus_delivery_forget(&lane->delivery);
    batch->epoch = lane->tried_in = lane->epoch;
    batch->gap = lane->owned && lane->gap && lane->before_gap == 0;
    batch->gap_from = lane->gap_from;
    batch->gap_next = lane->gap_next;
    limit = !lane->owned || reader_is_halted(lane->reader) ? 0
            : lane->gap && !batch->gap                     ? lane->before_gap
                                                           : lane->count;
    batch->count = limit < consumer->spec.batch_max ? limit : consumer->spec.batch_max;
    lane->taken = batch->count;
    items = arena_alloc(arena, (batch->count + 1) * sizeof items[0]);
    if (batch->count > 0)
        memcpy(items, lane->items + lane->head, batch->count * sizeof items[0]);
    pthread_mutex_unlock(&lane->reader->lock);
    batch->messages = arena_alloc(arena, (batch->count + 1) * sizeof batch->messages[0]);
    for (size_t i = 0; i < batch->count; i++)
        bus_kafka_message_read(items[i], consumer->topic->name, arena, &batch->messages[i]);
}

static void tell_gap(struct kafka_lane *lane, const struct batch *batch)
{
    const struct bus_subscription *spec = &lane->reader->consumer.spec;

    bus_delivery_forget(&lane->delivery);
    log_warn("bus_gap", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", lane->partition), LOG_INT("offset", batch->gap_from),
             LOG_INT("next", batch->gap_next));
    if (spec->on_gap)
        spec->on_gap(spec->context, lane->partition, batch->gap_from, batch->gap_next);
}

/* What the job did counts if the partition is still the one it took them from. */
static void settle(struct kafka_lane *lane, const struct batch *batch, size_t settled, int64_t wait_ms)
{
    pthread_mutex_lock(&lane->reader->lock);
    size_t taken = lane->taken;
    lane->taken = 0;
    if (lane->epoch != batch->epoch) {
        drop(lane, 0, taken);
        if (lane->gap) /* they were counted among those before it */
            lane->before_gap -= taken;
    } else {
        if (batch->gap) {
            lane->gap = false;
            lane->position = batch->gap_next;
        }
        if (settled > 0)
            lane->position = batch->messages[settled - 1].offset + 1;
        if (lane->gap)
            lane->before_gap -= settled;
        drop(lane, 0, settled);
        lane->due_ns = wait_ms > 0 ? clock_deadline_ms(wait_ms) : 0;
    }
    pthread_mutex_unlock(&lane->reader->lock);
}

static void run_job(struct worker_job *work)
{
    struct kafka_lane *lane = (struct kafka_lane *)work;
    struct arena arena;
    struct batch batch;
    size_t settled = 0;
    int64_t wait_ms = 0;

    arena_init(&arena, ARENA_BYTES);
    take(lane, &arena, &batch);
    if (batch.gap)
        tell_gap(lane, &batch);
    if (batch.count > 0)
        settled = bus_deliver(&lane->delivery, batch.messages, batch.count, &wait_ms);
    FAILPOINT("kafka.after_deliver");
    settle(lane, &batch, settled, wait_ms);
    arena_deinit(&arena);
}

static void job_done(struct worker_job *work)
{
    struct kafka_lane *lane = (struct kafka_lane *)work;
    struct kafka_reader *reader = lane->reader;

    pthread_mutex_lock(&reader->lock);
    lane->busy = false;
    reader->running--;
    bus_kafka_lanes_dispatch(reader);
    bus_kafka_reader_wake(reader); /* to commit, to read on, or to come back after a backoff */
    pthread_cond_broadcast(&reader->idle);
    pthread_mutex_unlock(&reader->lock);
}

/* ---- who is next ---- */

static bool has_work(const struct kafka_lane *lane)
{
    return lane && lane->owned && !lane->busy && (lane->count > 0 || (lane->gap && lane->before_gap == 0));
}

static bool submit(struct kafka_lane *lane)
{
    struct kafka_reader *reader = lane->reader;

    lane->work = (struct worker_job){.run = run_job, .done = job_done};
    lane->busy = worker_pool_submit(reader->kafka->config.workers, &lane->work);
    reader->running += lane->busy;
    return lane->busy;
}

void bus_kafka_lanes_dispatch(struct kafka_reader *reader)
{
    int64_t now_ns = clock_mono_ns();

    if (reader_is_halted(reader))
        return;
    for (unsigned i = 0; i < reader->lane_count && reader->running < reader->consumer.spec.parallel; i++) {
        struct kafka_lane *lane = reader->lanes[(reader->turn + i) % reader->lane_count];
        if (!has_work(lane) || lane->due_ns > now_ns)
            continue;
        if (!submit(lane))
            return; /* the workers are swamped: the pump comes back to it */
        reader->turn = lane->partition + 1;
    }
}

int64_t bus_kafka_lanes_due_ns(const struct kafka_reader *reader)
{
    int64_t due_ns = CLOCK_NEVER;

    for (unsigned i = 0; i < reader->lane_count; i++)
        if (has_work(reader->lanes[i]) && reader->lanes[i]->due_ns < due_ns)
            due_ns = reader->lanes[i]->due_ns;
    return due_ns;
}
