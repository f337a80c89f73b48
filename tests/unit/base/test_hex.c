/* Hexadecimal digits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/hex.h"

static void digits_of_either_case(void **state)
{
    (void)state;
    static const char digits[] = "0123456789abcdefABCDEF";
    int known = 0;

    for (int c = -128; c < 128; c++)
        known += hex_digit((char)c) >= 0;
    assert_int_equal(known, 22);
    for (int i = 0; i < 22; i++)
        assert_int_equal(hex_digit(digits[i]), i < 16 ? i : i - 6);
}

static void there_and_back(void **state)
{
    (void)state;
    const uint8_t bytes[] = {0x00, 0x0F, 0xF0, 0xAB};
    uint8_t back[4];
    char text[8];

    assert_ptr_equal(hex_put(text, bytes, 4), text + 8);
    assert_memory_equal(text, "000ff0ab", 8);
    assert_true(hex_get(text, back, 4));
    assert_memory_equal(back, bytes, 4);
    assert_false(hex_get("000ff0ag", back, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_of_either_case),
        cmocka_unit_test(there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
