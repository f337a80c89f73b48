/* The flow: what carries the changes of one database, and what each role of this process does with them.
 *
 *     POST ─ command ─ update_request + message ─ topic refdata.commands ─ apply ─ data, version, status, outbox
 *          ─ relay ─ topic refdata.invalidations ─ query: load, swap
 *
 * One per database, since the embedded bus lives in it. Made with the database, started on the home loop when the sweep finds the
 * schema in place, stopped by the main thread. What each role runs is a part (struct kernel_part, kernel/site.h) of the table in
 * flow.c; the pointer of a role that does not run here is NULL. */
#ifndef FRESHET_REFDATA_FLOW_H
#define FRESHET_REFDATA_FLOW_H

#include "bus/bus.h"
#include "modules/refdata/buses.h"
#include "modules/refdata/refdata.h"
#include "modules/refdata/update.h"

/* A body at its largest, with what the server adds to it. */
#define REFDATA_MESSAGE_BYTES_MAX (1032u << 20)
/* On a command whose sender waits for its decision: apply then sends a notice of it to every process. */
#define REFDATA_HEADER_WAITED "waited"

struct refdata_flow {
    struct refdata_flow *next; /* of refdata->flows, the home loop's */
    struct refdata *refdata;
    struct refdata_database *database; /* referenced */
    struct refdata_catalog
        *catalog; /* referenced: the last that names its database; refdata_flow_catalog() */
    struct refdata_buses buses;
    struct refdata_sweep *sweep;
    bool is_closing; /* the home loop's: its database is not in the catalog any more, or the process stops */
    bool started;    /* also when it failed: then the sweep is left */
    struct outbox *commands; /* commands.h: NULL where PostgreSQL carries them, or none is accepted */
    struct refdata_committer *committer; /* command/: makes commits of POSTs */
    struct task *changes;                /* command/: publishes changed items for hydration */
    struct refdata_decisions
        *decisions;              /* command/: clients that wait for them, and notices between processes */
    struct refdata_apply *apply; /* apply/ */
    struct outbox *relay; /* relay/: this, where the role runs, or a notifier that wakes it elsewhere */
    struct outbox_notifier *relay_notifier;
    struct refdata_adapter *adapter;             /* adapter/ */
    struct refdata_invalidations *invalidations; /* query/: receives new versions */
};

/* ---- flow.c ---- */
/* On the home loop, or before the loops run: the flows of the catalog's databases go by it from now on. Those that have
 * none yet get one, started where the schema is known to be in place. */
void refdata_flows_open(struct refdata *refdata, struct refdata_catalog *catalog);
/* On the home loop: the schema is in place. Does nothing the second time. */
void refdata_flow_start_of(struct refdata *refdata, struct refdata_database *database);
/* Main thread, loops running: ends those whose database is not in `catalog` (NULL = all). */
void refdata_flows_close(struct refdata *refdata, const struct refdata_catalog *catalog);
void refdata_flows_clear(struct refdata *refdata); /* loops have ended: frees */
/* Any thread: what is defined for the updates that this flow carries, to its end, also when a reload has put another
 * database in the place of its own. To be given back by refdata_catalog_unref(). */
struct refdata_catalog *refdata_flow_catalog(const struct refdata_flow *flow);
/* On a loop: the flow of a database, or NULL while it is not started. Valid until the callback returns. */
struct refdata_flow *refdata_flow_of(const struct refdata_database *database);

/* Any thread, after the commit: these updates are decided. Releases the waiters here and in other processes, has the
 * pod's caches reloaded, wakes the relay. `waited[i]` (NULL = all false): a client of another process may wait. */
void refdata_flow_decided(struct refdata_flow *flow, const struct refdata_outcome *outcomes,
                          const bool *waited, size_t count);

/* ---- parts: what each role runs on a database ---- */
extern const struct kernel_part refdata_decisions_part, refdata_apply_part, refdata_relay_part,
    refdata_invalidations_part, refdata_commands_part, refdata_committer_part, refdata_changes_part,
    refdata_adapter_part;

void refdata_decisions_made(struct refdata_decisions *decisions, const struct refdata_outcome *outcomes,
                            const bool *waited, size_t count); /* any thread */
/* The notice of a commit to other processes, for a caller that sends it itself. */
#define REFDATA_DECISIONS_CHANNEL "freshet_refdata_decided"
void refdata_decisions_put_committed(struct buf *out, struct str tenant, struct str event_id,
                                     int64_t version);
/* Any thread, after the commit: an item of a hydrated dictionary changed. Wakes whichever process publishes it. */
void refdata_decisions_changed_items(struct refdata_decisions *decisions);
bool refdata_adapter_reads(const struct refdata_adapter *adapter); /* any loop: has it a source here? */
bool refdata_adapter_is_up(const struct refdata_adapter *adapter); /* any loop: does its Kafka answer? */
/* What refdata's outboxes have in common. */
#define REFDATA_OUTBOX_COLUMNS                                                                               \
    .module = "refdata", .id = {"id", "bigint"}, .sequence = "id", .payload = "e.payload",                   \
    .aggregate = {{"tenant_id", "text"}, {"dict_code", "text"}}, .published = "published",                   \
    .failed_at = "failed_at", .published_at = "published_at", .created_at = "created_at",                    \
    .attempts = "attempt_count", .claims = "claim_count", .outages = "outage_count", .claim_id = "claim_id", \
    .locked_by = "locked_by", .locked_until = "locked_until", .next_attempt_at = "next_attempt_at",          \
    .last_error = "last_error"
extern const struct outbox_table refdata_outbox_table; /* relay/; for `freshet outbox` too */
void refdata_relay_wake(struct refdata_flow *flow);    /* any thread: something was committed here */
void refdata_invalidations_hint(struct refdata_invalidations *invalidations, struct str tenant,
                                struct str code, int64_t version,
                                const struct uuid *event); /* any thread: committed; event NULL = not known */

#endif
