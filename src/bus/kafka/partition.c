/* One partition as this process has it. Messages wait here in order; one job at a time hands a batch to the handler, so two
 * handlers never have the same partition, also when it is given up and assigned again meanwhile. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum { ARENA_BYTES = 16384, BATCHES_AHEAD = 8 };

/* ---- the queue ---- */

struct kafka_partition *bus_kafka_partition_find(const struct kafka_reader *reader, int32_t number)
{
    return number >= 0 && (unsigned)number < reader->partition_count ? reader->partitions[number] : NULL;
}

struct kafka_partition *bus_kafka_partition_get(struct kafka_reader *reader, unsigned number)
{
    if (number >= reader->partition_count) {
        reader->partitions =
            memory_realloc_array(reader->partitions, number + 1, sizeof reader->partitions[0]);
        while (reader->partition_count <= number)
            reader->partitions[reader->partition_count++] = NULL;
    }
    if (!reader->partitions[number]) {
        struct kafka_partition *partition = memory_zalloc(sizeof *partition);
        partition->reader = reader;
        partition->number = number;
        partition->position = partition->committed = -1;
        partition->delivery = (struct bus_delivery){.bus = &reader->kafka->bus,
                                                    .consumer = &reader->consumer,
                                                    .pool = reader->kafka->pool,
                                                    .handler_ms = reader->kafka->config.handler_ms};
        reader->partitions[number] = partition;
    }
    return reader->partitions[number];
}

void bus_kafka_partition_put(struct kafka_partition *partition, rd_kafka_message_t *message)
{
    if (!partition->is_owned || message->offset < partition->fetch_at) {
        rd_kafka_message_destroy(message);
        return;
    }
    if (partition->head + partition->count == partition->capacity) {
        if (partition->head > 0 && partition->head >= partition->capacity / 2) {
            memmove(partition->items, partition->items + partition->head,
                    partition->count * sizeof partition->items[0]);
            partition->head = 0;
        } else {
            partition->capacity = partition->capacity ? 2 * partition->capacity : 64;
            partition->items =
                memory_realloc_array(partition->items, partition->capacity, sizeof partition->items[0]);
        }
    }
    partition->items[partition->head + partition->count++] = message;
    partition->bytes += message->len;
    bus_queue_charge(&partition->charged, partition->bytes);
    partition->fetch_at = message->offset + 1;
}

static void drop_items(struct kafka_partition *partition, size_t from, size_t count)
{
    rd_kafka_message_t **first = partition->items + partition->head + from;

    for (size_t i = 0; i < count; i++) {
        partition->bytes -= first[i]->len;
        rd_kafka_message_destroy(first[i]);
    }
    if (from == 0)
        partition->head += count;
    partition->count -= count;
    if (partition->count == 0)
        partition->head = 0;
    bus_queue_charge(&partition->charged, partition->bytes);
}

static size_t bytes_max(const struct kafka_partition *partition)
{
    return bus_queue_bytes_max(&partition->reader->consumer, partition->reader->partition_count);
}

/* A partition that is paused loses what librdkafka has read ahead of it and waits for a fetch under way, so it is paused only when all of
 * the reader have too much together. */
static bool reader_holds(const struct kafka_reader *reader, size_t bytes)
{
    size_t sum = 0;

    for (unsigned i = 0; i < reader->partition_count && sum < bytes; i++)
        sum += reader->partitions[i] ? reader->partitions[i]->bytes : 0;
    return sum >= bytes;
}

bool bus_kafka_partition_is_full(const struct kafka_partition *partition)
{
    const struct bus_subscription *spec = &partition->reader->consumer.spec;

    return partition->count >= BATCHES_AHEAD * (size_t)spec->batch_max ||
           (partition->bytes >= bytes_max(partition) &&
            reader_holds(partition->reader, bus_queue_bytes_max(&partition->reader->consumer, 1)));
}

bool bus_kafka_partition_is_low(const struct kafka_partition *partition)
{
    const struct bus_subscription *spec = &partition->reader->consumer.spec;

    return partition->count <= spec->batch_max &&
           (partition->bytes < bytes_max(partition) / 2 ||
            !reader_holds(partition->reader, bus_queue_bytes_max(&partition->reader->consumer, 1) / 2));
}

void bus_kafka_partition_gap(struct kafka_partition *partition, int64_t next)
{
    if (!partition->has_gap) {
        partition->gap_from = partition->fetch_at;
        partition->before_gap = partition->count;
    }
    partition->has_gap = true;
    partition->gap_next = next;
    partition->fetch_at = next;
}

void bus_kafka_partition_own(struct kafka_partition *partition)
{
    partition->is_owned = true;
    partition->fetch_at = INT64_MAX;
}

void bus_kafka_partition_give_up(struct kafka_partition *partition)
{
    partition->is_owned = partition->is_leaving = partition->has_gap = false;
    partition->is_paused = partition->is_out_of_range = false;
    partition->generation++;
    partition->position = -1;
    drop_items(partition, partition->taken, partition->count - partition->taken);
}

void bus_kafka_partition_destroy(struct kafka_partition *partition)
{
    drop_items(partition, 0, partition->count);
    free(partition->items);
    free(partition);
}

/* ---- messages: a key may be missing or any bytes, a payload may be missing, a header that is not text is left out ---- */

void bus_kafka_message_read(const rd_kafka_message_t *from, struct str topic, struct arena *arena,
                            struct bus_message *to)
{
    rd_kafka_timestamp_type_t type;
    int64_t at_ms = rd_kafka_message_timestamp(from, &type);
    rd_kafka_headers_t *headers = NULL;
    size_t count = 0;

    *to = (struct bus_message){
        .topic = topic,
        .key = from->key ? str_of(from->key, from->key_len) : STR_NONE,
        .payload = from->payload ? str_of(from->payload, from->len) : STR(""),
        .partition = (unsigned)from->partition,
        .offset = from->offset,
        .created_us = at_ms > 0 ? at_ms * 1000 : 0,
    };
    if (rd_kafka_message_headers(from, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR)
        count = rd_kafka_header_cnt(headers);
    struct bus_header *out = arena_alloc(arena, (count + 1) * sizeof out[0]);
    to->headers = out;
    for (size_t i = 0; i < count; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rd_kafka_header_get_all(headers, i, &name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        struct bus_header header = {str_from(name), str_of(value ? value : "", value ? size : 0)};
        if (header.name.len > 0 && str_is_text(header.name) && str_is_text(header.value))
            out[to->header_count++] = header;
    }
}

/* ---- the job: one batch ---- */

static bool is_halted(const struct kafka_reader *reader)
{
    return reader->is_halted || atomic_load(&reader->kafka->phase) != KAFKA_RUNNING ||
           clock_mono_ns() >= atomic_load(&reader->held_until_ns);
}

/* The batch counts only in the generation that it was taken in. */
static void run_partition(struct worker_job *work)
{
    struct kafka_partition *partition = (struct kafka_partition *)work;
    struct kafka_reader *reader = partition->reader;
    const struct bus_consumer *consumer = &reader->consumer;
    struct arena arena = ARENA(ARENA_BYTES);
    size_t count = 0, settled = 0;
    int64_t wait_ms = 0;

    pthread_mutex_lock(&reader->lock);
    if (partition->tried_in != partition->generation) /* the attempts were of another assignment */
        bus_delivery_forget(&partition->delivery);
    unsigned generation = partition->tried_in = partition->generation;
    bool has_gap = partition->is_owned && partition->has_gap && partition->before_gap == 0;
    int64_t gap_from = partition->gap_from, gap_next = partition->gap_next;
    if (partition->is_owned && !is_halted(reader))
        count = partition->has_gap && !has_gap ? partition->before_gap : partition->count;
    if (count > consumer->spec.batch_max)
        count = consumer->spec.batch_max;
    partition->taken = count;
    rd_kafka_message_t **items = arena_alloc(&arena, (count + 1) * sizeof items[0]);
    if (count > 0)
        memcpy(items, partition->items + partition->head, count * sizeof items[0]);
    pthread_mutex_unlock(&reader->lock);
    struct bus_message *messages = arena_alloc(&arena, (count + 1) * sizeof messages[0]);
    for (size_t i = 0; i < count; i++)
        bus_kafka_message_read(items[i], consumer->topic->name, &arena, &messages[i]);
    pthread_mutex_lock(&reader->lock);
    count = bus_slots_enter(&reader->slots, &partition->slot, messages, count);
    pthread_mutex_unlock(&reader->lock);
    if (has_gap) {
        bus_delivery_forget(&partition->delivery);
        bus_consumer_gap(consumer, partition->number, gap_from, gap_next);
    }
    if (count > 0)
        settled = bus_deliver(&partition->delivery, messages, count, &wait_ms);
    FAILPOINT("kafka.after_deliver");
    pthread_mutex_lock(&reader->lock);
    bool is_current = partition->generation == generation;
    size_t done = is_current ? settled : partition->taken;
    partition->taken = 0;
    if (is_current && has_gap) {
        partition->has_gap = false;
        partition->position = gap_next;
    }
    if (is_current && settled > 0)
        partition->position = messages[settled - 1].offset + 1;
    if (is_current)
        partition->due_ns = wait_ms > 0 ? clock_deadline_ms(wait_ms) : 0;
    if (partition->has_gap)
        partition->before_gap -= done;
    drop_items(partition, 0, done);
    pthread_mutex_unlock(&reader->lock);
    arena_deinit(&arena);
}

static void partition_done(struct worker_job *work)
{
    struct kafka_partition *partition = (struct kafka_partition *)work;
    struct kafka_reader *reader = partition->reader;

    pthread_mutex_lock(&reader->lock);
    partition->is_busy = false;
    bus_slots_leave(&reader->slots, &partition->slot);
    reader->running--;
    bus_kafka_partitions_dispatch(reader);
    bus_kafka_reader_wake(reader); /* to commit, to read on, or to wait for the end of a backoff */
    pthread_cond_broadcast(&reader->idle);
    pthread_mutex_unlock(&reader->lock);
}

/* ---- whose turn it is ---- */

/* Of the next message what its slot depends on. */
static struct bus_message head_of(const struct kafka_partition *partition)
{
    const rd_kafka_message_t *head = partition->items[partition->head];

    return (struct bus_message){.key = head->key ? str_of(head->key, head->key_len) : STR_NONE};
}

/* A gap alone needs no slot. */
static bool may_begin(const struct kafka_partition *partition)
{
    if (!partition || !partition->is_owned || partition->is_busy || partition->is_leaving)
        return false;
    if (partition->count == 0)
        return partition->has_gap && partition->before_gap == 0;
    const struct bus_message head = head_of(partition);
    return bus_slots_may_enter(&partition->reader->slots, &head);
}

void bus_kafka_partitions_dispatch(struct kafka_reader *reader)
{
    int64_t now_ns = clock_mono_ns();

    if (is_halted(reader))
        return;
    for (unsigned i = 0; i < reader->partition_count && reader->running < reader->consumer.spec.parallel;
         i++) {
        struct kafka_partition *partition = reader->partitions[(reader->turn + i) % reader->partition_count];
        if (!may_begin(partition) || partition->due_ns > now_ns)
            continue;
        partition->work = (struct worker_job){.run = run_partition, .done = partition_done};
        if (!worker_pool_submit(reader->kafka->config.workers, &partition->work))
            return; /* the queue of the workers is full: the reader tries again */
        partition->is_busy = true;
        if (partition->count > 0) {
            const struct bus_message head = head_of(partition);
            bus_slots_enter(&reader->slots, &partition->slot, &head, 1);
        }
        reader->running++;
        reader->turn = partition->number + 1;
    }
}

int64_t bus_kafka_partitions_due_ns(const struct kafka_reader *reader)
{
    int64_t due_ns = CLOCK_NEVER;

    for (unsigned i = 0; i < reader->partition_count; i++)
        if (may_begin(reader->partitions[i]) && reader->partitions[i]->due_ns < due_ns)
            due_ns = reader->partitions[i]->due_ns;
    return due_ns;
}
