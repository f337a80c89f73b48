/* The table of holdings: found by pair, whatever came and went (R17). */
#include <stdio.h>
#include <stdlib.h>

#include "load.h"
#include "modules/refdata/query/holding.h"

enum { PAIRS = 2000 };

static struct refdata_dictionary *one_dictionary(void)
{
    struct refdata_catalog *catalog = catalog_of(FILE_HEAD "    - code: D\n", NULL);
    struct refdata_dictionary *dictionary = refdata_dictionary_ref(catalog->dictionaries[0]);

    refdata_catalog_unref(catalog);
    return dictionary;
}

static struct str tenant_name(char *buffer, unsigned number)
{
    return str_of(buffer, (size_t)sprintf(buffer, "tenant-%u", number));
}

static void an_empty_table_finds_nobody(void **state)
{
    (void)state;
    struct refdata_table *table = refdata_table_create(2);

    assert_null(refdata_table_find(table, STR("a"), STR("b")));
    assert_null(refdata_table_find(table, STR_NONE, STR_NONE));
    free(table);
}

/* Against a plain array that says who should be there. */
static void what_was_added_is_found_until_it_is_removed(void **state)
{
    (void)state;
    struct refdata_dictionary *dictionary = one_dictionary();
    struct refdata_holding *holdings[PAIRS] = {0};
    struct refdata_table *table = refdata_table_create(2);
    uint64_t random = 88172645463325252;
    size_t count = 0;
    char name[32];

    for (unsigned step = 0; step < 20 * PAIRS; step++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned at = (unsigned)(random % PAIRS);
        if (!holdings[at]) {
            holdings[at] = refdata_holding_create(NULL, tenant_name(name, at), dictionary, 1);
            table = refdata_table_add(table, holdings[at]);
            count++;
        } else {
            refdata_table_remove(table, holdings[at]);
            refdata_holding_destroy(holdings[at]);
            holdings[at] = NULL;
            count--;
        }
        assert_int_equal(table->count, count);
        assert_true(2 * table->count <= table->mask + 1);
        for (unsigned i = at; i < PAIRS; i += 97)
            assert_ptr_equal(refdata_table_find(table, tenant_name(name, i), STR("D")), holdings[i]);
    }
    for (unsigned i = 0; i < PAIRS; i++)
        if (holdings[i]) {
            refdata_table_remove(table, holdings[i]);
            refdata_holding_destroy(holdings[i]);
        }
    assert_int_equal(table->count, 0);
    for (size_t i = 0; i <= table->mask; i++)
        assert_null(table->slots[i]);
    free(table);
    refdata_dictionary_unref(dictionary);
}

static void a_copy_is_not_changed_by_what_follows(void **state)
{
    (void)state;
    struct refdata_dictionary *dictionary = one_dictionary();
    struct refdata_holding *a = refdata_holding_create(NULL, STR("a"), dictionary, 1);
    struct refdata_holding *b = refdata_holding_create(NULL, STR("b"), dictionary, 1);
    struct refdata_table *table = refdata_table_add(refdata_table_create(4), a);
    struct refdata_table *copy = refdata_table_copy(table);

    table = refdata_table_add(table, b);
    refdata_table_remove(table, a);
    assert_ptr_equal(refdata_table_find(copy, STR("a"), STR("D")), a);
    assert_null(refdata_table_find(copy, STR("b"), STR("D")));
    assert_ptr_equal(refdata_table_find(table, STR("b"), STR("D")), b);
    free(copy);
    free(table);
    refdata_holding_destroy(a);
    refdata_holding_destroy(b);
    refdata_dictionary_unref(dictionary);
}

/* ("ab", "c") is not ("a", "bc"), nor ("c", "ab"). */
static void a_pair_is_both_names_in_their_order(void **state)
{
    (void)state;
    assert_int_not_equal(map_hash_pair(STR("ab"), STR("c")), map_hash_pair(STR("a"), STR("bc")));
    assert_int_not_equal(map_hash_pair(STR("ab"), STR("c")), map_hash_pair(STR("c"), STR("ab")));
    assert_int_not_equal(map_hash_pair(STR("a"), STR("a")), map_hash_pair(STR("b"), STR("b")));
}

static void the_latest_use_on_any_loop_counts(void **state)
{
    (void)state;
    struct refdata_dictionary *dictionary = one_dictionary();
    struct refdata_holding *holding = refdata_holding_create(NULL, STR("a"), dictionary, 3);

    assert_int_equal(refdata_holding_used_at_s(holding, 3), 0);
    atomic_store(&holding->used_at_s[0], 7);
    atomic_store(&holding->used_at_s[2], 9);
    atomic_store(&holding->used_at_s[1], 8);
    assert_int_equal(refdata_holding_used_at_s(holding, 3), 9);
    refdata_holding_destroy(holding);
    refdata_dictionary_unref(dictionary);
}

/* C7, R7: demands for versions that never come leave nothing behind, however many there were. */
static void those_who_no_longer_wait_are_forgotten(void **state)
{
    (void)state;
    enum { AT_ONCE = 10, EVER = 100000 };
    struct refdata_asks asks = STAILQ_HEAD_INITIALIZER(asks);
    size_t count = 0;
    for (int64_t now_ns = 0; now_ns < EVER; now_ns++) {
        struct refdata_ask *ask = calloc(1, sizeof *ask);
        ask->version = now_ns;
        ask->expires_ns = now_ns + AT_ONCE;
        refdata_asks_add(&asks, ask, now_ns);
        if (now_ns % 1000 == 0 || now_ns == EVER - 1) {
            const struct refdata_ask *each;
            count = 0;
            STAILQ_FOREACH(each, &asks, next)
                count++;
            assert_true(count <= AT_ONCE);
        }
    }
    assert_int_equal(count, AT_ONCE); /* and none that still waits is */
    assert_int_equal(STAILQ_FIRST(&asks)->expires_ns, EVER);
    for (struct refdata_ask *ask; (ask = refdata_asks_take(&asks)) != NULL;)
        refdata_ask_free(ask);
}

/* A load is single flight: queued once, run once, once more at most. */
static void a_holding_moves_through_its_states(void **state)
{
    (void)state;
    struct refdata_dictionary *dictionary = one_dictionary();
    struct refdata_holding *holding = refdata_holding_create(NULL, STR("a"), dictionary, 1);
    struct turns line;

    turns_init(&line);
    refdata_holding_move(holding, HOLDING_WANTED);
    refdata_holding_move(holding, HOLDING_QUEUED);
    holding->line = &line;
    turns_put(&line, 1, &holding->turn);
    assert_false(refdata_holding_is_loading(holding));
    refdata_holding_move(holding, HOLDING_LOADING);
    assert_int_equal(line.queued, 0); /* it left its queue */
    assert_true(refdata_holding_is_loading(holding));
    refdata_holding_move(holding, HOLDING_LOADING_AGAIN);
    assert_true(refdata_holding_is_loading(holding));
    refdata_holding_move(holding, HOLDING_IDLE);
    refdata_holding_move(holding, HOLDING_DROPPED);
    refdata_holding_destroy(holding);
    refdata_dictionary_unref(dictionary);
    turns_deinit(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_who_no_longer_wait_are_forgotten),
        cmocka_unit_test(a_holding_moves_through_its_states),
        cmocka_unit_test(an_empty_table_finds_nobody),
        cmocka_unit_test(what_was_added_is_found_until_it_is_removed),
        cmocka_unit_test(a_copy_is_not_changed_by_what_follows),
        cmocka_unit_test(a_pair_is_both_names_in_their_order),
        cmocka_unit_test(the_latest_use_on_any_loop_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
