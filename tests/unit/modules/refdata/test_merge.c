/* The last word on each key, against a plain list that is searched from its end. */
#include <stdio.h>
#include <stdlib.h>

#include "load.h"
#include "modules/refdata/provider.h"

enum { STEPS = 20000, KEYS = 700, TENANTS = 3 };

static struct refdata_dictionary *one_dictionary(void)
{
    struct refdata_catalog *catalog = catalog_of(FILE_HEAD "    - code: D\n", NULL);
    struct refdata_dictionary *dictionary = refdata_dictionary_ref(catalog->dictionaries[0]);
    refdata_catalog_unref(catalog);
    return dictionary;
}

static void nothing_comes_of_nothing(void **state)
{
    (void)state;
    struct refdata_merge merge;
    struct arena arena = ARENA(1024);
    refdata_merge_begin(&merge, 0, &arena);
    assert_int_equal(merge.count, 0);
    arena_deinit(&arena);
}

static void the_last_of_a_key_stands_where_the_first_came(void **state)
{
    (void)state;
    struct refdata_item items[] = {
        {.key = STR("a"), .payload = STR("1")},
        {.key = STR("b"), .payload = STR("2")},
        {.key = STR("a"), .is_delete = true},
        {.key = STR(""), .payload = STR("4")},
    };
    struct refdata_merge merge;
    struct arena arena = ARENA(1024);
    refdata_merge_begin(&merge, 4, &arena);
    for (size_t i = 0; i < 4; i++)
        refdata_merge_put(&merge, NULL, &items[i]);
    assert_int_equal(merge.count, 3);
    assert_ptr_equal(merge.at[0].item, &items[2]);
    assert_ptr_equal(merge.at[1].item, &items[1]);
    assert_ptr_equal(merge.at[2].item, &items[3]);
    arena_deinit(&arena);
}

/* Keys of different tenants are different keys, whichever write they come from. */
static void pairs_do_not_mix(void **state)
{
    (void)state;
    struct refdata_dictionary *dictionary = one_dictionary();
    struct refdata_write *writes = calloc(STEPS, sizeof *writes);
    struct refdata_item *items = calloc(STEPS, sizeof *items);
    const struct refdata_item *last[TENANTS][KEYS] = {{0}};
    static char names[KEYS][8];
    static const char *const tenants[TENANTS] = {"x", "y", "z"};
    uint64_t random = 88172645463325252;
    size_t distinct = 0;
    struct refdata_merge merge;
    struct arena arena = ARENA(4096);
    refdata_merge_begin(&merge, STEPS, &arena);
    for (size_t i = 0; i < STEPS; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned tenant = (unsigned)(random % TENANTS), key = (unsigned)(random / 7 % KEYS);
        snprintf(names[key], sizeof names[key], "%u", key);
        writes[i] = (struct refdata_write){.dictionary = dictionary, .tenant = str_from(tenants[tenant])};
        items[i].key = str_from(names[key]);
        refdata_merge_put(&merge, &writes[i], &items[i]);
        distinct += !last[tenant][key];
        last[tenant][key] = &items[i];
    }
    assert_int_equal(merge.count, distinct);
    for (size_t i = 0; i < merge.count; i++) {
        unsigned tenant = (unsigned)(merge.at[i].change->tenant.ptr[0] - 'x');
        assert_ptr_equal(merge.at[i].item, last[tenant][atoi(merge.at[i].item->key.ptr)]);
    }
    arena_deinit(&arena);
    refdata_dictionary_unref(dictionary);
    free(writes);
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_comes_of_nothing),
        cmocka_unit_test(the_last_of_a_key_stands_where_the_first_came),
        cmocka_unit_test(pairs_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
