/* Scratch arrays: what is in them stays when they grow, and loads beside each other have their own (R13). */
#include "helpers.h"

#include <pthread.h>

#define PAGE 4096

static void fill(unsigned char *scratch, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        scratch[i] = (unsigned char)(i / PAGE + i);
}

static bool is_filled(const unsigned char *scratch, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (scratch[i] != (unsigned char)(i / PAGE + i))
            return false;
    return true;
}

/* From one page to 64, as a load's list of rows grows. */
static bool grow_once(void)
{
    size_t size = PAGE;
    unsigned char *scratch = cache_scratch_grow(NULL, 0, size);

    fill(scratch, 0, size);
    for (; size < (size_t)64 * PAGE; size *= 2) {
        scratch = cache_scratch_grow(scratch, size, 2 * size);
        fill(scratch, size, 2 * size);
    }
    bool good = is_filled(scratch, size);
    cache_scratch_free(scratch, size);
    return good;
}

static void growing_keeps_the_content(void **state)
{
    (void)state;
    assert_true(grow_once());
}

static void *grow_often(void *result)
{
    bool *good = result;

    *good = true;
    for (int i = 0; i < 200; i++)
        *good &= grow_once();
    return NULL;
}

/* Under ThreadSanitizer too: an address that another thread gave back is a new one. */
static void two_threads_never_share_one(void **state)
{
    (void)state;
    pthread_t threads[2];
    bool good[2];

    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, grow_often, &good[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(good[0] && good[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growing_keeps_the_content),
        cmocka_unit_test(two_threads_never_share_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
