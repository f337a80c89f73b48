/* One subscription: a consumer of librdkafka and the thread that polls it. The thread puts messages into the queues of their
 * partitions, begins commits, and polls whatever handlers do, so that a slow one does not cost the membership. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    POLL_MS = 100,
    ANSWER_MS = 10, /* while an answer is awaited that does not end the poll by itself */
    MESSAGES = 500, /* between two looks at everything else */
    LAG_MS = 3000,  /* between two measurements */
    REOPEN_MS = 1000,
    CLOSE_MS = 2000,
    FETCHED_BYTES_MAX = 16 << 20, /* that librdkafka has read ahead */
};

static struct metric_family lag_family = {
    .name = "kafka_consumer_lag",
    .help = "Messages in the partitions this process has that its group has not handled yet.",
    .type = METRIC_GAUGE,
    .labels = {"topic", "group"},
};

/* A closed one can only join, and one with positions was assigned. */
void bus_kafka_reader_move(struct kafka_reader *reader, enum kafka_reader_state to)
{
    enum kafka_reader_state from = reader->state;

    if ((from == READER_CLOSED && to != READER_JOINING) ||
        (to == READER_POSITIONED && from != READER_ASSIGNED)) {
        log_error("kafka_reader_state_wrong", LOG_INT("from", from), LOG_INT("to", to));
        abort();
    }
    reader->state = to;
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
    char session[24], heartbeat[24], interval[24], fetched[24], queued[24];
    size_t bytes_max = bus_client_bytes_max(FETCHED_BYTES_MAX);
    const struct kafka_setting settings[] = {
        {"group.id", reader->consumer.spec.group},
        {"enable.auto.commit", "false"},
        {"enable.auto.offset.store", "false"},
        {"auto.offset.reset", "error"}, /* an offset that is gone is a gap, which is reported */
        {"partition.assignment.strategy", "range"},
        {"session.timeout.ms", session},
        {"heartbeat.interval.ms", heartbeat},
        {"max.poll.interval.ms", interval},
        {"fetch.wait.max.ms", "100"}, /* a partition that is resumed waits for the request under way */
        {"fetch.error.backoff.ms", "100"},
        {"fetch.max.bytes", fetched}, /* in one response; at least as much as a message may have */
        {"queued.max.messages.kbytes", queued},
        {"topic.metadata.refresh.interval.ms", session}, /* finds new partitions */
        {NULL, NULL},
    };

    snprintf(fetched, sizeof fetched, "%zu", bytes_max);
    snprintf(queued, sizeof queued, "%zu", bytes_max / 1024);
    snprintf(session, sizeof session, "%lld", (long long)config->session_ms);
    snprintf(heartbeat, sizeof heartbeat, "%lld", (long long)config->session_ms / 20 + 1);
    snprintf(interval, sizeof interval, "%lld",
             (long long)(2 * config->handler_ms + config->session_ms + 60000));
    rd_kafka_t *rk = bus_kafka_client_open(reader->kafka, RD_KAFKA_CONSUMER, settings, reader);
    if (!rk)
        return false;
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, reader->consumer.spec.topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t error =
        reader->uses_locks ? RD_KAFKA_RESP_ERR_NO_ERROR : rd_kafka_subscribe(rk, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    if (error) {
        log_error("kafka_subscribe_failed", LOG_CSTR("topic", reader->consumer.spec.topic),
                  LOG_CSTR("error", rd_kafka_err2str(error)));
        bus_kafka_client_close(rk);
        return false;
    }
    rd_kafka_poll_set_consumer(rk);
    reader->commits = rd_kafka_queue_new(rk);
    pthread_mutex_lock(&reader->lock);
    reader->queue = rd_kafka_queue_get_consumer(rk);
    reader->rk = rk;
    pthread_mutex_unlock(&reader->lock);
    bus_queue_charge(&reader->charged, bytes_max);
    bus_kafka_reader_move(reader, READER_JOINING);
    return true;
}

/* ---- close ---- */

/* The last commit, the group, the handle. A broker that does not answer is not waited for. */
static void close_consumer(struct kafka_reader *reader)
{
    struct kafka *kafka = reader->kafka;
    int64_t limit_ns = clock_deadline_ms(CLOSE_MS);
    bool is_left = true;

    bus_kafka_group_leave(reader, rd_kafka_assignment_lost(reader->rk));
    bus_kafka_locks_leave(reader);
    if (atomic_load(&kafka->bus.is_up)) {
        /* Others need not wait for the end of the session. The rebalance that librdkafka requests meanwhile has to be answered. */
        reader->is_closing = true;
        rd_kafka_error_t *error = rd_kafka_consumer_close_queue(reader->rk, reader->queue);
        while (!error && !rd_kafka_consumer_closed(reader->rk) && clock_mono_ns() < limit_ns &&
               atomic_load(&kafka->bus.is_up) && !atomic_load(&kafka->is_interrupted)) {
            rd_kafka_message_t *message = rd_kafka_consumer_poll(reader->rk, 20);
            if (message)
                rd_kafka_message_destroy(message);
        }
        is_left = error || rd_kafka_consumer_closed(reader->rk);
        if (error)
            rd_kafka_error_destroy(error);
    }
    pthread_mutex_lock(&reader->lock);
    while (reader->running > 0) /* they hold messages of this handle */
        clock_cond_wait(&reader->idle, &reader->lock, CLOCK_NEVER);
    rd_kafka_queue_t *queue = reader->queue;
    rd_kafka_t *rk = reader->rk;
    reader->queue = NULL;
    reader->rk = NULL;
    pthread_mutex_unlock(&reader->lock);
    rd_kafka_queue_destroy(queue);
    rd_kafka_queue_destroy(reader->commits);
    if (is_left)
        bus_kafka_client_close(rk);
    else
        bus_kafka_client_close_assigned(rk);
    bus_queue_charge(&reader->charged, 0);
    bus_kafka_reader_move(reader, READER_CLOSED);
    reader->is_committing = reader->is_broken = reader->is_closing = false;
}

/* ---- poll ---- */

/* False: its partition has enough. */
static bool take_message(struct kafka_reader *reader, rd_kafka_message_t *message)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    struct kafka_partition *partition = bus_kafka_partition_find(reader, message->partition);
    bool has_room = true;

    if (message->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET ||
        message->err == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE) {
        if (partition)
            partition->is_out_of_range = true;
    } else if (message->err) {
        if (message->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            bus_kafka_topic_missing(reader->kafka, spec->topic);
        if (message->err == RD_KAFKA_RESP_ERR__FATAL || rd_kafka_fatal_error(reader->rk, NULL, 0))
            reader->is_broken = true;
        if (clock_mono_ns() >= reader->log_at_ns) {
            reader->log_at_ns = clock_deadline_ms(KAFKA_LOG_MS);
            log_warn("kafka_reader_waits", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
                     LOG_CSTR("error", rd_kafka_err2str(message->err)));
        }
    }
    if (message->err) {
        rd_kafka_message_destroy(message);
        return true;
    }
    pthread_mutex_lock(&reader->lock);
    if (partition) {
        bus_kafka_partition_put(partition, message);
        has_room = !bus_kafka_partition_is_full(partition);
    } else {
        rd_kafka_message_destroy(message);
    }
    pthread_mutex_unlock(&reader->lock);
    return has_room;
}

static void poll_once(struct kafka_reader *reader)
{
    int wait_ms = reader->is_committing || reader->state == READER_ASSIGNED ? ANSWER_MS : POLL_MS;
    int due_ms = wait_ms;

    if (reader->uses_locks) {
        bus_kafka_locks_keep(reader);
        int look_ms = clock_ms_left(reader->look_at_ns);
        wait_ms = look_ms < wait_ms ? look_ms + 1 : wait_ms;
    }

    pthread_mutex_lock(&reader->lock);
    if (reader->running < reader->consumer.spec.parallel)
        due_ms = clock_ms_left(bus_kafka_partitions_due_ns(reader));
    pthread_mutex_unlock(&reader->lock);
    rd_kafka_message_t *message = rd_kafka_consumer_poll(reader->rk, due_ms < wait_ms ? due_ms + 1 : wait_ms);
    for (int i = 1; message && take_message(reader, message) && i < MESSAGES; i++)
        message = rd_kafka_consumer_poll(reader->rk, 0);
    if (reader->state == READER_ASSIGNED)
        bus_kafka_group_position(reader);
    if (reader->state == READER_POSITIONED)
        bus_kafka_group_reposition(reader);
    pthread_mutex_lock(&reader->lock);
    bus_kafka_partitions_dispatch(reader);
    pthread_mutex_unlock(&reader->lock);
    for (unsigned i = 0; i < reader->partition_count && reader->state == READER_POSITIONED; i++) {
        /* a partition that has enough is paused until it needs more */
        struct kafka_partition *partition = reader->partitions[i];
        if (!partition || !partition->is_owned)
            continue;
        pthread_mutex_lock(&reader->lock);
        bool is_changed = partition->is_paused ? bus_kafka_partition_is_low(partition)
                                               : bus_kafka_partition_is_full(partition);
        pthread_mutex_unlock(&reader->lock);
        if (!is_changed)
            continue;
        rd_kafka_topic_partition_list_t *one = rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(one, reader->consumer.spec.topic, (int32_t)i);
        if (partition->is_paused)
            rd_kafka_resume_partitions(reader->rk, one);
        else
            rd_kafka_pause_partitions(reader->rk, one);
        rd_kafka_topic_partition_list_destroy(one);
        partition->is_paused = !partition->is_paused;
    }
    bus_kafka_group_commit(reader);
    if (clock_mono_ns() >= reader->lag_at_ns) {
        bus_kafka_group_measure_lag(reader);
        reader->lag_at_ns = clock_deadline_ms(LAG_MS);
    }
}

/* ---- the thread ---- */

static bool is_closing(const struct kafka_reader *reader)
{
    return atomic_load(&reader->kafka->phase) == KAFKA_CLOSING;
}

static void *run_reader(void *arg)
{
    struct kafka_reader *reader = arg;
    struct kafka *kafka = reader->kafka;
    const struct bus_topic_state *topic = reader->consumer.topic;

    pthread_mutex_lock(&kafka->lock); /* a topic of ours is created before it is read */
    while (topic->spec.partitions > 0 && !(atomic_load(&topic->known) && atomic_load(&kafka->bus.is_up)) &&
           !is_closing(reader))
        clock_cond_wait(&kafka->changed, &kafka->lock, clock_deadline_ms(REOPEN_MS));
    pthread_mutex_unlock(&kafka->lock);
    while (!is_closing(reader)) {
        if (reader->state == READER_CLOSED && !open_consumer(reader)) {
            pthread_mutex_lock(&kafka->lock);
            clock_cond_wait(&kafka->changed, &kafka->lock, clock_deadline_ms(REOPEN_MS));
            pthread_mutex_unlock(&kafka->lock);
            continue;
        }
        poll_once(reader);
        if (reader->is_broken)
            close_consumer(reader);
    }
    if (reader->state != READER_CLOSED)
        close_consumer(reader);
    return NULL;
}

void bus_kafka_reader_create(struct bus *bus, const struct bus_consumer *consumer)
{
    struct kafka *kafka = (struct kafka *)bus;
    struct kafka_reader *reader = memory_zalloc(sizeof *reader);
    const struct str labels[] = {consumer->topic->name, str_from(consumer->spec.group)};

    reader->consumer = *consumer;
    bus_slots_init(&reader->slots, consumer);
    reader->kafka = kafka;
    reader->topic_partitions = consumer->topic->spec.partitions;
    reader->uses_locks = kafka->lock_pool != NULL;
    atomic_init(&reader->held_until_ns, reader->uses_locks ? 0 : CLOCK_NEVER);
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->idle, NULL);
    metrics_register(&lag_family);
    reader->kafka_lag = metric_series_get(&lag_family, labels);
    kafka->readers = memory_realloc_array(kafka->readers, kafka->reader_count + 1, sizeof kafka->readers[0]);
    kafka->readers[kafka->reader_count++] = reader;
}

void bus_kafka_reader_start(struct kafka_reader *reader)
{
    reader->is_started = pthread_create(&reader->thread, NULL, run_reader, reader) == 0;
    if (!reader->is_started)
        log_error("kafka_reader_failed", LOG_CSTR("error", "no thread"));
}

void bus_kafka_reader_destroy(struct kafka_reader *reader)
{
    for (unsigned i = 0; i < reader->partition_count; i++)
        if (reader->partitions[i])
            bus_kafka_partition_destroy(reader->partitions[i]);
    free(reader->partitions);
    bus_consumer_deinit(&reader->consumer);
    bus_slots_deinit(&reader->slots);
    pthread_cond_destroy(&reader->idle);
    pthread_mutex_destroy(&reader->lock);
    free(reader);
}
