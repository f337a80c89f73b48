/* The bus: topics between processes, one interface over several engines. Modules include this header; the headers of the
 * drivers (bus_kafka.h, …) are for the code that opens them. What only PostgreSQL can do is in bus_postgres.h.
 *
 * Guarantees, the same with every driver
 *   - A topic has a fixed number of partitions; a key always goes to the same one (Kafka's murmur2), and a partition is handled
 *     in order, by one handler at a time within a group. So order holds per key.
 *   - At least once: a message is settled when its verdict is committed, and is delivered again until then. Where the driver
 *     keeps positions in the database (batch->conn is not NULL), what a handler writes by that connection commits together with
 *     the position: its effect happens exactly once.
 *   - Offsets ascend within a partition in the order of commits. They need not be contiguous.
 *
 * Ownership: arguments are borrowed for the call; a subscription's texts are copied, its context is the caller's and outlives
 * bus_stop(). A batch and all in it are the bus's, until on_committed or on_uncommitted returns.
 *
 * Threads: bus_publish() blocks, so never on a loop; bus_wake() is for any thread. Handlers and callbacks run on a worker and may
 * block. Subscribe before bus_start(), which like bus_destroy() belongs to the bus's loop (or to before it runs, or after it
 * ended).
 *
 * Failures: BAD_REQUEST (unknown topic, a header that is not text), PAYLOAD_TOO_LARGE, CONFIG (the driver does not offer it, or the
 * engine's topic has another number of partitions), CANCELLED (stopping), TIMEOUT, and the engine's own (DB_DOWN, …). After DB_DOWN
 * and TIMEOUT the messages may have been published: publish them again, receivers recognise them by event id. */
#ifndef FRESHET_BUS_BUS_H
#define FRESHET_BUS_BUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

struct bus;
struct db_conn;

/* ---- topics ---- */
#define BUS_PARTITIONS_MAX 256
#define BUS_DEAD_SUFFIX \
    ".dlq" /* each topic has one with this suffix for its dead letters, with as many partitions */

struct bus_topic {
    const char *name;    /* [A-Za-z0-9._-], at most 60 characters */
    unsigned partitions; /* 0: the topic of another program, with any number (Kafka); 1 on Redis */
    /* A message is kept until it is this old and this many newer ones exist, and longer while a shared group has not handled it, up
     * to the hard limits. 0 = without that limit. */
    int64_t keep_ms, keep_messages;
    int64_t keep_ms_hard, keep_messages_hard;
    /* The shared group that must handle all messages, or NULL. The first process creates its position with the topic, so that
     * messages published before the group's own first start are kept for it: only on PostgreSQL. bus_lag shows how far it is behind
     * in every process that has the bus: on PostgreSQL and Kafka. */
    const char *group;
    /* bus_publish() does not wait for the server's disk: a crash of the server loses the messages together with the outbox's note
     * that they are published, and they are published again. Drivers without that choice ignore it. */
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

#define BUS_HEADER_EVENT_ID "event-id"
#define BUS_HEADER_TRACEPARENT "traceparent"
/* Added to a dead letter: the reason, and where the message was. */
#define BUS_HEADER_DEAD_REASON "dlq-reason"
#define BUS_HEADER_DEAD_TOPIC "dlq-topic"
#define BUS_HEADER_DEAD_PARTITION "dlq-partition"
#define BUS_HEADER_DEAD_OFFSET "dlq-offset"
#define BUS_HEADER_DEAD_GROUP "dlq-group"
#define BUS_HEADER_DEAD_DELIVERIES "dlq-deliveries" /* where the engine counts them */

struct bus_message {
    struct str topic;
    struct str key;     /* any bytes; ptr NULL = none: partitions take turns, and order is not guaranteed */
    struct str payload; /* any bytes */
    const struct bus_header *headers;
    unsigned header_count;
    unsigned partition; /* these three are set by the bus: on delivery, and when it has published */
    int64_t offset;
    int64_t created_us; /* since 1970; 0 after publishing where the driver does not know it */
    /* Set by a driver that could not read all of the message: it becomes a dead letter with this reason and is never handled. */
    const char *poison;
};

struct str bus_message_header(const struct bus_message *message, struct str name); /* STR_NONE: missing */
size_t bus_message_bytes_max(const struct bus *bus); /* of key, headers and payload together; any thread */

/* Publishes all of them or none (see Failures); returns when the engine has stored them. Calls of several threads share a commit.
 * Messages of one call with the same key keep their order. */
enum status bus_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                        struct error *error) MUST_CHECK;
/* Can a crash of the server lose messages that bus_publish() has published (bus_topic.relaxed)? A caller that records elsewhere that
 * they are published does so by a connection that was open before: then there was no crash. */
bool bus_is_relaxed(const struct bus *bus, struct str topic);
/* A message was published to `topic`: wakes the consumers here and in other processes. Cheap, never blocks. */
void bus_wake(struct bus *bus, struct str topic);

/* ---- consuming ---- */
enum bus_verdict_kind {
    BUS_ACK, /* done */
    BUS_RETRY, /* this message and all after it are delivered again after a backoff; those before it are committed */
    BUS_TERM, /* never again: becomes a dead letter with the reason; the partition goes on */
};

#define BUS_SHARES_MAX 2 /* of one message */

#define BUS_REASON_BYTES 256
struct bus_verdict {
    enum bus_verdict_kind kind;
    char reason[BUS_REASON_BYTES]; /* of RETRY and TERM; UTF-8 */
};

/* Messages of one partition, in order. */
struct bus_batch {
    const struct bus_message *messages;
    size_t count;
    struct bus_verdict *verdicts; /* one for each; BUS_ACK until the handler changes it */
    /* The open transaction that the position commits with; NULL when the driver or mode has none. The handler neither commits nor
     * rolls back; it may use savepoints. */
    struct db_conn *conn;
    int64_t deadline_ns; /* for what the handler waits for */
    unsigned attempt;    /* how often messages[0] was delivered before */
    bool rolled_back;    /* by bus_batch_rollback() */
    /* Set by the driver: the lock is not answered yet. What the handler leaves in its pipeline is sent with the lock and the commit;
     * where any of it fails the handler is called again, without this. */
    bool is_unlocked;
    void *memo;   /* the handler's, for on_committed or on_uncommitted */
    bool is_true; /* in on_committed: what the handler asked of the connection (db_pipeline_ask) */
    /* Set by the handler: a notice of PostgreSQL's that is sent right after the commit, in its round trip. is_notice_sent, in on_committed:
     * it was sent. Drivers that do not commit in PostgreSQL ignore it. */
    struct str notice_channel, notice_payload;
    bool is_notice_sent;
};

void bus_batch_retry(struct bus_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
void bus_batch_term(struct bus_batch *batch, size_t at, const char *format, ...) PRINTF_LIKE(3, 4);
/* Nothing of this batch is committed: its messages are delivered again one by one, so that each failure concerns one message. A
 * handler whose transaction failed (an SQL error outside a savepoint) may return without this call: the effect is the same. */
void bus_batch_rollback(struct bus_batch *batch, const char *format, ...) PRINTF_LIKE(2, 3);

enum bus_mode {
    BUS_SHARED, /* each message to one member of the group, in whichever process; not on Redis */
    BUS_EVERY, /* each message to every process, which keeps its position in memory and publishes its own dead letters */
};

enum bus_from {
    BUS_FROM_NOW,   /* what is committed after on_ready; a shared group: since its creation */
    BUS_FROM_START, /* the oldest message that is kept */
};

struct bus_subscription {
    const char *topic, *group; /* group: as a topic's name; for BUS_EVERY it only names the metrics */
    enum bus_mode mode;
    enum bus_from from;
    unsigned batch_max; /* 0 = 100 */
    /* Of payloads, 0 = 8 MiB; less where limits.memory has less for all handlers. A larger message is handled alone. */
    size_t batch_bytes_max;
    /* Three options of BUS_SHARED that other drivers than PostgreSQL's ignore.
     * uses_attached: a message that arrives in a notice may be handed over while the lock on its partition is still being asked for. The
     * handler then begins with batch->conn in pipeline mode, with that question in it (batch->is_unlocked).
     * relaxed: commits do not wait for the server's disk. A crash takes back effect and position together, and the messages are
     * delivered again.
     * wakes: does this message, just published by this process, need the group now? NULL: every message does. The others are handled
     * with the next one that does, or by the poll. Called under a lock: keep it short. */
    bool uses_attached;
    bool relaxed;
    bool (*wakes)(void *context, const struct bus_message *message);
    unsigned parallel; /* partitions handled at once in this process; 0 = all. BUS_EVERY: always 1 */
    /* BUS_SHARED, PostgreSQL and Kafka: for whom a message is handled, as hashes that are not 0. Returns how many. One share has at most
     * all of `parallel` but a sixth, at least one (base/turns.h), so that messages of others can be handled while its handlers block;
     * a batch ends before a message of a share that has as many. NULL: no bound. Called under a lock: keep it short. */
    unsigned (*shares)(const struct bus_message *message, uint64_t shares[BUS_SHARES_MAX]);
    unsigned attempts_max;                  /* after so many attempts BUS_RETRY becomes BUS_TERM; 0 = never */
    int64_t backoff_min_ms, backoff_max_ms; /* of BUS_RETRY (base/backoff.h); 0 = 100 ms, 30 s */
    /* BUS_EVERY: also messages that the engine forwards at once and does not store (Redis's Pub/Sub): batches of messages with offset
     * -1, in no order and without verdicts, which are delivered again from the topic if they are stored there. Drivers without such
     * messages ignore it. */
    bool hints;
    void *context;

    void (*handler)(void *context, struct bus_batch *batch);
    /* messages[0], in a batch of one, becomes a dead letter because every attempt failed, or every process that handled it ended. The
     * module records that in the batch's transaction; it may set memo, and may roll back. */
    void (*on_given_up)(void *context, struct bus_batch *batch);
    /* messages[0 .. settled) are settled. Only from here on others may be notified. */
    void (*on_committed)(void *context, const struct bus_batch *batch, size_t settled);
    /* The commit failed, or its outcome is unknown: the batch is delivered again, unless the commit had reached the engine. */
    void (*on_uncommitted)(void *context, const struct bus_batch *batch);
    /* Messages from `offset` on were removed before they were handled, or the engine lost its last messages. Delivery continues at
     * `next`. */
    void (*on_gap)(void *context, unsigned partition, int64_t offset, int64_t next);
    /* Once: the positions are known, every message committed from now on is delivered. */
    void (*on_ready)(void *context);
};

/* ---- the connection to an engine ---- */
struct bus_security {
    bool tls;
    const char *ca_file, *certificate_file, *key_file; /* NULL: the system's; no client certificate */
    const char *username, *password;                   /* NULL = without */
    const char *password_file;    /* holds the password instead, and is read at each login; NULL = without */
    const char *mechanism;        /* Kafka's SASL: PLAIN (NULL), SCRAM-SHA-256, SCRAM-SHA-512 */
    const char *credentials_file; /* NATS: a user's JWT and seed; NULL = without */
};

/* ---- life ---- */
/* CONFIG: the driver does not offer the mode, or has no such topic. */
enum status bus_subscribe(struct bus *bus, const struct bus_subscription *subscription,
                          struct error *error) MUST_CHECK;
void bus_start(struct bus *bus);
/* No new batches; running handlers get `grace_ms` to finish, then their statements are interrupted. Returns when none runs.
 * Publishing is refused from now on. Any thread but a worker's. */
void bus_stop(struct bus *bus, int64_t grace_ms);
/* For a stop that has no time left: statements under way are cancelled now, and later ones end as CANCELLED. Any thread, also while
 * another is in bus_stop(), which still has to be called. */
void bus_interrupt(struct bus *bus);
void bus_destroy(struct bus *bus); /* after bus_stop(); NULL is fine */
/* Does the engine answer? For health of Kafka, NATS and Redis: never blocks. */
bool bus_is_up(const struct bus *bus);

/* What carries it: "postgres", "kafka", "redis" or "nats". */
const char *bus_engine(const struct bus *bus);
bool bus_has_topic(const struct bus *bus, struct str name);

#endif
