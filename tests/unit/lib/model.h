/* Model-based random tests: a machine of src/ and a plain model of it take the same random operations, and are compared after each.
 *
 *     static const struct model_operation operations[] = {{"ask", 4, ask}, {"answer", 3, answer}, …};
 *     int main(void)
 *     {
 *         return model_main(&(struct model){.name = "lookups", .seeds = 2000, .steps = 60, .begin = begin, .check = check,
 *                                           .end = end, MODEL_OPERATIONS(operations)});
 *     }
 *
 * A run depends on its seed alone. When one fails (a check, a sanitizer, a signal, a hang), its number of steps is halved as often
 * as it still fails, and its operations are printed. Environment:
 *     FRESHET_SEEDS=100000  so many runs            FRESHET_SEED=17  this run alone, with its operations on stderr
 *     FRESHET_STEPS=30      so many steps in a run */
#ifndef FRESHET_TESTS_LIB_MODEL_H
#define FRESHET_TESTS_LIB_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_operation {
    const char *name;
    unsigned weight;
    void (*run)(void);
};

struct model {
    const char *name;
    unsigned seeds, steps;
    void (*open)(void), (*close)(void); /* optional: before the first run, after the last one */
    void (*begin)(void);
    void (*check)(void); /* after each step */
    void (*end)(void);
    const struct model_operation *operations;
    size_t operation_count;
};
#define MODEL_OPERATIONS(table) .operations = (table), .operation_count = sizeof(table) / sizeof(table)[0]

int model_main(const struct model *model);
/* The same in this process, within a test of a program that has started servers: a run that fails is not shortened. */
void model_run_here(const struct model *model);

/* ---- within a run ---- */
uint64_t model_below(uint64_t bound); /* a random number */
bool model_one_in(unsigned count);
void model_note(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* for the list of operations */
_Noreturn void model_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define MODEL_CHECK(condition, ...)                      \
    do {                                                 \
        if (!(condition))                                \
            model_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

/* ---- time, in programs that are linked with model_wrap_args: it stands still unless it is moved; each run begins at the same ----
 * There the randomness of src/ is the run's as well. */
int64_t model_now_ns(void);
void model_pass_ms(int64_t ms);

#endif
