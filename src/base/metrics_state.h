/* Inside base: what metrics.c updates and metrics_print.c reads.
 *
 * A counter's or histogram's cells stand once a shard, each shard's on lines of its own:
 *
 *     counter     cells = [count]
 *     histogram   cells = [bucket 0 .. bucket n-1, +Inf bucket, sum as a double's bits]
 *     gauge       one shard only, cells = [value as a double's bits]
 *
 * Buckets count only their own range here; they are made cumulative when printed. */
#ifndef FRESHET_BASE_METRICS_STATE_H
#define FRESHET_BASE_METRICS_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/metrics.h"

#define METRIC_SHARDS_EXCLUSIVE 16
#define METRIC_SHARD_SHARED METRIC_SHARDS_EXCLUSIVE /* of every thread that claimed none */
#define METRIC_SHARDS (METRIC_SHARDS_EXCLUSIVE + 1)
#define METRIC_TABLE_SLOTS 256

typedef _Atomic uint64_t metric_cell;

struct metric_series {
    struct metric_family_state *family;
    struct metric_series *next;         /* in the family, in order of creation */
    struct metric_series *next_in_slot; /* in the family's hash table */
    uint64_t hash;
    metric_cell *cells;
    bool dropped; /* under the registry's lock */
    struct str label_values[METRIC_LABELS_MAX];
};

struct metric_family_state {
    const struct metric_family *family;
    struct metric_family_state *next;
    const double *bounds;
    unsigned bound_count, label_count;
    unsigned cell_count;  /* of one shard */
    unsigned shard_cells; /* cell_count rounded up to whole lines */
    unsigned shard_count;
    unsigned live_count, live_max;
    struct metric_series *first, *last;
    struct metric_series *table[METRIC_TABLE_SLOTS];
};

struct metrics_registry {
    pthread_mutex_t lock;
    struct metric_family_state *first, *last;
};
extern struct metrics_registry metrics_registry;

static inline double metric_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint64_t metric_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* One cell over all shards, as an integer and as a double. */
uint64_t metric_cell_sum(const struct metric_series *series, unsigned cell);
double metric_cell_sum_double(const struct metric_series *series, unsigned cell);

#endif
