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

/* One call of bus_publish(). Reports arrive on the producer's thread, perhaps after the caller has returned. */
struct request {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_uint references;
    size_t pending;
    rd_kafka_resp_err_t failure;
    struct report {
        struct request *request;
        unsigned partition;
        int64_t offset;
    } reports[];
};

static struct request *request_create(size_t count)
{
    struct request *request = memory_zalloc(sizeof *request + count * sizeof request->reports[0]);

    pthread_mutex_init(&request->lock, NULL);
    pthread_cond_init(&request->changed, NULL);
    atomic_init(&request->references, 1);
    for (size_t i = 0; i < count; i++)
        request->reports[i].request = request;
    return request;
}

static void request_unref(struct request *request)
{
    if (atomic_fetch_sub(&request->references, 1) != 1)
        return;
    pthread_cond_destroy(&request->changed);
    pthread_mutex_destroy(&request->lock);
    free(request);
}

static void request_report(struct report *report, rd_kafka_resp_err_t failure, int64_t offset)
{
    struct request *request = report->request;

    pthread_mutex_lock(&request->lock);
    report->offset = offset;
    if (failure && !request->failure)
        request->failure = failure;
    if (--request->pending == 0)
        pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    request_unref(request);
}

/* ---- the producer ---- */

static void on_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    (void)rk;
    if (message->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
        message->err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
        message->err == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION)
        bus_kafka_topic_missing(opaque, rd_kafka_topic_name(message->rkt));
    request_report(message->_private, message->err, message->offset);
}

static void set_callbacks(rd_kafka_conf_t *conf)
{
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivered);
}

static rd_kafka_t *open_producer(struct kafka *kafka)
{
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
    return bus_kafka_client_open(kafka, RD_KAFKA_PRODUCER, settings, kafka, set_callbacks);
}

struct kafka_producer *bus_kafka_producer_acquire(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    struct kafka_producer *producer = kafka->producer;
    if (producer)
        producer->users++;
    pthread_mutex_unlock(&kafka->lock);
    return producer;
}

void bus_kafka_producer_release(struct kafka *kafka, struct kafka_producer *producer)
{
    pthread_mutex_lock(&kafka->lock);
    producer->users--;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

/* No caller gets it any more; those that have it release it soon. */
static void close_producer(struct kafka *kafka, struct kafka_producer *producer)
{
    int64_t limit_ns = clock_deadline_ms(FLUSH_MS);

    pthread_mutex_lock(&kafka->lock);
    kafka->producer = NULL;
    while (producer->users > 0)
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, LOOK_MS);
    pthread_mutex_unlock(&kafka->lock);
    while (rd_kafka_outq_len(producer->rk) > 0 && clock_mono_ns() < limit_ns && atomic_load(&kafka->is_up) &&
           !atomic_load(&kafka->is_producer_broken))
        rd_kafka_poll(producer->rk, 10);
    rd_kafka_purge(producer->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (rd_kafka_outq_len(producer->rk) > 0)
        rd_kafka_poll(producer->rk, 10);
    bus_kafka_client_close(producer->rk);
    free(producer);
}

static struct kafka_producer *create_producer(struct kafka *kafka)
{
    rd_kafka_t *rk = open_producer(kafka);

    pthread_mutex_lock(&kafka->lock);
    if (rk) {
        kafka->producer = memory_zalloc(sizeof *kafka->producer);
        kafka->producer->rk = rk;
    } else if (atomic_load(&kafka->phase) != KAFKA_CLOSING) {
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, REOPEN_MS);
    }
    struct kafka_producer *producer = kafka->producer;
    pthread_mutex_unlock(&kafka->lock);
    bus_kafka_upkeep_wake(kafka);
    return producer;
}

void *bus_kafka_producer_run(void *arg)
{
    struct kafka *kafka = arg;
    struct kafka_producer *producer = NULL;

    while (atomic_load(&kafka->phase) != KAFKA_CLOSING) {
        if (!producer && !(producer = create_producer(kafka)))
            continue;
        rd_kafka_poll(producer->rk, SERVE_MS);
        if (!atomic_load(&kafka->is_producer_broken))
            continue;
        log_warn("kafka_producer_anew");
        close_producer(kafka, producer);
        producer = NULL;
        atomic_store(&kafka->is_producer_broken, false);
    }
    if (producer)
        close_producer(kafka, producer);
    return NULL;
}

/* ---- one call ---- */

static enum status check_all_topics(struct kafka *kafka, const struct bus_message *messages, size_t count,
                                    bool *known, struct error *error)
{
    *known = true;
    for (size_t i = 0; i < count; i++) {
        bool is_there;
        enum status status =
            bus_kafka_topic_check(kafka, bus_topic_find(&kafka->bus, messages[i].topic), &is_there, error);
        if (status != STATUS_OK)
            return status;
        *known &= is_there;
    }
    return STATUS_OK;
}

/* Until the topics exist and a broker answers. A failure here: nothing was published. */
static enum status await_broker(struct kafka *kafka, const struct bus_message *messages, size_t count,
                                int64_t deadline_ns, struct error *error)
{
    enum status status = STATUS_OK;
    bool known;

    pthread_mutex_lock(&kafka->lock);
    while ((status = check_all_topics(kafka, messages, count, &known, error)) == STATUS_OK &&
           (!known || !kafka->producer || !atomic_load(&kafka->is_up))) {
        int left_ms = clock_ms_left(deadline_ns);
        if (kafka_is_ending(kafka))
            status = error_set(error, STATUS_CANCELLED, "the bus is stopping");
        else if (left_ms == 0)
            status = error_set(error, STATUS_TIMEOUT, "%s",
                               atomic_load(&kafka->is_up) ? "the topic does not exist"
                                                          : "no Kafka broker answers");
        if (status != STATUS_OK)
            break;
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, left_ms < LOOK_MS ? left_ms : LOOK_MS);
    }
    pthread_mutex_unlock(&kafka->lock);
    return status;
}

static rd_kafka_headers_t *make_headers(const struct bus_message *message)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(message->header_count);

    for (unsigned i = 0; i < message->header_count; i++) {
        const struct bus_header *header = &message->headers[i];
        rd_kafka_header_add(headers, header->name.ptr, (ssize_t)header->name.len,
                            header->value.ptr ? header->value.ptr : "", (ssize_t)header->value.len);
    }
    return headers;
}

/* An empty payload is not Kafka's null, which means a deletion to some readers. */
static rd_kafka_resp_err_t produce(rd_kafka_t *rk, const char *topic, const struct bus_message *message,
                                   void *opaque)
{
    rd_kafka_headers_t *headers = message->header_count ? make_headers(message) : NULL;
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
static rd_kafka_resp_err_t send_one(struct kafka *kafka, rd_kafka_t *rk, const struct bus_message *message,
                                    struct report *report, int64_t deadline_ns)
{
    const struct bus_topic_state *topic = bus_topic_find(&kafka->bus, message->topic);
    struct bus_message placed = *message;
    rd_kafka_resp_err_t failure;

    placed.partition = report->partition = bus_kafka_topic_partition(kafka, topic, message->partition);
    while ((failure = produce(rk, topic->spec.name, &placed, report)) == RD_KAFKA_RESP_ERR__QUEUE_FULL &&
           clock_ms_left(deadline_ns) > 0 && !kafka_is_ending(kafka)) {
        pthread_mutex_lock(&kafka->lock);
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, 5);
        pthread_mutex_unlock(&kafka->lock);
    }
    return failure;
}

static void send_all(struct kafka *kafka, struct request *request, const struct bus_message *messages,
                     size_t count, int64_t deadline_ns)
{
    struct kafka_producer *producer = bus_kafka_producer_acquire(kafka);
    rd_kafka_resp_err_t failure = producer ? RD_KAFKA_RESP_ERR_NO_ERROR : RD_KAFKA_RESP_ERR__STATE;

    for (size_t i = 0; i < count && !failure; i++) {
        atomic_fetch_add(&request->references, 1);
        pthread_mutex_lock(&request->lock);
        request->pending++;
        pthread_mutex_unlock(&request->lock);
        failure = send_one(kafka, producer->rk, &messages[i], &request->reports[i], deadline_ns);
        if (failure)
            request_report(&request->reports[i], failure, -1);
    }
    if (producer)
        bus_kafka_producer_release(kafka, producer);
    else
        request->failure = failure;
}

static enum status await_reports(struct kafka *kafka, struct request *request, int64_t deadline_ns,
                                 rd_kafka_resp_err_t *failure)
{
    enum status status = STATUS_OK;

    pthread_mutex_lock(&request->lock);
    while (request->pending > 0 && status == STATUS_OK) {
        int left_ms = clock_ms_left(deadline_ns);
        if (kafka_is_ending(kafka))
            status = STATUS_CANCELLED;
        else if (left_ms == 0)
            status = STATUS_TIMEOUT;
        else
            bus_kafka_wait_ms(&request->changed, &request->lock, left_ms < LOOK_MS ? left_ms : LOOK_MS);
    }
    *failure = request->failure;
    pthread_mutex_unlock(&request->lock);
    return status;
}

static enum status publish_error(enum status status, rd_kafka_resp_err_t failure, struct error *error)
{
    if (failure == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the limit of its Kafka topic");
    if (failure == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT || failure == RD_KAFKA_RESP_ERR__TIMED_OUT)
        return error_set(error, STATUS_TIMEOUT, "no Kafka broker answers");
    if (failure)
        return error_set(error, STATUS_UNAVAILABLE, "kafka: %s", rd_kafka_err2str(failure));
    if (status == STATUS_TIMEOUT)
        return error_set(error, status, "Kafka did not acknowledge in time");
    return status == STATUS_OK ? status : error_set(error, status, "the bus is stopping");
}

static void take_offsets(struct kafka *kafka, const struct request *request, struct bus_message *messages,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        messages[i].offset = request->reports[i].offset;
        messages[i].partition = request->reports[i].partition;
        metric_add(bus_topic_find(&kafka->bus, messages[i].topic)->published, 1);
    }
}

static enum status publish_all(struct kafka *kafka, struct bus_message *messages, size_t count,
                               int64_t deadline_ns, struct error *error)
{
    rd_kafka_resp_err_t failure;
    enum status status = await_broker(kafka, messages, count, deadline_ns, error);

    if (status != STATUS_OK)
        return status;
    struct request *request = request_create(count);
    send_all(kafka, request, messages, count, deadline_ns);
    status = await_reports(kafka, request, deadline_ns, &failure);
    status = publish_error(status, failure, error);
    FAILPOINT("kafka.after_publish");
    if (status == STATUS_OK)
        take_offsets(kafka, request, messages, count);
    else
        bus_kafka_upkeep_wake(kafka);
    request_unref(request);
    return status;
}

enum status bus_kafka_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error)
{
    struct kafka *kafka = (struct kafka *)bus;

    pthread_mutex_lock(&kafka->lock);
    bool is_running = atomic_load(&kafka->phase) == KAFKA_RUNNING;
    kafka->publishing += is_running;
    pthread_mutex_unlock(&kafka->lock);
    if (!is_running)
        return error_set(error, STATUS_CANCELLED, "the bus is stopping");
    enum status status = publish_all(kafka, messages, count, deadline_ns, error);
    pthread_mutex_lock(&kafka->lock);
    kafka->publishing--;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
    return status;
}
