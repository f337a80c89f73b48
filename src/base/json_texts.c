/* Texts of a request's body, by a table of their names and limits. */
#include "base/json_texts.h"

#include <assert.h>

#include "base/json.h"

static enum status refuse_text(struct error *error, struct str name, const char *why)
{
    char field[sizeof error->field];
    str_copy(field, sizeof field, name);
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

static bool is_plain(struct str text)
{
    bool is_blank = true;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c < 0x20 || c == 0x7F)
            return false;
        is_blank &= c == ' ';
    }
    return !is_blank;
}

static enum status read_text(const struct json_text *row, const struct json_value *value, struct str *text,
                             struct arena *arena, struct error *error)
{
    struct str name = str_from(row->name);
    size_t chars = 0;
    *text = STR_NONE;
    if (value->raw.len == 0 || (row->is_optional && value->type == JSON_NULL))
        return row->is_optional || row->is_reserved ? STATUS_OK : refuse_text(error, name, "is missing");
    if (value->type != JSON_STRING)
        return refuse_text(error, name, "must be a string");
    *text = json_str_decode(value->raw, arena);
    for (size_t i = 0; i < text->len; i++)
        chars += ((unsigned char)text->ptr[i] & 0xC0) != 0x80;
    if (chars < row->chars_min || chars > row->chars_max)
        return error_set_field(error, STATUS_BAD_REQUEST, row->name, "%s must be %u to %u characters long",
                               row->name, row->chars_min, row->chars_max);
    if (row->is_plain && text->len > 0 && !is_plain(*text))
        return refuse_text(error, name, "must not be blank or hold control characters");
    return STATUS_OK;
}

/* Puts what the table knows into `values` and the rest into `others`. */
static enum status sort_members(const struct json_value *object, const struct json_text *rows,
                                struct json_value *values, struct buf *others, struct arena *arena,
                                struct error *error)
{
    struct json_iter it;
    struct json_value value;
    struct str raw;

    if (json_find_duplicate(object, arena, &raw))
        return refuse_text(error, raw, "comes more than once");
    json_iter_init(&it, object);
    while (json_iter_next(&it, &raw, &value)) {
        size_t at = 0;
        while (rows[at].name && !json_str_eq(raw, str_from(rows[at].name)))
            at++;
        if (json_has_nul_escape(raw) || json_has_nul_escape(value.raw))
            return refuse_text(error, json_has_nul_escape(raw) ? STR("a name") : json_str_decode(raw, arena),
                               "must not hold \\u0000");
        if (rows[at].is_reserved)
            return refuse_text(error, str_from(rows[at].name), "is given by the server");
        if (rows[at].name) {
            values[at] = value;
            continue;
        }
        if (!others)
            return refuse_text(error, json_str_decode(raw, arena), "there is no such member");
        buf_put_char(others, ',');
        buf_put_str(others, raw);
        buf_put_char(others, ':');
        buf_put_str(others, value.raw);
    }
    return STATUS_OK;
}

enum status json_texts_read(struct str body, const struct json_text *rows, struct str *texts,
                            struct buf *others, struct arena *arena, struct error *error)
{
    struct json_value values[JSON_TEXTS_MAX] = {0}, object;
    enum status status = json_parse(body, JSON_DEPTH_MAX, &object, error);
    if (status != STATUS_OK)
        return status;
    if (object.type != JSON_OBJECT)
        return error_set(error, STATUS_BAD_REQUEST, "the body must be a JSON object");
    status = sort_members(&object, rows, values, others, arena, error);
    for (size_t i = 0; status == STATUS_OK && rows[i].name; i++) {
        assert(i < JSON_TEXTS_MAX);
        status = read_text(&rows[i], &values[i], &texts[i], arena, error);
    }
    return status;
}
