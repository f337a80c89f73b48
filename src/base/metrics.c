/* Metrics: the registry, the updates, and the printing as Prometheus text, version 0.0.4.
 *
 * A thread that took a shard is its only writer, so it adds by a plain load and store, without the bus
 * lock of an atomic addition; all other threads share the last shard and do add atomically.
 *
 * A counter's or histogram's cells stand once a shard, each shard's on lines of its own:
 *
 *     counter     cells = [count]
 *     histogram   cells = [bucket 0 .. bucket n-1, +Inf bucket, sum as a double's bits]
 *     gauge       one shard only, cells = [value as a double's bits]; a counter that is read likewise
 *
 * Buckets count only their own range here; they are made cumulative when printed. */
#include "base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "base/memory.h"

/* Two lines: the processor fetches them in pairs. */
#define SHARD_ALIGNMENT 128
#define LABEL_VALUE_BYTES_MAX 256 /* a longer value is cut: its length is a peer's choice */

#define SHARDS_EXCLUSIVE 16
#define SHARD_SHARED SHARDS_EXCLUSIVE /* of every thread that took none */
#define SHARDS (SHARDS_EXCLUSIVE + 1)

typedef _Atomic uint64_t metric_cell;

struct metric_series {
    struct metric_family_state *family;
    STAILQ_ENTRY(metric_series) link; /* in the family, in order of creation */
    struct map_node node;             /* in the family, by the label values */
    metric_cell *cells;
    bool dropped; /* under the registry's lock */
    struct str label_values[METRIC_LABELS_MAX];
};

struct metric_family_state {
    const struct metric_family *family;
    STAILQ_ENTRY(metric_family_state) link; /* in order of registration */
    const double *bounds;
    unsigned bound_count, label_count;
    unsigned shard_cells; /* of one shard, rounded up to whole lines */
    unsigned shard_count;
    unsigned live_count, live_max;
    STAILQ_HEAD(, metric_series) series;
    struct map map;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static STAILQ_HEAD(, metric_family_state) families = STAILQ_HEAD_INITIALIZER(families);
static atomic_uint shards_taken;
static _Thread_local unsigned thread_shard = SHARD_SHARED;

static const double default_bounds[] = {0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                        0.01,    0.025,  0.05,    0.1,    0.25,  0.5,    1,
                                        2.5,     5,      10,      30,     0};

void metrics_register(struct metric_family *family)
{
    const unsigned line = SHARD_ALIGNMENT / sizeof(metric_cell);

    pthread_mutex_lock(&registry_lock);
    if (!family->state) {
        struct metric_family_state *state = memory_zalloc(sizeof(*state));
        unsigned cells = 1;
        state->family = family;
        while (state->label_count < METRIC_LABELS_MAX && family->labels[state->label_count])
            state->label_count++;
        state->live_max = family->series_max ? family->series_max : METRIC_SERIES_MAX_DEFAULT;
        if (family->type == METRIC_HISTOGRAM) {
            state->bounds = family->buckets ? family->buckets : default_bounds;
            while (state->bounds[state->bound_count] != 0)
                state->bound_count++;
            cells = state->bound_count + 2;
        }
        bool is_set = family->type == METRIC_GAUGE || family->type == METRIC_COUNTER_READ;
        state->shard_count = is_set ? 1 : SHARDS;
        state->shard_cells = (cells + line - 1) / line * line;
        STAILQ_INIT(&state->series);
        STAILQ_INSERT_TAIL(&families, state, link);
        family->state = state;
    }
    pthread_mutex_unlock(&registry_lock);
}

/* Finds or makes it; a series that was dropped goes on where it stopped. */
static struct metric_series *take(struct metric_family_state *state, const struct str *values,
                                  bool may_exceed)
{
    struct metric_series *series = NULL;
    struct map_node *node;
    uint64_t hash = 0;

    for (unsigned i = 0; i < state->label_count; i++)
        hash = (hash ^ hash_seeded(values[i])) * UINT64_C(0x9E3779B97F4A7C15);
    MAP_MATCH(node, &state->map, hash) {
        struct metric_series *other = CONTAINER_OF(node, struct metric_series, node);
        bool same = true;
        for (unsigned i = 0; same && i < state->label_count; i++)
            same = str_eq(other->label_values[i], values[i]);
        series = same ? other : series;
    }
    if (series && !series->dropped)
        return series;
    if (state->live_count >= state->live_max && !may_exceed)
        return NULL;
    state->live_count++;
    if (series) {
        series->dropped = false;
        return series;
    }
    size_t bytes = (size_t)state->shard_count * state->shard_cells * sizeof(metric_cell);
    series = memory_zalloc(sizeof(*series));
    series->family = state;
    series->cells = memset(memory_aligned(SHARD_ALIGNMENT, bytes), 0, bytes);
    for (unsigned i = 0; i < state->label_count; i++)
        series->label_values[i] = str_of(str_dup(values[i]), values[i].len);
    map_add(&state->map, &series->node, hash);
    STAILQ_INSERT_TAIL(&state->series, series, link);
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
    pthread_mutex_lock(&registry_lock);
    series = take(state, values, false);
    if (!series)
        series = take(state, others, true);
    pthread_mutex_unlock(&registry_lock);
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
    pthread_mutex_lock(&registry_lock);
    if (!series->dropped) {
        series->dropped = true;
        series->family->live_count--;
    }
    pthread_mutex_unlock(&registry_lock);
}

void metrics_thread_take_shard(void)
{
    unsigned shard;

    if (thread_shard != SHARD_SHARED)
        return;
    shard = atomic_fetch_add_explicit(&shards_taken, 1, memory_order_relaxed);
    if (shard < SHARDS_EXCLUSIVE)
        thread_shard = shard;
    else
        atomic_fetch_sub_explicit(&shards_taken, 1, memory_order_relaxed);
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static metric_cell *own_cells(struct metric_series *series)
{
    return series->cells + (size_t)thread_shard * series->family->shard_cells;
}

static void cell_add(metric_cell *cell, uint64_t n)
{
    if (thread_shard == SHARD_SHARED) {
        atomic_fetch_add_explicit(cell, n, memory_order_relaxed);
        return;
    }
    uint64_t now = atomic_load_explicit(cell, memory_order_relaxed);
    atomic_store_explicit(cell, now + n, memory_order_relaxed);
}

static void cell_add_double_atomic(metric_cell *cell, double by)
{
    uint64_t old = atomic_load_explicit(cell, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(cell, &old, bits_of(double_of(old) + by),
                                                  memory_order_relaxed, memory_order_relaxed)) {}
}

void metric_add(struct metric_series *series, uint64_t n)
{
    cell_add(own_cells(series), n);
}

void metric_set(struct metric_series *series, double value)
{
    atomic_store_explicit(series->cells, bits_of(value), memory_order_relaxed);
}

void metric_change(struct metric_series *series, double by)
{
    cell_add_double_atomic(series->cells, by);
}

void metric_observe(struct metric_series *series, double value)
{
    metric_observe_times(series, value, 1);
}

/* NaN has no bucket, and would make the sum NaN for ever. */
void metric_observe_times(struct metric_series *series, double value, unsigned times)
{
    const double sum_of_all = value * times;
    const struct metric_family_state *state = series->family;
    metric_cell *cells = own_cells(series);
    unsigned bucket = 0;

    if (isnan(value))
        return;
    while (bucket < state->bound_count && value > state->bounds[bucket])
        bucket++;
    cell_add(&cells[bucket], times);
    metric_cell *sum = &cells[state->bound_count + 1];
    if (thread_shard == SHARD_SHARED)
        cell_add_double_atomic(sum, sum_of_all);
    else
        atomic_store_explicit(
            sum, bits_of(double_of(atomic_load_explicit(sum, memory_order_relaxed)) + sum_of_all),
            memory_order_relaxed);
}

static uint64_t cell_of(const struct metric_series *series, unsigned shard, unsigned cell)
{
    size_t at = (size_t)shard * series->family->shard_cells + cell;

    return atomic_load_explicit(&series->cells[at], memory_order_relaxed);
}

static uint64_t cell_sum(const struct metric_series *series, unsigned cell)
{
    uint64_t sum = 0;

    for (unsigned shard = 0; shard < series->family->shard_count; shard++)
        sum += cell_of(series, shard, cell);
    return sum;
}

static double cell_sum_double(const struct metric_series *series, unsigned cell)
{
    double sum = 0;

    for (unsigned shard = 0; shard < series->family->shard_count; shard++)
        sum += double_of(cell_of(series, shard, cell));
    return sum;
}

uint64_t metric_value(const struct metric_series *series)
{
    return cell_sum(series, 0);
}

/* ---- reading ---- */

void metrics_each(const char *family, void (*fn)(void *arg, const struct str *label_values, double value),
                  void *arg)
{
    const struct metric_family_state *state;
    const struct metric_series *series;

    pthread_mutex_lock(&registry_lock);
    STAILQ_FOREACH(state, &families, link) {
        if (strcmp(state->family->name, family) != 0 || state->family->type == METRIC_HISTOGRAM)
            continue;
        STAILQ_FOREACH(series, &state->series, link)
            if (!series->dropped)
                fn(arg, series->label_values,
                   state->shard_count == 1 ? double_of(cell_of(series, 0, 0)) : (double)cell_sum(series, 0));
    }
    pthread_mutex_unlock(&registry_lock);
}

const double *metrics_buckets(const struct metric_family *family, uint64_t counts[METRIC_BUCKETS_MAX])
{
    const struct metric_family_state *state = family->state;
    const struct metric_series *series;

    if (!state || state->bound_count + 1 > METRIC_BUCKETS_MAX)
        return NULL;
    pthread_mutex_lock(&registry_lock);
    STAILQ_FOREACH(series, &state->series, link)
        for (unsigned i = 0; i <= state->bound_count; i++)
            counts[i] += cell_sum(series, i);
    pthread_mutex_unlock(&registry_lock);
    return state->bounds;
}

/* ---- printing ---- */

static const char *const type_names[] = {
    [METRIC_COUNTER] = "counter",
    [METRIC_GAUGE] = "gauge",
    [METRIC_HISTOGRAM] = "histogram",
    [METRIC_COUNTER_READ] = "counter",
};

/* HELP escapes the backslash and the line feed, a label value the quote as well; what is not UTF-8 becomes
 * U+FFFD. */
static void put_escaped(struct buf *out, struct str text, bool quoted)
{
    while (text.len > 0) {
        size_t len = str_utf8_char(text);
        if (len == 0)
            buf_put_str(out, STR("\xEF\xBF\xBD"));
        else if (text.ptr[0] == '\n')
            buf_put_str(out, STR("\\n"));
        else if (text.ptr[0] == '\\' || (quoted && text.ptr[0] == '"'))
            buf_printf(out, "\\%c", text.ptr[0]);
        else
            buf_put(out, text.ptr, len);
        len = len ? len : 1;
        text = str_skip(text, len);
    }
}

static void put_label(struct buf *out, char before, struct str name, struct str value)
{
    buf_put_char(out, before);
    buf_put_str(out, name);
    buf_put_str(out, STR("=\""));
    put_escaped(out, value, true);
    buf_put_char(out, '"');
}

/* name_suffix{labels,le="..."} and a space; `le` is empty where the sample has none. */
static void put_sample_name(struct buf *out, const struct metric_series *series, const char *suffix,
                            struct str le)
{
    const struct metric_family_state *state = series->family;
    char before = '{';

    buf_put_str(out, str_from(state->family->name));
    buf_put_str(out, str_from(suffix));
    for (unsigned i = 0; i < state->label_count; i++) {
        put_label(out, before, str_from(state->family->labels[i]), series->label_values[i]);
        before = ',';
    }
    if (le.len > 0) {
        put_label(out, before, STR("le"), le);
        before = ',';
    }
    if (before == ',')
        buf_put_char(out, '}');
    buf_put_char(out, ' ');
}

static void put_histogram(struct buf *out, const struct metric_series *series)
{
    const struct metric_family_state *state = series->family;
    struct buf bound = {0};
    uint64_t count = 0;

    for (unsigned i = 0; i <= state->bound_count; i++) {
        buf_clear(&bound);
        buf_put_double(&bound, i < state->bound_count ? state->bounds[i] : INFINITY); /* +Inf */
        count += cell_sum(series, i);
        put_sample_name(out, series, "_bucket", buf_str(&bound));
        buf_put_u64(out, count);
        buf_put_char(out, '\n');
    }
    buf_deinit(&bound);
    put_sample_name(out, series, "_sum", STR_NONE);
    buf_put_double(out, cell_sum_double(series, state->bound_count + 1));
    buf_put_char(out, '\n');
    put_sample_name(out, series, "_count", STR_NONE);
    buf_put_u64(out, count);
}

/* Families in order of registration, series in order of creation. The registry is locked while printing; updates go
 * on, so a histogram's sum may differ from its buckets by what is being observed just now. Its count never does: it is
 * added up from the buckets just printed. */
void metrics_print(struct buf *out)
{
    const struct metric_family_state *state;
    const struct metric_series *series;

    pthread_mutex_lock(&registry_lock);
    STAILQ_FOREACH(state, &families, link) {
        const struct metric_family *family = state->family;
        buf_printf(out, "# HELP %s ", family->name);
        put_escaped(out, str_from(family->help), false);
        buf_printf(out, "\n# TYPE %s %s\n", family->name, type_names[family->type]);
        STAILQ_FOREACH(series, &state->series, link) {
            if (series->dropped)
                continue;
            if (family->type == METRIC_HISTOGRAM) {
                put_histogram(out, series);
            } else {
                put_sample_name(out, series, "", STR_NONE);
                if (family->type == METRIC_COUNTER)
                    buf_put_u64(out, cell_sum(series, 0));
                else
                    buf_put_double(out, cell_sum_double(series, 0));
            }
            buf_put_char(out, '\n');
        }
    }
    pthread_mutex_unlock(&registry_lock);
}
