/* One subscription: a consumer of librdkafka and the thread that polls it, the pump. The pump files messages into lanes,
 * begins commits, and keeps polling whatever handlers do, so that a slow one does not cost the membership. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    POLL_MS = 100,
    COMMITTING_MS = 10, /* while an answer is awaited that does not end the poll by itself */
    FILE_MAX = 500,     /* messages between two looks at everything else */
    LOOK_MS = 3000,     /* lag, and new partitions */
    REOPEN_MS = 1000,
    CLOSE_MS = 2000,
    SAY_EVERY_MS = 30000,
};

static struct metric_family lag_family = {
    .name = "kafka_consumer_lag",
    .help = "Messages in the partitions this process has that its group has not handled yet.",
    .type = METRIC_GAUGE,
    .labels = {"topic", "group"},
};

bool bus_kafka_reader_is_shared(const struct kafka_reader *reader)
{
    return reader->consumer.spec.mode == BUS_SHARED;
}

void bus_kafka_reader_wake(struct kafka_reader *reader)
{
    if (reader->queue)
        rd_kafka_queue_yield(reader->queue);
}

/* ---- open ---- */

static bool open_consumer(struct kafka_reader *reader)
{
    const struct bus_kafka_config *config = &reader->kafka->config;
    char session[24], heartbeat[24], interval[24];
    const struct kafka_setting settings[] = {
        {"group.id", reader->consumer.spec.group},
        {"enable.auto.commit", "false"},
        {"enable.auto.offset.store", "false"},
        {"auto.offset.reset", "error"}, /* a place that is gone is a gap, and ours to tell */
        {"partition.assignment.strategy", "range"},
        {"session.timeout.ms", session},
        {"heartbeat.interval.ms", heartbeat},
        {"max.poll.interval.ms", interval},
        {"fetch.wait.max.ms", "100"}, /* a partition that is read again waits for a question under way */
        {"fetch.error.backoff.ms", "100"},
        {"queued.max.messages.kbytes", "16384"},
        {"topic.metadata.refresh.interval.ms", session}, /* finds new partitions */
        {NULL, NULL},
    };

    snprintf(session, sizeof session, "%lld", (long long)config->session_ms);
    snprintf(heartbeat, sizeof heartbeat, "%lld", (long long)config->session_ms / 20 + 1);
    snprintf(interval, sizeof interval, "%lld",
             (long long)(2 * config->handler_ms + config->session_ms + 60000));
    rd_kafka_t *rk =
        bus_kafka_client_open(reader->kafka, RD_KAFKA_CONSUMER, settings, reader, bus_kafka_group_callbacks);
    if (!rk)
        return false;
    rd_kafka_poll_set_consumer(rk);
    reader->commits = rd_kafka_queue_new(rk);
    pthread_mutex_lock(&reader->lock);
    reader->queue = rd_kafka_queue_get_consumer(rk);
    reader->rk = rk;
    pthread_mutex_unlock(&reader->lock);
    return true;
}

static bool subscribe(struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);

    rd_kafka_topic_partition_list_add(topics, reader->consumer.spec.topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t error = rd_kafka_subscribe(reader->rk, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    if (error)
        log_error("kafka_subscribe_failed", LOG_CSTR("topic", reader->consumer.spec.topic),
                  LOG_CSTR("error", rd_kafka_err2str(error)));
    return !error;
}

/* ---- close ---- */

/* Leaves the group, so that others need not wait for the session to end. What librdkafka wants of us on the way out has to
 * be given in any case: without it the handle would never end. */
static void leave_group(struct kafka_reader *reader)
{
    struct kafka *kafka = reader->kafka;
    int64_t limit_ns = clock_deadline_ms(CLOSE_MS);
    rd_kafka_error_t *error = rd_kafka_consumer_close_queue(reader->rk, reader->queue);

    if (error) {
        rd_kafka_error_destroy(error);
        return;
    }
    while (!rd_kafka_consumer_closed(reader->rk) && clock_mono_ns() < limit_ns && atomic_load(&kafka->up) &&
           !atomic_load(&kafka->interrupted)) {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(reader->rk, 20);
        if (message)
            rd_kafka_message_destroy(message);
    }
    if (!rd_kafka_consumer_closed(reader->rk))
        rd_kafka_assign(reader->rk, NULL);
}

/* In order: the last commit, the group, the handle. Nobody waits for a broker that is gone. */
static void close_consumer(struct kafka_reader *reader)
{
    bus_kafka_group_leave(reader, reader->kafka->config.handler_ms);
    if (atomic_load(&reader->kafka->up) && bus_kafka_reader_is_shared(reader))
        leave_group(reader);
    pthread_mutex_lock(&reader->lock);
    while (reader->running > 0) /* they hold messages of this handle */
        bus_kafka_wait_ms(&reader->idle, &reader->lock, POLL_MS);
    rd_kafka_queue_t *queue = reader->queue;
    rd_kafka_t *rk = reader->rk;
    reader->queue = NULL;
    reader->rk = NULL;
    pthread_mutex_unlock(&reader->lock);
    rd_kafka_queue_destroy(queue);
    rd_kafka_queue_destroy(reader->commits);
    bus_kafka_client_close(rk);
    reader->assigned = reader->positioned = reader->committing = reader->reopen = false;
}

/* ---- the pump ---- */

static void note_error(struct kafka_reader *reader, const rd_kafka_message_t *message)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    int64_t now_ns = clock_mono_ns();

    if (message->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET ||
        message->err == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE) {
        pthread_mutex_lock(&reader->lock);
        if (message->partition >= 0 && (unsigned)message->partition < reader->lane_count &&
            reader->lanes[message->partition])
            reader->lanes[message->partition]->lost = true;
        pthread_mutex_unlock(&reader->lock);
        return;
    }
    if (message->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
        bus_kafka_topic_gone(reader->kafka, spec->topic);
    if (message->err == RD_KAFKA_RESP_ERR__FATAL || rd_kafka_fatal_error(reader->rk, NULL, 0))
        reader->reopen = true;
    if (now_ns < reader->said_at_ns)
        return;
    reader->said_at_ns = now_ns + SAY_EVERY_MS * CLOCK_NS_PER_MS;
    log_warn("kafka_reader_waits", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_CSTR("error", rd_kafka_err2str(message->err)));
}

/* False: its lane has enough. */
static bool file(struct kafka_reader *reader, rd_kafka_message_t *message)
{
    struct kafka_lane *lane = NULL;

    if (message->err) {
        note_error(reader, message);
        rd_kafka_message_destroy(message);
        return true;
    }
    pthread_mutex_lock(&reader->lock);
    if (message->partition >= 0 && (unsigned)message->partition < reader->lane_count)
        lane = reader->lanes[message->partition];
    if (lane)
        bus_kafka_lane_put(lane, message);
    else
        rd_kafka_message_destroy(message);
    bool room = !lane || !bus_kafka_lane_is_full(lane);
    pthread_mutex_unlock(&reader->lock);
    return room;
}

static void set_paused(struct kafka_reader *reader, struct kafka_lane *lane, bool paused)
{
    rd_kafka_topic_partition_list_t *one = rd_kafka_topic_partition_list_new(1);

    rd_kafka_topic_partition_list_add(one, reader->consumer.spec.topic, (int32_t)lane->partition);
    if (paused)
        rd_kafka_pause_partitions(reader->rk, one);
    else
        rd_kafka_resume_partitions(reader->rk, one);
    rd_kafka_topic_partition_list_destroy(one);
    lane->paused = paused;
}

/* A lane that has enough is read no further until it needs more. */
static void steer(struct kafka_reader *reader)
{
    for (unsigned i = 0; i < reader->lane_count && reader->positioned; i++) {
        struct kafka_lane *lane = reader->lanes[i];
        if (!lane || !lane->owned)
            continue;
        pthread_mutex_lock(&reader->lock);
        bool full = bus_kafka_lane_is_full(lane), low = bus_kafka_lane_is_low(lane);
        pthread_mutex_unlock(&reader->lock);
        if (full && !lane->paused)
            set_paused(reader, lane, true);
        else if (low && lane->paused)
            set_paused(reader, lane, false);
    }
}

static int wait_ms(struct kafka_reader *reader)
{
    int limit_ms = reader->committing || (reader->assigned && !reader->positioned) ? COMMITTING_MS : POLL_MS;

    pthread_mutex_lock(&reader->lock);
    int due_ms = reader->running < reader->consumer.spec.parallel
                     ? clock_ms_left(bus_kafka_lanes_due_ns(reader))
                     : limit_ms;
    pthread_mutex_unlock(&reader->lock);
    return due_ms < limit_ms ? due_ms + 1 : limit_ms;
}

static void poll_messages(struct kafka_reader *reader)
{
    rd_kafka_message_t *message = rd_kafka_consumer_poll(reader->rk, wait_ms(reader));

    for (int i = 1; message && file(reader, message) && i < FILE_MAX; i++)
        message = rd_kafka_consumer_poll(reader->rk, 0);
}

static void pump_once(struct kafka_reader *reader)
{
    poll_messages(reader);
    if (reader->assigned && !reader->positioned)
        bus_kafka_group_position(reader);
    if (reader->positioned)
        bus_kafka_group_lost(reader);
    pthread_mutex_lock(&reader->lock);
    bus_kafka_lanes_dispatch(reader);
    pthread_mutex_unlock(&reader->lock);
    steer(reader);
    bus_kafka_group_commit(reader);
    if (clock_mono_ns() >= reader->look_at_ns) {
        bus_kafka_group_look(reader);
        reader->look_at_ns = clock_deadline_ms(LOOK_MS);
    }
}

/* The topic is there, as far as it is ours to make. */
static bool is_topic_there(struct kafka_reader *reader)
{
    struct kafka *kafka = reader->kafka;
    const struct bus_topic_state *topic = reader->consumer.topic;

    return topic->spec.partitions == 0 || (atomic_load(&topic->known) && atomic_load(&kafka->up));
}

static void await_topic(struct kafka_reader *reader)
{
    struct kafka *kafka = reader->kafka;

    pthread_mutex_lock(&kafka->lock);
    while (!is_topic_there(reader) && !atomic_load(&kafka->closing))
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, REOPEN_MS);
    pthread_mutex_unlock(&kafka->lock);
}

static void *run_pump(void *arg)
{
    struct kafka_reader *reader = arg;
    struct kafka *kafka = reader->kafka;

    await_topic(reader);
    while (!atomic_load(&kafka->closing)) {
        if (!reader->rk &&
            (!open_consumer(reader) || (bus_kafka_reader_is_shared(reader) && !subscribe(reader)))) {
            pthread_mutex_lock(&kafka->lock);
            bus_kafka_wait_ms(&kafka->changed, &kafka->lock, REOPEN_MS);
            pthread_mutex_unlock(&kafka->lock);
            continue;
        }
        reader->assigned |= !bus_kafka_reader_is_shared(reader);
        pump_once(reader);
        if (reader->reopen)
            close_consumer(reader);
    }
    if (reader->rk)
        close_consumer(reader);
    return NULL;
}

/* ---- life ---- */

void bus_kafka_reader_create(struct kafka *kafka, const struct bus_consumer *consumer)
{
    struct kafka_reader *reader = memory_zalloc(sizeof *reader);
    const struct str labels[] = {consumer->topic->name, str_from(consumer->spec.group)};

    reader->consumer = *consumer;
    reader->kafka = kafka;
    reader->partitions = consumer->topic->spec.partitions;
    pthread_mutex_init(&reader->lock, NULL);
    bus_kafka_cond_init(&reader->idle);
    metrics_register(&lag_family);
    reader->kafka_lag = metric_series_get(&lag_family, labels);
    kafka->readers = memory_realloc_array(kafka->readers, kafka->reader_count + 1, sizeof kafka->readers[0]);
    kafka->readers[kafka->reader_count++] = reader;
}

void bus_kafka_reader_start(struct kafka_reader *reader)
{
    reader->started = pthread_create(&reader->thread, NULL, run_pump, reader) == 0;
    if (!reader->started)
        log_error("kafka_reader_failed", LOG_CSTR("error", "no thread"));
}

void bus_kafka_reader_destroy(struct kafka_reader *reader)
{
    for (unsigned i = 0; i < reader->lane_count; i++)
        if (reader->lanes[i])
            bus_kafka_lane_destroy(reader->lanes[i]);
    free(reader->lanes);
    bus_consumer_deinit(&reader->consumer);
    pthread_cond_destroy(&reader->idle);
    pthread_mutex_destroy(&reader->lock);
    free(reader);
}
