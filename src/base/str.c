/* Text helpers over borrowed slices. All of them are pure; only str_dup() allocates. */
#include "base/str.h"

#include <stdlib.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/memory.h"

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

bool str_eq_nocase(struct str a, struct str b)
{
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (lower(a.ptr[i]) != lower(b.ptr[i]))
            return false;
    return true;
}

bool str_starts_with(struct str s, struct str prefix)
{
    return s.len >= prefix.len && str_eq(str_of(s.ptr, prefix.len), prefix);
}

bool str_ends_with(struct str s, struct str suffix)
{
    if (suffix.len == 0)
        return true;
    return s.len >= suffix.len && str_eq(str_of(s.ptr + (s.len - suffix.len), suffix.len), suffix);
}

int str_compare(struct str a, struct str b)
{
    size_t common = a.len < b.len ? a.len : b.len;
    int order = common ? memcmp(a.ptr, b.ptr, common) : 0;

    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int by_bytes(const void *a, const void *b)
{
    return str_compare(*(const struct str *)a, *(const struct str *)b);
}

size_t str_sort(struct str *texts, size_t count)
{
    size_t kept = 0;

    if (count > 1)
        qsort(texts, count, sizeof texts[0], by_bytes);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || !str_eq(texts[kept - 1], texts[i]))
            texts[kept++] = texts[i];
    return kept;
}

struct str str_trim(struct str s)
{
    while (s.len > 0 && (s.ptr[0] == ' ' || s.ptr[0] == '\t')) {
        s.ptr++;
        s.len--;
    }
    while (s.len > 0 && (s.ptr[s.len - 1] == ' ' || s.ptr[s.len - 1] == '\t'))
        s.len--;
    return s;
}

char *str_dup(struct str s)
{
    char *copy = memory_alloc(s.len + 1);

    *str_put(copy, s) = '\0';
    return copy;
}

void str_copy(char *out, size_t room, struct str s)
{
    *str_put(out, str_utf8_cut(s, room - 1)) = '\0';
}

/* A spent *rest has a NULL pointer: "a," gives "a" and then "", and only then false. */
bool str_split(struct str *rest, char separator, struct str *part)
{
    if (!rest->ptr)
        return false;

    const char *at = rest->len ? memchr(rest->ptr, separator, rest->len) : NULL;
    if (!at) {
        *part = *rest;
        *rest = STR_NONE;
        return true;
    }
    size_t len = (size_t)(at - rest->ptr);
    *part = str_of(rest->ptr, len);
    *rest = str_skip(*rest, len + 1);
    return true;
}

/* Long lists of short parts: a look at sixteen bytes costs less than a search for each part. */
size_t str_split_all(struct str text, char separator, struct str *parts, size_t max)
{
    size_t count = 0, begin = 0, at = 0;

#ifdef __SSE2__
    for (; text.len - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(text.ptr + at));
        unsigned found = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(separator)));
        for (; found != 0; found &= found - 1) {
            size_t end = at + (unsigned)__builtin_ctz(found);
            if (count < max)
                parts[count] = str_of(text.ptr + begin, end - begin);
            count++;
            begin = end + 1;
        }
    }
#endif
    for (; at < text.len; at++) {
        if (text.ptr[at] != separator)
            continue;
        if (count < max)
            parts[count] = str_of(text.ptr + begin, at - begin);
        count++;
        begin = at + 1;
    }
    if (count < max)
        parts[count] = text.len > 0 ? str_skip(text, begin) : text;
    return count + 1;
}

bool str_to_u64(struct str s, uint64_t *value)
{
    uint64_t sum = 0;

    if (s.len == 0)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned digit = (unsigned)(unsigned char)s.ptr[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(sum, UINT64_C(10), &sum) ||
            __builtin_add_overflow(sum, digit, &sum))
            return false;
    }
    *value = sum;
    return true;
}

bool str_to_i64(struct str s, int64_t *value)
{
    bool negative = s.len > 0 && s.ptr[0] == '-';
    uint64_t magnitude;

    if (!str_to_u64(negative ? str_skip(s, 1) : s, &magnitude))
        return false;
    if (magnitude > (uint64_t)INT64_MAX + (negative ? 1 : 0))
        return false;
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

size_t str_utf8_char(struct str s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    unsigned char low = 0x80, high = 0xBF; /* bounds of the second byte */
    size_t len;

    if (s.len == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4)
        return 0;
    len = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (p[0] == 0xE0)
        low = 0xA0; /* shorter form exists */
    else if (p[0] == 0xED)
        high = 0x9F; /* surrogates */
    else if (p[0] == 0xF0)
        low = 0x90; /* shorter form exists */
    else if (p[0] == 0xF4)
        high = 0x8F; /* past U+10FFFF */
    if (s.len < len || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

bool str_is_utf8(struct str s)
{
    size_t i = 0;

    while (i < s.len) {
        uint64_t word;
        while (i + sizeof(word) <= s.len) {
            memcpy(&word, s.ptr + i, sizeof(word));
            if (word & UINT64_C(0x8080808080808080))
                break;
            i += sizeof(word);
        }
        if (i == s.len)
            break;
        size_t len = (unsigned char)s.ptr[i] < 0x80 ? 1 : str_utf8_char(str_skip(s, i));
        if (len == 0)
            return false;
        i += len;
    }
    return true;
}

bool str_is_text(struct str s)
{
    return str_is_utf8(s) && (s.len == 0 || !memchr(s.ptr, '\0', s.len));
}

struct str str_utf8_cut(struct str s, size_t len_max)
{
    if (s.len <= len_max)
        return s;
    /* Steps back over at most three continuation bytes: more of them are no UTF-8 and may be cut anywhere. */
    for (size_t back = 0; back <= 3 && back <= len_max; back++)
        if (((unsigned char)s.ptr[len_max - back] & 0xC0) != 0x80)
            return str_of(s.ptr, len_max - back);
    return str_of(s.ptr, len_max);
}

bool str_is_name(struct str s)
{
    if (s.len < 1 || s.len > 64)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i], letter = lower(c);
        bool ok =
            (letter >= 'a' && letter <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
        if (!ok)
            return false;
    }
    return true;
}
