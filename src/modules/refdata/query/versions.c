/* Reads of committed versions, shared by all requests of a tenant. */
#include "modules/refdata/query/versions.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/refdata.h"

enum { FRESH_MS = 1000, READS_MAX = 4096 };

/* By the primary key. All of the tenant: a tenant has rows of configured dictionaries only, and a reload that adds one finds it. */
static const struct db_statement versions_sql =
    DB_STATEMENT("select dict_code, version, (extract(epoch from updated_at) * 1000000)::bigint"
                 "  from refdata.dictionary_meta where tenant_id = $1"
                 " order by dict_code collate \"C\"");

/* A tenant in a database: the last answer, and the read under way. */
struct refdata_committed_read {
    struct worker_job job;
    struct map_node node;
    TAILQ_ENTRY(refdata_committed_read) entry;
    struct refdata *refdata;
    struct refdata_database *database; /* referenced */
    struct str tenant;
    struct refdata_asks waiting;
    int64_t fresh_until_ns;
    struct refdata_versions *answer; /* NULL = none yet */
    /* of the read under way, if there is one */
    struct refdata_versions *next;
    int64_t timeout_ms;
    char names[];
};

/* ---- answers ---- */

void refdata_versions_unref(struct refdata_versions *versions)
{
    if (!versions || atomic_fetch_sub(&versions->refs, 1) != 1)
        return;
    arena_deinit(&versions->arena);
    free(versions);
}

static int compare_row(const void *code, const void *row)
{
    return str_compare(*(const struct str *)code, ((const struct refdata_versions_row *)row)->code);
}

const struct refdata_versions_row *refdata_versions_find(const struct refdata_versions *versions,
                                                         struct str code)
{
    if (versions->count == 0)
        return NULL;
    return bsearch(&code, versions->rows, versions->count, sizeof *versions->rows, compare_row);
}

static struct refdata_versions *versions_create(uint64_t database)
{
    struct refdata_versions *versions = memory_zalloc(sizeof *versions);
    atomic_init(&versions->refs, 1);
    versions->arena = ARENA(1024);
    versions->database = database;
    return versions;
}

/* ---- on a worker ---- */

static void run_read(struct worker_job *job)
{
    struct refdata_committed_read *read = CONTAINER_OF(job, struct refdata_committed_read, job);
    struct refdata_versions *next = read->next;
    int64_t deadline_ns = clock_deadline_ms(read->timeout_ms);
    struct db_result *result = NULL;
    struct db_conn *conn = NULL;
    struct error error;
    enum status status = db_acquire_long(read->database->site.pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status =
            db_query(conn, &versions_sql, DB_PARAMS(db_text(read->tenant)), deadline_ns, &result, &error);
    db_release(conn);
    if (status == STATUS_OK) {
        next->is_known = true;
        next->count = db_result_rows(result);
        next->rows = arena_alloc(&next->arena, (next->count + 1) * sizeof *next->rows);
    }
    for (size_t i = 0; i < next->count; i++)
        next->rows[i] = (struct refdata_versions_row){
            .code = arena_str(&next->arena, db_result_str(result, i, 0)),
            .version = db_result_i64(result, i, 1),
            .committed_at_us = db_result_i64(result, i, 2),
        };
    db_result_free(result);
}

/* ---- on the home loop ---- */

static void reply(struct refdata_ask *ask, struct refdata_versions *versions)
{
    atomic_fetch_add(&versions->refs, 1);
    ask->versions = versions;
    refdata_ask_again(ask);
}

static void read_done(struct worker_job *job)
{
    struct refdata_committed_read *read = CONTAINER_OF(job, struct refdata_committed_read, job);
    refdata_versions_unref(read->answer);
    read->answer = read->next;
    read->next = NULL;
    read->fresh_until_ns = loop_now_ns(read->refdata->home) + FRESH_MS * CLOCK_NS_PER_MS;
    for (struct refdata_ask *ask; (ask = refdata_asks_take(&read->waiting)) != NULL;) {
        if (job->displaced)
            refdata_ask_refuse(ask, STATUS_OVERLOADED, "too many reads from the primary at once");
        else if (job->cancelled)
            refdata_ask_refuse(ask, STATUS_UNAVAILABLE, "the process is stopping");
        else
            reply(ask, read->answer);
    }
    if (job->displaced) /* it says nothing about PostgreSQL */
        read->fresh_until_ns = 0;
}

static void read_destroy(struct refdata_committed_read *read)
{
    struct refdata_committed_reads *reads = &read->refdata->committed_reads;
    map_remove(&reads->map, &read->node);
    TAILQ_REMOVE(&reads->by_age, read, entry);
    refdata_versions_unref(read->answer);
    refdata_database_unref(read->database);
    free(read);
}

/* Those that are no longer fresh, so that only tenants of the last second are kept. */
static void forget_old(struct refdata *refdata)
{
    struct refdata_committed_read *read, *next;
    TAILQ_FOREACH_SAFE(read, &refdata->committed_reads.by_age, entry, next) {
        if (read->next)
            continue;
        if (read->fresh_until_ns > loop_now_ns(refdata->home))
            break;
        read_destroy(read);
    }
}

static struct refdata_committed_read *read_of(struct refdata *refdata, struct str tenant,
                                              struct refdata_database *database)
{
    struct refdata_committed_reads *reads = &refdata->committed_reads;
    uint64_t hash = hash_seeded(tenant) ^ database->fingerprint;
    struct map_node *node;
    MAP_MATCH(node, &reads->map, hash) {
        struct refdata_committed_read *read = CONTAINER_OF(node, struct refdata_committed_read, node);
        if (read->database == database && str_eq(read->tenant, tenant))
            return read;
    }
    forget_old(refdata);
    if (reads->map.count >= READS_MAX)
        return NULL;
    struct refdata_committed_read *read = memory_zalloc(sizeof *read + tenant.len + 1);
    char *at = read->names;
    read->refdata = refdata;
    read->database = refdata_database_ref(database);
    read->tenant = str_pack(&at, tenant);
    STAILQ_INIT(&read->waiting);
    map_add(&reads->map, &read->node, hash);
    TAILQ_INSERT_TAIL(&reads->by_age, read, entry);
    return read;
}

static bool start_read(struct refdata_committed_read *read)
{
    struct refdata *refdata = read->refdata;
    read->next = versions_create(read->database->fingerprint);
    read->timeout_ms = atomic_load(&refdata->catalog)->barrier.timeout_ms;
    read->job = (struct worker_job){
        .loop = refdata->home, .share = hash_seeded(read->tenant), .run = run_read, .done = read_done};
    TAILQ_REMOVE(&refdata->committed_reads.by_age, read, entry);
    TAILQ_INSERT_TAIL(&refdata->committed_reads.by_age, read, entry);
    if (worker_pool_submit(refdata->readers, &read->job))
        return true;
    refdata_versions_unref(read->next);
    read->next = NULL;
    return false;
}

void refdata_versions_ask(struct refdata_ask *ask)
{
    struct refdata *refdata = ask->refdata;
    const struct refdata_dictionary *dictionary =
        refdata_catalog_find(atomic_load(&refdata->catalog), ask->code);
    if (!dictionary) { /* removed since the request was parked: the handler finds that */
        refdata_ask_again(ask);
        return;
    }
    int64_t now_ns = loop_now_ns(refdata->home);
    struct refdata_committed_read *read = read_of(refdata, ask->tenant, dictionary->database);
    if (read && !read->next && read->answer && read->fresh_until_ns > now_ns) {
        reply(ask, read->answer);
    } else if (!read || (!read->next && !start_read(read))) {
        refdata_ask_refuse(ask, STATUS_OVERLOADED, "too many reads from the primary at once");
    } else {
        refdata_asks_add(&read->waiting, ask, now_ns);
    }
}

void refdata_versions_clear(struct refdata *refdata)
{
    struct map_node *node;
    MAP_EACH(node, &refdata->committed_reads.map) {
        struct refdata_committed_read *read = CONTAINER_OF(node, struct refdata_committed_read, node);
        refdata_versions_unref(read->next);
        while (!STAILQ_EMPTY(&read->waiting))
            refdata_ask_free(refdata_asks_take(&read->waiting));
        read_destroy(read);
    }
    map_deinit(&refdata->committed_reads.map);
}
