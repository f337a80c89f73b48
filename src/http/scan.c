/* The byte classes of RFC 9110, RFC 9112 and RFC 3986 as one table. */
#include "http/scan.h"

#define K HTTP_BYTE_TOKEN
#define T HTTP_BYTE_TARGET
#define V HTTP_BYTE_VALUE
#define H HTTP_BYTE_HOST

const uint8_t http_byte_class[256] = {
    ['\t'] = V,
    [' '] = V,
    ['!'] = K | T | V | H,
    ['"'] = V,
    ['#'] = K | V,
    ['$'] = K | T | V | H,
    ['%'] = K | T | V | H,
    ['&'] = K | T | V | H,
    ['\''] = K | T | V | H,
    ['('] = T | V | H,
    [')'] = T | V | H,
    ['*'] = K | T | V | H,
    ['+'] = K | T | V | H,
    [','] = T | V | H,
    ['-'] = K | T | V | H,
    ['.'] = K | T | V | H,
    ['/'] = T | V,
    ['0' ... '9'] = K | T | V | H,
    [':'] = T | V | H,
    [';'] = T | V | H,
    ['<'] = V,
    ['='] = T | V | H,
    ['>'] = V,
    ['?'] = T | V,
    ['@'] = T | V,
    ['A' ... 'Z'] = K | T | V | H,
    ['['] = T | V | H,
    ['\\'] = V,
    [']'] = T | V | H,
    ['^'] = K | V,
    ['_'] = K | T | V | H,
    ['`'] = K | V,
    ['a' ... 'z'] = K | T | V | H,
    ['{'] = V,
    ['|'] = K | V,
    ['}'] = V,
    ['~'] = K | T | V | H,
    [0x80 ... 0xff] = V,
};
