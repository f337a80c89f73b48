/* Which partition a key belongs to: 32-bit MurmurHash2 with the seed and the sign bit dropped as Kafka's Java
 * client does, so that its producers and ours agree. */
#include "bus/bus.h"

static uint32_t word_at(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t bus_murmur2(struct str key)
{
    const uint32_t multiplier = 0x5bd1e995;
    const unsigned char *at = (const unsigned char *)key.ptr;
    uint32_t hash = 0x9747b28c ^ (uint32_t)key.len;
    size_t left = key.len;

    for (; left >= 4; at += 4, left -= 4) {
        uint32_t word = word_at(at) * multiplier;
        word ^= word >> 24;
        hash = hash * multiplier ^ word * multiplier;
    }
    for (size_t i = left; i > 0; i--)
        hash ^= (uint32_t)at[i - 1] << 8 * (i - 1);
    if (left > 0)
        hash *= multiplier;
    hash ^= hash >> 13;
    hash *= multiplier;
    return hash ^ hash >> 15;
}

unsigned bus_partition_of(struct str key, unsigned partitions)
{
    return (bus_murmur2(key) & 0x7fffffff) % partitions;
}
