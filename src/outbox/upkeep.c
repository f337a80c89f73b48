/* Upkeep, now and then: how much waits and since when, and retention (O6). Any number of processes may do it
 * at the same time: rows another one is deleting are skipped. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "outbox/outbox_inside.h"

enum { UPKEEP_MS = 10000, CLEANUP_ROWS = 1000, CLEANUP_BATCHES_MAX = 1000, MEASURE_SHARE = 20 };

/* ---- gauges ---- */

static bool is_among(const struct db_result *rows, struct str event_type)
{
    for (size_t i = 0; i < db_result_rows(rows); i++)
        if (str_eq(db_result_str(rows, i, 0), event_type))
            return true;
    return false;
}

static void remember(struct outbox *outbox, struct str event_type)
{
    for (size_t i = 0; i < outbox->gauged_count; i++)
        if (str_eq(outbox->gauged[i], event_type))
            return;
    if (outbox->gauged_count == METRIC_SERIES_MAX_DEFAULT)
        return; /* the registry counts those as "other" too */
    outbox->gauged = memory_realloc_array(outbox->gauged, outbox->gauged_count + 1, sizeof outbox->gauged[0]);
    outbox->gauged[outbox->gauged_count++] = str_of(str_dup(event_type), event_type.len);
}

/* What is pending no longer is 0, not what it was. */
static void set_gauges(struct outbox *outbox, const struct db_result *rows)
{
    const char *module = outbox->config.table->module;
    for (size_t i = 0; i < outbox->gauged_count; i++)
        if (!is_among(rows, outbox->gauged[i]))
            outbox_metrics_pending(module, outbox->gauged[i], 0, 0);
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        remember(outbox, db_result_str(rows, i, 0));
        outbox_metrics_pending(module, db_result_str(rows, i, 0), db_result_i64(rows, i, 1),
                               db_result_i64(rows, i, 2));
    }
}

/* Counting a long backlog takes long: then it is done less often, for a twentieth of the time at most. */
static enum status measure(struct outbox *outbox, struct db_conn *conn, struct error *error)
{
    struct db_result *rows = NULL;
    int64_t began_ns = clock_mono_ns();
    if (began_ns < outbox->measure_ns)
        return STATUS_OK;
    enum status status = db_query(conn, &outbox->sql.gauge, NULL, clock_deadline_ms(UPKEEP_MS), &rows, error);
    int64_t ended_ns = clock_mono_ns();
    outbox->measure_ns = ended_ns + MEASURE_SHARE * (ended_ns - began_ns);
    if (status == STATUS_OK)
        set_gauges(outbox, rows);
    db_result_free(rows);
    return status;
}

/* ---- retention ---- */

static enum status clean_up(struct outbox *outbox, struct db_conn *conn, struct error *error)
{
    int64_t deleted = CLEANUP_ROWS, total = 0;
    char age[24], rows[24];
    snprintf(age, sizeof age, "%lld", (long long)outbox->settings.keep_ms);
    snprintf(rows, sizeof rows, "%d", CLEANUP_ROWS);
    const struct db_param params[] = {{str_from(age)}, {str_from(rows)}};
    enum status status = STATUS_OK;
    for (int i = 0; i < CLEANUP_BATCHES_MAX && deleted == CLEANUP_ROWS && status == STATUS_OK; i++) {
        if (outbox_is_stopping(outbox))
            break;
        status = db_exec(conn, &outbox->sql.cleanup, params, clock_deadline_ms(UPKEEP_MS), &deleted, error);
        total += status == STATUS_OK ? deleted : 0;
    }
    metric_add(metric_of_deleted(str_from(outbox->config.table->name)), (uint64_t)total);
    if (total > 0)
        log_info("outbox_cleaned_up", LOG_CSTR("module", outbox->config.table->module),
                 LOG_INT("events", total));
    return status;
}

void outbox_upkeep_run(struct outbox *outbox, bool cleanup)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    enum status status = db_acquire(outbox->upkeep_pool, clock_deadline_ms(UPKEEP_MS), &conn, &error);
    if (status == STATUS_OK)
        status = measure(outbox, conn, &error);
    if (status == STATUS_OK && cleanup)
        status = clean_up(outbox, conn, &error);
    db_release(conn);
    if (status != STATUS_OK && status != STATUS_CANCELLED &&
        status != STATUS_DB_DOWN) /* the pool tells of that */
        log_warn("outbox_upkeep_failed", LOG_CSTR("module", outbox->config.table->module),
                 LOG_ERROR_FIELDS(&error));
}
