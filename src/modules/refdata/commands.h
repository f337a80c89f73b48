/* Commands on their way from the transaction that accepts them to the topic refdata.commands (R11): none is lost between the
 * two. Where PostgreSQL carries the commands they are published in that transaction; where Kafka does, they are rows of
 * refdata.command_outbox in it, published at once when it has committed, and what a crash left is published later, by any
 * process with the role command or adapter. */
#ifndef FRESHET_REFDATA_COMMANDS_H
#define FRESHET_REFDATA_COMMANDS_H

#include "modules/refdata/refdata.h"
#include "outbox/outbox.h"

/* Any thread, before it is accepted: can a message carry it? PAYLOAD_TOO_LARGE where it can not. */
enum status refdata_commands_check(const struct refdata_database *database,
                                   const struct refdata_update *update, struct error *error) MUST_CHECK;
/* An update that was accepted, as its message needs it. */
struct refdata_accepted {
    const struct refdata_update *update;
    struct str traceparent; /* empty = none */
    bool waited;            /* a client waits for its commit */
};
/* Any thread that may block, in the open transaction that accepts them, in the order they came. */
enum status refdata_commands_put(struct refdata_database *database, struct db_conn *conn,
                                 const struct refdata_accepted *accepted, size_t count, int64_t deadline_ns,
                                 struct arena *arena, struct error *error) MUST_CHECK;
/* The same with the COMMIT, in one round trip with what was left in the pipeline, where bus_shares_commits(); consumers are woken.
 * Fails as a commit does. */
enum status refdata_commands_put_and_commit(struct refdata_database *database, struct db_conn *conn,
                                            const struct refdata_accepted *accepted, size_t count,
                                            int64_t deadline_ns, struct arena *arena,
                                            struct error *error) MUST_CHECK;
/* Any thread, after the commit of `count` commands, 0 = it is not known how many. Never blocks. */
void refdata_commands_wake(struct refdata_database *database, size_t count);

/* A message about a pair: its key keeps the pair's order. All but the payload; memory is the arena's. `waited`: the header, no ptr =
 * none. */
void refdata_message_make(struct bus_message *message, struct str topic, struct str tenant, struct str code,
                          struct str event_id, struct str waited, struct str traceparent,
                          struct arena *arena);

extern const struct outbox_table refdata_command_table; /* for `freshet outbox` */

#endif
