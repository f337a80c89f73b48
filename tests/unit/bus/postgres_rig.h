/* What the files of the PostgreSQL driver's tests share: processes with topics of a test's own on the PostgreSQL of
 * sql_rig.h. */
#ifndef FRESHET_TESTS_BUS_POSTGRES_RIG_H
#define FRESHET_TESTS_BUS_POSTGRES_RIG_H

#include "bus/bus_postgres.h"
#include "conformance.h"

extern struct postgres_next {
    int64_t handler_ms, poll_ms, maintenance_ms;
} postgres_next; /* of the next bus; 0 = the default */

void postgres_migrate(void); /* exits where it cannot */
struct bus *postgres_create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                            size_t topic_count);
void postgres_open(struct process *process, const struct bus_topic *topics, size_t count);
void postgres_cut(void); /* every connection but the one that asks for it */

/* In a transaction of sql_pool's that it commits. */
enum status postgres_publish_attached(struct process *process, const char *topic, const char *key,
                                      int number);

#define COUNT_OF(topic) "SELECT count(*) FROM platform.bus_message WHERE topic = '" topic "'"

int postgres_run_attached(void); /* number of failed tests */
int postgres_run_notices(void);
int postgres_run_offsets(void);

#endif
