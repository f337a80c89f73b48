/* Definitions: which templates may name which parameters, and where a mistake stands (R15). */
#include "load.h"

#define ONE(lines) FILE_HEAD "    - code: D\n" lines
#define WITH_LOAD(lines) ONE("      loadSql: select k, v from t where x = :tenantId\n" lines)

static const struct refdata_dictionary *only(const struct refdata_catalog *catalog)
{
    assert_int_equal(catalog->dictionary_count, 1);
    return catalog->dictionaries[0];
}

static void a_mistake_is_pointed_at_by_line_and_column(void **state)
{
    (void)state;
    refused(ONE("      loadSql: |\n        select k, v\n        from t where x = :tenantid\n"),
            "t.yaml:7:26: refdata.dictionaries[0].loadSql: unknown parameter :tenantid");
    refused(ONE("      loadSql: |\n        select k, v -- :tenantId\n        from t where x = :key\n"),
            "t.yaml:7:26: refdata.dictionaries[0].loadSql: the parameter :key has no value here");
    refused(ONE("      loadSql: \"  \\n \"\n"),
            "t.yaml:5:16: refdata.dictionaries[0].loadSql: there is no statement");
}

static void a_template_reads_or_writes_and_does_nothing_else(void **state)
{
    (void)state;
#define OTHER(sql) WITH_LOAD("      apply: {upsertSql: \"" sql "\"}\n")
#define WHY                                                                                                  \
    "t.yaml:6:26: refdata.dictionaries[0].apply.upsertSql: a template reads or writes data; it may not end " \
    "transactions, change settings or take locks"
    refused(OTHER("set search_path = x"), WHY);
    refused(OTHER("commit"), WHY);
    refused(OTHER("/* a */ ( -- b\\n rollback"), WHY);
}

static void a_parameter_without_a_value_is_refused_in_every_field(void **state)
{
    (void)state;
    refused(WITH_LOAD("      loadKeysSql: \"select :payload\"\n"),
            "t.yaml:6:20: refdata.dictionaries[0].loadKeysSql: the parameter :payload has no value here");
    refused(
        WITH_LOAD("      driftCheckSql: select :eventEpoch\n"),
        "t.yaml:6:29: refdata.dictionaries[0].driftCheckSql: the parameter :eventEpoch has no value here");
    refused(WITH_LOAD("      apply:\n        deleteSql: select :payload\n"),
            "t.yaml:7:27: refdata.dictionaries[0].apply.deleteSql: the parameter :payload has no value here");
    refused(
        WITH_LOAD("      apply:\n        upsertSql: select :snapshotJson\n"),
        "t.yaml:7:27: refdata.dictionaries[0].apply.upsertSql: the parameter :snapshotJson has no value here");
    refused(
        WITH_LOAD("      apply:\n        snapshotReplaceSql: select :chunkIndex\n"),
        "t.yaml:7:36: refdata.dictionaries[0].apply.snapshotReplaceSql: the parameter :chunkIndex has no value "
        "here");
}

static void settings_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    refused(
        WITH_LOAD("      apply: {snapshotStageSql: select 1}\n"),
        "t.yaml:6:33: refdata.dictionaries[0].apply.snapshotStageSql: snapshotStageSql and snapshotFinalizeSql "
        "come as a pair");
    refused(
        WITH_LOAD("      apply:\n        snapshotReplaceSql: select 1\n        snapshotStageSql: select 2\n"
                  "        snapshotFinalizeSql: select 3\n"),
        "t.yaml:7:29: refdata.dictionaries[0].apply.snapshotReplaceSql: either snapshotReplaceSql or the pair "
        "snapshotStageSql/snapshotFinalizeSql, not both");
    refused(
        ONE("      apply: {upsertSql: select 1}\n"),
        "t.yaml:5:26: refdata.dictionaries[0].apply.upsertSql: without loadSql the dictionary lives in the "
        "built-in table and takes no templates");
    refused(WITH_LOAD("      reloadOnEvent: DELTA\n"),
            "t.yaml:4:13: refdata.dictionaries[0].reloadOnEvent: reloadOnEvent: DELTA needs loadKeysSql");
}

static void every_parameter_has_a_value_where_the_seed_uses_it(void **state)
{
    (void)state;
    struct refdata_catalog *catalog = catalog_of(
        WITH_LOAD(
            "      loadKeysSql: select :tenantId, :keys\n"
            "      apply:\n"
            "        upsertSql: select :tenantId, :key, :payload, :eventEpoch, :eventVersion\n"
            "        deleteSql: select :tenantId, :key, :eventEpoch, :eventVersion\n"
            "        snapshotStageSql: select :tenantId, :snapshotJson, :snapshotId, :chunkIndex, :eventVersion\n"
            "        snapshotFinalizeSql: select :tenantId, :snapshotId, :eventEpoch\n"),
        NULL);
    const struct refdata_sql *upsert = &only(catalog)->sql[REFDATA_UPSERT];

    assert_int_equal(upsert->statement.param_count, 5);
    assert_string_equal(upsert->statement.text.ptr, "select $1, $2, $3, $4, $5");
    assert_int_equal(upsert->statement.types[2], DB_JSONB);
    assert_int_equal(upsert->statement.types[4], DB_BIGINT);
    assert_int_equal(only(catalog)->sql[REFDATA_LOAD_KEYS].statement.types[1], DB_TEXT_ARRAY);
    refdata_catalog_unref(catalog);
}

static void values_are_bound_by_name_whatever_their_order(void **state)
{
    (void)state;
    struct refdata_catalog *catalog =
        catalog_of(WITH_LOAD("      apply: {deleteSql: \"select :key, :tenantId, :key\"}\n"), NULL);
    const struct db_statement *statement = &only(catalog)->sql[REFDATA_DELETE].statement;
    struct str values[REFDATA_PARAMETERS] = {
        [REFDATA_TENANT_ID] = STR("the tenant"), [REFDATA_KEY] = STR("the key")};
    struct db_param params[DB_PARAMS_MAX];

    assert_string_equal(statement->text.ptr, "select $1, $2, $1");
    refdata_dictionary_bind(statement, values, params);
    assert_true(str_eq(params[0].value, STR("the key")));
    assert_true(str_eq(params[1].value, STR("the tenant")));
    refdata_catalog_unref(catalog);
}

static void where_items_come_from_and_how_they_reload_follows_from_what_is_given(void **state)
{
    (void)state;
    static const struct {
        const char *yaml;
        bool is_builtin, delta;
    } cases[] = {
        {ONE(""), true, true},
        {ONE("      reloadOnEvent: FULL\n"), true, false},
        {WITH_LOAD(""), false, false},
        {WITH_LOAD("      loadKeysSql: select :keys, :tenantId\n"), false, true},
        {WITH_LOAD("      loadKeysSql: select :keys, :tenantId\n      reloadOnEvent: FULL\n"), false, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct refdata_catalog *catalog = catalog_of(cases[i].yaml, NULL);
        assert_int_equal(only(catalog)->is_builtin, cases[i].is_builtin);
        assert_int_equal(only(catalog)->delta, cases[i].delta);
        assert_int_equal(only(catalog)->state, REFDATA_UNCHECKED);
        refdata_catalog_unref(catalog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mistake_is_pointed_at_by_line_and_column),
        cmocka_unit_test(a_template_reads_or_writes_and_does_nothing_else),
        cmocka_unit_test(a_parameter_without_a_value_is_refused_in_every_field),
        cmocka_unit_test(settings_that_contradict_each_other_are_refused),
        cmocka_unit_test(every_parameter_has_a_value_where_the_seed_uses_it),
        cmocka_unit_test(values_are_bound_by_name_whatever_their_order),
        cmocka_unit_test(where_items_come_from_and_how_they_reload_follows_from_what_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
