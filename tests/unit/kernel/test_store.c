/* Where the store is (C2), as the file alone tells: its own block, else the first database that a module names; and whether
 * those who read a topic mean the stream that is written. */
#include <stdlib.h>

#include "config_load.h"
#include "kernel/kernel_inside.h"

/* ---- modules that are nothing but settings ---- */

struct keeper {
    struct kernel_postgres postgres;
    struct str stream;
    struct setting_place stream_place;
};

static const struct setting_row keeper_rows[] = {
    {"postgres", SETTING_OBJECT, offsetof(struct keeper, postgres), "A database.", "",
     .rows = kernel_postgres_rows},
    {"stream", SETTING_STRING, offsetof(struct keeper, stream), "A stream.", "",
     .place_offset = 1 + offsetof(struct keeper, stream_place)},
    {.name = NULL},
};

static void each_database(struct config *config, const void *section,
                          void (*fn)(const struct db_target *target, void *arg), void *arg)
{
    (void)config;
    const struct keeper *keeper = section;
    struct db_target target = kernel_postgres_target(&keeper->postgres);
    if (target.url.len)
        fn(&target, arg);
}

static void name_topic(const struct keeper *keeper, unsigned partitions,
                       void (*fn)(const struct kernel_topic *topic, void *arg), void *arg)
{
    fn(&(struct kernel_topic){.topic = {.name = "things", .partitions = partitions},
                              .stream = keeper->stream.len ? keeper->stream.ptr : NULL,
                              .stream_field = "reader.stream",
                              .stream_place = keeper->stream_place},
       arg);
}

static void publishes(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg), void *arg)
{
    name_topic(section, 4, fn, arg);
}

static void reads(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg), void *arg)
{
    name_topic(section, 0, fn, arg);
}

static const struct config_section writer_section = {"writer", "Publishes.", keeper_rows,
                                                     sizeof(struct keeper)};
static const struct config_section reader_section = {"reader", "Reads.", keeper_rows, sizeof(struct keeper)};
static const struct module writer = {
    .name = "writer", .section = &writer_section, .each_database = each_database, .each_topic = publishes};
static const struct module reader = {
    .name = "reader", .section = &reader_section, .each_database = each_database, .each_topic = reads};
static const struct module *const modules[] = {&writer, &reader, NULL};

static struct config *load(const char *yaml)
{
    struct arena arena = ARENA(4096);
    struct config *config = loaded_from(kernel_sections(modules, &arena), yaml);
    arena_deinit(&arena);
    return config;
}

/* ---- where it is ---- */

static void assert_found(const char *yaml, const char *url)
{
    struct config *config = load(yaml);
    struct db_target target;
    assert_int_equal(kernel_store_find(config, modules, &target), url != NULL);
    if (url) {
        assert_string_equal(target.url.ptr, url);
        assert_string_equal(target.name, "store");
        assert_true(target.fixed_plans);
    }
    config_free(config);
}

static void its_own_block_comes_first(void **state)
{
    (void)state;
    assert_found("postgres: {jdbcUrl: 'postgresql://own/db'}\n"
                 "writer: {postgres: {jdbcUrl: 'postgresql://first/db'}}\n",
                 "postgresql://own/db");
}

static void without_one_it_is_the_first_that_a_module_names(void **state)
{
    (void)state;
    assert_found("writer: {postgres: {jdbcUrl: 'postgresql://first/db', schema: public}}\n"
                 "reader: {postgres: {jdbcUrl: 'postgresql://second/db'}}\n",
                 "postgresql://first/db");
    assert_found("reader: {postgres: {jdbcUrl: 'postgresql://second/db'}}\n", "postgresql://second/db");
}

static void it_may_be_nowhere(void **state)
{
    (void)state;
    assert_found("http: {}\n", NULL);
    assert_found("postgres: {}\n", NULL);
}

static void its_password_is_the_environments(void **state)
{
    (void)state;
    setenv("FRESHET_TEST_STORE_PASSWORD", "secret", 1);
    struct config *config = load("postgres:\n"
                                 "  jdbcUrl: postgresql://own/db\n"
                                 "  passwordFromEnv: FRESHET_TEST_STORE_PASSWORD\n");
    struct db_target target;
    struct error error = {0};
    assert_int_equal(kernel_store_check(config, &error), STATUS_OK);
    assert_true(kernel_store_find(config, modules, &target));
    assert_string_equal(target.password.ptr, "secret");
    unsetenv("FRESHET_TEST_STORE_PASSWORD");
    assert_int_equal(kernel_store_check(config, &error), STATUS_CONFIG);
    assert_string_equal(error.message, "t.yaml:3:20: postgres.passwordFromEnv: the environment variable "
                                       "FRESHET_TEST_STORE_PASSWORD is not set");
    config_free(config);
}

/* ---- topics ---- */

static enum status check_events(const char *yaml, struct error *error)
{
    struct config *config = load(yaml);
    enum status status = kernel_events_check(config, modules, error);
    config_free(config);
    return status;
}

static void a_reader_means_the_stream_that_is_written(void **state)
{
    (void)state;
    struct error error = {0};
    assert_int_equal(
        check_events("bus: {events: nats}\nwriter: {stream: THINGS}\nreader: {stream: THINGS}\n", &error),
        STATUS_OK);
    assert_int_equal(check_events("bus: {events: nats}\nwriter: {stream: THINGS}\n", &error), STATUS_OK);
    assert_int_equal(
        check_events("bus: {events: nats}\nwriter: {stream: THINGS}\nreader: {stream: OTHER}\n", &error),
        STATUS_CONFIG);
    assert_string_equal(error.message,
                        "t.yaml:3:18: reader.stream: events are published to the stream THINGS, not OTHER");
    /* on PostgreSQL nobody asks */
    assert_int_equal(check_events("writer: {stream: THINGS}\nreader: {stream: OTHER}\n", &error), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_own_block_comes_first),
        cmocka_unit_test(without_one_it_is_the_first_that_a_module_names),
        cmocka_unit_test(it_may_be_nowhere),
        cmocka_unit_test(its_password_is_the_environments),
        cmocka_unit_test(a_reader_means_the_stream_that_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
