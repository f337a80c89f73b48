/* The stranger: each call waits until the broker has done it. */
#include "kafka_stranger.h"

#include <string.h>

#include "kafka_fixture.h"

#define PATIENCE_MS 60000

rd_kafka_t *stranger_open(void)
{
    char why[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();

    rd_kafka_conf_set(conf, "bootstrap.servers", kafka_fixture_brokers(), why, sizeof why);
    rd_kafka_conf_set(conf, "log_level", "0", why, sizeof why);
    return rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
}

void stranger_makes_topic(rd_kafka_t *stranger, const char *name, int partitions)
{
    char why[256];

    kafka_fixture_make_topic(name, (unsigned)partitions);
    if (!kafka_fixture_is_real())
        return; /* the mock cannot be asked */
    rd_kafka_NewTopic_t *topic = rd_kafka_NewTopic_new(name, partitions, 1, why, sizeof why);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(stranger);
    rd_kafka_CreateTopics(stranger, &topic, 1, NULL, queue);
    rd_kafka_event_destroy(rd_kafka_queue_poll(queue, PATIENCE_MS));
    rd_kafka_queue_destroy(queue);
    rd_kafka_NewTopic_destroy(topic);
}

void stranger_adds_partitions(rd_kafka_t *stranger, const char *name, size_t total)
{
    char why[256];
    rd_kafka_NewPartitions_t *more = rd_kafka_NewPartitions_new(name, total, why, sizeof why);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(stranger);

    rd_kafka_CreatePartitions(stranger, &more, 1, NULL, queue);
    rd_kafka_event_destroy(rd_kafka_queue_poll(queue, PATIENCE_MS));
    rd_kafka_queue_destroy(queue);
    rd_kafka_NewPartitions_destroy(more);
}

void stranger_deletes_topic(rd_kafka_t *stranger, const char *name)
{
    rd_kafka_DeleteTopic_t *topic = rd_kafka_DeleteTopic_new(name);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(stranger);

    rd_kafka_DeleteTopics(stranger, &topic, 1, NULL, queue);
    rd_kafka_event_destroy(rd_kafka_queue_poll(queue, PATIENCE_MS));
    rd_kafka_queue_destroy(queue);
    rd_kafka_DeleteTopic_destroy(topic);
}

void stranger_deletes(rd_kafka_t *stranger, const char *topic, int32_t partition, int64_t before)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(stranger);

    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = before;
    rd_kafka_DeleteRecords_t *records = rd_kafka_DeleteRecords_new(list);
    rd_kafka_DeleteRecords(stranger, &records, 1, NULL, queue);
    rd_kafka_event_destroy(rd_kafka_queue_poll(queue, PATIENCE_MS));
    rd_kafka_DeleteRecords_destroy(records);
    rd_kafka_queue_destroy(queue);
    rd_kafka_topic_partition_list_destroy(list);
}

void stranger_sends(rd_kafka_t *stranger, const char *topic, int32_t partition, const char *payload,
                    rd_kafka_headers_t *headers)
{
    rd_kafka_producev(stranger, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(partition),
                      RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                      RD_KAFKA_V_VALUE((void *)payload, payload ? strlen(payload) : 0),
                      RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
    rd_kafka_flush(stranger, PATIENCE_MS);
}
