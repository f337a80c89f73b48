/* What the files of the PostgreSQL driver share.
 *
 *   postgres.c  life: wakes, timer, stop
 *   jobs.c      jobs on the workers
 *   append.c    messages become rows
 *   publish.c   group commit
 *   shared.c    one batch of a shared group
 *   claim.c     the right to it
 *   preview.c   a message that came with its notice
 *   suspect.c   messages that kill their process
 *   every.c     one round of a reader of everything
 *   upkeep.c    topics made, lag, retention
 *   rows.c      arrays and rows
 *
 * A reader is a subscription with its jobs. A job takes one batch and comes again while it finds any:
 *
 *   idle ── wake, due ──▶ queued ──▶ running ── nothing found ──▶ idle
 *                            ▲          │
 *                            └──────────┘ found one, or woken meanwhile
 */
#ifndef FRESHET_BUS_POSTGRES_INSIDE_H
#define FRESHET_BUS_POSTGRES_INSIDE_H

#include <pthread.h>

#include "base/buf.h"
#include "bus/bus_inside.h"
#include "bus/bus_postgres.h"

struct postgres;
struct reader;

/* A message that came with the notice of it, for whoever is likely to have the right to it. */
struct postgres_preview {
    char *text; /* what the message's parts are slices of */
    int partition;
    struct bus_message message;
    struct bus_header headers[BUS_HEADERS_MAX];
};

struct reader_job {
    struct worker_job work;
    struct reader *reader;
    bool busy;
};

struct reader {
    struct bus_consumer consumer;
    struct postgres *postgres;
    struct reader_job *jobs; /* consumer.spec.parallel of them */
    /* under postgres->lock */
    unsigned busy;
    bool woken; /* while every job was busy */
    /* Where something may be: anywhere, or in the partitions that are marked. A job takes one of it. */
    bool anywhere;
    uint64_t marked[BUS_PARTITIONS_MAX / 64];
    uint64_t taken[BUS_PARTITIONS_MAX / 64]; /* a job is at it: what is marked meanwhile waits for its end */
    struct postgres_preview *preview;        /* the newest, or NULL */
    int64_t
        due_ns; /* look again then: a retry's backoff, or after a failure; CLOCK_NEVER = only when woken */
    unsigned failures;
    /* its jobs' own */
    atomic_bool ready;
    atomic_uint turn;              /* which partition is looked at first */
    int64_t *positions, *retry_ns; /* BUS_EVERY: one of each per partition; only ever one job */
    unsigned *attempts;
    int64_t *created_us;    /* BUS_EVERY: of the message before the position */
    int64_t checked_ns;     /* BUS_EVERY: at this time the positions were those of the server */
    int64_t *suspect_until; /* BUS_SHARED: per partition, set before it is ready */
    int64_t *
        marked_until; /* BUS_SHARED: per partition, behind the message that this process has marked; 0: none */
    atomic_bool was_last[BUS_PARTITIONS_MAX]; /* to handle something there: likely to be the next one too */
};

struct publisher {
    pthread_mutex_t lock;
    struct publish_request *first, **last_next;
    bool leading, stopped;
    unsigned inside; /* callers that have not returned */
    pthread_cond_t left;
};

struct postgres {
    struct bus bus; /* first: the two share their address */
    struct bus_postgres_config config;
    struct db_target target;      /* texts its own */
    struct db_pool *pool;         /* readers */
    struct db_pool *publish_pool; /* a handler that publishes never waits for other handlers' connections */
    struct db_notifier *notifier;
    struct db_listener *listener;
    char instance[17]; /* marks our own notices, which we need not follow */
    struct publisher publisher;
    atomic_llong published_by_ns; /* when the youngest connection that has published was opened */
    atomic_bool is_private;       /* nobody else can hear our notices: they may carry messages */
    struct reader **readers;
    size_t reader_count;

    struct loop_timer timer; /* the loop's */
    int64_t poll_at_ns, upkeep_at_ns;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t idle;
    struct worker_job upkeep;
    bool upkeep_busy, started, stopping;
    unsigned busy;                /* jobs queued or running */
    unsigned handling;            /* of them, those that a stop gives time: a handler has messages */
    bool rearm_posted, destroyed; /* `rearm` is in the inbox; only the memory is left */
    struct loop_message rearm;    /* a reader is due earlier than the timer knows */
};

/* ---- postgres.c ---- */
#define POSTGRES_CHANNEL "freshet_bus"
#define POSTGRES_NOTICE_BYTES 128
#define POSTGRES_ANYWHERE (-1)
/* In this process. `partition`: where something was published, if that is known. */
void bus_postgres_wake_topic(struct postgres *postgres, struct str topic, int partition, struct str preview,
                             const struct bus_message *message);
/* Here at once; elsewhere by a notice. `message`: the only one, committed, with its offset; NULL: there are several. */
void bus_postgres_wake(struct postgres *postgres, const struct bus_topic_state *topic,
                       const struct bus_message *message);
/* What other processes are told: "instance:topic", or "instance:topic:partition". */
struct str bus_postgres_notice(const struct postgres *postgres, const struct bus_topic_state *topic,
                               int partition, char text[POSTGRES_NOTICE_BYTES]);

/* ---- jobs.c ---- */
void bus_postgres_jobs_init(struct reader_job *job, struct reader *reader);
void bus_postgres_jobs_init_upkeep(struct postgres *postgres);
void bus_postgres_jobs_wake(struct reader *reader, int partition); /* under postgres->lock */
void bus_postgres_jobs_preview(struct reader *reader, int partition, struct str preview); /* the same */
/* The same, of a reader of everything, before it is woken: what it is woken for is at hand, or NULL. */
void bus_postgres_jobs_hand(struct reader *reader, int partition, const struct bus_message *message);
void bus_postgres_jobs_upkeep(struct postgres *postgres); /* under postgres->lock */
void bus_postgres_reader_wake(struct reader *reader);
void bus_postgres_reader_due(struct reader *reader,
                             int64_t wait_ms); /* wakes it then, if nothing does before */
bool bus_postgres_is_stopping(struct postgres *postgres);
/* Around what a handler does with messages. False: the bus is stopping, let them be. */
bool bus_postgres_handling_begin(struct postgres *postgres);
void bus_postgres_handling_end(struct postgres *postgres);

/* ---- what a job does: one batch ---- */
/* STEP_DRAINED: found some, and that was all there was when it looked. */
enum bus_postgres_step { STEP_NOTHING, STEP_FOUND, STEP_DRAINED, STEP_FAILED };
enum bus_postgres_step bus_postgres_shared_step(struct reader *reader, int place, struct error *error);
enum bus_postgres_step bus_postgres_every_step(struct reader *reader, int place, struct error *error);

/* ---- claim.c ---- */
enum postgres_claim_column {
    CLAIM_PARTITION,
    CLAIM_POSITION,
    CLAIM_ATTEMPTS,
    CLAIM_LAST_ERROR,
    CLAIM_NEXT_OFFSET,
    CLAIM_OTHERS,
    CLAIM_MESSAGE,
};
/* A claimed batch on its way. */
struct claim {
    struct reader *reader;
    struct db_conn *conn;
    struct db_result *rows;
    struct arena arena;
    unsigned partition;
    int64_t position, next_offset;
    struct bus_batch batch;
    struct bus_outcome outcome;
};

/* Begins a transaction and asks, in a pipeline that is still open: `place` is a partition or POSTGRES_ANYWHERE. */
enum status bus_postgres_claim_open(struct claim *claim, int place, struct error *error) MUST_CHECK;
/* The same, answered: claim->rows. */
enum status bus_postgres_claim_send(struct claim *claim, int place, int64_t deadline_ns,
                                    struct error *error) MUST_CHECK;
void bus_postgres_claim_read(
    struct claim *claim); /* its rows, of which there is at least one, into its batch */
/* Did retention take something this group had not handled? Then it goes on behind it. */
void bus_postgres_claim_look_for_gap(struct claim *claim);

/* ---- suspect.c ---- */
/* At a start: looks where the group stood at the last ones. */
enum status bus_postgres_suspects_note(struct reader *reader, struct db_conn *conn, int64_t deadline_ns,
                                       struct error *error) MUST_CHECK;
bool bus_postgres_is_suspect(const struct reader *reader, unsigned partition, int64_t position);
/* Before and after its handler. */
enum suspicion {
    SUSPECT_HANDLE,
    SUSPECT_GIVE_UP, /* too many processes ended while they handled it: do not call the handler */
    SUSPECT_DROP,    /* and while they gave it up: do not tell the subscriber either */
};
enum status bus_postgres_suspect_mark(struct reader *reader, unsigned partition, int64_t position,
                                      enum suspicion *suspicion, struct error *error) MUST_CHECK;
void bus_postgres_suspect_unmark(struct reader *reader, unsigned partition);

/* ---- append.c ---- */
struct placed { /* a message on its way to its partition */
    struct bus_message *message;
    struct bus_topic_state *topic;
    size_t at; /* keeps the order of equals */
};
struct append {
    struct placed *placed;
    size_t count, slot_count;
    struct buf topics, partitions, counts, keys, headers, payloads; /* array literals */
    bool relaxed;                                                   /* the commit need not reach the disk */
};
/* Add what is to be appended, seal it, send it; offsets are set and topics counted when that worked. */
void bus_postgres_append_add(struct append *append, struct bus *bus, struct bus_message *messages,
                             size_t count);
void bus_postgres_append_seal(struct append *append);
enum status bus_postgres_append_send(struct postgres *postgres, struct append *append, struct db_conn *conn,
                                     int64_t deadline_ns, struct error *error) MUST_CHECK;
void bus_postgres_append_deinit(struct append *append);
enum status bus_postgres_publish_in_tx(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                                       size_t count, int64_t deadline_ns, struct error *error);
enum status bus_postgres_publish_and_commit(struct bus *bus, struct db_conn *conn,
                                            struct bus_message *message, int64_t deadline_ns,
                                            struct error *error);

/* ---- publish.c ---- */
void bus_postgres_publisher_init(struct publisher *publisher);
void bus_postgres_publisher_deinit(struct publisher *publisher);
void bus_postgres_publisher_stop(struct publisher *publisher);       /* who comes now is refused */
void bus_postgres_publisher_wait_empty(struct publisher *publisher); /* until all have left */
enum status bus_postgres_publish(struct bus *bus, struct bus_message *messages, size_t count,
                                 int64_t deadline_ns, struct error *error);

/* ---- own.c ---- */
enum status bus_postgres_own_ask(struct bus *bus, struct db_conn *conn, const struct bus_topic_state *topic,
                                 const char *group, const unsigned *partitions, size_t count, uint64_t *mark,
                                 struct error *error);
enum status bus_postgres_own_commit(struct bus *bus, struct db_conn *conn, struct bus_topic_state *topic,
                                    uint64_t mark, int64_t deadline_ns, struct error *error);

/* ---- upkeep.c ---- */
/* Makes the topic's partitions when there are none; CONFIG when there are others than configured. */
enum status bus_postgres_topic_ensure(struct db_conn *conn, struct bus_topic_state *topic,
                                      int64_t deadline_ns, struct error *error) MUST_CHECK;
enum status bus_postgres_topics_ensure(struct postgres *postgres, const struct bus_message *messages,
                                       size_t count, int64_t deadline_ns, struct error *error) MUST_CHECK;
/* A group's positions, where it has none yet: at the oldest message that is there, or at the next one. */
enum status bus_postgres_cursors_create(struct db_conn *conn, const struct bus_topic_state *topic,
                                        const char *group, bool from_start, int64_t deadline_ns,
                                        struct error *error) MUST_CHECK;
void bus_postgres_upkeep_run(struct postgres *postgres);

/* ---- preview.c ---- */
/* Behind the text of a notice; nothing where the message does not fit into one. */
void bus_postgres_preview_put(struct buf *notice, const struct bus_message *message);
struct postgres_preview *bus_postgres_preview_take(struct str text, int partition); /* NULL: it is none */
struct postgres_preview *bus_postgres_preview_copy(
    const struct bus_message *message); /* NULL: it is too large, or not text */
void bus_postgres_preview_free(struct postgres_preview *preview);
bool bus_postgres_preview_is(const struct postgres_preview *preview, const struct bus_message *message);
/* The reader's, if it has one for `place` and is likely to be the one to handle it. To be freed. */
struct postgres_preview *bus_postgres_reader_preview(struct reader *reader, int place);
/* Of a reader of everything: what it was handed for `place`. To be freed. */
struct postgres_preview *bus_postgres_reader_handed(struct reader *reader, int place);

/* ---- rows.c ---- */
void bus_postgres_array_put_i64(struct buf *out, int64_t value);
/* A text[] literal: name, value, name, value … */
void bus_postgres_put_headers(struct buf *out, const struct bus_message *message);
/* One element of a text[] literal that is itself a text[] literal: name, value, name, value … */
void bus_postgres_array_put_headers(struct buf *out, const struct bus_message *message);
/* A message out of POSTGRES_MESSAGE_COLUMNS, which begin at `column` of a binary result; its key and payload
 * lie in the result. */
void bus_postgres_row_message(const struct db_result *result, size_t row, unsigned column,
                              struct arena *arena, struct bus_message *message);

#define POSTGRES_CREATED_US(row) "(extract(epoch from " row ".created_at) * 1000000)::bigint"
#define POSTGRES_MESSAGE_COLUMNS \
    "m.message_offset::text, m.key, m.headers::text, m.payload, " POSTGRES_CREATED_US("m") "::text"

/* A number as a parameter. */
struct postgres_number {
    char text[24];
};
struct db_param bus_postgres_param(struct postgres_number *number, int64_t value);

#endif
