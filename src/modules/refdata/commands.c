/* Where PostgreSQL carries the commands, the way onto the topic is short: the bus's own rows, in the same transaction. */
#include "modules/refdata/commands.h"

enum status refdata_commands_put(struct refdata_flow *flow, struct db_conn *conn,
                                 struct bus_message *messages, size_t count, int64_t deadline_ns,
                                 struct error *error)
{
    return bus_publish_in_tx(flow->buses.commands, conn, messages, count, deadline_ns, error);
}

void refdata_commands_wake(struct refdata_flow *flow)
{
    bus_wake(flow->buses.commands, STR(REFDATA_COMMANDS));
}
