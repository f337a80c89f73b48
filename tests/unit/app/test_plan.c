/* The arithmetic of `freshet plan` (P1) by figures that can be computed by hand, and what is taken of bench files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "app/plan.h"

#define MIB INT64_C(1048576)
#define assert_near(a, b) assert_true(fabs((a) - (b)) < 1e-9)

/* Round numbers: a read is 10 µs, pipelined 2, an update 1 ms on each pod. */
static const struct plan_figures round_figures = {
    .read_us = 10,
    .pipelined_us = 2,
    .loops_ratio = 1.25,
    .answer_bytes = 328,
    .item_overhead_bytes = 29,
    .pod_update_us = 1000,
    .command_us = 1000,
    .apply_us = 2000,
    .relay_us = 500,
    .kafka_us = 1000,
    .redis_pod_us = 10,
    .redis_idle_us = 100,
};

static struct plan_target round_target(void)
{
    return (struct plan_target){.tps = 1000000,
                                .updates = 500,
                                .items = 1000000,
                                .item_bytes = 150,
                                .headroom_percent = 50,
                                .replicas_min = 3,
                                .pod_cores = 4,
                                .connections = 70000};
}

static struct plan computed(const struct plan_target *target)
{
    struct plan plan;
    struct error error = {0};
    if (plan_compute(&round_figures, target, &plan, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return plan;
}

static void test_pods_carry_the_reads_within_the_headroom(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    struct plan plan = computed(&target);
    assert_near(plan.reads_processors, 12.5);         /* 1,000,000 x 10 us x 1.25 */
    assert_near(plan.update_processors, 0.5);         /* 500 x 1 ms */
    assert_near(plan.pod_room, 1.5);                  /* 4 x 0.5 - 0.5 */
    assert_int_equal(plan.roles[PLAN_QUERY].pods, 9); /* 12.5 / 1.5 = 8.33 */
    assert_near(plan.busy, (12.5 / 9 + 0.5) / 4);
    assert_true(plan.busy <= 0.5);
    assert_near(plan.busy_zone_lost, (12.5 / 6 + 0.5) / 4);
    assert_near(plan.roles[PLAN_QUERY].busy_processors, 12.5 + 9 * 0.5);
}

static void test_one_pod_less_would_not_do(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    for (target.tps = 100000; target.tps < 20000000; target.tps += 377777) {
        struct plan plan = computed(&target);
        double pods = (double)plan.roles[PLAN_QUERY].pods;
        assert_true(pods * plan.pod_room >= plan.reads_processors - 1e-6);
        if (pods > 3)
            assert_true((pods - 1) * plan.pod_room < plan.reads_processors);
    }
}

static void test_a_quotient_without_a_rest_needs_no_further_pod(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    target.tps = 1200000; /* 15 processors, 1.5 a pod */
    assert_int_equal(computed(&target).roles[PLAN_QUERY].pods, 10);
}

static void test_pipelined_reads_and_single_loops_are_cheaper(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    target.pipelined_percent = 25;
    assert_near(computed(&target).reads_processors, (750000 * 10e-6 + 250000 * 2e-6) * 1.25);
    target.pod_cores = 1;
    target.updates = 0;
    struct plan plan = computed(&target);
    assert_near(plan.reads_processors, 750000 * 10e-6 + 250000 * 2e-6); /* one loop */
    assert_int_equal(plan.roles[PLAN_QUERY].pods, 16);                  /* 8 / 0.5 */
}

static void test_every_role_has_its_least_pods(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    target.tps = 1;
    struct plan plan = computed(&target);
    for (int i = 0; i < PLAN_ROLES; i++)
        assert_int_equal(plan.roles[i].pods, 3);
    target.updates = 1900;
    plan = computed(&target);
    assert_int_equal(plan.roles[PLAN_COMMAND].pods, 4); /* 1.9 processors, half of one each */
    assert_int_equal(plan.roles[PLAN_APPLY].pods, 8);   /* 3.8 */
    assert_int_equal(plan.roles[PLAN_RELAY].pods, 3);   /* 0.95 */
    assert_string_equal(plan.roles[PLAN_APPLY].name, "apply");
}

static void test_updates_that_fill_a_pod_are_refused(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    struct plan plan;
    struct error error = {0};
    target.updates = 2000; /* 2 processors on each pod, which has 2 */
    assert_int_equal(plan_compute(&round_figures, &target, &plan, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "--pod-cores"));
}

/* Each alone is within the limits of its option or its figure. */
static void test_numbers_that_no_plan_can_hold_are_refused(void **state)
{
    (void)state;
    struct plan_target large = round_target(), many = round_target(), written = round_target();
    struct plan_figures slow = round_figures, heavy = round_figures;
    struct plan plan;
    struct error error = {0};
    large.items = INT64_C(100000000000);
    large.item_bytes = 1 << 20;
    assert_int_equal(plan_compute(&round_figures, &large, &plan, &error), STATUS_CONFIG);
    many.tps = INT64_C(10000000000);
    many.headroom_percent = 95;
    many.updates = 0;
    slow.read_us = 9e11;
    assert_int_equal(plan_compute(&slow, &many, &plan, &error), STATUS_CONFIG);
    written.updates = 10;
    heavy.apply_us = 9e11;
    assert_int_equal(plan_compute(&heavy, &written, &plan, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "64 TiB"));
}

static void test_memory_holds_two_versions_and_the_clients(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    struct plan plan = computed(&target);
    assert_near(plan.item_memory_bytes, 200);                              /* 150 + 21 + 29 */
    assert_int_equal(plan.cache_bytes, 384 * MIB);                         /* 2 x 190.7 MiB, in steps of 64 */
    assert_int_equal(plan.pod_clients, 7778);                              /* 70,000 / 9 */
    assert_int_equal(plan.clients_bytes, 320 * MIB);                       /* 256 + 37.98 MiB */
    assert_int_equal(plan.roles[PLAN_QUERY].pod_memory_bytes, 1024 * MIB); /* 1.1 x 704 = 774.4 */
}

static void test_load_of_the_servers(void **state)
{
    (void)state;
    struct plan_target target = round_target();
    target.proxy_us = 200;
    struct plan plan = computed(&target); /* 9 query pods, 3 of each other role */
    assert_near(plan.gbit_out, 1e6 * (328 - 128 + 21 + 150) * 8 / 1e9);
    assert_near(plan.gbit_in, 6.08);
    assert_near(plan.proxy_processors, 200);
    assert_near(plan.loads_per_second, 4500);
    assert_near(plan.redis_processors, (500 * 9 * 10 + 9 * 100) * 1e-6);
    assert_near(plan.redis_connections, 48);
    assert_near(plan.kafka_processors, 0.5);
    assert_near(plan.kafka_bytes_per_second, 500.0 * 650 * 3);
    assert_int_equal(plan.total_pods, 18);
    assert_int_equal(plan.postgres_idle, 18 * 8);
    assert_int_equal(plan.postgres_connections, 15 * 20 + 3 * 26);
    assert_int_equal(plan.total_cores, 9 * 4 + 9);
    assert_int_equal(plan.total_memory_bytes, 9 * 1024 * MIB + 9 * 512 * MIB);
}

/* ---- bench files ---- */

static enum status read_text(struct plan_figures *figures, const char *text, struct error *error)
{
    return plan_figures_read(figures, str_from(text), error);
}

static void test_the_figures_built_in_are_whole(void **state)
{
    (void)state;
    struct plan_figures figures;
    plan_figures_init(&figures);
#define CHECK_FIGURE(name, ...) assert_true(figures.name > 0);
    PLAN_FIGURES(CHECK_FIGURE)
    assert_string_equal(figures.origin, "plan of 2026-11-19");
}

static void test_a_bench_file_replaces_its_figures_only(void **state)
{
    (void)state;
    struct plan_figures figures = round_figures;
    struct error error = {0};
    const char *query =
        "{\"bench\":\"query\",\"at\":\"2027-01-02T03:04:05Z\",\"sections\":{"
        "\"item_1\":[{\"target\":\"floor\",\"server_cpu_us_per_request\":1,\"bytes_per_answer\":2},"
        "{\"target\":\"freshet\",\"server_cpu_us_per_request\":5.5,\"bytes_per_answer\":300}],"
        "\"item_16\":[{\"target\":\"freshet\",\"server_cpu_us_per_request\":0.75}],"
        "\"loops_freshet\":[{\"target\":\"freshet, 1 loop\",\"ratio\":1},{\"target\":\"freshet, 2 loops\",\"ratio\":1.5}]}}";
    const char *fleet =
        "{\"bench\":\"fleet\",\"at\":\"2027-01-03T03:04:05Z\",\"sections\":{\"freshness\":{\"sent\":1000},"
        "\"cpu_seconds\":{\"query\":3,\"command\":0.5,\"apply\":0.25,\"relay\":0.125,\"kafka\":2}}}";
    assert_int_equal(read_text(&figures, query, &error), STATUS_OK);
    assert_int_equal(read_text(&figures, fleet, &error), STATUS_OK);
    assert_near(figures.read_us, 5.5);
    assert_near(figures.pipelined_us, 0.75);
    assert_near(figures.loops_ratio, 1.5);
    assert_near(figures.answer_bytes, 300);
    assert_near(figures.pod_update_us, 1000); /* 3 s of three pods for 1,000 updates */
    assert_near(figures.command_us, 500);
    assert_near(figures.kafka_us, 2000);
    assert_near(figures.redis_pod_us, round_figures.redis_pod_us);
    assert_string_equal(figures.origin, "query of 2027-01-02, fleet of 2027-01-03");
}

static void test_what_is_no_bench_file_changes_nothing(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"{", ""},
        {"{}", "./dev bench"},
        {"{\"bench\":\"watch\",\"at\":\"2027-01-02\"}", "no figures for a plan"},
        {"{\"bench\":\"memory\",\"at\":\"2027-01-02\",\"sections\":{}}", "lacks sections.memory"},
        {"{\"bench\":\"memory\",\"at\":\"2027-01-02\",\"sections\":{\"memory\":{\"beside_answer_body_per_item\":-1}}}",
         "above 0"},
        {"{\"bench\":\"plan\",\"at\":\"2027-01-02\"}", "has no figures"},
        {"{\"bench\":\"plan\",\"at\":\"2027-01-02\",\"figures\":{\"read_us\":3,\"reed_us\":1}}",
         "not a figure"},
        {"{\"bench\":\"plan\",\"at\":\"2027-01-02\",\"figures\":{\"read_us\":\"fast\"}}", "above 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct plan_figures figures = round_figures;
        struct error error = {0};
        assert_int_not_equal(read_text(&figures, rows[i][0], &error), STATUS_OK);
        if (!strstr(error.message, rows[i][1]))
            fail_msg("%s: %s", rows[i][0], error.message);
        assert_memory_equal(&figures, &round_figures, sizeof figures);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pods_carry_the_reads_within_the_headroom),
        cmocka_unit_test(test_one_pod_less_would_not_do),
        cmocka_unit_test(test_a_quotient_without_a_rest_needs_no_further_pod),
        cmocka_unit_test(test_pipelined_reads_and_single_loops_are_cheaper),
        cmocka_unit_test(test_every_role_has_its_least_pods),
        cmocka_unit_test(test_updates_that_fill_a_pod_are_refused),
        cmocka_unit_test(test_numbers_that_no_plan_can_hold_are_refused),
        cmocka_unit_test(test_memory_holds_two_versions_and_the_clients),
        cmocka_unit_test(test_load_of_the_servers),
        cmocka_unit_test(test_the_figures_built_in_are_whole),
        cmocka_unit_test(test_a_bench_file_replaces_its_figures_only),
        cmocka_unit_test(test_what_is_no_bench_file_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
