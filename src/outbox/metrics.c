/* Metrics of outboxes (O5), and log lines of settled events. */
#include "base/metrics.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "outbox/outbox_inside.h"

static const double latency_buckets[] = {1,   2,    5,    10,   25,    50,    100, 250,
                                         500, 1000, 2500, 5000, 10000, 60000, 0};

enum { PENDING, OLDEST, ENQUEUED, SUCCESS, FAILED, DEAD, LATENCY, FAMILIES };
static struct metric_family families[FAMILIES] = {
    [PENDING] = {"outbox_pending_count",
                 "Events committed and not yet published, without those that are FAILED.", METRIC_GAUGE,
                 .labels = {"module", "event_type"}},
    [OLDEST] = {"outbox_oldest_pending_age_seconds",
                "Age of the oldest event that is not yet published; 0 = none.", METRIC_GAUGE,
                .labels = {"module", "event_type"}},
    [ENQUEUED] = {"outbox_enqueued_total", "Events committed by this process, to be published by any.",
                  METRIC_COUNTER, .labels = {"module", "event_type"}},
    [SUCCESS] = {"outbox_publish_success_total", "Events published.", METRIC_COUNTER,
                 .labels = {"module", "event_type"}},
    [FAILED] = {"outbox_publish_failed_total", "Failed attempts to publish an event.", METRIC_COUNTER,
                .labels = {"module", "event_type"}},
    [DEAD] = {"outbox_dead_lettered_total", "Events that became FAILED: `freshet outbox list` shows them.",
              METRIC_COUNTER, .labels = {"module", "event_type"}},
    [LATENCY] = {"outbox_publish_latency_ms",
                 "From an event's creation until its publication is recorded, in milliseconds of the"
                 " database's clock.",
                 METRIC_HISTOGRAM, .labels = {"module", "event_type"}, .buckets = latency_buckets},
};

void outbox_metrics_init(void)
{
    for (int i = 0; i < FAMILIES; i++)
        metrics_register(&families[i]);
}

static void set_pending(const char *module, struct str event_type, int64_t count, int64_t age_ms)
{
    const struct str labels[] = {str_from(module), event_type};
    metric_set(metric_series_get(&families[PENDING], labels), (double)count);
    metric_set(metric_series_get(&families[OLDEST], labels), (double)age_ms / 1000);
}

void outbox_gauges_set(struct outbox_gauges *gauges, const char *module, const struct db_result *rows)
{
    size_t row_count = db_result_rows(rows), row, known;
    for (size_t i = 0; i < gauges->count; i++) {
        for (row = 0; row < row_count && !str_eq(db_result_str(rows, row, 0), gauges->types[i]);)
            row++;
        if (row == row_count)
            set_pending(module, gauges->types[i], 0, 0);
    }
    for (row = 0; row < row_count; row++) {
        struct str type = db_result_str(rows, row, 0);
        for (known = 0; known < gauges->count && !str_eq(gauges->types[known], type);)
            known++;
        /* The registry counts types past its limit as "other". */
        if (known == gauges->count && known < METRIC_SERIES_MAX_DEFAULT) {
            gauges->types = memory_realloc_array(gauges->types, known + 1, sizeof gauges->types[0]);
            gauges->types[gauges->count++] = str_of(str_dup(type), type.len);
        }
        set_pending(module, type, db_result_i64(rows, row, 1), db_result_i64(rows, row, 2));
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

/* The gauges' series are made too, so that they are 0, not missing, while nothing waits. */
void outbox_report_settled(const struct outbox_table *table, const struct db_result *rows)
{
    struct metric_series *series[FAMILIES] = {NULL};
    struct str type = STR_NONE;
    unsigned id;
    uint32_t oid;
    bool names_events = db_result_find(rows, "id", &id, &oid); /* where the level is debug */
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        if (i == 0 || !str_eq(type, db_result_str(rows, i, EVENT_TYPE))) {
            type = db_result_str(rows, i, EVENT_TYPE);
            const struct str labels[] = {str_from(table->module), type};
            for (int j = 0; j < FAMILIES; j++)
                series[j] = metric_series_get(&families[j], labels);
        }
        struct str result = db_result_str(rows, i, RESULT);
        bool is_dead = str_eq(result, STR("dead"));
        if (str_eq(result, STR("released")))
            continue;
        if (str_eq(result, STR("done"))) {
            metric_add(series[SUCCESS], 1);
            metric_observe(series[LATENCY], (double)db_result_i64(rows, i, AGE_MS));
            if (names_events && log_enabled(LOG_LEVEL_DEBUG))
                log_settled(table, rows, i, LOG_LEVEL_DEBUG, "outbox_publish_succeeded");
            continue;
        }
        metric_add(series[FAILED], 1);
        metric_add(series[DEAD], is_dead);
        if (!str_eq(result, STR("outage"))) /* the log has one line for the whole outage */
            log_settled(table, rows, i, is_dead ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN,
                        is_dead ? "outbox_event_dead_lettered" : "outbox_publish_failed");
    }
}

void outbox_count_published(const struct outbox_table *table, struct str event_type, size_t count)
{
    const struct str labels[] = {str_from(table->module), event_type};
    struct metric_series *series[FAMILIES];
    for (int i = 0; i < FAMILIES; i++)
        series[i] = metric_series_get(&families[i], labels);
    metric_add(series[SUCCESS], count);
    metric_observe_times(series[LATENCY], 0, (unsigned)count);
}

/* A thread mostly writes events of one type: it keeps the series of that one. */
void outbox_count_enqueued(const struct outbox_table *table, struct str event_type, size_t count)
{
    static _Thread_local const struct outbox_table *last_table;
    static _Thread_local char last_type[64];
    static _Thread_local struct metric_series *last;
    if (count == 0)
        return;
    if (last_table != table || !str_eq(event_type, str_from(last_type))) {
        const struct str labels[] = {str_from(table->module), event_type};
        outbox_metrics_init(); /* a process that only writes has no engine */
        last = metric_series_get(&families[ENQUEUED], labels);
        last_table = table;
        snprintf(last_type, sizeof last_type, "%.*s", STR_ARG(event_type));
    }
    metric_add(last, count);
}

void outbox_log_enqueued(const struct outbox_table *table, struct str event_type, struct str id)
{
    outbox_count_enqueued(table, event_type, 1);
    log_debug("outbox_event_enqueued", LOG_CSTR("module", table->module), LOG_STR("eventType", event_type),
              LOG_STR("eventId", id));
}
