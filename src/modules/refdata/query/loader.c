/* One load on a worker: a whole dictionary of one tenant, or what changed in it. Data and version are read in one
 * REPEATABLE READ transaction, so that data is never labelled with a version it is not (R13).
 *
 *     BEGIN, version, changes since the base or the settings of a load of everything      one round trip
 *     the changed keys, or everything                                                     another
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/memory.h"
#include "modules/refdata/provider.h"
#include "modules/refdata/query/query.h"

#define ROW_BYTES_MAX (16u << 20)
enum {
    ATTEMPTS = 2
}; /* DB_RETRY: a prepared statement was dropped, and the next attempt prepares it again */

static const struct db_statement begin_sql = DB_STATEMENT("begin isolation level repeatable read read only");
/* By the primary key. */
static const struct db_statement version_sql =
    DB_STATEMENT("select version, (extract(epoch from updated_at) * 1000000)::bigint, last_event_id"
                 "  from refdata.dictionary_meta where tenant_id = $1 and dict_code = $2");

/* The same with the event that the version after the one held was made upon, by the index (tenant_id, dict_code,
 * version): as a join, a table without statistics would have every version of the pair read. */
static const struct db_statement meta_sql = DB_STATEMENT(
    "select m.version, (extract(epoch from m.updated_at) * 1000000)::bigint, m.last_event_id,"
    "       (select o.previous_event_id from refdata.outbox_event o where o.tenant_id = m.tenant_id"
    "           and o.dict_code = m.dict_code and o.version = $3)"
    "  from refdata.dictionary_meta m where m.tenant_id = $1 and m.dict_code = $2");
enum { VERSION, COMMITTED_AT, EVENT, HELD_EVENT };

/* Before everything is loaded: the pool's own limit is for small statements, and its plans are for our own. */
static const struct db_statement widen_sql =
    DB_STATEMENT(DB_PLAN_FREELY_SQL ", set_config('statement_timeout', $1::text, true)");

struct uuid refdata_loader_event(const struct db_result *result, size_t row, unsigned column)
{
    struct uuid event = {{0}};
    if (!db_result_is_null(result, row, column) && !uuid_parse(db_result_str(result, row, column), &event))
        event = (struct uuid){{0}};
    return event;
}

static void take_version(const struct db_result *result, struct refdata_committed *committed)
{
    *committed = (struct refdata_committed){0};
    if (!result || db_result_rows(result) != 1)
        return;
    committed->version = db_result_i64(result, 0, VERSION);
    committed->at_us = db_result_i64(result, 0, COMMITTED_AT);
    committed->event = refdata_loader_event(result, 0, EVENT);
}

enum status refdata_loader_version(struct db_conn *conn, struct str tenant, struct str code,
                                   int64_t deadline_ns, struct refdata_committed *committed,
                                   struct error *error)
{
    struct db_result *result = NULL;
    enum status status =
        db_query(conn, &version_sql, DB_PARAMS(db_text(tenant), db_text(code)), deadline_ns, &result, error);
    take_version(status == STATUS_OK ? result : NULL, committed);
    db_result_free(result);
    return status;
}

/* ---- the transaction ---- */

struct opened {
    struct refdata_committed committed;
    bool is_fork;     /* what is held does not belong to this history */
    bool delta_known; /* what changed since the base is: */
    struct refdata_delta delta;
};

enum { BEGUN, META, CHANGES, QUESTIONS };

static enum status open_transaction(const struct refdata_load *load, int64_t deadline_ns,
                                    struct db_conn **conn, struct opened *opened, struct error *error)
{
    const struct cache_info *held = load->held ? cache_snapshot_info(load->held) : NULL;
    const struct db_param params[] = {db_text(load->tenant), db_text(load->dictionary->code),
                                      db_i64(held ? held->version + 1 : -1), DB_END};
    enum status status = db_acquire_long(load->dictionary->database->site.pool, deadline_ns, conn, error);
    bool is_last = false;
    for (unsigned attempt = 1; status == STATUS_OK && !is_last; attempt++) {
        struct db_result *results[QUESTIONS] = {NULL};
        db_pipeline_begin(*conn);
        db_pipeline_add(*conn, &begin_sql, DB_NO_PARAMS);
        db_pipeline_add(*conn, &meta_sql, params);
        if (load->is_delta)
            refdata_delta_ask(load, *conn);
        else
            db_pipeline_add(*conn, &widen_sql, DB_PARAMS(db_i64(load->timeout_ms)));
        status =
            db_pipeline_end(*conn, deadline_ns, results, load->is_delta ? QUESTIONS : CHANGES, NULL, error);
        is_last = status != STATUS_DB_RETRY || attempt == ATTEMPTS;
        if (status == STATUS_OK) {
            take_version(results[META], &opened->committed);
            /* Does what is held belong to the history of what is committed? Not known where the version after it has no row:
             * trimmed by age, or made by plain SQL. */
            bool is_newer = held && opened->committed.version > held->version;
            bool is_known = held && !(is_newer && db_result_is_null(results[META], 0, HELD_EVENT));
            struct uuid event = is_known && is_newer ? refdata_loader_event(results[META], 0, HELD_EVENT)
                                                     : opened->committed.event;
            opened->is_fork =
                is_known && (opened->committed.version < held->version || !uuid_eq(&event, &held->event));
            opened->delta_known =
                load->is_delta && is_known && !opened->is_fork &&
                refdata_delta_read(load, results[CHANGES], opened->committed.version, &opened->delta);
        } else if (!is_last) {
            db_rollback(*conn);
            status = STATUS_OK;
        }
        for (size_t i = 0; i < QUESTIONS; i++)
            db_result_free(results[i]);
    }
    return status;
}

/* ---- what is loaded in it ---- */

static enum status load_all(const struct refdata_load *load, struct db_conn *conn,
                            const struct refdata_committed *committed, int64_t deadline_ns,
                            struct refdata_loaded *loaded)
{
    enum status status = STATUS_OK;
    if (load->is_delta) /* which turned out to be impossible */
        status =
            db_exec(conn, &widen_sql, DB_PARAMS(db_i64(load->timeout_ms)), deadline_ns, NULL, &loaded->error);
    if (status != STATUS_OK)
        return status;
    struct cache_builder *builder = cache_builder_create(NULL, load->memory_max);
    cache_builder_limit_payloads(builder, load->payload_bytes_max);
    status = refdata_provider_load(load->dictionary, load->tenant, STR_NONE, conn, deadline_ns, builder,
                                   &loaded->error);
    if (status != STATUS_OK) {
        cache_builder_abandon(builder);
        return status;
    }
    loaded->replaced = cache_builder_replaced(builder);
    loaded->snapshot = cache_builder_finish(builder, committed->version);
    cache_snapshot_mark(loaded->snapshot, &committed->event, committed->at_us);
    return STATUS_OK;
}

/* Leaves its transaction open, in *conn: db_release() rolls it back, there is nothing to commit. */
static void load_by(const struct refdata_load *load, struct db_conn **conn, struct refdata_loaded *loaded)
{
    int64_t began_ns = clock_mono_ns(), deadline_ns = clock_deadline_ms(load->timeout_ms);
    struct opened opened = {0};
    const struct refdata_change *change = &opened.delta.change;
    *loaded = (struct refdata_loaded){0};
    *conn = NULL;
    enum status status = open_transaction(load, deadline_ns, conn, &opened, &loaded->error);
    loaded->committed_at_us = opened.committed.at_us;
    loaded->change.to = opened.committed.version;
    if (status == STATUS_OK && opened.delta_known && change->to == change->from) {
        loaded->snapshot = load->held;
        cache_snapshot_ref(load->held);
    } else if (status == STATUS_OK && opened.delta_known) {
        status = refdata_delta_build(load, change, *conn, deadline_ns, &loaded->snapshot, &loaded->error);
        if (loaded->snapshot)
            cache_snapshot_mark(loaded->snapshot, &opened.committed.event, opened.committed.at_us);
    }
    if (loaded->snapshot)
        loaded->change = *change;
    else if (status == STATUS_OK)
        status = load_all(load, *conn, &opened.committed, deadline_ns, loaded);
    loaded->change.is_fork = opened.is_fork;
    loaded->status = status;
    loaded->seconds = (double)(clock_mono_ns() - began_ns) / 1e9;
}

void refdata_loader_load(const struct refdata_load *load, struct refdata_loaded *loaded)
{
    struct db_conn *conn;
    load_by(load, &conn, loaded);
    db_release(conn);
}

bool refdata_loader_differs(const struct refdata_load *load, int64_t *version)
{
    struct refdata_loaded by_changes, whole = {0};
    struct db_conn *conn;
    bool differs = false;
    load_by(load, &conn, &by_changes);
    if (by_changes.snapshot && refdata_loaded_is_delta(&by_changes)) {
        const struct cache_info *a = cache_snapshot_info(by_changes.snapshot);
        const struct refdata_committed committed = {.version = a->version, .event = a->event};
        *version = a->version;
        if (load_all(load, conn, &committed, clock_deadline_ms(load->timeout_ms), &whole) == STATUS_OK) {
            const struct cache_info *b = cache_snapshot_info(whole.snapshot);
            differs = a->item_count != b->item_count || memcmp(&a->digest, &b->digest, sizeof a->digest) != 0;
            cache_snapshot_unref(whole.snapshot);
        }
    }
    db_release(conn);
    cache_snapshot_unref(by_changes.snapshot);
    return differs;
}

/* ---- on behalf of a holding ---- */

/* What a POST may bring is stored with white space and its numbers in full. A dictionary's own SQL may have more, but
 * not without bound: every pod holds it. */
size_t refdata_payload_bytes_max(const struct refdata_catalog *catalog)
{
    size_t by_post = 4 * (size_t)catalog->updates.limits.payload_bytes_max;
    return by_post > ROW_BYTES_MAX ? by_post : ROW_BYTES_MAX;
}

void refdata_load_begin(struct refdata_load *load, const struct refdata_holding *holding, bool is_delta,
                        struct arena *arena)
{
    const struct refdata *refdata = holding->refdata;
    *load = (struct refdata_load){
        .dictionary = refdata_dictionary_ref(holding->dictionary),
        .tenant = arena_str(arena, holding->tenant),
        .timeout_ms = atomic_load(&refdata->catalog)->cache.load_timeout_ms,
        .memory_max = (uint64_t)atomic_load(&refdata->catalog)->cache.memory_bytes_max,
        .payload_bytes_max = refdata_payload_bytes_max(atomic_load(&refdata->catalog)),
        .held = holding->basis != BASIS_REDEFINED ? cache_slot_acquire(&holding->slot) : NULL,
        .is_delta = is_delta,
        .arena = arena,
    };
}

void refdata_load_end(struct refdata_load *load)
{
    cache_snapshot_unref(load->held);
    refdata_dictionary_unref(load->dictionary);
}

/* What was loaded is sent to the home loop before the transaction is closed: no waiter waits for that round trip. So the home loop and the worker
 * both use it; the last of them frees it. */
struct load_job {
    struct worker_job job;
    struct loop_message message;
    atomic_uint users;
    bool is_sent; /* home */
    struct loop *home;
    struct refdata_holding *holding; /* the home loop's: not touched on the worker */
    struct refdata_load load;
    struct arena arena; /* of the tenant and the change */
    struct refdata_loaded loaded;
};

static void unref_job(struct load_job *job)
{
    if (atomic_fetch_sub(&job->users, 1) > 1)
        return;
    refdata_load_end(&job->load);
    arena_deinit(&job->arena);
    free(job);
}

static void on_loaded(struct loop *loop, struct loop_message *message)
{
    struct load_job *job = CONTAINER_OF(message, struct load_job, message);
    (void)loop;
    refdata_schedule_loaded(job->holding, &job->load, &job->loaded);
    unref_job(job);
}

static void run_load(struct worker_job *worker_job)
{
    struct load_job *job = CONTAINER_OF(worker_job, struct load_job, job);
    struct db_conn *conn;
    FAILPOINT("query.before_load");
    load_by(&job->load, &conn, &job->loaded);
    FAILPOINT("query.before_swap");
    job->is_sent = true;
    loop_post(job->home, &job->message);
    db_release(conn);
}

static void job_done(struct worker_job *worker_job)
{
    struct load_job *job = CONTAINER_OF(worker_job, struct load_job, job);
    if (!job->is_sent) { /* it never ran */
        job->loaded.status = error_set(&job->loaded.error, STATUS_CANCELLED, "the process is stopping");
        loop_post(job->home, &job->message);
    }
    unref_job(job);
}

bool refdata_loader_start(struct refdata_holding *holding, bool is_delta)
{
    struct refdata *refdata = holding->refdata;
    struct load_job *job = memory_zalloc(sizeof *job);
    job->job = (struct worker_job){.share = hash_seeded(holding->tenant), .run = run_load, .done = job_done};
    job->message.on_message = on_loaded;
    job->home = refdata->home;
    job->holding = holding;
    atomic_init(&job->users, 2);
    job->arena = ARENA(1024);
    refdata_load_begin(&job->load, holding, is_delta, &job->arena);
    if (worker_pool_submit(refdata->loaders, &job->job))
        return true;
    atomic_store(&job->users, 1);
    unref_job(job);
    return false;
}
