/* H6: which item an event is about. */
#include "modules/intake/intake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void the_sku_of_a_key_is_what_was_posted(void **state)
{
    (void)state;
    static const struct {
        const char *key, *sku;
    } rows[] = {
        {"demo/SKU-1", "SKU-1"}, {"demo/a%2Fb", "a/b"},   {"demo/100%25", "100%"},
        {"demo/%252F", "%2F"},   {"demo/a b+c", "a b+c"}, {"demo/caf\xc3\xa9", "caf\xc3\xa9"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arena arena = ARENA(256);
        struct str sku;
        assert_true(intake_sku_of_key(str_from(rows[i].key), &arena, &sku));
        assert_true(str_eq(sku, str_from(rows[i].sku)));
        arena_deinit(&arena);
    }
}

static void what_is_no_key_is_about_no_item(void **state)
{
    (void)state;
    static const char *const keys[] = {"", "demo", "demo/", "demo/%", "demo/%2", "demo/%00", "demo/%ff"};
    struct arena arena = ARENA(256);
    struct str sku;
    assert_false(intake_sku_of_key(STR_NONE, &arena, &sku));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_false(intake_sku_of_key(str_from(keys[i]), &arena, &sku));
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sku_of_a_key_is_what_was_posted),
        cmocka_unit_test(what_is_no_key_is_about_no_item),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
