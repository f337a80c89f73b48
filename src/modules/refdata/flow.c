/* A flow's life: its database's site runs the parts below. They know nothing of each other but what goes through here. */
#include "modules/refdata/flow.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"

enum {
    /* Beside handlers of commands, all at once: the committer, changes, two of the commands' outbox and two of the relay's,
     * invalidations, rereading decisions, upkeep of the bus and of apply. */
    OWN_THREADS = 10,
    STOP_GRACE_MS = 5000,
};

static struct refdata_flow *find_flow(const struct refdata *refdata, const struct refdata_database *database)
{
    struct refdata_flow *flow = refdata->flows;
    while (flow && flow->database != database)
        flow = flow->next;
    return flow;
}

/* What accepts updates stops first, what delivers decisions stops last. */
static const struct kernel_part *const flow_parts[] = {
    &refdata_decisions_part,     &refdata_apply_part,    &refdata_relay_part,
    &refdata_invalidations_part, &refdata_commands_part, &refdata_changes_part,
    &refdata_committer_part,     &refdata_adapter_part,  NULL};

static void start_flow(struct refdata_flow *flow)
{
    const struct refdata *refdata = flow->refdata;
    const struct kernel_bus_settings *bus = kernel_bus(refdata->kernel);
    struct kernel_site *site = &flow->database->site;
    struct error error = {0};
    int64_t handlers = bus->commands == KERNEL_KAFKA ? refdata->first->kafka.handlers : bus->handlers;
    flow->started = true;
    site->workers = worker_pool_create("flow", (unsigned)handlers + OWN_THREADS, SIZE_MAX);
    enum status status = refdata_buses_open(flow, &error);
    if (status == STATUS_OK)
        status = kernel_site_run(site, flow_parts, flow, &error);
    if (status == STATUS_OK) {
        atomic_store(&flow->database->flow, flow);
    } else { /* the sweep is left, and what is in memory */
        log_error("flow_not_started", LOG_STR("database", flow->database->name), LOG_ERROR_FIELDS(&error));
        kernel_site_close(site);
    }
}

void refdata_flow_start_of(struct refdata *refdata, struct refdata_database *database)
{
    struct refdata_flow *flow = find_flow(refdata, database);
    if (flow && !flow->started && !refdata->stopping)
        start_flow(flow);
}

static struct refdata_flow *add(struct refdata *refdata, struct refdata_database *database)
{
    struct refdata_flow *flow = memory_zalloc(sizeof *flow);
    flow->refdata = refdata;
    flow->database = refdata_database_ref(database);
    flow->next = refdata->flows;
    return refdata->flows = flow;
}

static void adopt(struct refdata_flow *flow, struct refdata_catalog *catalog)
{
    struct refdata_catalog *before = flow->catalog;
    atomic_fetch_add(&catalog->refs, 1);
    pthread_mutex_lock(&flow->refdata->catalog_lock);
    flow->catalog = catalog;
    pthread_mutex_unlock(&flow->refdata->catalog_lock);
    if (before)
        refdata_catalog_unref(before);
}

void refdata_flows_open(struct refdata *refdata, struct refdata_catalog *catalog)
{
    for (size_t i = 0; i < catalog->database_count; i++) {
        struct refdata_database *database = catalog->databases[i];
        struct refdata_flow *flow = find_flow(refdata, database);
        bool is_new = !flow;
        if (is_new)
            flow = add(refdata, database);
        adopt(flow, catalog);
        if (is_new && atomic_load(&database->site.is_ready))
            start_flow(flow);
    }
}

struct refdata_catalog *refdata_flow_catalog(const struct refdata_flow *flow)
{
    pthread_mutex_lock(&flow->refdata->catalog_lock);
    struct refdata_catalog *catalog = flow->catalog;
    atomic_fetch_add(&catalog->refs, 1);
    pthread_mutex_unlock(&flow->refdata->catalog_lock);
    return catalog;
}

struct refdata_flow *refdata_flow_of(const struct refdata_database *database)
{
    return atomic_load(&database->flow);
}

void refdata_flow_decided(struct refdata_flow *flow, const struct refdata_outcome *outcomes,
                          const bool *waited, size_t count)
{
    bool committed = false, is_hydrated = false;
    refdata_decisions_made(flow->decisions, outcomes, waited, count);
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i].decision != REFDATA_COMMITTED)
            continue;
        committed = true;
        is_hydrated |= outcomes[i].is_hydrated;
        struct uuid event;
        bool is_known = outcomes[i].makes_version && uuid_parse(outcomes[i].event_id, &event);
        if (flow->invalidations)
            refdata_invalidations_hint(flow->invalidations, outcomes[i].tenant, outcomes[i].dict_code,
                                       outcomes[i].version, is_known ? &event : NULL);
    }
    if (committed)
        refdata_relay_wake(flow);
    if (is_hydrated)
        refdata_decisions_changed_items(flow->decisions);
}

/* ---- the end ---- */

static void destroy_flows(void *arg)
{
    for (struct refdata_flow *flow = arg, *next; flow; flow = next) {
        next = flow->next;
        kernel_site_close(&flow->database->site);
        refdata_sweep_destroy(flow->sweep);
        refdata_catalog_unref(flow->catalog);
        refdata_database_unref(flow->database);
        free(flow);
    }
}

struct closing {
    struct refdata *refdata;
    const struct refdata_catalog *catalog;
    struct refdata_flow *flows; /* taken out of the list */
};

static void take_out(void *arg)
{
    struct closing *closing = arg;
    for (struct refdata_flow **at = &closing->refdata->flows; *at;) {
        struct refdata_flow *flow = *at;
        if (refdata_catalog_names(closing->catalog, flow->database)) {
            at = &flow->next;
            continue;
        }
        *at = flow->next;
        flow->next = closing->flows;
        closing->flows = flow;
        flow->is_closing = true;
        atomic_store(&flow->database->flow, NULL);
    }
}

void refdata_flows_close(struct refdata *refdata, const struct refdata_catalog *catalog)
{
    struct closing closing = {.refdata = refdata, .catalog = catalog};
    loop_group_call(refdata->loops, take_out, &closing);
    if (!closing.flows)
        return;
    loop_group_wait(refdata->loops); /* no handler holds a flow any more */
    for (struct refdata_flow *flow = closing.flows; flow; flow = flow->next)
        kernel_site_stop_begin(&flow->database->site, STOP_GRACE_MS); /* one time for all of them */
    for (struct refdata_flow *flow = closing.flows; flow; flow = flow->next) {
        kernel_site_stop_senders(&flow->database->site);
        kernel_site_stop(&flow->database->site);
        refdata_sweep_stop(flow->sweep);
    }
    loop_group_wait(refdata->loops); /* what they posted has been handled */
    loop_group_call(refdata->loops, destroy_flows, closing.flows);
}

void refdata_flows_clear(struct refdata *refdata)
{
    destroy_flows(refdata->flows);
    refdata->flows = NULL;
}
