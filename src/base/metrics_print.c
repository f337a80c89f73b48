/* Metrics as Prometheus text, version 0.0.4: families in order of registration, series in order of
 * creation.
 *
 * The registry is locked while printing; updates go on, so a histogram's sum may differ from its buckets by
 * what is being observed just now. Its count never does: it is added up from the buckets just printed. */
#include "base/metrics.h"

#include "base/metrics_state.h"

static const char *const type_names[] = {
    [METRIC_COUNTER] = "counter",
    [METRIC_GAUGE] = "gauge",
    [METRIC_HISTOGRAM] = "histogram",
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

static void put_count(struct buf *out, uint64_t count)
{
    buf_put_u64(out, count);
    buf_put_char(out, '\n');
}

static void put_real(struct buf *out, double value)
{
    buf_put_double(out, value);
    buf_put_char(out, '\n');
}

static void put_histogram(struct buf *out, const struct metric_series *series)
{
    const struct metric_family_state *state = series->family;
    struct buf bound;
    uint64_t count = 0;

    buf_init(&bound);
    for (unsigned i = 0; i <= state->bound_count; i++) {
        buf_clear(&bound);
        if (i < state->bound_count)
            buf_put_double(&bound, state->bounds[i]);
        else
            buf_put_str(&bound, STR("+Inf"));
        count += metric_cell_sum(series, i);
        put_sample_name(out, series, "_bucket", buf_str(&bound));
        put_count(out, count);
    }
    buf_deinit(&bound);
    put_sample_name(out, series, "_sum", STR_NONE);
    put_real(out, metric_cell_sum_double(series, state->bound_count + 1));
    put_sample_name(out, series, "_count", STR_NONE);
    put_count(out, count);
}

static void put_series(struct buf *out, const struct metric_series *series)
{
    switch (series->family->family->type) {
    case METRIC_HISTOGRAM: put_histogram(out, series); break;
    case METRIC_COUNTER:
        put_sample_name(out, series, "", STR_NONE);
        put_count(out, metric_cell_sum(series, 0));
        break;
    case METRIC_GAUGE:
        put_sample_name(out, series, "", STR_NONE);
        put_real(out, metric_cell_sum_double(series, 0));
        break;
    }
}

static void put_family(struct buf *out, const struct metric_family_state *state)
{
    const struct metric_family *family = state->family;

    buf_printf(out, "# HELP %s ", family->name);
    put_escaped(out, str_from(family->help), false);
    buf_printf(out, "\n# TYPE %s %s\n", family->name, type_names[family->type]);
    for (const struct metric_series *series = state->first; series; series = series->next)
        if (!series->dropped)
            put_series(out, series);
}

void metrics_print(struct buf *out)
{
    pthread_mutex_lock(&metrics_registry.lock);
    for (const struct metric_family_state *state = metrics_registry.first; state; state = state->next)
        put_family(out, state);
    pthread_mutex_unlock(&metrics_registry.lock);
}
