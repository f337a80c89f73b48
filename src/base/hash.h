/* Hashes. Tables keyed by what a peer sends use the process's own random seed, content hashes use none, so
 * that two pods agree. */
#ifndef FRESHET_BASE_HASH_H
#define FRESHET_BASE_HASH_H

#include <stdint.h>

#include "base/str.h"

struct hash128 {
    uint64_t low, high;
};

uint64_t hash_seeded(struct str s); /* XXH3-64 with the process's seed: never leaves the process */
void hash_seeded_each(const struct str *texts, size_t count, uint64_t *hashes);
uint64_t hash_content(struct str s); /* XXH3-64 without a seed: the same on every pod */

/* XXH3-128 over (key, payload), framed by the key's length so that ("a","bc") and ("ab","c") differ. */
struct hash128 hash_item(struct str key, struct str payload);

/* Sum mod 2^128: an order-independent digest that changes with what changed. */
void hash128_add(struct hash128 *sum, struct hash128 item);
void hash128_subtract(struct hash128 *sum, struct hash128 item);
#define HASH128_HEX_BYTES 33
void hash128_hex(struct hash128 hash, char out[HASH128_HEX_BYTES]);

uint64_t random_u64(void);                /* from the kernel; for seeds, ids and jitter */
void random_bytes(void *out, size_t len); /* aborts if the kernel has none */

#endif
