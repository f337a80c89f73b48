/* Topics, and whether a broker answers: the upkeep task creates topics that are missing and checks those that exist, every few
 * seconds, and at once when it is woken by a doubt. It has a thread of its own, since requests of librdkafka block. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

enum {
    EVERY_MS = 5000,
    BATCH_BYTES_DEFAULT = 1048588, /* a broker's own limit by default */
};

void bus_kafka_upkeep_wake(struct kafka *kafka)
{
    pthread_cond_broadcast(&kafka->changed);
    if (kafka->upkeep)
        task_wake(kafka->upkeep);
}

static struct kafka_topic *topic_of(struct kafka *kafka, const struct bus_topic_state *topic)
{
    return &kafka->topics[topic - kafka->bus.topics];
}

unsigned bus_kafka_topic_partitions(struct kafka *kafka, const struct bus_topic_state *topic)
{
    struct kafka_topic *there = topic_of(kafka, topic);
    unsigned count = atomic_load(&there->partitions);

    if (count == 0 && topic->spec.partitions == 0 && !atomic_exchange(&there->is_wanted, true)) {
        pthread_mutex_lock(&kafka->lock);
        bus_kafka_upkeep_wake(kafka);
        pthread_mutex_unlock(&kafka->lock);
    }
    return count ? count : topic->spec.partitions;
}

unsigned bus_kafka_topic_partition(struct kafka *kafka, const struct bus_topic_state *topic,
                                   unsigned partition)
{
    unsigned there = atomic_load(&topic_of(kafka, topic)->partitions);
    bool is_ours = topic->dead && topic->spec.partitions > 0;

    return is_ours || there == 0 ? partition : partition % there;
}

enum status bus_kafka_topic_check(struct kafka *kafka, const struct bus_topic_state *topic, bool *is_known,
                                  struct error *error)
{
    struct kafka_topic *there = topic_of(kafka, topic);

    *is_known &= atomic_load(&topic->known);
    if (topic->spec.partitions == 0 && !atomic_exchange(&there->is_wanted, true))
        bus_kafka_upkeep_wake(kafka);
    return there->fault[0] ? error_set(error, STATUS_CONFIG, "%s", there->fault) : STATUS_OK;
}

/* Topics created by others matter only once something is published to them. */
static bool is_checked(struct kafka *kafka, const struct bus_topic_state *topic)
{
    return topic->spec.partitions > 0 || atomic_load(&topic_of(kafka, topic)->is_wanted);
}

static bool is_unknown(struct kafka *kafka, const struct bus_topic_state *topic)
{
    return is_checked(kafka, topic) && !atomic_load(&topic->known);
}

static bool is_any_unknown(struct kafka *kafka)
{
    for (size_t i = 0; i < kafka->bus.topic_count; i++)
        if (is_unknown(kafka, &kafka->bus.topics[i]))
            return true;
    return false;
}

/* ---- topics that are missing ---- */

/* A broker may have lost it, or have restarted without its data: it is looked for, and one of ours is created again. */
void bus_kafka_topic_missing(struct kafka *kafka, const char *name)
{
    struct bus_topic_state *topic = bus_topic_find(&kafka->bus, str_from(name));

    if (!topic || !is_checked(kafka, topic))
        return;
    pthread_mutex_lock(&kafka->lock);
    topic_of(kafka, topic)->exists = false;
    topic_of(kafka, topic)->was_lost = true;
    atomic_store(&topic->known, false);
    bus_kafka_upkeep_wake(kafka);
    pthread_mutex_unlock(&kafka->lock);
}

/* ---- create ---- */

static void log_results(struct kafka *kafka, rd_kafka_event_t *event)
{
    const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(event);
    size_t count = 0;
    const rd_kafka_topic_result_t **results =
        result ? rd_kafka_CreateTopics_result_topics(result, &count) : NULL;

    for (size_t i = 0; i < count; i++) {
        rd_kafka_resp_err_t error = rd_kafka_topic_result_error(results[i]);
        const char *text = rd_kafka_topic_result_error_string(results[i]);
        struct bus_topic_state *topic =
            bus_topic_find(&kafka->bus, str_from(rd_kafka_topic_result_name(results[i])));
        if (!topic || error == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
            continue;
        struct kafka_topic *there = topic_of(kafka, topic);
        if (!error)
            log_info("kafka_topic_created", LOG_CSTR("topic", topic->spec.name),
                     LOG_INT("partitions", topic->spec.partitions));
        else if (!there->is_refusal_logged)
            log_warn("kafka_topic_not_created", LOG_CSTR("topic", topic->spec.name),
                     LOG_CSTR("error", text ? text : rd_kafka_err2name(error)));
        there->is_refusal_logged = error != RD_KAFKA_RESP_ERR_NO_ERROR;
    }
}

/* All that are missing, in one request. The next check shows whether it worked. */
static void create_topics(struct kafka *kafka, rd_kafka_t *rk)
{
    rd_kafka_NewTopic_t **topics = memory_zalloc(kafka->bus.topic_count * sizeof topics[0]);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_event_t *event = NULL;
    int replication = kafka->config.replication ? (int)kafka->config.replication : -1;
    size_t batch_bytes = kafka->bus.message_bytes_max + KAFKA_RECORD_BYTES, count = 0;
    char why[128], number[24];

    pthread_mutex_lock(&kafka->lock);
    for (size_t i = 0; i < kafka->bus.topic_count; i++) {
        const struct bus_topic *spec = &kafka->bus.topics[i].spec;
        if (spec->partitions == 0 || !is_unknown(kafka, &kafka->bus.topics[i]) || kafka->topics[i].exists)
            continue;
        rd_kafka_NewTopic_t *topic =
            rd_kafka_NewTopic_new(spec->name, (int)spec->partitions, replication, why, sizeof why);
        if (!topic)
            continue;
        topics[count++] = topic;
        /* Kafka's retention waits for no group: so it is the longest that was configured */
        int64_t keep_ms = spec->keep_ms_hard > spec->keep_ms ? spec->keep_ms_hard : spec->keep_ms;
        snprintf(number, sizeof number, "%lld", spec->keep_ms == 0 ? -1LL : (long long)keep_ms);
        rd_kafka_NewTopic_set_config(topic, "retention.ms", number);
        snprintf(number, sizeof number, "%zu", batch_bytes);
        if (batch_bytes > BATCH_BYTES_DEFAULT)
            rd_kafka_NewTopic_set_config(topic, "max.message.bytes", number);
    }
    pthread_mutex_unlock(&kafka->lock);
    rd_kafka_AdminOptions_set_request_timeout(options, 5 * KAFKA_ASK_MS, why, sizeof why);
    if (count > 0)
        rd_kafka_CreateTopics(rk, topics, count, options, queue);
    for (int i = 0; count > 0 && i < 50 && !event && !task_is_stopping(kafka->upkeep); i++)
        event = rd_kafka_queue_poll(queue, KAFKA_ASK_MS / 10);
    if (event) {
        log_results(kafka, event);
        rd_kafka_event_destroy(event);
    }
    rd_kafka_queue_destroy(queue);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_NewTopic_destroy_array(topics, count);
    free(topics);
}

/* ---- check ---- */

/* Does a broker answer? It is asked for all topics: it may create one that it is asked for by name, with its own default. One that
 * it has created so is used as long as it has our partitions. Dead letters have no order, and their reader may have created the
 * topic first. */
static bool topics_check(struct kafka *kafka, rd_kafka_t *rk)
{
    const struct rd_kafka_metadata *metadata;

    if (rd_kafka_metadata(rk, is_any_unknown(kafka), NULL, &metadata, KAFKA_ASK_MS))
        return false;
    for (int i = 0; i < metadata->topic_cnt; i++) {
        const struct rd_kafka_metadata_topic *found = &metadata->topics[i];
        struct bus_topic_state *topic = bus_topic_find(&kafka->bus, str_from(found->topic));
        if (found->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            bus_kafka_topic_missing(kafka, found->topic);
        if (!topic || !is_checked(kafka, topic) || found->err || found->partition_cnt == 0)
            continue;
        struct kafka_topic *there = topic_of(kafka, topic);
        int ours = (int)topic->spec.partitions, theirs = found->partition_cnt;
        if (atomic_load(&topic->known) &&
            ours > 0) { /* partitions that others have added are read, not written */
            if ((unsigned)theirs > atomic_load(&there->partitions))
                atomic_store(&there->partitions, (unsigned)theirs);
            continue;
        }
        pthread_mutex_lock(&kafka->lock);
        bool is_usable = theirs == ours || ours == 0 || !topic->dead || (there->was_lost && theirs > ours);
        bool is_new_fault = !is_usable && !there->fault[0];
        there->exists = true;
        there->fault[0] = '\0';
        if (!is_usable)
            snprintf(there->fault, sizeof there->fault, "Kafka's topic %s has %d partitions, not %d",
                     topic->spec.name, theirs, ours);
        atomic_store(&there->partitions, (unsigned)theirs);
        atomic_store(&topic->known, is_usable);
        pthread_cond_broadcast(&kafka->changed);
        pthread_mutex_unlock(&kafka->lock);
        if (is_new_fault)
            log_error("kafka_topic_differs", LOG_CSTR("error", there->fault));
    }
    rd_kafka_metadata_destroy(metadata);
    return true;
}

int64_t bus_kafka_upkeep_step(struct task *task, void *context)
{
    struct kafka *kafka = context;
    rd_kafka_t *producer = bus_kafka_producer_acquire(kafka);
    bool is_good = false;

    if (producer) {
        is_good = topics_check(kafka, producer);
        pthread_mutex_lock(&kafka->lock);
        bool was_up = atomic_exchange(&kafka->bus.is_up, is_good), is_first = !kafka->is_up_logged;
        kafka->is_up_logged = true;
        pthread_cond_broadcast(&kafka->changed);
        pthread_mutex_unlock(&kafka->lock);
        if (is_good && !was_up)
            log_info("kafka_up", LOG_CSTR("brokers", kafka->config.brokers));
        else if (!is_good && (was_up || is_first))
            log_warn("kafka_down", LOG_CSTR("brokers", kafka->config.brokers));
        if (is_good && is_any_unknown(kafka)) {
            create_topics(kafka, producer);
            is_good = topics_check(kafka, producer) && !is_any_unknown(kafka);
        }
        if (is_good)
            bus_kafka_lag_measure(kafka, producer);
        bus_kafka_producer_release(kafka);
    }
    if (is_good)
        return TASK_MS(EVERY_MS);
    int64_t delay_ns = task_retry(task);
    if (producer)
        task_hold(task, delay_ns); /* each failed request wakes it */
    return delay_ns;
}
