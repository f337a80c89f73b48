/* What any driver of the bus must do, as one suite (issue's list: order, at least once, exactly-once effects,
 * redelivery, broadcast, retry, dead letters, restarts, cuts, half-open connections). A driver brings a table of functions; a
 * "process" is a bus with a loop thread and workers of its own.
 *
 * cmocka's assertions jump, so threads other than the test's own record what they see and the test looks at
 * it. */
#ifndef FRESHET_TESTS_BUS_CONFORMANCE_H
#define FRESHET_TESTS_BUS_CONFORMANCE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "bus/bus.h"
#include "loop/worker.h"

struct conformance_driver {
    const char *name;
    struct bus *(*create)(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count);
    void (*cut)(void);    /* ends every connection, in whatever state it is; the engine stays up */
    void (*halt)(void);   /* the engine dies … */
    void (*resume)(void); /* … and comes back with what it had promised to keep; NULL: cannot be */
    bool lacks_shared, lacks_every; /* subscriptions of this mode are refused; its tests are skipped */
    unsigned partitions_max;        /* of a topic; 0 = any number */
    int restarts;         /* how often, under load; 0 = 4. For an engine that takes its time to come back */
    void (*freeze)(void); /* the engine stops answering, its connections stay open … */
    void (*thaw)(void);   /* … and it goes on; NULL: cannot be */
    /* Positions do not commit with a handler's effects: after a fault, and after a stop, a shared group may see again what it
     * has handled. Nothing else is allowed by it. */
    bool repeats;
    bool (*publisher_waits)(void); /* is a publisher held up behind an open transaction? */
    /* Where the driver can publish inside a transaction; both NULL where it cannot. */
    struct db_conn *(*begin)(void);
    void (*end)(struct db_conn *conn, bool commit);
    /* Where a batch has a transaction; both NULL where it has none. */
    bool (*write_effect)(struct db_conn *conn, int number, int64_t deadline_ns); /* one below 0 is refused */
    size_t (*count_effects)(int number);                                         /* committed ones */
};

int conformance_run(const struct conformance_driver *driver); /* number of failed tests */

/* ---- for the suite's files ---- */
#define PATIENCE_MS 60000 /* long enough for a loaded machine; nothing waits for it to pass */

extern const struct conformance_driver *driver;
int conformance_run_order(void);
int conformance_run_verdicts(void);
int conformance_run_faults(void);

struct process {
    struct loop *loop;
    struct worker_pool *workers;
    struct bus *bus;
    pthread_t thread;
};
void process_open(struct process *process); /* then bus_subscribe() … */
void process_start(struct process *process);
void process_close(struct process *process);

/* What a handler saw, in its order. */
struct seen {
    char key[16];
    int number; /* the payload */
    unsigned partition, attempt;
    int64_t offset;
};
struct recorder {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct seen *seen;
    size_t count, capacity, committed, gaps;
    bool ready;
    bool absent; /* the driver lacks the mode: nothing comes, nothing is waited for or checked */
    /* What the handler does; NULL = acknowledges all. Called without the lock. */
    void (*behave)(struct recorder *recorder, struct bus_batch *batch);
    int step;     /* for `behave` and the test, under the lock */
    bool effects; /* write one for each message, in the batch's transaction where there is one */
};
void recorder_init(struct recorder *recorder);
void recorder_deinit(struct recorder *recorder);
void recorder_add(struct recorder *recorder, const struct bus_batch *batch, size_t count);
void recorder_step(struct recorder *recorder, int step);       /* sets and tells */
bool recorder_await_step(struct recorder *recorder, int step); /* at least; false: it did not come */
bool recorder_await(struct recorder *recorder, size_t count);  /* seen; false: they did not come */
bool recorder_await_committed(struct recorder *recorder, size_t count);
size_t recorder_times(struct recorder *recorder, int number);      /* how often was it seen? */
bool recorder_await_number(struct recorder *recorder, int number); /* false: it did not come */
bool recorder_await_gap(struct recorder *recorder);                /* the same */
/* To behave: records the batch, and waits for step 1 before it acknowledges. */
void record_and_hold(struct recorder *recorder, struct bus_batch *batch);

/* Subscribes the recorder's handler. Where the driver lacks the mode: checks that it is refused, and the recorder is absent. */
void subscribe(struct process *process, struct recorder *recorder, struct bus_subscription subscription);
void await_ready(struct recorder *recorder);
enum bus_mode either_mode(void);           /* shared where the driver has it */
unsigned partitions_of(const char *topic); /* of the suite's topics */

/* `number` as text to (topic, key). */
enum status try_publish(struct process *process, const char *topic, const char *key, int number);
void publish(struct process *process, const char *topic, const char *key, int number);
void publish_until_accepted(struct process *process, const char *topic, const char *key, int number);
const char *key_of_partition(unsigned partition, unsigned partitions); /* a key that goes there */

void pause_ms(int ms);
int number_in(const struct bus_message *message); /* the payload */
/* Are there as many as should be, given what the driver promises? For what is committed after a fault. */
bool is_once(size_t times);

#endif
