/* Status table and errors: C2 and C6 lean on every row being whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"

static void every_row_is_whole(void **state)
{
    (void)state;
    for (int i = 0; i < STATUS_COUNT; i++) {
        enum status status = (enum status)i;
        assert_true(strlen(status_name(status)) > 0);
        assert_true(strlen(status_code(status)) > 0);
        assert_true(strlen(status_message(status)) > 0);
        assert_in_range(status_http(status), 200, 599);
    }
    assert_int_equal(status_http(STATUS_OK), 200);
    assert_string_equal(status_name(STATUS_DB_DOWN), "DB_DOWN");
    assert_string_equal(status_code(STATUS_DB_DOWN), "UNAVAILABLE");
    assert_string_equal(status_code(STATUS_INTERNAL), "INTERNAL_ERROR");
    assert_true(status_retryable(STATUS_OVERLOADED));
    assert_false(status_retryable(STATUS_BAD_REQUEST));
}

static void a_number_outside_the_table_reads_as_internal(void **state)
{
    (void)state;
    assert_int_equal(status_http((enum status)STATUS_COUNT), 500);
    assert_string_equal(status_name((enum status)9999), "INTERNAL");
}

static void error_set_fills_and_returns(void **state)
{
    (void)state;
    struct error error = {.field = "old"};

    assert_int_equal(error_set(&error, STATUS_CONFLICT, "%s %d", "number", 7), STATUS_CONFLICT);
    assert_int_equal(error.status, STATUS_CONFLICT);
    assert_string_equal(error.message, "number 7");
    assert_string_equal(error.field, "");
    assert_int_equal(error_set_field(&error, STATUS_BAD_REQUEST, "limit", "too big"), STATUS_BAD_REQUEST);
    assert_string_equal(error.field, "limit");
    assert_int_equal(error_set(NULL, STATUS_IO, "nobody listens"), STATUS_IO);
    assert_int_equal(error_set_field(NULL, STATUS_IO, "f", "nobody listens"), STATUS_IO);
}

static void error_set_may_quote_itself(void **state)
{
    (void)state;
    struct error error;

    (void)error_set_field(&error, STATUS_IO, "path", "inner");
    (void)error_set_field(&error, STATUS_CONFIG, error.field, "outer of %s", error.message);
    assert_string_equal(error.message, "outer of inner");
    assert_string_equal(error.field, "path");
}

static void context_goes_before_the_message(void **state)
{
    (void)state;
    struct error error;

    (void)error_set(&error, STATUS_IO, "no such file");
    assert_int_equal(error_context(&error, "reading %s", "a.yaml"), STATUS_IO);
    assert_string_equal(error.message, "reading a.yaml: no such file");
    assert_int_equal(error_context(NULL, "x"), STATUS_INTERNAL);
}

static void what_does_not_fit_is_cut(void **state)
{
    (void)state;
    struct error error;
    char longer[2000];

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    (void)error_set_field(&error, STATUS_IO, longer, "%s", longer);
    assert_int_equal(strlen(error.message), sizeof(error.message) - 1);
    assert_int_equal(strlen(error.field), sizeof(error.field) - 1);
    (void)error_context(&error, "file");
    assert_int_equal(strlen(error.message), sizeof(error.message) - 1);
    assert_memory_equal(error.message, "file: xxx", 9);
    (void)error_context(&error, "%s", longer);
    assert_true(strlen(error.message) < sizeof(error.message));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_whole),
        cmocka_unit_test(a_number_outside_the_table_reads_as_internal),
        cmocka_unit_test(error_set_fills_and_returns),
        cmocka_unit_test(error_set_may_quote_itself),
        cmocka_unit_test(context_goes_before_the_message),
        cmocka_unit_test(what_does_not_fit_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
