/* Every class of mistake in a file, with the very line the user sees (C6 for configuration; issue: bad input). */
#include "config_load.h"

static void unknown_keys_come_with_a_suggestion(void **state)
{
    (void)state;
    refused("sampel:\n  port: 1\n",
            "t.yaml:1:1: sampel: unknown key; did you mean sample? (known here: sample)\n");
    refused("sample:\n  inner:\n    Dept: 1\n",
            "t.yaml:3:5: sample.inner.Dept: unknown key; did you mean depth? (known here: depth, label)\n");
    refused("sample:\n  rules:\n    - path: /x\n    - path: /y\n      zzz: 1\n",
            "t.yaml:5:7: sample.rules[1].zzz: unknown key (known here: path, weight, methods)\n");
    refused(
        "sample:\n  \"a\\nb\": 1\n",
        "t.yaml:2:3: sample.a b: unknown key (known here: title, password, enabled, port, timeout, cache-size, "
        "color, listen, inner, spare, rules)\n");
}

static void a_key_stands_once(void **state)
{
    (void)state;
    refused("sample:\n  port: 1\n  color: red\n  port: 2\n",
            "t.yaml:4:3: sample.port: stands here a second time; the first is on line 2\n");
    refused("sample: {port: 1}\nsample: {port: 2}\n",
            "t.yaml:2:1: sample: stands here a second time; the first is on line 1\n");
}

static void a_missing_key_is_named_where_it_should_stand(void **state)
{
    (void)state;
    refused("sample:\n  rules:\n    - path: /x\n    - weight: 2\n",
            "t.yaml:4:7: sample.rules[1].path: is missing, and has no default\n");
    refused("sample: {rules: {weight: 2}}\n",
            "t.yaml:1:17: sample.rules.path: is missing, and has no default\n");
    refused("sample:\n  spare: {}\n", "t.yaml:2:10: sample.spare.depth: is missing, and has no default\n");
    assert_lines(sample_refdata_sections, STR(""),
                 "t.yaml:1:1: refdata.postgres: is missing, and has no default\n");
    assert_lines(sample_refdata_sections, STR("\n\nsample:\n"),
                 "t.yaml:3:1: refdata.postgres: is missing, and has no default\n");
}

static void the_wrong_form_is_named(void **state)
{
    (void)state;
    refused("- sample\n", "t.yaml:1:1: must be a mapping of keys to values, not a list\n");
    refused("sample\n", "t.yaml:1:1: must be a mapping of keys to values, not a single value\n");
    refused("sample: [1]\n", "t.yaml:1:9: sample: must be a mapping of keys to values, not a list\n");
    refused("sample:\n  port: [1]\n",
            "t.yaml:2:9: sample.port: must be a whole number such as 42, not a list\n");
    refused("sample:\n  title: {a: b}\n", "t.yaml:2:10: sample.title: must be text, not a mapping\n");
    refused("sample:\n  rules: /x\n",
            "t.yaml:2:10: sample.rules: must be a list of mappings, not a single value\n");
    refused("sample:\n  rules:\n    - path: /x\n    - /y\n    -\n",
            "t.yaml:4:7: sample.rules[1]: must be a mapping of keys to values, not a single value\n"
            "t.yaml:5:6: sample.rules[2]: must be a mapping of keys to values, not empty\n");
    refused("sample:\n  listen: {a: 1}\n",
            "t.yaml:2:11: sample.listen: must be a list of texts, not a mapping\n");
    refused("sample:\n  listen: [a, [b], ~]\n", "t.yaml:2:15: sample.listen[1]: must be text, not a list\n"
                                                "t.yaml:2:20: sample.listen[2]: must be text, not empty\n");
    refused("sample:\n  ? [a]\n  : b\n", "t.yaml:2:5: sample: a key must be a name, not a list\n");
}

static void a_value_of_the_wrong_type_is_shown(void **state)
{
    (void)state;
    refused("sample:\n  port: many\n",
            "t.yaml:2:9: sample.port: must be a whole number such as 42, not 'many'\n");
    refused("sample:\n  port: 010\n",
            "t.yaml:2:9: sample.port: must be a whole number such as 42, not '010'\n");
    refused("sample:\n  port: \"8080\"\n",
            "t.yaml:2:9: sample.port: must be a whole number, not text: remove the quotes\n");
    refused("sample:\n  enabled: yes\n", "t.yaml:2:12: sample.enabled: must be true or false, not 'yes'\n");
    refused("sample:\n  enabled: 'true'\n",
            "t.yaml:2:12: sample.enabled: must be true or false, not text: remove the quotes\n");
    refused("sample:\n  timeout: 5 s\n",
            "t.yaml:2:12: sample.timeout: must be a duration such as 250ms, 1s, 5m, 1h "
            "or 30d, not '5 s'\n");
    refused("sample:\n  cache-size: 8MB\n",
            "t.yaml:2:15: sample.cache-size: must be a size such as 64KiB, 8MiB or 1GiB, not '8MB'\n");
    refused("sample:\n  color: Green\n",
            "t.yaml:2:10: sample.color: must be one of red, green, blue, not 'Green'; did "
            "you mean green?\n");
    refused("sample:\n  color: mauve\n",
            "t.yaml:2:10: sample.color: must be one of red, green, blue, not 'mauve'\n");
}

static void a_value_out_of_bounds_is_told_the_bounds(void **state)
{
    (void)state;
    refused("sample:\n  port: 0\n", "t.yaml:2:9: sample.port: must be 1 to 65535, not '0'\n");
    refused("sample:\n  port: 99999999999999999999\n",
            "t.yaml:2:9: sample.port: must be 1 to 65535, not '99999999999999999999'\n");
    refused("sample:\n  timeout: 2h\n", "t.yaml:2:12: sample.timeout: must be 10ms to 1h, not '2h'\n");
    refused("sample:\n  timeout: 9223372036854775807d\n",
            "t.yaml:2:12: sample.timeout: must be 10ms to 1h, not '9223372036854775807d'\n");
    refused("sample:\n  cache-size: 1KiB\n",
            "t.yaml:2:15: sample.cache-size: must be at least 64KiB, not '1KiB'\n");
    refused("sample:\n  rules:\n    path: ''\n    weight: 101\n",
            "t.yaml:3:11: sample.rules.path: must be 1 to 16 bytes long, not ''\n"
            "t.yaml:4:13: sample.rules.weight: must be at most 100, not '101'\n");
    refused("sample:\n  listen: []\n", "t.yaml:2:11: sample.listen: must be 1 to 4 entries long, not 0\n");
    refused("sample:\n  listen:\n", "t.yaml:2:10: sample.listen: must be 1 to 4 entries long, not 0\n");
    refused("sample:\n  listen: [a, b, c, d, e]\n",
            "t.yaml:2:11: sample.listen: must be 1 to 4 entries long, not 5\n");
}

static void a_key_without_a_value_is_refused(void **state)
{
    (void)state;
    refused("sample:\n  port:\n  title: ~\n",
            "t.yaml:2:8: sample.port: has no value: give one, or remove the key to take the default\n"
            "t.yaml:3:10: sample.title: has no value: give one, or remove the key to take the default\n");
    refused("sample:\n  rules: {path: null}\n",
            "t.yaml:2:17: sample.rules.path: has no value: it needs one\n");
}

static void what_yaml_can_and_settings_cannot_is_refused(void **state)
{
    (void)state;
    refused(
        "sample:\n  inner: &a {depth: 1}\n  spare:\n    <<: *a\n",
        "t.yaml:4:5: sample.spare.<<: merging (<<) is not supported: use an alias for a whole value, or repeat the "
        "keys\n"
        "t.yaml:4:5: sample.spare.depth: is missing, and has no default\n");
    refused("sample:\n  port: !!int 5\n",
            "t.yaml:2:9: sample.port: tags such as !!int have no meaning here: remove it\n");
    refused("sample:\n  title: \"a\\0b\"\n", "t.yaml:2:10: sample.title: must not hold a NUL character\n");
}

static void a_secret_is_never_shown(void **state)
{
    (void)state;
    refused("sample:\n  password: abc\n",
            "t.yaml:2:13: sample.password: must be 4 to 32 bytes long, not what is given (a secret)\n");
}

static void long_values_are_cut(void **state)
{
    (void)state;
    refused("sample:\n  port: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
            "t.yaml:2:9: sample.port: must be a whole number such as 42, not "
            "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'\n");
}

static void columns_count_characters(void **state)
{
    (void)state;
    refused("sample: {title: \u0416\u0416, port: x}\n",
            "t.yaml:1:27: sample.port: must be a whole number such as 42, not 'x'\n");
}

static size_t lines_in(struct str text)
{
    size_t lines = 0;

    for (size_t i = 0; i < text.len; i++)
        lines += text.ptr[i] == '\n';
    return lines;
}

static void twenty_errors_are_told_and_the_rest_counted(void **state)
{
    (void)state;
    struct config *config = NULL;
    struct buf yaml = {0}, all = {0};

    buf_put_str(&yaml, STR("sample:\n"));
    for (int i = 0; i < 25; i++)
        buf_printf(&yaml, "  none%d: 1\n", i);
    assert_int_equal(config_load_text("t.yaml", buf_str(&yaml), sample_sections, &config, &all, NULL),
                     STATUS_CONFIG);
    assert_int_equal(lines_in(buf_str(&all)), 21);
    assert_true(str_ends_with(buf_str(&all), STR("\nt.yaml: and 5 more\n")));
    buf_deinit(&all);
    buf_deinit(&yaml);
}

/* Ten lists of ten aliases each would be 10^9 texts: the rows end it. */
static void nested_aliases_are_not_followed(void **state)
{
    (void)state;
    struct buf yaml = {0};

    buf_put_str(&yaml, STR("sample:\n  zzz:\n    - &a0 [x, x, x, x, x, x, x, x, x, x]\n"));
    for (int i = 1; i < 9; i++)
        buf_printf(&yaml, "    - &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i,
                   i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    buf_put_str(&yaml, STR("  rules: {path: /x, methods: [*a8]}\n"));
    assert_lines(sample_sections, buf_str(&yaml),
                 "t.yaml:2:3: sample.zzz: unknown key (known here: title, password, enabled, port, timeout, "
                 "cache-size, color, listen, inner, spare, rules)\n"
                 "t.yaml:11:7: sample.rules.methods[0]: must be text, not a list\n");
    buf_deinit(&yaml);
}

static void repeated_aliases_are_bounded(void **state)
{
    (void)state;
    struct config *config = NULL;
    struct error error = {0};
    struct buf yaml = {0}, all = {0};

    buf_put_str(&yaml, STR("sample:\n  rules:\n    - &r {path: /x, methods: [a, b, c]}\n"));
    for (int i = 0; i < 60000; i++)
        buf_put_str(&yaml, STR("    - *r\n"));
    assert_int_equal(config_load_text("t.yaml", buf_str(&yaml), sample_sections, &config, &all, &error),
                     STATUS_CONFIG);
    assert_int_equal(lines_in(buf_str(&all)), 1);
    assert_non_null(strstr(error.message, "the file holds too much: over 250000 values or 64 MiB of text"));
    buf_deinit(&all);
    buf_deinit(&yaml);
}

static void repeated_text_is_bounded(void **state)
{
    (void)state;
    struct config *config = NULL;
    struct error error = {0};
    struct buf yaml = {0};

    buf_put_str(&yaml, STR("sample:\n  title: &t \""));
    for (int i = 0; i < 1000; i++)
        buf_printf(&yaml, "%01000d", 7);
    buf_put_str(&yaml, STR("\"\n  rules:\n"));
    for (int i = 0; i < 100; i++)
        buf_put_str(&yaml, STR("    - {path: /x, methods: [*t, *t, *t]}\n"));
    assert_int_equal(config_load_text("t.yaml", buf_str(&yaml), sample_sections, &config, NULL, &error),
                     STATUS_CONFIG);
    assert_non_null(strstr(error.message, "the file holds too much"));
    buf_deinit(&yaml);
}

static void an_alias_of_itself_ends(void **state)
{
    (void)state;
    refused("sample: &s\n  inner: *s\n",
            "t.yaml:2:3: sample.inner.inner: unknown key (known here: depth, label)\n");
    refused("sample:\n  listen: &l [*l]\n", "t.yaml:2:11: sample.listen[0]: must be text, not a list\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_keys_come_with_a_suggestion),
        cmocka_unit_test(a_key_stands_once),
        cmocka_unit_test(a_missing_key_is_named_where_it_should_stand),
        cmocka_unit_test(the_wrong_form_is_named),
        cmocka_unit_test(a_value_of_the_wrong_type_is_shown),
        cmocka_unit_test(a_value_out_of_bounds_is_told_the_bounds),
        cmocka_unit_test(a_key_without_a_value_is_refused),
        cmocka_unit_test(what_yaml_can_and_settings_cannot_is_refused),
        cmocka_unit_test(a_secret_is_never_shown),
        cmocka_unit_test(long_values_are_cut),
        cmocka_unit_test(columns_count_characters),
        cmocka_unit_test(twenty_errors_are_told_and_the_rest_counted),
        cmocka_unit_test(nested_aliases_are_not_followed),
        cmocka_unit_test(repeated_aliases_are_bounded),
        cmocka_unit_test(repeated_text_is_bounded),
        cmocka_unit_test(an_alias_of_itself_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
