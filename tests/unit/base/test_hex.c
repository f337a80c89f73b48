/* Hexadecimal digits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

static void a_number_is_sixteen_digits(void **state)
{
    (void)state;
    char text[17] = "", other[17] = "";
    uint64_t number = 0;

    for (int i = 0; i < 1000; i++, number = number * UINT64_C(6364136223846793005) + 1442695040888963407u) {
        assert_ptr_equal(hex_put_u64(text, number), text + 16);
        snprintf(other, sizeof other, "%016llx", (unsigned long long)number);
        assert_string_equal(text, other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_of_either_case),
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(a_number_is_sixteen_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
