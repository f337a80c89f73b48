/* Any bytes: the scanner accepts or refuses them; what it accepts can be walked to the bottom and decoded,
 * and what we write of it is accepted again. */
#include <stdlib.h>

#include "base/json.h"
#include "base/json_texts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_string(struct str raw, struct arena *arena)
{
    struct str text = json_str_decode(raw, arena);
    struct json_value again;
    struct buf out = {0};

    check(str_is_utf8(text));
    check(json_str_eq(raw, text));
    check((text.len > 0 && memchr(text.ptr, '\0', text.len) != NULL) == json_has_nul_escape(raw));
    json_put_string(&out, text);
    check(buf_len(&out) == json_string_size(text));
    check(json_parse(buf_str(&out), 0, &again, NULL) == STATUS_OK);
    check(str_eq(json_str_decode(again.raw, arena), text));
    buf_deinit(&out);
}

/* A number that was accepted is short, whatever its exponent makes of it. */
static void check_number(struct str raw)
{
    const char *e = memchr(raw.ptr, 'e', raw.len), *end = raw.ptr + raw.len;
    size_t exponent = 0;

    e = e ? e : memchr(raw.ptr, 'E', raw.len);
    for (const char *p = e ? e + 1 : end; p < end && exponent < SIZE_MAX / 20; p++)
        exponent = *p >= '0' && *p <= '9' ? exponent * 10 + (size_t)(*p - '0') : exponent;
    check(e || raw.len <= JSON_NUMBER_DIGITS_MAX + 2);
    check(exponent <= JSON_NUMBER_DIGITS_MAX + raw.len);
    check(json_printed_size(raw) <= JSON_GROWTH_FACTOR_MAX * raw.len);
}

static void check_scalar(const struct json_value *value, struct arena *arena)
{
    int64_t integer;
    double real;

    if (value->type == JSON_STRING)
        check_string(value->raw, arena);
    if (value->type == JSON_NUMBER)
        check_number(value->raw);
    if (json_to_i64(value, &integer))
        check(json_to_double(value, &real));
}

/* Recursion is as deep as json_parse() allowed. */
static void check_value(const struct json_value *value, struct arena *arena)
{
    struct json_value member, again;
    struct json_iter it;
    struct str name;

    check(json_parse(value->raw, JSON_DEPTH_MAX, &again, NULL) == STATUS_OK);
    check(again.type == value->type && str_eq(again.raw, value->raw));
    check(json_parse_stored(value->raw, JSON_DEPTH_MAX, &again, NULL) == STATUS_OK);
    check(json_printed_size(value->raw) >= value->raw.len);
    check_scalar(value, arena);
    json_iter_init(&it, value);
    while (json_iter_next(&it, &name, &member)) {
        if (value->type == JSON_OBJECT) {
            check_string(name, arena);
            check(json_get(value, json_str_decode(name, arena), &again));
        }
        check_value(&member, arena);
    }
    (void)json_has_duplicates(value, arena);
}

/* As a body of which one member is a text: what is kept of the rest is a body again. */
static void check_texts(struct str body, struct arena *arena)
{
    static const struct json_text rows[] = {{"a", 0, 100, .is_plain = true}, {.name = NULL}};
    struct str text, again;
    struct buf others = {0}, out = {0}, more = {0};
    struct error error;

    if (json_texts_read(body, rows, &text, &others, arena, &error) == STATUS_OK) {
        check(!json_has_nul_escape(buf_str(&others)) && text.len <= 400);
        buf_put_str(&out, STR("{\"a\":"));
        json_put_string(&out, text);
        buf_put_str(&out, buf_str(&others));
        buf_put_char(&out, '}');
        check(json_texts_read(buf_str(&out), rows, &again, &more, arena, &error) == STATUS_OK);
        check(str_eq(text, again) && str_eq(buf_str(&others), buf_str(&more)));
    } else {
        check(error.status == STATUS_BAD_REQUEST);
    }
    buf_deinit(&others);
    buf_deinit(&out);
    buf_deinit(&more);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = str_of((const char *)data, size);
    struct json_value value;
    struct error error;
    struct arena arena = ARENA(4096);

    if (json_parse(text, JSON_DEPTH_MAX, &value, &error) == STATUS_OK) {
        check(str_is_utf8(text));
        check_value(&value, &arena);
    } else {
        check(error.status == STATUS_BAD_REQUEST);
    }
    check_texts(text, &arena);
    arena_deinit(&arena);
    return 0;
}
