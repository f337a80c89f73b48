/* One load: a whole dictionary of one tenant, on a worker. Data and version are read in one REPEATABLE READ
 * transaction, so that data is never labelled with a version it is not (R13). */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"

struct load_job {
    struct worker_job job;
    struct refdata_holding *holding; /* the home loop's: not touched on the worker */
    struct refdata_load load;        /* its dictionary is referenced, its tenant is the copy below */
    char *tenant;
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

static enum status load_in_transaction(const struct refdata_load *load, struct db_conn *conn,
                                       int64_t deadline_ns, struct refdata_loaded *loaded)
{
    struct error *error = &loaded->error;
    const struct refdata_dictionary *dictionary = load->dictionary;
    int64_t version = 0;
    /* The pool's own limit is for small statements. */
    enum status status = db_transaction_timeout(conn, load->timeout_ms, deadline_ns, error);
    if (status == STATUS_OK)
        status = refdata_loader_version(conn, load->tenant, dictionary->code, deadline_ns, &version,
                                        &loaded->committed_at_us, error);
    if (status != STATUS_OK)
        return status;
    struct cache_builder *builder = cache_builder_create(NULL, load->memory_max);
    status = dictionary->provider->load_all(dictionary, load->tenant, conn, deadline_ns, builder, error);
    if (status != STATUS_OK) {
        cache_builder_abandon(builder);
        return status;
    }
    loaded->replaced = cache_builder_replaced(builder);
    loaded->snapshot = cache_builder_finish(builder, version);
    return STATUS_OK;
}

void refdata_loader_load(const struct refdata_load *load, struct refdata_loaded *loaded)
{
    int64_t began_ns = clock_mono_ns(), deadline_ns = clock_deadline_ms(load->timeout_ms);
    struct db_conn *conn = NULL;
    *loaded = (struct refdata_loaded){.dictionary = load->dictionary};
    enum status status = db_acquire(load->dictionary->database->pool, deadline_ns, &conn, &loaded->error);
    if (status == STATUS_OK)
        status = db_begin(conn, DB_REPEATABLE_READ_ONLY, deadline_ns, &loaded->error);
    if (status == STATUS_OK)
        status = load_in_transaction(load, conn, deadline_ns, loaded);
    if (conn) {
        db_rollback(conn); /* read only: nothing to commit */
        db_release(conn);
    }
    loaded->status = status;
    loaded->seconds = (double)(clock_mono_ns() - began_ns) / 1e9;
}

/* ---- as a job of the home loop's ---- */

static void run_load(struct worker_job *worker_job)
{
    struct load_job *job = (struct load_job *)worker_job;
    refdata_loader_load(&job->load, &job->loaded);
}

static void load_done(struct worker_job *worker_job)
{
    struct load_job *job = (struct load_job *)worker_job;
    if (job->job.cancelled)
        job->loaded.status = error_set(&job->loaded.error, STATUS_CANCELLED, "the process is stopping");
    job->loaded.dictionary = job->load.dictionary;
    refdata_schedule_loaded(job->holding, &job->loaded);
    refdata_dictionary_unref(job->load.dictionary);
    free(job->tenant);
    free(job);
}

bool refdata_loader_start(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct load_job *job = memory_zalloc(sizeof *job);
    job->job = (struct worker_job){.loop = refdata->home, .run = run_load, .done = load_done};
    job->holding = holding;
    job->tenant = str_dup(holding->tenant);
    job->load = (struct refdata_load){
        .dictionary = refdata_dictionary_ref(holding->dictionary),
        .tenant = str_of(job->tenant, holding->tenant.len),
        .timeout_ms = refdata->settings.load_timeout_ms,
        .memory_max = (uint64_t)refdata->settings.memory_bytes_max,
    };
    if (worker_pool_submit(refdata->loaders, &job->job))
        return true;
    refdata_dictionary_unref(job->load.dictionary);
    free(job->tenant);
    free(job);
    return false;
}
