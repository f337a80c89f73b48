/* Dead letters on Kafka, by a consumer that belongs to no group and commits nothing, and a producer of its own. Both live as long as
 * one request of an operator. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bus/dead.h"
#include "bus/kafka/inside.h"

enum {
    SKIP_MAX = 64, /* unwanted letters between two spans that are read rather than sought */
    LOOK_MS = 20,
    POLL_MS = 100,
};
#define QUEUE_KBYTES "4096" /* that librdkafka fetches ahead */

struct kafka_dead {
    struct bus_dead dead; /* first */
    rd_kafka_conf_t *conf;
    rd_kafka_t *consumer, *producer; /* NULL until needed */
    char bytes_max[24];
    rd_kafka_resp_err_t failure; /* of a message of the current call */
    size_t reported;
};

static int ms_left(int64_t deadline_ns)
{
    int64_t left_ms = clock_ms_left(deadline_ns);
    return left_ms > 0 ? (int)left_ms : 1;
}

static enum status refused(rd_kafka_resp_err_t code, struct error *error)
{
    if (code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the limit of its Kafka topic");
    return error_set(error, code == RD_KAFKA_RESP_ERR__TIMED_OUT ? STATUS_TIMEOUT : STATUS_UNAVAILABLE,
                     "kafka: %s", rd_kafka_err2str(code));
}

/* ---- clients ---- */

static void on_delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct kafka_dead *dead = message->_private;
    (void)rk, (void)opaque; /* that of a handle is for the driver's log lines: there is none */
    if (message->err && !dead->failure)
        dead->failure = message->err;
    dead->reported++;
}

static enum status open_client(struct kafka_dead *dead, rd_kafka_type_t type, rd_kafka_t **rk,
                               struct error *error)
{
    const struct kafka_setting consumer[] = {{"enable.partition.eof", "true"},
                                             {"fetch.wait.max.ms", "10"},
                                             {"queued.max.messages.kbytes", QUEUE_KBYTES},
                                             {NULL, NULL}},
                               producer[] = {{"enable.idempotence", "true"},
                                             {"linger.ms", "0"},
                                             {"message.max.bytes", dead->bytes_max},
                                             {NULL, NULL}};
    char why[256] = "";
    if (*rk)
        return STATUS_OK;
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(dead->conf);
    if (type == RD_KAFKA_PRODUCER)
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivered);
    bool is_set = true;
    for (const struct kafka_setting *at = type == RD_KAFKA_PRODUCER ? producer : consumer; at->name; at++)
        is_set &= rd_kafka_conf_set(conf, at->name, at->value, why, sizeof why) == RD_KAFKA_CONF_OK;
    if (is_set)
        *rk = rd_kafka_new(type, conf, why, sizeof why);
    if (*rk)
        return STATUS_OK;
    rd_kafka_conf_destroy(conf);
    return error_set(error, STATUS_CONFIG, "kafka: %s", why);
}

/* ---- reading ---- */

/* No group moves letters of Kafka elsewhere. */
static enum status kafka_look(struct bus_dead *base, const char *topic, const char *group,
                              struct arena *arena, struct bus_dead_range **ranges, size_t *count,
                              int64_t deadline_ns, struct error *error)
{
    struct kafka_dead *dead = (struct kafka_dead *)base;
    unsigned partitions = 0;
    (void)group;
    enum status status = open_client(dead, RD_KAFKA_CONSUMER, &dead->consumer, error);
    if (status != STATUS_OK)
        return status;
    rd_kafka_resp_err_t code = bus_kafka_partitions_count(dead->consumer, topic, deadline_ns, &partitions);
    *ranges = arena_alloc(arena, (partitions + 1) * sizeof **ranges);
    for (unsigned i = 0; i < partitions && !code; i++) {
        struct bus_dead_range *range = &(*ranges)[*count];
        range->partition = i;
        code = rd_kafka_query_watermark_offsets(dead->consumer, topic, (int32_t)i, &range->first,
                                                &range->next, ms_left(deadline_ns));
        *count += !code && range->next > range->first;
    }
    return code ? refused(code, error) : STATUS_OK;
}

/* A read: the spans of each partition one after the other, all partitions at once. */
struct kafka_read {
    const struct bus_dead_query *query;
    rd_kafka_topic_t *topic;
    rd_kafka_queue_t *queue;
    size_t open;                 /* partitions that are being read */
    struct bus_dead_list *lists; /* one for each span, so that the order is that of the spans */
    struct kafka_place {
        unsigned partition;
        size_t span, end; /* the one that is being read; after the last */
        bool is_open;
    } places[BUS_PARTITIONS_MAX];
    size_t place_count;
};

static void list_places(struct kafka_read *read)
{
    const struct bus_dead_query *query = read->query;
    for (size_t i = 0; i < query->span_count; i++) {
        struct kafka_place *last = read->place_count ? &read->places[read->place_count - 1] : NULL;
        if (last && last->partition == query->spans[i].partition)
            last->end = i + 1;
        else if (read->place_count < BUS_PARTITIONS_MAX)
            read->places[read->place_count++] =
                (struct kafka_place){query->spans[i].partition, i, i + 1, false};
    }
}

static void stop_place(struct kafka_read *read, struct kafka_place *place)
{
    if (place->is_open)
        (void)rd_kafka_consume_stop(read->topic, (int32_t)place->partition);
    read->open -= place->is_open;
    place->is_open = false;
}

static bool start_place(struct kafka_read *read, struct kafka_place *place)
{
    stop_place(read, place);
    if (place->span == place->end)
        return true;
    place->is_open = rd_kafka_consume_start_queue(read->topic, (int32_t)place->partition,
                                                  read->query->spans[place->span].first, read->queue) == 0;
    read->open += place->is_open;
    return place->is_open;
}

/* All of the current span is here, up to before `offset`: the next one is near, or sought. */
static bool pass_offset(struct kafka_read *read, struct kafka_place *place, int64_t offset)
{
    const struct bus_dead_range *spans = read->query->spans;
    size_t before = place->span;
    while (place->span < place->end && spans[place->span].next <= offset)
        place->span++;
    if (place->span == before)
        return true;
    bool is_near = place->span < place->end && spans[place->span].first - offset <= SKIP_MAX;
    return is_near || start_place(read, place);
}

/* One message or event of the queue. False: the read cannot go on, and *code says why if it is a failure. */
static bool take_message(struct kafka_read *read, const rd_kafka_message_t *message, size_t *kept,
                         rd_kafka_resp_err_t *code)
{
    struct kafka_place *place = NULL;
    struct arena arena = ARENA(4096);
    struct bus_message found;
    for (size_t i = 0; i < read->place_count && !place; i++)
        if ((int32_t)read->places[i].partition == message->partition)
            place = &read->places[i];
    if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF ||
        message->err == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE ||
        message->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET) {
        if (place && place->is_open) {
            place->span = place->end;
            stop_place(read, place);
        }
        return true;
    }
    if (message->err) {
        *code = message->err;
        return false;
    }
    if (!place || !place->is_open)
        return true;
    const struct bus_dead_range *span = &read->query->spans[place->span];
    if (message->offset >= span->first && message->offset < span->next) {
        struct bus_dead_list *list = &read->lists[place->span];
        bus_kafka_message_read(message, str_from(read->query->topic), &arena, &found);
        (void)bus_dead_list_add(list, &found, found.payload.len);
        *kept += list->letters[list->count - 1].message.payload.len;
        arena_deinit(&arena);
    }
    return pass_offset(read, place, message->offset + 1) && *kept < read->query->bytes_max;
}

static rd_kafka_resp_err_t read_places(struct kafka_read *read, int64_t deadline_ns)
{
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;
    size_t kept = 0;
    bool goes_on = true;
    for (size_t i = 0; i < read->place_count && goes_on; i++)
        goes_on = start_place(read, &read->places[i]);
    if (!goes_on)
        code = rd_kafka_last_error();
    while (goes_on && read->open > 0) {
        rd_kafka_message_t *message = rd_kafka_consume_queue(read->queue, LOOK_MS);
        if (message)
            goes_on = take_message(read, message, &kept, &code);
        else if (clock_ms_left(deadline_ns) == 0)
            code = RD_KAFKA_RESP_ERR__TIMED_OUT, goes_on = false;
        if (message)
            rd_kafka_message_destroy(message);
    }
    for (size_t i = 0; i < read->place_count; i++)
        stop_place(read, &read->places[i]);
    return code;
}

static enum status kafka_read(struct bus_dead *base, const struct bus_dead_query *query,
                              struct bus_dead_list *list, int64_t deadline_ns, struct error *error)
{
    struct kafka_dead *dead = (struct kafka_dead *)base;
    enum status status = open_client(dead, RD_KAFKA_CONSUMER, &dead->consumer, error);
    if (status != STATUS_OK)
        return status;
    struct kafka_read *read = memory_zalloc(sizeof *read);
    rd_kafka_topic_conf_t *conf = rd_kafka_topic_conf_new();
    (void)rd_kafka_topic_conf_set(conf, "auto.offset.reset", "error", NULL, 0);
    read->query = query;
    read->topic = rd_kafka_topic_new(dead->consumer, query->topic, conf);
    read->queue = rd_kafka_queue_new(dead->consumer);
    read->lists = arena_zalloc(list->arena, query->span_count * sizeof *read->lists);
    for (size_t i = 0; i < query->span_count; i++)
        read->lists[i] = (struct bus_dead_list){.arena = list->arena, .query = query};
    list_places(read);
    rd_kafka_resp_err_t code = read_places(read, deadline_ns);
    size_t total = 0;
    for (size_t i = 0; i < query->span_count; i++)
        total += read->lists[i].count;
    list->letters = arena_alloc(list->arena, (total + 1) * sizeof *list->letters);
    for (size_t i = 0; i < query->span_count; i++) {
        if (read->lists[i].count > 0)
            memcpy(list->letters + list->count, read->lists[i].letters,
                   read->lists[i].count * sizeof *list->letters);
        list->count += read->lists[i].count;
    }
    rd_kafka_queue_destroy(read->queue);
    rd_kafka_topic_destroy(read->topic);
    free(read);
    return code ? refused(code, error) : STATUS_OK;
}

/* ---- publishing ---- */

/* The consumer asks for the topic: a question of a producer would create it. */
static enum status kafka_publish(struct bus_dead *base, struct bus_message *messages, size_t count,
                                 int64_t deadline_ns, struct error *error)
{
    struct kafka_dead *dead = (struct kafka_dead *)base;
    unsigned partitions = 0;
    enum status status = open_client(dead, RD_KAFKA_CONSUMER, &dead->consumer, error);
    if (status == STATUS_OK)
        status = open_client(dead, RD_KAFKA_PRODUCER, &dead->producer, error);
    if (status != STATUS_OK)
        return status;
    char *topic = str_dup(messages[0].topic);
    rd_kafka_resp_err_t code = bus_kafka_partitions_count(dead->consumer, topic, deadline_ns, &partitions);
    size_t sent = 0;
    dead->failure = RD_KAFKA_RESP_ERR_NO_ERROR;
    dead->reported = 0;
    if (!code && partitions == 0)
        status = error_set(error, STATUS_NOT_FOUND, "there is no topic %s", topic);
    while (!code && status == STATUS_OK && sent < count) {
        messages[sent].partition = bus_dead_partition(&messages[sent], partitions);
        code = bus_kafka_produce(dead->producer, topic, &messages[sent], dead);
        sent += !code;
    }
    while (dead->reported < sent && clock_ms_left(deadline_ns) > 0)
        rd_kafka_poll(dead->producer, ms_left(deadline_ns) < POLL_MS ? ms_left(deadline_ns) : POLL_MS);
    free(topic);
    if (!code)
        code = dead->failure ? dead->failure : dead->reported < sent ? RD_KAFKA_RESP_ERR__TIMED_OUT : code;
    return status == STATUS_OK && code ? refused(code, error) : status;
}

/* ---- life ---- */

static void kafka_close(struct bus_dead *base)
{
    struct kafka_dead *dead = (struct kafka_dead *)base;
    if (dead->producer) {
        rd_kafka_purge(dead->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        rd_kafka_poll(dead->producer, 0);
        bus_kafka_client_close(dead->producer);
    }
    if (dead->consumer)
        bus_kafka_client_close(dead->consumer);
    rd_kafka_conf_destroy(dead->conf);
    free(dead);
}

static const struct bus_dead_driver driver = {.engine = "kafka",
                                              .look = kafka_look,
                                              .read = kafka_read,
                                              .publish = kafka_publish,
                                              .close = kafka_close};

enum status bus_dead_open_kafka(const struct bus_kafka_config *config, struct bus_dead **out,
                                struct error *error)
{
    struct kafka_dead *dead = memory_zalloc(sizeof *dead);
    size_t bytes_max = config->message_bytes_max ? config->message_bytes_max : 1u << 20;
    dead->dead.driver = &driver;
    snprintf(dead->bytes_max, sizeof dead->bytes_max, "%zu", bytes_max + KAFKA_RECORD_BYTES);
    enum status status = bus_kafka_conf_create(config, &dead->conf, error);
    *out = status == STATUS_OK ? &dead->dead : NULL;
    if (status != STATUS_OK)
        free(dead);
    return status;
}
