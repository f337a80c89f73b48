/* C5: a key set keeps what is usable, and picks keys by algorithm and kid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <unistd.h>

#include "base/log.h"
#include "forge.h"

static enum status add(struct auth_keyset *set, const char *text)
{
    struct error error;
    return auth_keyset_add_jwks(set, str_from(text), "test", &error);
}

#define GOOD \
    "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\",\"kid\":\"good\"}"

static void one_bad_key_does_not_take_the_others_with_it(void **state)
{
    (void)state;
    struct auth_keyset *set = auth_keyset_create();
    assert_int_equal(add(set, "{\"keys\":[{\"kty\":\"weird\",\"kid\":\"bad\"}," GOOD
                              ",7,null,{\"kty\":\"oct\",\"k\":\"AA\"}]}"),
                     STATUS_OK);
    assert_int_equal(set->count, 1);
    assert_true(auth_keyset_has_kid(set, STR("good")));
    assert_false(auth_keyset_has_kid(set, STR("bad")));
    assert_false(auth_keyset_has_kid(set, STR("")));
    auth_keyset_unref(set);
}

static void a_document_without_usable_keys_is_an_error_and_adds_nothing(void **state)
{
    (void)state;
    static const char *const ROWS[] = {"",
                                       "[]",
                                       "{}",
                                       "{\"keys\":{}}",
                                       "{\"keys\":[]}",
                                       "{\"keys\"",
                                       "not json",
                                       "{\"keys\":[{}]}",
                                       GOOD,
                                       "{\"keys\":[" GOOD "],\"keys\":[]}",
                                       "{\"keys\":[" GOOD "]} x"};
    struct auth_keyset *set = auth_keyset_create();
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++)
        assert_int_not_equal(add(set, ROWS[i]), STATUS_OK);
    assert_int_equal(set->count, 0);
    auth_keyset_unref(set);
}

static void candidates_fit_by_algorithm_and_kid(void **state)
{
    (void)state;
    struct forge_key a = forge_key_create(AUTH_EDDSA, "a"), b = forge_key_create(AUTH_EDDSA, "b"),
                     a_again = forge_key_create(AUTH_ES256, "a"), nameless = forge_key_create(AUTH_HS256, "");
    const struct forge_key *all[] = {&a, &b, &a_again, &nameless};
    struct auth_keyset *set = forge_keyset(all, 4);
    const struct auth_key *found[AUTH_CANDIDATES_MAX];

    assert_int_equal(auth_keyset_candidates(set, AUTH_EDDSA, STR("a"), found), 1);
    assert_true(str_eq(found[0]->kid, STR("a")));
    assert_int_equal(found[0]->algorithm, AUTH_EDDSA);
    assert_int_equal(auth_keyset_candidates(set, AUTH_ES256, STR("a"), found), 1);
    assert_int_equal(auth_keyset_candidates(set, AUTH_RS256, STR("a"), found), 0);
    assert_int_equal(auth_keyset_candidates(set, AUTH_EDDSA, STR("c"), found), 0);
    assert_int_equal(auth_keyset_candidates(set, AUTH_EDDSA, STR(""), found), 2); /* no kid: both are tried */
    assert_int_equal(auth_keyset_candidates(set, AUTH_HS256, STR("x"), found),
                     1); /* a key without a kid fits any */
    auth_keyset_unref(set);
    for (size_t i = 0; i < 4; i++)
        forge_key_destroy((struct forge_key *)(uintptr_t)all[i]);
}

static void the_number_of_keys_and_of_tries_is_bounded(void **state)
{
    (void)state;
    struct auth_keyset *set = auth_keyset_create();
    const struct auth_key *found[AUTH_CANDIDATES_MAX];
    struct buf text = {0};

    buf_printf(&text, "{\"keys\":[" GOOD);
    for (int i = 0; i < AUTH_KEYS_MAX + 20; i++)
        buf_printf(&text, "," GOOD);
    buf_printf(&text, "]}%c", '\0');
    assert_int_equal(add(set, text.data), STATUS_OK);
    assert_int_equal(set->count, AUTH_KEYS_MAX);
    assert_int_equal(auth_keyset_candidates(set, AUTH_EDDSA, STR("good"), found), AUTH_CANDIDATES_MAX);
    buf_deinit(&text);
    auth_keyset_unref(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bad_key_does_not_take_the_others_with_it),
        cmocka_unit_test(a_document_without_usable_keys_is_an_error_and_adds_nothing),
        cmocka_unit_test(candidates_fit_by_algorithm_and_kid),
        cmocka_unit_test(the_number_of_keys_and_of_tries_is_bounded),
    };
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
