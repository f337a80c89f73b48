/* Wakes the engines of other processes after a commit. NOTIFY is never part of the writing transaction, where it would
 * serialise commits. A lost notice costs one poll interval. */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "outbox/outbox_inside.h"

enum { WINDOW_US = 1000 };

struct outbox_notifier {
    struct db_notifier *connection;
    char channel[64];
};

/* "refdata.outbox_event" → "outbox_refdata_outbox_event" */
void outbox_channel(const struct outbox_table *table, char out[64])
{
    snprintf(out, 64, "outbox_%s", table->name);
    for (char *c = out; *c; c++)
        if (*c == '.')
            *c = '_';
}

struct outbox_notifier *outbox_notifier_create(const struct outbox_table *table, struct loop *loop,
                                               const struct db_target *target)
{
    struct db_notifier *connection = db_notifier_create(loop, target, WINDOW_US);
    if (!connection)
        return NULL;
    struct outbox_notifier *notifier = memory_zalloc(sizeof *notifier);
    notifier->connection = connection;
    outbox_channel(table, notifier->channel);
    return notifier;
}

void outbox_notify(struct outbox_notifier *notifier)
{
    db_notify(notifier->connection, str_from(notifier->channel), STR(""));
}

void outbox_notifier_destroy(struct outbox_notifier *notifier)
{
    if (!notifier)
        return;
    db_notifier_destroy(notifier->connection);
    free(notifier);
}
