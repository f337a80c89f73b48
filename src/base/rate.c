/* Token buckets as times. The table is only a set of words: every change is one compare-and-swap of one of them. */
#include "base/rate.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

enum { PLACES = 8, TIME_BITS = 48, UNIT_SHIFT = 8 /* 256 ns */ };
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)
#define AHEAD_MAX ((uint64_t)(2 * RATE_FILL_MS_MAX * CLOCK_NS_PER_MS) >> UNIT_SHIFT)

struct line {
    _Alignas(64) _Atomic(uint64_t) places[PLACES];
};

struct rate_table {
    struct line *lines;
    uint64_t line_mask;
};

struct rate_table *rate_table_create(unsigned lines)
{
    struct rate_table *table = memory_alloc(sizeof *table);
    size_t bytes = lines * sizeof(struct line);

    table->lines = memset(memory_aligned(_Alignof(struct line), bytes), 0, bytes);
    table->line_mask = lines - 1;
    return table;
}

void rate_table_destroy(struct rate_table *table)
{
    if (table)
        free(table->lines);
    free(table);
}

struct rate rate_make(int64_t per_1000_s, int64_t burst)
{
    int64_t interval = 1000 * (CLOCK_NS_PER_S >> UNIT_SHIFT) / per_1000_s;
    return (struct rate){interval, interval * burst};
}

/* The time until the bucket is full; 0: it is full, or was never used. Times wrap after two years: one that seems too far ahead is in the
 * past. */
static uint64_t ahead_of(uint64_t word, uint64_t now)
{
    uint64_t ahead = (word - now) & TIME_MASK;
    return word != 0 && ahead <= AHEAD_MAX ? ahead : 0;
}

/* The place of the key, else one whose bucket is full; NULL: there is neither. */
static _Atomic(uint64_t) *find_place(struct line *line, uint64_t tag, uint64_t now, uint64_t *word)
{
    _Atomic(uint64_t) *free_place = NULL;
    uint64_t free_word = 0;

    for (unsigned i = 0; i < PLACES; i++) {
        *word = atomic_load_explicit(&line->places[i], memory_order_relaxed);
        if (*word >> TIME_BITS == tag)
            return &line->places[i];
        if (!free_place && ahead_of(*word, now) == 0) {
            free_place = &line->places[i];
            free_word = *word;
        }
    }
    *word = free_word;
    return free_place;
}

enum rate_verdict rate_take(struct rate_table *table, uint64_t key, const struct rate *rate, int64_t now_ns,
                            int64_t *wait_ns)
{
    struct line *line = &table->lines[key & table->line_mask];
    uint64_t tag = key >> TIME_BITS, now = (uint64_t)now_ns >> UNIT_SHIFT, word;

    for (;;) {
        _Atomic(uint64_t) *place = find_place(line, tag, now, &word);
        if (!place)
            return RATE_UNCOUNTED;
        uint64_t ahead = ahead_of(word, now) + (uint64_t)rate->interval;
        if (ahead > (uint64_t)rate->tolerance) {
            *wait_ns = (int64_t)((ahead - (uint64_t)rate->tolerance) << UNIT_SHIFT);
            return RATE_REFUSED;
        }
        uint64_t next = tag << TIME_BITS | ((now + ahead) & TIME_MASK);
        if (atomic_compare_exchange_weak_explicit(place, &word, next, memory_order_relaxed,
                                                  memory_order_relaxed))
            return RATE_PASSES;
    }
}
