/* UUIDs of version 5: the first 16 bytes of SHA-1 over a namespace and a name, so that anybody who knows both makes the
 * same one. SHA-1 (RFC 3174) is here for that alone: it keeps no secret. */
#include "base/uuid.h"

enum { BLOCK_BYTES = 64, LENGTH_BYTES = 8, STATE_WORDS = 5, ROUNDS = 80 };

struct sha1 {
    uint32_t state[STATE_WORDS];
    uint8_t block[BLOCK_BYTES];
    size_t filled; /* of the block */
    uint64_t bytes;
};

static uint32_t turn_left(uint32_t word, unsigned bits)
{
    return word << bits | word >> (32 - bits);
}

static uint32_t mix(unsigned round, uint32_t b, uint32_t c, uint32_t d)
{
    if (round < 20)
        return (b & c) | (~b & d);
    if (round >= 40 && round < 60)
        return (b & c) | (b & d) | (c & d);
    return b ^ c ^ d;
}

static void expand(const uint8_t block[BLOCK_BYTES], uint32_t words[ROUNDS])
{
    for (unsigned i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < ROUNDS; i++)
        words[i] = turn_left(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
}

static void take_block(struct sha1 *sha1)
{
    static const uint32_t constants[] = {0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6};
    uint32_t words[ROUNDS], *state = sha1->state;
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

    expand(sha1->block, words);
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t next = turn_left(a, 5) + mix(i, b, c, d) + e + constants[i / 20] + words[i];
        e = d;
        d = c;
        c = turn_left(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    sha1->filled = 0;
}

static void put_byte(struct sha1 *sha1, uint8_t byte)
{
    sha1->block[sha1->filled++] = byte;
    if (sha1->filled == BLOCK_BYTES)
        take_block(sha1);
}

static void put(struct sha1 *sha1, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        put_byte(sha1, ((const uint8_t *)bytes)[i]);
    sha1->bytes += len;
}

/* A one bit, zeros up to the last eight bytes of a block, and there the length in bits. */
static void finish(struct sha1 *sha1)
{
    uint64_t bits = 8 * sha1->bytes;
    put_byte(sha1, 0x80);
    while (sha1->filled != BLOCK_BYTES - LENGTH_BYTES)
        put_byte(sha1, 0);
    for (unsigned shift = 64; shift > 0; shift -= 8)
        put_byte(sha1, (uint8_t)(bits >> (shift - 8)));
}

struct uuid uuid_named(const struct uuid *space, struct str name)
{
    struct sha1 sha1 = {.state = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0}};
    struct uuid uuid;

    put(&sha1, space->bytes, sizeof(space->bytes));
    put(&sha1, name.ptr, name.len);
    finish(&sha1);
    for (unsigned i = 0; i < sizeof(uuid.bytes); i++)
        uuid.bytes[i] = (uint8_t)(sha1.state[i / 4] >> (24 - 8 * (i % 4)));
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0F) | 0x50); /* version 5 */
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3F) | 0x80); /* RFC 9562's variant */
    return uuid;
}
