/* The sweep: once a second, one look at each database. It puts the schema in place, has PostgreSQL check templates that
 * were not checked yet (R15), compares every version held with dictionary_meta in one query (R14), finds tenants for
 * preloads with a star (R17). Alone it is enough to keep a pod fresh. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "loop/task.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/refdata.h"

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

struct refdata_sweep {
    struct refdata_database *database;
    struct task *task;
    struct refdata_checks *checks;
    bool is_out; /* the home loop's: prepared, and not finished */

    /* one run: set by prepare, read and completed by run, applied by finish */
    struct arena arena;
    struct refdata_dictionary **unchecked; /* referenced */
    size_t unchecked_count;
    struct held_pair *pairs;
    size_t pair_count;
    struct buf starred; /* text[] of codes preloaded for every tenant; empty = none */
    struct held_pair *found;
    size_t found_count;
    int64_t interval_ms;
    enum status status;
    struct error error;
};

static void end_run(struct refdata_sweep *sweep)
{
    if (!sweep->is_out)
        return;
    for (size_t i = 0; i < sweep->unchecked_count; i++)
        refdata_dictionary_unref(sweep->unchecked[i]);
    buf_deinit(&sweep->starred);
    arena_deinit(&sweep->arena);
    /* The members before are not written: a stop reads them in another thread. */
    memset((char *)sweep + offsetof(struct refdata_sweep, is_out), 0,
           sizeof *sweep - offsetof(struct refdata_sweep, is_out));
}

/* ---- setting out, on the home loop ---- */

static void sweep_prepare(void *context)
{
    struct refdata_sweep *sweep = context;
    const struct refdata *refdata = sweep->database->refdata;
    const struct refdata_database *database = sweep->database;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    const struct setting_strings *preload = &catalog->cache.preload;
    const struct refdata_table *table = refdata->own;
    int64_t now_ns = clock_mono_ns(), recheck_before_ns = now_ns - RECHECK_MS * CLOCK_NS_PER_MS;
    if (sweep->database->is_closing)
        return;
    sweep->is_out = true;
    sweep->interval_ms = catalog->cache.sweep_interval_ms;
    sweep->arena = ARENA(4096);
    sweep->unchecked =
        arena_alloc(&sweep->arena, (catalog->dictionary_count + 1) * sizeof(struct refdata_dictionary *));
    for (size_t i = 0; i < catalog->dictionary_count; i++) {
        struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        enum refdata_dictionary_state state = atomic_load(&dictionary->state);
        bool refused = state == REFDATA_DISABLED || atomic_load(&dictionary->drift_refused);
        if (dictionary->database == database &&
            (state == REFDATA_UNCHECKED || (refused && dictionary->checked_at_ns < recheck_before_ns)))
            sweep->unchecked[sweep->unchecked_count++] = refdata_dictionary_ref(dictionary);
    }
    sweep->pairs = arena_zalloc(&sweep->arena, (table->count + 1) * sizeof *sweep->pairs);
    for (size_t i = 0; i <= table->mask; i++) {
        struct refdata_holding *holding = table->slots[i];
        if (!holding || holding->dictionary->database != database)
            continue;
        refdata_asks_expire(&holding->waiting, now_ns); /* their tenant is charged for them */
        struct held_pair *pair = &sweep->pairs[sweep->pair_count++];
        pair->tenant = arena_str(&sweep->arena, holding->tenant);
        pair->code = arena_str(&sweep->arena, holding->code);
        pair->local = cache_slot_read(&holding->slot);
    }
    for (size_t i = 0; i < preload->count && kernel_has_role(refdata->kernel, "query"); i++) {
        struct str code = preload->items[i], tenant;
        str_split(&code, '/', &tenant);
        const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
        if (!str_eq(tenant, STR("*")) || !dictionary || dictionary->database != database)
            continue;
        db_array_put(&sweep->starred, code);
    }
}

/* ---- on the worker ---- */

/* One row per pair asked for, in that order; by the primary key. */
static const struct db_statement versions_sql =
    DB_STATEMENT("select coalesce(m.version, 0), m.last_event_id"
                 "  from unnest($1::text[], $2::text[]) with ordinality as held(tenant_id, dict_code, place)"
                 "  left join refdata.dictionary_meta m using (tenant_id, dict_code)"
                 " order by held.place");
static const struct db_statement tenants_sql =
    DB_STATEMENT("select tenant_id, dict_code from refdata.dictionary_meta where dict_code = any($1)");

/* A failure: PostgreSQL could not be asked, and the next sweep tries again. driftCheckSql only diagnoses (R18): refused, it is not
 * run until it is accepted, and nothing else changes. */
static enum status check_sql(struct refdata_dictionary *dictionary, struct db_conn *conn, struct error *error)
{
    enum refdata_dictionary_state before = atomic_load(&dictionary->state);
    struct str database = dictionary->database->name;
    enum status status = refdata_provider_check(dictionary, conn, clock_deadline_ms(SWEEP_TIMEOUT_MS), error);
    dictionary->checked_at_ns = clock_mono_ns();
    if (status == STATUS_DB_ERROR) {
        atomic_store(&dictionary->state, REFDATA_DISABLED);
        if (before != REFDATA_DISABLED)
            log_error("dictionary_disabled", LOG_STR("dictCode", dictionary->code),
                      LOG_STR("database", database), LOG_ERROR_FIELDS(error));
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = refdata_provider_check_field(dictionary, REFDATA_DRIFT_CHECK, conn,
                                              clock_deadline_ms(SWEEP_TIMEOUT_MS), error);
    if (status != STATUS_OK && status != STATUS_DB_ERROR)
        return status;
    bool refused = status == STATUS_DB_ERROR;
    bool was_refused = atomic_exchange(&dictionary->drift_refused, refused);
    if (refused && !was_refused)
        log_error("drift_check_refused", LOG_STR("dictCode", dictionary->code), LOG_STR("database", database),
                  LOG_ERROR_FIELDS(error));
    if (!refused && was_refused)
        log_info("drift_check_accepted", LOG_STR("dictCode", dictionary->code));
    atomic_store(&dictionary->state, REFDATA_READY);
    if (before == REFDATA_DISABLED)
        log_info("dictionary_enabled", LOG_STR("dictCode", dictionary->code));
    return STATUS_OK;
}

static enum status read_versions(struct refdata_sweep *sweep, struct db_conn *conn)
{
    struct db_result *result = NULL;
    struct buf tenants = {0}, codes = {0};
    for (size_t i = 0; i < sweep->pair_count; i++) {
        db_array_put(&tenants, sweep->pairs[i].tenant);
        db_array_put(&codes, sweep->pairs[i].code);
    }
    enum status status =
        db_query(conn, &versions_sql,
                 DB_PARAMS(db_text_array(db_array_end(&tenants)), db_text_array(db_array_end(&codes))),
                 clock_deadline_ms(SWEEP_TIMEOUT_MS), &result, &sweep->error);
    for (size_t i = 0; status == STATUS_OK && i < sweep->pair_count && i < db_result_rows(result); i++) {
        sweep->pairs[i].committed.version = db_result_i64(result, i, 0);
        sweep->pairs[i].committed.event = refdata_loader_event(result, i, 1);
    }
    db_result_free(result);
    buf_deinit(&tenants), buf_deinit(&codes);
    return status;
}

/* After a failure soon again, however seldom versions are compared. */
static int64_t sweep_step(struct task *task, void *context)
{
    struct refdata_sweep *sweep = context;
    struct refdata_database *database = sweep->database;
    struct db_result *tenants = NULL;
    struct db_conn *conn = NULL;
    (void)task;
    if (!sweep->is_out)
        return TASK_IDLE;
    enum status status =
        refdata_database_prepare(database, clock_deadline_ms(MIGRATE_TIMEOUT_MS), &sweep->error);
    if (status == STATUS_OK)
        status = db_acquire(database->site.pool, clock_deadline_ms(SWEEP_TIMEOUT_MS), &conn, &sweep->error);
    for (size_t i = 0; i < sweep->unchecked_count && status == STATUS_OK; i++)
        status = check_sql(sweep->unchecked[i], conn, &sweep->error);
    if (status == STATUS_OK && sweep->pair_count)
        status = read_versions(sweep, conn);
    if (status == STATUS_OK && buf_len(&sweep->starred))
        status = db_query(conn, &tenants_sql, DB_PARAMS(db_text_array(db_array_end(&sweep->starred))),
                          clock_deadline_ms(SWEEP_TIMEOUT_MS), &tenants, &sweep->error);
    if (tenants) {
        sweep->found_count = db_result_rows(tenants);
        sweep->found = arena_zalloc(&sweep->arena, (sweep->found_count + 1) * sizeof *sweep->found);
    }
    for (size_t i = 0; i < sweep->found_count; i++) {
        sweep->found[i].tenant = arena_str(&sweep->arena, db_result_str(tenants, i, 0));
        sweep->found[i].code = arena_str(&sweep->arena, db_result_str(tenants, i, 1));
    }
    db_result_free(tenants);
    db_release(conn);
    kernel_site_report(&database->site, status, &sweep->error);
    sweep->status = status;
    return TASK_MS(status != STATUS_OK && sweep->interval_ms > RETRY_MS ? RETRY_MS : sweep->interval_ms);
}

/* ---- back on the home loop ---- */

/* Is what is held no longer what is committed? */
static bool is_behind(const struct refdata_holding *holding, const struct held_pair *pair)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    /* not when it was not loaded yet, or loaded again since the sweep set out */
    return snapshot && snapshot == pair->local && !refdata_is_committed(snapshot, &pair->committed);
}

/* Jitter is for many pods that load much in step (R13): a single change is loaded at once. */
static void apply_versions(struct refdata *refdata, const struct refdata_database *database,
                           struct held_pair *pairs, size_t count)
{
    size_t behind = 0;
    for (size_t i = 0; i < count; i++) {
        struct refdata_holding *holding = refdata_table_find(refdata->own, pairs[i].tenant, pairs[i].code);
        if (!holding || holding->dictionary->database != database) /* a reload has moved its dictionary */
            continue;
        pairs[i].holding = holding;
        behind += is_behind(holding, &pairs[i]);
    }
    for (size_t i = 0; i < count; i++) {
        struct refdata_holding *holding = pairs[i].holding;
        int64_t version = pairs[i].committed.version;
        if (!holding)
            continue;
        const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
        int64_t local = snapshot ? cache_snapshot_info(snapshot)->version : -1;
        holding->committed_version = version;
        refdata_metrics_lag(holding, local);
        if (!is_behind(holding, &pairs[i]))
            continue;
        int64_t delay_ms = behind > 1 ? refdata_schedule_jitter_ms(refdata) : 0;
        if (version > local)
            refdata_schedule_behind(holding, version, delay_ms);
        else
            refdata_schedule_compare(holding, delay_ms); /* it went back, or was made by another event */
    }
}

static void sweep_finish(void *context)
{
    struct refdata_sweep *sweep = context;
    struct refdata_database *database = sweep->database;
    struct refdata *refdata = sweep->database->refdata;
    if (sweep->database->is_closing) {
        end_run(sweep);
        return;
    }
    for (size_t i = 0; i < sweep->unchecked_count; i++)
        if (atomic_load(&sweep->unchecked[i]->state) != REFDATA_UNCHECKED)
            refdata_schedule_checked(refdata, sweep->unchecked[i]);
    for (size_t i = 0; i < sweep->found_count; i++) { /* of dictionaries that are preloaded for all tenants */
        const struct held_pair *found = &sweep->found[i];
        struct refdata_dictionary *dictionary =
            refdata_catalog_find(atomic_load(&refdata->catalog), found->code);
        if (dictionary && dictionary->database == database && str_is_name(found->tenant))
            refdata_keeper_preload_pair(refdata, found->tenant, dictionary);
    }
    if (sweep->status == STATUS_OK)
        apply_versions(refdata, database, sweep->pairs, sweep->pair_count);
    if (atomic_load(&database->site.is_ready))
        refdata_database_start(database);
    refdata_keeper_update_health(refdata);
    if (sweep->status == STATUS_OK)
        refdata_checks_wake(sweep->checks);
    end_run(sweep);
}

/* ---- one sweep per database ---- */

void refdata_sweeps_start(struct refdata *refdata)
{
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (size_t i = 0; i < catalog->database_count; i++) {
        struct refdata_database *database = catalog->databases[i];
        if (database->sweep) {
            task_wake(database->sweep->task); /* new dictionaries are not kept waiting */
            continue;
        }
        database->sweep = memory_zalloc(sizeof *database->sweep);
        database->sweep->database = database;
        database->sweep->checks = refdata_checks_create(refdata, database);
        database->sweep->task = task_create(&(struct task_config){.name = "sweep",
                                                                  .loop = refdata->home,
                                                                  .pool = refdata->loaders,
                                                                  .prepare = sweep_prepare,
                                                                  .run = sweep_step,
                                                                  .finish = sweep_finish,
                                                                  .context = database->sweep});
        task_start(database->sweep->task, TASK_NOW);
    }
}

void refdata_sweep_now(struct refdata_database *database)
{
    task_wake(database->sweep->task);
}

void refdata_sweep_stop(struct refdata_sweep *sweep)
{
    (void)task_stop(sweep->task, TASK_FOREVER);
    if (sweep->checks)
        refdata_checks_destroy(sweep->checks);
    sweep->checks = NULL;
}

void refdata_sweep_destroy(struct refdata_sweep *sweep)
{
    if (!sweep)
        return;
    refdata_sweep_stop(sweep); /* where the loops never ran */
    task_destroy(sweep->task);
    end_run(sweep);
    free(sweep);
}
