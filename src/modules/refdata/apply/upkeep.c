/* Upkeep: snapshots that were not completed in time fail, and what is old is deleted. In small transactions, by any number of
 * processes side by side: rows that another one has locked are skipped. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "idempotency/idempotency.h"
#include "modules/refdata/apply/batch.h"

#define JOB_MS 10000
#define INTERVAL_MIN_MS 50
#define INTERVAL_MAX_MS 60000
#define ROUNDS_MAX 50
#define DAY_MS (24 * 3600 * 1000)

/* Its row's lock is what apply takes, too, before it adds a chunk. The time counts from the last chunk that was applied or
 * accepted, whichever is later: a chunk that waits in a long queue came in time. */
static const struct db_statement expired_sql =
    DB_STATEMENT("select tenant_id, dict_code, snapshot_id, received, chunks_total from refdata.snapshot s"
                 " where status = 'PENDING' and updated_at < clock_timestamp() - $1 * interval '1 ms'"
                 "  and not exists (select from refdata.chunk_request c where c.tenant_id = s.tenant_id"
                 "       and c.dict_code = s.dict_code and c.snapshot_id = s.snapshot_id"
                 "       and c.created_at >= clock_timestamp() - $1 * interval '1 ms')"
                 " order by updated_at limit 1 for update skip locked");

/* A thousand rows at a time, found by the index on their age. */
#define DELETE_OLD(table, condition)                                                           \
    "delete from " table " where ctid = any(array(select ctid from " table " where " condition \
    " < clock_timestamp() - $1 * interval '1 ms' limit 1000 for update skip locked))"
/* Chunks of snapshots that were not completed in time, by the index on those and the primary key. The snapshot's own row
 * stays: a chunk that comes late gets its status. */
#define DELETE_CHUNKS(table)                                                                      \
    "delete from " table " where ctid = any(array(select c.ctid from refdata.snapshot s, lateral" \
    " (select ctid from " table " where tenant_id = s.tenant_id and dict_code = s.dict_code"      \
    "   and snapshot_id = s.snapshot_id limit 1000) c where s.error_code = 'SNAPSHOT_INCOMPLETE'" \
    "   and s.updated_at < clock_timestamp() - $1 * interval '1 ms' limit 1000))"
enum { BATCH_ROWS = 1000 };

enum kept { NOT_KEPT, KEPT_AS_SET, KEPT_AS_KEYS, KEPT_A_DAY, KEPT_KINDS };

static const struct {
    struct db_statement sql;
    enum kept kept;
} old_rows[] = {
    {DB_STATEMENT(DELETE_OLD("refdata.update_request", "status <> 'PENDING' and created_at")), KEPT_AS_SET},
    {DB_STATEMENT(DELETE_OLD("refdata.processed_event", "processed_at")), KEPT_AS_SET},
    {DB_STATEMENT(DELETE_CHUNKS("refdata.snapshot_chunk")), NOT_KEPT},
    {DB_STATEMENT(DELETE_CHUNKS("refdata.chunk_request")), NOT_KEPT},
    {DB_STATEMENT(DELETE_OLD("refdata.snapshot", "status <> 'PENDING' and updated_at")), KEPT_AS_SET},
    {DB_STATEMENT(
         DELETE_OLD("refdata.chunk_request c",
                    "not exists (select from refdata.update_request r where r.tenant_id = c.tenant_id"
                    "   and r.event_id = c.event_id and r.status = 'PENDING') and created_at")),
     KEPT_A_DAY},
    {DB_STATEMENT(DELETE_OLD("refdata.chunk_request", "created_at")), KEPT_AS_SET},
    {DB_STATEMENT(DELETE_OLD("refdata.update_key", "created_at")), KEPT_AS_KEYS},
    {DB_STATEMENT(DELETE_OLD("refdata.dictionary_item", "deleted and updated_at")), KEPT_A_DAY},
    /* no process publishes them: what consumers held has expired */
    {DB_STATEMENT(DELETE_OLD("refdata.item_change", "created_at")), KEPT_A_DAY},
};

static enum status expire_one(struct refdata_database *database, struct db_conn *conn, int64_t age_ms,
                              struct arena *arena, bool *found, struct error *error)
{
    struct refdata_outcome *outcomes = NULL;
    size_t count = 0;
    struct refdata_writer writer = {.conn = conn, .deadline_ns = clock_deadline_ms(JOB_MS), .arena = arena};
    enum status status = db_begin(conn, DB_READ_COMMITTED, clock_deadline_ms(JOB_MS), error);
    if (status != STATUS_OK)
        return status;
    struct db_result *rows = refdata_writer_query(&writer, &expired_sql, DB_PARAMS(db_i64(age_ms)));
    *found = rows && db_result_rows(rows) == 1;
    if (*found) {
        struct pair pair = {.tenant = db_result_str(rows, 0, 0), .code = db_result_str(rows, 0, 1)};
        struct assembly assembly = {
            .pair = &pair, .id = db_result_str(rows, 0, 2), .state.decision = REFDATA_FAILED};
        struct refdata_state *state = &assembly.state;
        str_copy(state->code, sizeof state->code, str_from(status_code(STATUS_SNAPSHOT_INCOMPLETE)));
        snprintf(state->reason, sizeof state->reason, "only %lld of %lld chunks came in time",
                 (long long)db_result_i64(rows, 0, 3), (long long)db_result_i64(rows, 0, 4));
        log_warn("snapshot_incomplete", LOG_STR("tenantId", pair.tenant), LOG_STR("dictCode", pair.code),
                 LOG_STR("snapshotId", assembly.id));
        refdata_assembly_end(&assembly, &writer, &outcomes, &count);
    }
    status = refdata_writer_wait(&writer, error);
    if (status == STATUS_OK)
        status = db_commit(conn, clock_deadline_ms(JOB_MS), error);
    if (status == STATUS_OK && count)
        refdata_database_decided(database, outcomes, NULL, count);
    db_result_free(rows); /* the outcomes' names are in it */
    return status;
}

int64_t refdata_upkeep_interval_ns(const struct refdata_catalog *catalog)
{
    int64_t interval_ms = catalog->updates.snapshot_expire_ms / 4;
    return TASK_MS(interval_ms < INTERVAL_MIN_MS   ? INTERVAL_MIN_MS
                   : interval_ms > INTERVAL_MAX_MS ? INTERVAL_MAX_MS
                                                   : interval_ms);
}

int64_t refdata_upkeep_step(struct task *task, void *context)
{
    struct refdata_database *database = context;
    struct refdata_catalog *catalog = refdata_database_catalog(database);
    struct error error = {0};
    struct db_conn *conn = NULL;
    const int64_t keep_ms[KEPT_KINDS] = {[KEPT_AS_SET] = catalog->updates.keep_ms,
                                         [KEPT_AS_KEYS] = catalog->updates.key_keep_ms,
                                         [KEPT_A_DAY] = DAY_MS};
    int64_t interval_ns = refdata_upkeep_interval_ns(catalog);
    bool found = true;
    struct arena arena = ARENA(1024);
    (void)task;
    enum status status = db_acquire(database->site.pool, clock_deadline_ms(JOB_MS), &conn, &error);
    for (unsigned round = 0; round < ROUNDS_MAX && status == STATUS_OK && found; round++) {
        arena_reset(&arena);
        status = expire_one(database, conn, catalog->updates.snapshot_expire_ms, &arena, &found, &error);
        db_rollback(conn);
    }
    for (size_t i = 0; i < sizeof old_rows / sizeof *old_rows && status == STATUS_OK; i++) {
        int64_t gone = BATCH_ROWS, count = 0;
        for (unsigned round = 0; round < ROUNDS_MAX && status == STATUS_OK && gone == BATCH_ROWS; round++) {
            status = db_exec(conn, &old_rows[i].sql, DB_PARAMS(db_i64(keep_ms[old_rows[i].kept])),
                             clock_deadline_ms(JOB_MS), &gone, &error);
            count += status == STATUS_OK ? gone : 0;
        }
        if (old_rows[i].kept != KEPT_AS_KEYS || count == 0)
            continue;
        idempotency_count_cleaned(STR(REFDATA_UPDATES_ROUTE), count); /* I7 */
        idempotency_log_cleaned(STR("refdata.update_key"), count);
    }
    if (status == STATUS_OK)
        status = idempotency_measure(conn, STR("refdata.update_key"), clock_deadline_ms(JOB_MS), &error);
    arena_deinit(&arena);
    db_release(conn);
    refdata_catalog_unref(catalog);
    bool is_failing = status != STATUS_OK && status != STATUS_CANCELLED;
    if (is_failing && !database->is_upkeep_failing)
        log_warn("apply_upkeep_failed", LOG_STR("database", database->name), LOG_ERROR_FIELDS(&error));
    database->is_upkeep_failing = is_failing;
    return interval_ns;
}
