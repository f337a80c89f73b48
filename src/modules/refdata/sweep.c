/* The sweep: once a second, one look at each database. It puts the schema in place, has PostgreSQL check templates that
 * were not checked yet (R15), compares every version held with dictionary_meta in one query (R14), finds tenants for
 * preloads with a star (R17). Alone it is enough to keep a pod fresh. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/flow.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"

enum {
    SWEEP_TIMEOUT_MS = 5000,
    MIGRATE_TIMEOUT_MS = 120000,
    RETRY_MS = 1000,
    RECHECK_MS = 10000, /* a refused template is tried again: its table may have been made since */
};

struct refdata_sweep {
    struct refdata_sweep *next;
    struct refdata *refdata;
    struct refdata_database *database; /* referenced */
    struct loop_timer timer;
    bool running, gone;
    bool again; /* asked for while it ran: what it saw may be older than what it was asked for */
};

struct held_pair {
    struct str tenant, code;
    struct refdata_committed committed; /* as found */
    const struct cache_snapshot *local; /* as held then, not referenced: to be compared, not read */
    struct refdata_holding *holding;    /* found again on the home loop */
};

struct sweep_job {
    struct worker_job job;
    struct refdata_sweep *sweep;
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

static void check_one(struct sweep_job *job, struct db_conn *conn, struct refdata_dictionary *dictionary)
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
        job->status = status; /* could not be asked: the next sweep tries again */
        job->error = error;
    }
}

static enum status read_versions(struct sweep_job *job, struct db_conn *conn)
{
    struct db_result *result = NULL;
    struct buf tenants, codes;
    buf_init(&tenants), buf_init(&codes);
    db_array_begin(&tenants), db_array_begin(&codes);
    for (size_t i = 0; i < job->pair_count; i++) {
        db_array_put(&tenants, job->pairs[i].tenant);
        db_array_put(&codes, job->pairs[i].code);
    }
    db_array_end(&tenants), db_array_end(&codes);
    enum status status = db_query(conn, &versions_sql,
                                  DB_PARAMS(db_text_array(buf_str(&tenants)), db_text_array(buf_str(&codes))),
                                  clock_deadline_ms(SWEEP_TIMEOUT_MS), &result, &job->error);
    for (size_t i = 0; status == STATUS_OK && i < job->pair_count && i < db_result_rows(result); i++) {
        job->pairs[i].committed.version = db_result_i64(result, i, 0);
        job->pairs[i].committed.event = refdata_loader_event(result, i, 1);
    }
    db_result_free(result);
    buf_deinit(&tenants), buf_deinit(&codes);
    return status;
}

static enum status find_tenants(struct sweep_job *job, struct db_conn *conn)
{
    struct db_result *result = NULL;
    enum status status = db_query(conn, &tenants_sql, DB_PARAMS(db_text_array(buf_str(&job->starred))),
                                  clock_deadline_ms(SWEEP_TIMEOUT_MS), &result, &job->error);
    if (status == STATUS_OK) {
        job->found_count = db_result_rows(result);
        job->found = arena_zalloc(&job->arena, (job->found_count + 1) * sizeof *job->found);
    }
    for (size_t i = 0; i < job->found_count; i++) {
        job->found[i].tenant = arena_str(&job->arena, db_result_str(result, i, 0));
        job->found[i].code = arena_str(&job->arena, db_result_str(result, i, 1));
    }
    db_result_free(result);
    return status;
}

static void look(struct sweep_job *job, struct db_conn *conn)
{
    for (size_t i = 0; i < job->unchecked_count && job->status == STATUS_OK; i++)
        check_one(job, conn, job->unchecked[i]);
    if (job->status == STATUS_OK && job->pair_count)
        job->status = read_versions(job, conn);
    if (job->status == STATUS_OK && buf_len(&job->starred))
        job->status = find_tenants(job, conn);
}

static void run_sweep(struct worker_job *worker_job)
{
    struct sweep_job *job = (struct sweep_job *)worker_job;
    struct refdata_database *database = job->sweep->database;
    struct db_conn *conn = NULL;
    job->status = refdata_database_prepare(database, clock_deadline_ms(MIGRATE_TIMEOUT_MS), &job->error);
    if (job->status == STATUS_OK)
        job->status =
            db_acquire(database->site.pool, clock_deadline_ms(SWEEP_TIMEOUT_MS), &conn, &job->error);
    if (conn) {
        look(job, conn);
        db_release(conn);
    }
    kernel_site_report(&database->site, job->status, &job->error);
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

static void apply_found(struct refdata *refdata, const struct held_pair *found)
{
    struct refdata_dictionary *dictionary = refdata_catalog_find(atomic_load(&refdata->catalog), found->code);
    struct refdata_holding *holding = dictionary && str_is_name(found->tenant)
                                          ? refdata_keeper_hold(refdata, found->tenant, dictionary)
                                          : NULL;
    if (!holding || holding->preload)
        return;
    holding->preload = true;
    if (!cache_slot_read(&holding->slot))
        refdata_schedule_want(holding, refdata_schedule_jitter_ms(refdata));
}

/* Jitter is for many pods that load much in step (R13): a single change is loaded at once. */
static void apply_versions(struct sweep_job *job)
{
    struct refdata *refdata = job->sweep->refdata;
    size_t behind = 0;
    for (size_t i = 0; i < job->pair_count; i++) {
        struct held_pair *pair = &job->pairs[i];
        pair->holding = refdata_table_find(refdata->own, pair->tenant, pair->code);
        behind += pair->holding && is_behind(pair->holding, pair);
    }
    for (size_t i = 0; i < job->pair_count; i++)
        if (job->pairs[i].holding)
            apply_version(job->pairs[i].holding, &job->pairs[i], behind > 1);
}

static void apply(struct sweep_job *job)
{
    struct refdata *refdata = job->sweep->refdata;
    for (size_t i = 0; i < job->unchecked_count; i++)
        if (atomic_load(&job->unchecked[i]->state) != REFDATA_UNCHECKED)
            refdata_schedule_checked(refdata, job->unchecked[i]);
    for (size_t i = 0; i < job->found_count; i++)
        apply_found(refdata, &job->found[i]);
    if (job->status == STATUS_OK)
        apply_versions(job);
    if (atomic_load(&job->sweep->database->site.is_ready))
        refdata_flow_start_of(refdata, job->sweep->database);
    refdata_keeper_update_health(refdata);
}

static void free_job(struct sweep_job *job)
{
    for (size_t i = 0; i < job->unchecked_count; i++)
        refdata_dictionary_unref(job->unchecked[i]);
    buf_deinit(&job->starred);
    arena_deinit(&job->arena);
    free(job);
}

static void free_sweep(struct refdata_sweep *sweep)
{
    refdata_database_unref(sweep->database);
    free(sweep);
}

static void on_timer(struct loop_timer *timer);

/* After a failure soon again, however seldom versions are compared. */
static int64_t next_sweep_ms(const struct refdata *refdata, enum status status)
{
    int64_t interval_ms = refdata->settings.sweep_interval_ms;
    return status != STATUS_OK && interval_ms > RETRY_MS ? RETRY_MS : interval_ms;
}

static void sweep_done(struct worker_job *worker_job)
{
    struct sweep_job *job = (struct sweep_job *)worker_job;
    struct refdata_sweep *sweep = job->sweep;
    struct refdata *refdata = sweep->refdata;
    sweep->running = false;
    if (!sweep->gone && !job->job.cancelled) {
        apply(job);
        int64_t pause_ms = sweep->again ? 0 : next_sweep_ms(refdata, job->status);
        loop_timer_start(refdata->home, &sweep->timer, clock_deadline_ms(pause_ms), on_timer);
        if (job->status == STATUS_OK) {
            refdata_drift_check(refdata, sweep->database);
            refdata_audit_check(refdata, sweep->database);
        }
    }
    free_job(job);
    if (sweep->gone)
        free_sweep(sweep);
}

/* ---- setting out ---- */

static void take_unchecked(struct sweep_job *job, const struct refdata_catalog *catalog)
{
    int64_t recheck_before_ns = clock_mono_ns() - RECHECK_MS * CLOCK_NS_PER_MS;
    job->unchecked =
        arena_alloc(&job->arena, (catalog->dictionary_count + 1) * sizeof(struct refdata_dictionary *));
    for (size_t i = 0; i < catalog->dictionary_count; i++) {
        struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        enum refdata_dictionary_state state = atomic_load(&dictionary->state);
        bool refused = state == REFDATA_DISABLED || atomic_load(&dictionary->drift_refused);
        if (dictionary->database == job->sweep->database &&
            (state == REFDATA_UNCHECKED || (refused && dictionary->checked_at_ns < recheck_before_ns)))
            job->unchecked[job->unchecked_count++] = refdata_dictionary_ref(dictionary);
    }
}

static void take_pairs(struct sweep_job *job, const struct refdata_table *table)
{
    job->pairs = arena_zalloc(&job->arena, (table->count + 1) * sizeof *job->pairs);
    for (size_t i = 0; i <= table->mask; i++) {
        struct refdata_holding *holding = table->slots[i];
        if (!holding || holding->dictionary->database != job->sweep->database)
            continue;
        struct held_pair *pair = &job->pairs[job->pair_count++];
        pair->tenant = arena_str(&job->arena, holding->tenant);
        pair->code = arena_str(&job->arena, holding->code);
        pair->local = cache_slot_read(&holding->slot);
    }
}

static void take_starred(struct sweep_job *job, const struct refdata *refdata,
                         const struct refdata_catalog *catalog)
{
    for (size_t i = 0; i < refdata->settings.preload.count; i++) {
        struct str code = refdata->settings.preload.items[i], tenant;
        str_split(&code, '/', &tenant);
        struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
        if (!str_eq(tenant, STR("*")) || !dictionary || dictionary->database != job->sweep->database)
            continue;
        if (buf_len(&job->starred) == 0)
            db_array_begin(&job->starred);
        db_array_put(&job->starred, code);
    }
    if (buf_len(&job->starred))
        db_array_end(&job->starred);
}

static void on_timer(struct loop_timer *timer)
{
    struct refdata_sweep *sweep =
        (struct refdata_sweep *)((char *)timer - offsetof(struct refdata_sweep, timer));
    struct refdata *refdata = sweep->refdata;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    struct sweep_job *job = memory_zalloc(sizeof *job);
    job->job = (struct worker_job){.loop = refdata->home, .run = run_sweep, .done = sweep_done};
    job->sweep = sweep;
    sweep->again = false;
    arena_init(&job->arena, 4096);
    buf_init(&job->starred);
    take_unchecked(job, catalog);
    take_pairs(job, refdata->own);
    if (refdata_has_role(refdata, "query"))
        take_starred(job, refdata, catalog);
    sweep->running = worker_pool_submit(refdata->loaders, &job->job);
    if (!sweep->running)
        free_job(job); /* only when the module stops */
}

/* ---- one sweep per database ---- */

static bool is_swept(const struct refdata *refdata, const struct refdata_database *database)
{
    for (const struct refdata_sweep *sweep = refdata->sweeps; sweep; sweep = sweep->next)
        if (sweep->database == database)
            return true;
    return false;
}

static void end_sweep(struct refdata_sweep *sweep)
{
    loop_timer_stop(sweep->refdata->home, &sweep->timer);
    sweep->gone = true;
    if (!sweep->running)
        free_sweep(sweep);
}

void refdata_sweeps_start(struct refdata *refdata)
{
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    for (struct refdata_sweep **at = &refdata->sweeps; *at;) {
        struct refdata_sweep *sweep = *at;
        if (refdata_catalog_names(catalog, sweep->database)) {
            if (!sweep->running) /* new dictionaries are not kept waiting */
                loop_timer_start(refdata->home, &sweep->timer, clock_mono_ns(), on_timer);
            at = &sweep->next;
        } else {
            *at = sweep->next;
            end_sweep(sweep);
        }
    }
    for (size_t i = 0; i < catalog->database_count; i++) {
        if (is_swept(refdata, catalog->databases[i]))
            continue;
        struct refdata_sweep *sweep = memory_zalloc(sizeof *sweep);
        sweep->refdata = refdata;
        sweep->database = refdata_database_ref(catalog->databases[i]);
        sweep->next = refdata->sweeps;
        refdata->sweeps = sweep;
        loop_timer_start(refdata->home, &sweep->timer, clock_mono_ns(), on_timer);
    }
}

void refdata_sweep_now(struct refdata *refdata, const struct refdata_database *database)
{
    struct refdata_sweep *sweep = refdata->sweeps;
    while (sweep && sweep->database != database)
        sweep = sweep->next;
    if (sweep && sweep->running)
        sweep->again = true;
    else if (sweep)
        loop_timer_start(refdata->home, &sweep->timer, clock_mono_ns(), on_timer);
}

void refdata_sweeps_clear(struct refdata *refdata)
{
    while (refdata->sweeps) {
        struct refdata_sweep *sweep = refdata->sweeps;
        refdata->sweeps = sweep->next;
        end_sweep(sweep);
    }
}
