/* Drift checks (R18): driftCheckSql of the pairs held, compared with its previous value. A value that changed while the
 * version did not means that data was changed without a new version: a metric and a log line report it.
 *
 * They run in a job of their own after a sweep, one at a time per database, so that a slow check does not delay versions. Value
 * and version are read in one transaction: a change of both is not drift. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"

enum { CHECKS_MAX = 100, CHECK_TIMEOUT_MS = 5000 };

struct drift_check {
    struct refdata_dictionary *dictionary; /* referenced */
    char *tenant;
    size_t tenant_len;
    bool known; /* the rest is */
    int64_t value, version;
};

struct drift_job {
    struct worker_job job;
    struct refdata *refdata;
    struct refdata_database *database; /* referenced */
    size_t count;
    struct drift_check checks[];
};

/* ---- on the worker ---- */

static enum status read_value(struct db_conn *conn, struct drift_check *check, int64_t deadline_ns,
                              struct error *error)
{
    const struct db_statement *statement = &check->dictionary->sql[REFDATA_DRIFT_CHECK].statement;
    struct str values[REFDATA_PARAMETERS] = {[REFDATA_TENANT_ID] = str_of(check->tenant, check->tenant_len)};
    struct db_param params[DB_PARAMS_MAX];
    struct db_result *result = NULL;
    refdata_dictionary_bind(statement, values, params);
    enum status status = refdata_provider_plan_freely(conn, deadline_ns, error);
    if (status == STATUS_OK)
        status = db_query(conn, statement, params, deadline_ns, &result, error);
    if (status == STATUS_OK && db_result_rows(result) != 1)
        status = error_set(error, STATUS_DB_ERROR, "one row was expected, not %zu", db_result_rows(result));
    if (status == STATUS_OK)
        check->value = db_result_i64(result, 0, 0);
    db_result_free(result);
    return status;
}

static enum status check_one(struct refdata_database *database, struct drift_check *check,
                             struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(CHECK_TIMEOUT_MS);
    struct refdata_committed committed = {0};
    struct db_conn *conn = NULL;
    enum status status = db_acquire_long(database->site.pool, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_begin(conn, DB_REPEATABLE_READ_ONLY, deadline_ns, error);
    if (status == STATUS_OK)
        status = refdata_loader_version(conn, str_of(check->tenant, check->tenant_len),
                                        check->dictionary->code, deadline_ns, &committed, error);
    check->version = committed.version;
    if (status == STATUS_OK)
        status = read_value(conn, check, deadline_ns, error);
    if (conn) {
        db_rollback(conn);
        db_release(conn);
    }
    return status;
}

static void run_checks(struct worker_job *worker_job)
{
    struct drift_job *job = (struct drift_job *)worker_job;
    enum status status = STATUS_OK;
    /* Without a server the rest would fail the same way. */
    for (size_t i = 0; i < job->count && status != STATUS_DB_DOWN && status != STATUS_CANCELLED; i++) {
        struct drift_check *check = &job->checks[i];
        struct error error = {0};
        status = check_one(job->database, check, &error);
        check->known = status == STATUS_OK;
        if (status != STATUS_OK && status != STATUS_CANCELLED)
            log_warn("drift_check_failed", LOG_STR("tenantId", str_of(check->tenant, check->tenant_len)),
                     LOG_STR("dictCode", check->dictionary->code), LOG_ERROR_FIELDS(&error));
    }
}

/* ---- on the home loop ---- */

static void compare(struct refdata_holding *holding, const struct drift_check *check)
{
    bool moved = holding->drift_known && holding->drift_value != check->value;
    if (moved && holding->drift_version == check->version)
        log_warn("dictionary_drift", LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
                 LOG_INT("version", check->version), LOG_INT("before", holding->drift_value),
                 LOG_INT("now", check->value),
                 LOG_CSTR("meaning",
                          "the data changed and dictionary_meta.version did not: readers may not see it"));
    holding->drift_known = true;
    holding->drift_value = check->value;
    holding->drift_version = check->version;
    refdata_metrics_drift(holding);
}

static void free_job(struct drift_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        refdata_dictionary_unref(job->checks[i].dictionary);
        free(job->checks[i].tenant);
    }
    refdata_database_unref(job->database);
    free(job);
}

static void checks_done(struct worker_job *worker_job)
{
    struct drift_job *job = (struct drift_job *)worker_job;
    job->database->drift_checking = false;
    for (size_t i = 0; i < job->count && !job->job.cancelled; i++) {
        const struct drift_check *check = &job->checks[i];
        struct refdata_holding *holding = refdata_table_find(
            job->refdata->own, str_of(check->tenant, check->tenant_len), check->dictionary->code);
        if (check->known && holding && holding->dictionary == check->dictionary)
            compare(holding, check);
    }
    free_job(job);
}

static bool is_due(const struct refdata_holding *holding, const struct refdata_database *database,
                   int64_t now_ns)
{
    int64_t interval_ns = holding->refdata->settings.drift_check_interval_ms * CLOCK_NS_PER_MS;
    return holding->dictionary->database == database && holding->dictionary->sql[REFDATA_DRIFT_CHECK].given &&
           atomic_load(&holding->dictionary->state) == REFDATA_READY &&
           !atomic_load(&holding->dictionary->drift_refused) &&
           now_ns - holding->drift_checked_at_ns >= interval_ns;
}

static void take_due(struct drift_job *job)
{
    int64_t now_ns = clock_mono_ns();
    const struct refdata_table *table = job->refdata->own;
    for (size_t i = 0; i <= table->mask && job->count < CHECKS_MAX; i++) {
        struct refdata_holding *holding = table->slots[i];
        if (!holding || !is_due(holding, job->database, now_ns))
            continue;
        holding->drift_checked_at_ns = now_ns;
        job->checks[job->count++] = (struct drift_check){
            .dictionary = refdata_dictionary_ref(holding->dictionary),
            .tenant = str_dup(holding->tenant),
            .tenant_len = holding->tenant.len,
        };
    }
}

void refdata_drift_check(struct refdata *refdata, struct refdata_database *database)
{
    if (database->drift_checking)
        return;
    struct drift_job *job = memory_zalloc(sizeof *job + CHECKS_MAX * sizeof job->checks[0]);
    job->job = (struct worker_job){.loop = refdata->home, .run = run_checks, .done = checks_done};
    job->refdata = refdata;
    job->database = refdata_database_ref(database);
    take_due(job);
    database->drift_checking = job->count && worker_pool_submit(refdata->loaders, &job->job);
    if (!database->drift_checking)
        free_job(job);
}
