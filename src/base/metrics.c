/* The metrics registry and the updates.
 *
 * A thread that claimed a shard is its only writer, so it adds by a plain load and store, without the bus
 * lock of an atomic addition; all other threads share the last shard and do add atomically. Printing is
 * metrics_print.c. */
#include "base/metrics.h"

#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/metrics_state.h"

/* Two lines: the processor fetches them in pairs. */
#define SHARD_ALIGNMENT 128
#define LABEL_VALUE_BYTES_MAX 256 /* a longer value is cut: its length is a peer's choice */

struct metrics_registry metrics_registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_uint shards_claimed;
static _Thread_local unsigned thread_shard = METRIC_SHARD_SHARED;

static const double default_bounds[] = {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                        0.01,    0.025,  0.05,    0.1,    0.25,  0.5,    1,
                                        2.5,     5,      10,      30,     0};

static void set_layout(struct metric_family_state *state, const struct metric_family *family)
{
    const unsigned line = SHARD_ALIGNMENT / sizeof(metric_cell);

    state->cell_count = 1;
    if (family->type == METRIC_HISTOGRAM) {
        state->bounds = family->buckets ? family->buckets : default_bounds;
        while (state->bounds[state->bound_count] != 0)
            state->bound_count++;
        state->cell_count = state->bound_count + 2;
    }
    state->shard_count = family->type == METRIC_GAUGE ? 1 : METRIC_SHARDS;
    state->shard_cells = (state->cell_count + line - 1) / line * line;
}

static struct metric_family_state *state_create(const struct metric_family *family)
{
    struct metric_family_state *state = memory_zalloc(sizeof(*state));

    state->family = family;
    while (state->label_count < METRIC_LABELS_MAX && family->labels[state->label_count])
        state->label_count++;
    state->live_max = family->series_max ? family->series_max : METRIC_SERIES_MAX_DEFAULT;
    set_layout(state, family);
    return state;
}

void metrics_register(struct metric_family *family)
{
    pthread_mutex_lock(&metrics_registry.lock);
    if (!family->state) {
        family->state = state_create(family);
        if (metrics_registry.last)
            metrics_registry.last->next = family->state;
        else
            metrics_registry.first = family->state;
        metrics_registry.last = family->state;
    }
    pthread_mutex_unlock(&metrics_registry.lock);
}

static uint64_t labels_hash(const struct metric_family_state *state, const struct str *values)
{
    uint64_t hash = 0;

    for (unsigned i = 0; i < state->label_count; i++)
        hash = (hash ^ hash_seeded(values[i])) * UINT64_C(0x9E3779B97F4A7C15);
    return hash;
}

static struct metric_series *find(struct metric_family_state *state, const struct str *values, uint64_t hash)
{
    struct metric_series *series = state->table[(hash >> 32) % METRIC_TABLE_SLOTS];

    for (; series; series = series->next_in_slot) {
        bool same = series->hash == hash;
        for (unsigned i = 0; same && i < state->label_count; i++)
            same = str_eq(series->label_values[i], values[i]);
        if (same)
            return series;
    }
    return NULL;
}

static struct metric_series *create(struct metric_family_state *state, const struct str *values,
                                    uint64_t hash)
{
    struct metric_series *series = memory_zalloc(sizeof(*series));
    struct metric_series **slot = &state->table[(hash >> 32) % METRIC_TABLE_SLOTS];
    size_t bytes = (size_t)state->shard_count * state->shard_cells * sizeof(metric_cell);

    series->family = state;
    series->hash = hash;
    series->cells = memset(memory_aligned(SHARD_ALIGNMENT, bytes), 0, bytes);
    for (unsigned i = 0; i < state->label_count; i++)
        series->label_values[i] = str_of(str_dup(values[i]), values[i].len);
    series->next_in_slot = *slot;
    *slot = series;
    if (state->last)
        state->last->next = series;
    else
        state->first = series;
    state->last = series;
    state->live_count++;
    return series;
}

/* Finds or makes it; a series that was dropped goes on where it stopped. */
static struct metric_series *take(struct metric_family_state *state, const struct str *values,
                                  bool may_exceed)
{
    uint64_t hash = labels_hash(state, values);
    struct metric_series *series = find(state, values, hash);
    bool full = state->live_count >= state->live_max && !may_exceed;

    if (series && !series->dropped)
        return series;
    if (full)
        return NULL;
    if (!series)
        return create(state, values, hash);
    series->dropped = false;
    state->live_count++;
    return series;
}

struct metric_series *metric_series_get(struct metric_family *family, const struct str *label_values)
{
    struct metric_family_state *state = family->state;
    struct str values[METRIC_LABELS_MAX], others[METRIC_LABELS_MAX];
    struct metric_series *series;

    for (unsigned i = 0; i < state->label_count; i++) {
        values[i] = str_utf8_cut(label_values[i], LABEL_VALUE_BYTES_MAX);
        others[i] = STR("other");
    }
    pthread_mutex_lock(&metrics_registry.lock);
    series = take(state, values, false);
    if (!series)
        series = take(state, others, true);
    pthread_mutex_unlock(&metrics_registry.lock);
    return series;
}

struct metric_series *metric_of_deleted(struct str table)
{
    static struct metric_family family = {
        .name = "freshet_retention_deleted_total",
        .help = "Rows deleted because they were older than they are kept.",
        .type = METRIC_COUNTER,
        .labels = {"table"},
    };
    metrics_register(&family);
    return metric_series_get(&family, &table);
}

void metric_series_drop(struct metric_series *series)
{
    pthread_mutex_lock(&metrics_registry.lock);
    if (!series->dropped) {
        series->dropped = true;
        series->family->live_count--;
    }
    pthread_mutex_unlock(&metrics_registry.lock);
}

void metrics_thread_claim_shard(void)
{
    unsigned shard;

    if (thread_shard != METRIC_SHARD_SHARED)
        return;
    shard = atomic_fetch_add_explicit(&shards_claimed, 1, memory_order_relaxed);
    if (shard < METRIC_SHARDS_EXCLUSIVE)
        thread_shard = shard;
    else
        atomic_fetch_sub_explicit(&shards_claimed, 1, memory_order_relaxed);
}

static metric_cell *own_cells(struct metric_series *series)
{
    return series->cells + (size_t)thread_shard * series->family->shard_cells;
}

static void cell_add(metric_cell *cell, uint64_t n)
{
    if (thread_shard == METRIC_SHARD_SHARED) {
        atomic_fetch_add_explicit(cell, n, memory_order_relaxed);
        return;
    }
    uint64_t now = atomic_load_explicit(cell, memory_order_relaxed);
    atomic_store_explicit(cell, now + n, memory_order_relaxed);
}

static void cell_add_double_atomic(metric_cell *cell, double by)
{
    uint64_t old = atomic_load_explicit(cell, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(cell, &old, metric_bits(metric_double(old) + by),
                                                  memory_order_relaxed, memory_order_relaxed)) {}
}

static void cell_add_double(metric_cell *cell, double by)
{
    if (thread_shard == METRIC_SHARD_SHARED) {
        cell_add_double_atomic(cell, by);
        return;
    }
    double now = metric_double(atomic_load_explicit(cell, memory_order_relaxed));
    atomic_store_explicit(cell, metric_bits(now + by), memory_order_relaxed);
}

void metric_add(struct metric_series *series, uint64_t n)
{
    cell_add(own_cells(series), n);
}

void metric_set(struct metric_series *series, double value)
{
    atomic_store_explicit(series->cells, metric_bits(value), memory_order_relaxed);
}

void metric_change(struct metric_series *series, double by)
{
    cell_add_double_atomic(series->cells, by);
}

/* A value that is no number has no bucket, and would make the sum none for ever. */
void metric_observe(struct metric_series *series, double value)
{
    const struct metric_family_state *state = series->family;
    metric_cell *cells = own_cells(series);
    unsigned bucket = 0;

    if (isnan(value))
        return;
    while (bucket < state->bound_count && value > state->bounds[bucket])
        bucket++;
    cell_add(&cells[bucket], 1);
    cell_add_double(&cells[state->bound_count + 1], value);
}

uint64_t metric_cell_sum(const struct metric_series *series, unsigned cell)
{
    uint64_t sum = 0;

    for (unsigned shard = 0; shard < series->family->shard_count; shard++) {
        size_t at = (size_t)shard * series->family->shard_cells + cell;
        sum += atomic_load_explicit(&series->cells[at], memory_order_relaxed);
    }
    return sum;
}

double metric_cell_sum_double(const struct metric_series *series, unsigned cell)
{
    double sum = 0;

    for (unsigned shard = 0; shard < series->family->shard_count; shard++) {
        size_t at = (size_t)shard * series->family->shard_cells + cell;
        sum += metric_double(atomic_load_explicit(&series->cells[at], memory_order_relaxed));
    }
    return sum;
}

uint64_t metric_value(const struct metric_series *series)
{
    return metric_cell_sum(series, 0);
}
