/* How many dead letters wait for a decision, looked up every few seconds: what an alert watches. Every process counts the
 * same; a sum over them would be wrong, a maximum is right. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/notification/notification.h"

enum { INTERVAL_MS = 2000, QUERY_MS = 3000 };

/* By the partial indexes of dead ones. */
static const char dead_sql[] =
    "SELECT count(*) FILTER (WHERE kind = 'terminated'), count(*) FILTER (WHERE kind = 'max_deliver'),"
    "       (SELECT count(*) FROM notification.notification_dlq WHERE status = 'DEAD')"
    " FROM notification.notification_nats_dlq WHERE status = 'DEAD'";

struct notification_gauges {
    struct notification *notification;
    struct loop_timer timer; /* the store's loop's */
    struct worker_job job;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t idle;
    bool busy, stopping;
};

static void measure(struct worker_job *job)
{
    struct notification_gauges *gauges =
        (struct notification_gauges *)((char *)job - offsetof(struct notification_gauges, job));
    int64_t deadline_ns = clock_deadline_ms(QUERY_MS);
    struct db_statement statement;
    struct db_result *rows = NULL;
    struct db_conn *conn = NULL;
    struct error error = {0};
    db_statement_init(&statement, dead_sql, 0, NULL);
    enum status status =
        db_acquire(kernel_store_pool(gauges->notification->kernel), deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = db_query(conn, &statement, NULL, deadline_ns, &rows, &error);
    db_release(conn);
    if (status == STATUS_OK) {
        notification_set_dead("terminated", db_result_i64(rows, 0, 0));
        notification_set_dead("max_deliver", db_result_i64(rows, 0, 1));
        notification_set_dead("delivery", db_result_i64(rows, 0, 2));
    }
    db_result_free(rows);
}

static void measured(struct worker_job *job)
{
    struct notification_gauges *gauges =
        (struct notification_gauges *)((char *)job - offsetof(struct notification_gauges, job));
    pthread_mutex_lock(&gauges->lock);
    gauges->busy = false;
    pthread_cond_broadcast(&gauges->idle);
    pthread_mutex_unlock(&gauges->lock);
}

static void on_timer(struct loop_timer *timer)
{
    struct notification_gauges *gauges =
        (struct notification_gauges *)((char *)timer - offsetof(struct notification_gauges, timer));
    struct kernel *kernel = gauges->notification->kernel;
    pthread_mutex_lock(&gauges->lock);
    bool stopping = gauges->stopping;
    if (!stopping && !gauges->busy)
        gauges->busy = worker_pool_submit(kernel_store_workers(kernel), &gauges->job);
    pthread_mutex_unlock(&gauges->lock);
    if (!stopping)
        loop_timer_start(kernel_store_loop(kernel), &gauges->timer, clock_deadline_ms(INTERVAL_MS), on_timer);
}

struct notification_gauges *notification_gauges_start(struct notification *notification)
{
    struct notification_gauges *gauges = memory_zalloc(sizeof *gauges);
    gauges->notification = notification;
    gauges->job = (struct worker_job){.run = measure, .done = measured};
    pthread_mutex_init(&gauges->lock, NULL);
    pthread_cond_init(&gauges->idle, NULL);
    loop_timer_start(kernel_store_loop(notification->kernel), &gauges->timer, clock_mono_ns(), on_timer);
    return gauges;
}

void notification_gauges_stop(struct notification_gauges *gauges)
{
    if (!gauges)
        return;
    pthread_mutex_lock(&gauges->lock);
    gauges->stopping = true;
    while (gauges->busy)
        pthread_cond_wait(&gauges->idle, &gauges->lock);
    pthread_mutex_unlock(&gauges->lock);
}

void notification_gauges_destroy(struct notification_gauges *gauges)
{
    if (!gauges)
        return;
    loop_timer_stop(kernel_store_loop(gauges->notification->kernel), &gauges->timer);
    pthread_cond_destroy(&gauges->idle);
    pthread_mutex_destroy(&gauges->lock);
    free(gauges);
}
