/* Runs are made in a child process, which notes its seed in shared memory: so a run that crashes or hangs is known, too. */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

enum { HANGS_S = 30 };

static struct place { /* where the child is */
    uint64_t seed;    /* 0: before the first run or after the last one */
    unsigned step;
} * at;
static uint64_t random_state;
static int64_t now_ns;
static bool is_traced, has_hung, is_here; /* here: without a child process */

/* ThreadSanitizer calls it before it prints a report, and goes on afterwards. */
void __tsan_on_report(const void *report);
void __tsan_on_report(const void *report)
{
    (void)report;
    if (at)
        fprintf(stderr, "in the run of seed %llu:\n", (unsigned long long)at->seed);
}

/* ---- within a run ---- */

uint64_t model_below(uint64_t bound) /* splitmix64 */
{
    uint64_t value = random_state += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return (value ^ value >> 31) % bound;
}

bool model_one_in(unsigned count)
{
    return model_below(count) == 0;
}

void model_note(const char *format, ...)
{
    va_list args;
    if (!is_traced)
        return;
    va_start(args, format);
    fputs("    ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

void model_fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    if (is_here)
        fprintf(stderr, "the run of seed %llu fails. Repeat: FRESHET_SEED=%llu\n",
                (unsigned long long)at->seed, (unsigned long long)at->seed);
    _exit(1);
}

/* ---- time ---- */

int64_t model_now_ns(void)
{
    return now_ns;
}

void model_pass_ms(int64_t ms)
{
    now_ns += ms * 1000000;
}

/* What src/base calls in programs that are linked with model_wrap_args. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int64_t epoch_s = clock == CLOCK_REALTIME ? 1700000000 : 0;
    *now = (struct timespec){.tv_sec = epoch_s + now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
    return 0;
}

/* What src/base waits with. Nothing runs beside a model, so a wait ends with its deadline. */
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until);
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until)
{
    (void)cond, (void)mutex, (void)clock;
    int64_t until_ns = until->tv_sec * INT64_C(1000000000) + until->tv_nsec;
    MODEL_CHECK(until_ns < INT64_MAX / 2, "waits for what nobody does");
    now_ns = until_ns > now_ns ? until_ns : now_ns;
    return ETIMEDOUT;
}

ssize_t __wrap_getrandom(void *buffer, size_t size, unsigned flags);
ssize_t __wrap_getrandom(void *buffer, size_t size, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)buffer)[i] = (unsigned char)model_below(256);
    return (ssize_t)size;
}

/* ---- runs ---- */

static void run_step(const struct model *model)
{
    const struct model_operation *operation = model->operations;
    unsigned all = 0;
    for (size_t i = 0; i < model->operation_count; i++)
        all += model->operations[i].weight;
    unsigned pick = (unsigned)model_below(all);
    for (; pick >= operation->weight; operation++)
        pick -= operation->weight;
    if (is_traced)
        fprintf(stderr, "%4u  %s\n", at->step, operation->name);
    operation->run();
    model->check();
}

static void run(const struct model *model, uint64_t seed, unsigned steps)
{
    alarm(HANGS_S);
    random_state = seed * UINT64_C(0xd1342543de82ef95);
    now_ns = INT64_C(1000000000000);
    *at = (struct place){seed, 0};
    model->begin();
    for (; at->step < steps; at->step++)
        run_step(model);
    if (is_traced)
        fputs("      the end\n", stderr);
    model->end();
}

static _Noreturn void run_all(const struct model *model, uint64_t first, uint64_t count, unsigned steps)
{
    (void)hash_seeded(STR("")); /* draws the process's seed of hashes: the same for all runs */
    if (model->open)
        model->open();
    for (uint64_t seed = first; seed < first + count; seed++)
        run(model, seed, steps);
    *at = (struct place){0};
    if (model->close)
        model->close();
    exit(0); /* with the look for leaks */
}

static bool fails(const struct model *model, uint64_t first, uint64_t count, unsigned steps, bool is_silent)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (is_silent) {
            int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
            dup2(nothing, STDERR_FILENO);
            dup2(nothing, STDOUT_FILENO);
        }
        run_all(model, first, count, steps);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        model_fail(__FILE__, __LINE__, "no child process");
    if (!is_silent && WIFSIGNALED(status))
        fprintf(stderr, "%s: ended by: %s\n", model->name, strsignal(WTERMSIG(status)));
    has_hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    return status != 0;
}

static unsigned number(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

/* A run is the same under ThreadSanitizer, but takes several times as long. */
static unsigned seeds_of(const struct model *model)
{
#ifdef __SANITIZE_THREAD__
    return number("FRESHET_SEEDS", model->seeds / 4 + 1);
#else
    return number("FRESHET_SEEDS", model->seeds);
#endif
}

void model_run_here(const struct model *model)
{
    static struct place here;
    unsigned seeds = seeds_of(model), steps = number("FRESHET_STEPS", model->steps),
             seed = number("FRESHET_SEED", 0);

    at = &here;
    is_here = true;
    is_traced = seed > 0;
    for (uint64_t each = seed ? seed : 1; each <= (seed ? seed : seeds); each++)
        run(model, each, steps);
    alarm(0);
}

int model_main(const struct model *model)
{
    unsigned seeds = seeds_of(model), steps = number("FRESHET_STEPS", model->steps);
    uint64_t seed = number("FRESHET_SEED", 0);

    at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        model_fail(__FILE__, __LINE__, "no memory");
    is_traced = seed > 0;
    if (!fails(model, is_traced ? seed : 1, is_traced ? 1 : seeds, steps, false)) {
        printf("%s: %u runs of %u steps\n", model->name, is_traced ? 1 : seeds, steps);
        return 0;
    }
    if (is_traced)
        return 1;
    if (at->seed == 0) {
        fprintf(stderr, "%s: failed before the first run or after the last one, of %u\n", model->name, seeds);
        return 1;
    }
    seed = at->seed;
    steps = at->step < steps ? at->step + 1 : steps;
    while (steps > 1 && !has_hung && fails(model, seed, 1, steps / 2, true))
        steps /= 2;
    fprintf(stderr, "%s: the run of seed %llu fails. Repeat: FRESHET_SEED=%llu FRESHET_STEPS=%u\n",
            model->name, (unsigned long long)seed, (unsigned long long)seed, steps);
    is_traced = true;
    if (!fails(model, seed, 1, steps, false))
        fprintf(stderr, "%s: not this time: the seed alone does not decide it\n", model->name);
    return 1;
}
