/* Checks of what is held, beside the sweep, which wakes them: so that neither versions nor loads wait for them.
 *
 * Drift (R18): driftCheckSql of the pairs held, compared with its previous value. A value that changed while the version did
 * not means that data was changed without a new version: a metric and a log line report it. Value and version are read in
 * one transaction: a change of both is not drift.
 *
 * Audits (R16): every digestCheckInterval a pair that is kept fresh by DELTA reloads is built both ways, by its changes
 * and from everything, in one transaction, and the digests are compared. They differ when data was changed
 * without naming its keys: the pair is then loaded in full. One pair at a time. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "loop/task.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"

enum { DRIFT_CHECKS_MAX = 100, DRIFT_TIMEOUT_MS = 5000 };

struct drift_check {
    struct refdata_dictionary *dictionary; /* referenced */
    struct str tenant;
    int64_t value;
    int64_t version; /* -1 = it could not be checked */
};

struct refdata_checks {
    struct refdata *refdata;
    struct refdata_database *database; /* the sweep's */
    struct task *task;
    /* of one run: */
    struct arena arena;
    struct drift_check drift[DRIFT_CHECKS_MAX];
    size_t drift_count;
    struct refdata_load audit; /* dictionary NULL = none is due */
    bool differs;
    int64_t version;
};

/* ---- on the home loop: what is due ---- */

static bool is_drift_due(const struct refdata_holding *holding)
{
    const struct refdata_dictionary *dictionary = holding->dictionary;
    int64_t interval_ns =
        atomic_load(&holding->refdata->catalog)->cache.drift_check_interval_ms * CLOCK_NS_PER_MS;
    return dictionary->sql[REFDATA_DRIFT_CHECK].given && !atomic_load(&dictionary->drift_refused) &&
           clock_mono_ns() - holding->drift_checked_at_ns >= interval_ns;
}

/* Not all pods, nor all pairs of one, at the same moment. */
static int64_t next_audit_ns(const struct refdata *refdata)
{
    int64_t interval_ms = atomic_load(&refdata->catalog)->cache.digest_check_ms;
    return clock_deadline_ms(interval_ms + (int64_t)(random_u64() % (uint64_t)(interval_ms / 4 + 1)));
}

static bool is_audit_due(struct refdata_holding *holding)
{
    if (atomic_load(&holding->refdata->catalog)->cache.digest_check_ms == 0 || !holding->dictionary->delta ||
        holding->basis != BASIS_HELD || !cache_slot_read(&holding->slot))
        return false;
    if (holding->audit_at_ns == 0)
        holding->audit_at_ns = next_audit_ns(holding->refdata);
    return holding->audit_at_ns <= loop_now_ns(holding->refdata->home);
}

static bool is_checked(const struct refdata_holding *holding, const struct refdata_checks *checks)
{
    return holding && holding->dictionary->database == checks->database &&
           atomic_load(&holding->dictionary->state) == REFDATA_READY;
}

void refdata_checks_wake(struct refdata_checks *checks)
{
    const struct refdata_table *table = checks->refdata->own;
    for (size_t i = 0; i <= table->mask; i++) {
        struct refdata_holding *holding = table->slots[i];
        if (is_checked(holding, checks) && (is_drift_due(holding) || is_audit_due(holding))) {
            task_wake(checks->task);
            return;
        }
    }
}

static void forget_run(struct refdata_checks *checks)
{
    while (checks->drift_count)
        refdata_dictionary_unref(checks->drift[--checks->drift_count].dictionary);
    if (checks->audit.dictionary)
        refdata_load_end(&checks->audit);
    checks->audit.dictionary = NULL;
    checks->differs = false;
    arena_reset(&checks->arena);
}

static void checks_prepare(void *context)
{
    struct refdata_checks *checks = context;
    const struct refdata_table *table = checks->refdata->own;
    struct refdata_holding *audited = NULL; /* the one that is due longest */
    forget_run(checks);
    for (size_t i = 0; i <= table->mask; i++) {
        struct refdata_holding *holding = table->slots[i];
        if (!is_checked(holding, checks))
            continue;
        if (checks->drift_count < DRIFT_CHECKS_MAX && is_drift_due(holding)) {
            holding->drift_checked_at_ns = clock_mono_ns();
            checks->drift[checks->drift_count++] =
                (struct drift_check){.dictionary = refdata_dictionary_ref(holding->dictionary),
                                     .tenant = arena_str(&checks->arena, holding->tenant)};
        }
        if (is_audit_due(holding) && (!audited || holding->audit_at_ns < audited->audit_at_ns))
            audited = holding;
    }
    if (!audited)
        return;
    refdata_load_begin(&checks->audit, audited, true, &checks->arena);
    audited->audit_at_ns = next_audit_ns(checks->refdata);
}

/* ---- on a worker ---- */

static enum status check_drift(struct refdata_database *database, struct drift_check *check,
                               struct error *error)
{
    const struct db_statement *statement = &check->dictionary->sql[REFDATA_DRIFT_CHECK].statement;
    const struct str values[REFDATA_PARAMETERS] = {[REFDATA_TENANT_ID] = check->tenant};
    int64_t deadline_ns = clock_deadline_ms(DRIFT_TIMEOUT_MS);
    struct refdata_committed committed = {0};
    struct db_param params[DB_PARAMS_MAX];
    struct db_result *result = NULL;
    struct db_conn *conn = NULL;
    enum status status = db_acquire_long(database->site.pool, deadline_ns, &conn, error);
    refdata_dictionary_bind(statement, values, params);
    if (status == STATUS_OK)
        status = db_begin(conn, DB_REPEATABLE_READ_ONLY, deadline_ns, error);
    if (status == STATUS_OK)
        status = refdata_loader_version(conn, check->tenant, check->dictionary->code, deadline_ns, &committed,
                                        error);
    if (status == STATUS_OK)
        status = refdata_provider_plan_freely(conn, deadline_ns, error);
    if (status == STATUS_OK)
        status = db_query(conn, statement, params, deadline_ns, &result, error);
    if (status == STATUS_OK && db_result_rows(result) != 1)
        status = error_set(error, STATUS_DB_ERROR, "one row was expected, not %zu", db_result_rows(result));
    if (status == STATUS_OK) {
        check->version = committed.version;
        check->value = db_result_i64(result, 0, 0);
    }
    db_result_free(result);
    db_release(conn);
    return status;
}

static int64_t checks_step(struct task *task, void *context)
{
    struct refdata_checks *checks = context;
    enum status status = STATUS_OK;
    (void)task;
    for (size_t i = 0; i < checks->drift_count; i++) {
        struct drift_check *check = &checks->drift[i];
        struct error error = {0};
        check->version = -1;
        if (status == STATUS_DB_DOWN || status == STATUS_CANCELLED)
            continue; /* without a server the rest would fail the same way */
        status = check_drift(checks->database, check, &error);
        if (status != STATUS_OK && status != STATUS_CANCELLED)
            log_warn("drift_check_failed", LOG_STR("tenantId", check->tenant),
                     LOG_STR("dictCode", check->dictionary->code), LOG_ERROR_FIELDS(&error));
    }
    checks->differs = checks->audit.dictionary && refdata_loader_differs(&checks->audit, &checks->version);
    return TASK_IDLE;
}

/* ---- back on the home loop ---- */

static void checks_finish(void *context)
{
    struct refdata_checks *checks = context;
    const struct refdata_table *table = checks->refdata->own;
    struct refdata_holding *holding;
    for (size_t i = 0; i < checks->drift_count; i++) {
        const struct drift_check *check = &checks->drift[i];
        holding = refdata_table_find(table, check->tenant, check->dictionary->code);
        if (check->version < 0 || !holding || holding->dictionary != check->dictionary)
            continue;
        if (holding->drift_version == check->version && holding->drift_value != check->value)
            log_warn(
                "dictionary_drift", LOG_STR("tenantId", holding->tenant), LOG_STR("dictCode", holding->code),
                LOG_INT("version", check->version), LOG_INT("before", holding->drift_value),
                LOG_INT("now", check->value),
                LOG_CSTR("meaning",
                         "the data changed and dictionary_meta.version did not: readers may not see it"));
        holding->drift_value = check->value;
        holding->drift_version = check->version;
        refdata_metrics_drift(holding);
    }
    holding = checks->differs
                  ? refdata_table_find(table, checks->audit.tenant, checks->audit.dictionary->code)
                  : NULL;
    if (holding && holding->dictionary == checks->audit.dictionary) {
        refdata_metrics_count(REFDATA_MISMATCHES, holding->code);
        log_error(
            "dictionary_digest_mismatch", LOG_STR("tenantId", holding->tenant),
            LOG_STR("dictCode", holding->code), LOG_INT("version", checks->version),
            LOG_CSTR("meaning",
                     "data changed without its keys in refdata.outbox_event: all of it is loaded again"));
        if (holding->basis == BASIS_HELD)
            holding->basis = BASIS_NONE;
        refdata_schedule_want(holding, 0);
    }
    forget_run(checks);
}

/* ---- life ---- */

struct refdata_checks *refdata_checks_create(struct refdata *refdata, struct refdata_database *database)
{
    struct refdata_checks *checks = memory_zalloc(sizeof *checks);
    checks->refdata = refdata;
    checks->database = database;
    checks->arena = ARENA(1024);
    checks->task = task_create(&(struct task_config){.name = "checks",
                                                     .loop = refdata->home,
                                                     .pool = refdata->loaders,
                                                     .prepare = checks_prepare,
                                                     .run = checks_step,
                                                     .finish = checks_finish,
                                                     .context = checks});
    task_start(checks->task, TASK_IDLE);
    return checks;
}

void refdata_checks_destroy(struct refdata_checks *checks)
{
    task_stop(checks->task, TASK_FOREVER);
    task_destroy(checks->task);
    forget_run(checks);
    arena_deinit(&checks->arena);
    free(checks);
}
