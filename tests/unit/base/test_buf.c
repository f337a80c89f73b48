/* The growable buffer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"

static void assert_content(const struct buf *buf, struct str expected)
{
    assert_int_equal(buf_len(buf), expected.len);
    assert_true(str_eq(buf_str(buf), expected));
}

static void an_empty_buffer_holds_nothing(void **state)
{
    (void)state;
    struct buf buf = {0};

    buf_put(&buf, NULL, 0);
    buf_put_str(&buf, STR_NONE);
    assert_content(&buf, STR(""));
    assert_null(buf.data);
    assert_non_null(buf_reserve(&buf, 0));
    buf_deinit(&buf);
    assert_null(buf.data);
}

static void appending(void **state)
{
    (void)state;
    struct buf buf = {0};

    buf_put(&buf, "ab", 2);
    buf_put_char(&buf, '-');
    buf_put_u64(&buf, 0);
    buf_put_char(&buf, '-');
    buf_put_u64(&buf, UINT64_MAX);
    buf_printf(&buf, "-%s%d", "x", -5);
    buf_printf(&buf, "%s", "");
    assert_content(&buf, STR("ab-0-18446744073709551615-x-5"));
    buf_clear(&buf);
    assert_content(&buf, STR(""));
    buf_deinit(&buf);
}

static void a_long_printf_fits(void **state)
{
    (void)state;
    struct buf buf = {0};

    buf_printf(&buf, "%*d", 100000, 1);
    assert_int_equal(buf_len(&buf), 100000);
    assert_int_equal(buf.data[99999], '1');
    buf_deinit(&buf);
}

/* A stream through the buffer keeps its order and the buffer's size, however reads and writes fall. */
static void consuming_keeps_order_and_memory(void **state)
{
    (void)state;
    struct buf buf = {0};
    unsigned char in = 0, out = 0;

    for (unsigned round = 0; round < 5000; round++) {
        for (unsigned i = 0; i < 1 + round % 37; i++)
            buf_put_char(&buf, (char)in++);
        size_t take = round % 3 ? buf_len(&buf) : buf_len(&buf) / 2;
        for (size_t i = 0; i < take; i++)
            assert_int_equal((unsigned char)buf.data[buf.start + i], out++);
        buf_consume(&buf, take);
    }
    assert_true(buf.capacity <= 512);
    buf_consume(&buf, buf_len(&buf));
    assert_int_equal(buf.start, 0);
    buf_deinit(&buf);
}

static void reserve_and_commit(void **state)
{
    (void)state;
    struct buf buf = {0};

    buf_put(&buf, "head", 4);
    memset(buf_reserve(&buf, 5000), 'x', 5000);
    buf_commit(&buf, 3);
    assert_content(&buf, STR("headxxx"));
    buf_consume(&buf, 2);
    memset(buf_reserve(&buf, 9000), 'y', 9000);
    buf_commit(&buf, 1);
    assert_content(&buf, STR("adxxxy"));
    buf_deinit(&buf);
}

static void doubles_are_short_and_exact(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {0.005, "0.005"},
                 {0.1, "0.1"},
                 {-2.5, "-2.5"},
                 {1e21, "1e+21"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {INFINITY, "+Inf"},
                 {-INFINITY, "-Inf"},
                 {NAN, "NaN"},
                 {123456789, "123456789"}};
    static const double exact[] = {DBL_MAX, DBL_MIN, DBL_EPSILON, 4.9e-324, 1.0 / 3, 9007199254740993.0};
    struct buf buf = {0};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buf_clear(&buf);
        buf_put_double(&buf, cases[i].value);
        assert_content(&buf, str_from(cases[i].text));
    }
    for (size_t i = 0; i < sizeof(exact) / sizeof(exact[0]); i++) {
        buf_clear(&buf);
        buf_put_double(&buf, exact[i]);
        buf_put_char(&buf, '\0');
        assert_true(strtod(buf.data, NULL) == exact[i]);
    }
    buf_deinit(&buf);
}

static void a_file_is_read_to_its_end_or_past_the_limit(void **state)
{
    (void)state;
    struct buf buf = {0};
    FILE *file = tmpfile();
    char path[32];

    assert_non_null(file);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    for (int i = 0; i < 100000; i++)
        assert_int_equal(fputc('a' + i % 26, file), 'a' + i % 26);
    assert_int_equal(fflush(file), 0);
    assert_true(buf_read_file(&buf, path, 200000));
    assert_int_equal(buf_len(&buf), 100000);
    assert_int_equal(buf_str(&buf).ptr[99999], 'a' + 99999 % 26);
    buf_clear(&buf);
    assert_true(buf_read_file(&buf, path, 50000));
    assert_in_range(buf_len(&buf), 50001, 99999);
    fclose(file);
    assert_false(buf_read_file(&buf, path, 200000));
    buf_deinit(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_buffer_holds_nothing),
        cmocka_unit_test(appending),
        cmocka_unit_test(a_long_printf_fits),
        cmocka_unit_test(consuming_keeps_order_and_memory),
        cmocka_unit_test(reserve_and_commit),
        cmocka_unit_test(doubles_are_short_and_exact),
        cmocka_unit_test(a_file_is_read_to_its_end_or_past_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
