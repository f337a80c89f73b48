/* The NATS driver's inside: one connection, a keeper thread, and a slot for each partition of each subscription.
 *
 *   client's threads ──message──▶ slot (queue by sequence) ──job──▶ worker: bus_deliver() ──▶ +ACK, -NAK, +TERM
 *                                   ▲                                 keeper: streams, consumers, leases, WPI, lag
 *                                   └── pull requests, as there is room
 *   advisories ──▶ slot's watches ──▶ the same job: the letter that nobody sent
 *
 * One lock, `lock`, for everything below it; nothing is sent or asked while it is held. */
#ifndef FRESHET_BUS_NATS_INSIDE_H
#define FRESHET_BUS_NATS_INSIDE_H

#include <nats/nats.h>
#include <pthread.h>

#include "base/buf.h"
#include "bus/bus_inside.h"
#include "bus/bus_nats.h"
#include "bus/delivery.h"

#define NATS_NAME_BYTES 256
#define NATS_API_MS 2000 /* for one answer of the server's */
#define NATS_WINDOW_MS_MAX (INT64_C(366) * 24 * 3600 * 1000)
#define NATS_BURIED_KEPT 4096 /* several batches: their advisories come one by one, behind them */
#define NATS_OVERDUE_WAITS 3  /* for acknowledgements: then what was NAKed should have come again */

struct nats;
struct nats_reader;

/* ---- topics ---- */
struct nats_topic {
    char stream[NATS_NAME_BYTES - 32], subject[NATS_NAME_BYTES - 32]; /* there is room for a partition */
    bool exact;        /* its owner named it so: with one partition nothing is added */
    int64_t window_ns; /* a repeated id is dropped within this; 0 = nobody said */
    char problem[256]; /* why it cannot be used; "" = it can */
};

/* ---- messages that are here and not settled ---- */
struct nats_item {
    int64_t sequence, created_us;
    uint64_t
        delivered; /* how often. More than once: perhaps to a process that died of it, so it is handled alone */
    uint64_t turn;    /* the consumer's count when it was sent, the last time; 0 = by an earlier connection */
    bool given_up;    /* the server will not send it again, but here it is */
    natsMsg *message; /* NULL: the server has it back (-NAK) and sends it again */
};

/* ---- what the server is done with, though nobody acknowledged it ---- */
enum nats_fate_kind { FATE_USED_UP, FATE_TERMINATED, FATE_KINDS };

struct nats_fate {
    enum nats_fate_kind kind;
    int64_t sequence, deliveries, told_us;
    natsMsg *advisory; /* acknowledged when the letter is out */
};

/* A consumer of the advisories of one kind about a slot's consumer. */
struct nats_watch {
    struct nats_slot *slot;
    enum nats_fate_kind kind;
    natsSubscription *inbox;
    char inbox_subject[NATS_NAME_BYTES];
    char stream[NATS_NAME_BYTES]; /* "" = nobody keeps them */
    int64_t asked, asked_until_ns;
};

/* A partition that this process reads.
 *   AWAY    somebody else's, or nobody's yet
 *   SYNCING ours; the server has sent messages that are not in our hands, and they come first
 *   RUNNING ours; what comes is the next in order */
enum nats_slot_state { SLOT_AWAY, SLOT_SYNCING, SLOT_RUNNING };

struct nats_slot {
    struct worker_job work; /* first */
    struct nats_reader *reader;
    unsigned partition;
    enum nats_slot_state state;
    bool busy;
    int64_t busy_since_ns;
    struct bus_delivery delivery; /* the job's */
    bool *dead;                   /* the job's: which of a batch were TERMed */

    struct nats_item *items; /* by sequence */
    size_t count, capacity;
    int64_t settled;               /* every message up to here is done with */
    int64_t due_ns;                /* no sooner */
    uint64_t turn;                 /* the consumer's count of what it has sent, of the last that came */
    int64_t owed;                  /* while SYNCING: sent by the server, and not here */
    int64_t asked, asked_until_ns; /* messages that the open pull request may still bring */
    int64_t created_ns;            /* the stream's birth; another one: it was made anew, its sequence too */
    int64_t next_before;           /* what it wanted when the stream was last asked about */
    bool is_unsure;                /* the stream is another one, and a handler of the old one runs */
    bool gap;                      /* on_gap is to be told: */
    int64_t gap_from, gap_next;
    bool is_out;        /* the database does not answer: nothing more is asked for */
    int64_t overdue_ns; /* what was NAKed should have come again by then */

    struct nats_watch watches[FATE_KINDS];
    struct nats_fate *fates;
    size_t fate_count;
    int64_t buried[NATS_BURIED_KEPT]; /* of the last: an advisory of these tells nothing new */
    unsigned buried_next;

    natsSubscription *inbox;
    char inbox_subject[NATS_NAME_BYTES];
    char consumer[NATS_NAME_BYTES]; /* "" = there is none yet */
    uint64_t lease_revision;
    int64_t lease_until_ns;
    bool give_up;     /* the lease goes to another member when the job is done */
    uint64_t pending; /* of the last look */
};

/* Who else reads with this group, by what they say of themselves. */
struct nats_member {
    char id[17];
    int64_t heard_ns;
};

struct nats_reader {
    struct bus_consumer consumer;
    struct nats *nats;
    const struct nats_topic *topic;
    struct nats_slot *slots; /* one for each partition */
    unsigned busy, turn;
    bool ready, ready_told, doubt; /* doubt: consumers are to be looked at */
    struct nats_member *members;
    size_t member_count;
    natsSubscription *members_inbox;
    char members_subject[3 * NATS_NAME_BYTES];
    int64_t say_ns;
    bool answer; /* somebody new is to hear of us */
};

/* ---- publishing: at most one message of a key is on its way ---- */
struct nats_entry {
    natsMsg *message; /* on its way; only compared */
    char id[BUS_REASON_BYTES];
    bool settled;
    int64_t offset;
    struct nats_entry *before, *after; /* of the same topic and key; NULL = none */
    struct nats_entry *next_ready;
};
struct nats_publication {
    struct nats_publication *next;
    struct nats_entry *entries;
    size_t count, flying, next_expected;
    struct nats_entry *ready, **ready_end; /* may be sent: what was before them is settled */
    enum status status;                    /* the server's refusal, for good */
    char refusal[128];
};

/* A connection that the client has given up. */
struct nats_grave {
    struct nats_grave *next;
    natsConnection *connection;
    jsCtx *js;
};

/* ---- plain subjects ---- */
struct nats_listening {
    struct nats_listening *next;
    struct nats *nats;
    char *subject, *queue;
    void (*on_message)(void *context, const struct bus_nats_plain *message);
    void *context;
    natsSubscription *subscription;
};

struct nats {
    struct bus bus; /* first */
    struct bus_nats_config config;
    struct db_pool *pool; /* NULL: handlers get no transaction */
    struct nats_topic *topics;
    char kept_in[FATE_KINDS][NATS_NAME_BYTES]; /* the keeper's: streams of advisories; "" = not yet */
    bool unkept[FATE_KINDS];                   /* the keeper's: the log says so */
    char id[17];                               /* this member */
    natsOptions *options;
    _Atomic(natsConnection *) connection; /* NULL till the keeper's first try */
    _Atomic(jsCtx *) js;
    natsSubscription *guard;
    struct nats_grave *graves;
    int64_t connect_ns; /* no sooner is there another */
    kvStore *leases;
    int64_t lease_ns;
    struct metric_series *reconnects;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* for everybody who waits: few do */
    struct nats_reader **readers;
    size_t reader_count;
    struct nats_publication *publications;
    struct nats_listening *listenings;
    pthread_t keeper;
    bool started, stopping, cancelled, kicked, doubt; /* doubt: streams are to be looked at */
    atomic_bool up, complained;
    unsigned epoch;         /* how often it was connected */
    unsigned busy;          /* slots at work */
    unsigned subscriptions; /* the client may still call us for these */
    bool closed;
};

/* names.c */
enum status bus_nats_names_init(struct nats *nats, const struct bus_nats_config *config,
                                struct error *error) MUST_CHECK;
bool bus_nats_is_stream_name(const char *name);
void bus_nats_subject(char out[NATS_NAME_BYTES], const struct nats *nats, const struct bus_topic_state *topic,
                      unsigned partition);
void bus_nats_durable(char out[NATS_NAME_BYTES], const struct nats_reader *reader, unsigned partition);
struct nats_topic *bus_nats_topic(const struct nats *nats, const struct bus_topic_state *topic);

/* connection.c */
enum status bus_nats_options(struct nats *nats, struct error *error) MUST_CHECK;
bool bus_nats_connect(struct nats *nats); /* the keeper's: false = not yet */
void bus_nats_disconnect(struct nats *nats);
/* Calls `handler` on the client's threads until bus_nats_disconnect(). */
natsStatus bus_nats_listen_to(struct nats *nats, natsSubscription **subscription, const char *subject,
                              const char *queue, natsMsgHandler handler, void *closure);
natsStatus bus_nats_inbox_open(struct nats *nats, natsSubscription **inbox, char subject[NATS_NAME_BYTES],
                               natsMsgHandler handler, void *closure); /* once; it has a name of its own */
void bus_nats_inbox_close(natsSubscription **inbox); /* the server hears of it before all that is told next */
void bus_nats_wait(struct nats *nats, int64_t until_ns); /* under the lock: until something changes */
void bus_nats_kick(struct nats *nats);                   /* under the lock: the keeper has something to do */

/* headers.c: a message there and here */
natsStatus bus_nats_encode(const struct bus_message *message, const char *subject, const char *id,
                           natsMsg **out, size_t *bytes);
void bus_nats_decode_headers(natsMsg *from, struct arena *arena,
                             struct bus_message *message); /* and the key, and whether it is poison */

/* publish.c */
enum status bus_nats_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                             struct error *error);
void bus_nats_on_ack(jsCtx *js, natsMsg *message, jsPubAck *ack, jsPubAckErr *refusal, void *closure);

/* stream.c, on the keeper */
bool bus_nats_streams_ensure(struct nats *nats);

/* consumer.c, on the keeper */
bool bus_nats_consumers_ensure(struct nats_reader *reader);
void bus_nats_slot_sync(struct nats_slot *slot);
/* Under the lock, as the next. Counts what the server has sent and is not in our hands, by its answer about the consumer: `pending` sent and
 * not acknowledged, `delivered` its count of what it has sent, `floor` acknowledged up to here. True: it is all here. */
bool bus_nats_slot_is_whole(struct nats_slot *slot, int64_t pending, uint64_t delivered, uint64_t floor);
void bus_nats_slot_forget_turns(struct nats_slot *slot);
void bus_nats_reader_look(struct nats_reader *reader); /* lag, gaps */

/* advisory.c, on the keeper */
void bus_nats_advisories_keep(struct nats *nats);
bool bus_nats_watches_ensure(struct nats_slot *slot);
void bus_nats_watches_pull(struct nats_slot *slot);

/* given_up.c */
bool bus_nats_fates_are_due(const struct nats_slot *slot, int64_t now_ns); /* under the lock */
void bus_nats_fates_settle(struct nats_slot *slot);                        /* the job's */
void bus_nats_fates_drop(struct nats_slot *slot);                          /* under the lock */
void bus_nats_bury_note(struct nats_slot *slot, int64_t sequence);         /* under the lock */

/* slot.c */
struct nats_origin {
    struct str consumer;
    uint64_t delivered, sequence, turn, time_ns; /* turn: the consumer's own count of what it has sent */
};
bool bus_nats_origin_parse(const char *reply, struct nats_origin *origin);
void bus_nats_on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                         void *slot);
bool bus_nats_slot_pull(struct nats_slot *slot); /* asks if there is room; not under the lock */
void bus_nats_slot_extend(struct nats_slot *slot);
void bus_nats_slot_drop(struct nats_slot *slot, bool give_back); /* what no job has in hand */
bool bus_nats_tell(struct nats *nats, natsMsg *message, const char *what);
void bus_nats_refuse(struct nats *nats, natsMsg *message); /* when our requests are over, let it come again */
void bus_nats_item_free(struct nats_item *item);

/* jobs.c; under the lock */
void bus_nats_job_init(struct nats_slot *slot);
void bus_nats_reader_wake(struct nats_reader *reader);

/* lease.c, on the keeper */
void bus_nats_leases_keep(struct nats_reader *reader);
void bus_nats_leases_release(struct nats_reader *reader, int64_t deadline_ns);
natsStatus bus_nats_members_listen(struct nats_reader *reader);
void bus_nats_members_say(struct nats_reader *reader, const char *what);

/* keeper.c */
void *bus_nats_keeper_run(void *nats);

/* plain.c */
natsStatus bus_nats_plain_listen(struct nats *nats);
void bus_nats_plain_free(struct nats *nats);

#endif
