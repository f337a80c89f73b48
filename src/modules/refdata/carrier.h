/* What will bring an accepted update to its decision (GLOSSARY.md: carrier), for operators. Blocking; on the caller's connection. */
#ifndef FRESHET_REFDATA_CARRIER_H
#define FRESHET_REFDATA_CARRIER_H

#include "db/db.h"
#include "kernel/config.h"

/* Where the commands of a database go, by the file alone. Texts are the configuration's or in the arena. */
struct refdata_route {
    const char *topic, *group;
    bool is_on_kafka;
};
struct refdata_route refdata_route_of(const struct config *config, const char *database, struct arena *arena);

/* Undecided updates that were accepted more than $1 (bigint) seconds ago: no row, or one with their number, of which no more than
 * REFDATA_PENDING_MAX are counted, and the oldest of them. */
enum { REFDATA_PENDING_MAX = 1000 };
extern const struct db_statement refdata_pending_sql;
enum refdata_pending_column {
    PENDING_COUNT,
    PENDING_TENANT,
    PENDING_EVENT_ID,
    PENDING_DICT_CODE,
    PENDING_AGE_S
};

/* Rows, those that will decide it first: kind (message, outbox, snapshot), is it alive (t, f), where, how it stands, and the error of its
 * last attempt (null = none). One snapshot of the database: an update that is not decided has a row that is alive, or nothing
 * in this database carries it. A row of the outbox that is published is not alive: the engine has the message. */
enum refdata_carrier_column { CARRIER_KIND, CARRIER_IS_ALIVE, CARRIER_PLACE, CARRIER_STATE, CARRIER_ERROR };
enum status refdata_carriers_list(struct db_conn *conn, const struct refdata_route *route, struct str tenant,
                                  struct str event_id, int64_t deadline_ns, struct db_result **rows,
                                  struct error *error) MUST_CHECK;
/* Does a process that is up have the role apply? By the rows of processes in this database. */
#define REFDATA_APPLY_IS_RUN                                        \
    "exists (select from platform.pod p where p.stopped_at is null" \
    " and p.seen_at > clock_timestamp() - interval '15 s' and 'apply' = any (p.roles))"
enum status refdata_apply_is_run(struct db_conn *conn, int64_t deadline_ns, bool *is_run,
                                 struct error *error) MUST_CHECK;
/* Has Kafka handled the command? How many messages of its partition the group has not handled. UNAVAILABLE: Kafka does not answer. */
enum status refdata_carrier_lag(const struct config *config, const struct refdata_route *route,
                                struct str tenant, struct str code, int64_t deadline_ns, unsigned *partition,
                                int64_t *lag, struct error *error) MUST_CHECK;

#endif
