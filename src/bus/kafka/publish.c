/* Publishing: acks=all by the idempotent producer; who publishes waits until every message is acknowledged.
 *
 * Nothing is handed to librdkafka while no broker answers: so an outage leaves no heap of copies behind that arrive when
 * nobody wants them any more. A producer that may no longer promise order (a fatal error) is ended and made anew; what it
 * still had is unknown to those who wait. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    SERVE_MS = 100,
    LOOK_MS = 50,        /* how often a wait looks whether it is still wanted */
    LAST_WORDS_MS = 500, /* for acknowledgements that are on their way when it ends */
    REOPEN_MS = 1000,
};

/* One call of bus_publish(). Reports come from the producer's thread, perhaps after the caller has left. */
struct request {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_uint references;
    size_t pending;
    rd_kafka_resp_err_t failure;
    struct slot {
        struct request *request;
        unsigned partition;
        int64_t offset;
    } slots[];
};

static struct request *request_create(size_t count)
{
    struct request *request = memory_zalloc(sizeof *request + count * sizeof request->slots[0]);

    pthread_mutex_init(&request->lock, NULL);
    bus_kafka_cond_init(&request->changed);
    atomic_init(&request->references, 1);
    for (size_t i = 0; i < count; i++)
        request->slots[i].request = request;
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

static void request_expect(struct request *request)
{
    atomic_fetch_add(&request->references, 1);
    pthread_mutex_lock(&request->lock);
    request->pending++;
    pthread_mutex_unlock(&request->lock);
}

static void request_report(struct slot *slot, rd_kafka_resp_err_t failure, int64_t offset)
{
    struct request *request = slot->request;

    pthread_mutex_lock(&request->lock);
    slot->offset = offset;
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
        bus_kafka_topic_gone(opaque, rd_kafka_topic_name(message->rkt));
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
        {"linger.ms", "0"},             /* somebody waits; what comes meanwhile shares the next request */
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

/* Nobody gets it any more; those who have it let go soon. */
static void end_producer(struct kafka *kafka, struct kafka_producer *producer)
{
    int64_t limit_ns = clock_deadline_ms(LAST_WORDS_MS);

    pthread_mutex_lock(&kafka->lock);
    kafka->producer = NULL;
    while (producer->users > 0)
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, LOOK_MS);
    pthread_mutex_unlock(&kafka->lock);
    while (rd_kafka_outq_len(producer->rk) > 0 && clock_mono_ns() < limit_ns && atomic_load(&kafka->up) &&
           !atomic_load(&kafka->broken))
        rd_kafka_poll(producer->rk, 10);
    rd_kafka_purge(producer->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (rd_kafka_outq_len(producer->rk) > 0)
        rd_kafka_poll(producer->rk, 10);
    bus_kafka_client_close(producer->rk);
    free(producer);
}

static struct kafka_producer *begin_producer(struct kafka *kafka)
{
    struct kafka_producer *producer;
    rd_kafka_t *rk = open_producer(kafka);

    if (!rk)
        return NULL;
    producer = memory_zalloc(sizeof *producer);
    producer->rk = rk;
    pthread_mutex_lock(&kafka->lock);
    kafka->producer = producer;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
    return producer;
}

static void wait_to_reopen(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    if (!atomic_load(&kafka->closing))
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, REOPEN_MS);
    pthread_mutex_unlock(&kafka->lock);
}

void *bus_kafka_producer_run(void *arg)
{
    struct kafka *kafka = arg;
    struct kafka_producer *producer = NULL;

    while (!atomic_load(&kafka->closing)) {
        if (!producer && !(producer = begin_producer(kafka))) {
            wait_to_reopen(kafka);
            continue;
        }
        rd_kafka_poll(producer->rk, SERVE_MS);
        if (atomic_load(&kafka->broken)) {
            log_warn("kafka_producer_anew");
            end_producer(kafka, producer);
            producer = NULL;
            atomic_store(&kafka->broken, false);
        }
    }
    if (producer)
        end_producer(kafka, producer);
    return NULL;
}

/* ---- one call ---- */

static bool is_over(const struct kafka *kafka)
{
    return atomic_load(&kafka->interrupted) || atomic_load(&kafka->closing);
}

static enum status check_topics(struct kafka *kafka, const struct bus_message *messages, size_t count,
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

static enum status no_engine(const struct kafka *kafka, struct error *error)
{
    return atomic_load(&kafka->up) ? error_set(error, STATUS_TIMEOUT, "the topic does not exist")
                                   : error_set(error, STATUS_TIMEOUT, "no Kafka broker answers");
}

/* Until the topics are there and a broker answers. What fails here was not published. */
static enum status await_engine(struct kafka *kafka, const struct bus_message *messages, size_t count,
                                int64_t deadline_ns, struct error *error)
{
    enum status status = STATUS_OK;
    bool known;

    pthread_mutex_lock(&kafka->lock);
    while ((status = check_topics(kafka, messages, count, &known, error)) == STATUS_OK &&
           (!known || !kafka->producer || !atomic_load(&kafka->up))) {
        int left_ms = clock_ms_left(deadline_ns);
        if (is_over(kafka))
            status = error_set(error, STATUS_CANCELLED, "the bus is stopping");
        else if (left_ms == 0)
            status = no_engine(kafka, error);
        if (status != STATUS_OK)
            break;
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, left_ms < LOOK_MS ? left_ms : LOOK_MS);
    }
    pthread_mutex_unlock(&kafka->lock);
    return status;
}

/* Its queue is full: those before us are on their way. */
static rd_kafka_resp_err_t send_one(struct kafka *kafka, rd_kafka_t *rk, const struct bus_message *message,
                                    struct slot *slot, int64_t deadline_ns)
{
    const struct bus_topic_state *topic = bus_topic_find(&kafka->bus, message->topic);
    struct bus_message placed = *message;
    rd_kafka_resp_err_t failure;

    placed.partition = slot->partition = bus_kafka_topic_partition(kafka, topic, message->partition);
    while ((failure = bus_kafka_message_send(rk, topic->spec.name, &placed, slot)) ==
               RD_KAFKA_RESP_ERR__QUEUE_FULL &&
           clock_ms_left(deadline_ns) > 0 && !is_over(kafka)) {
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
        request_expect(request);
        failure = send_one(kafka, producer->rk, &messages[i], &request->slots[i], deadline_ns);
        if (failure)
            request_report(&request->slots[i], failure, -1);
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
        if (is_over(kafka))
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

static enum status judge(enum status status, rd_kafka_resp_err_t failure, struct error *error)
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
        messages[i].offset = request->slots[i].offset;
        messages[i].partition = request->slots[i].partition;
        metric_add(bus_topic_find(&kafka->bus, messages[i].topic)->published, 1);
    }
}

static enum status publish(struct kafka *kafka, struct bus_message *messages, size_t count,
                           int64_t deadline_ns, struct error *error)
{
    rd_kafka_resp_err_t failure;
    enum status status = await_engine(kafka, messages, count, deadline_ns, error);

    if (status != STATUS_OK)
        return status;
    struct request *request = request_create(count);
    send_all(kafka, request, messages, count, deadline_ns);
    status = await_reports(kafka, request, deadline_ns, &failure);
    status = judge(status, failure, error);
    FAILPOINT("kafka.after_publish");
    if (status == STATUS_OK)
        take_offsets(kafka, request, messages, count);
    else
        bus_kafka_probe(kafka);
    request_unref(request);
    return status;
}

static bool enter(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    bool enters = !atomic_load(&kafka->stopping);
    kafka->publishing += enters;
    pthread_mutex_unlock(&kafka->lock);
    return enters;
}

static void leave(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    kafka->publishing--;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

enum status bus_kafka_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error)
{
    struct kafka *kafka = (struct kafka *)bus;

    if (!enter(kafka))
        return error_set(error, STATUS_CANCELLED, "the bus is stopping");
    enum status status = publish(kafka, messages, count, deadline_ns, error);
    leave(kafka);
    return status;
}
