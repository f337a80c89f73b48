/* What updates changed, told to whoever holds copies of items (H4). The topic of invalidations says which pair has a new
 * version, and the version's row of refdata.outbox_event which keys that touched. A batch is told of at once, each key of it
 * once: what is told is read when it is told, so it holds for every version of the batch.
 *
 * Where the keys are not known (a snapshot, a row no longer kept), are too many or come faster than they can be told, those
 * items of the dictionary are told of that somebody holds or asked for. One process of all does it: a shared group. A message
 * is done with when the bus of events has what was told; what cannot be told for good is left out, and copies of it age. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/event.h"
#include "hydration/hydration.h"
#include "kernel/store.h"
#include "modules/refdata/command/source.h"
#include "modules/refdata/query/invalidation.h"

enum {
    BATCH_MAX = 100,
    KEYS_MAX = 1000,      /* of a batch */
    KEY_ATTEMPTS = 3,     /* then those that somebody holds are enough */
    BEHIND_US = 1000000,  /* the same */
    TIMEOUT_ATTEMPTS = 8, /* then it is left out */
    HANDLE_MS = 10000,
    BACKOFF_MAX_MS = 2000,
};

/* The rows by their unique index, whatever is known of the table; sorted, those without keys before the others of a pair. */
static const char keys_sql[] =
    "select f.tenant_id, f.dict_code, f.listed, f.key"
    " from (select m.tenant_id, m.dict_code, o.keys is not null as listed, k.key"
    "       from unnest($1, $2, $3) as m (tenant_id, dict_code, version)"
    "       left join lateral (select e.keys from refdata.outbox_event e where e.tenant_id = m.tenant_id"
    "           and e.dict_code = m.dict_code and e.version = m.version::bigint offset 0) o on true"
    "       left join lateral unnest(o.keys) as k (key) on true limit $4) f"
    " order by f.tenant_id, f.dict_code, f.listed, f.key";
enum { TENANT, CODE, LISTED, KEY };

struct refdata_changes {
    struct refdata_flow *flow;
    struct hydration *hydration;
};

struct told { /* a batch being told of */
    struct refdata_changes *changes;
    struct arena arena;
    struct refdata_invalidation pairs[BATCH_MAX]; /* each once, in its last version */
    size_t pair_count;
    struct buf tenants, codes, versions; /* of all messages, for keys_sql */
    int64_t deadline_ns;
};

/* ---- which ---- */

/* Of a dictionary that lives in this flow's database, and can be read. */
static bool is_ours(const struct refdata_flow *flow, const struct refdata_catalog *catalog, struct str code)
{
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    return dictionary && dictionary->database == flow->database &&
           atomic_load(&dictionary->state) != REFDATA_DISABLED;
}

static void add_pair(struct told *told, const struct refdata_invalidation *read)
{
    for (size_t i = 0; i < told->pair_count; i++)
        if (str_eq(told->pairs[i].code, read->code) && str_eq(told->pairs[i].tenant, read->tenant))
            return;
    told->pairs[told->pair_count++] = *read;
}

/* What is no invalidation is the pods' to complain of. */
static void gather(struct told *told, const struct bus_batch *batch)
{
    struct refdata_flow *flow = told->changes->flow;
    struct refdata_catalog *catalog = refdata_flow_catalog(flow);
    struct refdata_invalidation read;
    db_array_begin(&told->tenants), db_array_begin(&told->codes), db_array_begin(&told->versions);
    for (size_t i = 0; i < batch->count && i < BATCH_MAX; i++) {
        if (!refdata_invalidation_read(batch->messages[i].payload, &told->arena, &read) ||
            !is_ours(flow, catalog, read.code))
            continue;
        add_pair(told, &read);
        db_array_put(&told->tenants, read.tenant);
        db_array_put(&told->codes, read.code);
        db_array_put(&told->versions, arena_printf(&told->arena, "%lld", (long long)read.version));
    }
    db_array_end(&told->tenants), db_array_end(&told->codes), db_array_end(&told->versions);
    refdata_catalog_unref(catalog);
}

static enum status find_keys(struct told *told, struct db_result **rows, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_BIGINT};
    struct str limit = arena_printf(&told->arena, "%d", KEYS_MAX + 1);
    const struct db_param params[] = {
        {buf_str(&told->tenants)}, {buf_str(&told->codes)}, {buf_str(&told->versions)}, {limit}};
    struct db_statement statement;
    struct db_conn *conn = NULL;
    db_statement_init(&statement, keys_sql, 4, types);
    enum status status = db_acquire(told->changes->flow->database->pool, told->deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_query(conn, &statement, params, told->deadline_ns, rows, error);
    if (conn)
        db_release(conn);
    return status;
}

/* ---- telling ---- */

/* What would fail for ever is left out. */
static enum status settle(enum status status, struct str tenant, struct str id, const struct error *error)
{
    if (status == STATUS_OK || status_retryable(status))
        return status;
    log_warn("hydration_change_not_told", LOG_STR("tenantId", tenant), LOG_STR("entityId", id),
             LOG_ERROR_FIELDS(error));
    return STATUS_OK;
}

static enum status tell_key(struct told *told, struct str tenant, struct str code, struct str key,
                            struct error *error)
{
    struct str id = arena_printf(&told->arena, "%.*s/%.*s", STR_ARG(code), STR_ARG(key));
    if (!hydration_is_text(id, HYDRATION_ID_BYTES_MAX))
        return STATUS_OK; /* nobody can ask for it */
    return settle(
        hydration_tell(told->changes->hydration, REFDATA_ENTITY_TYPE, tenant, id, told->deadline_ns, error),
        tenant, id, error);
}

static enum status tell_held(struct told *told, struct str tenant, struct str code, struct error *error)
{
    struct str prefix = arena_printf(&told->arena, "%.*s/", STR_ARG(code));
    return settle(hydration_tell_held(told->changes->hydration, REFDATA_ENTITY_TYPE, tenant, prefix,
                                      told->deadline_ns, error),
                  tenant, prefix, error);
}

static bool is_same(const struct db_result *rows, size_t a, size_t b, unsigned column)
{
    return str_eq(db_result_str(rows, a, column), db_result_str(rows, b, column)) &&
           db_result_is_null(rows, a, column) == db_result_is_null(rows, b, column);
}

static bool is_repeated(const struct db_result *rows, size_t row)
{
    for (unsigned column = TENANT; column <= KEY; column++)
        if (!row || !is_same(rows, row - 1, row, column))
            return false;
    return true;
}

static enum status tell_rows(struct told *told, const struct db_result *rows, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < db_result_rows(rows) && status == STATUS_OK; i++) {
        struct str tenant = db_result_str(rows, i, TENANT), code = db_result_str(rows, i, CODE);
        if (is_repeated(rows, i))
            continue;
        if (!str_eq(db_result_str(rows, i, LISTED), STR("t")))
            status = tell_held(told, tenant, code, error);
        else if (!db_result_is_null(rows, i, KEY)) /* an empty delta has none */
            status = tell_key(told, tenant, code, db_result_str(rows, i, KEY), error);
    }
    return status;
}

static enum status tell_pairs(struct told *told, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < told->pair_count && status == STATUS_OK; i++)
        status = tell_held(told, told->pairs[i].tenant, told->pairs[i].code, error);
    return status;
}

/* As many as there can be, and not of this moment: more waits behind them. */
static bool is_behind(const struct bus_batch *batch)
{
    return batch->count == BATCH_MAX && clock_unix_us() - batch->messages[0].created_us > BEHIND_US;
}

static enum status tell(struct told *told, const struct bus_batch *batch, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = STATUS_OK;
    if (told->pair_count == 0)
        return STATUS_OK;
    if (batch->attempt < KEY_ATTEMPTS && !is_behind(batch))
        status = find_keys(told, &rows, error);
    if (status == STATUS_OK)
        status =
            rows && db_result_rows(rows) <= KEYS_MAX ? tell_rows(told, rows, error) : tell_pairs(told, error);
    db_result_free(rows);
    return status;
}

/* ---- the topic ---- */

static void on_batch(void *context, struct bus_batch *batch)
{
    struct told told = {.changes = context, .deadline_ns = clock_deadline_ms(HANDLE_MS)};
    struct error error = {0};
    if (batch->deadline_ns && batch->deadline_ns < told.deadline_ns)
        told.deadline_ns = batch->deadline_ns;
    arena_init(&told.arena, 4096);
    gather(&told, batch);
    FAILPOINT("command.before_tell");
    enum status status = tell(&told, batch, &error);
    if (status == STATUS_TIMEOUT && batch->attempt >= TIMEOUT_ATTEMPTS)
        log_warn("hydration_changes_not_told", LOG_STR("database", told.changes->flow->database->name),
                 LOG_INT("count", (long long)batch->count), LOG_ERROR_FIELDS(&error));
    else if (status != STATUS_OK)
        bus_batch_retry(batch, 0, "%s", error.message);
    buf_deinit(&told.tenants), buf_deinit(&told.codes), buf_deinit(&told.versions);
    arena_deinit(&told.arena);
}

/* ---- life ---- */

struct refdata_changes *refdata_changes_create(struct refdata_flow *flow)
{
    struct hydration *hydration = kernel_hydration(flow->refdata->kernel);
    if (!hydration) /* no store: nobody to tell */
        return NULL;
    struct refdata_changes *changes = memory_zalloc(sizeof *changes);
    const struct bus_subscription subscription = {
        .topic = REFDATA_INVALIDATIONS,
        .group = flow->buses.changes_group,
        .mode = BUS_SHARED,
        .from = BUS_FROM_NOW,
        .batch_max = BATCH_MAX,
        .parallel = 1,
        .relaxed = true, /* what was told stands before the position in the log */
        .backoff_max_ms = BACKOFF_MAX_MS,
        .context = changes,
        .handler = on_batch,
    };
    struct error error = {0};
    changes->flow = flow;
    changes->hydration = hydration;
    if (bus_subscribe(flow->buses.invalidations, &subscription, &error) != STATUS_OK)
        log_error("changes_not_subscribed", LOG_STR("database", flow->database->name),
                  LOG_ERROR_FIELDS(&error)); /* copies age */
    return changes;
}

void refdata_changes_destroy(struct refdata_changes *changes)
{
    free(changes);
}
