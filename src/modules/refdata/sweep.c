/* The sweep: once a second, one look at each database. It puts the schema in place, has PostgreSQL check templates that
 * were not checked yet (R15), compares every version held with dictionary_meta in one query (R14), finds tenants for
 * preloads with a star (R17). Alone it is enough to keep a pod fresh. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "loop/task.h"
#include "modules/refdata/flow.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"

enum {
    SWEEP_TIMEOUT_MS = 5000,
    MIGRATE_TIMEOUT_MS = 120000,
    RETRY_MS = 1000,
    RECHECK_MS = 10000, /* a refused template is tried again: its table may have been made since */
};

struct held_pair {
    struct str tenant, code;
    struct refdata_committed committed; /* as found */
    const struct cache_snapshot *local; /* as held then, not referenced: to be compared, not read */
    struct refdata_holding *holding;    /* found again on the home loop */
};

/* The task is prepared on the home loop, runs on a worker, and finishes on the home loop; what follows it is of one run. */
struct refdata_sweep {
    struct refdata_sweep *next;
    struct refdata *refdata;
    struct refdata_database *database; /* referenced */
    struct task *task;
    struct refdata_checks *checks;
    struct arena arena;
    struct refdata_dictionary **unchecked; /* referenced */
    size_t unchecked_count;
    struct held_pair *pairs;
    size_t pair_count;
    struct buf starred; /* text[] of codes preloaded for every tenant; empty = none */
    struct held_pair *found;
    size_t found_count;
    enum status status;
    struct error error;
};

/* ---- on the worker ---- */

/* One row per pair asked for, in that order; by the primary key. */
static const struct db_statement versions_sql =
    DB_STATEMENT("select coalesce(m.version, 0), m.last_event_id"
                 "  from unnest($1::text[], $2::text[]) with ordinality as held(tenant_id, dict_code, place)"
                 "  left join refdata.dictionary_meta m using (tenant_id, dict_code)"
                 " order by held.place");
static const struct db_statement tenants_sql =
    DB_STATEMENT("select tenant_id, dict_code from refdata.dictionary_meta where dict_code = any($1)");

/* driftCheckSql only diagnoses (R18): refused, it is not run until it is accepted, and nothing else changes. */
static enum status check_drift(struct refdata_dictionary *dictionary, struct db_conn *conn,
                               struct error *error)
{
    enum status status =
        refdata_provider_check_drift(dictionary, conn, clock_deadline_ms(SWEEP_TIMEOUT_MS), error);
    if (status != STATUS_OK && status != STATUS_DB_ERROR)
        return status;
    bool refused = status == STATUS_DB_ERROR, before = atomic_exchange(&dictionary->drift_refused, refused);
    if (refused && !before)
        log_error("drift_check_refused", LOG_STR("dictCode", dictionary->code),
                  LOG_STR("database", dictionary->database->name), LOG_ERROR_FIELDS(error));
    if (!refused && before)
        log_info("drift_check_accepted", LOG_STR("dictCode", dictionary->code));
    return STATUS_OK;
}

static void check_one(struct refdata_sweep *sweep, struct db_conn *conn,
                      struct refdata_dictionary *dictionary)
{
    struct error error = {0};
    enum refdata_dictionary_state before = atomic_load(&dictionary->state);
    enum status status =
        refdata_provider_check(dictionary, conn, clock_deadline_ms(SWEEP_TIMEOUT_MS), &error);
    if (status == STATUS_OK)
        status = check_drift(dictionary, conn, &error);
    dictionary->checked_at_ns = clock_mono_ns();
    if (status == STATUS_OK) {
        atomic_store(&dictionary->state, REFDATA_READY);
        if (before == REFDATA_DISABLED)
            log_info("dictionary_enabled", LOG_STR("dictCode", dictionary->code));
    } else if (status == STATUS_DB_ERROR) {
        atomic_store(&dictionary->state, REFDATA_DISABLED);
        if (before != REFDATA_DISABLED)
            log_error("dictionary_disabled", LOG_STR("dictCode", dictionary->code),
                      LOG_STR("database", dictionary->database->name), LOG_ERROR_FIELDS(&error));
    } else {
        sweep->status = status; /* could not be asked: the next sweep tries again */
        sweep->error = error;
    }
}

static enum status read_versions(struct refdata_sweep *sweep, struct db_conn *conn)
{
    struct db_result *result = NULL;
    struct buf tenants, codes;
    buf_init(&tenants), buf_init(&codes);
    db_array_begin(&tenants), db_array_begin(&codes);
    for (size_t i = 0; i < sweep->pair_count; i++) {
        db_array_put(&tenants, sweep->pairs[i].tenant);
        db_array_put(&codes, sweep->pairs[i].code);
    }
    db_array_end(&tenants), db_array_end(&codes);
    enum status status = db_query(conn, &versions_sql,
                                  DB_PARAMS(db_text_array(buf_str(&tenants)), db_text_array(buf_str(&codes))),
                                  clock_deadline_ms(SWEEP_TIMEOUT_MS), &result, &sweep->error);
    for (size_t i = 0; status == STATUS_OK && i < sweep->pair_count && i < db_result_rows(result); i++) {
        sweep->pairs[i].committed.version = db_result_i64(result, i, 0);
        sweep->pairs[i].committed.event = refdata_loader_event(result, i, 1);
    }
    db_result_free(result);
    buf_deinit(&tenants), buf_deinit(&codes);
    return status;
}

static enum status find_tenants(struct refdata_sweep *sweep, struct db_conn *conn)
{
    struct db_result *result = NULL;
    enum status status = db_query(conn, &tenants_sql, DB_PARAMS(db_text_array(buf_str(&sweep->starred))),
                                  clock_deadline_ms(SWEEP_TIMEOUT_MS), &result, &sweep->error);
    if (status == STATUS_OK) {
        sweep->found_count = db_result_rows(result);
        sweep->found = arena_zalloc(&sweep->arena, (sweep->found_count + 1) * sizeof *sweep->found);
    }
    for (size_t i = 0; i < sweep->found_count; i++) {
        sweep->found[i].tenant = arena_str(&sweep->arena, db_result_str(result, i, 0));
        sweep->found[i].code = arena_str(&sweep->arena, db_result_str(result, i, 1));
    }
    db_result_free(result);
    return status;
}

/* After a failure soon again, however seldom versions are compared. */
static int64_t sweep_step(struct task *task, void *context)
{
    struct refdata_sweep *sweep = context;
    struct refdata_database *database = sweep->database;
    int64_t interval_ms = atomic_load(&sweep->refdata->sweep_interval_ms);
    struct db_conn *conn = NULL;
    (void)task;
    sweep->status = refdata_database_prepare(database, clock_deadline_ms(MIGRATE_TIMEOUT_MS), &sweep->error);
    if (sweep->status == STATUS_OK)
        sweep->status =
            db_acquire(database->site.pool, clock_deadline_ms(SWEEP_TIMEOUT_MS), &conn, &sweep->error);
    for (size_t i = 0; i < sweep->unchecked_count && sweep->status == STATUS_OK; i++)
        check_one(sweep, conn, sweep->unchecked[i]);
    if (sweep->status == STATUS_OK && sweep->pair_count)
        sweep->status = read_versions(sweep, conn);
    if (sweep->status == STATUS_OK && buf_len(&sweep->starred))
        sweep->status = find_tenants(sweep, conn);
    db_release(conn);
    kernel_site_report(&database->site, sweep->status, &sweep->error);
    return TASK_MS(sweep->status != STATUS_OK && interval_ms > RETRY_MS ? RETRY_MS : interval_ms);
}

/* ---- back on the home loop ---- */

/* Is what is held no longer what is committed? */
static bool is_behind(const struct refdata_holding *holding, const struct held_pair *pair)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    /* not when it was not loaded yet, or loaded anew since the sweep set out */
    return snapshot && snapshot == pair->local && !refdata_is_committed(snapshot, &pair->committed);
}

static void apply_version(struct refdata_holding *holding, const struct held_pair *pair, bool is_bulk)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    int64_t local = snapshot ? cache_snapshot_info(snapshot)->version : -1;
    holding->committed_version = pair->committed.version;
    refdata_metrics_lag(holding, local);
    if (!is_behind(holding, pair))
        return;
    int64_t delay_ms = is_bulk ? refdata_schedule_jitter_ms(holding->refdata) : 0;
    if (pair->committed.version > local)
        refdata_schedule_behind(holding, pair->committed.version, delay_ms);
    else
        refdata_schedule_compare(holding, delay_ms); /* it went back, or was made by another event */
}

static void forget_run(struct refdata_sweep *sweep)
{
    for (size_t i = 0; i < sweep->unchecked_count; i++)
        refdata_dictionary_unref(sweep->unchecked[i]);
    sweep->unchecked_count = sweep->pair_count = sweep->found_count = 0;
    buf_clear(&sweep->starred);
    arena_reset(&sweep->arena);
}

static void sweep_finish(void *context)
{
    struct refdata_sweep *sweep = context;
    struct refdata *refdata = sweep->refdata;
    size_t behind = 0;
    if (refdata->stopping || !refdata_catalog_names(atomic_load(&refdata->catalog), sweep->database))
        return; /* the main thread is about to end this sweep */
    for (size_t i = 0; i < sweep->unchecked_count; i++)
        if (atomic_load(&sweep->unchecked[i]->state) != REFDATA_UNCHECKED)
            refdata_schedule_checked(refdata, sweep->unchecked[i]);
    for (size_t i = 0; i < sweep->found_count; i++) {
        struct refdata_dictionary *dictionary =
            refdata_catalog_find(atomic_load(&refdata->catalog), sweep->found[i].code);
        if (dictionary && str_is_name(sweep->found[i].tenant))
            refdata_keeper_preload_pair(refdata, sweep->found[i].tenant, dictionary);
    }
    for (size_t i = 0; i < sweep->pair_count && sweep->status == STATUS_OK; i++) {
        struct held_pair *pair = &sweep->pairs[i];
        pair->holding = refdata_table_find(refdata->own, pair->tenant, pair->code);
        behind += pair->holding && is_behind(pair->holding, pair);
    }
    /* Jitter is for many pods that load much in step (R13): a single change is loaded at once. */
    for (size_t i = 0; i < sweep->pair_count && sweep->status == STATUS_OK; i++)
        if (sweep->pairs[i].holding)
            apply_version(sweep->pairs[i].holding, &sweep->pairs[i], behind > 1);
    if (atomic_load(&sweep->database->site.is_ready))
        refdata_flow_start_of(refdata, sweep->database);
    refdata_keeper_update_health(refdata);
    if (sweep->status == STATUS_OK)
        refdata_checks_wake(sweep->checks);
}

/* ---- setting out ---- */

static void sweep_prepare(void *context)
{
    struct refdata_sweep *sweep = context;
    struct refdata *refdata = sweep->refdata;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    const struct refdata_table *table = refdata->own;
    int64_t recheck_before_ns = clock_mono_ns() - RECHECK_MS * CLOCK_NS_PER_MS;
    forget_run(sweep);
    sweep->unchecked =
        arena_alloc(&sweep->arena, (catalog->dictionary_count + 1) * sizeof(struct refdata_dictionary *));
    for (size_t i = 0; i < catalog->dictionary_count; i++) {
        struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        enum refdata_dictionary_state state = atomic_load(&dictionary->state);
        bool refused = state == REFDATA_DISABLED || atomic_load(&dictionary->drift_refused);
        if (dictionary->database == sweep->database &&
            (state == REFDATA_UNCHECKED || (refused && dictionary->checked_at_ns < recheck_before_ns)))
            sweep->unchecked[sweep->unchecked_count++] = refdata_dictionary_ref(dictionary);
    }
    sweep->pairs = arena_zalloc(&sweep->arena, (table->count + 1) * sizeof *sweep->pairs);
    for (size_t i = 0; i <= table->mask; i++) {
        struct refdata_holding *holding = table->slots[i];
        if (!holding || holding->dictionary->database != sweep->database)
            continue;
        struct held_pair *pair = &sweep->pairs[sweep->pair_count++];
        pair->tenant = arena_str(&sweep->arena, holding->tenant);
        pair->code = arena_str(&sweep->arena, holding->code);
        pair->local = cache_slot_read(&holding->slot);
    }
    for (size_t i = 0; i < refdata->settings.preload.count && refdata_has_role(refdata, "query"); i++) {
        struct str code = refdata->settings.preload.items[i], tenant;
        str_split(&code, '/', &tenant);
        const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
        if (!str_eq(tenant, STR("*")) || !dictionary || dictionary->database != sweep->database)
            continue;
        if (buf_len(&sweep->starred) == 0)
            db_array_begin(&sweep->starred);
        db_array_put(&sweep->starred, code);
    }
    if (buf_len(&sweep->starred))
        db_array_end(&sweep->starred);
}

/* ---- one sweep per database ---- */

static struct refdata_sweep *find_sweep(const struct refdata *refdata,
                                        const struct refdata_database *database)
{
    struct refdata_sweep *sweep = refdata->sweeps;
    while (sweep && sweep->database != database)
        sweep = sweep->next;
    return sweep;
}

void refdata_sweeps_start(struct refdata *refdata)
{
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (size_t i = 0; i < catalog->database_count; i++) {
        struct refdata_sweep *sweep = find_sweep(refdata, catalog->databases[i]);
        if (sweep) {
            task_wake(sweep->task); /* new dictionaries are not kept waiting */
            continue;
        }
        sweep = memory_zalloc(sizeof *sweep);
        sweep->refdata = refdata;
        sweep->database = refdata_database_ref(catalog->databases[i]);
        sweep->next = refdata->sweeps;
        arena_init(&sweep->arena, 4096);
        buf_init(&sweep->starred);
        sweep->checks = refdata_checks_create(refdata, sweep->database);
        sweep->task = task_create(&(struct task_config){.name = "sweep",
                                                        .loop = refdata->home,
                                                        .pool = refdata->loaders,
                                                        .prepare = sweep_prepare,
                                                        .run = sweep_step,
                                                        .finish = sweep_finish,
                                                        .context = sweep});
        refdata->sweeps = sweep;
        task_start(sweep->task, TASK_NOW);
    }
}

void refdata_sweep_now(struct refdata *refdata, const struct refdata_database *database)
{
    struct refdata_sweep *sweep = find_sweep(refdata, database);
    if (sweep)
        task_wake(sweep->task);
}

struct closing {
    struct refdata *refdata;
    const struct refdata_catalog *catalog;
    struct refdata_sweep *sweeps; /* taken out of the list */
};

static void take_closing(void *arg)
{
    struct closing *closing = arg;
    struct refdata *refdata = closing->refdata;
    for (struct refdata_sweep **at = &refdata->sweeps; *at;) {
        struct refdata_sweep *sweep = *at;
        if (closing->catalog && refdata_catalog_names(closing->catalog, sweep->database)) {
            at = &sweep->next;
            continue;
        }
        *at = sweep->next;
        sweep->next = closing->sweeps;
        closing->sweeps = sweep;
    }
}

void refdata_sweeps_close(struct refdata *refdata, const struct refdata_catalog *catalog)
{
    struct closing closing = {.refdata = refdata, .catalog = catalog};
    loop_group_call(refdata->loops, take_closing, &closing);
    while (closing.sweeps) {
        struct refdata_sweep *sweep = closing.sweeps;
        closing.sweeps = sweep->next;
        task_stop(sweep->task, TASK_FOREVER);
        task_destroy(sweep->task);
        refdata_checks_destroy(sweep->checks);
        forget_run(sweep);
        buf_deinit(&sweep->starred);
        arena_deinit(&sweep->arena);
        refdata_database_unref(sweep->database);
        free(sweep);
    }
}
