/* Hashes (XXH3) and the kernel's randomness. The seed is drawn once, before the first seeded hash. */
#include "base/hash.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/log.h"

static uint64_t process_seed;
static pthread_once_t seed_once = PTHREAD_ONCE_INIT;

static void draw_seed(void)
{
    process_seed = random_u64();
}

uint64_t hash_seeded(struct str s)
{
    pthread_once(&seed_once, draw_seed);
    return XXH3_64bits_withSeed(s.ptr, s.len, process_seed);
}

uint64_t hash_content(struct str s)
{
    return XXH3_64bits(s.ptr, s.len);
}

/* The key's length and the key are folded into the seed of the payload's hash. That is two one-shot calls, which are
 * several times faster on small items than xxhash's streaming state. */
struct hash128 hash_item(struct str key, struct str payload)
{
    uint64_t seed = XXH3_64bits_withSeed(key.ptr, key.len, (XXH64_hash_t)key.len);
    XXH128_hash_t hash = XXH3_128bits_withSeed(payload.ptr, payload.len, seed);

    return (struct hash128){.low = hash.low64, .high = hash.high64};
}

void hash128_add(struct hash128 *sum, struct hash128 item)
{
    uint64_t carry = __builtin_add_overflow(sum->low, item.low, &sum->low);

    sum->high += item.high + carry;
}

void hash128_subtract(struct hash128 *sum, struct hash128 item)
{
    uint64_t borrow = __builtin_sub_overflow(sum->low, item.low, &sum->low);

    sum->high -= item.high + borrow;
}

void hash128_hex(struct hash128 hash, char out[HASH128_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (unsigned i = 0; i < 16; i++) {
        out[i] = digits[(hash.high >> (60 - 4 * i)) & 15];
        out[16 + i] = digits[(hash.low >> (60 - 4 * i)) & 15];
    }
    out[32] = '\0';
}

uint64_t random_u64(void)
{
    uint64_t value;

    random_bytes(&value, sizeof(value));
    return value;
}

void random_bytes(void *out, size_t len)
{
    char *at = out;

    while (len > 0) {
        ssize_t got = getrandom(at, len, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            log_error("no_randomness", LOG_INT("errno", errno));
            abort();
        }
        at += got;
        len -= (size_t)got;
    }
}
