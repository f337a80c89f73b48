/* Shared by the files of the PostgreSQL driver:
 *
 *   postgres.c  the driver's life, notices, the poll
 *   reader.c    subscriptions: their workers, and where these look
 *   shared.c    one batch of a shared group, under the lock of a cursor
 *   cursors.c   cursors of shared groups: created, locked for direct handling, watched for messages that kill their process
 *   every.c     one round of a reader of everything
 *   publish.c   messages become rows: in a transaction of the caller, or by group commit
 *   messages.c  messages as arrays, rows and notices
 *   upkeep.c    topics created, lag, retention */
#ifndef FRESHET_BUS_POSTGRES_INSIDE_H
#define FRESHET_BUS_POSTGRES_INSIDE_H

#include <pthread.h>

#include "base/buf.h"
#include "base/list.h"
#include "bus/bus_inside.h"
#include "bus/bus_postgres.h"
#include "loop/task.h"

struct postgres;
struct reader;

/* ---- reader.c ---- */
#define POSTGRES_ANYWHERE (-1) /* in place of a partition */

/* A worker handles one batch per run, and runs again while it finds a place to look at. */
struct reader_worker {
    struct reader *reader;
    struct task *task;
    bool is_busy;   /* woken or running; under postgres->lock */
    int64_t due_ns; /* it looks everywhere then: a backoff is over; CLOCK_NEVER = none. The run's own */
};

struct reader_partition {
    /* BUS_EVERY; used by its only worker */
    int64_t position, retry_ns;
    int64_t created_us; /* of the message before the position */
    struct bus_delivery delivery;
    /* BUS_SHARED */
    int64_t suspect_until; /* set before the reader is ready */
    int64_t marked_until;  /* after the message that this process has marked as suspect; 0: none */
    atomic_bool was_last;  /* this process handled the last message: likely the next too */
};

struct reader {
    struct bus_consumer consumer;
    struct postgres *postgres;
    struct reader_worker *workers; /* consumer.spec.parallel of them */
    atomic_bool is_ready;
    atomic_bool is_failing; /* the last run failed, and that is logged */
    atomic_uint turn;       /* the partition that is looked at first */

    /* Under postgres->lock: where something may be, anywhere or in these partitions. */
    bool anywhere;
    uint64_t places[BUS_PARTITIONS_MAX / 64];
    uint64_t taken[BUS_PARTITIONS_MAX / 64]; /* a worker is there: the partition waits for its end */
    struct attached_message *attached;       /* the newest message that came with its notice, or NULL */
    struct bus_slots slots;
    bool is_refused;  /* messages wait for a slot: the next one that is left wakes a worker */
    int64_t heads_ns; /* no look at the next messages before this: none could have a slot */

    struct reader_partition *partitions;
    int64_t checked_ns; /* BUS_EVERY: at this time the positions were those of the server */
    int64_t polled_sum; /* BUS_EVERY: of the topic's offsets; the poll's */
};

void bus_postgres_reader_create(struct bus *bus, const struct bus_consumer *consumer);
void bus_postgres_reader_free(struct reader *reader);
/* Under postgres->lock: something may be in `partition`, or anywhere. `attached` and `message` as in bus_postgres_wake_topic(). */
void bus_postgres_reader_wake(struct reader *reader, int partition, struct str attached,
                              const struct bus_message *message);
void bus_postgres_worker_due(struct reader_worker *worker, int64_t wait_ms); /* within its run */
unsigned bus_postgres_reader_turn(struct reader *reader); /* the partition to look at first */
/* bus_slots of the reader. A leaver wakes a worker if messages were refused a slot. */
bool bus_postgres_slots_are_scarce(struct reader *reader);
size_t bus_postgres_slot_enter(struct reader *reader, struct bus_slot *slot,
                               const struct bus_message *messages, size_t count);
void bus_postgres_slot_leave(struct reader *reader, struct bus_slot *slot);
/* Around a handler that has messages. False: the bus is stopping, do not begin. */
bool bus_postgres_handling_begin(struct postgres *postgres);
void bus_postgres_handling_end(struct postgres *postgres);
bool bus_postgres_is_stopping(struct postgres *postgres);

/* One batch; STEP_DRAINED: found some, and that was all there was. `attached`: the message that came with its notice;
 * then STEP_NOTHING means that it must be read from the table. */
enum bus_postgres_step { STEP_NOTHING, STEP_FOUND, STEP_DRAINED, STEP_FAILED };
enum bus_postgres_step bus_postgres_shared_step(struct reader_worker *worker, int place,
                                                const struct attached_message *attached, struct error *error);
enum bus_postgres_step bus_postgres_every_step(struct reader *reader, struct error *error);
enum bus_postgres_step bus_postgres_every_attached(struct reader *reader, struct attached_message *attached);
/* Once, before the first step: cursors or positions. */
enum status bus_postgres_shared_begin(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                                      struct error *error) MUST_CHECK;
enum status bus_postgres_every_begin(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                                     struct error *error) MUST_CHECK;

/* ---- postgres.c ---- */
struct postgres {
    struct bus bus; /* first: the two share their address */
    struct bus_postgres_config config;
    struct arena arena; /* for texts of the target */
    struct db_target target;
    struct db_pool *pool;         /* of readers */
    struct db_pool *publish_pool; /* a handler that publishes never waits for other handlers' connections */
    struct db_notifier *notifier;
    struct db_listener *listener;
    char instance[17];            /* in our own notices, which are ignored */
    atomic_llong published_by_ns; /* when the youngest connection that has published was opened */
    atomic_bool is_trusted;       /* only our own processes receive notices: they may carry messages */
    struct reader **readers;
    size_t reader_count;
    struct task *upkeep, *poll;
    struct db_poll *changes; /* starts the poll when there is something */
    int64_t changes_seen;

    pthread_mutex_t lock; /* for what follows, and for readers */
    pthread_cond_t handled;
    bool is_stopping;
    unsigned handling;   /* handlers that have messages: a stop gives them time */
    unsigned publishing; /* callers of bus_publish() that have not returned */
    STAILQ_HEAD(publish_requests, publish_request) publish_queue;
    bool has_leader; /* one of them is committing */
};

/* NULL, and NOT_IMPLEMENTED in *error: the bus has another driver. */
struct postgres *bus_postgres_of(struct bus *bus, struct error *error);

#define POSTGRES_CHANNEL "freshet_bus"
#define POSTGRES_NOTICE_BYTES 128
/* Wakes the readers of this process. `partition`: of the new message, or POSTGRES_ANYWHERE. `attached`: text of a notice.
 * `message`: the only new one, when it was published by this process. */
void bus_postgres_wake_topic(struct postgres *postgres, struct bus_topic_state *topic, int partition,
                             struct str attached, const struct bus_message *message);
/* The same, and other processes by a notice. `message`: the only one, committed, with its offset; NULL: there are several. */
void bus_postgres_wake(struct postgres *postgres, struct bus_topic_state *topic,
                       const struct bus_message *message);
/* The text of a notice: "instance:topic", or "instance:topic:partition". */
struct str bus_postgres_notice(const struct postgres *postgres, const struct bus_topic_state *topic,
                               int partition, char text[POSTGRES_NOTICE_BYTES]);

/* ---- cursors.c ---- */
/* A group's cursors, where it has none yet: at the oldest message that is kept, or at the next one. */
enum status bus_postgres_cursors_create(struct db_conn *conn, const struct bus_topic_state *topic,
                                        const char *group, bool from_start, int64_t deadline_ns,
                                        struct error *error) MUST_CHECK;
/* Where a group continues in a partition. */
#define CURSOR_AFTER_NEXT (-1) /* position: after the next message, whose offset is not known yet */
#define CURSOR_AT_ONCE (-1)    /* wait_ms */
struct cursor_advance {
    int64_t position;
    unsigned attempts; /* of the message there */
    int64_t wait_ms;   /* until it is delivered again */
    struct str reason; /* of the last failure; no ptr: none */
};
/* Adds the statement that moves the cursor to the open pipeline. */
void bus_postgres_cursor_advance(struct db_conn *conn, const struct bus_consumer *consumer,
                                 unsigned partition, const struct cursor_advance *advance);
/* After a rollback, unless another process has moved the cursor from `position`: messages before `careful_until` are delivered one by
 * one. The advance's position does not count. */
enum status bus_postgres_cursor_fail(struct reader *reader, unsigned partition, int64_t position,
                                     int64_t careful_until, const struct cursor_advance *advance,
                                     int64_t deadline_ns, struct error *error) MUST_CHECK;
/* While slots are scarce: the partitions whose next message may have one now. None when that was looked for a moment ago without
 * success; then the worker is due soon. */
enum status bus_postgres_heads_choose(struct reader_worker *worker, struct db_conn *conn,
                                      unsigned partitions[BUS_PARTITIONS_MAX], unsigned *count,
                                      struct error *error) MUST_CHECK;
enum suspicion {
    SUSPECT_HANDLE,
    SUSPECT_GIVE_UP, /* too many processes died while they handled it: do not call the handler */
    SUSPECT_DROP,    /* and while they gave it up: do not call the subscriber either */
};
enum status bus_postgres_suspect_mark(struct reader *reader, unsigned partition, int64_t position,
                                      enum suspicion *suspicion, struct error *error) MUST_CHECK;
void bus_postgres_suspect_unmark(struct reader *reader, unsigned partition);

/* ---- publish.c ---- */
/* bus_publish_in_tx() of messages that are checked and have their partitions. */
enum status bus_postgres_publish_in_tx(struct postgres *postgres, struct db_conn *conn,
                                       struct bus_message *messages, size_t count, int64_t deadline_ns,
                                       struct error *error) MUST_CHECK;
enum status bus_postgres_publish(struct bus *bus, struct bus_message *messages, size_t count,
                                 int64_t deadline_ns, struct error *error);

/* ---- upkeep.c ---- */
/* Creates the topic's partitions and its group's cursors when there are none; CONFIG when their number differs. */
enum status bus_postgres_topic_ensure(struct db_conn *conn, struct bus_topic_state *topic,
                                      int64_t deadline_ns, struct error *error) MUST_CHECK;
enum status bus_postgres_topics_ensure(struct postgres *postgres, const struct bus_message *messages,
                                       size_t count, int64_t deadline_ns, struct error *error) MUST_CHECK;
int64_t bus_postgres_upkeep(struct task *task, void *postgres);

/* ---- messages.c ---- */
/* Messages out of POSTGRES_MESSAGE_COLUMNS, which begin at `column` of a binary result; keys and payloads are in the result. */
struct bus_message *bus_postgres_row_messages(const struct db_result *result, size_t begin, size_t end,
                                              unsigned column, struct str topic, unsigned partition,
                                              struct arena *arena);
/* How many of them are before the first offset that is missing: the rest is a batch of its own, after a gap. */
size_t bus_postgres_before_hole(const struct bus_message *messages, size_t count);

#define POSTGRES_CREATED_US(row) "(extract(epoch from " row ".created_at) * 1000000)::bigint"
#define POSTGRES_PAYLOAD 3 /* of these columns */
#define POSTGRES_MESSAGE_COLUMNS \
    "m.message_offset::text, m.key, m.headers, m.payload, " POSTGRES_CREATED_US("m") "::text"

/* Of messages x, in the order of their offsets: those that fit into a batch of so many bytes, by `upto`, the bytes up to the end of each,
 * and at least the first. A payload that is larger than a batch is left out: it is loaded when there is memory for it. */
#define POSTGRES_BATCH_COLUMNS(bytes)                              \
    "    SELECT x.message_offset, x.key, x.headers, x.created_at," \
    "           CASE WHEN octet_length(x.payload) <= " bytes " THEN x.payload END AS payload"
#define POSTGRES_BATCH_FITS(bytes) "x.upto <= " bytes " OR x.upto = octet_length(x.payload)"
/* How many of these messages have their payload, before the first one that has not. */
size_t bus_postgres_rows_loaded(const struct db_result *result, size_t begin, size_t end, unsigned column);
/* Loads it, once the hold is taken; *payload stays NULL while there is no memory for it. */
enum status bus_postgres_payload_load(struct db_conn *conn, struct bus_message *message,
                                      size_t batch_bytes_max, const void *owner, struct bus_hold *hold,
                                      int64_t deadline_ns, struct db_result **payload,
                                      struct error *error) MUST_CHECK;

/* A message attached to the notice of it. */
struct attached_message {
    char *text; /* its parts are slices of this */
    int partition;
    struct bus_message message;
    struct bus_header headers[BUS_HEADERS_MAX];
};
/* Appends the message to the text of a notice, unless it is too large or not text. */
void bus_postgres_attach(struct buf *notice, const struct bus_message *message);
struct attached_message *bus_postgres_attached_parse(struct str text,
                                                     int partition); /* NULL: it is invalid */
/* With offset and time; NULL: it could not be attached to a notice. */
struct attached_message *bus_postgres_attached_copy(const struct bus_message *message);
void bus_postgres_attached_free(struct attached_message *attached);

#endif
