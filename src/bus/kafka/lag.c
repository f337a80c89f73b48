/* How far groups are behind, for bus_lag: measured by every process that has the bus, whether it reads the topic or not, so that
 * it is seen when nobody does. By the handle that the upkeep uses, with two requests for a topic. */
#include "base/clock.h"
#include "bus/kafka/inside.h"

typedef rd_kafka_topic_partition_list_t kafka_list;

enum { LAG_MS = 5000, ANSWER_MS = 50 };

/* The partitions where the group has no position are not in the answer's list, or below 0 there. NULL: no answer. */
static rd_kafka_event_t *ask_committed(struct kafka *kafka, rd_kafka_t *rk, const char *group,
                                       const kafka_list *partitions)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(rk, RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS);
    rd_kafka_ListConsumerGroupOffsets_t *request = rd_kafka_ListConsumerGroupOffsets_new(group, partitions);
    rd_kafka_event_t *event = NULL;
    char why[128];

    rd_kafka_AdminOptions_set_request_timeout(options, KAFKA_ASK_MS, why, sizeof why);
    rd_kafka_ListConsumerGroupOffsets(rk, &request, 1, options, queue);
    for (int waited_ms = 0; !event && waited_ms < 2 * KAFKA_ASK_MS && !kafka_is_ending(kafka);
         waited_ms += ANSWER_MS)
        event = rd_kafka_queue_poll(queue, ANSWER_MS);
    rd_kafka_ListConsumerGroupOffsets_destroy(request);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(queue);
    return event;
}

static const kafka_list *committed_of(const rd_kafka_event_t *event)
{
    const rd_kafka_ListConsumerGroupOffsets_result_t *result =
        event ? rd_kafka_event_ListConsumerGroupOffsets_result((rd_kafka_event_t *)event) : NULL;
    size_t count = 0;
    const rd_kafka_group_result_t **groups =
        result ? rd_kafka_ListConsumerGroupOffsets_result_groups(result, &count) : NULL;

    return count == 1 && !rd_kafka_group_result_error(groups[0]) ? rd_kafka_group_result_partitions(groups[0])
                                                                 : NULL;
}

/* Messages of the topic that the group has not handled; a group without a position handles those that are there. -1: not known. */
static int64_t measure(struct kafka *kafka, rd_kafka_t *rk, const struct bus_topic_state *topic,
                       const char *group)
{
    unsigned count = bus_kafka_topic_partitions(kafka, topic);
    kafka_list *ends = rd_kafka_topic_partition_list_new((int)count), *begins;
    int64_t lag = 0;

    for (unsigned i = 0; i < count; i++)
        rd_kafka_topic_partition_list_add(ends, topic->spec.name, (int32_t)i)->offset = RD_KAFKA_OFFSET_END;
    begins = rd_kafka_topic_partition_list_copy(ends);
    for (unsigned i = 0; i < count; i++)
        begins->elems[i].offset = RD_KAFKA_OFFSET_BEGINNING;
    bool is_known = count > 0 && !rd_kafka_offsets_for_times(rk, ends, KAFKA_ASK_MS) &&
                    !rd_kafka_offsets_for_times(rk, begins, KAFKA_ASK_MS);
    rd_kafka_event_t *event = is_known ? ask_committed(kafka, rk, group, ends) : NULL;
    const kafka_list *committed = committed_of(event);
    is_known &= committed != NULL;
    for (unsigned i = 0; i < count && is_known; i++) {
        const rd_kafka_topic_partition_t *found =
            rd_kafka_topic_partition_list_find((kafka_list *)committed, topic->spec.name, (int32_t)i);
        int64_t from = begins->elems[i].offset;
        is_known = !ends->elems[i].err && !begins->elems[i].err;
        if (found && found->offset > from)
            from = found->offset;
        if (ends->elems[i].offset > from)
            lag += ends->elems[i].offset - from;
    }
    if (event)
        rd_kafka_event_destroy(event);
    rd_kafka_topic_partition_list_destroy(ends);
    rd_kafka_topic_partition_list_destroy(begins);
    return is_known ? lag : -1;
}

static void show(struct kafka *kafka, rd_kafka_t *rk, const struct bus_topic_state *topic, const char *group)
{
    int64_t lag = kafka_is_ending(kafka) ? -1 : measure(kafka, rk, topic, group);

    if (lag >= 0)
        bus_lag_set(&kafka->bus, topic->name, str_from(group), lag);
}

/* Each topic's own group, and the groups that this process reads others for. */
void bus_kafka_lag_measure(struct kafka *kafka, rd_kafka_t *rk)
{
    if (clock_mono_ns() < kafka->lag_at_ns)
        return;
    kafka->lag_at_ns = clock_deadline_ms(LAG_MS);
    for (size_t i = 0; i < kafka->bus.topic_count; i++)
        if (kafka->bus.topics[i].spec.group && atomic_load(&kafka->bus.topics[i].known))
            show(kafka, rk, &kafka->bus.topics[i], kafka->bus.topics[i].spec.group);
    for (size_t i = 0; i < kafka->reader_count; i++) {
        const struct bus_consumer *consumer = &kafka->readers[i]->consumer;
        if (!consumer->topic->spec.group)
            show(kafka, rk, consumer->topic, consumer->spec.group);
    }
}
