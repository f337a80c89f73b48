/* Hexadecimal digits, for ids and escapes. */
#ifndef FRESHET_BASE_HEX_H
#define FRESHET_BASE_HEX_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* 0..15, or -1 when it is not a digit of either case */
static inline int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Writes two lower-case digits a byte, no NUL; returns the place after them. */
static inline char *hex_put(char *out, const uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < count; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    return out;
}

/* The same for a number's 16 digits, without a loop: each half's digits are spread over the bytes of a word. */
static inline char *hex_put_u64(char *out, uint64_t number)
{
    const uint64_t each = UINT64_C(0x0101010101010101);

    for (int shift = 32; shift >= 0; shift -= 32) {
        uint64_t digits = number >> shift & UINT32_MAX;
        digits = (digits << 16 | digits) & UINT64_C(0x0000ffff0000ffff);
        digits = (digits << 8 | digits) & UINT64_C(0x00ff00ff00ff00ff);
        digits = (digits << 4 | digits) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        uint64_t is_letter = (digits + 6 * each) >> 4 & each;
        digits = htobe64(digits + '0' * each + ('a' - '0' - 10) * is_letter);
        memcpy(out, &digits, sizeof digits);
        out += sizeof digits;
    }
    return out;
}

/* Reads 2 * count digits; false when one of them is not a digit. */
static inline bool hex_get(const char *text, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

#endif
