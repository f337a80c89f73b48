/* A flow's life. The bus is started when the schema is there and ended before what it calls; the roles' parts know
 * nothing of each other but what goes through here. */
#include "modules/refdata/flow.h"

#include <semaphore.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/commands.h"

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

static bool takes_commands(const struct refdata_flow *flow)
{
    return refdata_has_role(flow->refdata, "command") || refdata_has_role(flow->refdata, "adapter");
}

static void make_parts(struct refdata_flow *flow)
{
    const struct refdata *refdata = flow->refdata;
    flow->decisions = refdata_decisions_create(flow);
    if (refdata_has_role(refdata, "apply"))
        flow->apply = refdata_apply_create(flow);
    if (refdata_has_role(refdata, "relay") || flow->apply) /* apply has one to wake, here or elsewhere */
        flow->relay = refdata_relay_create(flow);
    if (refdata_has_role(refdata, "query"))
        flow->invalidations = refdata_invalidations_create(flow);
    if (takes_commands(flow) && kernel_bus(refdata->kernel)->commands == KERNEL_KAFKA)
        flow->commands = refdata_commands_create(flow);
    if (refdata_has_role(refdata, "command")) {
        flow->committer = refdata_committer_create(flow);
        flow->changes = refdata_changes_create(flow);
    }
    if (refdata_has_role(refdata, "adapter"))
        flow->adapter = refdata_adapter_create(flow);
}

static unsigned handlers_of(const struct refdata *refdata)
{
    const struct kernel_bus_settings *bus = kernel_bus(refdata->kernel);
    return (unsigned)(bus->commands == KERNEL_KAFKA ? refdata->first->kafka.handlers : bus->handlers);
}

static void start(struct refdata_flow *flow)
{
    struct refdata *refdata = flow->refdata;
    struct error error = {0};
    flow->started = true;
    flow->workers = worker_pool_create("flow", handlers_of(refdata) + OWN_THREADS, SIZE_MAX);
    if (refdata_buses_open(flow, &error) != STATUS_OK) { /* the sweep is left, and what is in memory */
        log_error("flow_not_started", LOG_STR("database", flow->database->name), LOG_ERROR_FIELDS(&error));
        worker_pool_stop(flow->workers);
        worker_pool_destroy(flow->workers);
        return;
    }
    make_parts(flow);
    refdata_buses_start(&flow->buses);
    if (flow->commands)
        refdata_commands_start(flow->commands);
    if (flow->apply)
        refdata_apply_start(flow->apply);
    if (flow->relay)
        refdata_relay_start(flow->relay);
    if (flow->adapter)
        refdata_adapter_start(flow->adapter);
    if (flow->changes)
        refdata_changes_start(flow->changes);
    atomic_store(&flow->database->flow, flow);
}

void refdata_flow_start_of(struct refdata *refdata, struct refdata_database *database)
{
    struct refdata_flow *flow = find_flow(refdata, database);
    if (flow && !flow->started && !refdata->stopping)
        start(flow);
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
            start(flow);
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
    if (committed && flow->relay)
        refdata_relay_wake(flow->relay);
    if (is_hydrated)
        refdata_decisions_changed_items(flow->decisions);
}

/* ---- the end ---- */

static void post(void *arg)
{
    sem_post(arg);
}

static void wait_for_loops(struct refdata *refdata)
{
    sem_t passed;
    sem_init(&passed, 0, 0);
    loop_group_synchronize(refdata->loops, post, &passed);
    while (sem_wait(&passed) != 0)
        ; /* interrupted by a signal */
    sem_destroy(&passed);
}

/* What accepts updates stops first, what delivers decisions stops last. */
static void stop_flow(struct refdata_flow *flow)
{
    if (flow->adapter)
        refdata_adapter_stop(flow->adapter);
    if (flow->committer)
        refdata_committer_stop(flow->committer);
    if (flow->commands)
        refdata_commands_stop(flow->commands);
    if (flow->relay)
        refdata_relay_stop(flow->relay);
    if (flow->changes)
        refdata_changes_stop(flow->changes);
    refdata_buses_stop(&flow->buses, STOP_GRACE_MS);
    if (flow->apply)
        refdata_apply_stop(flow->apply);
    refdata_decisions_stop(flow->decisions);
    worker_pool_stop(flow->workers);
}

static void destroy_flow(struct refdata_flow *flow)
{
    if (flow->decisions) { /* it was started */
        if (flow->adapter)
            refdata_adapter_destroy(flow->adapter);
        if (flow->committer)
            refdata_committer_destroy(flow->committer);
        if (flow->changes)
            refdata_changes_destroy(flow->changes);
        if (flow->commands)
            refdata_commands_destroy(flow->commands);
        if (flow->invalidations)
            refdata_invalidations_destroy(flow->invalidations);
        if (flow->relay)
            refdata_relay_destroy(flow->relay);
        if (flow->apply)
            refdata_apply_destroy(flow->apply);
        refdata_decisions_destroy(flow->decisions);
        refdata_buses_close(&flow->buses);
        worker_pool_destroy(flow->workers);
    }
    refdata_catalog_unref(flow->catalog);
    refdata_database_unref(flow->database);
    free(flow);
}

struct closing {
    const struct refdata_catalog *catalog;
    struct refdata_flow *flows; /* taken out of the list */
    struct loop_timer grace;
};

/* Whatever the parts still wait for, in whichever of their stops: the time is one for all of them. */
static void on_grace_over(struct loop_timer *timer)
{
    struct closing *closing = (struct closing *)((char *)timer - offsetof(struct closing, grace));
    for (struct refdata_flow *flow = closing->flows; flow; flow = flow->next) {
        db_pool_interrupt(flow->database->site.pool);
        if (flow->decisions)
            refdata_buses_interrupt(&flow->buses);
        if (flow->adapter)
            refdata_adapter_interrupt(flow->adapter);
        if (flow->commands)
            refdata_commands_interrupt(flow->commands);
        if (flow->relay)
            refdata_relay_interrupt(flow->relay);
    }
}

static void take_out(struct refdata *refdata, void *arg)
{
    struct closing *closing = arg;
    refdata->stopping |= closing->catalog == NULL;
    for (struct refdata_flow **at = &refdata->flows; *at;) {
        struct refdata_flow *flow = *at;
        if (refdata_catalog_names(closing->catalog, flow->database)) {
            at = &flow->next;
            continue;
        }
        *at = flow->next;
        flow->next = closing->flows;
        closing->flows = flow;
        atomic_store(&flow->database->flow, NULL);
    }
    loop_timer_start(refdata->home, &closing->grace, clock_deadline_ms(STOP_GRACE_MS), on_grace_over);
}

static void end_grace(struct refdata *refdata, void *arg)
{
    struct closing *closing = arg;
    loop_timer_stop(refdata->home, &closing->grace);
}

static void destroy_flows(struct refdata *refdata, void *arg)
{
    (void)refdata;
    struct refdata_flow *flow = arg;
    while (flow) {
        struct refdata_flow *next = flow->next;
        destroy_flow(flow);
        flow = next;
    }
}

void refdata_flows_close(struct refdata *refdata, const struct refdata_catalog *catalog)
{
    struct closing closing = {.catalog = catalog};
    refdata_home_call(refdata, take_out, &closing);
    if (closing.flows) {
        wait_for_loops(refdata); /* no handler holds a flow any more */
        for (struct refdata_flow *flow = closing.flows; flow; flow = flow->next)
            if (flow->decisions)
                stop_flow(flow);
        wait_for_loops(refdata); /* what they posted has been handled */
    }
    refdata_home_call(refdata, end_grace, &closing);
    refdata_home_call(refdata, destroy_flows, closing.flows);
}

void refdata_flows_clear(struct refdata *refdata)
{
    destroy_flows(refdata, refdata->flows);
    refdata->flows = NULL;
}
