/* The arena: alignment, lifetimes, and that a reset keeps its first block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"

static void allocations_are_aligned_and_apart(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    unsigned char *memory[300];

    assert_null(arena.first);
    for (unsigned i = 0; i < 300; i++) {
        memory[i] = arena_alloc(&arena, i * 7);
        assert_int_equal((uintptr_t)memory[i] % 16, 0);
        memset(memory[i], (int)i & 0xFF, i * 7);
    }
    for (unsigned i = 0; i < 300; i++)
        for (unsigned at = 0; at < i * 7; at++)
            assert_int_equal(memory[i][at], i & 0xFF);
    arena_deinit(&arena);
}

static void reset_reuses_the_first_block(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);

    arena_reset(&arena);
    void *first = arena_alloc(&arena, 100);
    for (int i = 0; i < 100; i++)
        (void)arena_alloc(&arena, 200);
    (void)arena_alloc(&arena, 100000);
    arena_reset(&arena);
    assert_ptr_equal(arena_alloc(&arena, 100), first);
    assert_ptr_equal(arena.first, arena.current);
    arena_deinit(&arena);
    assert_null(arena.first);
    assert_non_null(arena_alloc(&arena, 1)); /* usable again */
    arena_deinit(&arena);
}

static void a_big_one_leaves_the_block_to_the_small(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);

    char *before = arena_alloc(&arena, 16);
    (void)arena_alloc(&arena, 5000);
    char *after = arena_alloc(&arena, 16);
    assert_ptr_equal(after, before + 16);
    arena_deinit(&arena);
}

static void zeroed_even_after_reset(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);

    memset(arena_alloc(&arena, 500), 'x', 500);
    arena_reset(&arena);
    unsigned char *zeroed = arena_zalloc(&arena, 500);
    for (int i = 0; i < 500; i++)
        assert_int_equal(zeroed[i], 0);
    arena_deinit(&arena);
}

static void texts_end_in_nul(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);

    struct str copy = arena_str(&arena, str_of("abcdef", 3)), empty = arena_str(&arena, STR_NONE);
    struct str printed = arena_printf(&arena, "%s-%d", "x", 12), none = arena_printf(&arena, "%s", "");
    assert_string_equal(copy.ptr, "abc");
    assert_int_equal(copy.len, 3);
    assert_string_equal(empty.ptr, "");
    assert_string_equal(printed.ptr, "x-12");
    assert_int_equal(printed.len, 4);
    assert_string_equal(none.ptr, "");
    assert_int_equal(arena_printf(&arena, "%*d", 20000, 1).len, 20000);
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned_and_apart),
        cmocka_unit_test(reset_reuses_the_first_block),
        cmocka_unit_test(a_big_one_leaves_the_block_to_the_small),
        cmocka_unit_test(zeroed_even_after_reset),
        cmocka_unit_test(texts_end_in_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
