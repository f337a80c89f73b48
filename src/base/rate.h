/* Rate limits: a fixed table of token buckets that any number of threads share without a lock.
 *
 * A bucket is one 64-bit word: a tag of its key, and the time at which it is full again (GCRA's theoretical arrival time).
 * A full bucket is the same as no bucket, so its place can be given to another key. A cache line has eight places, and a key is in
 * any one of them:
 *
 *     key ─▶ line ─▶ | tag, full at | tag, full at | … |      63       48 47                     0
 *                                                            |   tag   |  full at, in 256 ns   |
 *
 * The table has a fixed size. Where all eight places of a line have buckets of other keys that are not full, a request passes without
 * being counted (RATE_UNCOUNTED), so that no key is refused because of others. Two keys share a bucket where line and tag are the
 * same: one pair in 2^16 × lines. Two threads that add the same key at once may give it two places, and one request more passes. */
#ifndef FRESHET_BASE_RATE_H
#define FRESHET_BASE_RATE_H

#include <stdint.h>

#define RATE_FILL_MS_MAX (INT64_C(24) * 3600 * 1000) /* longest time from empty to full */

struct rate_table;

struct rate_table *rate_table_create(unsigned lines); /* a power of two; eight places each */
void rate_table_destroy(struct rate_table *table);    /* NULL is fine */

/* How fast buckets fill, and how much they hold; burst / rate is at most RATE_FILL_MS_MAX. */
struct rate {
    int64_t interval, tolerance; /* rate_make()'s */
};
struct rate rate_make(int64_t per_1000_s, int64_t burst);

enum rate_verdict { RATE_PASSES, RATE_UNCOUNTED, RATE_REFUSED };
/* Takes one token. When refused, *wait_ns is the time until there is one. Any thread. */
enum rate_verdict rate_take(struct rate_table *table, uint64_t key, const struct rate *rate, int64_t now_ns,
                            int64_t *wait_ns);

#endif
