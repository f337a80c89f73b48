/* Shared by the cache's tests: cmocka's preamble, shorthands, and a small generator whose runs can be
 * repeated. */
#ifndef FRESHET_TESTS_CACHE_HELPERS_H
#define FRESHET_TESTS_CACHE_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/internal.h"

static inline void assert_str(struct str got, struct str expected)
{
    assert_int_equal(got.len, expected.len);
    assert_memory_equal(got.ptr, expected.ptr, expected.len);
}

static inline void put(struct cache_builder *builder, struct str key, struct str payload)
{
    struct error error;

    assert_int_equal(cache_builder_put(builder, key, payload, &error), STATUS_OK);
}

static inline bool hash128_eq(struct hash128 a, struct hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

/* Chunks are the last to go of a snapshot, and large ones go on a thread of their own: waits for that, 10 s
 * at most. */
static inline void assert_all_freed(void)
{
    for (int i = 0; i < 10000 && cache_chunks_mapped() > 0; i++)
        usleep(1000);
    assert_int_equal(cache_chunks_mapped(), 0);
}

/* xorshift64*: the same numbers on every machine. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static inline size_t below(uint64_t *state, size_t limit)
{
    return (size_t)(next_random(state) % limit);
}

/* "key-000042" in the caller's buffer. */
#define NAME_BYTES 32
static inline struct str name(char out[NAME_BYTES], const char *prefix, size_t number)
{
    return str_of(out, (size_t)snprintf(out, NAME_BYTES, "%s-%06zu", prefix, number));
}

/* A snapshot from nothing with key-0 … key-(count-1), payload = the number. */
static inline struct cache_snapshot *load_numbers(size_t count, int64_t version)
{
    struct cache_builder *builder = cache_builder_create(NULL, 0);
    char key[NAME_BYTES], payload[NAME_BYTES];

    for (size_t i = 0; i < count; i++) {
        size_t number = (i * 7919) % count; /* not in order, where 7919 does not divide count */
        int len = snprintf(payload, sizeof(payload), "%zu", number);
        put(builder, name(key, "key", number), str_of(payload, (size_t)len));
    }
    return cache_builder_finish(builder, version);
}

#endif
