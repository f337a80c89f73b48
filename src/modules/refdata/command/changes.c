/* Publishes changed items for hydration (H4). Apply writes a row of refdata.item_change for each update of a dictionary that
 * some consumer hydrates. This file claims those rows and publishes those of their items that consumers hold: once for each item,
 * with its content at that moment, so that several updates of an item cost one message.
 *
 * A process that can read the dictionary claims the rows, and deletes them when the bus of events has the messages. After a
 * failure the unpublished rest of a pair goes to the end of the queue, so that a failing pair does not delay the others. An item
 * that can never be published is logged and left out: copies of it expire.
 *
 * Tenants take turns: a claim is for rows of one tenant. Each lane, a task, publishes for one tenant at a time, and a tenant has one lane
 * of a process at most, so that one whose SQL hangs leaves the other lane to the others. A lane runs when it is woken and, because a
 * notice can be lost, every few seconds. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/turns.h"
#include "hydration/event.h"
#include "hydration/hydration.h"
#include "kernel/store.h"
#include "loop/task.h"
#include "modules/refdata/command/command.h"

enum {
    ROWS_MAX = 20,
    ROUNDS_MAX = 50,  /* of one run */
    PACE_MS = 5,      /* minimum pause between runs, so that changes are collected */
    POLL_MS = 5000,   /* in case a notice was lost */
    BACKOFF_MS = 500, /* after a failure */
    RUN_MS = 10000,   /* less than a claim lasts */
    LANES = 2,
};

/* A claim that was not finished expires after that interval. The table has only rows that wait. Rows of dictionaries that this
 * process cannot read are left to other processes, and to the time when it can. $3: the tenants of other lanes; $4: the tenant of the last
 * claim, after which the next one comes. Only the oldest rows are looked at, in the order of the primary key, so that a claim does not
 * grow with what waits. Sorted: of a pair, rows that mean all of its items come first, then each key. */
#define WINDOW "200"
static const struct db_statement claim_sql =
    DB_STATEMENT("with due as materialized ("
                 "    select c.id, c.tenant_id from refdata.item_change c"
                 "    where (c.claimed_until is null or c.claimed_until < clock_timestamp())"
                 "      and c.dict_code = any($2) and c.tenant_id <> all($3)"
                 "    order by c.id limit " WINDOW " for update skip locked),"
                 " turn as materialized ("
                 "    select d.tenant_id from due d order by d.tenant_id <= $4, d.tenant_id limit 1),"
                 " claimed as ("
                 "    update refdata.item_change c set claimed_until = clock_timestamp() + interval '15 s'"
                 "    where c.id = any(array(select d.id from due d, turn t where d.tenant_id = t.tenant_id"
                 "                           order by d.id limit $1))"
                 "    returning c.*)"
                 " select c.id, c.tenant_id, c.dict_code, k.key, c.keys is null,"
                 "        exists (select from due d, turn t where d.tenant_id <> t.tenant_id)"
                 " from claimed c left join lateral unnest(c.keys) as k (key) on true"
                 " order by c.dict_code, c.keys is null desc, k.key");
enum { ID, TENANT, CODE, KEY, IS_ALL, OTHERS };
static const struct db_statement finish_sql =
    DB_STATEMENT("delete from refdata.item_change where id = any($1::bigint[])");
/* At the end of the queue, with their original created_at, because upkeep deletes rows that wait too long. $4: the keys that are
 * left. */
static const struct db_statement put_back_sql = DB_STATEMENT(
    "with gone as (delete from refdata.item_change where id = any($1::bigint[]) returning created_at)"
    " insert into refdata.item_change (tenant_id, dict_code, keys, created_at)"
    " select $2, $3, $4::text[], min(created_at) from gone having count(*) > 0");

/* Rows that a lane has claimed, of one tenant. */
struct claim {
    struct hydration *hydration;
    struct db_pool *pool;
    struct db_result *rows;
    struct arena arena;
    int64_t deadline_ns;
};

/* Of one pair: rows [first, end), and the items that are still to be published. */
struct pair {
    size_t first, end;
    struct str tenant, code;
    struct hydration_ref *items;
    size_t count;
    bool is_listed; /* the items are known */
};

static void put_ids(const struct claim *claim, const struct pair *pair, struct buf *ids)
{
    for (size_t i = pair->first; i < pair->end; i++)
        db_array_put(ids, db_result_str(claim->rows, i, ID));
}

static void put_back(const struct claim *claim, const struct pair *pair)
{
    struct error error = {0};
    struct buf ids = {0}, keys = {0};
    put_ids(claim, pair, &ids);
    for (size_t i = 0; i < pair->count; i++)
        db_array_put(&keys, str_skip(pair->items[i].entity_id, pair->code.len + 1));
    if (db_pool_exec(claim->pool, &put_back_sql,
                     DB_PARAMS(db_text_array(db_array_end(&ids)), db_text(pair->tenant), db_text(pair->code),
                               db_text_array(pair->is_listed ? db_array_end(&keys) : STR_NONE)),
                     clock_deadline_ms(RUN_MS), NULL, &error) != STATUS_OK)
        log_debug("hydration_changes_stay_claimed", LOG_ERROR_FIELDS(&error)); /* their claim expires */
    buf_deinit(&ids), buf_deinit(&keys);
}

/* The items of its rows, each once, that consumers hold. */
static enum status list_held(struct claim *claim, struct pair *pair, int64_t deadline_ns, struct error *error)
{
    struct str prefix = arena_printf(&claim->arena, "%.*s/", STR_ARG(pair->code)), last = STR_NONE;
    if (str_eq(db_result_str(claim->rows, pair->first, IS_ALL), STR("t")))
        return hydration_list_held(claim->hydration, REFDATA_ENTITY_TYPE, pair->tenant, prefix, deadline_ns,
                                   &claim->arena, &pair->items, &pair->count, error);
    pair->items = arena_alloc(&claim->arena, (pair->end - pair->first) * sizeof *pair->items);
    for (size_t i = pair->first; i < pair->end; i++) {
        struct str key = db_result_str(claim->rows, i, KEY);
        if (db_result_is_null(claim->rows, i, KEY) || (last.ptr && str_eq(last, key)))
            continue;
        last = key;
        struct str id = arena_printf(&claim->arena, "%.*s%.*s", STR_ARG(prefix), STR_ARG(key));
        if (hydration_is_text(id, HYDRATION_ID_BYTES_MAX)) /* else no consumer can ask for it */
            pair->items[pair->count++] = (struct hydration_ref){pair->tenant, id};
    }
    pair->is_listed = true;
    bool *held = arena_alloc(&claim->arena, (pair->count + 1) * sizeof *held);
    enum status status = hydration_find_held(claim->hydration, REFDATA_ENTITY_TYPE, pair->items, pair->count,
                                             deadline_ns, held, error);
    size_t kept = 0;
    for (size_t i = 0; status == STATUS_OK && i < pair->count; i++)
        if (held[i])
            pair->items[kept++] = pair->items[i];
    if (status == STATUS_OK)
        pair->count = kept;
    return status;
}

/* OK for an item that would always fail: it is logged and left out. */
static enum status skip_unpublishable(const struct pair *pair, struct str id, enum status status,
                                      const struct error *error)
{
    if (status == STATUS_OK || status_retryable(status))
        return status;
    log_warn("hydration_change_not_published", LOG_STR("tenantId", pair->tenant), LOG_STR("entityId", id),
             LOG_ERROR_FIELDS(error));
    return STATUS_OK;
}

/* Returns the first failure; the other pairs are still published. */
static enum status publish_rows(struct claim *claim, struct error *error)
{
    const struct db_result *rows = claim->rows;
    enum status first_status = STATUS_OK;
    struct error later = {0};
    struct buf ids = {0};
    for (struct pair pair = {0}; pair.first < db_result_rows(rows); pair = (struct pair){.first = pair.end}) {
        int64_t now_ns = clock_mono_ns();
        int64_t deadline_ns = now_ns + (claim->deadline_ns - now_ns) / 2; /* there may be other pairs */
        pair.tenant = db_result_str(rows, pair.first, TENANT);
        pair.code = db_result_str(rows, pair.first, CODE);
        pair.end = pair.first + 1;
        while (pair.end < db_result_rows(rows) && str_eq(pair.code, db_result_str(rows, pair.end, CODE)))
            pair.end++;
        enum status status = list_held(claim, &pair, deadline_ns, &later);
        pair.is_listed |= status == STATUS_OK;
        bool is_held = status == STATUS_OK;
        status = skip_unpublishable(&pair, pair.code, status, &later);
        while (is_held && pair.count && status == STATUS_OK) {
            struct str id = pair.items->entity_id;
            status = hydration_publish_change(claim->hydration, REFDATA_ENTITY_TYPE, pair.tenant, id,
                                              deadline_ns, &later);
            status = skip_unpublishable(&pair, id, status, &later);
            if (status == STATUS_OK)
                pair.items++, pair.count--;
        }
        if (status == STATUS_OK) {
            put_ids(claim, &pair, &ids);
            continue;
        }
        put_back(claim, &pair);
        if (first_status == STATUS_OK)
            first_status = status, *error = later;
    }
    enum status status = db_pool_exec(claim->pool, &finish_sql, DB_PARAMS(db_text_array(db_array_end(&ids))),
                                      clock_deadline_ms(RUN_MS), NULL, &later);
    buf_deinit(&ids);
    if (first_status != STATUS_OK)
        return first_status;
    *error = later;
    return status;
}

/* ---- lanes ---- */

struct refdata_changes {
    struct refdata_database *database;
    pthread_mutex_t lock; /* held while a lane claims: no two choose the same tenant. For what follows */
    char *last;           /* the tenant of the last claim; NULL: none yet */
    struct changes_lane {
        struct refdata_changes *changes;
        struct task *task;
        char *tenant;        /* whose rows it publishes; NULL: none */
        atomic_bool is_busy; /* it publishes, or waits after a failure; then it claims again */
    } lanes[LANES];
};

static void wake_another(struct refdata_changes *changes, const struct changes_lane *self)
{
    for (size_t i = 0; i < LANES; i++)
        if (&changes->lanes[i] != self && !atomic_load(&changes->lanes[i].is_busy)) {
            task_wake(changes->lanes[i].task);
            return;
        }
}

/* A busy lane claims again, but only once it has published. */
void refdata_changes_wake(struct refdata_changes *changes)
{
    task_wake(changes->lanes[0].task);
    if (atomic_load(&changes->lanes[0].is_busy))
        wake_another(changes, &changes->lanes[0]);
}

static void set_tenant(struct changes_lane *lane, struct str tenant)
{
    free(lane->tenant);
    lane->tenant = tenant.len ? str_dup(tenant) : NULL;
    atomic_store(&lane->is_busy, tenant.len > 0);
}

/* Without rows: none is due. */
static enum status claim_rows(struct changes_lane *lane, struct claim *claim, struct error *error)
{
    struct refdata_changes *changes = lane->changes;
    struct refdata_catalog *catalog = refdata_database_catalog(changes->database);
    struct buf codes = {0},
               others = {0}; /* codes of dictionaries that live in this database and can be read */

    for (size_t i = 0; i < catalog->dictionary_count; i++) {
        const struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        if (dictionary->database == changes->database && atomic_load(&dictionary->state) != REFDATA_DISABLED)
            db_array_put(&codes, dictionary->code);
    }
    refdata_catalog_unref(catalog);
    pthread_mutex_lock(&changes->lock);
    for (size_t i = 0; i < LANES; i++)
        if (changes->lanes[i].tenant)
            db_array_put(&others, str_from(changes->lanes[i].tenant));
    enum status status = db_pool_query(claim->pool, &claim_sql,
                                       DB_PARAMS(db_i64(ROWS_MAX), db_text_array(db_array_end(&codes)),
                                                 db_text_array(db_array_end(&others)),
                                                 db_cstr(changes->last ? changes->last : "")),
                                       claim->deadline_ns, &claim->rows, error);
    if (status == STATUS_OK && db_result_rows(claim->rows) > 0) {
        set_tenant(lane, db_result_str(claim->rows, 0, TENANT));
        free(changes->last);
        changes->last = str_dup(str_from(lane->tenant));
    }
    pthread_mutex_unlock(&changes->lock);
    buf_deinit(&codes), buf_deinit(&others);
    return status;
}

static void leave_tenant(struct changes_lane *lane)
{
    pthread_mutex_lock(&lane->changes->lock);
    set_tenant(lane, STR_NONE);
    pthread_mutex_unlock(&lane->changes->lock);
}

/* *found: rows were claimed. */
static enum status publish_once(struct changes_lane *lane, bool *found, struct error *error)
{
    const struct refdata_database *database = lane->changes->database;
    struct claim claim = {.hydration = kernel_hydration(database->refdata->kernel),
                          .pool = database->site.pool,
                          .deadline_ns = clock_deadline_ms(RUN_MS)};
    enum status status = claim_rows(lane, &claim, error);
    *found = status == STATUS_OK && db_result_rows(claim.rows) > 0;
    FAILPOINT("command.before_publish_changes");
    claim.arena = ARENA(4096);
    if (*found) {
        if (str_eq(db_result_str(claim.rows, 0, OTHERS), STR("t")))
            wake_another(lane->changes, lane);
        turns_work_for(hash_seeded(str_from(lane->tenant))); /* its connections are the tenant's */
        status = publish_rows(&claim, error);
        turns_work_for(0);
        leave_tenant(lane);
    }
    db_result_free(claim.rows);
    arena_deinit(&claim.arena);
    return status;
}

static int64_t changes_step(struct task *task, void *context)
{
    struct changes_lane *lane = context, *lanes = lane->changes->lanes;
    struct error error = {0};
    enum status status = STATUS_OK;
    bool found = true;
    atomic_store(&lane->is_busy, false);
    for (unsigned round = 0; round < ROUNDS_MAX && found && status == STATUS_OK; round++)
        status = publish_once(lane, &found, &error);
    if (status == STATUS_OK || status == STATUS_CANCELLED) {
        bool polls = lane == lanes || atomic_load(&lanes[0].is_busy);
        task_hold(task, TASK_MS(PACE_MS));
        return found ? TASK_MS(PACE_MS) : polls ? TASK_MS(POLL_MS) : TASK_IDLE;
    }
    atomic_store(&lane->is_busy, true);
    if (task_failures(task) == 0)
        log_warn("hydration_changes_wait", LOG_STR("database", lane->changes->database->name),
                 LOG_ERROR_FIELDS(&error));
    task_hold(task, TASK_MS(BACKOFF_MS));
    return task_retry(task);
}

/* ---- life ---- */

static void *create_changes(void *owner, struct error *error)
{
    struct refdata_database *database = owner;
    (void)error;
    if (!kernel_hydration(database->refdata->kernel)) /* without a store no module asks for entities */
        return NULL;
    struct refdata_changes *changes = database->changes = memory_zalloc(sizeof *changes);
    changes->database = database;
    pthread_mutex_init(&changes->lock, NULL);
    for (size_t i = 0; i < LANES; i++) {
        changes->lanes[i].changes = changes;
        changes->lanes[i].task = task_create(&(struct task_config){.name = "hydration_changes",
                                                                   .loop = database->site.home,
                                                                   .pool = database->site.workers,
                                                                   .run = changes_step,
                                                                   .context = &changes->lanes[i],
                                                                   .retry_min_ms = BACKOFF_MS,
                                                                   .retry_max_ms = BACKOFF_MS});
    }
    return changes;
}

static void start_changes(void *part)
{
    struct refdata_changes *changes = part;
    task_start(changes->lanes[0].task, TASK_MS(PACE_MS)); /* rows of an earlier process */
    for (size_t i = 1; i < LANES; i++)
        task_start(changes->lanes[i].task, TASK_IDLE);
}

static void stop_changes(void *part)
{
    struct refdata_changes *changes = part;
    for (size_t i = 0; i < LANES; i++)
        task_stop(changes->lanes[i].task, TASK_FOREVER);
}

static void destroy_changes(void *part)
{
    struct refdata_changes *changes = part;
    for (size_t i = 0; i < LANES; i++)
        task_destroy(changes->lanes[i].task);
    free(changes->last);
    pthread_mutex_destroy(&changes->lock);
    free(changes);
}

const struct kernel_part refdata_changes_part = {
    .roles = {"command"},
    .create = create_changes,
    .start = start_changes,
    .stop = stop_changes,
    .destroy = destroy_changes,
};
