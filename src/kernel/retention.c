/* Retention: a task for each rule, a batch for each run of it, so that a long deletion keeps no worker and no connection
 * from others. Any number of processes may do the same: their statements skip what is locked. */
#include "kernel/retention.h"

#include <stdio.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernel/kernel_inside.h"

enum {
    BATCH = 1000,
    BATCH_TIMEOUT_MS = 10000,
    FIRST_MS = 60 * 1000,
    RETRY_MS = 10 * 1000, /* after a failure, or sooner where the interval is */
};

struct retention {
    struct kernel_site *site;
    struct retention_rule rule;
    struct db_statement statement;
    struct metric_series *deleted_total;
    int64_t deleted;     /* by the last batch */
    int64_t run_deleted; /* by all batches since the interval was over */
    bool is_going_on;    /* the last batch was full */
    bool is_logged;      /* that it fails */
};

static enum status delete_batch(struct retention *retention, struct db_conn *conn, int64_t deadline_ns,
                                struct error *error)
{
    const struct db_param *params = DB_PARAMS(db_i64(retention->rule.keep_ms), db_int(BATCH));
    if (!retention->rule.on_group)
        return db_exec(conn, &retention->statement, params, deadline_ns, &retention->deleted, error);
    struct db_result *groups = NULL;
    enum status status = db_query(conn, &retention->statement, params, deadline_ns, &groups, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(groups); row++) {
        int64_t count = db_result_i64(groups, row, 1);
        retention->deleted += count;
        retention->rule.on_group(retention->rule.context, db_result_str(groups, row, 0), count);
    }
    db_result_free(groups);
    return status;
}

static int64_t retention_step(struct task *task, void *context)
{
    struct retention *retention = context;
    const struct retention_rule *rule = &retention->rule;
    int64_t deadline_ns = clock_deadline_ms(BATCH_TIMEOUT_MS);
    struct error error = {0};
    struct db_conn *conn = NULL;
    (void)task;
    if (!retention->is_going_on)
        retention->run_deleted = 0;
    retention->deleted = 0;
    enum status status = db_acquire(retention->site->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK && !retention->is_going_on && rule->inspect)
        rule->inspect(rule->context, conn, deadline_ns);
    if (status == STATUS_OK)
        status = delete_batch(retention, conn, deadline_ns, &error);
    db_release(conn);
    retention->run_deleted += retention->deleted;
    metric_add(retention->deleted_total, (uint64_t)retention->deleted);
    if (retention->deleted < BATCH && retention->run_deleted && rule->on_deleted)
        rule->on_deleted(rule->context, retention->run_deleted);
    else if (retention->deleted < BATCH && retention->run_deleted)
        log_info("retention_deleted", LOG_CSTR("table", rule->name), LOG_INT("rows", retention->run_deleted));
    retention->is_going_on = status == STATUS_OK && retention->deleted >= BATCH;
    if (retention->is_going_on)
        return TASK_NOW;
    if (status != STATUS_OK && status != STATUS_CANCELLED && !retention->is_logged)
        log_warn("retention_failed", LOG_CSTR("table", rule->name), LOG_ERROR_FIELDS(&error));
    retention->is_logged = status != STATUS_OK;
    bool is_soon = status != STATUS_OK && rule->interval_ms > RETRY_MS;
    return TASK_MS(is_soon ? RETRY_MS : backoff_spread_ms(rule->interval_ms));
}

void kernel_retention_add(struct kernel *kernel, const struct retention_rule *rule)
{
    struct kernel_site *site = &kernel->store->site;
    struct retention *retention = arena_zalloc(&site->arena, sizeof *retention);
    struct str name = str_from(rule->name);
    int64_t first_ms = rule->interval_ms < FIRST_MS ? rule->interval_ms : FIRST_MS;
    retention->site = site;
    retention->rule = *rule;
    retention->deleted_total = metric_of_deleted(name);
    retention->statement = db_statement_of(str_from(rule->sql));
    kernel_site_add_task(site, "retention", retention_step, retention,
                         TASK_MS((int64_t)(random_u64() % (uint64_t)(first_ms + 1))));
}

static void count_cleaned(void *context, struct str route, int64_t count)
{
    (void)context;
    idempotency_count_cleaned(route, count);
}

static void log_cleaned(void *context, int64_t count)
{
    const struct idempotency_table *table = context;
    idempotency_log_cleaned(str_from(table->name), count);
}

void kernel_retention_add_keys(struct kernel *kernel, const struct idempotency_table *table,
                               int64_t interval_ms)
{
    struct buf sql = {0};
    idempotency_cleanup_sql(table, &sql);
    kernel_retention_add(kernel, &(struct retention_rule){
                                     .name = table->name,
                                     .sql = arena_str(&kernel->store->site.arena, buf_str(&sql)).ptr,
                                     .interval_ms = interval_ms,
                                     .on_group = count_cleaned,
                                     .on_deleted = log_cleaned,
                                     .context = (void *)(uintptr_t)table, /* only read */
                                 });
    buf_deinit(&sql);
}
