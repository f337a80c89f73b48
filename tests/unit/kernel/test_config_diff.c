/* Which changes of a file need a restart. */
#include "config_load.h"

static void add_line(const char *field, void *arg)
{
    buf_printf(arg, "%s\n", field);
}

static void restarts(const struct config_section *sections, const char *before, const char *after,
                     const char *fields)
{
    struct config *old = loaded_from(sections, before), *new = loaded_from(sections, after);
    struct buf told = {0};

    config_each_restart(old, new, add_line, &told);
    buf_put_char(&told, '\0');
    assert_string_equal(told.data, fields);
    buf_deinit(&told);
    config_free(old);
    config_free(new);
}

static void the_same_values_need_none(void **state)
{
    (void)state;
    restarts(sample_sections, "", "", "");
    restarts(sample_sections, "",
             "# comment\nsample: {port: 8080, cache-size: 65536KiB, listen: [127.0.0.1:8080]}\n", "");
    restarts(sample_refdata_sections, sample_seed_yaml, sample_seed_yaml, "");
}

static void every_type_is_compared(void **state)
{
    (void)state;
    restarts(
        sample_sections, "",
        "sample: {title: x, password: abcd, enabled: false, port: 1, cache-size: 1MiB, color: red, listen: [x], "
        "inner: {depth: 1}, spare: {depth: 1}, rules: [{path: /x}]}\n",
        "sample.title\nsample.password\nsample.enabled\nsample.port\nsample.cache-size\nsample.color\n"
        "sample.listen\nsample.inner.depth\nsample.spare.depth\nsample.rules\n");
}

static void reloadable_settings_need_none(void **state)
{
    (void)state;
    restarts(sample_sections, "", "sample: {timeout: 1s, inner: {label: x}}", "");
    restarts(sample_refdata_sections, "refdata: {postgres: {jdbcUrl: a}}",
             "refdata: {postgres: {jdbcUrl: b}, dictionaries: [{code: A}]}", "refdata.postgres[0].jdbcUrl\n");
}

static void list_entries_are_compared_one_by_one(void **state)
{
    (void)state;
    restarts(sample_sections, "sample: {rules: [{path: /a}, {path: /b, weight: 1}]}",
             "sample: {rules: [{path: /a}, {path: /c, methods: [GET]}]}",
             "sample.rules[1].path\nsample.rules[1].methods\n");
    restarts(sample_sections, "sample: {listen: [a, b]}", "sample: {listen: [b, a]}", "sample.listen\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_values_need_none),
        cmocka_unit_test(every_type_is_compared),
        cmocka_unit_test(reloadable_settings_need_none),
        cmocka_unit_test(list_entries_are_compared_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
