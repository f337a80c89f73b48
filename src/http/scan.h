/* Which bytes may stand where, and fast walks over runs of them.
 *
 * One table holds a bit per class. What is long in a request, field values (a token is hundreds of bytes)
 * and targets (a list of keys is thousands), is walked sixteen bytes at a time where the processor has SSE2.
 * Nothing here reads outside [at, end). */
#ifndef FRESHET_HTTP_SCAN_H
#define FRESHET_HTTP_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    HTTP_BYTE_TOKEN = 1,  /* tchar of RFC 9110: methods and field names */
    HTTP_BYTE_TARGET = 2, /* what RFC 3986 allows in a path or query; '[' and ']' too, which browsers send */
    HTTP_BYTE_VALUE = 4,  /* field values: HTAB, SP, visible ASCII, obs-text */
    HTTP_BYTE_HOST = 8,   /* reg-name, IPv6 literal, port */
};

extern const uint8_t http_byte_class[256];

static inline bool http_byte_is(char byte, int class)
{
    return (http_byte_class[(uint8_t)byte] & class) != 0;
}

/* The first byte of [at, end) that is not of the class, or end. */
static inline const char *http_scan(const char *at, const char *end, int class)
{
    while (at < end && http_byte_is(*at, class))
        at++;
    return at;
}

/* The same as http_scan(…, HTTP_BYTE_VALUE). */
static inline const char *http_scan_value(const char *at, const char *end)
{
#ifdef __SSE2__
    const __m128i last_control = _mm_set1_epi8(0x1f), tab = _mm_set1_epi8('\t'), del = _mm_set1_epi8(0x7f);

    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes);
        __m128i bad =
            _mm_or_si128(_mm_andnot_si128(_mm_cmpeq_epi8(bytes, tab), control), _mm_cmpeq_epi8(bytes, del));
        unsigned mask = (unsigned)_mm_movemask_epi8(bad);
        if (mask != 0)
            return at + __builtin_ctz(mask);
    }
#endif
    return http_scan(at, end, HTTP_BYTE_VALUE);
}

/* The same as http_scan(…, HTTP_BYTE_TARGET): visible ASCII but for " # < > \ ^ ` { | } */
static inline const char *http_scan_target(const char *at, const char *end)
{
#ifdef __SSE2__
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        /* signed: bytes of 0x80 and more are below everything */
        __m128i low = _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x21));
        __m128i high = _mm_andnot_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('~')),
                                        _mm_cmpgt_epi8(bytes, _mm_set1_epi8('z')));
        __m128i quotes = _mm_cmpeq_epi8(_mm_or_si128(bytes, _mm_set1_epi8(1)), _mm_set1_epi8('#')); /* " # */
        __m128i pairs = _mm_and_si128(bytes, _mm_set1_epi8(~2));
        __m128i angles = _mm_cmpeq_epi8(pairs, _mm_set1_epi8('<'));  /* < > */
        __m128i slants = _mm_cmpeq_epi8(pairs, _mm_set1_epi8('\\')); /* \ ^ */
        __m128i grave = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('`'));
        __m128i bad = _mm_or_si128(_mm_or_si128(_mm_or_si128(low, high), _mm_or_si128(quotes, angles)),
                                   _mm_or_si128(slants, grave));
        unsigned mask = (unsigned)_mm_movemask_epi8(bad);
        if (mask != 0)
            return at + __builtin_ctz(mask);
    }
#endif
    return http_scan(at, end, HTTP_BYTE_TARGET);
}

#endif
