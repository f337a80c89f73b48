/* A subscription: reads its stream through a consumer group of its own (GROUP:POD), hands entries to the handler, and
 * acknowledges them with the next read. redis_reader_step() looks at the state and does the next thing.
 *
 * Entries that were missed are noticed by the stream's own counters (XINFO): more were removed than we had read, or the last
 * id went back. Then on_gap is called, before the entries that follow. */
#include "bus/redis/inside.h"

#include <stdlib.h>

#include "base/clock.h"
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

static void reader_move(struct redis_reader *reader, enum redis_reader_state to)
{
    static const unsigned allowed[] = {
        [READER_JOINING] = 1u << READER_JOINING | 1u << READER_IDLE | 1u << READER_HOLDING,
        [READER_IDLE] = 1u << READER_READING,
        [READER_READING] = 1u << READER_JOINING | 1u << READER_IDLE | 1u << READER_HOLDING,
        [READER_HOLDING] = 1u << READER_HANDLING,
        [READER_HANDLING] = 1u << READER_IDLE | 1u << READER_JOINING | 1u << READER_HOLDING,
    };

    if (reader->state == READER_LEFT)
        return;
    if (to != READER_LEFT && !(allowed[reader->state] >> to & 1))
        log_error("redis_reader_state", LOG_INT("from", reader->state), LOG_INT("to", to));
    reader->state = to;
}

static void on_reader_timer(struct loop_timer *timer)
{
    redis_reader_step(CONTAINER_OF(timer, struct redis_reader, timer));
}

static void reader_rest_until(struct redis_reader *reader, int64_t at_ns)
{
    loop_timer_start(reader->redis->loop, &reader->timer, at_ns, on_reader_timer);
}

/* A request failed: the reader joins or reads again after a pause. */
static void reader_failed(struct redis_reader *reader, const struct error *error)
{
    if (reader->state == READER_READING)
        reader_move(reader, READER_IDLE);
    if (error->status == STATUS_CANCELLED)
        return;
    int64_t wait_ms = backoff_next_ms(&reader->backoff);
    if (reader->backoff.failures == FAILURES_LOGGED)
        log_warn("bus_reader_waits", LOG_CSTR("topic", reader->consumer.spec.topic),
                 LOG_CSTR("group", reader->group), LOG_ERROR_FIELDS(error));
    reader->is_woken = true;
    reader->is_unsure =
        reader->is_ready;  /* the server may have delivered entries, and their reply was lost */
    reader->ack_count = 0; /* their entries are still pending: READ_PENDING finds them */
    reader->wait_until_ns = clock_deadline_ms(wait_ms);
    reader_rest_until(reader, reader->wait_until_ns);
}

/* The reply is an error, or not what was expected. NOGROUP: Redis lost its data, or another pod took this one for dead. */
static void reader_refused(struct redis_reader *reader, const struct redis_reply *reply)
{
    struct str text = reply->kind == REDIS_ERROR        ? reply->text
                      : reader->state == READER_READING ? STR("invalid reply to XINFO")
                                                        : STR("invalid reply to XGROUP");
    struct error error;

    if (reader->state == READER_READING && redis_reply_is_error(reply, "NOGROUP")) {
        log_warn("redis_group_lost", LOG_CSTR("topic", reader->consumer.spec.topic),
                 LOG_CSTR("group", reader->group));
        reader_move(reader, READER_JOINING);
        return;
    }
    error_set(&error, STATUS_DB_ERROR, "%.*s", STR_ARG(str_utf8_cut(text, 200)));
    reader_failed(reader, &error);
}

static void reader_note_gap(struct redis_reader *reader)
{
    if (!reader->has_gap)
        reader->gap_from = redis_id_offset(reader->done) + 1;
    reader->has_gap = true;
    reader->gap_next = redis_id_offset(reader->done) + 1;
}

/* ---- joining ---- */

/* An old group of this name is replaced: this process does not know what it had handled. */
static void reader_join(struct redis_reader *reader)
{
    struct redis_request *request = &reader->request;
    const char *stream = reader->topic->stream, *group = reader->group;
    const char *from = reader->consumer.spec.from == BUS_FROM_START ? "0" : "$";
    char id[REDIS_ID_BYTES];

    if (reader->is_ready)
        from = redis_id_put(reader->done, id).ptr;
    redis_request_begin(request, &reader->topic->route);
    redis_request_add(request, "MULTI");
    redis_request_add(request, "XGROUP DESTROY %s %s", stream, group); /* fails without a stream */
    redis_request_add(request, "XGROUP CREATE %s %s %s MKSTREAM", stream, group, from);
    redis_request_add(request, "SET %s%s 1 PX %lld", reader->alive_prefix, group,
                      (long long)reader->redis->config.pod_dead_ms);
    redis_request_add(request, "XINFO STREAM %s", stream);
    redis_request_add(request, "EXEC");
    redis_cluster_send(&reader->redis->cluster, request);
}

static void reader_joined(struct redis_reader *reader)
{
    const struct redis_reply *created = redis_reply_at(reader->request.reply, 1);
    struct redis_stream_info info;

    if (created->kind != REDIS_TEXT ||
        !redis_stream_info_parse(redis_reply_at(reader->request.reply, 3), &info)) {
        reader_refused(reader, created);
        return;
    }
    backoff_reset(&reader->backoff);
    if (reader->is_ready && redis_id_compare(info.last, reader->done) < 0) {
        reader_note_gap(reader);
        reader->done = (struct redis_id){0}; /* another stream: all of it is new, so the group begins at 0 */
        reader_join(reader);
        return;
    }
    reader->read_count = -1;
    if (reader->is_ready) {
        if (!reader->has_gap)
            reader_note_gap(reader);
        reader->gap_next = redis_id_offset(reader->done) + 1;
    } else if (reader->consumer.spec.from == BUS_FROM_START) {
        reader->read_count = info.added < 0 ? -1 : info.added - info.length;
    } else {
        reader->read_count = info.added;
        reader->done = info.last;
    }
    reader->is_ready_due = !reader->is_ready;
    reader->is_ready = reader->is_woken = true;
    reader_move(reader, reader->has_gap ? READER_HOLDING : READER_IDLE);
    task_wake(reader->task);
}

/* ---- reading ---- */

static void reader_read(struct redis_reader *reader, int64_t now_ns)
{
    struct redis_request *request = &reader->request;
    const char *stream = reader->topic->stream, *group = reader->group;
    bool is_polling = reader->poll_at_ns <= now_ns;

    reader->read = reader->is_unsure ? READ_PENDING : is_polling ? READ_NEW_AND_INFO : READ_NEW;
    reader->is_woken = false;
    reader->poll_at_ns = now_ns + reader->redis->config.poll_ms * CLOCK_NS_PER_MS;
    redis_request_begin(request, &reader->topic->route);
    if (reader->ack_count > 0) {
        struct str *arguments = arena_alloc(&request->arena, (3 + reader->ack_count) * sizeof arguments[0]);
        arguments[0] = STR("XACK");
        arguments[1] = str_from(stream);
        arguments[2] = str_from(group);
        for (size_t i = 0; i < reader->ack_count; i++)
            arguments[3 + i] = redis_id_put(reader->acks[i], arena_alloc(&request->arena, REDIS_ID_BYTES));
        redis_request_add_list(request, arguments, 3 + reader->ack_count);
        reader->ack_count = 0;
    }
    if (reader->read != READ_NEW)
        redis_request_add(request, "MULTI");
    redis_request_add(request, "XREADGROUP GROUP %s %s COUNT %u STREAMS %s %s", group, reader->redis->pod,
                      reader->count_max, stream, reader->read == READ_PENDING ? "0" : ">");
    if (reader->read != READ_NEW) {
        redis_request_add(request, "XINFO STREAM %s", stream);
        redis_request_add(request, "EXEC");
    }
    reader_move(reader, READER_READING);
    redis_cluster_send(&reader->redis->cluster, request);
}

/* Entries that are settled and pending only because their acknowledgement was lost are not handled again. */
static void reader_take_entries(struct redis_reader *reader, struct redis_entries *entries)
{
    struct redis_id *acks =
        arena_alloc(&reader->request.arena, (entries->count + entries->deleted_count + 1) * sizeof acks[0]);
    size_t kept = 0, bytes = 1, ack_count = 0;
    bool is_deleted_unread = false;

    for (size_t i = 0; i < entries->deleted_count; i++) {
        is_deleted_unread |= redis_id_compare(entries->deleted[i], reader->done) > 0;
        acks[ack_count++] = entries->deleted[i];
    }
    for (size_t i = 0; i < entries->count; i++) {
        acks[ack_count++] = entries->ids[i];
        bytes += entries->messages[i].payload.len;
        if (redis_id_compare(entries->ids[i], reader->done) <= 0)
            continue;
        entries->ids[kept] = entries->ids[i];
        entries->messages[kept] = entries->messages[i];
        entries->messages[kept++].topic = reader->consumer.topic->name;
    }
    entries->count = kept;
    reader->entries = *entries;
    reader->entry_at = 0;
    reader->acks = acks;
    reader->ack_count = ack_count;
    if (is_deleted_unread) {
        reader_note_gap(reader);
        reader->gap_next = kept ? entries->messages[0].offset
                                : redis_id_offset(entries->deleted[entries->deleted_count - 1]) + 1;
    }
    /* As many entries as have about as many bytes as a batch may have. */
    const struct bus_subscription *spec = &reader->consumer.spec;
    if (bytes >= spec->batch_bytes_max && reader->count_max > 1)
        reader->count_max /= 2;
    else if (bytes < spec->batch_bytes_max / 4 && ack_count == reader->count_max)
        reader->count_max *= 2;
    if (reader->count_max > spec->batch_max)
        reader->count_max = spec->batch_max;
}

static void reader_have_read(struct redis_reader *reader)
{
    const struct redis_reply *reply = reader->request.reply;
    const struct redis_reply *read = reader->read == READ_NEW ? reply : redis_reply_at(reply, 0);
    struct redis_stream_info info = {.added = -1};
    unsigned asked = reader->count_max;
    struct redis_entries entries;
    struct error error;
    bool has_info = reader->read != READ_NEW && redis_stream_info_parse(redis_reply_at(reply, 1), &info);

    if (read->kind == REDIS_ERROR || has_info != (reader->read != READ_NEW)) {
        reader_refused(reader, read);
        return;
    }
    if (redis_entries_parse(redis_reply_at(redis_reply_at(read, 0), 1), &reader->request.arena, &entries,
                            &error) != STATUS_OK) {
        reader_failed(reader, &error);
        return;
    }
    backoff_reset(&reader->backoff);
    /* Streams count how many entries were ever added and how many are there. More were removed than we have read: some were
     * missed. Ids go back only when data was lost. */
    bool went_back = has_info && redis_id_compare(info.last, reader->done) < 0;
    int64_t removed = info.added - info.length;
    if (went_back || (reader->read_count >= 0 && info.added >= 0 && removed > reader->read_count)) {
        if (went_back)
            reader->done = (struct redis_id){0};
        reader_note_gap(reader);
        reader->read_count = went_back ? -1 : removed;
    }
    reader_take_entries(reader, &entries);
    if (reader->read == READ_NEW_AND_INFO && reader->ack_count == 0)
        reader->read_count = info.added;
    else if (reader->read_count >= 0)
        reader->read_count += (int64_t)entries.count;
    reader->lag = reader->read_count >= 0 && info.added >= 0 ? info.added - reader->read_count : 0;
    if (reader->read == READ_PENDING && reader->ack_count == 0)
        reader->is_unsure = false;
    reader->is_woken |= reader->read == READ_PENDING || reader->ack_count >= asked; /* there may be more */
    reader_show_lag(reader);
    reader_move(reader, reader->has_gap || reader->entries.count > 0 ? READER_HOLDING : READER_IDLE);
}

static void on_answered(struct redis_request *request, enum status status, const struct error *error)
{
    struct redis_reader *reader = CONTAINER_OF(request, struct redis_reader, request);

    if (reader->state == READER_LEFT)
        return;
    if (status == STATUS_IO && reader->count_max > 1)
        reader->count_max /= 2; /* the reply may have been too large */
    if (status == STATUS_DB_ERROR && reader->state == READER_READING)
        reader_refused(reader, request->reply);
    else if (status != STATUS_OK)
        reader_failed(reader, error);
    else if (reader->state == READER_READING)
        reader_have_read(reader);
    else
        reader_joined(reader);
    redis_reader_step(reader);
}

/* ---- the next thing ---- */

void redis_reader_step(struct redis_reader *reader)
{
    int64_t now_ns = clock_mono_ns();

    if (reader->state == READER_READING || reader->state == READER_HANDLING || reader->state == READER_LEFT)
        return;
    if (reader->wait_until_ns > now_ns) {
        reader_rest_until(reader, reader->wait_until_ns);
        return;
    }
    if (reader->state == READER_HOLDING) {
        task_wake(reader->task);
    } else if (reader->state == READER_JOINING) {
        if (!reader->request.is_busy)
            reader_join(reader);
    } else if (reader->is_woken || reader->poll_at_ns <= now_ns) {
        reader_read(reader, now_ns);
    } else {
        reader_rest_until(reader, reader->poll_at_ns);
    }
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
    reader->hands_ready = reader->is_ready_due;
    reader->is_ready_due = false;
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
    if (reader->hands_ready && spec->on_ready)
        spec->on_ready(spec->context);
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
        bus_consumer_gap(&reader->consumer, 0, reader->gap_from, reader->gap_next);
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

static void on_group_removed(struct redis_request *request, enum status status, const struct error *error)
{
    (void)status;
    (void)error;
    redis_left(CONTAINER_OF(request, struct redis_reader, leave)->redis);
}

/* Sent after a read that is under way: Redis executes them in this order. */
void redis_reader_leave(struct redis_reader *reader, bool removes_group)
{
    struct redis_request *request = &reader->leave;

    loop_timer_stop(reader->redis->loop, &reader->timer);
    reader_move(reader, READER_LEFT);
    if (!reader->is_ready || !removes_group) {
        redis_left(reader->redis);
        return;
    }
    redis_request_begin(request, &reader->topic->route);
    redis_request_add(request, "XGROUP DESTROY %s %s", reader->topic->stream, reader->group);
    redis_request_add(request, "DEL %s%s", reader->alive_prefix, reader->group);
    redis_cluster_send(&reader->redis->cluster, request);
}

/* Two subscriptions of one process may have the same group: each has a consumer group of its own. The key that marks it as alive
 * is in the stream's slot: it has the stream's hash tag, or the whole name of the stream as its hash tag. */
static void reader_name_group(struct redis_reader *reader)
{
    const struct redis *redis = reader->redis;
    const char *stream = reader->topic->stream;
    unsigned twins = 0;
    struct buf name = {0};

    for (size_t i = 0; i < redis->reader_count; i++)
        twins += redis->readers[i]->topic == reader->topic &&
                 strcmp(redis->readers[i]->consumer.spec.group, reader->consumer.spec.group) == 0;
    buf_printf(&name, "%s:%s", reader->consumer.spec.group, redis->pod);
    if (twins > 0)
        buf_printf(&name, ":%u", twins + 1);
    reader->group = str_dup(buf_str(&name));
    buf_clear(&name);
    buf_printf(&name, strchr(stream, '{') ? "%s:alive:" : "{%s}:alive:", stream);
    reader->alive_prefix = str_dup(buf_str(&name));
    buf_deinit(&name);
}

void redis_reader_create(struct redis *redis, const struct bus_consumer *consumer)
{
    struct redis_reader *reader = memory_zalloc(sizeof *reader);
    const struct bus_subscription *spec = &consumer->spec;
    const struct str labels[] = {consumer->topic->name, str_from(spec->group)};

    reader->consumer = *consumer;
    reader->redis = redis;
    reader->topic = redis_topic_of(redis, consumer->topic);
    reader_name_group(reader);
    reader->backoff = (struct backoff){.min_ms = RETRY_MIN_MS, .max_ms = RETRY_MAX_MS};
    reader->read_count = -1;
    reader->count_max = spec->batch_max < FIRST_COUNT ? spec->batch_max : FIRST_COUNT;
    redis_request_init(&reader->request, on_answered);
    redis_request_init(&reader->leave, on_group_removed);
    redis_pods_init(reader);
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
    redis_pods_deinit(reader);
    bus_consumer_deinit(&reader->consumer);
    free(reader->group);
    free(reader->alive_prefix);
    free(reader);
}
