/* Another program at the same Kafka, by librdkafka itself: it makes topics, adds partitions, sends, and deletes as retention
 * does. */
#ifndef FRESHET_TESTS_KAFKA_STRANGER_H
#define FRESHET_TESTS_KAFKA_STRANGER_H

#include <librdkafka/rdkafka.h>

rd_kafka_t *stranger_open(void);
void stranger_makes_topic(rd_kafka_t *stranger, const char *name, int partitions);
void stranger_adds_partitions(rd_kafka_t *stranger, const char *name, size_t total);
void stranger_deletes_topic(rd_kafka_t *stranger, const char *name);
/* The log begins at `before` now. */
void stranger_deletes(rd_kafka_t *stranger, const char *topic, int32_t partition, int64_t before);
/* Takes the headers over; payload NULL = Kafka's null. */
void stranger_sends(rd_kafka_t *stranger, const char *topic, int32_t partition, const char *payload,
                    rd_kafka_headers_t *headers);

#endif
