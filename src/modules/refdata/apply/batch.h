/* What the files of apply share: a batch of commands on its way through one transaction.
 *
 *   apply.c      the way itself: read, decide one by one, write
 *   batch.c      what has to be known first, in one round trip: locks, versions, events that are there already, snapshots in
 *                assembly
 *   snapshots.c  chunks, until they are a snapshot
 *   expected.c   instead of that: the state in which this process left the row of a pair; refdata.expect_pair()
 *   record.c     what is written of each decision: version, status, outbox; refdata.apply_one()
 *   handler.c    the bus's side          upkeep.c   what expires, what is forgotten */
#ifndef FRESHET_REFDATA_APPLY_BATCH_H
#define FRESHET_REFDATA_APPLY_BATCH_H

#include "base/map.h"
#include "loop/task.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/apply/apply.h"
#include "modules/refdata/provider.h"

struct revision { /* sourceRevision, where there is one */
    bool given;
    int64_t value;
};

struct pair {
    struct map_node node; /* of the pairs, by tenant and code */
    struct str tenant, code;
    const struct refdata_dictionary *dictionary; /* the catalog's */
    int64_t version, locked_version;             /* as the commands so far leave it; as it was found */
    struct str event, locked_event;              /* which event made that version */
    struct revision revision, locked_revision;
    bool assembling;  /* a snapshot of it is: deltas are recorded */
    bool is_hydrated; /* some consumer asked for an item of it: changes are published for hydration */
};

/* A snapshot that comes in chunks. */
struct assembly {
    struct pair *pair;
    struct str id;
    struct refdata_state state; /* of the updates that brought its chunks, but for their event ids */
    int32_t chunks_total, received;
    struct revision revision, floor; /* of its chunks; what it must not undo */
    int64_t begun_version, occurred_ms;
    bool touched;                   /* to be written: a chunk came */
    struct refdata_command *ending; /* the command that decided it now */
};

/* What the batch knows of a command beside itself. */
struct entry {
    struct map_node node;      /* of the events, by their id */
    struct pair *pair;         /* NULL = refused before anything was looked at */
    struct assembly *assembly; /* of a chunk */
    struct str chunk_hash;     /* of the chunk that was there before; no ptr = none */
    bool duplicate;            /* the event was processed before, or stands earlier in this batch */
    size_t first;              /* there; itself otherwise */
    bool staged;               /* a chunk of its assembly since this batch */
    bool published;            /* has a version of its own: a row for the outbox */
    int64_t version;
    struct str previous_event;  /* which event made the version before */
    struct refdata_item *items; /* each key once */
    size_t item_count;
};

struct batch {
    struct refdata_database *database;
    struct refdata_catalog *catalog;
    struct db_conn *conn;
    struct arena *arena;
    struct refdata_command *commands;
    struct entry *entries;
    size_t count;
    unsigned flags;
    int64_t deadline_ns;
    struct pair **pairs; /* sorted */
    size_t pair_count;
    struct assembly **assemblies;
    size_t assembly_count;
    struct refdata_write *deltas; /* decided, not yet on their way */
    size_t delta_count;
    struct refdata_writer writer;
    bool is_expected; /* its only pair was not read: `locked_version` and so on are the expected state */
    bool is_quiet;    /* its only pair is, or is expected to be, as this process left it */
};

/* Longest time for the statements that write a whole snapshot. */
#define SNAPSHOT_TIMEOUT_MS (10 * 60 * 1000)

/* ---- batch.c ---- */
void refdata_batch_open(struct batch *batch); /* which pairs; refuses what no dictionary takes */
enum status refdata_batch_read(struct batch *batch, struct error *error) MUST_CHECK;
void refdata_command_fail(struct refdata_command *command, enum status failure, const char *format, ...)
    PRINTF_LIKE(3, 4);
struct revision refdata_revision_at(const struct db_result *rows, size_t row, unsigned column);
struct db_param refdata_revision_param(struct revision revision);
bool refdata_revision_is_stale(struct revision revision, struct revision than);
void refdata_revision_raise(struct revision *revision, struct revision by);

static inline bool refdata_batch_is_chunk(const struct batch *batch, size_t at)
{
    return batch->entries[at].pair && refdata_update_is_chunk(&batch->commands[at].update);
}

/* ---- expected.c: of a batch of one pair ---- */
bool refdata_expected_take(struct batch *batch); /* in place of refdata_batch_read(), if it returns true; */
void refdata_expected_ask(struct batch *batch);  /* then this is the first statement, unless apply_one() is */
void refdata_expected_found(struct batch *batch); /* after refdata_batch_read() */
void refdata_expected_note(struct batch *batch);  /* all is decided and written */

/* ---- apply.c ---- */
/* Writes the deltas decided so far; what follows may take long. */
void refdata_batch_before_snapshot(struct batch *batch);
void refdata_batch_next_version(struct batch *batch, struct entry *entry);
enum apply_result {
    APPLY_COMMITTED,
    APPLY_FAILED,
    APPLY_STAGED,
    APPLY_DUPLICATE,
    APPLY_UNREADABLE,
    APPLY_RESULTS /* of them; as a result: not counted */
};
void refdata_apply_count(enum apply_result result);

/* ---- snapshots.c ---- */
/* One row of the question for assemblies: what is known of the snapshot a chunk belongs to. */
void refdata_assembly_found(struct batch *batch, size_t at, const struct db_result *rows, size_t row);
void refdata_assembly_decide(struct batch *batch, size_t at);
/* A snapshot with this revision was committed: those in assembly may not undo it. */
void refdata_assembly_raise_floors(struct batch *batch, const struct pair *pair, struct revision revision);
void refdata_assembly_record_delta(struct batch *batch, const struct refdata_write *change);
void refdata_assembly_write(struct batch *batch);

/* The end of a snapshot, committed or failed: its data goes, its updates get its status. `outcomes` (in the writer's arena): the
 * updates this decided. */
void refdata_assembly_end(const struct assembly *assembly, struct refdata_writer *writer,
                          struct refdata_outcome **outcomes, size_t *count);

/* ---- record.c ---- */
/* Adds what is left to be written, and waits for all of it, or leaves it to the commit. */
enum status refdata_batch_record(struct batch *batch, struct error *error) MUST_CHECK;
/* Is it what refdata.apply_one() writes: one update of one item of the built-in table, of a pair in its expected state? Then that is
 * its only statement, which is left to the commit. */
bool refdata_batch_is_one(const struct batch *batch);
enum status refdata_batch_record_one(struct batch *batch, struct error *error) MUST_CHECK;

/* ---- upkeep.c ---- */
task_run_fn refdata_upkeep_step; /* its context is the database */
int64_t refdata_upkeep_interval_ns(const struct refdata_catalog *catalog);

/* ---- audit.c ---- */
void refdata_audit_add(struct refdata_database *database); /* the task; in create() of the part */
void refdata_audit_metrics_register(void);

#endif
