/* Reading validated JSON (walking containers, and what scalars mean), and writing it.
 *
 * All of the reading relies on json_parse() having accepted the bytes. Lengths are still respected, so that a slice
 * that was not validated can give a wrong answer but is never read past its end. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/json_plain.h"
#include "base/memory.h"

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && json_is_space(*p))
        p++;
    return p;
}

/* From an opening quote to the byte after the closing one. */
static const char *skip_string(const char *p, const char *end)
{
    p++;
    for (;;) {
        p = json_plain_end(p, end);
        if (p == end)
            return end;
        if (*p == '"')
            return p + 1;
        if (*p == '\\') {
            if (end - p < 2)
                return end;
            p += 2;
        } else {
            do {
                p++;
            } while (p < end && (unsigned char)*p >= 0x80);
        }
    }
}

static const char *skip_value(const char *p, const char *end)
{
    size_t depth = 0;

    if (p < end && *p == '"')
        return skip_string(p, end);
    if (p < end && *p != '{' && *p != '[') {
        while (p < end && *p != ',' && *p != '}' && *p != ']' && !json_is_space(*p))
            p++;
        return p;
    }
    while (p < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        if (*p == '{' || *p == '[')
            depth++;
        else if ((*p == '}' || *p == ']') && --depth == 0)
            return p + 1;
        p++;
    }
    return end;
}

void json_iter_init(struct json_iter *it, const struct json_value *container)
{
    bool walkable = container->type == JSON_OBJECT || container->type == JSON_ARRAY;

    it->is_object = container->type == JSON_OBJECT;
    it->rest = walkable && container->raw.len >= 2 ? str_of(container->raw.ptr + 1, container->raw.len - 2)
                                                   : STR_NONE;
}

bool json_iter_next(struct json_iter *it, struct str *name, struct json_value *value)
{
    const char *p = it->rest.ptr, *end = it->rest.len ? p + it->rest.len : p;
    struct str key = STR_NONE;

    p = skip_space(p, end);
    if (p < end && *p == ',')
        p = skip_space(p + 1, end);
    if (p == end)
        return false;
    if (it->is_object) {
        const char *key_end = skip_string(p, end);
        key = str_of(p, (size_t)(key_end - p));
        p = skip_space(key_end, end);
        p = p < end ? skip_space(p + 1, end) : end; /* the colon */
    }
    const char *value_end = skip_value(p, end);
    if (value_end == p)
        return false;
    if (name)
        *name = key;
    *value = json_value_of(str_of(p, (size_t)(value_end - p)));
    it->rest = str_of(value_end, (size_t)(end - value_end));
    return true;
}

bool json_get(const struct json_value *object, struct str name, struct json_value *value)
{
    struct json_iter it;
    struct json_value member;
    struct str key;
    bool found = false;

    if (object->type != JSON_OBJECT)
        return false;
    json_iter_init(&it, object);
    while (json_iter_next(&it, &key, &member)) {
        if (json_str_eq(key, name)) {
            *value = member;
            found = true;
        }
    }
    return found;
}

bool json_get_string(const struct json_value *object, struct str name, struct json_value *value)
{
    return json_get(object, name, value) && value->type == JSON_STRING;
}

bool json_get_i64(const struct json_value *object, struct str name, int64_t *number)
{
    struct json_value value;
    return json_get(object, name, &value) && json_to_i64(&value, number);
}

struct str json_get_text(const struct json_value *object, struct str name, struct arena *arena)
{
    struct json_value value;

    return json_get_string(object, name, &value) ? json_str_decode(value.raw, arena) : STR_NONE;
}

bool json_has_duplicates(const struct json_value *object, struct arena *arena)
{
    struct str name;
    return json_find_duplicate(object, arena, &name);
}

/* By an open-addressed table of a power of two slots, which hold 1 + where a name begins in the object: members of a few bytes need
 * less for their table than for themselves. It is freed at once, since a request may wait with its arena. */
bool json_find_duplicate(const struct json_value *object, struct arena *arena, struct str *name)
{
    enum { FEW = 64 };
    const char *begin = object->raw.ptr, *end = begin + object->raw.len;
    struct json_iter it;
    struct json_value member;
    struct str key;
    struct arena scratch = ARENA(4096);
    size_t count = 0, slots = FEW;
    uint32_t few[FEW] = {0}, *table = few;
    bool is_found = false;

    if (object->type != JSON_OBJECT)
        return false;
    assert(object->raw.len < UINT32_MAX);
    json_iter_init(&it, object);
    while (json_iter_next(&it, &key, &member))
        count++;
    while (slots < count * 2)
        slots *= 2;
    if (slots > FEW)
        table = memory_zalloc(slots * sizeof *table);
    json_iter_init(&it, object);
    while (!is_found && json_iter_next(&it, &key, &member)) {
        struct str decoded = json_str_decode(key, &scratch);
        size_t at = (size_t)hash_seeded(decoded) & (slots - 1);
        for (; table[at] && !is_found; at = (at + 1) & (slots - 1)) {
            const char *other = begin + table[at] - 1;
            is_found = json_str_eq(str_of(other, (size_t)(skip_string(other, end) - other)), decoded);
        }
        table[at] = (uint32_t)(key.ptr - begin) + 1;
        arena_reset(&scratch);
    }
    if (is_found)
        *name = json_str_decode(key, arena);
    if (table != few)
        free(table);
    arena_deinit(&scratch);
    return is_found;
}

static struct str inside_quotes(struct str raw_string)
{
    return raw_string.len >= 2 ? str_of(raw_string.ptr + 1, raw_string.len - 2) : STR("");
}

static bool has_escapes(struct str inside)
{
    return inside.len > 0 && memchr(inside.ptr, '\\', inside.len) != NULL;
}

static unsigned hex4(const char *at)
{
    uint8_t bytes[2] = {0};

    (void)hex_get(at, bytes, 2);
    return (unsigned)bytes[0] << 8 | bytes[1];
}

static size_t put_utf8(char out[4], unsigned code)
{
    static const unsigned lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t len = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

    for (size_t i = len - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[len] | code);
    return len;
}

/* Decodes the escape at *rest and takes it off; returns how many bytes it means. No escape is shorter than
 * that. */
static size_t take_escape(struct str *rest, char out[4])
{
    const char *p = rest->ptr;
    size_t used = 2, len = 1;

    out[0] = rest->len > 1 ? p[1] : '\\';
    switch (out[0]) {
    case 'b': out[0] = '\b'; break;
    case 'f': out[0] = '\f'; break;
    case 'n': out[0] = '\n'; break;
    case 'r': out[0] = '\r'; break;
    case 't': out[0] = '\t'; break;
    case 'u':
        if (rest->len >= 6) {
            unsigned code = hex4(p + 2);
            used = 6;
            if (code >= 0xD800 && code <= 0xDBFF && rest->len >= 12) {
                code = 0x10000 + ((code & 0x3FF) << 10) + (hex4(p + 8) & 0x3FF);
                used = 12;
            }
            len = put_utf8(out, code);
        }
        break;
    default: break; /* quote, backslash and slash mean themselves */
    }
    used = used < rest->len ? used : rest->len;
    *rest = str_skip(*rest, used);
    return len;
}

/* Takes what comes next off *rest: a run without escapes as it stands, or one escape decoded into
 * `scratch`. */
static struct str take_piece(struct str *rest, char scratch[4])
{
    const char *escape = memchr(rest->ptr, '\\', rest->len);

    if (escape == rest->ptr)
        return str_of(scratch, take_escape(rest, scratch));
    size_t len = escape ? (size_t)(escape - rest->ptr) : rest->len;
    struct str run = str_of(rest->ptr, len);
    *rest = str_skip(*rest, len);
    return run;
}

bool json_str_eq(struct str raw_string, struct str text)
{
    struct str rest = inside_quotes(raw_string);
    char scratch[4];

    if (!has_escapes(rest))
        return str_eq(rest, text);
    while (rest.len > 0) {
        struct str piece = take_piece(&rest, scratch);
        if (!str_starts_with(text, piece))
            return false;
        text = str_skip(text, piece.len);
    }
    return text.len == 0;
}

struct str json_str_decode(struct str raw_string, struct arena *arena)
{
    struct str rest = inside_quotes(raw_string);
    char scratch[4];

    if (!has_escapes(rest))
        return rest;
    char *out = arena_alloc(arena, rest.len + 1);
    size_t len = 0;
    while (rest.len > 0) {
        struct str piece = take_piece(&rest, scratch);
        len = (size_t)(str_put(out + len, piece) - out);
    }
    out[len] = '\0';
    return str_of(out, len);
}

/* Backslashes stand only in strings and always begin an escape, so going from one escape to the next needs
 * no look at quotes. */
bool json_has_nul_escape(struct str raw)
{
    while (raw.len > 0) {
        const char *at = memchr(raw.ptr, '\\', raw.len);
        if (!at)
            return false;
        raw = str_of(at, raw.len - (size_t)(at - raw.ptr));
        if (str_starts_with(raw, STR("\\u0000")))
            return true;
        size_t skip = raw.len < 2 ? raw.len : 2;
        raw = str_skip(raw, skip);
    }
    return false;
}

bool json_to_i64(const struct json_value *value, int64_t *out)
{
    return value->type == JSON_NUMBER && str_to_i64(value->raw, out);
}

bool json_to_double(const struct json_value *value, double *out)
{
    if (value->type != JSON_NUMBER)
        return false;
    char *text = str_dup(value->raw); /* strtod() needs an end */
    double parsed = strtod(text, NULL);
    free(text);
    if (!isfinite(parsed))
        return false;
    *out = parsed;
    return true;
}

/* ---- writing: appends to a buffer, never more than json_string_size(), so that the buffer may be a fixed one ---- */

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

static void put_comma(struct buf *out)
{
    char last = buf_len(out) > 0 ? out->data[out->end - 1] : '{';

    if (last != '{' && last != '[' && last != ':')
        buf_put_char(out, ',');
}

void json_put_key(struct buf *out, struct str name)
{
    put_comma(out);
    json_put_string(out, name);
    buf_put_char(out, ':');
}

void json_put_open(struct buf *out, const char *name, char bracket)
{
    if (name)
        json_put_key(out, str_from(name));
    else
        put_comma(out);
    buf_put_char(out, bracket);
}

void json_put_member_str(struct buf *out, const char *name, struct str text)
{
    json_put_key(out, str_from(name));
    json_put_string(out, text);
}

void json_put_member_str_or_null(struct buf *out, const char *name, struct str text)
{
    if (text.ptr)
        json_put_member_str(out, name, text);
    else
        json_put_member_raw(out, name, STR("null"));
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
