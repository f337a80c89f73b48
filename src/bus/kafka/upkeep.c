/* Upkeep: topics are made where they are missing and looked at where they are not, and whether a broker answers is asked
 * every few seconds, or at once when somebody doubts it. Has a thread of its own, since librdkafka's questions block. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    EVERY_MS = 5000,
    AGAIN_MIN_MS = 100,
    AGAIN_MAX_MS = 1000,
    BATCH_BYTES_DEFAULT = 1048588, /* a broker's own limit unless it is told otherwise */
};

void bus_kafka_probe(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    kafka->probe = true;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

static struct kafka_topic *topic_of(struct kafka *kafka, const struct bus_topic_state *topic)
{
    return &kafka->topics[topic - kafka->bus.topics];
}

unsigned bus_kafka_topic_partition(struct kafka *kafka, const struct bus_topic_state *topic,
                                   unsigned partition)
{
    unsigned there = atomic_load(&topic_of(kafka, topic)->partitions);

    bool is_ours = topic->dead && topic->spec.partitions > 0;

    return is_ours || there == 0 ? partition : partition % there;
}

enum status bus_kafka_topic_check(struct kafka *kafka, const struct bus_topic_state *topic, bool *known,
                                  struct error *error)
{
    struct kafka_topic *there = topic_of(kafka, topic);

    *known = atomic_load(&topic->known);
    if (topic->spec.partitions == 0 && !atomic_exchange(&there->wanted, true)) {
        kafka->probe = true;
        pthread_cond_broadcast(&kafka->changed);
    }
    return there->fault[0] ? error_set(error, STATUS_CONFIG, "%s", there->fault) : STATUS_OK;
}

/* Those created by others matter only once something is published to them. */
static bool is_ours_to_watch(struct kafka *kafka, const struct bus_topic_state *topic)
{
    return topic->spec.partitions > 0 || atomic_load(&topic_of(kafka, topic)->wanted);
}

/* ---- topics that are gone ---- */

void bus_kafka_topic_gone(struct kafka *kafka, const char *name)
{
    struct bus_topic_state *topic = bus_topic_find(&kafka->bus, str_from(name));

    if (!topic || !is_ours_to_watch(kafka, topic))
        return;
    pthread_mutex_lock(&kafka->lock);
    topic_of(kafka, topic)->gone = true;
    kafka->probe = true;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

/* A broker said that it does not have them: it may have lost them, or come back without its data. They are looked for again,
 * and made again where they are ours. */
static void doubt_gone(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    for (size_t i = 0; i < kafka->bus.topic_count; i++) {
        if (!kafka->topics[i].gone)
            continue;
        kafka->topics[i].gone = kafka->topics[i].there = false;
        kafka->topics[i].again = true;
        atomic_store(&kafka->bus.topics[i].known, false);
    }
    pthread_mutex_unlock(&kafka->lock);
}

/* ---- making topics ---- */

static bool is_unknown(struct kafka *kafka, const struct bus_topic_state *topic)
{
    return is_ours_to_watch(kafka, topic) && !atomic_load(&topic->known);
}

static bool any_unknown(struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->bus.topic_count; i++)
        if (is_unknown(kafka, &kafka->bus.topics[i]))
            return true;
    return false;
}

/* Kafka's retention waits for nobody: so it is the longest that was asked for. */
static int64_t retention_ms(const struct bus_topic *spec)
{
    if (spec->keep_ms == 0)
        return -1;
    return spec->keep_ms_hard > spec->keep_ms ? spec->keep_ms_hard : spec->keep_ms;
}

static rd_kafka_NewTopic_t *new_topic(const struct kafka *kafka, const struct bus_topic_state *topic)
{
    char why[128], number[24];
    int replication = kafka->config.replication ? (int)kafka->config.replication : -1;
    size_t batch_bytes = kafka->bus.message_bytes_max + KAFKA_RECORD_BYTES;
    rd_kafka_NewTopic_t *made =
        rd_kafka_NewTopic_new(topic->spec.name, (int)topic->spec.partitions, replication, why, sizeof why);

    if (!made)
        return NULL;
    snprintf(number, sizeof number, "%lld", (long long)retention_ms(&topic->spec));
    rd_kafka_NewTopic_set_config(made, "retention.ms", number);
    snprintf(number, sizeof number, "%zu", batch_bytes);
    if (batch_bytes > BATCH_BYTES_DEFAULT)
        rd_kafka_NewTopic_set_config(made, "max.message.bytes", number);
    return made;
}

static void note_answer(struct kafka *kafka, const rd_kafka_topic_result_t *result)
{
    rd_kafka_resp_err_t error = rd_kafka_topic_result_error(result);
    const char *text = rd_kafka_topic_result_error_string(result);
    struct bus_topic_state *topic = bus_topic_find(&kafka->bus, str_from(rd_kafka_topic_result_name(result)));

    if (!topic || error == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
        return;
    bool *refused = &topic_of(kafka, topic)->refused;
    if (!error)
        log_info("kafka_topic_made", LOG_CSTR("topic", topic->spec.name),
                 LOG_INT("partitions", topic->spec.partitions));
    else if (!*refused)
        log_warn("kafka_topic_not_made", LOG_CSTR("topic", topic->spec.name),
                 LOG_CSTR("error", text ? text : rd_kafka_err2name(error)));
    *refused = error != RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void note_answers(struct kafka *kafka, rd_kafka_event_t *event)
{
    const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(event);
    size_t count = 0;
    const rd_kafka_topic_result_t **results =
        result ? rd_kafka_CreateTopics_result_topics(result, &count) : NULL;

    for (size_t i = 0; i < count; i++)
        note_answer(kafka, results[i]);
}

/* All that are missing, by one question. Whether it worked is seen by looking. */
static void make_topics(struct kafka *kafka, rd_kafka_t *rk)
{
    rd_kafka_NewTopic_t **topics = memory_zalloc(kafka->bus.topic_count * sizeof topics[0]);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    char why[128];
    size_t count = 0;

    for (size_t i = 0; i < kafka->bus.topic_count; i++)
        if (kafka->bus.topics[i].spec.partitions > 0 && is_unknown(kafka, &kafka->bus.topics[i]) &&
            !kafka->topics[i].there && (topics[count] = new_topic(kafka, &kafka->bus.topics[i])) != NULL)
            count++;
    rd_kafka_AdminOptions_set_request_timeout(options, 5 * KAFKA_ASK_MS, why, sizeof why);
    if (count > 0) {
        rd_kafka_CreateTopics(rk, topics, count, options, queue);
        rd_kafka_event_t *event = NULL;
        for (int i = 0; i < 50 && !event && !atomic_load(&kafka->closing); i++)
            event = rd_kafka_queue_poll(queue, KAFKA_ASK_MS / 10);
        if (event) {
            note_answers(kafka, event);
            rd_kafka_event_destroy(event);
        }
    }
    rd_kafka_queue_destroy(queue);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_NewTopic_destroy_array(topics, count);
    free(topics);
}

/* ---- looking ---- */

static void set_fault(struct kafka *kafka, struct bus_topic_state *topic, int partitions)
{
    char *fault = topic_of(kafka, topic)->fault;
    /* a broker may have made it again by itself, as it likes: as long as ours are among them it goes on. Dead letters have no
     * order to keep, and whoever reads them may have made their topic first */
    bool matches = partitions == (int)topic->spec.partitions || topic->spec.partitions == 0 || !topic->dead ||
                   (topic_of(kafka, topic)->again && partitions > (int)topic->spec.partitions);

    pthread_mutex_lock(&kafka->lock);
    bool first = !matches && !fault[0];
    if (matches)
        fault[0] = '\0';
    else
        snprintf(fault, sizeof kafka->topics[0].fault, "Kafka's topic %s has %d partitions, not %u",
                 topic->spec.name, partitions, topic->spec.partitions);
    atomic_store(&topic_of(kafka, topic)->partitions, (unsigned)partitions);
    atomic_store(&topic->known, matches);
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
    if (first)
        log_error("kafka_topic_differs", LOG_CSTR("error", fault));
}

/* Does a broker answer? Asked about all topics, since a broker may make one that it is asked about by name, as it likes. */
static bool look(struct kafka *kafka, rd_kafka_t *rk)
{
    const struct rd_kafka_metadata *metadata;

    if (rd_kafka_metadata(rk, any_unknown(kafka), NULL, &metadata, KAFKA_ASK_MS))
        return false;
    for (int i = 0; i < metadata->topic_cnt; i++) {
        const struct rd_kafka_metadata_topic *found = &metadata->topics[i];
        struct bus_topic_state *topic = bus_topic_find(&kafka->bus, str_from(found->topic));
        if (found->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            bus_kafka_topic_gone(kafka, found->topic);
        if (!topic || !is_ours_to_watch(kafka, topic) || found->err || found->partition_cnt == 0)
            continue;
        if (atomic_load(&topic->known) &&
            topic->spec.partitions > 0) /* others may add partitions to theirs */
            continue;
        topic_of(kafka, topic)->there = true;
        set_fault(kafka, topic, found->partition_cnt);
    }
    rd_kafka_metadata_destroy(metadata);
    return true;
}

static void set_up(struct kafka *kafka, bool up)
{
    pthread_mutex_lock(&kafka->lock);
    bool was = atomic_exchange(&kafka->up, up);
    bool told = kafka->told;
    kafka->told = true;
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
    if (up && !was)
        log_info("kafka_up", LOG_CSTR("brokers", kafka->config.brokers));
    else if (!up && (was || !told))
        log_warn("kafka_down", LOG_CSTR("brokers", kafka->config.brokers));
}

/* False: something is still to be done soon. */
static bool round_of(struct kafka *kafka, rd_kafka_t *rk)
{
    doubt_gone(kafka);
    bool up = look(kafka, rk);

    set_up(kafka, up);
    doubt_gone(kafka);
    if (!up || !any_unknown(kafka))
        return up;
    make_topics(kafka, rk);
    return look(kafka, rk) && !any_unknown(kafka);
}

static bool run_round(struct kafka *kafka)
{
    pthread_mutex_lock(&kafka->lock);
    while (!kafka->producer && !atomic_load(&kafka->closing))
        bus_kafka_wait_ms(&kafka->changed, &kafka->lock, AGAIN_MAX_MS);
    pthread_mutex_unlock(&kafka->lock);
    struct kafka_producer *producer = bus_kafka_producer_acquire(kafka);
    if (!producer)
        return false;
    bool all = round_of(kafka, producer->rk);
    bus_kafka_producer_release(kafka, producer);
    return all;
}

void *bus_kafka_upkeep_run(void *arg)
{
    struct kafka *kafka = arg;
    int64_t again_ms = AGAIN_MIN_MS;

    while (!atomic_load(&kafka->closing)) {
        pthread_mutex_lock(&kafka->lock);
        kafka->probe = false;
        pthread_mutex_unlock(&kafka->lock);
        bool all = run_round(kafka);
        again_ms = all ? AGAIN_MIN_MS : again_ms < AGAIN_MAX_MS ? 2 * again_ms : again_ms;
        int64_t until_ns = clock_deadline_ms(all ? EVERY_MS : again_ms);
        pthread_mutex_lock(&kafka->lock);
        while (!(all && kafka->probe) && !atomic_load(&kafka->closing) && clock_ms_left(until_ns) > 0)
            bus_kafka_wait_ms(&kafka->changed, &kafka->lock, clock_ms_left(until_ns));
        pthread_mutex_unlock(&kafka->lock);
    }
    return NULL;
}
