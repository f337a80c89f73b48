/* Retention: a task for each rule, a batch for each run of it, so that a long deletion keeps no worker and no connection
 * from others. Any number of processes may do the same: their statements skip what is locked. */
#include <stdio.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "idempotency/idempotency.h"
#include "kernel/kernel_inside.h"

enum {
    BATCH = 1000,
    BATCH_TIMEOUT_MS = 10000,
    FIRST_MS = 60 * 1000,
    MEASURE_MS = 30 * 1000,
    RETRY_MS = 10 * 1000, /* after a failure, or sooner where the interval is */
};

struct retention {
    struct kernel_site *site;
    struct retention_rule rule;
    struct db_statement statement;
    struct metric_series *deleted_total;
    int64_t deleted;     /* by the last batch */
    int64_t run_deleted; /* by all batches since the interval was over */
    bool is_of_keys;     /* stored answers: the statement returns rows (route, count) */
    bool is_going_on;    /* the last batch was full */
    bool is_failing;     /* and logged */
};

static enum status delete_batch(struct retention *retention, struct db_conn *conn, int64_t deadline_ns,
                                struct error *error)
{
    const struct db_param *params = DB_PARAMS(db_i64(retention->rule.keep_ms), db_int(BATCH));
    if (!retention->is_of_keys)
        return db_exec(conn, &retention->statement, params, deadline_ns, &retention->deleted, error);
    struct db_result *routes = NULL;
    enum status status = db_query(conn, &retention->statement, params, deadline_ns, &routes, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(routes); row++) {
        int64_t count = db_result_i64(routes, row, 1);
        retention->deleted += count;
        idempotency_count_cleaned(db_result_str(routes, row, 0), count);
    }
    db_result_free(routes);
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
    bool is_logged = retention->deleted < BATCH && retention->run_deleted && !rule->is_quiet;
    if (is_logged && retention->is_of_keys)
        idempotency_log_cleaned(str_from(rule->name), retention->run_deleted);
    else if (is_logged)
        log_info("retention_deleted", LOG_CSTR("table", rule->name), LOG_INT("rows", retention->run_deleted));
    retention->is_going_on = status == STATUS_OK && retention->deleted >= BATCH;
    if (retention->is_going_on)
        return TASK_NOW;
    if (status != STATUS_OK && status != STATUS_CANCELLED && !retention->is_failing)
        log_warn("retention_failed", LOG_CSTR("table", rule->name), LOG_ERROR_FIELDS(&error));
    retention->is_failing = status != STATUS_OK;
    bool is_soon = status != STATUS_OK && rule->interval_ms > RETRY_MS;
    return TASK_MS(is_soon ? RETRY_MS : backoff_spread_ms(rule->interval_ms));
}

/* ---- how many keys are stored ---- */

static int64_t measure_keys(struct task *task, void *context)
{
    const struct retention *retention = context;
    int64_t deadline_ns = clock_deadline_ms(BATCH_TIMEOUT_MS);
    struct error error = {0};
    struct db_conn *conn = NULL;
    (void)task;
    enum status status = db_acquire(retention->site->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = idempotency_measure(conn, str_from(retention->rule.name), deadline_ns, &error);
    db_release(conn);
    if (status != STATUS_OK && status != STATUS_CANCELLED &&
        status != STATUS_DB_DOWN) /* the pool logs that */
        log_warn("idempotency_keys_not_measured", LOG_CSTR("table", retention->rule.name),
                 LOG_ERROR_FIELDS(&error));
    return TASK_MS(backoff_spread_ms(MEASURE_MS));
}

/* ---- rules ---- */

static void add_rule(struct kernel *kernel, const struct retention_rule *rule, bool is_of_keys)
{
    struct kernel_site *site = &kernel->store->site;
    struct retention *retention = arena_zalloc(&site->arena, sizeof *retention);
    struct str name = str_from(rule->name);
    int64_t first_ms = rule->interval_ms < FIRST_MS ? rule->interval_ms : FIRST_MS;
    retention->site = site;
    retention->rule = *rule;
    retention->is_of_keys = is_of_keys;
    retention->deleted_total = metric_of_deleted(name);
    retention->statement = db_statement_of(str_from(rule->sql));
    kernel_site_add_task(site, "retention", retention_step, retention,
                         TASK_MS((int64_t)(random_u64() % (uint64_t)(first_ms + 1))));
    if (is_of_keys)
        kernel_site_add_task(site, "key-size", measure_keys, retention, TASK_NOW);
}

void kernel_retention_add(struct kernel *kernel, const struct retention_rule *rule)
{
    add_rule(kernel, rule, false);
}

void kernel_retention_add_keys(struct kernel *kernel, const struct idempotency_table *table,
                               int64_t interval_ms)
{
    struct buf sql = {0};
    idempotency_cleanup_sql(table, &sql);
    add_rule(kernel,
             &(struct retention_rule){.name = table->name,
                                      .sql = arena_str(&kernel->store->site.arena, buf_str(&sql)).ptr,
                                      .interval_ms = interval_ms},
             true);
    buf_deinit(&sql);
}
