/* Sources by configuration (R9): what contradicts itself is refused with file, line, column and field. */
#include "../load.h"

#include "kernel/engines.h"
#include "modules/refdata/adapter/adapter.h"

#define KAFKA "kafka: {brokers: [\"127.0.0.1:1\"]}\n"
#define HEAD                                                                              \
    "refdata:\n  postgres:\n    - {name: one, jdbcUrl: \"postgresql://127.0.0.1:1/a\"}\n" \
    "    - {name: two, jdbcUrl: \"postgresql://127.0.0.1:1/b\"}\n"                        \
    "  dictionaries:\n    - code: COUNTRY\n    - {code: CURRENCY, postgres: two}\n"       \
    "    - {code: OFF, enabled: false}\n  adapter:\n    sources:\n"
#define FIRST "t.yaml:11:"

static struct config *load_both(const char *yaml)
{
    const struct config_section sections[] = {
        refdata_section, {"kafka", "Kafka.", kernel_kafka_rows, sizeof(struct kernel_kafka)}, {0}};
    struct config *config = NULL;
    struct error error = {0};
    if (config_load_text("t.yaml", str_from(yaml), sections, &config, NULL, &error) != STATUS_OK)
        fail_msg("not loaded: %s", error.message);
    return config;
}

static enum status check(const char *sources, struct error *error)
{
    struct buf yaml = {0};
    buf_printf(&yaml, HEAD "%s" KAFKA, sources);
    buf_put_char(&yaml, '\0');
    struct config *config = load_both(yaml.data);
    enum status status = refdata_sources_check(config, settings_of(config), error);
    config_free(config);
    buf_deinit(&yaml);
    return status;
}

static void taken(const char *sources)
{
    struct error error = {0};
    if (check(sources, &error) != STATUS_OK)
        fail_msg("%s refused: %s", sources, error.message);
}

static void refuses(const char *sources, const char *message)
{
    struct error error = {0};
    assert_int_equal(check(sources, &error), STATUS_CONFIG);
    assert_string_equal(error.message, message);
}

static void sources_that_make_sense_are_taken(void **state)
{
    (void)state;
    taken("      - topic: mdm.countries\n");
    taken(
        "      - {topic: a, group: g, tenant: {fixed: acme}, dictCode: {fixed: COUNTRY}, tombstones: DELETE}\n"
        "      - {topic: b, tenant: {header: x-tenant}, dictCode: {fixed: CURRENCY}}\n"
        "      - {topic: c, tenant: {field: /meta/tenant}, dictCode: {field: /meta/type}, postgres: two}\n"
        "      - topic: d\n"
        "        mapping: {eventId: {field: /id}, eventIdForm: ANY, eventType: {fixed: DELTA}, items: {field: \"\"},\n"
        "                  key: {messageKey: true}, op: {field: /op}, payload: {field: /after},\n"
        "                  deleteWords: [d], upsertWords: [c, r, u]}\n");
}

static void a_source_contradicting_itself_is_refused_where_it_stands(void **state)
{
    (void)state;
    refuses("      - {topic: \"a b\"}\n",
            FIRST "17: refdata.adapter.sources[0].topic: must be 1 to 60 of A-Z a-z 0-9 . _ -");
    refuses("      - topic: refdata.commands\n",
            FIRST "16: refdata.adapter.sources[0].topic: the adapter's own messages go there");
    refuses("      - topic: mine\n  kafka: {commandsTopic: mine}\n",
            FIRST "16: refdata.adapter.sources[0].topic: the adapter's own messages go there");
    refuses("      - topic: a.dlq\n",
            FIRST "16: refdata.adapter.sources[0].topic: a topic of dead letters has none of its own");
    refuses("      - {topic: a, group: \"a/b\"}\n",
            FIRST "27: refdata.adapter.sources[0].group: must be 1 to 60 of A-Z a-z 0-9 . _ -");
    refuses("      - {topic: a, group: refdata-apply}\n",
            FIRST "27: refdata.adapter.sources[0].group: must differ from refdata.kafka.consumerGroup");
    refuses("      - topic: a\n      - topic: a\n",
            "t.yaml:12:16: refdata.adapter.sources[1].topic: is read already, by the source at line 11");
    refuses("      - {topic: a, tenant: {fixed: x, header: y}}\n",
            FIRST "47: refdata.adapter.sources[0].tenant: give one of field, header, messageKey and fixed");
    refuses("      - {topic: a, tenant: {fixed: \"x y\"}}\n",
            FIRST "36: refdata.adapter.sources[0].tenant: must be 1 to 64 of A-Z a-z 0-9 . _ -");
    refuses("      - {topic: a, tenant: {header: \"\"}}\n",
            FIRST "37: refdata.adapter.sources[0].tenant: is empty");
    refuses("      - {topic: a, mapping: {items: {fixed: x}}}\n",
            FIRST "45: refdata.adapter.sources[0].mapping.items: can only come from a field");
    refuses("      - {topic: a, mapping: {eventId: {field: id}}}\n",
            FIRST "47: refdata.adapter.sources[0].mapping.eventId: a JSON pointer begins with /: try /id");
    refuses("      - {topic: a, tombstones: DELETE, tenant: {fixed: x}}\n", FIRST
            "32: refdata.adapter.sources[0].tombstones: a message without a value has no field for dictCode: "
            "take that from a header, or fix it");
}

static void a_source_knows_its_dictionary_and_database(void **state)
{
    (void)state;
    refuses("      - {topic: a, dictCode: {fixed: NONE}}\n",
            FIRST "38: refdata.adapter.sources[0].dictCode: there is no dictionary called \"NONE\"");
    refuses("      - {topic: a, dictCode: {fixed: OFF}}\n",
            FIRST "38: refdata.adapter.sources[0].dictCode: there is no dictionary called \"OFF\"");
    refuses("      - {topic: a, postgres: three}\n",
            FIRST "30: refdata.adapter.sources[0].postgres: there is no postgres block called \"three\"");
    refuses("      - {topic: a, postgres: one, dictCode: {fixed: CURRENCY}}\n",
            FIRST "30: refdata.adapter.sources[0].postgres: the dictionary CURRENCY lives in another block");

    struct config *config = load(HEAD "      - topic: a\n      - {topic: b, dictCode: {fixed: CURRENCY}}\n"
                                      "      - {topic: c, postgres: two}\n");
    const struct refdata_settings *settings = settings_of(config);
    const struct refdata_source_settings *sources = settings->adapter.sources.items;
    assert_int_equal(settings->adapter.sources.count, 3);
    assert_int_equal(refdata_source_database(settings, &sources[0]), 0);
    assert_int_equal(refdata_source_database(settings, &sources[1]), 1);
    assert_int_equal(refdata_source_database(settings, &sources[2]), 1);
    config_free(config);
}

static void without_sources_there_is_nothing_to_refuse(void **state)
{
    (void)state;
    struct error error = {0};
    struct config *config = load_both(FILE_HEAD "    - code: a\n");
    assert_int_equal(refdata_sources_check(config, settings_of(config), &error), STATUS_OK);
    assert_int_equal(settings_of(config)->adapter.sources.count, 0);
    config_free(config);
}

static void sources_need_kafka(void **state)
{
    (void)state;
    struct error error = {0};
    struct config *config = load_both(HEAD "      - topic: a\n");
    assert_int_equal(refdata_sources_check(config, settings_of(config), &error), STATUS_CONFIG);
    assert_string_equal(error.message, FIRST
                        "9: refdata.adapter.sources: kafka.brokers is missing: sources are topics of Kafka");
    config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_that_make_sense_are_taken),
        cmocka_unit_test(a_source_contradicting_itself_is_refused_where_it_stands),
        cmocka_unit_test(a_source_knows_its_dictionary_and_database),
        cmocka_unit_test(sources_need_kafka),
        cmocka_unit_test(without_sources_there_is_nothing_to_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
