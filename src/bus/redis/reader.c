/* A subscription: reads its stream through a consumer group of its own (GROUP:POD), hands entries to the handler, and
 * acknowledges them with the next read. redis_reader_step() takes the next step from the current state.
 *
 * A read that failed may have been executed: then Redis has marked entries as delivered that this process did not receive. So the
 * reader replaces its group by one that begins after the last settled entry.
 *
 * The stream's own counters (XINFO) show that entries were missed: more were removed than this process had read, or the last id went
 * back. If the group is gone, entries may have been missed too. Then on_gap is called, before the entries that follow. */
#include "bus/redis/inside.h"

#include <assert.h>
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    RETRY_MIN_MS = 20,
    RETRY_MAX_MS = 2000,
    FAILURES_LOGGED = 3, /* in a row; a failover has fewer */
    FIRST_COUNT = 16,    /* entries to ask for before their size is known */
};

static struct metric_family lag_family = {
    .name = "redis_stream_lag",
    .help = "Entries of the stream that the group has not handled yet.",
    .type = METRIC_GAUGE,
    .labels = {"topic", "group"},
};

static void reader_show_lag(struct redis_reader *reader)
{
    int64_t lag = reader->lag + (int64_t)(reader->entries.count - reader->entry_at);

    metric_set(reader->stream_lag, (double)lag);
    metric_set(reader->consumer.lag, (double)lag);
}

/* ---- states ---- */

/* The only place that changes the state. */
static void reader_move(struct redis_reader *reader, enum redis_reader_state to)
{
    static const unsigned allowed[] = {
        [READER_JOINING] = 1u << READER_JOINING | 1u << READER_IDLE | 1u << READER_HOLDING,
        [READER_IDLE] = 1u << READER_READING,
        [READER_READING] = 1u << READER_JOINING | 1u << READER_IDLE | 1u << READER_HOLDING,
        [READER_HOLDING] = 1u << READER_HANDLING,
        [READER_HANDLING] = 1u << READER_IDLE | 1u << READER_HOLDING,
    };

    if (reader->state == READER_LEFT)
        return;
    assert(to == READER_LEFT || allowed[reader->state] & 1u << to);
    reader->state = to;
}

/* Entries after reader->done are missing; what follows is read from `next` on. */
static void reader_note_gap(struct redis_reader *reader, struct redis_id next)
{
    if (!reader->has_gap)
        reader->gap_from = redis_id_offset(reader->done) + 1;
    reader->has_gap = true;
    reader->done = next;
}

/* ---- joining ---- */

/* Replaces an old group of this name: on the first join, this process does not know which of its entries were handled. */
static void reader_join(struct redis_reader *reader)
{
    struct redis_request *request = &reader->request;
    const char *stream = reader->topic->stream, *group = reader->group;
    const char *from = reader->consumer.spec.from == BUS_FROM_START ? "0" : "$";
    char id[REDIS_ID_BYTES];

    if (reader->is_ready)
        from = redis_id_put(reader->done, id).ptr;
    redis_request_begin(request, reader->topic);
    redis_request_add(request, "MULTI");
    redis_request_add(request, "XGROUP DESTROY %s %s", stream, group); /* fails without a stream */
    redis_request_add(request, "XGROUP CREATE %s %s %s MKSTREAM", stream, group, from);
    redis_request_add(request, "XGROUP CREATECONSUMER %s %s %s", stream, group, reader->redis->pod);
    redis_request_add(request, "XINFO STREAM %s", stream);
    redis_request_add(request, "EXEC");
    redis_cluster_send(&reader->redis->cluster, request);
}

static enum status take_join_reply(struct redis_reader *reader, struct error *error)
{
    const struct redis_reply *reply = reader->request.reply, *created = redis_reply_at(reply, 1);
    bool had_group = redis_reply_at(reply, 0)->integer == 1;
    struct redis_stream_info info;

    if (created->kind == REDIS_ERROR)
        return redis_reply_error(created, STATUS_DB_ERROR, error);
    if (created->kind != REDIS_TEXT || !redis_stream_info_parse(redis_reply_at(reply, 3), &info))
        return error_set(error, STATUS_DB_ERROR, "invalid reply to XGROUP");
    backoff_reset(&reader->backoff);
    reader->steady_ns = clock_mono_ns();
    if (reader->is_ready && redis_id_compare(info.last, reader->done) < 0) {
        /* The stream was replaced: all of it is new, so the reader joins again at 0. */
        reader_note_gap(reader, (struct redis_id){0});
        reader->read_count = -1;
        return STATUS_OK;
    }
    if (reader->is_ready && (!had_group || (info.added >= 0 && info.added < reader->read_count))) {
        reader_note_gap(reader, reader->done);
        reader->read_count = -1;
    } else if (!reader->is_ready && reader->consumer.spec.from == BUS_FROM_START) {
        reader->read_count = info.added < 0 ? -1 : info.added - info.length;
    } else if (!reader->is_ready) {
        reader->read_count = info.added;
        reader->done = info.last;
    }
    reader->is_ready = reader->is_woken = true;
    reader_move(reader, reader->has_gap ? READER_HOLDING : READER_IDLE);
    task_wake(reader->task);
    return STATUS_OK;
}

/* ---- reading ---- */

static void reader_read(struct redis_reader *reader, int64_t now_ns)
{
    struct redis_request *request = &reader->request;
    const char *stream = reader->topic->stream, *group = reader->group;
    size_t acks = reader->entries.count;

    reader->is_polling = reader->poll_at_ns <= now_ns;
    reader->is_woken = false;
    reader->poll_at_ns = now_ns + reader->redis->config.poll_ms * CLOCK_NS_PER_MS;
    redis_request_begin(request, reader->topic);
    if (acks > 0) {
        struct str *arguments = arena_alloc(&request->arena, (3 + acks) * sizeof arguments[0]);
        arguments[0] = STR("XACK");
        arguments[1] = str_from(stream);
        arguments[2] = str_from(group);
        for (size_t i = 0; i < acks; i++)
            arguments[3 + i] =
                redis_id_put(reader->entries.ids[i], arena_alloc(&request->arena, REDIS_ID_BYTES));
        redis_request_add_list(request, arguments, 3 + acks);
    }
    if (reader->is_polling)
        redis_request_add(request, "MULTI");
    redis_request_add(request, "XREADGROUP GROUP %s %s COUNT %u STREAMS %s >", group, reader->redis->pod,
                      reader->count_max, stream);
    if (reader->is_polling) {
        redis_request_add(request, "XINFO STREAM %s", stream);
        redis_request_add(request, "EXEC");
    }
    reader->entries.count = reader->entry_at = 0;
    bus_queue_charge(&reader->charged, 0);
    reader_move(reader, READER_READING);
    redis_cluster_send(&reader->redis->cluster, request);
}

/* A stream counts the entries that were ever added and those that it has. If more were removed than this process has read, it missed
 * some. Ids go back only when data was lost. */
static void reader_update_counters(struct redis_reader *reader, const struct redis_stream_info *info)
{
    int64_t removed = info->added - info->length;

    if (reader->is_polling && redis_id_compare(info->last, reader->done) < 0) {
        reader_note_gap(reader, (struct redis_id){0});
        reader->read_count = -1;
    } else if (reader->read_count >= 0 && info->added >= 0 && removed > reader->read_count) {
        reader_note_gap(reader, reader->done);
        reader->read_count = removed;
    }
    if (reader->is_polling && reader->entries.count == 0)
        reader->read_count = info->added;
    else if (reader->read_count >= 0)
        reader->read_count += (int64_t)reader->entries.count;
    reader->lag = reader->read_count >= 0 && info->added >= 0 ? info->added - reader->read_count : 0;
    reader_show_lag(reader);
}

static enum status take_read_reply(struct redis_reader *reader, struct error *error)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    const struct redis_reply *reply = reader->request.reply;
    const struct redis_reply *read = reader->is_polling ? redis_reply_at(reply, 0) : reply;
    struct redis_stream_info info = {.added = -1};
    struct redis_entries *entries = &reader->entries;
    size_t bytes = 0, bytes_max = bus_batch_bytes_max(&reader->consumer);

    if (read->kind == REDIS_ERROR)
        return redis_reply_error(read, STATUS_DB_ERROR, error);
    if (reader->is_polling && !redis_stream_info_parse(redis_reply_at(reply, 1), &info))
        return error_set(error, STATUS_DB_ERROR, "invalid reply to XINFO");
    enum status status =
        redis_entries_parse(redis_reply_at(redis_reply_at(read, 0), 1), reader->consumer.topic->name,
                            &reader->request.arena, entries, error);
    if (status != STATUS_OK)
        return status;
    backoff_reset(&reader->backoff);
    reader_update_counters(reader, &info);
    redis_pods_check(reader);
    reader->is_woken |= entries->count >= reader->count_max; /* there may be more */
    /* The next read asks for so many entries that they have about as many bytes as a batch may have. */
    for (size_t i = 0; i < entries->count; i++)
        bytes += entries->messages[i].payload.len;
    bus_queue_charge(&reader->charged, bytes);
    if (bytes >= bytes_max && reader->count_max > 1)
        reader->count_max /= 2;
    else if (bytes < bytes_max / 4 && entries->count == reader->count_max)
        reader->count_max *= 2;
    if (reader->count_max > spec->batch_max)
        reader->count_max = spec->batch_max;
    reader_move(reader, reader->has_gap || entries->count > 0 ? READER_HOLDING : READER_IDLE);
    return STATUS_OK;
}

static void on_answered(struct redis_request *request, const struct error *error)
{
    struct redis_reader *reader = CONTAINER_OF(request, struct redis_reader, request);
    struct error invalid;

    if (reader->state == READER_LEFT)
        return;
    if (!error && (reader->state == READER_JOINING ? take_join_reply(reader, &invalid)
                                                   : take_read_reply(reader, &invalid)) != STATUS_OK)
        error = &invalid;
    if (error) { /* joins again: at once if only the group is gone, else after a pause */
        reader_move(reader, READER_JOINING);
        reader->entries.count = reader->entry_at = 0;
        bus_queue_charge(&reader->charged, 0);
        reader->poll_at_ns = 0; /* the stream may have been trimmed meanwhile */
        if (error->status == STATUS_IO && reader->count_max > 1)
            reader->count_max /= 2; /* the reply may have been too large */
        bool is_group_lost = str_starts_with(str_from(error->message), STR("NOGROUP"));
        if (is_group_lost)
            log_warn("redis_group_lost", LOG_CSTR("topic", reader->consumer.spec.topic),
                     LOG_CSTR("group", reader->group));
        else
            reader->wait_until_ns = clock_deadline_ms(backoff_next_ms(&reader->backoff));
        if (!is_group_lost && reader->backoff.failures == FAILURES_LOGGED)
            log_warn("bus_reader_waits", LOG_CSTR("topic", reader->consumer.spec.topic),
                     LOG_CSTR("group", reader->group), LOG_ERROR_FIELDS(error));
    }
    redis_reader_step(reader);
}

/* ---- one step ---- */

static void on_reader_timer(struct loop_timer *timer)
{
    redis_reader_step(CONTAINER_OF(timer, struct redis_reader, timer));
}

void redis_reader_step(struct redis_reader *reader)
{
    int64_t now_ns = clock_mono_ns(), wait_until_ns = reader->wait_until_ns;

    if (reader->state == READER_READING || reader->state == READER_HANDLING || reader->state == READER_LEFT)
        return;
    if (wait_until_ns <= now_ns && reader->state == READER_IDLE && !reader->is_woken)
        wait_until_ns = reader->poll_at_ns;
    if (wait_until_ns > now_ns)
        loop_timer_start(reader->redis->loop, &reader->timer, wait_until_ns, on_reader_timer);
    else if (reader->state == READER_HOLDING)
        task_wake(reader->task);
    else if (reader->state == READER_IDLE)
        reader_read(reader, now_ns);
    else if (!reader->request.is_busy)
        reader_join(reader);
}

void redis_reader_wake(struct redis_reader *reader)
{
    reader->is_woken = true;
    redis_reader_step(reader);
}

/* ---- the task: prepare and finish on the loop, run on a worker ---- */

static void reader_prepare(void *context)
{
    struct redis_reader *reader = context;
    struct redis_hints *hints = reader->hints;

    reader->hints = reader->hints_handed;
    reader->hints_handed = hints;
    reader->hands_entries = reader->state == READER_HOLDING && reader->wait_until_ns <= clock_mono_ns();
    reader->settled = 0;
    reader->wait_ms = 0;
    if (reader->hands_entries)
        reader_move(reader, READER_HANDLING);
}

static int64_t reader_run(struct task *task, void *context)
{
    struct redis_reader *reader = context;
    const struct bus_subscription *spec = &reader->consumer.spec;
    struct redis_hints *hints = reader->hints_handed;

    (void)task;
    if (!reader->is_reported)
        bus_consumer_ready(&reader->consumer);
    reader->is_reported = true;
    if (hints->count > 0) { /* their verdicts do not count: they are delivered again from the stream */
        struct bus_batch batch = {
            .messages = hints->messages,
            .count = hints->count,
            .verdicts = arena_zalloc(&hints->arena, hints->count * sizeof batch.verdicts[0]),
            .deadline_ns = clock_deadline_ms(reader->redis->config.handler_ms),
        };
        spec->handler(spec->context, &batch);
        if (spec->on_committed)
            spec->on_committed(spec->context, &batch, 0);
    }
    if (!reader->hands_entries)
        return TASK_IDLE;
    if (reader->has_gap)
        bus_consumer_gap(&reader->consumer, 0, reader->gap_from, redis_id_offset(reader->done) + 1);
    reader->has_gap = false;
    size_t left = reader->entries.count - reader->entry_at;
    if (left > 0)
        reader->settled = bus_deliver(&reader->delivery, reader->entries.messages + reader->entry_at, left,
                                      &reader->wait_ms);
    return TASK_IDLE;
}

static void reader_finish(void *context)
{
    struct redis_reader *reader = context;

    reader->hints_handed->count = reader->hints_handed->bytes = 0;
    arena_reset(&reader->hints_handed->arena);
    if (!reader->hands_entries)
        return;
    if (reader->settled > 0)
        reader->done = reader->entries.ids[reader->entry_at + reader->settled - 1];
    reader->entry_at += reader->settled;
    FAILPOINT("redis.before_ack");
    if (reader->wait_ms > 0)
        reader->wait_until_ns = clock_deadline_ms(reader->wait_ms);
    reader_show_lag(reader);
    reader_move(reader, reader->entry_at < reader->entries.count ? READER_HOLDING : READER_IDLE);
    redis_reader_step(reader);
}

/* ---- life ---- */

static void on_group_removed(struct redis_request *request, const struct error *error)
{
    (void)error;
    redis_leave_replied(CONTAINER_OF(request, struct redis_reader, leave)->redis);
}

/* If a read is under way, this is sent after it; Redis executes both in that order. */
void redis_reader_leave(struct redis_reader *reader, bool removes_group)
{
    struct redis_request *request = &reader->leave;

    loop_timer_stop(reader->redis->loop, &reader->timer);
    reader_move(reader, READER_LEFT);
    if (!reader->is_ready || !removes_group) {
        redis_leave_replied(reader->redis);
        return;
    }
    redis_request_begin(request, reader->topic);
    redis_request_add(request, "XGROUP DESTROY %s %s", reader->topic->stream, reader->group);
    redis_cluster_send(&reader->redis->cluster, request);
}

void redis_reader_create(struct bus *bus, const struct bus_consumer *consumer)
{
    struct redis *redis = (struct redis *)bus;
    struct redis_reader *reader = memory_zalloc(sizeof *reader);
    const struct bus_subscription *spec = &consumer->spec;
    const struct str labels[] = {consumer->topic->name, str_from(spec->group)};
    /* Subscriptions of this process with the same topic and group: each has its own consumer group. */
    unsigned same = 0;
    struct buf name = {0};

    reader->consumer = *consumer;
    reader->redis = redis;
    reader->topic = redis_topic_of(redis, consumer->topic);
    for (size_t i = 0; i < redis->reader_count; i++)
        same += redis->readers[i]->topic == reader->topic &&
                strcmp(redis->readers[i]->consumer.spec.group, spec->group) == 0;
    buf_printf(&name, "%s:%s", spec->group, redis->pod);
    if (same > 0)
        buf_printf(&name, ":%u", same + 1);
    reader->group = str_dup(buf_str(&name));
    buf_deinit(&name);
    reader->backoff = (struct backoff){.min_ms = RETRY_MIN_MS, .max_ms = RETRY_MAX_MS};
    reader->read_count = -1;
    reader->count_max = spec->batch_max < FIRST_COUNT ? spec->batch_max : FIRST_COUNT;
    redis_request_init(&reader->request, on_answered);
    redis_request_init(&reader->leave, on_group_removed);
    redis_request_init(&reader->pods_request, redis_pods_answered);
    metrics_register(&lag_family);
    reader->stream_lag = metric_series_get(&lag_family, labels);
    reader->delivery = (struct bus_delivery){
        .bus = &redis->bus, .consumer = &reader->consumer, .handler_ms = redis->config.handler_ms};
    for (size_t i = 0; i < 2; i++)
        reader->hint_sets[i].arena = ARENA(4096);
    reader->hints = &reader->hint_sets[0];
    reader->hints_handed = &reader->hint_sets[1];
    reader->task = task_create(&(struct task_config){.name = "redis_reader",
                                                     .loop = redis->loop,
                                                     .pool = redis->config.workers,
                                                     .run = reader_run,
                                                     .prepare = reader_prepare,
                                                     .finish = reader_finish,
                                                     .context = reader});
    redis->readers = memory_realloc_array(redis->readers, redis->reader_count + 1, sizeof redis->readers[0]);
    redis->readers[redis->reader_count++] = reader;
}

void redis_reader_destroy(struct redis_reader *reader)
{
    task_destroy(reader->task);
    for (size_t i = 0; i < 2; i++)
        arena_deinit(&reader->hint_sets[i].arena);
    redis_request_deinit(&reader->request);
    redis_request_deinit(&reader->leave);
    redis_request_deinit(&reader->pods_request);
    bus_queue_charge(&reader->charged, 0);
    bus_consumer_deinit(&reader->consumer);
    free(reader->group);
    free(reader);
}
