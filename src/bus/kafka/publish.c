/* Publishing: the idempotent producer with acks=all; the caller waits until every message is acknowledged.
 *
 * Nothing is given to librdkafka while no broker answers, so that an outage leaves no messages that arrive after their callers have
 * given up. A producer that cannot keep the order any more (a fatal error) is replaced; the outcome of its messages is unknown to
 * their callers. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    SERVE_MS = 100,
    LOOK_MS = 50,   /* how often a wait checks whether the bus ends */
    FLUSH_MS = 500, /* for acknowledgements at the end */
    REOPEN_MS = 1000,
};

/* One call of bus_publish(), under kafka->lock. Reports arrive on the producer's thread, perhaps after the caller has returned: the
 * last of both frees it. */
struct request {
    pthread_cond_t changed;
    size_t pending; /* messages without a report, and the caller */
    rd_kafka_resp_err_t failure;
    struct report {
        struct request *request;
        unsigned partition;
        int64_t offset;
    } reports[];
};

/* One less is pending. */
static void request_release(struct request *request)
{
    if (--request->pending == 1) /* the caller waits */
        pthread_cond_signal(&request->changed);
    if (request->pending > 0)
        return;
    pthread_cond_destroy(&request->changed);
    free(request);
}

static void request_report(struct report *report, rd_kafka_resp_err_t failure, int64_t offset)
{
    report->offset = offset;
    if (failure && !report->request->failure)
        report->request->failure = failure;
    request_release(report->request);
}

/* ---- the producer ---- */

void bus_kafka_on_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct kafka *kafka = opaque;

    (void)rk;
    if (message->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
        message->err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
        message->err == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION)
        bus_kafka_topic_missing(kafka, rd_kafka_topic_name(message->rkt));
    pthread_mutex_lock(&kafka->lock);
    request_report(message->_private, message->err, message->offset);
    pthread_mutex_unlock(&kafka->lock);
}

rd_kafka_t *bus_kafka_producer_acquire(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    rd_kafka_t *producer = kafka->producer;
    kafka->producer_users += producer != NULL;
    pthread_mutex_unlock(&kafka->lock);
    return producer;
}

void bus_kafka_producer_release(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    kafka->producer_users--;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

/* No caller gets it any more; those that have it release it soon. */
static void close_producer(struct kafka *kafka)
{
    rd_kafka_t *producer = kafka->producer;
    int64_t limit_ns = clock_deadline_ms(FLUSH_MS);

    pthread_mutex_lock(&kafka->lock);
    kafka->producer = NULL;
    while (kafka->producer_users > 0)
        clock_cond_wait(&kafka->changed, &kafka->lock, clock_deadline_ms(LOOK_MS));
    pthread_mutex_unlock(&kafka->lock);
    while (rd_kafka_outq_len(producer) > 0 && clock_mono_ns() < limit_ns && atomic_load(&kafka->bus.is_up) &&
           !atomic_load(&kafka->is_producer_broken))
        rd_kafka_poll(producer, 10);
    rd_kafka_purge(producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (rd_kafka_outq_len(producer) > 0)
        rd_kafka_poll(producer, 10);
    bus_kafka_client_close(producer);
    atomic_store(&kafka->is_producer_broken, false);
}

void *bus_kafka_producer_run(void *arg)
{
    struct kafka *kafka = arg;
    char bytes[24];
    const struct kafka_setting settings[] = {
        {"enable.idempotence", "true"}, /* with it acks=all, and order within a partition over retries */
        {"linger.ms", "0"},             /* a caller waits; later messages share the next request */
        {"request.timeout.ms", "5000"},
        {"message.timeout.ms", "30000"},
        {"message.max.bytes", bytes},
        {NULL, NULL},
    };

    snprintf(bytes, sizeof bytes, "%zu", kafka->bus.message_bytes_max + KAFKA_RECORD_BYTES);
    while (atomic_load(&kafka->phase) != KAFKA_CLOSING) {
        if (!kafka->producer) { /* only this thread changes it */
            rd_kafka_t *producer = bus_kafka_client_open(kafka, RD_KAFKA_PRODUCER, settings, kafka);
            pthread_mutex_lock(&kafka->lock);
            kafka->producer = producer;
            bus_kafka_upkeep_wake(kafka);
            if (!producer && atomic_load(&kafka->phase) != KAFKA_CLOSING)
                clock_cond_wait(&kafka->changed, &kafka->lock, clock_deadline_ms(REOPEN_MS));
            pthread_mutex_unlock(&kafka->lock);
            continue;
        }
        rd_kafka_poll(kafka->producer, SERVE_MS);
        if (atomic_load(&kafka->is_producer_broken)) {
            log_warn("kafka_producer_replaced");
            close_producer(kafka);
        }
    }
    if (kafka->producer)
        close_producer(kafka);
    return NULL;
}

/* ---- one call, under the lock ---- */

/* Until the topics exist and a broker answers. A failure here: nothing was published. */
static enum status await_broker(struct kafka *kafka, const struct bus_message *messages, size_t count,
                                int64_t deadline_ns, struct error *error)
{
    for (;;) {
        enum status status = STATUS_OK;
        bool is_known = true;
        for (size_t i = 0; i < count && status == STATUS_OK; i++)
            status = bus_kafka_topic_check(kafka, bus_topic_find(&kafka->bus, messages[i].topic), &is_known,
                                           error);
        if (status != STATUS_OK || (is_known && kafka->producer && atomic_load(&kafka->bus.is_up)))
            return status;
        if (kafka_is_ending(kafka))
            return error_set(error, STATUS_CANCELLED, "the bus is stopping");
        if (clock_ms_left(deadline_ns) == 0)
            return error_set(error, STATUS_TIMEOUT, "%s",
                             atomic_load(&kafka->bus.is_up) ? "the topic does not exist"
                                                            : "no Kafka broker answers");
        clock_cond_wait(&kafka->changed, &kafka->lock, deadline_ns);
    }
}

/* An empty payload is not Kafka's null, which means a deletion to some readers. */
rd_kafka_resp_err_t bus_kafka_produce(rd_kafka_t *rk, const char *topic, const struct bus_message *message,
                                      void *opaque)
{
    rd_kafka_headers_t *headers = message->header_count ? rd_kafka_headers_new(message->header_count) : NULL;
    const char *payload = message->payload.ptr ? message->payload.ptr : "";
    const rd_kafka_vu_t parts[] = {
        {.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = topic},
        {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = (int32_t)message->partition},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {(void *)payload, message->payload.len}},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {(void *)message->key.ptr, message->key.len}},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = opaque},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
    };
    size_t count = sizeof parts / sizeof parts[0];

    for (unsigned i = 0; i < message->header_count; i++) {
        const struct bus_header *header = &message->headers[i];
        rd_kafka_header_add(headers, header->name.ptr, (ssize_t)header->name.len,
                            header->value.ptr ? header->value.ptr : "", (ssize_t)header->value.len);
    }
    rd_kafka_error_t *error = rd_kafka_produceva(rk, parts, headers ? count : count - 1);

    if (!error)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    if (headers)
        rd_kafka_headers_destroy(headers);
    return code;
}

/* Waits while the queue of librdkafka is full. */
static void send_all(struct kafka *kafka, struct request *request, const struct bus_message *messages,
                     size_t count, int64_t deadline_ns)
{
    rd_kafka_t *producer = kafka->producer;

    kafka->producer_users++;
    for (size_t i = 0; i < count && !request->failure; i++) {
        const struct bus_topic_state *topic = bus_topic_find(&kafka->bus, messages[i].topic);
        struct report *report = &request->reports[i];
        struct bus_message placed = messages[i];
        rd_kafka_resp_err_t failure;
        placed.partition = bus_kafka_topic_partition(kafka, topic, messages[i].partition);
        *report = (struct report){.request = request, .partition = placed.partition};
        request->pending++;
        for (;;) {
            pthread_mutex_unlock(&kafka->lock);
            failure = bus_kafka_produce(producer, topic->spec.name, &placed, report);
            pthread_mutex_lock(&kafka->lock);
            if (failure != RD_KAFKA_RESP_ERR__QUEUE_FULL || clock_ms_left(deadline_ns) == 0 ||
                kafka_is_ending(kafka))
                break;
            clock_cond_wait(&kafka->changed, &kafka->lock, clock_deadline_ms(5));
        }
        if (failure)
            request_report(report, failure, -1);
    }
    kafka->producer_users--;
}

/* Until every message is acknowledged, or one cannot be. */
static enum status await_reports(struct kafka *kafka, struct request *request, int64_t deadline_ns,
                                 struct error *error)
{
    while (request->pending > 1) {
        int left_ms = clock_ms_left(deadline_ns);
        if (kafka_is_ending(kafka) && !request->failure)
            return error_set(error, STATUS_CANCELLED, "the bus is stopping");
        if (left_ms == 0 && !request->failure)
            return error_set(error, STATUS_TIMEOUT, "Kafka did not acknowledge in time");
        if (left_ms == 0 || kafka_is_ending(kafka))
            break;
        clock_cond_wait(&request->changed, &kafka->lock,
                        clock_deadline_ms(left_ms < LOOK_MS ? left_ms : LOOK_MS));
    }
    switch (request->failure) {
    case RD_KAFKA_RESP_ERR_NO_ERROR: return STATUS_OK;
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the limit of its Kafka topic");
    case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
    case RD_KAFKA_RESP_ERR__TIMED_OUT: return error_set(error, STATUS_TIMEOUT, "no Kafka broker answers");
    default: return error_set(error, STATUS_UNAVAILABLE, "kafka: %s", rd_kafka_err2str(request->failure));
    }
}

enum status bus_kafka_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error)
{
    struct kafka *kafka = (struct kafka *)bus;
    enum status status = STATUS_CANCELLED;

    pthread_mutex_lock(&kafka->lock);
    kafka->publishing++;
    if (atomic_load(&kafka->phase) == KAFKA_RUNNING)
        status = await_broker(kafka, messages, count, deadline_ns, error);
    else
        error_set(error, status, "the bus is stopping");
    if (status == STATUS_OK) {
        struct request *request = memory_zalloc(sizeof *request + count * sizeof request->reports[0]);
        pthread_cond_init(&request->changed, NULL);
        request->pending = 1;
        send_all(kafka, request, messages, count, deadline_ns);
        status = await_reports(kafka, request, deadline_ns, error);
        for (size_t i = 0; i < count && status == STATUS_OK; i++) {
            messages[i].offset = request->reports[i].offset;
            messages[i].partition = request->reports[i].partition;
            metric_add(bus_topic_find(&kafka->bus, messages[i].topic)->published, 1);
        }
        request_release(request);
        if (status != STATUS_OK)
            bus_kafka_upkeep_wake(kafka);
    }
    kafka->publishing--;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
    FAILPOINT("kafka.after_publish");
    return status;
}
