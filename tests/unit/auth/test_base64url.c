/* C5: base64url has exactly one spelling for each value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "auth/jose.h"

static struct arena arena;

static void decodes_what_rfc_4648_shows(void **state)
{
    (void)state;
    static const char *const ROWS[][2] = {
        {"", ""},           {"Zg", "f"},          {"Zm8", "fo"},         {"Zm9v", "foo"},
        {"Zm9vYg", "foob"}, {"Zm9vYmE", "fooba"}, {"Zm9vYmFy", "foobar"}};
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct str bytes;
        struct buf text = {0};
        assert_true(auth_base64url_decode(str_from(ROWS[i][0]), &arena, &bytes));
        assert_true(str_eq(bytes, str_from(ROWS[i][1])));
        auth_base64url_encode(bytes, &text);
        assert_true(str_eq(buf_str(&text), str_from(ROWS[i][0])));
        buf_deinit(&text);
    }
}

static void every_byte_survives_the_way_there_and_back(void **state)
{
    (void)state;
    char all[259];
    for (size_t len = 256; len <= sizeof(all); len++) {
        struct str bytes;
        struct buf text = {0};
        for (size_t i = 0; i < len; i++)
            all[i] = (char)i;
        auth_base64url_encode(str_of(all, len), &text);
        assert_true(auth_base64url_decode(buf_str(&text), &arena, &bytes));
        assert_true(str_eq(bytes, str_of(all, len)));
        buf_deinit(&text);
    }
}

static void refuses_padding_other_alphabets_white_space_and_stray_bits(void **state)
{
    (void)state;
    static const char *const ROWS[] = {"Zg==",      "Zm8=",   "Zm9v====", "Z",    "Zm9vZ", "Zm9+", "Zm9/",
                                       " Zm9v",     "Zm9v ",  "Zm\n9v",   "Zm.9", "Zh",    "Zm9",  "Zn9",
                                       "Z\xc3\xa9", "Zm9v\t", "Zm9vYh",   "_x",   "-_-"};
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct str bytes;
        if (auth_base64url_decode(str_from(ROWS[i]), &arena, &bytes))
            fail_msg("decoded %s", ROWS[i]);
    }
    struct str bytes;
    assert_false(auth_base64url_decode(str_of("Zm\0v", 4), &arena, &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_what_rfc_4648_shows),
        cmocka_unit_test(every_byte_survives_the_way_there_and_back),
        cmocka_unit_test(refuses_padding_other_alphabets_white_space_and_stray_bits),
    };
    arena = ARENA(1024);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_deinit(&arena);
    return failed;
}
