/* The audit's months: partitions that are needed soon are made at the start and once a day, old ones are dropped where that is
 * configured. Any number of processes may do it; who fails (somebody holds a lock, or this role may not create tables) tries
 * again, and meanwhile the default partition takes what comes. */
#include <stddef.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "modules/entitlement/entitlement.h"

enum { DAY_MS = 24 * 3600 * 1000, AGAIN_MS = 10 * 60 * 1000, STATEMENT_MS = 10000 };

struct metric_family entitlement_audit_family = {
    .name = "entitlement_audit_upkeep_failures_total",
    .help = "Times that partitions of entitlement_audit could not be made ahead or dropped.",
    .type = METRIC_COUNTER,
};

void entitlement_audit_init(struct entitlement *entitlement)
{
    static const enum db_type types[] = {DB_INT};
    db_statement_init(&entitlement->audit_make, "SELECT entitlement.audit_make($1)", 1, types);
    db_statement_init(&entitlement->audit_drop, "SELECT entitlement.audit_drop($1)", 1, types);
}

static enum status call(struct db_conn *conn, const struct db_statement *statement, int64_t months,
                        int64_t *count, struct error *error)
{
    char text[24];
    struct db_result *rows = NULL;
    snprintf(text, sizeof text, "%lld", (long long)months);
    enum status status = db_query(conn, statement, &(struct db_param){str_from(text)},
                                  clock_deadline_ms(STATEMENT_MS), &rows, error);
    *count = status == STATUS_OK ? db_result_i64(rows, 0, 0) : 0;
    db_result_free(rows);
    return status;
}

static enum status tend(struct entitlement *entitlement, struct error *error)
{
    int64_t keep = entitlement->settings->audit.keep_months, made = 0, dropped = 0;
    struct db_conn *conn = NULL;
    enum status status =
        db_acquire(kernel_store_pool(entitlement->kernel), clock_deadline_ms(STATEMENT_MS), &conn, error);
    if (status == STATUS_OK)
        status =
            call(conn, &entitlement->audit_make, entitlement->settings->audit.months_ahead, &made, error);
    if (status == STATUS_OK && keep > 0)
        status = call(conn, &entitlement->audit_drop, keep, &dropped, error);
    db_release(conn);
    if (made || dropped)
        log_info("entitlement_audit_partitions", LOG_INT("made", made), LOG_INT("dropped", dropped));
    return status;
}

static void start_timer(struct entitlement *entitlement, int64_t pause_ms);

static void run(struct worker_job *job)
{
    struct entitlement *entitlement =
        (struct entitlement *)((char *)job - offsetof(struct entitlement, audit_job));
    struct error error = {0};
    enum status status = tend(entitlement, &error);
    entitlement->audit_failed = status != STATUS_OK;
    if (status == STATUS_OK || status == STATUS_CANCELLED)
        return;
    metric_add(metric_series_get(&entitlement_audit_family, NULL), 1);
    log_warn("entitlement_audit_upkeep_failed", LOG_ERROR_FIELDS(&error));
}

static void done(struct worker_job *job)
{
    struct entitlement *entitlement =
        (struct entitlement *)((char *)job - offsetof(struct entitlement, audit_job));
    if (!job->cancelled)
        start_timer(entitlement, entitlement->audit_failed ? AGAIN_MS : DAY_MS);
}

static void submit(struct entitlement *entitlement)
{
    entitlement->audit_job =
        (struct worker_job){.loop = kernel_store_loop(entitlement->kernel), .run = run, .done = done};
    if (!worker_pool_submit(kernel_store_workers(entitlement->kernel), &entitlement->audit_job))
        start_timer(entitlement, AGAIN_MS);
}

static void on_due(struct loop_timer *timer)
{
    submit((struct entitlement *)((char *)timer - offsetof(struct entitlement, audit_timer)));
}

static void start_timer(struct entitlement *entitlement, int64_t pause_ms)
{
    if (!atomic_load(&entitlement->stopping))
        loop_timer_start(kernel_store_loop(entitlement->kernel), &entitlement->audit_timer,
                         clock_deadline_ms(pause_ms), on_due);
}

void entitlement_audit_start(struct entitlement *entitlement)
{
    submit(entitlement);
}

void entitlement_audit_end(struct entitlement *entitlement)
{
    loop_timer_stop(kernel_store_loop(entitlement->kernel), &entitlement->audit_timer);
}
