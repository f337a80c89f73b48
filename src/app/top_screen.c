/* A sample as lines of a screen or of a file. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "app/top.h"
#include "base/clock.h"

enum { TEXT_BYTES = 512, PODS_SHARE = 3 /* of the lines: a third */, LAGS_SHOWN = 5 };

struct frame {
    struct buf *out;
    int columns, lines; /* lines: that are left; < 0 = no limit */
    const char *end;
};

/* Cut to the width: every character that is not ASCII counts as one column. */
static void put_line(struct frame *frame, const char *format, ...) PRINTF_LIKE(2, 3);
static void put_line(struct frame *frame, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    if (frame->lines == 0)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct str rest = str_utf8_cut(str_from(text), sizeof text);
    for (int column = 0; rest.len && column < frame->columns; column++) {
        size_t len = str_utf8_char(rest);
        len = len ? len : 1;
        buf_put(frame->out, rest.ptr, len);
        rest = str_skip(rest, len);
    }
    buf_put_str(frame->out, str_from(frame->end));
    frame->lines -= frame->lines > 0;
}

/* ---- figures ---- */

struct figure {
    char text[32];
};

static struct figure scaled(double value, double step, const char *const *units)
{
    struct figure figure;
    size_t unit = 0;
    if (value < 0) {
        snprintf(figure.text, sizeof figure.text, "-");
        return figure;
    }
    for (; value >= step && units[unit + 1]; unit++)
        value /= step;
    snprintf(figure.text, sizeof figure.text, value < 10 && unit > 0 ? "%.1f%s" : "%.0f%s", value,
             units[unit]);
    return figure;
}

static struct figure count(double value)
{
    static const char *const units[] = {"", "k", "M", "G", "T", NULL};
    return scaled(value, 1000, units);
}

static struct figure bytes(double value)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};
    return scaled(value, 1024, units);
}

static struct figure rate(double value)
{
    struct figure figure;
    if (value < 0 || value >= 100)
        return count(value);
    snprintf(figure.text, sizeof figure.text, "%.1f", value);
    return figure;
}

static struct figure milliseconds(double value)
{
    struct figure figure;
    if (value < 0)
        snprintf(figure.text, sizeof figure.text, "-");
    else
        snprintf(figure.text, sizeof figure.text, value < 10 ? "%.1f ms" : "%.0f ms", value);
    return figure;
}

static struct figure age(int64_t seconds)
{
    struct figure figure;
    snprintf(figure.text, sizeof figure.text, seconds < 600 ? "%lld s" : "%lld min",
             (long long)(seconds < 600 ? seconds : seconds / 60));
    return figure;
}

/* ---- parts ---- */

/* A zero of a sample that is not complete is not known. */
static struct figure total(const struct top_sample *sample, int64_t value)
{
    return count(value == 0 && sample->is_partial ? -1 : (double)value);
}

static void put_summary(struct frame *frame, const struct top_sample *sample)
{
    char now[CLOCK_RFC3339_BYTES];
    double reads = 0, writes = 0;
    size_t up = 0, gone = 0;
    int64_t lag = 0;
    for (size_t i = 0; i < sample->pod_count; i++) {
        bool is_up = strcmp(sample->pods[i].state, "up") == 0;
        up += is_up;
        gone += strcmp(sample->pods[i].state, "gone") == 0;
        reads += is_up ? sample->pods[i].reads : 0;
        writes += is_up ? sample->pods[i].writes : 0;
    }
    for (size_t i = 0; i < sample->lag_count; i++)
        lag += sample->lags[i].lag;
    clock_rfc3339(sample->at_us / 1000000 * 1000000, now);
    put_line(frame, "freshet  %s  from %s", now, sample->source);
    put_line(frame, "pods     %s up, %s gone    reads %s/s    writes %s/s", total(sample, (int64_t)up).text,
             total(sample, (int64_t)gone).text, rate(sample->is_partial && !up ? -1 : reads).text,
             rate(sample->is_partial && !up ? -1 : writes).text);
    put_line(frame, "fresh    median %s, 99th percentile %s", milliseconds(sample->freshness_p50_ms).text,
             milliseconds(sample->freshness_p99_ms).text);
    put_line(frame, "updates  %s%s pending%s%s    lag %s message%s    dead letters %s",
             total(sample, sample->updates_pending).text, sample->has_more_updates ? "+" : "",
             sample->updates_pending > 0 ? ", oldest " : "",
             sample->updates_pending > 0 ? age(sample->oldest_update_s).text : "", total(sample, lag).text,
             lag == 1 ? "" : "s", total(sample, sample->dead_letters).text);
    put_line(frame, "outboxes %s pending%s%s, %s in flight, %s failed",
             total(sample, sample->outbox_pending).text, sample->outbox_pending > 0 ? ", oldest " : "",
             sample->outbox_pending > 0 ? age(sample->oldest_event_s).text : "",
             total(sample, sample->outbox_in_flight).text, total(sample, sample->outbox_failed).text);
    for (size_t i = 0; i < sample->warning_count; i++)
        put_line(frame, "! %s", sample->warnings[i]);
}

static void put_pods(struct frame *frame, const struct top_sample *sample, size_t most)
{
    put_line(frame, "%s", "");
    put_line(frame, "%-24s %-7s %9s %9s %19s %6s %7s  %s", "POD", "STATE", "READS/S", "WRITES/S", "MEMORY",
             "CONNS", "STREAMS", "ROLES");
    for (size_t i = 0; i < sample->pod_count && i < most; i++) {
        const struct top_pod *pod = &sample->pods[i];
        char memory[80];
        bool is_up = strcmp(pod->state, "up") == 0;
        snprintf(memory, sizeof memory, "%s / %s", bytes(pod->memory_used).text,
                 bytes(pod->memory_limit).text);
        put_line(frame, "%-24.64s %-7.16s %9s %9s %19s %6s %7s  %.200s", pod->id,
                 is_up && !pod->is_ready ? "unready" : pod->state, rate(is_up ? pod->reads : -1).text,
                 rate(is_up ? pod->writes : -1).text, is_up ? memory : "-",
                 count(is_up ? (double)pod->connections : -1).text,
                 count(is_up ? (double)pod->streams : -1).text, pod->roles);
    }
    if (sample->pod_count == 0)
        put_line(frame, "%s",
                 sample->is_partial ? "not known: a database does not answer" : "no process reports itself");
    else if (sample->pod_count > most)
        put_line(frame, "and %zu more", sample->pod_count - most);
}

static void put_dictionaries(struct frame *frame, const struct top_sample *sample)
{
    put_line(frame, "%s", "");
    put_line(frame, "%-26s %9s %9s %6s %7s %9s  %-8s %s", "DICTIONARY", "VERSION", "CHANGES/S", "ITEMS",
             "BYTES", "FRESHNESS", "PODS", "DATABASE");
    for (size_t i = 0; i < sample->dictionary_count; i++) {
        const struct top_dictionary *at = &sample->dictionaries[i];
        char pods[64];
        snprintf(pods, sizeof pods, at->behind ? "%lld, %lld behind" : "%lld", (long long)at->pods,
                 (long long)at->behind);
        put_line(frame, "%-26.130s %9lld %9s %6s %7s %9s  %-8s %.32s%s%.100s", at->name,
                 (long long)at->version, rate(at->changes).text, count((double)at->items).text,
                 bytes((double)at->bytes).text, milliseconds(at->freshness_ms).text, pods, at->database,
                 at->last_error ? "  " : "", at->last_error ? at->last_error : "");
    }
    if (sample->dictionary_count == 0)
        put_line(frame, "%s",
                 sample->is_partial ? "not known: a database does not answer"
                                    : "no dictionary has a version");
}

static void put_lags(struct frame *frame, const struct top_sample *sample)
{
    if (sample->lag_count == 0)
        return;
    put_line(frame, "%s", "");
    put_line(frame, "%7s  %-30s %-28s %s", "LAG", "TOPIC", "GROUP", "ENGINE");
    for (size_t i = 0; i < sample->lag_count && i < LAGS_SHOWN; i++)
        put_line(frame, "%7s  %-30.64s %-28.64s %.16s", count((double)sample->lags[i].lag).text,
                 sample->lags[i].topic, sample->lags[i].group, sample->lags[i].engine);
}

void top_screen_put(struct buf *out, const struct top_sample *sample, int columns, int lines, const char *end)
{
    struct frame frame = {.out = out, .columns = columns, .lines = lines ? lines : -1, .end = end};
    put_summary(&frame, sample);
    put_pods(&frame, sample, lines ? (size_t)(lines / PODS_SHARE) : TOP_PODS_MAX);
    put_lags(&frame, sample);
    put_dictionaries(&frame, sample);
}
