/* UUIDs in and out of their 36-character text. */
#include "base/uuid.h"

#include "base/hash.h"
#include "base/hex.h"

/* 8-4-4-4-12 digits */
static const uint8_t groups[] = {4, 2, 2, 2, 6};
#define GROUPS (sizeof(groups) / sizeof(groups[0]))

struct uuid uuid_with_version(struct uuid uuid, unsigned version)
{
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0F) | version << 4);
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3F) | 0x80); /* RFC 9562's variant */
    return uuid;
}

struct uuid uuid_random(void)
{
    struct uuid uuid;

    random_bytes(uuid.bytes, sizeof(uuid.bytes));
    return uuid_with_version(uuid, 4);
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
