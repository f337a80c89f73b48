/* What the files of the Redis driver's tests share. */
#ifndef FRESHET_TESTS_BUS_TEST_REDIS_H
#define FRESHET_TESTS_BUS_TEST_REDIS_H

#include "bus/bus_redis.h"
#include "conformance.h"
#include "redis_fixture.h"

/* What the next bus has of its own; the rest is filled in. */
extern struct bus_redis_config redis_next;
struct bus *redis_bus_create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                             size_t topic_count);
void redis_open_with(struct process *process, const struct bus_topic *topic); /* one topic */
void redis_close_unstarted(struct process *process);

/* Waits till the question is answered so, or for very long. */
#define REDIS_AWAIT(condition)                                              \
    do {                                                                    \
        int64_t redis_limit_ns = clock_deadline_ms(PATIENCE_MS);            \
        while (!(condition) && clock_mono_ns() < redis_limit_ns)            \
            nanosleep(&(const struct timespec){.tv_nsec = 10000000}, NULL); \
        assert_true(condition);                                             \
    } while (0)
size_t redis_gaps(struct recorder *recorder);
void recorder_hold(struct recorder *recorder,
                   struct bus_batch *batch); /* a handler: tells, and waits for step 1 */

int redis_run_streams(void);  /* on any Redis */
int redis_run_hostile(void);  /* on none */
int redis_run_security(void); /* starts its own */
int redis_run_cluster(void);  /* on a cluster with a replica */

#endif
