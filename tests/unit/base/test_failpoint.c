/* Failpoints: what the rules mean, and that nonsense is refused rather than ignored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"

/* Hits "a.b" this often in a child with these rules in its environment; gives how the child ended. A child that is
 * stopped is ended here. */
static int child_status(const char *rules, int hits)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        log_set_fd(open("/dev/null", O_WRONLY));
        signal(SIGABRT, SIG_DFL); /* not the sanitizer's */
        setenv("FRESHET_FAILPOINTS", rules, 1);
        for (int i = 0; i < hits; i++)
            FAILPOINT("a.b");
        _exit(7);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return status;
}

static void assert_survives(const char *rules, int hits)
{
    int status = child_status(rules, hits);

    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
}

static void kill_stop_and_abort(void **state)
{
    (void)state;
    int status = child_status("a.b=kill", 1);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    status = child_status("x.y=kill,a.b=abort", 1);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    status = child_status("a.b=stop", 1);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(WSTOPSIG(status), SIGSTOP);
}

static void other_names_are_left_alone(void **state)
{
    (void)state;
    assert_survives("", 1);
    assert_survives("a.bc=kill,a=kill,b=kill", 5);
}

static void only_the_seventh_time(void **state)
{
    (void)state;
    assert_survives("a.b=kill#7", 6);
    assert_true(WIFSIGNALED(child_status("a.b=kill#7", 7)));
}

static void with_a_probability(void **state)
{
    (void)state;
    assert_survives("a.b=kill:0", 1000);
    /* Not hit in 20,000 times: once in 10^87 runs. */
    assert_true(WIFSIGNALED(child_status("a.b=kill:0.01", 20000)));
    assert_survives("a.b=kill:0#3", 10);
}

static void sleeps_as_long_as_told(void **state)
{
    (void)state;
    int64_t before = clock_mono_ns();
    assert_survives("a.b=sleep-30", 2);
    assert_true(clock_mono_ns() - before >= 60 * CLOCK_NS_PER_MS);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    static const char *const nonsense[] = {
        "a.b",        "a.b=",       "=kill",       "a.b=die",           "a.b=kill,",
        ",a.b=kill",  "a.b=kill#0", "a.b=kill#x",  "a.b=kill:2",        "a.b=kill:-1",
        "a.b=kill:",  "a.b=sleep-", "a.b=sleep-x", "a.b=sleep-9999999", "a.b=kill:0.5x",
        "a.b = kill",
    };

    for (size_t i = 0; i < sizeof(nonsense) / sizeof(*nonsense); i++) {
        int status = child_status(nonsense[i], 1);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 2)
            fail_msg("taken: %s", nonsense[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_stop_and_abort),    cmocka_unit_test(other_names_are_left_alone),
        cmocka_unit_test(only_the_seventh_time),  cmocka_unit_test(with_a_probability),
        cmocka_unit_test(sleeps_as_long_as_told), cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
