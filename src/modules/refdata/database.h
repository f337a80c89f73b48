/* One PostgreSQL that dictionaries live in, and what each role of this process does with the changes of its data:
 *
 *     POST ─ command ─ update_request + message ─ topic refdata.commands ─ apply ─ data, version, status, outbox
 *          ─ relay ─ topic refdata.invalidations ─ query: load, swap
 *
 * A site (kernel/site.h), shared by the catalogs that name it, so that a reload of the configuration keeps its connections. It is
 * opened with the first of them, runs from when the sweep finds the schema in place, on the home loop, and is closed by the main
 * thread when a catalog no longer names it. What each role runs is a part (struct kernel_part) of the table in database.c; the
 * pointer of a role that does not run here is NULL. */
#ifndef FRESHET_REFDATA_DATABASE_H
#define FRESHET_REFDATA_DATABASE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernel/kernel.h"
#include "kernel/site.h"
#include "modules/refdata/buses.h"
#include "modules/refdata/update.h"

extern const struct db_migration refdata_migrations[];
extern const char refdata_grants[];

struct refdata;
struct refdata_catalog;

/* A body at its largest, with what the server adds to it. */
#define REFDATA_MESSAGE_BYTES_MAX (1032u << 20)
/* On a command that was accepted, so that it has its row of update_request. "1": its sender waits for the decision, and apply sends a
 * notice of it to every process. Commands without this header may have been published by others. */
#define REFDATA_HEADER_WAITED "waited"

/* Pairs whose dictionary_meta row this process has just set as hydrated (command/owner.c). One that loses its place to another is
 * set again. */
enum { REFDATA_HYDRATED_PAIRS = 256 };
struct refdata_hydrated {
    pthread_mutex_t lock;
    struct refdata_hydrated_pair {
        struct hash128 pair;
        int64_t until_ns;
    } at[REFDATA_HYDRATED_PAIRS];
};

/* apply/expected.c: the last state of some pairs, each in the slot of its hash. */
enum { REFDATA_EXPECTED_SLOTS = 64 };
struct refdata_left {
    char tenant[65], code[65], event_id[UUID_TEXT_BYTES];
    int64_t version, revision;
    bool has_revision, is_quiet;
};
struct refdata_expected {
    pthread_mutex_t lock;
    struct refdata_left slots[REFDATA_EXPECTED_SLOTS];
};

struct refdata_database {
    atomic_uint refs;
    struct kernel_site site;
    struct str name;
    uint64_t fingerprint; /* of its settings: the same block is kept over a reload */
    struct refdata_hydrated hydrated;

    struct refdata *refdata;         /* NULL until it is opened */
    struct refdata_catalog *catalog; /* referenced: the last that names it; refdata_database_catalog() */
    struct refdata_buses buses;
    struct refdata_sweep *sweep;
    bool is_started;         /* the home loop's; also when that failed: then the sweep is left */
    bool is_closing;         /* the home loop's: it is not in the catalog any more, or the process stops */
    struct outbox *commands; /* commands.h: NULL where PostgreSQL carries them, or none is accepted */
    struct refdata_committer *committer; /* command/: makes commits of POSTs */
    struct refdata_changes *changes;     /* command/: publishes changed items for hydration */
    struct refdata_decisions
        *decisions; /* command/: clients that wait for them, and notices between processes */
    bool applies;   /* apply/: the role runs here */
    struct refdata_expected expected;
    bool is_upkeep_failing; /* the task's: logged once */
    struct outbox *relay;   /* relay.c: this, where the role runs, or a notifier that wakes it elsewhere */
    struct db_notifier *relay_notifier;
    struct refdata_adapter *adapter;             /* adapter/: NULL also where no source writes to it */
    struct refdata_invalidations *invalidations; /* query/: receives new versions */
};

/* Without a kernel (NULL) nothing runs on it. */
enum status refdata_database_create(const struct kernel_postgres *settings, struct kernel *kernel,
                                    struct refdata_database **database, struct error *error) MUST_CHECK;
uint64_t refdata_database_fingerprint(const struct kernel_postgres *settings);
struct refdata_database *refdata_database_ref(struct refdata_database *database);
void refdata_database_unref(struct refdata_database *database);
/* On a worker: as kernel_site_prepare(). */
enum status refdata_database_prepare(struct refdata_database *database, int64_t deadline_ns,
                                     struct error *error) MUST_CHECK;

/* On the home loop, or before the loops run: the catalog's databases go by it from now on. Those that are new are opened, and
 * started where the schema is known to be in place. */
void refdata_databases_open(struct refdata *refdata, struct refdata_catalog *catalog);
/* On the home loop: the schema is in place. Does nothing the second time. */
void refdata_database_start(struct refdata_database *database);
/* Main thread, loops running: ends those of `catalog` that `next` does not name (NULL: the process stops). */
void refdata_databases_close(struct refdata *refdata, const struct refdata_catalog *catalog,
                             const struct refdata_catalog *next);
void refdata_databases_free(struct refdata *refdata); /* loops have ended: what the parts hold */

/* On a loop: do its parts run? Then they do until the callback returns. */
static inline bool refdata_database_runs(const struct refdata_database *database)
{
    return atomic_load(&database->site.is_running);
}

/* Any thread: what is defined for the updates that it carries, to its end, also when a reload has put another database in its
 * place. To be given back by refdata_catalog_unref(). */
struct refdata_catalog *refdata_database_catalog(const struct refdata_database *database);
/* Any thread, after the commit: these updates are decided. Releases the waiters here and in other processes, has the
 * pod's caches reloaded, wakes the relay. `waited[i]` (NULL = all false): a client of another process may wait. */
void refdata_database_decided(struct refdata_database *database, const struct refdata_outcome *outcomes,
                              const bool *waited, size_t count);

/* ---- parts: what each role runs on a database ---- */
extern const struct kernel_part refdata_decisions_part, refdata_apply_part, refdata_relay_part,
    refdata_invalidations_part, refdata_commands_part, refdata_committer_part, refdata_changes_part,
    refdata_adapter_part;

void refdata_decisions_made(struct refdata_decisions *decisions, const struct refdata_outcome *outcomes,
                            const bool *waited, size_t count); /* any thread */
/* The notice of a commit to other processes, for a caller that sends it itself. */
#define REFDATA_DECISIONS_CHANNEL "freshet_refdata_decided"
void refdata_decisions_put_committed(struct buf *out, const struct refdata_outcome *outcome);
/* Any thread, after the commit: an item of a hydrated dictionary changed. Wakes whichever process publishes it. */
void refdata_decisions_notify_changed_items(struct refdata_decisions *decisions);
bool refdata_adapter_is_up(const struct refdata_adapter *adapter); /* any loop: does its Kafka answer? */
/* What refdata's outboxes have in common. */
#define REFDATA_OUTBOX_COLUMNS                                                                               \
    .module = "refdata", .id = {"id", "bigint"}, .sequence = "id", .payload = "e.payload",                   \
    .turn = "tenant_id", .tenant = "e.tenant_id",                                                            \
    .aggregate = {{"tenant_id", "text"}, {"dict_code", "text"}}, .published = "published",                   \
    .failed_at = "failed_at", .published_at = "published_at", .created_at = "created_at",                    \
    .attempts = "attempt_count", .claims = "claim_count", .outages = "outage_count", .claim_id = "claim_id", \
    .locked_by = "locked_by", .locked_until = "locked_until", .next_attempt_at = "next_attempt_at",          \
    .last_error = "last_error"
struct books;
struct trial;
enum status refdata_books(struct books *books, struct db_conn *conn,
                          struct error *error) MUST_CHECK; /* books.c */
enum status refdata_try_sql(struct trial *trial, struct db_conn *conn,
                            struct error *error) MUST_CHECK; /* trial.c */
extern const struct outbox_table refdata_outbox_table;       /* relay.c; for `freshet outbox` too */
void refdata_relay_wake(struct refdata_database *database);  /* any thread: something was committed here */
void refdata_relay_enqueued(size_t count);                   /* any thread: so many versions were */
/* Any thread: may a commit that makes versions publish them itself? Where this process has the role, and PostgreSQL carries
 * invalidations. After the commit: they are counted, and the readers in other processes woken; this one's has a hint. */
bool refdata_relay_publishes_in_commits(const struct refdata_database *database);
void refdata_relay_published(struct refdata_database *database, size_t count);
void refdata_invalidations_hint(struct refdata_invalidations *invalidations, struct str tenant,
                                struct str code, int64_t version, const struct uuid *event,
                                struct str traceparent); /* any thread: committed; event NULL = not known */

#endif
