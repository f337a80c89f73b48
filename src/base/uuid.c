/* UUIDs in and out of their 36-character text, and those of version 5: the first 16 bytes of SHA-1 over a namespace and a
 * name, so that anybody who knows both makes the same one. SHA-1 (RFC 3174) is here for that alone: it keeps no secret. */
#include "base/uuid.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/hex.h"
#include "base/memory.h"

/* 8-4-4-4-12 digits */
static const uint8_t groups[] = {4, 2, 2, 2, 6};
#define GROUPS (sizeof(groups) / sizeof(groups[0]))

static struct uuid with_version(struct uuid uuid, unsigned version)
{
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0F) | version << 4);
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3F) | 0x80); /* RFC 9562's variant */
    return uuid;
}

struct uuid uuid_random(void)
{
    struct uuid uuid;

    random_bytes(uuid.bytes, sizeof(uuid.bytes));
    return with_version(uuid, 4);
}

bool uuid_eq(const struct uuid *a, const struct uuid *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

bool uuid_parse(struct str text, struct uuid *uuid)
{
    struct uuid parsed;
    const char *at = text.ptr;
    uint8_t *bytes = parsed.bytes;

    if (text.len != UUID_TEXT_BYTES - 1)
        return false;
    for (size_t i = 0; i < GROUPS; i++) {
        if (i > 0 && *at++ != '-')
            return false;
        if (!hex_get(at, bytes, groups[i]))
            return false;
        at += 2 * groups[i];
        bytes += groups[i];
    }
    *uuid = parsed;
    return true;
}

void uuid_format(const struct uuid *uuid, char out[UUID_TEXT_BYTES])
{
    const uint8_t *bytes = uuid->bytes;

    for (size_t i = 0; i < GROUPS; i++) {
        if (i > 0)
            *out++ = '-';
        out = hex_put(out, bytes, groups[i]);
        bytes += groups[i];
    }
    *out = '\0';
}

/* ---- version 5 ---- */

enum { SHA1_BLOCK_BYTES = 64, SHA1_LENGTH_BYTES = 8, SHA1_ROUNDS = 80 };

static uint32_t turn_left(uint32_t word, unsigned bits)
{
    return word << bits | word >> (32 - bits);
}

static void sha1_block(uint32_t state[5], const uint8_t block[SHA1_BLOCK_BYTES])
{
    static const uint32_t constants[] = {0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6};
    uint32_t words[SHA1_ROUNDS], v[5];

    for (unsigned i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < SHA1_ROUNDS; i++)
        words[i] = turn_left(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    memcpy(v, state, sizeof(v));
    for (unsigned i = 0; i < SHA1_ROUNDS; i++) {
        uint32_t b = v[1], c = v[2], d = v[3], mixed = b ^ c ^ d;
        if (i < 20)
            mixed = (b & c) | (~b & d);
        else if (i >= 40 && i < 60)
            mixed = (b & c) | (b & d) | (c & d);
        uint32_t next = turn_left(v[0], 5) + mixed + v[4] + constants[i / 20] + words[i];
        memmove(v + 1, v, 4 * sizeof(v[0]));
        v[2] = turn_left(v[2], 30);
        v[0] = next;
    }
    for (unsigned i = 0; i < 5; i++)
        state[i] += v[i];
}

/* The message ends in a one bit, zeros up to the last eight bytes of a block, and there the length in bits. */
struct uuid uuid_named(const struct uuid *space, struct str name)
{
    uint32_t state[5] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
    size_t len = sizeof(space->bytes) + name.len;
    size_t padded = (len + SHA1_LENGTH_BYTES) / SHA1_BLOCK_BYTES * SHA1_BLOCK_BYTES + SHA1_BLOCK_BYTES;
    uint8_t *message = memory_zalloc(padded);
    struct uuid uuid;

    memcpy(message, space->bytes, sizeof(space->bytes));
    str_put((char *)message + sizeof(space->bytes), name);
    message[len] = 0x80;
    for (unsigned i = 1; i <= SHA1_LENGTH_BYTES; i++)
        message[padded - i] = (uint8_t)((uint64_t)len * 8 >> 8 * (i - 1));
    for (size_t at = 0; at < padded; at += SHA1_BLOCK_BYTES)
        sha1_block(state, message + at);
    free(message);
    for (unsigned i = 0; i < sizeof(uuid.bytes); i++)
        uuid.bytes[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
    return with_version(uuid, 5);
}
