/* C9: one JSON object a line, whole lines only, bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

/* Every test logs into a file of its own, which no path leads to. */
static int log_file = -1;

static int open_log(void **state)
{
    char path[] = "/tmp/freshet-log-XXXXXX";

    (void)state;
    log_file = mkstemp(path);
    if (log_file < 0 || unlink(path) != 0)
        return -1;
    log_set_fd(log_file);
    log_set_level(LOG_LEVEL_INFO);
    return 0;
}

static int close_log(void **state)
{
    (void)state;
    log_set_fd(STDERR_FILENO);
    return close(log_file);
}

static struct str logged(struct arena *arena)
{
    off_t size = lseek(log_file, 0, SEEK_END);
    char *text = arena_alloc(arena, (size_t)size + 1);

    assert_int_equal(pread(log_file, text, (size_t)size, 0), size);
    return str_of(text, (size_t)size);
}

static struct json_value only_line(struct arena *arena)
{
    struct str text = logged(arena);
    struct json_value value;

    assert_true(text.len > 0);
    assert_ptr_equal(memchr(text.ptr, '\n', text.len), text.ptr + text.len - 1);
    assert_int_equal(json_parse(text, 1, &value, NULL), STATUS_OK);
    return value;
}

static void assert_member(const struct json_value *line, const char *name, const char *raw)
{
    struct json_value value;

    assert_true(json_get(line, str_from(name), &value));
    assert_true(str_eq(value.raw, str_from(raw)));
}

static void a_line_is_one_object_with_its_fields_in_order(void **state)
{
    (void)state;
    struct arena arena = ARENA(4096);
    struct json_iter it;
    struct json_value value;
    struct str name;
    int64_t now;
    static const char *const names[] = {"ts", "level", "event", "dictCode", "version", "took", "ok", "odd"};

    log_warn("dictionary_loaded", LOG_STR("dictCode", STR("A\"\n")), LOG_INT("version", INT64_MIN),
             LOG_DOUBLE("took", 0.25), LOG_BOOL("ok", true), LOG_STR("empty", STR("")),
             LOG_CSTR("none", NULL), LOG_DOUBLE("odd", NAN));
    struct json_value line = only_line(&arena);
    json_iter_init(&it, &line);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_true(json_iter_next(&it, &name, &value));
        assert_true(json_str_eq(name, str_from(names[i])));
        if (i == 0)
            assert_true(clock_rfc3339_parse(json_str_decode(value.raw, &arena), &now));
    }
    assert_false(json_iter_next(&it, &name, &value));
    assert_member(&line, "level", "\"warn\"");
    assert_member(&line, "event", "\"dictionary_loaded\"");
    assert_member(&line, "dictCode", "\"A\\\"\\n\"");
    assert_member(&line, "version", "-9223372036854775808");
    assert_member(&line, "took", "0.25");
    assert_member(&line, "ok", "true");
    assert_member(&line, "odd", "null");
    arena_deinit(&arena);
}

static void an_errors_fields(void **state)
{
    (void)state;
    struct arena arena = ARENA(4096);
    struct error error;

    (void)error_set(&error, STATUS_DB_DOWN, "refused");
    log_error("db_lost", LOG_ERROR_FIELDS(&error));
    struct json_value line = only_line(&arena), value;
    assert_member(&line, "status", "\"DB_DOWN\"");
    assert_member(&line, "error", "\"refused\"");
    assert_false(json_get(&line, STR("field"), &value));
    arena_deinit(&arena);
}

static void levels_below_the_least_are_silent(void **state)
{
    (void)state;
    struct arena arena = ARENA(4096);

    log_debug("quiet");
    log_set_level(LOG_LEVEL_ERROR);
    log_info("quiet");
    log_warn("quiet");
    assert_int_equal(logged(&arena).len, 0);
    assert_false(log_enabled(LOG_LEVEL_WARN));
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("loud");
    struct json_value line = only_line(&arena);
    assert_member(&line, "level", "\"debug\"");
    arena_deinit(&arena);
}

static void a_long_value_is_cut_between_characters(void **state)
{
    (void)state;
    static char text[20000];
    struct arena arena = ARENA(4096);
    struct json_value value;

    for (size_t i = 0; i + 3 <= sizeof(text); i += 3)
        memcpy(text + i, "\xE2\x82\xAC", 3);
    log_info("long", LOG_STR("text", str_of(text, sizeof(text))), LOG_INT("after", 1));
    struct json_value line = only_line(&arena);
    assert_true(json_get(&line, STR("text"), &value));
    assert_int_equal(json_str_decode(value.raw, &arena).len, 8192 / 3 * 3);
    assert_member(&line, "after", "1");
    arena_deinit(&arena);
}

/* The worst that fits no line: every byte six times as long, many fields, long names. It stays one valid
 * line. */
static void a_line_never_outgrows_its_buffer(void **state)
{
    (void)state;
    static char text[9000], name[9000];
    struct arena arena = ARENA(4096);

    memset(text, 1, sizeof(text));
    memset(name, 'n', sizeof(name) - 1);
    log_info("stuffed", LOG_STR("a", str_of(text, sizeof(text))), LOG_STR("b", str_of(text, sizeof(text))),
             LOG_STR("c", str_of(text, sizeof(text))), LOG_STR("d", str_of(text, 700)), LOG_INT(name, 1),
             LOG_STR(name, STR("v")), LOG_INT(name, 2), LOG_INT(name, 3), LOG_STR("e", str_of(text, 2000)),
             LOG_STR("f", str_of(text, 2000)), LOG_BOOL("g", true), LOG_DOUBLE("h", 1.0 / 3));
    struct json_value line = only_line(&arena);
    assert_true(line.raw.len < 32768);
    assert_true(line.raw.len > 20000);
    arena_deinit(&arena);
}

/* The last field is as long as every number of bytes around what is left. */
static void a_line_fits_to_the_byte(void **state)
{
    (void)state;
    static char text[8192];
    struct arena arena = ARENA(65536);
    size_t longest = 0;

    memset(text, 'x', sizeof(text));
    for (size_t len = sizeof(text) - 200; len <= sizeof(text); len++) {
        struct str full = str_of(text, sizeof(text)), last = str_of(text, len);
        assert_int_equal(ftruncate(log_file, 0), 0);
        assert_int_equal(lseek(log_file, 0, SEEK_SET), 0);
        log_info("full", LOG_STR("a", full), LOG_STR("b", full), LOG_STR("c", full), LOG_STR("d", last));
        size_t line_len = only_line(&arena).raw.len;
        longest = line_len > longest ? line_len : longest;
        arena_reset(&arena);
    }
    assert_int_equal(longest, 32768 - 1); /* and its line feed */
    arena_deinit(&arena);
}

static void a_failing_write_is_forgotten(void **state)
{
    (void)state;
    int closed = dup(STDERR_FILENO);

    close(closed);
    log_set_fd(closed);
    errno = ENOENT;
    log_error("lost");
    assert_int_equal(errno, ENOENT);
}

static void *write_many(void *argument)
{
    char text[301];

    memset(text, *(const char *)argument, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    for (int i = 0; i < 200; i++)
        log_info("threads", LOG_CSTR("text", text));
    return NULL;
}

static void lines_of_threads_do_not_mix(void **state)
{
    (void)state;
    pthread_t threads[4];
    static const char letters[] = "abcd";
    struct arena arena = ARENA(4096);
    struct str line;
    unsigned lines = 0;

    /* a file's offset is shared by its writers only when appending */
    assert_int_equal(fcntl(log_file, F_SETFL, O_APPEND), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)(uintptr_t)&letters[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    struct str rest = logged(&arena);
    while (str_split(&rest, '\n', &line) && line.len > 0) {
        struct json_value value, text;
        assert_int_equal(json_parse(line, 1, &value, NULL), STATUS_OK);
        assert_true(json_get(&value, STR("text"), &text));
        for (size_t i = 1; i < text.raw.len - 1; i++)
            assert_int_equal(text.raw.ptr[i], text.raw.ptr[1]);
        lines++;
    }
    assert_int_equal(lines, 800);
    arena_deinit(&arena);
}

/* A line of log over a pipe that nobody reads, and one over a socket: neither waits. */
static void a_reader_that_stands_still_loses_lines(int reader, int writer)
{
    char read_bytes[256 * 1024];
    ssize_t got;

    log_set_fd(writer);
    log_never_wait();
    assert_int_equal(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 10000; i++)
        log_info("filler",
                 LOG_CSTR("text", "a line of about a hundred bytes, so that no buffer takes them all"));
    while (read(reader, read_bytes, sizeof(read_bytes)) > 0)
        ;
    log_info("again");
    got = read(reader, read_bytes, sizeof(read_bytes) - 1);
    assert_true(got > 0);
    read_bytes[got] = '\0';
    assert_non_null(strstr(read_bytes, "\"event\":\"again\""));
    assert_non_null(strstr(read_bytes, "\"event\":\"log_lines_lost\",\"lines\":"));
}

static void a_stalled_reader_never_holds_up_the_program(void **state)
{
    (void)state;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    a_reader_that_stands_still_loses_lines(ends[0], ends[1]);
    assert_int_equal(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0); /* others may share it */
    close(ends[0]), close(ends[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    a_reader_that_stands_still_loses_lines(ends[0], ends[1]);
    close(ends[0]), close(ends[1]);
    log_set_fd(log_file);
    log_never_wait();
}

/* As in a container: standard error is a pipe of root's, and the process is another user. It would wait for the reader for ever. */
static void a_pipe_of_another_user_never_holds_up_the_program(void **state)
{
    (void)state;
    int ends[2], status = 0;

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fchmod(ends[1], 0), 0); /* where the test does not run as root */
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        log_set_fd(ends[1]);
        log_never_wait();
        for (int i = 0; i < 10000; i++)
            log_info("filler", LOG_CSTR("text", "a line that nobody reads"));
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ends[0]), close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_is_one_object_with_its_fields_in_order, open_log, close_log),
        cmocka_unit_test_setup_teardown(an_errors_fields, open_log, close_log),
        cmocka_unit_test_setup_teardown(levels_below_the_least_are_silent, open_log, close_log),
        cmocka_unit_test_setup_teardown(a_long_value_is_cut_between_characters, open_log, close_log),
        cmocka_unit_test_setup_teardown(a_line_never_outgrows_its_buffer, open_log, close_log),
        cmocka_unit_test_setup_teardown(a_line_fits_to_the_byte, open_log, close_log),
        cmocka_unit_test_setup_teardown(a_failing_write_is_forgotten, open_log, close_log),
        cmocka_unit_test_setup_teardown(lines_of_threads_do_not_mix, open_log, close_log),
        cmocka_unit_test_setup_teardown(a_stalled_reader_never_holds_up_the_program, open_log, close_log),
        cmocka_unit_test_setup_teardown(a_pipe_of_another_user_never_holds_up_the_program, open_log,
                                        close_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
