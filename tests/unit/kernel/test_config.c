/* Loading: defaults, every type, the seed's example as written (R15), and what a configuration answers. */
#include <stdlib.h>
#include <unistd.h>

#include "config_load.h"

static const struct sample *sample_of(const struct config *config)
{
    return config_section(config, "sample");
}

static void assert_str(struct str actual, const char *expected)
{
    assert_non_null(actual.ptr);
    assert_int_equal(actual.len, strlen(expected));
    assert_string_equal(actual.ptr, expected);
}

static void an_empty_file_is_all_defaults(void **state)
{
    (void)state;
    const char *files[] = {"",          "\n",          "# nothing\n", "---\n", "--- ~\n...\n", "\xEF\xBB\xBF",
                           "sample:\n", "sample: {}\n"};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct config *config = loaded_from(sample_sections, files[i]);
        const struct sample *sample = sample_of(config);
        assert_str(sample->title, "untitled");
        assert_int_equal(sample->title_place.line, 0);
        assert_true(sample->enabled);
        assert_int_equal(sample->port, 8080);
        assert_int_equal(sample->timeout_ms, 5000);
        assert_int_equal(sample->cache_bytes, 64 << 20);
        assert_int_equal(sample->color, SAMPLE_GREEN);
        assert_int_equal(sample->listen.count, 1);
        assert_str(sample->listen.items[0], "127.0.0.1:8080");
        assert_int_equal(sample->inner.depth, 3);
        assert_int_equal(sample->spare.depth, 0); /* required inside, but the whole may be left out */
        assert_str(sample->spare.label, "spare");
        assert_int_equal(sample->spare_place.line, 0);
        assert_int_equal(sample->rules.count, 0);
        config_free(config);
    }
}

static void every_type_is_read(void **state)
{
    (void)state;
    struct config *config = loaded_from(sample_sections, "sample:\n"
                                                         "  title: 123\n"
                                                         "  password: \"p\\u00e4ss\"\n"
                                                         "  enabled: false\n"
                                                         "  port: 65535\n"
                                                         "  timeout: \"250ms\"\n"
                                                         "  cache-size: 1GiB\n"
                                                         "  color: 'blue'\n"
                                                         "  listen: [a:1, \"b:2\"]\n"
                                                         "  inner: {depth: 64, label: ''}\n"
                                                         "  spare:\n"
                                                         "    depth: 7\n"
                                                         "  rules:\n"
                                                         "    - path: /x\n"
                                                         "      weight: -5\n"
                                                         "    - {path: /y, methods: POST}\n");
    const struct sample *sample = sample_of(config);

    assert_str(sample->title, "123");
    assert_int_equal(sample->title_place.line, 2);
    assert_int_equal(sample->title_place.column, 10);
    assert_str(sample->password, "p\u00e4ss");
    assert_false(sample->enabled);
    assert_int_equal(sample->port, 65535);
    assert_int_equal(sample->timeout_ms, 250);
    assert_int_equal(sample->cache_bytes, 1 << 30);
    assert_int_equal(sample->color, SAMPLE_BLUE);
    assert_int_equal(sample->listen.count, 2);
    assert_str(sample->listen.items[1], "b:2");
    assert_int_equal(sample->inner.depth, 64);
    assert_str(sample->inner.label, "");
    assert_int_equal(sample->spare.depth, 7);
    assert_int_equal(sample->spare_place.line, 12); /* where its first key stands */
    assert_int_equal(sample->rules.count, 2);
    const struct sample_rule *rules = sample->rules.items;
    assert_str(rules[0].path, "/x");
    assert_int_equal(rules[0].weight, -5);
    assert_int_equal(rules[0].methods.count, 2);
    assert_str(rules[0].methods.items[1], "HEAD");
    assert_int_equal(rules[1].methods.count, 1);
    assert_int_equal(sample->rules.places[1].line, 16);
    assert_int_equal(sample->rules.places[1].column, 7);
    config_free(config);
}

static void one_mapping_or_one_text_is_a_list_of_one(void **state)
{
    (void)state;
    struct config *config = loaded_from(sample_sections, "sample: {listen: a:1, rules: {path: /x}}\n");

    assert_int_equal(sample_of(config)->listen.count, 1);
    assert_str(sample_of(config)->listen.items[0], "a:1");
    assert_int_equal(sample_of(config)->rules.count, 1);
    config_free(config);
    config = loaded_from(sample_sections, "sample:\n  rules:\n");
    assert_int_equal(sample_of(config)->rules.count, 0);
    config_free(config);
}

static void an_alias_repeats_a_value(void **state)
{
    (void)state;
    struct config *config =
        loaded_from(sample_sections, "sample:\n  inner: &a {depth: 9, label: x}\n  spare: *a\n");

    assert_int_equal(sample_of(config)->spare.depth, 9);
    assert_str(sample_of(config)->spare.label, "x");
    assert_int_equal(sample_of(config)->spare_place.line, 2); /* where the text stands */
    config_free(config);
}

static void the_seeds_example_loads_as_written_R15(void **state)
{
    (void)state;
    struct config *config = loaded_from(sample_refdata_sections, sample_seed_yaml);
    const struct sample_refdata *refdata = config_section(config, "refdata");
    const struct sample_postgres *postgres = refdata->postgres.items;
    const struct sample_dictionary *dictionaries = refdata->dictionaries.items;

    assert_int_equal(refdata->postgres.count, 1);
    assert_str(postgres->url, "jdbc:postgresql://pg-host:5432/app");
    assert_str(postgres->password_env, "PG_PASSWORD");
    assert_int_equal(postgres->connections_max, 50);
    assert_int_equal(refdata->wait_commit_timeout_ms, 300);
    assert_false(refdata->header_override);
    assert_int_equal(refdata->dictionaries.count, 2);
    assert_str(dictionaries[0].code, "COUNTRY");
    assert_str(dictionaries[0].load_sql, "select code as k, to_jsonb(t) as v\n"
                                         "from mdm_country t\n"
                                         "where t.tenant_id = :tenantId and t.deleted = false\n");
    assert_str(dictionaries[1].replace_sql,
               "select refdata_replace_currency_snapshot(:tenantId, :snapshotJson)\n");
    assert_int_equal(dictionaries[1].reload_on_event, 0);
    assert_true(dictionaries[1].enabled);
    config_free(config);
}

static void a_configuration_knows_its_file_and_sections(void **state)
{
    (void)state;
    struct config *config = loaded_from(sample_sections, "");
    struct error error = {0};

    assert_string_equal(config_path(config), "t.yaml");
    assert_null(config_section(config, "unheard"));
    assert_str(arena_printf(config_arena(config), "%d", 7), "7");
    assert_int_equal(
        config_error_at(config, (struct setting_place){12, 7}, "sample.title", &error, "is %s", "odd"),
        STATUS_CONFIG);
    assert_string_equal(error.message, "t.yaml:12:7: sample.title: is odd");
    assert_string_equal(error.field, "sample.title");
    assert_int_equal(config_error_at(config, (struct setting_place){0}, "sample.title", &error, "is odd"),
                     STATUS_CONFIG);
    assert_string_equal(error.message, "t.yaml: sample.title: is odd");
    config_free(config);
    config_free(NULL);
}

static void files_are_read_and_missing_ones_named(void **state)
{
    (void)state;
    char path[] = "/tmp/test_config_XXXXXX";
    struct config *config = NULL;
    struct error error = {0};
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "sample: {port: 1}\n", 18), 18);
    close(fd);
    assert_int_equal(config_load(path, sample_sections, &config, NULL, &error), STATUS_OK);
    assert_int_equal(sample_of(config)->port, 1);
    config_free(config);
    unlink(path);
    assert_int_equal(config_load("/nowhere/f.yaml", sample_sections, &config, NULL, &error), STATUS_CONFIG);
    assert_string_equal(error.message, "/nowhere/f.yaml: cannot be read: No such file or directory");
    assert_int_equal(config_load("/", sample_sections, &config, NULL, &error), STATUS_CONFIG);
    assert_string_equal(error.message, "/: cannot be read: Is a directory");
    assert_int_equal(config_load("/dev/zero", sample_sections, &config, NULL, &error), STATUS_CONFIG);
    assert_string_equal(error.message, "/dev/zero: is larger than 4 MiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_file_is_all_defaults),
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(one_mapping_or_one_text_is_a_list_of_one),
        cmocka_unit_test(an_alias_repeats_a_value),
        cmocka_unit_test(the_seeds_example_loads_as_written_R15),
        cmocka_unit_test(a_configuration_knows_its_file_and_sections),
        cmocka_unit_test(files_are_read_and_missing_ones_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
