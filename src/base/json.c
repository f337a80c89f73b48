/* The JSON scanner: checks a whole text in one pass and keeps nothing but where it began and ended.
 *
 * No recursion: what is open is one bit a level (object or array), so the depth of the input costs no
 * stack. Reading the values afterwards is json_value.c, which trusts what was checked here. */
#include "base/json.h"

#include <stdio.h>

#include "base/hex.h"
#include "base/json_plain.h"

struct scan {
    const char *start, *p, *end;
    unsigned depth, depth_max;
    uint64_t is_object[JSON_DEPTH_LIMIT / 64]; /* a bit a level */
    const char *problem;                       /* set by fail(); p is where */
    size_t growth, growth_max;                 /* bytes that numbers take more, printed without an exponent */
    size_t digits_max;                         /* of one number */
    bool is_too_long;                          /* the problem is a number that becomes too long */
};

static bool fail(struct scan *s, const char *at, const char *problem)
{
    s->p = at;
    s->problem = problem;
    return false;
}

static inline void skip_space(struct scan *s)
{
    while (s->p < s->end && json_is_space(*s->p))
        s->p++;
}

/* The next byte, or NUL at the end: a NUL is valid nowhere outside a string, nor inside. */
static char peek(const struct scan *s)
{
    return s->p < s->end ? *s->p : '\0';
}

static bool scan_hex4(struct scan *s, const char *at, unsigned *unit)
{
    uint8_t bytes[2];

    if (s->end - at < 4 || !hex_get(at, bytes, 2))
        return fail(s, at, "\\u needs four hexadecimal digits");
    *unit = (unsigned)bytes[0] << 8 | bytes[1];
    return true;
}

/* At the backslash. A high surrogate must be followed by a low one, and neither may stand alone. */
static bool scan_escape(struct scan *s)
{
    const char *at = s->p;
    unsigned unit, low;

    if (s->end - at < 2)
        return fail(s, s->end, "the text ends inside a string");
    s->p = at + 2;
    if (at[1] != 'u')
        return (at[1] && strchr("\"\\/bfnrt", at[1])) || fail(s, at, "no such escape");
    if (!scan_hex4(s, at + 2, &unit))
        return false;
    s->p = at + 6;
    if (unit < 0xD800 || unit > 0xDFFF)
        return true;
    if (unit > 0xDBFF || s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u')
        return fail(s, at, "a surrogate stands alone");
    if (!scan_hex4(s, at + 8, &low))
        return false;
    s->p = at + 12;
    return (low >= 0xDC00 && low <= 0xDFFF) || fail(s, at, "a surrogate stands alone");
}

/* At the opening quote. */
static bool scan_string(struct scan *s)
{
    s->p++;
    for (;;) {
        s->p = json_plain_end(s->p, s->end);
        if (s->p == s->end)
            return fail(s, s->p, "the text ends inside a string");
        unsigned char c = (unsigned char)*s->p;
        if (c == '"') {
            s->p++;
            return true;
        }
        if (c < 0x20)
            return fail(s, s->p, "a control character must be escaped");
        if (c == '\\' && !scan_escape(s))
            return false;
        /* Characters past ASCII come in runs, so they are walked without going back for a plain run between each. */
        while (c >= 0x80 && s->p < s->end && (unsigned char)*s->p >= 0x80) {
            size_t len = str_utf8_char(str_of(s->p, (size_t)(s->end - s->p)));
            if (len == 0)
                return fail(s, s->p, "the bytes are not UTF-8");
            s->p += len;
        }
    }
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool scan_digits(struct scan *s)
{
    if (!is_digit(peek(s)))
        return fail(s, s->p, "a digit is missing");
    while (is_digit(peek(s)))
        s->p++;
    return true;
}

static bool fail_too_long(struct scan *s, const char *at, const char *problem)
{
    s->is_too_long = true;
    return fail(s, at, problem);
}

static bool check_digits(struct scan *s, const char *start, size_t digits)
{
    return digits <= s->digits_max ||
           fail_too_long(s, start, "a number would be printed with more than 1000 digits");
}

#define EXPONENT_MAX 100000000 /* more makes no difference, and sums of it do not overflow */

/* At the exponent of the number that begins at `start` and has so many digits before and after the point. */
static bool scan_exponent(struct scan *s, const char *start, size_t whole, size_t fraction)
{
    size_t exponent = 0;

    s->p++;
    bool is_negative = peek(s) == '-';
    if (peek(s) == '+' || peek(s) == '-')
        s->p++;
    const char *first = s->p;
    if (!scan_digits(s))
        return false;
    for (const char *p = first; p < s->p; p++)
        exponent = exponent > EXPONENT_MAX ? exponent : exponent * 10 + (size_t)(*p - '0');
    /* The point moves by the exponent. Where it leaves the digits, zeros fill the gap. */
    size_t moved = is_negative ? whole : fraction, gained = exponent > moved ? exponent - moved : 0;
    size_t digits = whole + fraction + gained + (is_negative && gained), len = (size_t)(s->p - start);
    if (!check_digits(s, start, digits))
        return false;
    s->growth += digits > len ? digits - len : 0;
    return s->growth <= s->growth_max ||
           fail_too_long(s, start, "the numbers would be printed with too many digits");
}

static bool scan_number(struct scan *s)
{
    const char *start = s->p;
    size_t fraction = 0;

    if (peek(s) == '-')
        s->p++;
    const char *first = s->p;
    if (peek(s) == '0') {
        s->p++;
        if (is_digit(peek(s)))
            return fail(s, s->p, "a number has no leading zero");
    } else if (!scan_digits(s)) {
        return false;
    }
    size_t whole = (size_t)(s->p - first);
    if (peek(s) == '.') {
        first = ++s->p;
        if (!scan_digits(s))
            return false;
        fraction = (size_t)(s->p - first);
    }
    if (peek(s) == 'e' || peek(s) == 'E')
        return scan_exponent(s, start, whole, fraction);
    return check_digits(s, start, whole + fraction);
}

static bool scan_word(struct scan *s, struct str word)
{
    if (!str_starts_with(str_of(s->p, (size_t)(s->end - s->p)), word))
        return fail(s, s->p, "a value must begin here");
    s->p += word.len;
    return true;
}

static bool scan_scalar(struct scan *s)
{
    switch (peek(s)) {
    case '"': return scan_string(s);
    case 't': return scan_word(s, STR("true"));
    case 'f': return scan_word(s, STR("false"));
    case 'n': return scan_word(s, STR("null"));
    case '-':
    case '0' ... '9': return scan_number(s);
    default: return fail(s, s->p, s->p < s->end ? "a value must begin here" : "a value is missing");
    }
}

/* A member's name and its colon. */
static bool scan_name(struct scan *s)
{
    skip_space(s);
    if (peek(s) != '"')
        return fail(s, s->p, "a member's name must begin here");
    if (!scan_string(s))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return fail(s, s->p, "a colon is missing");
    s->p++;
    return true;
}

static bool scan_value(struct scan *s)
{
    for (;;) {
        skip_space(s);
        char c = peek(s);
        if (c == '{' || c == '[') {
            uint64_t *levels = &s->is_object[s->depth / 64], bit = UINT64_C(1) << (s->depth % 64);
            if (s->depth >= s->depth_max)
                return fail(s, s->p, "nested too deep");
            *levels = c == '{' ? *levels | bit : *levels & ~bit;
            s->depth++;
            s->p++;
            skip_space(s);
            if (peek(s) != (c == '{' ? '}' : ']')) {
                if (c == '{' && !scan_name(s))
                    return false;
                continue;
            }
        } else if (!scan_scalar(s)) {
            return false;
        }
        /* Closes what ends here, up to a comma or the end of the outermost. */
        for (;;) {
            if (s->depth == 0)
                return true;
            unsigned level = s->depth - 1;
            bool object = s->is_object[level / 64] >> (level % 64) & 1;
            skip_space(s);
            if (peek(s) == ',') {
                s->p++;
                if (object && !scan_name(s))
                    return false;
                break;
            }
            if (peek(s) != (object ? '}' : ']'))
                return fail(s, s->p, object ? "a comma or } is missing" : "a comma or ] is missing");
            s->p++;
            s->depth--;
        }
    }
}

struct json_value json_value_of(struct str raw)
{
    enum json_type type = JSON_NUMBER;

    switch (raw.ptr[0]) {
    case '{': type = JSON_OBJECT; break;
    case '[': type = JSON_ARRAY; break;
    case '"': type = JSON_STRING; break;
    case 't':
    case 'f': type = JSON_BOOL; break;
    case 'n': type = JSON_NULL; break;
    default: break;
    }
    return (struct json_value){.type = type, .raw = raw};
}

static void scan_begin(struct scan *s, struct str text, unsigned depth_max)
{
    if (text.len == 0)
        text = STR("");
    s->start = s->p = text.ptr;
    s->end = text.ptr + text.len;
    s->depth = 0;
    s->depth_max = depth_max < JSON_DEPTH_LIMIT ? depth_max : JSON_DEPTH_LIMIT;
    s->growth = 0;
    s->growth_max = s->digits_max = SIZE_MAX;
    s->is_too_long = false;
}

/* In which member the number at s->p stands: the first levels of the way to it. Each level is one look at the text. */
#define PATH_LEVELS 3
#define PATH_NAME_BYTES 18

static void name_place(const struct scan *s, char *out, size_t size)
{
    struct scan from_start = *s;
    size_t len = 0;

    from_start.p = s->start;
    skip_space(&from_start);
    struct json_value value = json_value_of(str_of(from_start.p, (size_t)(s->end - from_start.p))), member;
    out[0] = '\0';
    for (unsigned level = 0; level < PATH_LEVELS; level++) {
        struct json_iter it;
        struct str name;
        size_t index = 0;
        bool found = false;
        json_iter_init(&it, &value);
        while (!found && json_iter_next(&it, &name, &member)) {
            found = s->p < member.raw.ptr + member.raw.len;
            index += !found;
        }
        if (!found)
            return;
        if (name.len) { /* with its quotes */
            struct str text = str_utf8_cut(str_of(name.ptr + 1, name.len - 2), PATH_NAME_BYTES);
            len += (size_t)snprintf(out + len, size - len, "%s%.*s", len ? "." : "", STR_ARG(text));
        } else {
            len += (size_t)snprintf(out + len, size - len, "[%zu]", index);
        }
        value = member;
    }
}

static enum status parse(struct scan *s, struct json_value *value, struct error *error)
{
    char place[sizeof error->field] = "";

    skip_space(s);
    const char *first = s->p;
    if (s->end - s->start >= 3 && memcmp(s->start, "\xEF\xBB\xBF", 3) == 0) {
        fail(s, s->start, "a byte order mark is not allowed");
    } else if (scan_value(s)) {
        *value = json_value_of(str_of(first, (size_t)(s->p - first)));
        skip_space(s);
        if (s->p == s->end)
            return STATUS_OK;
        fail(s, s->p, "there is more after the value");
    }
    if (!s->is_too_long)
        return error_set(error, STATUS_BAD_REQUEST, "not valid JSON: %s (at byte %zu)", s->problem,
                         (size_t)(s->p - s->start));
    name_place(s, place, sizeof place);
    return error_set_field(error, STATUS_BAD_REQUEST, place, "%s%s%s", place, *place ? ": " : "", s->problem);
}

enum status json_parse(struct str text, unsigned depth_max, struct json_value *value, struct error *error)
{
    struct scan s;

    scan_begin(&s, text, depth_max);
    s.digits_max = JSON_NUMBER_DIGITS_MAX;
    s.growth_max = text.len > JSON_GROWTH_BYTES_MAX ? text.len : JSON_GROWTH_BYTES_MAX;
    return parse(&s, value, error);
}

enum status json_parse_stored(struct str text, unsigned depth_max, struct json_value *value,
                              struct error *error)
{
    struct scan s;

    scan_begin(&s, text, depth_max);
    return parse(&s, value, error);
}

size_t json_printed_size(struct str raw)
{
    struct scan s;

    scan_begin(&s, raw, JSON_DEPTH_LIMIT);
    (void)scan_value(&s); /* it was validated */
    return raw.len + s.growth;
}
