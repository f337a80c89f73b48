/* H6: which item of which dictionary an id names. */
#include "modules/refdata/command/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void the_key_is_all_after_the_first_slash(void **state)
{
    (void)state;
    static const struct {
        const char *id, *code, *key;
    } rows[] = {
        {"countries/RU", "countries", "RU"},     {"a.b_c-1/k", "a.b_c-1", "k"},
        {"countries/a/b/", "countries", "a/b/"}, {"countries//", "countries", "/"},
        {"countries/%2F", "countries", "%2F"},   {"countries/ ", "countries", " "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct str code, key;
        assert_true(refdata_owner_read_id(str_from(rows[i].id), &code, &key));
        assert_true(str_eq(code, str_from(rows[i].code)));
        assert_true(str_eq(key, str_from(rows[i].key)));
    }
}

static void what_names_no_dictionary_or_no_key_is_no_id(void **state)
{
    (void)state;
    static const char *const ids[] = {"", "countries", "countries/", "/RU", "/", "a b/RU", "a%2Fb/RU"};
    struct str code, key;
    assert_false(refdata_owner_read_id(STR_NONE, &code, &key));
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_false(refdata_owner_read_id(str_from(ids[i]), &code, &key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_key_is_all_after_the_first_slash),
        cmocka_unit_test(what_names_no_dictionary_or_no_key_is_no_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
