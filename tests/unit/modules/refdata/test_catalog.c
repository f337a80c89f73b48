/* Catalogs: found by code, checked as a whole, and what did not change is carried over a reload (R15). */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>

#define SQL_DICT(code, sql) "    - {code: " code ", loadSql: \"" sql "\"}\n"
#define LOAD "select k, v from t where x = :tenantId"

static void dictionaries_are_found_by_their_exact_code(void **state)
{
    (void)state;
    struct refdata_catalog *catalog =
        catalog_of(FILE_HEAD "    - code: b\n    - code: B\n    - code: a.x\n"
                             "    - {code: off, enabled: false}\n    - code: a\n",
                   NULL);
    static const char *const there[] = {"a", "B", "b", "a.x"}, *const absent[] = {"",   "A",   "a.",
                                                                                  "aa", "off", "c"};

    assert_int_equal(catalog->dictionary_count, 4);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        assert_true(str_eq(refdata_catalog_find(catalog, str_from(there[i]))->code, str_from(there[i])));
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_null(refdata_catalog_find(catalog, str_from(absent[i])));
    refdata_catalog_unref(catalog);
}

static void a_catalog_may_be_empty(void **state)
{
    (void)state;
    struct refdata_catalog *catalog =
        catalog_of("refdata:\n  postgres: {jdbcUrl: \"postgresql://127.0.0.1:1/none\"}\n", NULL);

    assert_int_equal(catalog->dictionary_count, 0);
    assert_null(refdata_catalog_find(catalog, STR("a")));
    refdata_catalog_unref(catalog);
}

/* The same pointer means: its compiled templates, its state and its pool's connections stay. */
static void what_did_not_change_is_the_same_object_after_a_reload(void **state)
{
    (void)state;
    struct refdata_catalog *before = catalog_of(FILE_HEAD SQL_DICT("same", LOAD) SQL_DICT("changed", LOAD)
                                                    SQL_DICT("gone", LOAD) "    - code: builtin\n",
                                                NULL);
    atomic_store(&refdata_catalog_find(before, STR("same"))->state, REFDATA_READY);
    struct refdata_catalog *after =
        catalog_of(FILE_HEAD SQL_DICT("new", LOAD) "    - code: builtin\n" SQL_DICT("changed", LOAD " ")
                       SQL_DICT("same", LOAD),
                   before);

    assert_ptr_equal(after->databases[0], before->databases[0]);
    assert_ptr_equal(refdata_catalog_find(after, STR("same")), refdata_catalog_find(before, STR("same")));
    assert_ptr_equal(refdata_catalog_find(after, STR("builtin")),
                     refdata_catalog_find(before, STR("builtin")));
    assert_ptr_not_equal(refdata_catalog_find(after, STR("changed")),
                         refdata_catalog_find(before, STR("changed")));
    assert_null(refdata_catalog_find(after, STR("gone")));
    assert_int_equal(refdata_catalog_find(after, STR("new"))->state, REFDATA_UNCHECKED);
    refdata_catalog_unref(before);
    assert_int_equal(refdata_catalog_find(after, STR("same"))->state, REFDATA_READY);
    refdata_catalog_unref(after);
}

static void a_database_that_moved_takes_its_dictionaries_along(void **state)
{
    (void)state;
    static const char *const urls[] = {"postgresql://127.0.0.1:1/one", "postgresql://127.0.0.1:1/two"};
    struct refdata_catalog *catalogs[2] = {NULL, NULL};
    char yaml[512];

    for (size_t i = 0; i < 2; i++) {
        snprintf(yaml, sizeof yaml,
                 "refdata:\n  postgres:\n    - {name: stays, jdbcUrl: \"postgresql://127.0.0.1:1/none\"}\n"
                 "    - {name: moves, jdbcUrl: \"%s\"}\n"
                 "  dictionaries:\n    - {code: a}\n    - {code: b, postgres: moves}\n",
                 urls[i]);
        catalogs[i] = catalog_of(yaml, catalogs[0]);
    }
    assert_ptr_equal(catalogs[1]->databases[0], catalogs[0]->databases[0]);
    assert_ptr_not_equal(catalogs[1]->databases[1], catalogs[0]->databases[1]);
    assert_ptr_equal(refdata_catalog_find(catalogs[1], STR("a")),
                     refdata_catalog_find(catalogs[0], STR("a")));
    assert_ptr_not_equal(refdata_catalog_find(catalogs[1], STR("b")),
                         refdata_catalog_find(catalogs[0], STR("b")));
    refdata_catalog_unref(catalogs[0]);
    assert_ptr_equal(refdata_catalog_find(catalogs[1], STR("b"))->database, catalogs[1]->databases[1]);
    refdata_catalog_unref(catalogs[1]);
}

static void codes_and_blocks_are_named_once(void **state)
{
    (void)state;
    refused(
        FILE_HEAD "    - code: D\n    - code: E\n    - code: D\n",
        "t.yaml:6:13: refdata.dictionaries[2].code: two dictionaries have the code \"D\"; the first stands at "
        "line 4");
    refused(
        FILE_HEAD "    - code: D\n    - {code: D, enabled: false}\n",
        "t.yaml:5:14: refdata.dictionaries[1].code: two dictionaries have the code \"D\"; the first stands at "
        "line 4");
    refused(FILE_HEAD "    - {code: D, postgres: other}\n",
            "t.yaml:4:27: refdata.dictionaries[0].postgres: there is no postgres block called \"other\"");
    refused(
        "refdata:\n  postgres:\n    - jdbcUrl: postgresql://127.0.0.1:1/a\n    - jdbcUrl: postgresql://127.0.0.1:1/b\n",
        "t.yaml:4:7: refdata.postgres: two postgres blocks are called \"main\": give each a name of its own");
    refused(FILE_HEAD "    - code: \"a/b\"\n",
            "t.yaml:4:13: refdata.dictionaries[0].code: a dictionary's code is 1 to 64 of A-Z a-z 0-9 . _ -");
}

static void preloads_name_dictionaries_of_the_file(void **state)
{
    (void)state;
    static const char *const wrong[] = {"D", "demo/", "/D", "demo/E", "de mo/D", "demo/D/x", "**/D", ""};
    char yaml[512], message[512];

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(yaml, sizeof yaml,
                 FILE_HEAD "    - code: D\n  cache: {preload: [demo/D, \"*/D\", \"%s\"]}\n", wrong[i]);
        snprintf(
            message, sizeof message,
            "t.yaml:5:20: refdata.cache.preload: \"%s\" is not TENANT/DICTIONARY with a dictionary of this file "
            "(TENANT may be *)",
            wrong[i]);
        refused(yaml, message);
    }
}

static void a_password_variable_must_be_set(void **state)
{
    (void)state;
    static const char yaml[] =
        "refdata:\n  postgres:\n    jdbcUrl: postgresql://127.0.0.1:1/none\n    passwordFromEnv: FRESHET_TEST_UNSET\n";

    unsetenv("FRESHET_TEST_UNSET");
    refused(
        yaml,
        "t.yaml:4:22: refdata.postgres.passwordFromEnv: the environment variable FRESHET_TEST_UNSET is not "
        "set");
    setenv("FRESHET_TEST_UNSET", "", 1);
    refdata_catalog_unref(catalog_of(yaml, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dictionaries_are_found_by_their_exact_code),
        cmocka_unit_test(a_catalog_may_be_empty),
        cmocka_unit_test(what_did_not_change_is_the_same_object_after_a_reload),
        cmocka_unit_test(a_database_that_moved_takes_its_dictionaries_along),
        cmocka_unit_test(codes_and_blocks_are_named_once),
        cmocka_unit_test(preloads_name_dictionaries_of_the_file),
        cmocka_unit_test(a_password_variable_must_be_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
