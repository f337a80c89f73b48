/* The embedded driver: topics are tables in PostgreSQL (sql/platform/001_bus.sql). No engine beside the
 * database is needed, and positions commit together with what handlers write. */
#ifndef FRESHET_BUS_BUS_POSTGRES_H
#define FRESHET_BUS_BUS_POSTGRES_H

#include "bus/bus.h"
#include "db/db.h"
#include "loop/worker.h"

extern const struct db_migration platform_migrations[]; /* sql/platform; module "platform" */

struct bus_postgres_config {
    struct loop *loop;           /* timers and notices */
    struct worker_pool *workers; /* handlers; stopped after bus_stop() */
    /* The bus opens connections of its own: connections_max, two of them for publishing and upkeep and the
     * others for as many handlers at once (at least one), and two more for notices. */
    const struct db_target *target;
    const struct bus_topic *topics;
    size_t topic_count;
    int64_t poll_ms;          /* the safety net behind notices; 0 = 1 s */
    int64_t notice_window_us; /* 0 = 1 ms */
    int64_t handler_ms;       /* batch->deadline_ns, and how long a transaction may lie idle; 0 = 30 s */
    int64_t maintenance_ms;   /* lag and retention; 0 = 5 s */
    int64_t keep_dead_ms;     /* dead letters; 0 = 30 days */
    size_t message_bytes_max; /* key, headers and payload together; 0 = 4 MiB */
    unsigned retention_batch; /* rows deleted at once; 0 = 1,000 */
};

/* Opens nothing yet. CONFIG when a topic or the target cannot be understood. */
enum status bus_postgres_create(const struct bus_postgres_config *config, struct bus **bus,
                                struct error *error) MUST_CHECK;

/* What bus_is_private() knows, asked on any connection. */
enum status bus_postgres_look_private(struct db_conn *conn, int64_t deadline_ns, bool *is_private,
                                      struct error *error) MUST_CHECK;

#endif
