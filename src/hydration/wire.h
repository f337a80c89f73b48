/* The wire: hydration's events on the bus of events, whichever it is.
 *
 * PostgreSQL: three topics. Questions go to one process of each source's group (entity-TYPE), answers to every process that
 * asks, and once more to one of the shared group `hydration`, whose transaction the ledger writes in.
 * NATS: questions and answers are plain messages on the events' subjects, so that a module outside needs nothing but a NATS
 * client; a question goes to one member of the source's queue group. entity.updated and entity.not-found are the subjects of
 * streams too: what the ledger writes, and what sources tell of changes, is not lost while nobody listens. */
#ifndef FRESHET_HYDRATION_WIRE_H
#define FRESHET_HYDRATION_WIRE_H

#include "hydration/event.h"

struct hydration_wire;
struct hydration_reply; /* the way back of one question */

struct hydration_wire_config {
    struct bus *bus;
    bool is_plain;
    struct worker_pool *workers;
    void *context;
    /* Questions of these types are answered here. On a worker; may block till the deadline. */
    const char *const *entity_types;
    size_t type_count;
    void (*on_question)(void *context, const struct hydration_event *question, int64_t deadline_ns,
                        struct hydration_reply *reply);
    /* Answers and changes, in the order they came, to every process. Any thread; must not block. NULL: nobody asks here. */
    void (*on_heard)(void *context, const struct hydration_event *event);
    /* The same to one process of all, in the transaction that commits its position. */
    enum status (*on_settle)(void *context, const struct hydration_event *events, size_t count,
                             struct db_conn *conn, int64_t deadline_ns, struct error *error);
};

/* Before bus_start(). What is no event is counted, logged and buried with its reason. */
enum status hydration_wire_open(const struct hydration_wire_config *config, struct hydration_wire **wire,
                                struct error *error) MUST_CHECK;
void hydration_wire_destroy(struct hydration_wire *wire); /* after bus_stop() */
/* BAD_REQUEST: what the source found makes no event (too large, a member twice, …), here and in the two below. */
enum status hydration_reply_send(struct hydration_reply *reply, const struct hydration_event *answer,
                                 struct error *error) MUST_CHECK;
/* A question: on a worker. At most once on NATS: it is asked again. */
enum status hydration_wire_ask(struct hydration_wire *wire, const struct hydration_event *question,
                               int64_t deadline_ns, struct error *error) MUST_CHECK;
/* A change: on a worker. OK: the bus has it for good. */
enum status hydration_wire_tell(struct hydration_wire *wire, const struct hydration_event *event,
                                int64_t deadline_ns, struct error *error) MUST_CHECK;

#endif
