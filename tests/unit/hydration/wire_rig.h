/* Processes on one bus of events, embedded or NATS, each with owners: what each of them looked up, received and stored is
 * noted, and tests wait for it. There are no shards and no ledger. */
#ifndef FRESHET_TESTS_HYDRATION_WIRE_RIG_H
#define FRESHET_TESTS_HYDRATION_WIRE_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "hydration/inside.h"

#define RIG_PATIENCE_MS 60000 /* nothing waits for it to pass */
#define RIG_OWN_TOPIC "own.events"

enum rig_what { RIG_LOOKED, RIG_RECEIVED, RIG_STORED };

struct rig_note {
    enum rig_what what;
    unsigned pod;
    enum hydration_kind kind;
    enum hydration_reason reason;
    bool is_private;
    int64_t version;
    char id[64], caller[64], data[256], correlation_id[64];
};

struct rig_pod {
    unsigned number;
    struct loop *loop;
    pthread_t thread;
    struct worker_pool *workers;
    struct bus *bus;
    struct hydration engine; /* its owners */
};

void rig_start(bool is_nats); /* servers, and the two lists below */
void rig_stop(void);
bool rig_is_nats(void);

/* `entity_types`: what it answers for, NULL-terminated. */
void rig_pod_open(struct rig_pod *pod, unsigned number,
                  const char *const *entity_types); /* then subscribe … */
void rig_pod_start(struct rig_pod *pod);
void rig_pod_close(struct rig_pod *pod);
void rig_store_next(enum status status); /* the next result of storing, once */
void rig_gate_close(void);               /* looks wait … */
void rig_gate_open(void);                /* … no longer */
void rig_gate_open_but_slow(void);       /* … only those for "slow…" */

/* What an owner has of an id: "absent…", "hidden…", "private…" (alice's), "nobodys…" (private, no owner), "fails…" (once),
 * "huge…" (as large as an event may be: too large for NATS); any other is there. Its data is
 * {"id":ID,"title":"t","price":1}, its version 7. */
void rig_ask(struct rig_pod *pod, const char *entity_type, const char *id, const char *caller,
             const struct hydration_cover *cover);
enum status rig_send_raw(struct rig_pod *pod, enum hydration_kind kind, const char *payload);
void rig_await_ready(struct rig_pod *pods, size_t count, const char *entity_type);

size_t rig_count(enum rig_what what, const char *id); /* by any pod */
size_t rig_count_of(unsigned pod, enum rig_what what, const char *id);
void rig_await(enum rig_what what, const char *id, size_t count);
struct rig_note rig_note_of(enum rig_what what, const char *id); /* the first */
size_t rig_ignored(const char *why);
void rig_await_ignored(const char *why, size_t count);
/* Dead letters of a topic, once there are as many: the last one's reason. */
void rig_await_dead(enum hydration_kind kind, size_t count, char reason[BUS_REASON_BYTES]);

#endif
