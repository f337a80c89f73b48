/* Allocation: never NULL, and the end of the process with one log line (C9) when there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"

/* The sanitizers would end the process themselves, before our own answer to a failed malloc(). */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:handle_abort=0";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1:handle_abort=0";
}

static void nothing_is_still_a_pointer(void **state)
{
    (void)state;
    void *a = memory_alloc(0), *b = memory_zalloc(0), *c = memory_realloc(NULL, 0);

    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    free(a);
    free(b);
    free(c);
}

static void zeroed_grown_and_aligned(void **state)
{
    (void)state;
    unsigned char *zeroed = memory_zalloc(100);

    for (int i = 0; i < 100; i++)
        assert_int_equal(zeroed[i], 0);
    zeroed[99] = 7;
    zeroed = memory_realloc_array(zeroed, 50, 4);
    assert_int_equal(zeroed[99], 7);
    free(zeroed);
    void *aligned = memory_aligned(128, 10);
    assert_int_equal((uintptr_t)aligned % 128, 0);
    free(aligned);
}

/* Runs `exhaust` in a child; gives how it ended and the first of what it logged. */
static int run_child(void (*exhaust)(void), char *logged, size_t size)
{
    int pipe_fds[2], how;

    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0) {
        log_set_fd(pipe_fds[1]);
        signal(SIGABRT, SIG_DFL);
        exhaust();
        _exit(0);
    }
    close(pipe_fds[1]);
    ssize_t got = read(pipe_fds[0], logged, size - 1);
    logged[got > 0 ? got : 0] = '\0';
    close(pipe_fds[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    return how;
}

static volatile size_t huge = SIZE_MAX / 4;

static void want_too_much(void)
{
    free(memory_alloc(huge));
}

static void overflow_the_product(void)
{
    free(memory_realloc_array(NULL, huge, 16));
}

static void assert_aborts_with_a_line(void (*exhaust)(void))
{
    char logged[512];
    int how = run_child(exhaust, logged, sizeof(logged));

    assert_true(WIFSIGNALED(how));
    assert_int_equal(WTERMSIG(how), SIGABRT);
    assert_non_null(strstr(logged, "\"event\":\"out_of_memory\""));
    assert_ptr_equal(strchr(logged, '\n'), logged + strlen(logged) - 1);
}

static void out_of_memory_ends_the_process(void **state)
{
    (void)state;
    assert_aborts_with_a_line(want_too_much);
    assert_aborts_with_a_line(overflow_the_product);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_still_a_pointer),
        cmocka_unit_test(zeroed_grown_and_aligned),
        cmocka_unit_test(out_of_memory_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
