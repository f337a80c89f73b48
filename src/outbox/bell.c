/* The bell: tells engines of other processes that a table has news, by the notifier and never inside the
 * transaction that wrote them (NOTIFY there makes commits queue up). A lost notice costs one poll
 * interval. */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "outbox/outbox_inside.h"

enum { WINDOW_US = 1000 };

struct outbox_bell {
    struct db_notifier *notifier;
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

struct outbox_bell *outbox_bell_create(const struct outbox_table *table, struct loop *loop,
                                       const struct db_target *target)
{
    struct db_notifier *notifier = db_notifier_create(loop, target, WINDOW_US);
    if (!notifier)
        return NULL;
    struct outbox_bell *bell = memory_zalloc(sizeof *bell);
    bell->notifier = notifier;
    outbox_channel(table, bell->channel);
    return bell;
}

void outbox_bell_ring(struct outbox_bell *bell)
{
    db_notify(bell->notifier, str_from(bell->channel), STR(""));
}

void outbox_bell_destroy(struct outbox_bell *bell)
{
    if (!bell)
        return;
    db_notifier_destroy(bell->notifier);
    free(bell);
}
