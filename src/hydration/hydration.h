/* Hydration: a module asks the owner of an entity for data that it lacks (H1–H8).
 *
 *   hydration_ask ─ waiters.c (the caller's loop): in memory? ─ a lookup of it under way on this loop? join ─ else a worker:
 *       ledger.c (PostgreSQL, one round trip): a copy? an absence? asked by any process? join ─ else
 *       the owner: without the bus where it runs in this process, else entity.unknown over the bus (wire.c)
 *       ─ owner.c reads the entity ─ entity.updated or entity.not-found ─ bus
 *       ─ every process that asks: deliver.c completes the waiters that the answer satisfies; memory.c keeps it
 *       ─ one process (shared group): ledger.c stores the copy or the absence
 *
 * A waiter holds no thread: it is a node of its lookup and a timer of its loop, and it is completed once. Each loop has its own
 * lookups, waiters and memory: there is no lock. Memory and ledger follow the owner: owners publish every change, an event with
 * an older version is ignored, and a copy whose change was missed expires.
 *
 * Visibility: an answer with `visibility: caller` is for the caller that it names alone; so is every `inaccessible`. */
#ifndef FRESHET_HYDRATION_HYDRATION_H
#define FRESHET_HYDRATION_HYDRATION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/metrics.h"
#include "base/setting.h"
#include "base/span.h"
#include "base/status.h"
#include "base/str.h"
#include "base/trace.h"
#include "db/db.h"
#include "loop/group.h"
#include "loop/worker.h"

struct bus;
struct bus_message;
struct hydration;

#define HYDRATION_TYPE_BYTES_MAX 64 /* [a-z][a-z0-9_]* */
#define HYDRATION_ID_BYTES_MAX 1100 /* UTF-8 without control characters; a dictionary's key fits */
#define HYDRATION_FIELDS_MAX 32
#define HYDRATION_FIELD_BYTES_MAX 128

/* ---- what a caller needs ---- */
enum hydration_mode { HYDRATION_EXISTENCE, HYDRATION_PARTIAL, HYDRATION_FULL };

/* How much of an entity a request needs, or an answer or a copy contains. Fields are names of top-level members, sorted, without duplicates. */
struct hydration_cover {
    enum hydration_mode mode;
    const struct str *fields;
    unsigned field_count; /* 0 unless PARTIAL */
};
bool hydration_cover_includes(const struct hydration_cover *wide, const struct hydration_cover *narrow);
/* The members of `object` (a validated JSON object) that `cover` names, as an object; existence: {}. */
void hydration_cover_cut(const struct hydration_cover *cover, struct str object, struct buf *out);

struct hydration_need {
    struct str tenant, caller; /* caller: the user for whom the entity is needed; empty: none */
    struct str entity_type, entity_id;
    struct hydration_cover cover;
    struct trace trace;
};
/* BAD_REQUEST naming the field (entity_type, entity_id, fields, sub). Sorts the fields in place. */
enum status hydration_need_check(struct hydration_need *need, struct str *fields, unsigned field_count,
                                 struct error *error) MUST_CHECK;

/* ---- how it is looked up: one policy for each consumer, from its settings (H3) ---- */
struct hydration_policy {
    const char *module; /* requester_module */
    int64_t wait_timeout_ms, negative_cache_ttl_ms, in_flight_window_ms, max_retries, retry_backoff_ms;
};
/* Block `hydration` of a consumer that can be switched off: the policy's names and `enabled`. */
struct hydration_use {
    struct hydration_policy policy;
    bool enabled;
};
extern const struct setting_row hydration_use_rows_on[],
    hydration_use_rows_off[]; /* "enabled" is true, or false, by default */

/* ---- outcomes ---- */
enum hydration_result {
    HYDRATION_UPDATED,
    HYDRATION_NOT_FOUND,
    HYDRATION_TIMEOUT,
    HYDRATION_UNAVAILABLE, /* PostgreSQL does not respond, or too many lookups are under way */
};
enum hydration_reason { HYDRATION_ABSENT /* deleted_or_never_existed */, HYDRATION_INACCESSIBLE };
/* Where the outcome is from, for logs and metrics: the memory of this loop, the ledger in PostgreSQL, the question of another
 * lookup that this one joined, or a question of its own. */
enum hydration_way { HYDRATION_BY_MEMORY, HYDRATION_BY_LEDGER, HYDRATION_BY_JOINING, HYDRATION_BY_QUESTION };

/* Borrowed for the call. */
struct hydration_outcome {
    enum hydration_result result;
    enum hydration_reason reason; /* of NOT_FOUND */
    enum hydration_way way;
    bool is_negative_hit; /* NOT_FOUND without a question to the owner */
    struct str source_module;
    struct str data; /* a JSON object, cut to the need; of TIMEOUT and UNAVAILABLE: a stale copy, or empty */
    int64_t version;
};

/* ---- consumers ---- */
struct hydration_waiter;
typedef void hydration_done_fn(struct hydration_waiter *waiter, const struct hydration_outcome *outcome);

enum hydration_waiter_state {
    HYDRATION_WAITER_IDLE,      /* not asked yet, completed or cancelled */
    HYDRATION_WAITER_WAITING,   /* in its lookup's list */
    HYDRATION_WAITER_LAST_READ, /* the same, shortly before its deadline: the ledger is read once more */
    HYDRATION_WAITER_LEAVING,   /* in its shard's list; its callback has not run yet */
};

/* Embedded in the caller's memory, which stays until on_done or hydration_waiter_cancel(). The members are waiters.c's. */
struct hydration_waiter {
    TAILQ_ENTRY(hydration_waiter) link;
    enum hydration_waiter_state state;
    struct hydration_lookup *lookup;
    struct hydration_shard *shard;
    hydration_done_fn *on_done;
    const struct hydration_policy *policy;
    const struct hydration_outcome *outcome; /* LEAVING: with data that is not cut yet */
    struct str caller;                       /* WAITING: a copy of its own */
    struct loop_timer timer;
    int64_t begun_ns, deadline_ns;
    enum hydration_way way;
    bool defers, has_joined, is_background;
    bool is_traced; /* its span is recorded when it is done */
    struct trace trace;
    uint8_t parent_span[SPAN_ID_BYTES];
};

/* On `loop`, one of the group's: on_done is called once, on this loop, perhaps before this returns. The need is borrowed for the
 * call, the policy until on_done. `defers`: after TIMEOUT the lookup goes on in the background, at most a minute (H5). */
void hydration_ask(struct hydration *hydration, const struct hydration_policy *policy,
                   const struct hydration_need *need, bool defers, struct loop *loop,
                   struct hydration_waiter *waiter, hydration_done_fn *on_done);
void hydration_waiter_cancel(struct hydration_waiter *waiter); /* on its loop; no effect when it is done */
/* On a thread that may block, never a loop's: looks all of them up at once. Texts of the outcomes are the arena's. */
void hydration_ask_and_wait(struct hydration *hydration, const struct hydration_policy *policy,
                            const struct hydration_need *needs, size_t count, struct arena *arena,
                            struct hydration_outcome *outcomes);

/* ---- owners (H6) ---- */
enum hydration_found {
    HYDRATION_ENTITY_EXISTS,
    HYDRATION_ENTITY_ABSENT,
    HYDRATION_ENTITY_HIDDEN /* from this caller */
};
struct hydration_entity {
    enum hydration_found found;
    struct buf *data; /* the owner appends the whole object */
    int64_t version;  /* increases with every change of the entity and its deletion; ABSENT: 0 if unknown */
    bool is_private;  /* only some callers of the tenant may see it */
    struct str only_caller; /* is_private: the one caller that may, where the owner can name it (arena) */
    struct arena *arena;
};
struct hydration_ref { /* an entity; the context has its type */
    struct str tenant, entity_id;
};
struct hydration_owner {
    const char *entity_type, *module;
    /* On a worker, may block until the deadline. After a failure no answer is published. Caller empty: the owner publishes a change,
     * and no rule about callers applies. More than the cover may be returned: it is cut. */
    enum status (*look)(void *context, const struct hydration_need *need, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error);
    void *context; /* until the module's destroy() */
    /* The topic of the owner's own events: the shared group "entity-TYPE" reads it and publishes the changes of held entities.
     * NULL: the module calls hydration_publish_change() itself. `read` returns the entity that a message is about; false: none. */
    const char *topic;
    bool (*read)(const struct bus_message *message, struct arena *arena, struct hydration_ref *ref);
    void (*on_gap)(void *context, unsigned partition,
                   int64_t offset); /* messages from there on were lost; may block */
};
/* In a module's start(). The row is copied, its texts are borrowed. */
void hydration_provide(struct hydration *hydration, const struct hydration_owner *owner);
/* On a thread that may block: publishes entity.updated with the whole entity, or entity.not-found where it is gone. OK: the bus has
 * stored it. */
enum status hydration_publish_change(struct hydration *hydration, const char *entity_type, struct str tenant,
                                     struct str entity_id, int64_t deadline_ns,
                                     struct error *error) MUST_CHECK;
/* held[i]: does a consumer have a copy of it, has it recorded as absent, or is a lookup of it running? Over NATS all are held: copies of consumers
 * outside of freshet are not known. */
enum status hydration_find_held(struct hydration *hydration, const char *entity_type,
                                const struct hydration_ref *refs, size_t count, int64_t deadline_ns,
                                bool *held, struct error *error) MUST_CHECK;
/* Every held entity of that type and tenant whose id has this prefix, in the arena: for an owner that does not know which of its
 * entities changed. */
enum status hydration_list_held(struct hydration *hydration, const char *entity_type, struct str tenant,
                                struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                struct hydration_ref **refs, size_t *count, struct error *error) MUST_CHECK;
/* The longest time that an entity is held after the last question for it or the last change that was published. */
int64_t hydration_held_ms(const struct hydration *hydration);

/* ---- life: the kernel's (src/kernel/store.c) ---- */
struct hydration_settings { /* section `hydration`: the route's own policy, and limits of the process */
    struct hydration_policy policy;
    int64_t copy_ttl_ms;
    int64_t memory_entries, memory_bytes;                      /* of all loops together */
    int64_t negative_rows_max, copy_rows_max, flight_rows_max; /* of the tables */
    struct setting_strings required;                           /* entity types that must have an owner */
    struct setting_strings outside; /* entity types that modules outside of freshet provide */
    struct setting_place required_place, outside_place;
};
extern const struct setting_row hydration_setting_rows[];
extern struct metric_family *const hydration_metrics[];  /* NULL-terminated */
extern const struct db_migration hydration_migrations[]; /* sql/hydration; module "hydration" */
extern const char hydration_grants[];
/* How long an expired copy is kept. A published change renews it. */
#define HYDRATION_EXPIRED_COPY_MS (INT64_C(3600) * 1000)
/* For the kernel's retention (kernel/store.h): $1 = how many rows may stay (bigint), $2 = how many go at once (int). */
extern const char hydration_absences_cleanup_sql[], hydration_copies_cleanup_sql[],
    hydration_flights_cleanup_sql[];

struct hydration_config {
    struct loop_group *loops;
    struct worker_pool *workers; /* of the store */
    struct db_pool *pool;        /* the store's */
    const struct hydration_settings *settings;
    bool is_plain; /* the bus of events is NATS: questions and answers are plain messages */
};
struct hydration *hydration_create(const struct hydration_config *config);
/* Home loop, before bus_start(): subscribes. `consumes`: modules of this process ask; else they only answer. */
enum status hydration_open(struct hydration *hydration, struct bus *events, bool consumes,
                           struct error *error) MUST_CHECK;
void hydration_stop(struct hydration *hydration);    /* loops run: waiters get UNAVAILABLE, lookups end */
void hydration_destroy(struct hydration *hydration); /* loops have ended; NULL is fine */

#endif
