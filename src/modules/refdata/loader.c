/* One load: a whole dictionary of one tenant, on a worker. Data and version are read in one REPEATABLE READ
 * transaction, so that data is never labelled with a version it is not (R13). */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/refdata.h"

struct load_job {
    struct worker_job job;
    struct refdata_holding *holding;       /* the home loop's: not touched on the worker */
    struct refdata_dictionary *dictionary; /* referenced */
    char *tenant;
    size_t tenant_len;
    int64_t timeout_ms;
    uint64_t memory_max;
    struct refdata_loaded loaded;
};

/* By the primary key. */
static const char version_sql[] = "select version, (extract(epoch from updated_at) * 1000000)::bigint"
                                  "  from refdata.dictionary_meta where tenant_id = $1 and dict_code = $2";

enum status refdata_loader_version(struct db_conn *conn, struct str tenant, struct str code,
                                   int64_t deadline_ns, int64_t *version, int64_t *committed_at_us,
                                   struct error *error)
{
    struct db_statement statement;
    struct db_result *result = NULL;
    db_statement_init(&statement, version_sql, 2, (const enum db_type[]){DB_TEXT, DB_TEXT});
    const struct db_param params[] = {{tenant}, {code}};
    enum status status = db_query(conn, &statement, params, deadline_ns, &result, error);
    bool found = status == STATUS_OK && db_result_rows(result) == 1;
    *version = found ? db_result_i64(result, 0, 0) : 0;
    *committed_at_us = found ? db_result_i64(result, 0, 1) : 0;
    db_result_free(result);
    return status;
}

static enum status load_in_transaction(struct db_conn *conn, struct load_job *job, int64_t deadline_ns)
{
    struct error *error = &job->loaded.error;
    const struct refdata_dictionary *dictionary = job->dictionary;
    int64_t version = 0;
    /* The pool's own limit is for small statements. */
    enum status status = db_transaction_timeout(conn, job->timeout_ms, deadline_ns, error);
    if (status == STATUS_OK)
        status = refdata_loader_version(conn, str_of(job->tenant, job->tenant_len), dictionary->code,
                                        deadline_ns, &version, &job->loaded.committed_at_us, error);
    if (status != STATUS_OK)
        return status;
    struct cache_builder *builder = cache_builder_create(NULL, job->memory_max);
    status = dictionary->provider->load_all(dictionary, str_of(job->tenant, job->tenant_len), conn,
                                            deadline_ns, builder, error);
    if (status != STATUS_OK) {
        cache_builder_abandon(builder);
        return status;
    }
    job->loaded.replaced = cache_builder_replaced(builder);
    job->loaded.snapshot = cache_builder_finish(builder, version);
    return STATUS_OK;
}

static void run_load(struct worker_job *worker_job)
{
    struct load_job *job = (struct load_job *)worker_job;
    struct error *error = &job->loaded.error;
    int64_t began_ns = clock_mono_ns(), deadline_ns = clock_deadline_ms(job->timeout_ms);
    struct db_conn *conn = NULL;
    enum status status = db_acquire(job->dictionary->database->pool, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_begin(conn, DB_REPEATABLE_READ_ONLY, deadline_ns, error);
    if (status == STATUS_OK)
        status = load_in_transaction(conn, job, deadline_ns);
    if (conn) {
        db_rollback(conn); /* read only: nothing to commit */
        db_release(conn);
    }
    job->loaded.status = status;
    job->loaded.seconds = (double)(clock_mono_ns() - began_ns) / 1e9;
}

static void load_done(struct worker_job *worker_job)
{
    struct load_job *job = (struct load_job *)worker_job;
    if (job->job.cancelled)
        job->loaded.status = error_set(&job->loaded.error, STATUS_CANCELLED, "the process is stopping");
    job->loaded.dictionary = job->dictionary;
    refdata_schedule_loaded(job->holding, &job->loaded);
    refdata_dictionary_unref(job->dictionary);
    free(job->tenant);
    free(job);
}

bool refdata_loader_start(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct load_job *job = memory_zalloc(sizeof *job);
    job->job = (struct worker_job){.loop = refdata->home, .run = run_load, .done = load_done};
    job->holding = holding;
    job->dictionary = refdata_dictionary_ref(holding->dictionary);
    job->tenant = str_dup(holding->tenant);
    job->tenant_len = holding->tenant.len;
    job->timeout_ms = refdata->settings.load_timeout_ms;
    job->memory_max = (uint64_t)refdata->settings.memory_bytes_max;
    if (worker_pool_submit(refdata->loaders, &job->job))
        return true;
    refdata_dictionary_unref(job->dictionary);
    free(job->tenant);
    free(job);
    return false;
}
