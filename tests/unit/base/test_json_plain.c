/* The plain-C way of scanning strings, which a machine without SSE2 takes; test_json proves the other. */
#undef __SSE2__

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json_plain.h"

static void every_byte_is_seen_at_every_distance(void **state)
{
    (void)state;
    char text[40];

    for (size_t at = 0; at < sizeof(text); at++) {
        for (int c = 0; c < 256; c++) {
            bool plain = c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
            memset(text, '!', sizeof(text)); /* next to the quote, where a borrow would show */
            text[at] = (char)c;
            const char *expected = plain ? text + sizeof(text) : text + at;
            assert_ptr_equal(json_plain_end(text, text + sizeof(text)), expected);
        }
    }
    assert_ptr_equal(json_plain_end(text, text), text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_seen_at_every_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
