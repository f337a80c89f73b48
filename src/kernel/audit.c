/* Auditors of published events. */
#include "kernel/audit.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"

enum {
    STEP_MS = 30000,
    INTERVAL_MS = 60000,
    LOOK_BACK_MS = 10 * INTERVAL_MS,
    EVENTS_MAX = 1000, /* of one statement */
    GAP_RETRY_MIN_MS = 200,
    GAP_RETRY_MAX_MS = 10000,
    STEP_DOUBLINGS_MAX = 4,
};

struct metric_family kernel_audit_family = {
    .name = "freshet_events_republished_total",
    .help = "Events that did not arrive and are published again, by outbox.",
    .type = METRIC_COUNTER,
    .labels = {"outbox", NULL},
};

static enum status republish(struct db_conn *conn, const struct outbox_table *table,
                             const struct db_result *lost, int64_t deadline_ns, int64_t *found,
                             struct error *error)
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
                      deadline_ns, &count, error);
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
                                      int64_t step_ms, int64_t *found)
{
    struct error error = {0};
    struct db_result *lost = NULL;
    struct db_conn *conn = NULL;
    int64_t deadline_ns = clock_deadline_ms(step_ms);
    enum status status = kernel_store_require(kernel, &error);
    if (status == STATUS_OK)
        status = db_acquire(kernel_store(kernel)->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = db_query(conn, lost_sql, params, deadline_ns, &lost, &error);
    if (status == STATUS_OK)
        status = republish(conn, table, lost, clock_deadline_ms(step_ms), found, &error);
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
                           DB_PARAMS(db_i64(since_ms), db_i64(auditor->keep_ms)), STEP_MS,
                           &found) == STATUS_OK &&
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

/* Of one partition. */
struct gap {
    TAILQ_ENTRY(gap) link;
    const struct outbox_table *table;
    const char *topic;
    unsigned partition;
    int64_t offset, begun_ns;
};

/* Those whose events could not be published again yet. */
struct kernel_gaps {
    struct kernel *kernel;
    struct task *task;
    pthread_mutex_t lock; /* for `pending` */
    TAILQ_HEAD(gap_list, gap) pending;
};

/* On the bus: what was published since the gap is not lost. An event is published after its message was stored. */
static enum status repair_gap(struct kernel *kernel, const struct gap *gap, int64_t step_ms)
{
    const struct kernel_bus_settings *bus = kernel_bus(kernel);
    const struct outbox_table *table = gap->table;
    const char *id = table->id.name, *at = table->published_at;
    struct buf sql = {0};
    enum status status;
    int64_t found;
    /* $1 topic, $2 partition, $3 offset, $4 keep in ms, $5 whether messages are in PostgreSQL, $6 milliseconds since the gap. */
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
    do {
        found = 0;
        status = find_and_republish(kernel, table, &statement,
                                    DB_PARAMS(db_cstr(gap->topic), db_int((int)gap->partition),
                                              db_i64(gap->offset), db_i64(bus->keep_ms),
                                              db_bool(bus->events == KERNEL_POSTGRES),
                                              db_i64((clock_mono_ns() - gap->begun_ns) / CLOCK_NS_PER_MS)),
                                    step_ms, &found);
    } while (status == STATUS_OK && found == EVENTS_MAX);
    buf_deinit(&sql);
    return status;
}

/* Two gaps of a partition become one, which has the events of both. */
static void keep_gap(struct kernel_gaps *gaps, const struct gap *gap)
{
    struct gap *known;
    pthread_mutex_lock(&gaps->lock);
    TAILQ_FOREACH(known, &gaps->pending, link)
        if (known->table == gap->table && known->partition == gap->partition &&
            strcmp(known->topic, gap->topic) == 0)
            break;
    if (!known) {
        known = memory_alloc(sizeof *known);
        *known = *gap;
        TAILQ_INSERT_TAIL(&gaps->pending, known, link);
    }
    if (gap->offset < known->offset)
        known->offset = gap->offset;
    if (gap->begun_ns > known->begun_ns)
        known->begun_ns = gap->begun_ns;
    pthread_mutex_unlock(&gaps->lock);
}

static struct gap *take_gap(struct kernel_gaps *gaps)
{
    pthread_mutex_lock(&gaps->lock);
    struct gap *gap = TAILQ_FIRST(&gaps->pending);
    if (gap)
        TAILQ_REMOVE(&gaps->pending, gap, link);
    pthread_mutex_unlock(&gaps->lock);
    return gap;
}

/* A statement that takes too long has more time the next time. */
static int64_t repair_pending(struct task *task, void *context)
{
    struct kernel_gaps *gaps = context;
    unsigned failures = task_failures(task);
    int64_t step_ms = (int64_t)STEP_MS << (failures < STEP_DOUBLINGS_MAX ? failures : STEP_DOUBLINGS_MAX);
    enum status status = STATUS_OK;
    struct gap *gap;
    while (status == STATUS_OK && (gap = take_gap(gaps)) != NULL) {
        status = repair_gap(gaps->kernel, gap, step_ms);
        if (status != STATUS_OK)
            keep_gap(gaps, gap);
        free(gap);
    }
    return status == STATUS_OK ? TASK_IDLE : task_retry(task);
}

void kernel_audit_gap(struct kernel *kernel, const struct outbox_table *table, const char *topic,
                      unsigned partition, int64_t offset)
{
    struct kernel_gaps *gaps = kernel->store->gaps;
    const struct gap gap = {.table = table,
                            .topic = topic,
                            .partition = partition,
                            .offset = offset,
                            .begun_ns = clock_mono_ns()};
    if (repair_gap(kernel, &gap, STEP_MS) == STATUS_OK)
        return;
    keep_gap(gaps, &gap);
    task_wake(gaps->task);
}

struct kernel_gaps *kernel_gaps_create(struct kernel *kernel, struct kernel_site *site)
{
    struct kernel_gaps *gaps = memory_zalloc(sizeof *gaps);
    gaps->kernel = kernel;
    TAILQ_INIT(&gaps->pending);
    pthread_mutex_init(&gaps->lock, NULL);
    gaps->task = task_create(&(struct task_config){.name = "gaps",
                                                   .loop = site->home,
                                                   .pool = site->workers,
                                                   .run = repair_pending,
                                                   .context = gaps,
                                                   .retry_min_ms = GAP_RETRY_MIN_MS,
                                                   .retry_max_ms = GAP_RETRY_MAX_MS});
    kernel_site_adopt_task(site, gaps->task, TASK_IDLE);
    return gaps;
}

void kernel_gaps_destroy(struct kernel_gaps *gaps)
{
    struct gap *gap;
    if (!gaps)
        return;
    while ((gap = take_gap(gaps)) != NULL)
        free(gap);
    pthread_mutex_destroy(&gaps->lock);
    free(gaps);
}
