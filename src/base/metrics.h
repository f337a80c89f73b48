/* Metrics: counters, gauges and histograms, printed as Prometheus text.
 *
 * A family is a static row declared by its owner and registered once at start. A series is one combination
 * of label values; get it once and keep it, updating it then takes no lock. Counters and histograms are
 * sharded by thread: the loops each have a shard to themselves, so a hot path writes no line that another
 * core reads, and the shards are summed by the scraper. Label values are escaped when printed, and a
 * family holds at most `series_max` of them: past that every new one is the series whose labels all read
 * "other", so that no peer can fill the memory. */
#ifndef FRESHET_BASE_METRICS_H
#define FRESHET_BASE_METRICS_H

#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"

#define METRIC_LABELS_MAX 4
#define METRIC_SERIES_MAX_DEFAULT 1000

enum metric_type {
    METRIC_COUNTER,
    METRIC_GAUGE,
    METRIC_HISTOGRAM,
    METRIC_COUNTER_READ, /* counted elsewhere, such as by the system: metric_set() */
};

struct metric_series;

struct metric_family {
    const char *name; /* as Prometheus shows it */
    const char *help; /* one sentence, with the unit */
    enum metric_type type;
    const char *labels[METRIC_LABELS_MAX + 1]; /* names, NULL-terminated */
    const double *buckets; /* histogram: upper bounds, ascending, ended by 0; NULL = seconds, 50 us to 30 s */
    unsigned series_max;   /* 0 = METRIC_SERIES_MAX_DEFAULT */
    struct metric_family_state *state; /* the registry's */
};

void metrics_register(struct metric_family *family); /* idempotent; at start, before threads use it */

/* The series with these label values (as many as the family has names). Never NULL; lives as long as the
 * process unless metric_series_drop() is called. Takes a lock: not for the hot path. */
struct metric_series *metric_series_get(struct metric_family *family, const struct str *label_values);
/* freshet_retention_deleted_total of a table: counts rows deleted because of their age. */
struct metric_series *metric_of_deleted(struct str table);
/* Stops printing it (a dictionary that was removed). The memory stays valid. */
void metric_series_drop(struct metric_series *series);

void metric_add(struct metric_series *series, uint64_t n); /* counter */
void metric_set(struct metric_series *series,
                double value); /* gauge, counter that is read; any thread, last one wins */
void metric_change(struct metric_series *series, double by);                           /* gauge, up or down */
void metric_observe(struct metric_series *series, double value);                       /* histogram */
void metric_observe_times(struct metric_series *series, double value, unsigned times); /* the same value */
uint64_t metric_value(const struct metric_series *series); /* counter's sum: for tests and health */

/* Calls fn(arg, label values, value) for each series of a family, by its name: counters and gauges. Of a family that is not registered
 * there are none. fn takes no series. Any thread. */
void metrics_each(const char *family, void (*fn)(void *arg, const struct str *label_values, double value),
                  void *arg);
/* A histogram's observations by bucket, of all its series: adds to counts[], of which there are as many as bounds and one more for what is
 * above the last. Returns the bounds, ended by 0; NULL = it is not registered. */
#define METRIC_BUCKETS_MAX 32
const double *metrics_buckets(const struct metric_family *family, uint64_t counts[METRIC_BUCKETS_MAX]);

/* Gives the calling thread a shard of its own. Called by each loop at start; other threads share one. */
void metrics_thread_take_shard(void);

void metrics_print(struct buf *out); /* text format 0.0.4 */

#endif
