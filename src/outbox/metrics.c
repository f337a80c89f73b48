/* Metrics of outboxes (O5), and log lines of settled events. */
#include "base/metrics.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "outbox/outbox_inside.h"

static const double latency_buckets[] = {1,   2,    5,    10,   25,    50,    100, 250,
                                         500, 1000, 2500, 5000, 10000, 60000, 0};

static struct metric_family pending = {
    .name = "outbox_pending_count",
    .help = "Events committed and not yet published, without those that are FAILED.",
    .type = METRIC_GAUGE,
    .labels = {"module", "event_type"},
};
static struct metric_family oldest = {
    .name = "outbox_oldest_pending_age_seconds",
    .help = "Age of the oldest event that is not yet published; 0 = none.",
    .type = METRIC_GAUGE,
    .labels = {"module", "event_type"},
};
static struct metric_family success = {
    .name = "outbox_publish_success_total",
    .help = "Events published.",
    .type = METRIC_COUNTER,
    .labels = {"module", "event_type"},
};
static struct metric_family failed = {
    .name = "outbox_publish_failed_total",
    .help = "Failed attempts to publish an event.",
    .type = METRIC_COUNTER,
    .labels = {"module", "event_type"},
};
static struct metric_family dead = {
    .name = "outbox_dead_lettered_total",
    .help = "Events that became FAILED: `freshet outbox` lists them. Worth an alert.",
    .type = METRIC_COUNTER,
    .labels = {"module", "event_type"},
};
static struct metric_family latency = {
    .name = "outbox_publish_latency_ms",
    .help =
        "From an event's creation until its publication is recorded, in milliseconds of the database's clock.",
    .type = METRIC_HISTOGRAM,
    .labels = {"module", "event_type"},
    .buckets = latency_buckets,
};

void outbox_metrics_init(void)
{
    metrics_register(&pending);
    metrics_register(&oldest);
    metrics_register(&success);
    metrics_register(&failed);
    metrics_register(&dead);
    metrics_register(&latency);
}

static void set_pending(const char *module, struct str event_type, int64_t count, int64_t age_ms)
{
    const struct str labels[] = {str_from(module), event_type};
    metric_set(metric_series_get(&pending, labels), (double)count);
    metric_set(metric_series_get(&oldest, labels), (double)age_ms / 1000);
}

static bool has_type(const struct db_result *rows, struct str event_type)
{
    for (size_t i = 0; i < db_result_rows(rows); i++)
        if (str_eq(db_result_str(rows, i, 0), event_type))
            return true;
    return false;
}

static void remember_type(struct outbox_gauges *gauges, struct str event_type)
{
    for (size_t i = 0; i < gauges->count; i++)
        if (str_eq(gauges->types[i], event_type))
            return;
    if (gauges->count == METRIC_SERIES_MAX_DEFAULT)
        return; /* the registry counts further types as "other" */
    gauges->types = memory_realloc_array(gauges->types, gauges->count + 1, sizeof gauges->types[0]);
    gauges->types[gauges->count++] = str_of(str_dup(event_type), event_type.len);
}

void outbox_gauges_set(struct outbox_gauges *gauges, const char *module, const struct db_result *rows)
{
    for (size_t i = 0; i < gauges->count; i++)
        if (!has_type(rows, gauges->types[i]))
            set_pending(module, gauges->types[i], 0, 0);
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        remember_type(gauges, db_result_str(rows, i, 0));
        set_pending(module, db_result_str(rows, i, 0), db_result_i64(rows, i, 1), db_result_i64(rows, i, 2));
    }
}

void outbox_gauges_deinit(struct outbox_gauges *gauges)
{
    for (size_t i = 0; i < gauges->count; i++)
        free((char *)gauges->types[i].ptr);
    free(gauges->types);
}

/* ---- settled events ---- */

/* As sql.c's settle returns them; from LOGGED on the table's `logged` columns follow. */
enum settled_column { RESULT, EVENT_TYPE, AGE_MS, ID, REASON, ATTEMPTS, LOGGED };
enum { FIELDS_MAX = 5 + OUTBOX_LOGGED_MAX + 1 };

struct counters { /* of a module's event type */
    struct metric_series *success, *failed, *dead, *latency;
};

static void find_counters(const char *module, struct str event_type, struct counters *counters)
{
    const struct str labels[] = {str_from(module), event_type};
    counters->success = metric_series_get(&success, labels);
    counters->failed = metric_series_get(&failed, labels);
    counters->dead = metric_series_get(&dead, labels);
    counters->latency = metric_series_get(&latency, labels);
    (void)metric_series_get(&pending, labels); /* so that they are 0, not missing, while nothing waits */
    (void)metric_series_get(&oldest, labels);
}

static void log_settled(const struct outbox_table *table, const struct db_result *rows, size_t row,
                        enum log_level level, const char *event)
{
    struct log_field fields[FIELDS_MAX] = {LOG_CSTR("module", table->module),
                                           LOG_STR("eventType", db_result_str(rows, row, EVENT_TYPE)),
                                           LOG_STR("id", db_result_str(rows, row, ID))};
    size_t count = 3;
    for (unsigned i = 0; table->logged[i].name; i++)
        fields[count++] = table->logged[i].is_number
                              ? LOG_INT(table->logged[i].name, db_result_i64(rows, row, LOGGED + i))
                              : LOG_STR(table->logged[i].name, db_result_str(rows, row, LOGGED + i));
    if (level != LOG_LEVEL_DEBUG) {
        fields[count++] = LOG_INT("attempt", db_result_i64(rows, row, ATTEMPTS));
        fields[count++] = LOG_STR("error", db_result_str(rows, row, REASON));
    }
    log_write(level, event, fields);
}

static void report_row(const struct outbox_table *table, const struct db_result *rows, size_t row,
                       const struct counters *counters)
{
    struct str result = db_result_str(rows, row, RESULT);
    bool is_dead = str_eq(result, STR("dead"));
    if (str_eq(result, STR("released")))
        return;
    if (str_eq(result, STR("done"))) {
        metric_add(counters->success, 1);
        metric_observe(counters->latency, (double)db_result_i64(rows, row, AGE_MS));
        if (log_enabled(LOG_LEVEL_DEBUG))
            log_settled(table, rows, row, LOG_LEVEL_DEBUG, "outbox_publish_succeeded");
        return;
    }
    metric_add(counters->failed, 1);
    metric_add(counters->dead, is_dead);
    if (!str_eq(result, STR("outage"))) /* the log has one line for the whole outage */
        log_settled(table, rows, row, is_dead ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN,
                    is_dead ? "outbox_event_dead_lettered" : "outbox_publish_failed");
}

void outbox_report_settled(const struct outbox_table *table, const struct db_result *rows)
{
    struct counters counters = {0};
    struct str type = STR_NONE;
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        if (i == 0 || !str_eq(type, db_result_str(rows, i, EVENT_TYPE))) {
            type = db_result_str(rows, i, EVENT_TYPE);
            find_counters(table->module, type, &counters);
        }
        report_row(table, rows, i, &counters);
    }
}

void outbox_log_enqueued(const struct outbox_table *table, struct str event_type, struct str id)
{
    log_debug("outbox_event_enqueued", LOG_CSTR("module", table->module), LOG_STR("eventType", event_type),
              LOG_STR("eventId", id));
}
