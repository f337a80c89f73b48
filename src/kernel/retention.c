/* Retention: a timer and a job for each rule. A run is as many batches as find something; each is a job of its own, so that
 * a long run holds no worker and no connection from others. Any number of processes may do the same: their statements skip
 * what is locked. */
#include "kernel/retention.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"
#include "kernel/store_inside.h"

enum {
    BATCH = 1000,
    BATCH_TIMEOUT_MS = 10000,
    FIRST_MS = 60 * 1000,
    RETRY_MS = 10 * 1000, /* after a failure, or sooner where the interval is */
};

struct retention {
    struct retention *next;
    struct kernel_store *store;
    struct retention_rule rule;
    struct db_statement statement;
    struct metric_series *deleted_total;
    struct loop_timer timer;
    struct worker_job job;
    /* The job's while that is under way, the home loop's otherwise. */
    bool begins; /* the first batch of a run */
    bool failed;
    int64_t deleted; /* by the last batch */
    int64_t run_deleted;
    bool told; /* that it fails */
};

/* ---- a batch, on a worker ---- */

static enum status delete_batch(struct retention *retention, struct db_conn *conn, int64_t deadline_ns,
                                struct error *error)
{
    char keep[24], batch[24];
    snprintf(keep, sizeof keep, "%lld", (long long)retention->rule.keep_ms);
    snprintf(batch, sizeof batch, "%d", BATCH);
    const struct db_param params[] = {{str_from(keep)}, {str_from(batch)}};
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

static void tell_deleted(const struct retention *retention)
{
    const struct retention_rule *rule = &retention->rule;
    if (rule->on_deleted)
        rule->on_deleted(rule->context, retention->run_deleted);
    else
        log_info("retention_deleted", LOG_CSTR("table", rule->name), LOG_INT("rows", retention->run_deleted));
}

static void tell_failed(struct retention *retention, const struct error *error)
{
    if (!retention->told && error->status != STATUS_CANCELLED)
        log_warn("retention_failed", LOG_CSTR("table", retention->rule.name), LOG_ERROR_FIELDS(error));
    retention->told = true;
}

static void run_batch(struct worker_job *job)
{
    struct retention *retention = (struct retention *)((char *)job - offsetof(struct retention, job));
    const struct retention_rule *rule = &retention->rule;
    int64_t deadline_ns = clock_deadline_ms(BATCH_TIMEOUT_MS);
    struct error error = {0};
    struct db_conn *conn = NULL;
    retention->deleted = 0;
    enum status status = db_acquire(retention->store->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK && retention->begins && rule->inspect)
        rule->inspect(rule->context, conn, deadline_ns);
    if (status == STATUS_OK)
        status = delete_batch(retention, conn, deadline_ns, &error);
    db_release(conn);
    retention->failed = status != STATUS_OK;
    if (retention->failed)
        tell_failed(retention, &error);
    else
        retention->told = false;
    retention->run_deleted += retention->deleted;
    metric_add(retention->deleted_total, (uint64_t)retention->deleted);
    if (retention->deleted < BATCH && retention->run_deleted)
        tell_deleted(retention);
}

/* ---- on the home loop ---- */

static void start_batch(struct retention *retention, bool begins);

static void on_due(struct loop_timer *timer)
{
    start_batch((struct retention *)((char *)timer - offsetof(struct retention, timer)), true);
}

static void batch_done(struct worker_job *job)
{
    struct retention *retention = (struct retention *)((char *)job - offsetof(struct retention, job));
    int64_t pause_ms = retention->rule.interval_ms;
    if (job->cancelled || retention->store->stopping)
        return;
    if (!retention->failed && retention->deleted >= BATCH) {
        start_batch(retention, false);
        return;
    }
    if (retention->failed && pause_ms > RETRY_MS)
        pause_ms = RETRY_MS;
    loop_timer_start(retention->store->home, &retention->timer, clock_deadline_ms(pause_ms), on_due);
}

static void start_batch(struct retention *retention, bool begins)
{
    retention->begins = begins;
    if (begins)
        retention->run_deleted = 0;
    retention->job =
        (struct worker_job){.loop = retention->store->home, .run = run_batch, .done = batch_done};
    (void)!worker_pool_submit(retention->store->workers, &retention->job); /* refused: it has stopped */
}

void kernel_retention_add(struct kernel *kernel, const struct retention_rule *rule)
{
    struct kernel_store *store = kernel->store;
    struct retention *retention = memory_zalloc(sizeof *retention);
    struct str name = str_from(rule->name);
    int64_t first_ms = rule->interval_ms < FIRST_MS ? rule->interval_ms : FIRST_MS;
    retention->store = store;
    retention->rule = *rule;
    retention->deleted_total = metric_of_deleted(name);
    db_statement_init(&retention->statement, rule->sql, 2, (const enum db_type[]){DB_BIGINT, DB_INT});
    retention->next = store->rules;
    store->rules = retention;
    loop_timer_start(store->home, &retention->timer,
                     clock_deadline_ms((int64_t)(random_u64() % (uint64_t)(first_ms + 1))), on_due);
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
    struct buf sql;
    buf_init(&sql);
    idempotency_cleanup_sql(table, &sql);
    kernel_retention_add(kernel, &(struct retention_rule){
                                     .name = table->name,
                                     .sql = arena_str(&kernel->store->arena, buf_str(&sql)).ptr,
                                     .interval_ms = interval_ms,
                                     .on_group = count_cleaned,
                                     .on_deleted = log_cleaned,
                                     .context = (void *)(uintptr_t)table, /* only read */
                                 });
    buf_deinit(&sql);
}

void kernel_retention_stop(struct kernel_store *store)
{
    for (struct retention *retention = store->rules; retention; retention = retention->next)
        loop_timer_stop(store->home, &retention->timer);
}

void kernel_retention_destroy(struct kernel_store *store)
{
    while (store->rules) {
        struct retention *retention = store->rules;
        store->rules = retention->next;
        free(retention);
    }
}
