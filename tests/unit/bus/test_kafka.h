/* What the files of the Kafka driver's test share. */
#ifndef FRESHET_TESTS_BUS_TEST_KAFKA_H
#define FRESHET_TESTS_BUS_TEST_KAFKA_H

#include "conformance.h"

void kafka_open(struct process *process, const struct bus_topic *topics, size_t count);

int kafka_run_topics(void); /* number of failed tests */
int kafka_run_groups(void);
int kafka_run_locks(void);

#endif
