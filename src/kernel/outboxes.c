/* Outbox engines on the store. Whoever has one says only which table and what becomes of its events: where it works, when it
 * starts and how it ends is the same for all. */
#include <stdlib.h>

#include "base/memory.h"
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"
#include "outbox/outbox.h"

struct kernel_outbox {
    struct kernel_outbox *next;
    struct outbox *engine;
};

enum status kernel_outbox_create(struct kernel *kernel, const struct outbox_config *config,
                                 struct outbox **outbox, struct error *error)
{
    struct kernel_store *store = kernel->store;
    struct outbox_config whole = *config;
    whole.loop = store->home;
    whole.workers = store->workers;
    whole.target = &store->target;
    enum status status = outbox_create(&whole, outbox, error);
    if (status != STATUS_OK)
        return status;
    struct kernel_outbox *entry = memory_zalloc(sizeof *entry);
    *entry = (struct kernel_outbox){.next = store->outboxes, .engine = *outbox};
    store->outboxes = entry;
    return STATUS_OK;
}

void kernel_outboxes_start(struct kernel_store *store)
{
    for (const struct kernel_outbox *at = store->outboxes; at; at = at->next)
        outbox_start(at->engine);
}

void kernel_outboxes_stop(struct kernel_store *store)
{
    for (const struct kernel_outbox *at = store->outboxes; at; at = at->next)
        outbox_stop(at->engine, kernel_stop_grace_ms(store->kernel));
}

void kernel_outboxes_destroy(struct kernel_store *store)
{
    while (store->outboxes) {
        struct kernel_outbox *entry = store->outboxes;
        store->outboxes = entry->next;
        outbox_destroy(entry->engine);
        free(entry);
    }
}
