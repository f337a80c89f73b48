/* Sorts a full load by key. Radix over 8 key bytes at a time, least significant first, skipping bytes in
 * which all agree; what is still equal is sorted by the next 8. Keys are looked at once a round, in one
 * sweep, instead of twice a comparison. Everything is stable: of equal keys, the one put last comes last. */
#include "cache/internal.h"

#define PREFIX_BYTES sizeof(uint64_t)
#define RADIX 256
#define SMALL_COUNT 24 /* below this, comparing is cheaper than counting */

static void sort_from(struct sort_entry *entries, struct sort_entry *scratch, size_t count, size_t depth);

/* Bytes `depth`.. of the key, zeros after its end. */
static uint64_t prefix_at(struct str key, size_t depth)
{
    size_t left = key.len > depth ? key.len - depth : 0;
    uint64_t prefix = 0;

    memcpy(&prefix, key.ptr + (left ? depth : 0), left < PREFIX_BYTES ? left : PREFIX_BYTES);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    prefix = __builtin_bswap64(prefix);
#endif
    return prefix;
}

static int compare(const struct sort_entry *a, const struct sort_entry *b)
{
    return str_compare(record_key(a->record), record_key(b->record));
}

/* For keys that end where others go on, which padding cannot tell from a zero byte. Rare, so plain. */
static void merge_sort(struct sort_entry *entries, struct sort_entry *scratch, size_t count)
{
    size_t half = count / 2, sorted = 1;

    if (count <= SMALL_COUNT) { /* by insertion */
        for (size_t i = 1; i < count; i++) {
            struct sort_entry entry = entries[i];
            size_t at = i;
            for (; at > 0 && compare(&entries[at - 1], &entry) > 0; at--)
                entries[at] = entries[at - 1];
            entries[at] = entry;
        }
        return;
    }
    while (sorted < count && compare(&entries[sorted - 1], &entries[sorted]) <= 0)
        sorted++;
    if (sorted == count)
        return;
    merge_sort(entries, scratch, half);
    merge_sort(entries + half, scratch + half, count - half);
    const struct sort_entry *left = entries, *middle = entries + half, *right = middle,
                            *end = entries + count;
    for (struct sort_entry *out = scratch; out < scratch + count; out++)
        *out = right == end || (left < middle && compare(left, right) <= 0) ? *left++ : *right++;
    memcpy(entries, scratch, count * sizeof(*entries));
}

static void scatter(const struct sort_entry *from, struct sort_entry *to, size_t count, unsigned shift)
{
    size_t next[RADIX] = {0}, at = 0;

    for (size_t i = 0; i < count; i++)
        next[(from[i].prefix >> shift) % RADIX]++;
    for (size_t i = 0; i < RADIX; i++) {
        size_t here = next[i];
        next[i] = at;
        at += here;
    }
    for (size_t i = 0; i < count; i++)
        to[next[(from[i].prefix >> shift) % RADIX]++] = from[i];
}

/* Sorts by `prefix`; `differing` has a bit set wherever two prefixes differ. */
static void radix_sort(struct sort_entry *entries, struct sort_entry *scratch, size_t count,
                       uint64_t differing)
{
    struct sort_entry *from = entries, *to = scratch;

    for (unsigned shift = 0; shift < 64; shift += 8) {
        struct sort_entry *sorted = to;
        if ((differing >> shift) % RADIX == 0)
            continue;
        scatter(from, to, count, shift);
        to = from;
        from = sorted;
    }
    if (from != entries)
        memcpy(entries, from, count * sizeof(*entries));
}

/* A group agrees in every byte before `depth`. */
static void sort_group(struct sort_entry *entries, struct sort_entry *scratch, size_t count, size_t depth)
{
    size_t common = record_key_len(entries[0].record);
    struct str first = record_key(entries[0].record);

    if (count <= SMALL_COUNT) {
        merge_sort(entries, scratch, count);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        struct str key = record_key(entries[i].record);
        size_t at = depth;
        while (at < common && at < key.len && key.ptr[at] == first.ptr[at])
            at++;
        common = at < common ? at : common;
        if (key.len <= common || first.len <= common) {
            merge_sort(entries, scratch, count);
            return;
        }
    }
    sort_from(entries, scratch, count, common);
}

static void sort_from(struct sort_entry *entries, struct sort_entry *scratch, size_t count, size_t depth)
{
    uint64_t differing = 0;

    for (size_t i = 0; i < count; i++) {
        entries[i].prefix = prefix_at(record_key(entries[i].record), depth);
        differing |= entries[i].prefix ^ entries[0].prefix;
    }
    radix_sort(entries, scratch, count, differing);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && entries[end].prefix == entries[i].prefix;)
            end++;
        if (end - i > 1)
            sort_group(entries + i, scratch + i, end - i, depth + PREFIX_BYTES);
    }
}

void cache_sort(struct sort_entry *entries, struct sort_entry *scratch, size_t count, size_t common)
{
    if (count > 1)
        sort_from(entries, scratch, count, common);
}
