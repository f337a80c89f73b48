/* Hexadecimal digits, for ids and escapes. */
#ifndef FRESHET_BASE_HEX_H
#define FRESHET_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
