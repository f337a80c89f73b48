/* Commands on their way from the transaction that accepts them to the topic refdata.commands (R11): none is lost between the
 * two. Where PostgreSQL carries the commands they are published in that transaction; where Kafka does, they are rows of
 * refdata.command_outbox in it, published at once when it has committed, and what a crash left behind is published later, by
 * whichever process runs the role command or adapter. */
#ifndef FRESHET_REFDATA_COMMANDS_H
#define FRESHET_REFDATA_COMMANDS_H

#include "modules/refdata/flow.h"

/* Any thread that may block. Messages as for bus_publish(): topic REFDATA_COMMANDS, key tenant:dict. */
enum status refdata_commands_put(struct refdata_flow *flow, struct db_conn *conn,
                                 struct bus_message *messages, size_t count, int64_t deadline_ns,
                                 struct error *error) MUST_CHECK;
/* Any thread, after that commit. Never blocks. */
void refdata_commands_wake(struct refdata_flow *flow);

#endif
