/* Strict base64url: no padding, no white space, no other alphabet, and no non-zero bits behind the last
 * byte. So a value has exactly one spelling, and a token cannot be varied without breaking its signature. */
#include "auth/jose.h"

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

bool auth_base64url_decode(struct str text, struct arena *arena, struct str *bytes)
{
    size_t len = text.len / 4 * 3 + (text.len % 4 ? text.len % 4 - 1 : 0), at = 0;
    unsigned bits = 0, count = 0;

    if (text.len % 4 == 1)
        return false;
    char *out = arena_alloc(arena, len + 1);
    for (size_t i = 0; i < text.len; i++) {
        int value = digit(text.ptr[i]);
        if (value < 0)
            return false;
        bits = bits << 6 | (unsigned)value;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[at++] = (char)(bits >> count);
            bits &= (1u << count) - 1;
        }
    }
    if (bits != 0) /* bits that belong to no byte */
        return false;
    out[at] = '\0';
    *bytes = str_of(out, at);
    return true;
}

void auth_base64url_encode(struct str bytes, struct buf *out)
{
    unsigned bits = 0, count = 0;

    for (size_t i = 0; i < bytes.len; i++) {
        bits = (bits << 8 | (unsigned char)bytes.ptr[i]) & 0xFFFF;
        for (count += 8; count >= 6; count -= 6)
            buf_put_char(out, ALPHABET[bits >> (count - 6) & 63]);
    }
    if (count > 0)
        buf_put_char(out, ALPHABET[bits << (6 - count) & 63]);
}
