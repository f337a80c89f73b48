/* Auditors of published events. */
#include "kernel/audit.h"

#include "base/clock.h"
#include "base/log.h"
#include "kernel/kernel_inside.h"

enum {
    STEP_MS = 30000,
    INTERVAL_MS = 60000,
    LOOK_BACK_MS = 10 * INTERVAL_MS,
    EVENTS_MAX = 1000 /* of one statement */
};

struct metric_family kernel_audit_family = {
    .name = "freshet_events_republished_total",
    .help = "Events that did not arrive and are published again, by outbox.",
    .type = METRIC_COUNTER,
    .labels = {"outbox", NULL},
};

static enum status republish(struct db_conn *conn, const struct outbox_table *table,
                             const struct db_result *lost, int64_t *found, struct error *error)
{
    struct buf ids = {0};
    int64_t count = 0;
    *found = (int64_t)db_result_rows(lost);
    if (*found == 0)
        return STATUS_OK;
    size_t rows = *found < EVENTS_MAX ? (size_t)*found : EVENTS_MAX;
    for (size_t i = 0; i < rows; i++)
        db_array_put(&ids, db_result_str(lost, i, 0));
    enum status status =
        outbox_change(conn, table, OUTBOX_CHANGE_REPUBLISH,
                      &(struct outbox_selection){.ids = db_array_end(&ids), .rows_max = (int64_t)rows},
                      clock_deadline_ms(STEP_MS), &count, error);
    buf_deinit(&ids);
    if (count == 0) {
        *found = 0; /* others were faster */
        return status;
    }
    metric_add(metric_series_get(&kernel_audit_family, (struct str[]){str_from(table->name)}),
               (uint64_t)count);
    log_warn("events_lost", LOG_CSTR("outbox", table->name), LOG_INT("republished", count),
             LOG_STR("eventId", db_result_str(lost, 0, 0)));
    return status;
}

static enum status find_and_republish(struct kernel *kernel, const struct outbox_table *table,
                                      const struct db_statement *lost_sql, const struct db_param *params,
                                      int64_t *found)
{
    struct error error = {0};
    struct db_result *lost = NULL;
    struct db_conn *conn = NULL;
    int64_t deadline_ns = clock_deadline_ms(STEP_MS);
    enum status status = kernel_store_require(kernel, &error);
    if (status == STATUS_OK)
        status = db_acquire(kernel_store(kernel)->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = db_query(conn, lost_sql, params, deadline_ns, &lost, &error);
    if (status == STATUS_OK)
        status = republish(conn, table, lost, found, &error);
    db_result_free(lost);
    db_release(conn);
    if (status != STATUS_OK && status != STATUS_CANCELLED)
        log_warn("audit_failed", LOG_CSTR("outbox", table->name), LOG_ERROR_FIELDS(&error));
    return status;
}

/* ---- at intervals ---- */

struct auditor {
    struct kernel *kernel;
    const struct kernel_audit *audit;
    int64_t keep_ms;
    bool has_looked; /* at everything */
};

static int64_t audit_events(struct task *task, void *context)
{
    struct auditor *auditor = context;
    int64_t since_ms = auditor->has_looked ? LOOK_BACK_MS : auditor->keep_ms, found = 0;
    (void)task;
    if (find_and_republish(auditor->kernel, auditor->audit->table, &auditor->audit->lost_sql,
                           DB_PARAMS(db_i64(since_ms), db_i64(auditor->keep_ms)), &found) == STATUS_OK &&
        found <= EVENTS_MAX)
        auditor->has_looked = true;
    return TASK_MS(found > EVENTS_MAX ? 0 : INTERVAL_MS);
}

void kernel_audit_add(struct kernel *kernel, const struct kernel_audit *audit, int64_t keep_ms)
{
    struct auditor *auditor = arena_zalloc(&kernel_store(kernel)->arena, sizeof *auditor);
    *auditor = (struct auditor){.kernel = kernel, .audit = audit, .keep_ms = keep_ms};
    kernel_store_task(kernel, "audit", audit_events, auditor);
}

/* ---- gaps ---- */

void kernel_audit_gap(struct kernel *kernel, const struct outbox_table *table, const char *topic,
                      unsigned partition, int64_t offset)
{
    const struct kernel_bus_settings *bus = kernel_bus(kernel);
    const char *id = table->id.name, *at = table->published_at;
    struct buf sql = {0};
    int64_t begun_ns = clock_mono_ns(), found;
    /* $1 topic, $2 partition, $3 offset, $4 keep in ms, $5 whether messages are in PostgreSQL, $6 milliseconds since this began: what has
     * been published since is not lost. An event is published after its message was stored. */
    buf_printf(
        &sql,
        "SELECT e.%s::text FROM %s e WHERE e.%s = '%s' AND e.%s IS NULL AND e.%s >= ("
        "    SELECT coalesce(max(m.created_at), now() - $4 * interval '1 ms') FROM platform.bus_message m"
        "     WHERE m.topic = $1 AND m.partition = $2 AND m.message_offset < $3)"
        "   AND ($5 AND e.%s::text IN (SELECT m.headers[array_position(m.headers, 'event-id') + 1]"
        "        FROM platform.bus_message m WHERE m.topic = $1)) IS NOT TRUE"
        "   AND e.%s <= now() - $6 * interval '1 ms' ORDER BY e.%s LIMIT %d",
        id, table->name, table->words.column, table->words.published, table->last_error, at, id, at, at,
        EVENTS_MAX);
    buf_put_char(&sql, '\0');
    struct db_statement statement = db_statement_of(str_from(buf_str(&sql).ptr));
    do
        found = 0;
    while (find_and_republish(kernel, table, &statement,
                              DB_PARAMS(db_cstr(topic), db_int((int)partition), db_i64(offset),
                                        db_i64(bus->keep_ms), db_bool(bus->events == KERNEL_POSTGRES),
                                        db_i64((clock_mono_ns() - begun_ns) / CLOCK_NS_PER_MS)),
                              &found) == STATUS_OK &&
           found == EVENTS_MAX);
    buf_deinit(&sql);
}
