/* Sends the decisions of updates to the clients that wait. Between processes they are notices, coalesced and sent after the commit:
 *
 *     tenant/event/COMMITTED/17
 *     tenant/event/FAILED/0/UPDATE_REFUSED/why
 *
 * After a notice may have been lost (the listener's connection broke, too many at once) the rows of all waiters are read, once, as
 * soon as there is a connection again.
 *
 * Every role that may connect can send a notice. Where a role that is not a superuser can log in, a notice only means that an
 * update is decided: the decision is read from its row. A bus in PostgreSQL checks for such roles. Without one, the process checks
 * when it reads rows, and trusts notices for a few seconds after that.
 *
 * The same listener and notifier carry notices that items of a hydrated dictionary changed, which wake changes.c. */
#include "modules/refdata/command/command.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "loop/task.h"

#define CHANGES_CHANNEL "freshet_refdata_item_change"

enum {
    NOTIFY_WINDOW_US = 200, /* a single decision is sent at once, more of them are collected */
    READ_MS = 2000,
    TRUST_CHECK_MS = 5000, /* between two checks for other roles, as in the bus */
};

struct refdata_decisions {
    struct refdata_database *database;
    struct db_notifier *notifier; /* where updates are decided */
    struct db_listener *listener; /* where clients may wait for decisions of other processes */
    struct task *reading;
    int64_t trust_check_ns; /* when to check for other roles next; used only by the task */
    atomic_llong
        trusted_until_ns; /* without a bus in PostgreSQL: the last check found that no other role can log in */
    pthread_mutex_t lock; /* for what follows */
    struct map waiters;
    bool is_stopped;
};

/* ---- waiters ---- */

void refdata_waiters_add(struct map *waiters, struct refdata_waiter *waiter)
{
    waiter->is_waiting = true;
    map_add(waiters, &waiter->node, map_hash_pair(waiter->tenant, waiter->event_id));
}

bool refdata_waiters_remove(struct map *waiters, struct refdata_waiter *waiter)
{
    if (!waiter->is_waiting)
        return false;
    waiter->is_waiting = false;
    map_remove(waiters, &waiter->node);
    return true;
}

struct refdata_waiter *refdata_waiters_find(const struct map *waiters, struct str tenant, struct str event_id)
{
    struct map_node *node;
    MAP_MATCH(node, waiters, map_hash_pair(tenant, event_id)) {
        struct refdata_waiter *waiter = CONTAINER_OF(node, struct refdata_waiter, node);
        if (str_eq(waiter->event_id, event_id) && str_eq(waiter->tenant, tenant))
            return waiter;
    }
    return NULL;
}

void refdata_decisions_add(struct refdata_decisions *decisions, struct refdata_waiter *waiter)
{
    pthread_mutex_lock(&decisions->lock);
    refdata_waiters_add(&decisions->waiters, waiter);
    pthread_mutex_unlock(&decisions->lock);
}

bool refdata_decisions_remove(struct refdata_decisions *decisions, struct refdata_waiter *waiter)
{
    pthread_mutex_lock(&decisions->lock);
    bool is_removed = refdata_waiters_remove(&decisions->waiters, waiter);
    pthread_mutex_unlock(&decisions->lock);
    return is_removed;
}

/* Under the lock. Its owner may be gone as soon as it is posted. */
static void release_waiter(struct refdata_decisions *decisions, struct refdata_waiter *waiter,
                           const struct refdata_state *decision)
{
    (void)refdata_waiters_remove(&decisions->waiters, waiter);
    waiter->decision = *decision;
    loop_post(waiter->loop, &waiter->message);
}

static void release_waiters(struct refdata_decisions *decisions, struct str tenant,
                            const struct refdata_state *state)
{
    struct str event_id = str_from(state->event_id);
    struct refdata_waiter *waiter;
    pthread_mutex_lock(&decisions->lock);
    while ((waiter = refdata_waiters_find(&decisions->waiters, tenant, event_id)) != NULL)
        release_waiter(decisions, waiter, state);
    pthread_mutex_unlock(&decisions->lock);
}

/* ---- decided here ---- */

void refdata_decisions_put_committed(struct buf *out, const struct refdata_outcome *outcome)
{
    buf_printf(out, "%.*s/%s/COMMITTED/%lld", STR_ARG(outcome->tenant), outcome->state.event_id,
               (long long)outcome->state.version);
}

void refdata_decisions_made(struct refdata_decisions *decisions, const struct refdata_outcome *outcomes,
                            const bool *waited, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct refdata_state *state = &outcomes[i].state;
        struct str tenant = outcomes[i].tenant;
        release_waiters(decisions, tenant, state);
        /* Sent also where a client waited here: the update may have been sent to several processes. */
        if (!waited || !waited[i] || !decisions->notifier)
            continue;
        struct buf payload = {0};
        if (state->decision == REFDATA_COMMITTED)
            refdata_decisions_put_committed(&payload, &outcomes[i]);
        else
            buf_printf(&payload, "%.*s/%s/%s/%lld/%s/%s", STR_ARG(tenant), state->event_id,
                       refdata_decision_name(state->decision), (long long)state->version, state->code,
                       state->reason);
        db_notify(decisions->notifier, STR(REFDATA_DECISIONS_CHANNEL), buf_str(&payload));
        buf_deinit(&payload);
    }
}

void refdata_decisions_notify_changed_items(struct refdata_decisions *decisions)
{
    if (decisions->database->changes)
        refdata_changes_wake(decisions->database->changes);
    else if (decisions->notifier)
        db_notify(decisions->notifier, STR(CHANGES_CHANNEL), STR(""));
}

/* ---- decided by another process ---- */

static void on_decision_notice(void *context, struct str channel, struct str payload)
{
    struct refdata_decisions *decisions = context;
    const struct refdata_buses *buses = &decisions->database->buses;
    struct refdata_state state = {0};
    struct str tenant, event_id, decision, version, code = STR_NONE;
    if (str_eq(channel, STR(CHANGES_CHANNEL))) {
        if (decisions->database->changes)
            refdata_changes_wake(decisions->database->changes);
        return;
    }
    if (!str_split(&payload, '/', &tenant) || !str_split(&payload, '/', &event_id) ||
        !str_split(&payload, '/', &decision) || !str_split(&payload, '/', &version) ||
        event_id.len != UUID_TEXT_BYTES - 1 || !str_to_i64(version, &state.version)) {
        refdata_decisions_read(decisions); /* too many notices at once are sent without payload */
        return;
    }
    state.decision = str_eq(decision, STR("COMMITTED")) ? REFDATA_COMMITTED : REFDATA_FAILED;
    (void)str_split(&payload, '/', &code);
    str_copy(state.event_id, sizeof state.event_id, event_id);
    str_copy(state.code, sizeof state.code, code);
    str_copy(state.reason, sizeof state.reason, payload);
    if (bus_trusts_notices(buses->commands) || bus_trusts_notices(buses->invalidations) ||
        clock_mono_ns() < atomic_load(&decisions->trusted_until_ns)) {
        release_waiters(decisions, tenant, &state);
        return;
    }
    pthread_mutex_lock(&decisions->lock);
    bool has_waiter = refdata_waiters_find(&decisions->waiters, tenant, event_id) != NULL;
    pthread_mutex_unlock(&decisions->lock);
    if (has_waiter)
        refdata_decisions_read(decisions);
}

static void on_listening(void *context)
{
    refdata_decisions_read(context);
}

/* ---- reading the rows of all waiters, on a worker ---- */

/* Releases the waiters whose updates are decided. `tenants` are copies: a waiter may be gone by the time its row is read. */
static enum status read_rows(struct refdata_decisions *decisions, const struct str *tenants,
                             struct str tenant_array, struct str event_array, struct error *error)
{
    const struct kernel_bus_settings *bus = kernel_bus(decisions->database->refdata->kernel);
    int64_t deadline_ns = clock_deadline_ms(READ_MS);
    struct db_result *result = NULL;
    struct db_conn *conn = NULL;
    enum status status = db_acquire(decisions->database->site.pool, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &refdata_states_sql,
                          DB_PARAMS(db_text_array(tenant_array), db_text_array(event_array)), deadline_ns,
                          &result, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++) {
        struct refdata_state_row found;
        refdata_states_row(result, row, &found);
        if (found.state.decision != REFDATA_PENDING)
            release_waiters(decisions, tenants[found.place], &found.state);
    }
    db_result_free(result);
    /* The check for other roles, if no bus in PostgreSQL does it. */
    int64_t until_ns = clock_deadline_ms(TRUST_CHECK_MS);
    bool is_trusted;
    if (status == STATUS_OK && bus->commands != KERNEL_POSTGRES && bus->invalidations != KERNEL_POSTGRES &&
        clock_mono_ns() >= decisions->trust_check_ns &&
        (status = bus_postgres_look_trusted(conn, deadline_ns, &is_trusted, error)) == STATUS_OK) {
        decisions->trust_check_ns = until_ns;
        atomic_store(&decisions->trusted_until_ns, is_trusted ? until_ns : 0);
    }
    db_release(conn);
    return status;
}

static int64_t decisions_step(struct task *task, void *context)
{
    struct refdata_decisions *decisions = context;
    struct buf tenant_array = {0}, event_array = {0};
    struct error error = {0};
    struct map_node *node;
    struct arena arena = ARENA(4096);
    size_t count = 0;
    (void)task;
    pthread_mutex_lock(&decisions->lock);
    struct str *tenants = arena_alloc(&arena, (decisions->waiters.count + 1) * sizeof *tenants);
    MAP_EACH(node, &decisions->waiters) {
        const struct refdata_waiter *waiter = CONTAINER_OF(node, struct refdata_waiter, node);
        tenants[count++] = arena_str(&arena, waiter->tenant);
        db_array_put(&tenant_array, waiter->tenant);
        db_array_put(&event_array, waiter->event_id);
    }
    pthread_mutex_unlock(&decisions->lock);
    if (count > 0 && read_rows(decisions, tenants, db_array_end(&tenant_array), db_array_end(&event_array),
                               &error) != STATUS_OK)
        log_warn("decisions_not_read", LOG_STR("database", decisions->database->name),
                 LOG_ERROR_FIELDS(&error));
    arena_deinit(&arena);
    buf_deinit(&tenant_array);
    buf_deinit(&event_array);
    return TASK_IDLE;
}

void refdata_decisions_read(struct refdata_decisions *decisions)
{
    pthread_mutex_lock(&decisions->lock);
    bool is_wanted = decisions->waiters.count > 0 && !decisions->is_stopped;
    pthread_mutex_unlock(&decisions->lock);
    if (is_wanted)
        task_wake(decisions->reading);
}

/* ---- life ---- */

static void *create_decisions(void *owner, struct error *error)
{
    struct refdata_database *database = owner;
    struct kernel_site *site = &database->site;
    struct refdata_decisions *decisions = database->decisions = memory_zalloc(sizeof *decisions);
    (void)error;
    decisions->database = database;
    pthread_mutex_init(&decisions->lock, NULL);
    decisions->reading = kernel_site_task(site, "decisions", decisions_step, decisions);
    task_start(decisions->reading, TASK_IDLE);
    if (kernel_has_role(database->refdata->kernel, "apply"))
        decisions->notifier = db_notifier_create(site->home, &site->target, NOTIFY_WINDOW_US);
    if (kernel_has_role(database->refdata->kernel, "command"))
        decisions->listener = db_listener_create(&(struct db_listener_config){
            .loop = site->home,
            .target = &site->target,
            .channels = {REFDATA_DECISIONS_CHANNEL, CHANGES_CHANNEL},
            .on_notice = on_decision_notice,
            .on_listening = on_listening,
            .context = decisions,
        });
    return decisions;
}

static void stop_decisions(void *part)
{
    struct refdata_decisions *decisions = part;
    struct map_node *node;
    pthread_mutex_lock(&decisions->lock);
    decisions->is_stopped = true;
    MAP_EACH(node, &decisions->waiters)
        release_waiter(decisions, CONTAINER_OF(node, struct refdata_waiter, node),
                       &(struct refdata_state){.decision = REFDATA_PENDING});
    pthread_mutex_unlock(&decisions->lock);
    task_stop(decisions->reading, TASK_FOREVER);
}

static void destroy_decisions(void *part)
{
    struct refdata_decisions *decisions = part;
    if (decisions->listener)
        db_listener_destroy(decisions->listener);
    if (decisions->notifier)
        db_notifier_destroy(decisions->notifier);
    task_destroy(decisions->reading);
    map_deinit(&decisions->waiters);
    pthread_mutex_destroy(&decisions->lock);
    free(decisions);
}

const struct kernel_part refdata_decisions_part = {
    .create = create_decisions, .stop = stop_decisions, .destroy = destroy_decisions, .outlives_buses = true};
