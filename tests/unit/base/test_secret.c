/* Secrets in files: what is taken of a file, and which files are refused without a word of their content. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/secret.h"

static char path[64];

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/freshet-secret-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static enum status read_back(const char *bytes, size_t len, struct secret *secret, struct error *error)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fclose(file);
    return secret_read(secret, path, error);
}

static void test_one_newline_at_the_end_is_not_part_of_the_secret(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"sesame", "sesame"},       {"sesame\n", "sesame"},         {"sesame\r\n", "sesame"},
        {"sesame\n\n", "sesame\n"}, {" two words ", " two words "}, {"sesame\r", "sesame\r"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct secret secret;
        memset(&secret, '\n', sizeof secret); /* what was there before must not count */
        assert_int_equal(read_back(rows[i][0], strlen(rows[i][0]), &secret, NULL), STATUS_OK);
        assert_string_equal(secret.text, rows[i][1]);
        secret_wipe(&secret);
        assert_string_equal(secret.text, "");
    }
}

static void test_a_long_secret_is_read_whole_and_a_longer_one_is_refused(void **state)
{
    (void)state;
    char bytes[SECRET_BYTES_MAX + 1];
    struct secret secret;
    struct error error = {0};
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(read_back(bytes, SECRET_BYTES_MAX, &secret, NULL), STATUS_OK);
    assert_int_equal(strlen(secret.text), SECRET_BYTES_MAX);
    assert_int_equal(read_back(bytes, sizeof bytes, &secret, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "longer than 4096"));
    assert_string_equal(secret.text, "");
}

static void test_what_is_no_secret_is_refused_by_name(void **state)
{
    (void)state;
    struct secret secret;
    struct error error = {0};
    assert_int_equal(read_back("", 0, &secret, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "it is empty"));
    assert_int_equal(read_back("\n", 1, &secret, &error), STATUS_CONFIG);
    assert_int_equal(read_back("half\0secret", 11, &secret, &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, path));
    assert_null(strstr(error.message, "half"));
    assert_string_equal(secret.text, "");
    assert_int_equal(secret_read(&secret, "/no/such/file", &error), STATUS_CONFIG);
    assert_non_null(strstr(error.message, "/no/such/file cannot be read: No such file"));
    assert_int_equal(secret_read(&secret, "/", &error), STATUS_CONFIG);
}

static void test_a_pipe_without_a_writer_does_not_hold_the_caller(void **state)
{
    (void)state;
    struct secret secret;
    struct error error = {0};
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(secret_read(&secret, path, &error), STATUS_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_newline_at_the_end_is_not_part_of_the_secret, make_file,
                                        remove_file),
        cmocka_unit_test_setup_teardown(test_a_long_secret_is_read_whole_and_a_longer_one_is_refused,
                                        make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_what_is_no_secret_is_refused_by_name, make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_a_pipe_without_a_writer_does_not_hold_the_caller, make_file,
                                        remove_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
