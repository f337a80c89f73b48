/* The JSON writer: appends to a buffer, and never more than it says, so that a fixed buffer can stand
 * behind it. */
#include "base/json.h"

#include "base/json_plain.h"

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* How the byte at *p is written when it is not plain: returns the text, advances *p over what it stands
 * for. A character of several bytes is its own text. */
static struct str escape_next(const char **p, const char *end, char scratch[6])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char c = (unsigned char)**p;

    if (c >= 0x80) {
        size_t len = str_utf8_char(str_of(*p, (size_t)(end - *p)));
        struct str text = len ? str_of(*p, len) : STR(REPLACEMENT);
        *p += len ? len : 1;
        return text;
    }
    (*p)++;
    switch (c) {
    case '"': return STR("\\\"");
    case '\\': return STR("\\\\");
    case '\b': return STR("\\b");
    case '\f': return STR("\\f");
    case '\n': return STR("\\n");
    case '\r': return STR("\\r");
    case '\t': return STR("\\t");
    default:
        memcpy(scratch, "\\u00", 4);
        scratch[4] = digits[c >> 4];
        scratch[5] = digits[c & 15];
        return str_of(scratch, 6);
    }
}

void json_put_string(struct buf *out, struct str text)
{
    const char *p = text.ptr, *end = text.len ? text.ptr + text.len : text.ptr;
    char scratch[6];

    buf_put_char(out, '"');
    while (p < end) {
        const char *plain_end = json_plain_end(p, end);
        buf_put(out, p, (size_t)(plain_end - p));
        p = plain_end;
        if (p < end)
            buf_put_str(out, escape_next(&p, end, scratch));
    }
    buf_put_char(out, '"');
}

size_t json_string_size(struct str text)
{
    const char *p = text.ptr, *end = text.len ? text.ptr + text.len : text.ptr;
    char scratch[6];
    size_t size = 2;

    while (p < end) {
        const char *plain_end = json_plain_end(p, end);
        size += (size_t)(plain_end - p);
        p = plain_end;
        if (p < end)
            size += escape_next(&p, end, scratch).len;
    }
    return size;
}

void json_put_key(struct buf *out, struct str name)
{
    char last = buf_len(out) > 0 ? out->data[out->end - 1] : '{';

    if (last != '{' && last != '[' && last != ':')
        buf_put_char(out, ',');
    json_put_string(out, name);
    buf_put_char(out, ':');
}

void json_put_member_str(struct buf *out, const char *name, struct str text)
{
    json_put_key(out, str_from(name));
    json_put_string(out, text);
}

void json_put_i64(struct buf *out, int64_t number)
{
    if (number < 0)
        buf_put_char(out, '-');
    buf_put_u64(out, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

void json_put_member_i64(struct buf *out, const char *name, int64_t number)
{
    json_put_key(out, str_from(name));
    json_put_i64(out, number);
}

void json_put_member_bool(struct buf *out, const char *name, bool value)
{
    json_put_key(out, str_from(name));
    buf_put_str(out, value ? STR("true") : STR("false"));
}

void json_put_member_raw(struct buf *out, const char *name, struct str json)
{
    json_put_key(out, str_from(name));
    buf_put_str(out, json);
}
