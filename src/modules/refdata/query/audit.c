/* Audits (R16): every digestCheckInterval a pair that is kept fresh by DELTA reloads is built both ways, by its changes
 * and from everything, in one transaction, and the digests are compared. They differ when data was changed
 * without naming its keys: the pair is then loaded in full.
 *
 * One at a time per database and beside the loads, so that freshness does not wait for it. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/query/query.h"

struct audit_job {
    struct worker_job job;
    struct refdata *refdata;
    struct refdata_load load; /* its dictionary and base are referenced */
    struct arena arena;
    enum refdata_audit_verdict verdict;
    int64_t version;
    struct error error;
};

/* Not all pods, nor all pairs of one, at the same moment. */
static int64_t next_audit_ns(const struct refdata *refdata)
{
    int64_t interval_ms = refdata->settings.digest_check_ms;
    return clock_deadline_ms(interval_ms + (int64_t)(random_u64() % (uint64_t)(interval_ms / 4 + 1)));
}

static void run_audit(struct worker_job *worker_job)
{
    struct audit_job *job = (struct audit_job *)worker_job;
    job->verdict = refdata_loader_audit(&job->load, &job->version, &job->error);
}

static void free_job(struct audit_job *job)
{
    cache_snapshot_unref(job->load.base);
    refdata_dictionary_unref(job->load.dictionary);
    arena_deinit(&job->arena);
    free(job);
}

static void repair(struct refdata_holding *holding, int64_t version)
{
    refdata_metrics_count(REFDATA_MISMATCHES, holding->code);
    log_error("dictionary_digest_mismatch", LOG_STR("tenantId", holding->tenant),
              LOG_STR("dictCode", holding->code), LOG_INT("version", version),
              LOG_CSTR("meaning",
                       "data changed without its keys in refdata.outbox_event: all of it is loaded anew"));
    holding->whole = true;
    refdata_schedule_want(holding, 0);
}

static void audit_done(struct worker_job *worker_job)
{
    struct audit_job *job = (struct audit_job *)worker_job;
    struct refdata_dictionary *dictionary = job->load.dictionary;
    struct refdata_holding *holding =
        refdata_table_find(job->refdata->own, job->load.tenant, dictionary->code);
    dictionary->database->auditing = false;
    if (job->verdict == REFDATA_AUDIT_DIFFERS && !job->job.cancelled && holding &&
        holding->dictionary == dictionary)
        repair(holding, job->version);
    free_job(job);
}

static bool is_due(struct refdata_holding *holding, const struct refdata_database *database, int64_t now_ns)
{
    const struct refdata_dictionary *dictionary = holding->dictionary;
    if (dictionary->database != database || !dictionary->delta || holding->whole ||
        atomic_load(&dictionary->state) != REFDATA_READY || !cache_slot_read(&holding->slot))
        return false;
    if (holding->audit_at_ns == 0)
        holding->audit_at_ns = next_audit_ns(holding->refdata);
    return holding->audit_at_ns <= now_ns;
}

static void audit(struct refdata_holding *holding)
{
    struct refdata *refdata = holding->refdata;
    struct audit_job *job = memory_zalloc(sizeof *job);
    job->job = (struct worker_job){.loop = refdata->home, .run = run_audit, .done = audit_done};
    job->refdata = refdata;
    arena_init(&job->arena, 1024);
    job->load = (struct refdata_load){
        .dictionary = refdata_dictionary_ref(holding->dictionary),
        .tenant = arena_str(&job->arena, holding->tenant),
        .timeout_ms = refdata->settings.load_timeout_ms,
        .memory_max = (uint64_t)refdata->settings.memory_bytes_max,
        .payload_bytes_max = refdata_loader_payload_max(refdata),
        .base = cache_slot_acquire(&holding->slot),
        .arena = &job->arena,
    };
    refdata_loader_compare_with(&job->load, holding);
    holding->audit_at_ns = next_audit_ns(refdata);
    holding->dictionary->database->auditing = worker_pool_submit(refdata->loaders, &job->job);
    if (!holding->dictionary->database->auditing)
        free_job(job);
}

void refdata_audit_check(struct refdata *refdata, struct refdata_database *database)
{
    int64_t now_ns = loop_now_ns(refdata->home);
    struct refdata_holding *due = NULL;
    if (database->auditing || refdata->settings.digest_check_ms == 0)
        return;
    for (size_t i = 0; i <= refdata->own->mask; i++) {
        struct refdata_holding *holding = refdata->own->slots[i];
        if (holding && is_due(holding, database, now_ns) && (!due || holding->audit_at_ns < due->audit_at_ns))
            due = holding;
    }
    if (due)
        audit(due);
}
