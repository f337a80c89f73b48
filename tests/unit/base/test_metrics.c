/* R20: metrics with their types, escaped and bounded labels, exact under threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/metrics.h"

/* The lines of one family, from its HELP to the next. */
static char *printed(const char *name)
{
    struct buf out = {0}, wanted = {0};
    struct str rest, line;
    bool inside = false;

    metrics_print(&out);
    rest = buf_str(&out);
    while (str_split(&rest, '\n', &line)) {
        if (str_starts_with(line, STR("# HELP "))) {
            struct str after = str_of(line.ptr + 7, line.len - 7), family;
            inside = str_split(&after, ' ', &family) && str_eq(family, str_from(name));
        }
        if (inside && line.len > 0) {
            buf_put_str(&wanted, line);
            buf_put_char(&wanted, '\n');
        }
    }
    char *text = str_dup(buf_str(&wanted));
    buf_deinit(&out);
    buf_deinit(&wanted);
    return text;
}

static void assert_printed(const char *name, const char *expected)
{
    char *text = printed(name);

    assert_string_equal(text, expected);
    free(text);
}

static void a_counter_without_labels(void **state)
{
    (void)state;
    static struct metric_family family = {
        .name = "plain_total", .help = "Plain things.", .type = METRIC_COUNTER};

    metrics_register(&family);
    metrics_register(&family);
    assert_printed("plain_total", "# HELP plain_total Plain things.\n# TYPE plain_total counter\n");
    struct metric_series *series = metric_series_get(&family, NULL);
    assert_ptr_equal(metric_series_get(&family, NULL), series);
    metric_add(series, 1);
    metric_add(series, UINT64_C(1) << 60);
    assert_true(metric_value(series) == (UINT64_C(1) << 60) + 1);
    assert_printed("plain_total", "# HELP plain_total Plain things.\n# TYPE plain_total counter\n"
                                  "plain_total 1152921504606846977\n");
}

static void labels_and_help_are_escaped(void **state)
{
    (void)state;
    static struct metric_family family = {.name = "escaped",
                                          .help = "A \\ and a \"quote\"\nand a line.",
                                          .type = METRIC_GAUGE,
                                          .labels = {"one", "two"}};
    const struct str values[] = {STR("a\"b\\c\nd"), STR("\xC3\xA9\xFF}")};

    metrics_register(&family);
    metric_set(metric_series_get(&family, values), -0.5);
    assert_printed("escaped", "# HELP escaped A \\\\ and a \"quote\"\\nand a line.\n# TYPE escaped gauge\n"
                              "escaped{one=\"a\\\"b\\\\c\\nd\",two=\"\xC3\xA9\xEF\xBF\xBD}\"} -0.5\n");
}

static void gauges_go_up_and_down(void **state)
{
    (void)state;
    static struct metric_family family = {.name = "level", .help = "A level.", .type = METRIC_GAUGE};

    metrics_register(&family);
    struct metric_series *series = metric_series_get(&family, NULL);
    metric_set(series, 10);
    metric_change(series, 2.5);
    metric_change(series, -12);
    assert_printed("level", "# HELP level A level.\n# TYPE level gauge\nlevel 0.5\n");
    metric_set(series, INFINITY);
    assert_printed("level", "# HELP level A level.\n# TYPE level gauge\nlevel +Inf\n");
    metric_set(series, NAN);
    assert_printed("level", "# HELP level A level.\n# TYPE level gauge\nlevel NaN\n");
}

static void a_histogram_is_cumulative(void **state)
{
    (void)state;
    static const double bounds[] = {0.005, 1, 2.5, 0};
    static struct metric_family family = {.name = "took_seconds",
                                          .help = "Seconds.",
                                          .type = METRIC_HISTOGRAM,
                                          .labels = {"route"},
                                          .buckets = bounds};

    metrics_register(&family);
    struct metric_series *series = metric_series_get(&family, (struct str[]){STR("/a")});
    metric_observe(series, 0.005); /* on the bound: inside */
    metric_observe(series, 0.006);
    metric_observe(series, 2.5);
    metric_observe(series, 3);
    metric_observe(series, NAN);
    assert_printed("took_seconds", "# HELP took_seconds Seconds.\n# TYPE took_seconds histogram\n"
                                   "took_seconds_bucket{route=\"/a\",le=\"0.005\"} 1\n"
                                   "took_seconds_bucket{route=\"/a\",le=\"1\"} 2\n"
                                   "took_seconds_bucket{route=\"/a\",le=\"2.5\"} 3\n"
                                   "took_seconds_bucket{route=\"/a\",le=\"+Inf\"} 4\n"
                                   "took_seconds_sum{route=\"/a\"} 5.511\n"
                                   "took_seconds_count{route=\"/a\"} 4\n");
}

static void a_histogram_without_labels_has_only_le(void **state)
{
    (void)state;
    static const double bounds[] = {1, 0};
    static struct metric_family family = {
        .name = "bare_seconds", .help = "Seconds.", .type = METRIC_HISTOGRAM, .buckets = bounds};

    metrics_register(&family);
    metric_observe(metric_series_get(&family, NULL), 0.5);
    assert_printed("bare_seconds", "# HELP bare_seconds Seconds.\n# TYPE bare_seconds histogram\n"
                                   "bare_seconds_bucket{le=\"1\"} 1\nbare_seconds_bucket{le=\"+Inf\"} 1\n"
                                   "bare_seconds_sum 0.5\nbare_seconds_count 1\n");
}

static void the_default_buckets_are_seconds(void **state)
{
    (void)state;
    static struct metric_family family = {
        .name = "default_seconds", .help = "Seconds.", .type = METRIC_HISTOGRAM};

    metrics_register(&family);
    (void)metric_series_get(&family, NULL);
    char *text = printed("default_seconds");
    assert_non_null(strstr(text, "le=\"5e-05\"} 0\n"));
    assert_non_null(strstr(text, "le=\"30\"} 0\n"));
    assert_non_null(strstr(text, "default_seconds_sum 0\n"));
    free(text);
}

/* However many values a peer invents, a family holds series_max of them and one called "other". */
static void the_number_of_series_is_bounded(void **state)
{
    (void)state;
    static struct metric_family family = {.name = "bounded_total",
                                          .help = "Bounded.",
                                          .type = METRIC_COUNTER,
                                          .labels = {"a", "b"},
                                          .series_max = 3};
    struct metric_series *known = NULL, *other = NULL;
    char value[16];

    metrics_register(&family);
    for (int i = 0; i < 1000; i++) {
        snprintf(value, sizeof(value), "v%d", i);
        struct metric_series *series = metric_series_get(&family, (struct str[]){str_from(value), STR("x")});
        metric_add(series, 1);
        known = i == 0 ? series : known;
        other = i == 3 ? series : other;
        assert_true(i <= 3 || series == other);
    }
    assert_ptr_equal(metric_series_get(&family, (struct str[]){STR("v0"), STR("x")}), known);
    assert_printed("bounded_total",
                   "# HELP bounded_total Bounded.\n# TYPE bounded_total counter\n"
                   "bounded_total{a=\"v0\",b=\"x\"} 1\nbounded_total{a=\"v1\",b=\"x\"} 1\n"
                   "bounded_total{a=\"v2\",b=\"x\"} 1\nbounded_total{a=\"other\",b=\"other\"} 997\n");
}

static void a_long_label_value_is_cut(void **state)
{
    (void)state;
    static struct metric_family family = {
        .name = "cut_total", .help = "Cut.", .type = METRIC_COUNTER, .labels = {"a"}};
    static char value[5000];

    metrics_register(&family);
    memset(value, 'x', sizeof(value));
    struct metric_series *series = metric_series_get(&family, (struct str[]){str_of(value, 5000)});
    assert_ptr_equal(metric_series_get(&family, (struct str[]){str_of(value, 4000)}), series);
    char *text = printed("cut_total");
    assert_true(strlen(text) < 400);
    free(text);
}

static void labels_do_not_run_into_each_other(void **state)
{
    (void)state;
    static struct metric_family family = {
        .name = "apart_total", .help = "Apart.", .type = METRIC_COUNTER, .labels = {"a", "b"}};

    metrics_register(&family);
    struct metric_series *one = metric_series_get(&family, (struct str[]){STR("x"), STR("yz")});
    assert_ptr_not_equal(metric_series_get(&family, (struct str[]){STR("xy"), STR("z")}), one);
    assert_ptr_not_equal(metric_series_get(&family, (struct str[]){STR("yz"), STR("x")}), one);
    assert_ptr_equal(metric_series_get(&family, (struct str[]){STR("x"), STR("yz")}), one);
}

static void a_dropped_series_is_printed_no_more(void **state)
{
    (void)state;
    static struct metric_family family = {.name = "dropped_total",
                                          .help = "Dropped.",
                                          .type = METRIC_COUNTER,
                                          .labels = {"d"},
                                          .series_max = 1};
    const char *head = "# HELP dropped_total Dropped.\n# TYPE dropped_total counter\n";

    metrics_register(&family);
    struct metric_series *series = metric_series_get(&family, (struct str[]){STR("A")});
    metric_add(series, 1);
    metric_series_drop(series);
    metric_series_drop(series);
    metric_add(series, 1); /* a late user does no harm */
    assert_printed("dropped_total", head);
    struct metric_series *next = metric_series_get(&family, (struct str[]){STR("B")}); /* its place is free */
    assert_ptr_not_equal(next, series);
    metric_series_drop(next);
    assert_ptr_equal(metric_series_get(&family, (struct str[]){STR("A")}), series);
    assert_int_equal(metric_value(series), 2);
}

#define THREADS 24 /* more than have a shard to themselves */
#define ROUNDS 20000

static struct metric_family shared_counter = {
    .name = "shared_total", .help = "Shared.", .type = METRIC_COUNTER};
static struct metric_family shared_gauge = {.name = "shared", .help = "Shared.", .type = METRIC_GAUGE};
static struct metric_family shared_histogram = {
    .name = "shared_seconds", .help = "S.", .type = METRIC_HISTOGRAM};

static pthread_barrier_t all_there;

static void *update_many(void *argument)
{
    struct metric_series *counter = metric_series_get(&shared_counter, NULL);
    struct metric_series *gauge = metric_series_get(&shared_gauge, NULL);
    struct metric_series *histogram = metric_series_get(&shared_histogram, NULL);

    if (*(const bool *)argument) {
        metrics_thread_take_shard();
        metrics_thread_take_shard();
    }
    pthread_barrier_wait(&all_there);
    for (int i = 0; i < ROUNDS; i++) {
        metric_add(counter, 1);
        metric_change(gauge, 1);
        metric_observe(histogram, 0.5);
    }
    return NULL;
}

static void nothing_is_lost_between_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    bool takes_shard[2] = {false, true};

    metrics_register(&shared_counter);
    metrics_register(&shared_gauge);
    metrics_register(&shared_histogram);
    pthread_barrier_init(&all_there, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, update_many, &takes_shard[i % 6 != 0]), 0);
    for (int i = 0; i < 20; i++)
        free(printed("shared_seconds"));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&all_there);
    assert_int_equal(metric_value(metric_series_get(&shared_counter, NULL)), THREADS * ROUNDS);
    assert_printed("shared", "# HELP shared Shared.\n# TYPE shared gauge\nshared 480000\n");
    char *text = printed("shared_seconds");
    assert_non_null(strstr(text, "shared_seconds_bucket{le=\"0.25\"} 0\n"));
    assert_non_null(strstr(text, "shared_seconds_bucket{le=\"0.5\"} 480000\n"));
    assert_non_null(strstr(text, "shared_seconds_sum 240000\nshared_seconds_count 480000\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counter_without_labels),
        cmocka_unit_test(labels_and_help_are_escaped),
        cmocka_unit_test(gauges_go_up_and_down),
        cmocka_unit_test(a_histogram_is_cumulative),
        cmocka_unit_test(a_histogram_without_labels_has_only_le),
        cmocka_unit_test(the_default_buckets_are_seconds),
        cmocka_unit_test(the_number_of_series_is_bounded),
        cmocka_unit_test(a_long_label_value_is_cut),
        cmocka_unit_test(labels_do_not_run_into_each_other),
        cmocka_unit_test(a_dropped_series_is_printed_no_more),
        cmocka_unit_test(nothing_is_lost_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
