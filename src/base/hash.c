/* Hashes (XXH3) and the kernel's randomness. The seed is drawn once, before the first seeded hash. */
#include "base/hash.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>

#define XXH_INLINE_ALL /* a short key is hashed faster than the library is called */
#include <xxhash.h>

#include "base/hex.h"
#include "base/log.h"

static uint64_t process_seed;
static atomic_bool has_seed;
static pthread_once_t seed_once = PTHREAD_ONCE_INIT;

static void draw_seed(void)
{
    process_seed = random_u64();
    atomic_store_explicit(&has_seed, true, memory_order_release);
}

static inline uint64_t seed(void)
{
    if (!atomic_load_explicit(&has_seed, memory_order_acquire))
        pthread_once(&seed_once, draw_seed);
    return process_seed;
}

uint64_t hash_seeded(struct str s)
{
    return XXH3_64bits_withSeed(s.ptr, s.len, seed());
}

void hash_seeded_each(const struct str *texts, size_t count, uint64_t *hashes)
{
    const uint64_t drawn = seed();

    for (size_t i = 0; i < count; i++)
        hashes[i] = XXH3_64bits_withSeed(texts[i].ptr, texts[i].len, drawn);
}

uint64_t hash_content(struct str s)
{
    return XXH3_64bits(s.ptr, s.len);
}

static struct hash128 hash128_of(XXH128_hash_t hash)
{
    return (struct hash128){.low = hash.low64, .high = hash.high64};
}

/* A usual item is put together on the stack and hashed at once, several times faster than through xxhash's
 * state; the result is the same. The length is little-endian, so that pods of different machines agree. */
struct hash128 hash_item(struct str key, struct str payload)
{
    uint8_t bytes[1024];
    const size_t frame = 8;

    for (unsigned i = 0; i < frame; i++)
        bytes[i] = (uint8_t)((uint64_t)key.len >> (8 * i));
    if (key.len > sizeof(bytes) - frame || payload.len > sizeof(bytes) - frame - key.len) {
        XXH3_state_t state;
        XXH3_128bits_reset(&state);
        XXH3_128bits_update(&state, bytes, frame);
        XXH3_128bits_update(&state, key.ptr, key.len);
        XXH3_128bits_update(&state, payload.ptr, payload.len);
        return hash128_of(XXH3_128bits_digest(&state));
    }
    str_put(str_put((char *)bytes + frame, key), payload);
    return hash128_of(XXH3_128bits(bytes, frame + key.len + payload.len));
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
    *hex_put_u64(hex_put_u64(out, hash.high), hash.low) = '\0';
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
