/* Hydration: a module asks the owner of an entity for what it lacks (seed 001, H1–H8), and storms are impossible.
 *
 *   ask ─ desk.c (the caller's loop): memory? ─ somebody here asking the same? join ─ else a worker:
 *       ledger.c (PostgreSQL, one round trip): a copy? known to be absent? asked already, by any process? join ─ else
 *       wire.c: entity/unknown ─ bus ─ source.c, where the owner runs: look ─ entity/updated or entity/not-found ─ bus
 *       ─ every process that asks: each loop's desk completes the waiters that it satisfies, and remembers
 *       ─ one process (shared group): ledger.c writes the copy or the absence down
 *
 * Who waits holds no thread: a waiter is a node in its desk's table and in its loop's timers, completed once, gone on every
 * way out. A desk belongs to its loop; there is no lock. What is in memory and in the ledger are followers: sources tell of
 * every change, an answer older than what is known is ignored, and whatever was missed ages out.
 *
 * Whose: an answer marked `visibility: caller` is for the caller it names and for nobody else; so is every `inaccessible`. */
#ifndef FRESHET_HYDRATION_HYDRATION_H
#define FRESHET_HYDRATION_HYDRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/metrics.h"
#include "base/setting.h"
#include "base/status.h"
#include "base/str.h"
#include "base/trace.h"
#include "db/db.h"
#include "loop/group.h"
#include "loop/worker.h"

struct bus;
struct hydration;

#define HYDRATION_TYPE_BYTES_MAX 64 /* [a-z][a-z0-9_]* */
#define HYDRATION_ID_BYTES_MAX 1100 /* UTF-8 without control characters; a dictionary's key fits */
#define HYDRATION_FIELDS_MAX 32
#define HYDRATION_FIELD_BYTES_MAX 128

/* ---- what is asked for ---- */
enum hydration_mode { HYDRATION_EXISTENCE, HYDRATION_PARTIAL, HYDRATION_FULL };

/* How much of an entity: of a request, an answer, a copy. Fields are names of top-level members, sorted, each once. */
struct hydration_cover {
    enum hydration_mode mode;
    const struct str *fields; /* of PARTIAL */
    unsigned field_count;
};
bool hydration_cover_includes(const struct hydration_cover *wide, const struct hydration_cover *narrow);
/* The members of `object` (a validated JSON object) that `cover` asks for, as an object; existence: {}. */
void hydration_cover_cut(const struct hydration_cover *cover, struct str object, struct buf *out);

struct hydration_need {
    struct str tenant, subject; /* the caller's */
    struct str entity_type, entity_id;
    struct hydration_cover cover;
    struct trace trace;
};
/* BAD_REQUEST naming the field (entity_type, entity_id, fields, sub). Sorts the fields in place. */
enum status hydration_need_check(struct hydration_need *need, struct str *fields, unsigned *field_count,
                                 struct error *error) MUST_CHECK;

/* ---- how: one for each consumer, from its settings (H3) ---- */
struct hydration_policy {
    const char *module; /* requester_module */
    int64_t wait_timeout_ms, negative_cache_ttl_ms, in_flight_window_ms, max_retries, retry_backoff_ms;
};
extern const struct hydration_policy hydration_policy_default; /* 500, 300000, 5000, 1, 200 */
/* For a consumer that can do without: its block `hydration`, the seed's names and `enabled`. */
struct hydration_use {
    struct hydration_policy policy;
    bool enabled;
};
extern const struct setting_row hydration_use_rows_on[], hydration_use_rows_off[]; /* by default */

/* ---- what comes of it ---- */
enum hydration_result {
    HYDRATION_UPDATED,
    HYDRATION_NOT_FOUND,
    HYDRATION_TIMEOUT,
    HYDRATION_UNAVAILABLE, /* PostgreSQL does not answer, or too much is being asked: nothing is known */
};
enum hydration_reason { HYDRATION_ABSENT /* deleted_or_never_existed */, HYDRATION_INACCESSIBLE };
/* How it was found out, for logs and metrics. */
enum hydration_way { HYDRATION_BY_MEMORY, HYDRATION_BY_LEDGER, HYDRATION_BY_JOINING, HYDRATION_BY_ASKING };

/* Borrowed for the call. */
struct hydration_outcome {
    enum hydration_result result;
    enum hydration_reason reason; /* of NOT_FOUND */
    enum hydration_way way;
    bool is_negative_hit; /* NOT_FOUND, and nobody was asked */
    struct str source_module;
    /* A JSON object, cut to what was needed; of TIMEOUT and UNAVAILABLE what is known all the same, or empty. */
    struct str data;
    int64_t version;
};

/* ---- consumers ---- */
struct hydration_waiter;
typedef void hydration_done_fn(struct hydration_waiter *waiter, const struct hydration_outcome *outcome);

/* Embedded in its owner's memory, which stays until on_done or hydration_waiter_cancel(). The members are the desk's. */
struct hydration_waiter {
    struct hydration_waiter *next, **link; /* of its asking's list; link NULL: not waiting */
    struct hydration_asking *asking;
    struct hydration_desk *desk;
    hydration_done_fn *on_done;
    const struct hydration_policy *policy;
    struct str subject; /* a copy of its own while it waits */
    struct loop_timer timer;
    int64_t begun_ns, deadline_ns;
    enum hydration_way way;
    bool defers, has_joined, has_looked, is_background;
};

/* On `loop`, one of the group's: on_done comes once, on this loop, perhaps before this returns. The need is borrowed for the
 * call, the policy until on_done. `defers`: when time is up on_done says TIMEOUT, and asking goes on in the background, at most a minute (H5). */
void hydration_ask(struct hydration *hydration, const struct hydration_policy *policy,
                   const struct hydration_need *need, bool defers, struct loop *loop,
                   struct hydration_waiter *waiter, hydration_done_fn *on_done);
void hydration_waiter_cancel(struct hydration_waiter *waiter); /* on its loop; harmless when it is done */
/* For a thread that may block, never a loop's: all of them at once, in one wait. Texts of the outcomes are the arena's. */
void hydration_ask_and_wait(struct hydration *hydration, const struct hydration_policy *policy,
                            const struct hydration_need *needs, size_t count, struct arena *arena,
                            struct hydration_outcome *outcomes);
const char *hydration_result_name(
    enum hydration_result result); /* updated, not-found, timeout, unavailable */

/* ---- sources (H6) ---- */
struct hydration_question {
    struct str tenant,
        subject; /* subject empty: nobody asks, the source tells of a change: no rule about callers applies */
    struct str entity_type, entity_id;
    struct hydration_cover cover; /* more may be answered: the engine cuts */
};
enum hydration_found { HYDRATION_IS, HYDRATION_IS_NOT, HYDRATION_IS_HIDDEN /* from this caller */ };
struct hydration_entity {
    enum hydration_found found;
    struct buf *data; /* the source appends the whole object */
    int64_t
        version; /* ascends with every change of this entity, its end included; IS_NOT: 0 where that is not known */
    bool is_private;  /* only some callers of the tenant may see it */
    struct str owner; /* is_private: the only one who may, where the source can name them (arena) */
    struct arena *arena;
};
struct hydration_source {
    const char *entity_type, *module;
    /* On a worker, may block till the deadline. A failure is no answer: nobody is told anything. */
    enum status (*look)(void *context, const struct hydration_question *question, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error);
    void *context; /* until the module's destroy() */
};
/* In a module's start(). The row is copied, its texts are borrowed. */
void hydration_provide(struct hydration *hydration, const struct hydration_source *source);
/* On a thread that may block, in the handler of the source's own events: says entity/updated (with all of it), or
 * entity/not-found where it is gone. When it returns OK the bus has it for good. */
enum status hydration_tell(struct hydration *hydration, const char *entity_type, struct str tenant,
                           struct str entity_id, int64_t deadline_ns, struct error *error) MUST_CHECK;
struct hydration_subject {
    struct str tenant, entity_id;
};
/* held[i]: does some consumer hold it: has a copy of it, has asked for it, or takes it for absent? Over NATS all are: what
 * consumers outside of freshet hold is not known. */
enum status hydration_find_held(struct hydration *hydration, const char *entity_type,
                                const struct hydration_subject *subjects, size_t count, int64_t deadline_ns,
                                bool *held, struct error *error) MUST_CHECK;
/* Every entity of that type and tenant that is held and whose id has this prefix, in the arena: where a source does not know
 * which entities changed. */
enum status hydration_list_held(struct hydration *hydration, const char *entity_type, struct str tenant,
                                struct str id_prefix, int64_t deadline_ns, struct arena *arena,
                                struct hydration_subject **subjects, size_t *count,
                                struct error *error) MUST_CHECK;
/* The longest time that an entity is held after the last question for it or the last change that was published. */
int64_t hydration_held_ms(const struct hydration *hydration);
/* Follows a topic of the source's own events on the bus of events, by a shared group "entity-TYPE": `read` says what a
 * message is about. In a module's subscribe(). */
typedef bool hydration_read_fn(void *context, const void *bus_message, struct arena *arena,
                               struct hydration_subject *subject); /* false: about no entity of ours */
enum status hydration_follow(struct hydration *hydration, struct bus *events, const char *topic,
                             const char *entity_type, hydration_read_fn *read, void *context,
                             struct error *error) MUST_CHECK;

/* ---- life: the kernel's (src/kernel/hydration.c) ---- */
struct hydration_settings { /* section `hydration`: the route's own policy, and what is the process's */
    struct hydration_policy policy;
    int64_t copy_ttl_ms;                  /* a copy nobody told us anything about is asked for anew */
    int64_t memory_entries, memory_bytes; /* of all loops together */
    int64_t negative_rows_max, copy_rows_max, flight_rows_max; /* of the tables */
    struct setting_strings required;                           /* entity types that must have a source */
    struct setting_strings outside;                            /* entity types that modules outside provide */
    struct setting_place required_place, outside_place;
};
extern const struct setting_row hydration_setting_rows[];
extern struct metric_family *const hydration_metrics[];  /* NULL-terminated */
extern const struct db_migration hydration_migrations[]; /* sql/hydration; module "hydration" */

struct hydration_config {
    struct loop_group *loops;
    struct worker_pool *workers; /* of the store: what blocks */
    struct db_pool *pool;        /* the store's */
    const struct hydration_settings *settings;
    bool is_plain; /* the bus of events is NATS: plain subjects */
};
struct hydration *hydration_create(const struct hydration_config *config);
/* Home loop, before bus_start(): subscribes and listens. `consumes`: somebody here asks; else only answers are given. */
enum status hydration_open(struct hydration *hydration, struct bus *events, bool consumes,
                           struct error *error) MUST_CHECK;
void hydration_stop(struct hydration *hydration); /* loops run: waiters are told UNAVAILABLE, asking ends */
void hydration_destroy(struct hydration *hydration); /* loops have ended; NULL is fine */

#endif
