/* The bus: topics between processes, one interface over several engines. Modules see this header only; a
 * driver's own header (bus_postgres.h, …) is for whoever opens it.
 *
 * Promises, the same with every driver
 *   - A topic has a fixed number of partitions; a key always goes to the same one (Kafka's murmur2), and a
 *     partition is handled in order, by one handler at a time within a group. So order holds per key.
 *   - At least once: a message is done with when its verdict is committed, and comes again when that did not
 *     happen. Where the driver keeps positions in the database (batch->conn is not NULL), what a handler
 *     writes by that connection commits together with the position: then its effect is there exactly once.
 *   - Offsets ascend within a partition in the order of commits. They need not be contiguous.
 *
 * Ownership: arguments are borrowed for the call; a subscription's texts are copied, its context is the
 * caller's and must outlive bus_stop(). A batch and all in it are the bus's and end with on_committed or
 * on_uncommitted.
 *
 * Threads: bus_publish() and bus_wake() are for any thread that may block (never a loop's, for the former);
 * handlers and callbacks run on a worker and may block. No thread is held while there is nothing to do.
 * Subscribe before bus_start(), which like bus_destroy() belongs to the bus's loop (or to before it runs, or
 * after it ended).
 *
 * Failures: BAD_REQUEST (no such topic, a header that is not text), PAYLOAD_TOO_LARGE, CONFIG (the topic has
 * another number of partitions there), CANCELLED (stopping), TIMEOUT, and the engine's own (DB_DOWN, …).
 * After DB_DOWN and TIMEOUT it is not known whether the messages were published: publish again, receivers
 * tell them by event id. */
#ifndef FRESHET_BUS_BUS_H
#define FRESHET_BUS_BUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

struct bus;
struct db_conn;
struct db_result;

/* ---- topics ---- */
#define BUS_PARTITIONS_MAX 256
#define BUS_DEAD_SUFFIX ".dlq" /* every topic has one for its dead letters, with as many partitions */

struct bus_topic {
    const char *name;    /* [A-Za-z0-9._-], at most 60 characters */
    unsigned partitions; /* 0: created by others, has as many as it has; where the driver can (Kafka) */
    /* What is kept: until it is this old and this many newer ones are there, but what a shared group has not
     * handled yet stays up to the hard limits. 0 = without that limit. */
    int64_t keep_ms, keep_messages;
    int64_t keep_ms_hard, keep_messages_hard;
    /* The shared group that must handle all of it, NULL: none. Its position is created with the topic, by whichever process comes
     * first, so that messages published before the group's own first start are kept for it too. Only the embedded driver. */
    const char *group;
    /* bus_publish() need not wait until a crash of the engine's server could not take them back: whoever publishes them has
     * them in an outbox that goes back with them. Drivers without that choice ignore it. */
    bool relaxed;
};

/* The partition of a key: the same as Kafka's Java clients choose. */
uint32_t bus_murmur2(struct str key);
unsigned bus_partition_of(struct str key, unsigned partitions);

/* ---- messages ---- */
#define BUS_HEADERS_MAX 32

struct bus_header {
    struct str name, value; /* UTF-8 without NUL */
};

/* Names of headers with a meaning of their own. */
#define BUS_HEADER_EVENT_ID "event-id"
#define BUS_HEADER_TRACEPARENT "traceparent"
/* On a dead letter, beside those it had: why, and where it stood. */
#define BUS_HEADER_DEAD_REASON "dlq-reason"
#define BUS_HEADER_DEAD_TOPIC "dlq-topic"
#define BUS_HEADER_DEAD_PARTITION "dlq-partition"
#define BUS_HEADER_DEAD_OFFSET "dlq-offset"
#define BUS_HEADER_DEAD_GROUP "dlq-group"
#define BUS_HEADER_DEAD_DELIVERIES "dlq-deliveries" /* where the engine gave it up, and counted */

struct bus_message {
    struct str topic;
    struct str key;     /* any bytes; ptr NULL = none: then partitions take turns and no order is promised */
    struct str payload; /* any bytes */
    const struct bus_header *headers;
    unsigned header_count;
    unsigned partition; /* these three are set by the bus: when it delivers, and when it has published */
    int64_t offset;
    int64_t created_us; /* since 1970; 0 after publishing where the driver does not know it */
    /* Set by a driver that could not read all of it: a dead message with this reason, never given to a handler. */
    const char *poison;
};

struct str bus_message_header(const struct bus_message *message, struct str name); /* STR_NONE: not there */
size_t bus_message_bytes_max(const struct bus *bus); /* key, headers and payload together; any thread */

/* Publishes all of them or, but for what is said under Failures, none; returns when the engine has them for
 * good. Calls of several threads share a commit. Messages of one call that have the same key keep their order. */
enum status bus_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                        struct error *error) MUST_CHECK;
/* May a crash of PostgreSQL take back what bus_publish() says is published? (bus_topic.relaxed, where the driver has that
 * choice.) Whoever writes down elsewhere that it is does so by a connection that was open before: then there was no crash. */
bool bus_is_relaxed(const struct bus *bus, struct str topic);
/* The same inside the caller's transaction: published if and when that commits. The partitions' rows stay
 * locked till then, so do it late. Call bus_wake() after the commit, or they are found by polling only.
 * NOT_IMPLEMENTED where the driver has no transactions to share. */
enum status bus_publish_in_tx(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                              size_t count, int64_t deadline_ns, struct error *error) MUST_CHECK;
/* The end of the caller's transaction in one round trip with what it left in its pipeline: publishes, commits, and tells
 * the consumers. For a message that somebody waits for; several are better published apart from the commit. Fails as a
 * commit does. */
bool bus_publish_and_commit_is_possible(const struct bus *bus, struct str topic);
enum status bus_publish_and_commit(struct bus *bus, struct db_conn *conn, struct bus_message *message,
                                   int64_t deadline_ns, struct error *error) MUST_CHECK;
/* Something was published to `topic`: tells the consumers here and in other processes. Cheap, never
 * blocks. */
void bus_wake(struct bus *bus, struct str topic);

/* Instead of publishing to a shared group that this process is a member of: becomes the group for these partitions of
 * `topic`, each named once, till the end of the caller's transaction. The question is one statement of the caller's open
 * pipeline. Granted: nothing was queued there and nobody was handling it, so what the caller does now comes behind
 * everything published before. Not granted: publish. It then commits by bus_own_commit() or rolls back. NOT_IMPLEMENTED
 * where the driver has no transactions to share. */
/* Can it be asked at all? Not before the topic is known to have as many partitions as here. */
bool bus_own_is_possible(const struct bus *bus, struct str topic);
enum status bus_own_ask(struct bus *bus, struct db_conn *conn, struct str topic, const char *group,
                        const unsigned *partitions, size_t count, uint64_t *mark,
                        struct error *error) MUST_CHECK;
bool bus_own_is_granted(const struct db_result *answer, size_t count);
/* COMMIT, and the group is woken if anything was published since the question (its mark). Fails as a commit does. */
enum status bus_own_commit(struct bus *bus, struct db_conn *conn, struct str topic, uint64_t mark,
                           int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- consuming ---- */
enum bus_verdict_kind {
    BUS_ACK,   /* done */
    BUS_RETRY, /* this one and all behind it come again after a backoff; what is before it is committed */
    BUS_TERM,  /* never again: to the dead-letter topic with the reason; the partition goes on */
};

#define BUS_REASON_BYTES 256
struct bus_verdict {
    enum bus_verdict_kind kind;
    char reason[BUS_REASON_BYTES]; /* of RETRY and TERM; UTF-8 */
};

/* Messages of one partition, in order. */
struct bus_batch {
    const struct bus_message *messages;
    size_t count;
    struct bus_verdict *verdicts; /* one for each; all BUS_ACK to begin with */
    /* The open transaction the position commits with; NULL when the driver or mode has none. The handler
     * neither commits nor rolls back; savepoints are its own business. */
    struct db_conn *conn;
    int64_t deadline_ns; /* for what the handler waits for */
    unsigned attempt;    /* how often messages[0] was here before */
    bool rolled_back;    /* by bus_batch_rollback() */
    void *memo;          /* the handler's, handed on to on_committed or on_uncommitted */
    /* Set by the handler: a notice of PostgreSQL's that goes out right behind the commit, in its round trip. is_told, in
     * on_committed: it did. Drivers that do not commit in PostgreSQL themselves leave it. */
    struct str tell_channel, tell_payload;
    bool is_told;
};

void bus_batch_retry(struct bus_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
void bus_batch_term(struct bus_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
/* Nothing of this batch may stand: all of it comes again, and now one by one, so that each one's failure is
 * its own. A handler whose transaction failed (an SQL error outside a savepoint) may return without this: it
 * is the same. */
void bus_batch_rollback(struct bus_batch *batch, const char *format, ...) PRINTF_LIKE(2, 3);

enum bus_mode {
    BUS_SHARED, /* each message to one member of the group, whichever process it is in */
    BUS_EVERY,  /* each message to every process, whose memory has the positions; each buries its own dead */
};

enum bus_from {
    BUS_FROM_NOW,   /* what is committed after on_ready; a shared group: since its creation */
    BUS_FROM_START, /* the oldest message that is kept */
};

struct bus_subscription {
    const char *topic, *group; /* group: as a topic's name; for BUS_EVERY it only names the metrics */
    enum bus_mode mode;
    enum bus_from from;
    unsigned batch_max;     /* 0 = 100 */
    size_t batch_bytes_max; /* of payloads, exceeded by at most one message; 0 = 8 MiB */
    /* BUS_SHARED: a message that came with the news of it may be handed over while the right to it is still being asked for.
     * The question then is in the pipeline of batch->conn, and a pipeline is what the handler has to begin with. Drivers that
     * have no such thing ignore it. */
    bool previews;
    /* BUS_SHARED: a crash of the engine's server may take back the last commits, effect and position together, and the messages
     * come again: none of them waits for the disk. Drivers without that choice ignore it. */
    bool relaxed;
    /* BUS_SHARED: is this message, just published by this process, worth waking for? NULL: every one is. Those that are not are
     * handled all the same, with the next that is or by the poll: a handler has nothing to do with them but pass them over.
     * Under a lock: short. Drivers whose engine hands out messages by itself ignore it. */
    bool (*wakes)(void *context, const struct bus_message *message);
    unsigned parallel;     /* partitions handled at once here; 0 = all. BUS_EVERY: always 1 */
    unsigned attempts_max; /* then BUS_RETRY becomes BUS_TERM; 0 = never */
    int64_t backoff_min_ms, backoff_max_ms; /* of BUS_RETRY: min·2^(attempt-1)·(0.5+rand); 0 = 100 ms, 30 s */
    /* BUS_EVERY: also what the engine tells faster and does not keep (Redis's Pub/Sub), whoever published it: batches of
     * messages with offset -1 that are in no order, have no verdict, and come once more from the topic if they are in it.
     * Engines without such a thing ignore it. */
    bool hints;
    void *context;

    void (*handler)(void *context, struct bus_batch *batch);
    /* messages[0] is given up, in a batch of one, and becomes a dead letter: every attempt failed, or every process that
     * handled it ended. For what the module has to record of that, in the batch's transaction; may set memo, may roll back. */
    void (*on_given_up)(void *context, struct bus_batch *batch);
    /* messages[0 .. settled) are done with for good. Here, and only here, others may be told. */
    void (*on_committed)(void *context, const struct bus_batch *batch, size_t settled);
    /* The commit failed, or its outcome is unknown: the batch comes again, or the commit had reached the
     * engine. */
    void (*on_uncommitted)(void *context, const struct bus_batch *batch);
    /* Retention took messages before they were handled, or the engine lost its tail: what was from `offset`
     * on is unknown. Delivery goes on at `next`. */
    void (*on_gap)(void *context, unsigned partition, int64_t offset, int64_t next);
    void (*on_ready)(void *context); /* once: positions stand, all that is committed from now on comes */
};

/* Can no other role but superusers log in to the database of the bus? Then what came by a notice of PostgreSQL's was sent by one of
 * our own processes. False where that is not known. Any thread. */
bool bus_is_private(const struct bus *bus);

/* ---- life ---- */
enum status bus_subscribe(struct bus *bus, const struct bus_subscription *subscription,
                          struct error *error) MUST_CHECK;
void bus_start(struct bus *bus);
/* No new batches; handlers that run get `grace_ms` to finish, then their statements are interrupted. Returns
 * when none runs. Publishing is refused from now on. Any thread but a worker's. */
void bus_stop(struct bus *bus, int64_t grace_ms);
/* Whoever stops it has no time left: statements under way are given up now, and all that needs the engine is
 * CANCELLED from here on. Any thread, also while another is in bus_stop(), which is still to be called. */
void bus_interrupt(struct bus *bus);
void bus_destroy(struct bus *bus); /* after bus_stop(); NULL is fine */

#endif
