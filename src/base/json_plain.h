/* Inside base: kinds of bytes in JSON, and how far a string goes on with bytes that need no look, 16 or 8 at a time. */
#ifndef FRESHET_BASE_JSON_PLAIN_H
#define FRESHET_BASE_JSON_PLAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ASCII that stands for itself inside a JSON string: no control, no quote, no backslash. */
static inline bool json_is_plain(char c)
{
    return (signed char)c >= 0x20 && c != '"' && c != '\\';
}

static inline bool json_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The first byte in [p, end) that is not plain, or end. */
static inline const char *json_plain_end(const char *p, const char *end)
{
#ifdef __SSE2__
    const __m128i space = _mm_set1_epi8(0x20), quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');

    while (end - p >= 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
        /* Compared as signed, every byte from 0x80 up is below the space too. */
        __m128i odd =
            _mm_or_si128(_mm_cmplt_epi8(bytes, space),
                         _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
        unsigned mask = (unsigned)_mm_movemask_epi8(odd);
        if (mask)
            return p + __builtin_ctz(mask);
        p += 16;
    }
#else
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = UINT64_C(0x8080808080808080);

    while (end - p >= 8) {
        uint64_t word, quote, backslash, control;
        memcpy(&word, p, sizeof(word));
        /* A byte's high bit is set where that byte is below 0x20, or becomes zero by the XOR. Borrows can
         * only mark a byte above one that is marked already, so "none marked" is exact. */
        quote = word ^ (ones * '"');
        backslash = word ^ (ones * '\\');
        control = word - ones * 0x20;
        if ((word | control | (quote - ones) | (backslash - ones)) & highs)
            break;
        p += 8;
    }
#endif
    while (p < end && json_is_plain(*p))
        p++;
    return p;
}

#endif
