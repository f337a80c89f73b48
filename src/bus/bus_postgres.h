/* The PostgreSQL driver: topics are tables (sql/platform/001_bus.sql). No engine besides the database is needed, positions commit
 * together with what handlers write, and publishing can share the caller's transaction. */
#ifndef FRESHET_BUS_BUS_POSTGRES_H
#define FRESHET_BUS_BUS_POSTGRES_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

extern const struct db_migration platform_migrations[]; /* sql/platform; module "platform" */
extern const char platform_grants[];

struct bus_postgres_config {
    struct loop *loop;           /* timers and notices */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    /* The bus opens connections of its own: connections_max, two of them for publishing and upkeep and the
     * others for as many handlers at once (at least one), and two more for notices. */
    const struct db_target *target;
    const struct bus_topic *topics;
    size_t topic_count;
    int64_t poll_ms;          /* finds messages whose notice was lost; 0 = 1 s */
    int64_t notice_window_us; /* 0 = 1 ms */
    int64_t handler_ms;       /* batch->deadline_ns, and how long a transaction may lie idle; 0 = 30 s */
    int64_t maintenance_ms;   /* lag and retention; 0 = 5 s */
    int64_t keep_dead_ms;     /* dead letters; 0 = 30 days */
    size_t message_bytes_max; /* key, headers and payload together; 0 = 4 MiB */
    unsigned retention_batch; /* rows deleted at once; 0 = 1,000 */
};

/* Opens nothing yet. CONFIG when a topic or the target is invalid. */
enum status bus_postgres_create(const struct bus_postgres_config *config, struct bus **bus,
                                struct error *error) MUST_CHECK;

/* ---- publishing in the caller's transaction ----
 * For any bus; on other drivers NOT_IMPLEMENTED. */

/* Are bus_publish_and_commit() and bus_direct_ask() possible? Not before the topic's partitions are checked. */
bool bus_shares_commits(const struct bus *bus, struct str topic);

/* Published if and when the transaction commits. The partitions' rows stay locked until then, so call it late. Call bus_wake() after
 * the commit: otherwise the messages are found by polling only. */
enum status bus_publish_in_tx(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                              size_t count, int64_t deadline_ns, struct error *error) MUST_CHECK;
/* Publishes messages of one topic, commits and wakes the consumers, in one round trip with what the caller has left in its pipeline.
 * `is_urgent`: there is one message, and a client waits for its effect. Fails as a commit does. */
enum status bus_publish_and_commit(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                                   size_t count, bool is_urgent, int64_t deadline_ns,
                                   struct error *error) MUST_CHECK;

/* After the commit of a caller whose own SQL has appended messages to the topic: counts them, and wakes the consumers of other
 * processes. Those of this one, to which the caller has nothing new to say, read them with the next wake or poll. */
void bus_appended(struct bus *bus, struct str topic, size_t count);

/* ---- direct handling ----
 * Instead of publishing to a shared group that this process is a member of: the caller takes the place of the group for these
 * partitions of `topic`, each named once, until the end of its transaction. The question is one statement of the caller's open
 * pipeline. Granted: nothing was queued there and no member was handling it, so the caller's work follows everything published
 * before. Not granted: publish. The caller then commits by bus_direct_commit() or rolls back.
 * `is_expected`: a caller that expects it to be granted need not wait for the answer, since the statement fails otherwise. */
enum status bus_direct_ask(struct bus *bus, struct db_conn *conn, struct str topic, const char *group,
                           const unsigned *partitions, size_t count, bool is_expected, uint64_t *wakes,
                           struct error *error) MUST_CHECK;
bool bus_direct_is_granted(const struct db_result *answer, size_t count);
/* COMMIT; wakes the group if anything was published since the question, that is, `wakes` has changed. Fails as a commit does. */
enum status bus_direct_commit(struct bus *bus, struct db_conn *conn, struct str topic, uint64_t wakes,
                              int64_t deadline_ns, struct error *error) MUST_CHECK;

/* ---- trust in notices ---- */

/* Can no role but superusers log in to the database of the bus, so that every notice was sent by a freshet process? False where that
 * is not known, and on other drivers. Any thread. */
bool bus_trusts_notices(const struct bus *bus);
/* The same, asked on any connection. */
enum status bus_postgres_look_trusted(struct db_conn *conn, int64_t deadline_ns, bool *is_trusted,
                                      struct error *error) MUST_CHECK;

#endif
