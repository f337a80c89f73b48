/* CSV as RFC 4180 has it: commas, quotes that are doubled inside quotes, line breaks inside quotes. The key's
 * column is the key; every other one becomes a string member of the payload, by its name in the header. */
#include <stdlib.h>

#include "app/load.h"
#include "base/json.h"
#include "base/memory.h"

enum { COLUMNS_MAX = 10000 };

static bool has_odd_quotes(struct str text)
{
    bool odd = false;
    for (const char *at = text.ptr, *end = text.ptr + text.len;
         (at = memchr(at, '"', (size_t)(end - at))) != NULL; at++)
        odd = !odd;
    return odd;
}

/* A record into file->record; *has_record is false at the end. Blank lines are none. */
static enum status read_record(struct load_file *file, bool *has_record, struct error *error)
{
    struct str line;
    bool is_open = false;
    *has_record = false;
    buf_clear(&file->record);
    while (load_file_line(file, &line)) {
        if (!is_open && line.len == 0)
            continue;
        if (!*has_record)
            file->item_line = file->line_number;
        else
            buf_put_char(&file->record, '\n');
        *has_record = true;
        buf_put_str(&file->record, line);
        is_open ^= has_odd_quotes(line);
        if (!is_open)
            break;
    }
    if (is_open)
        return load_file_wrong(file, file->item_line, error, "a quote is not closed");
    if (!str_is_utf8(buf_str(&file->record)) ||
        (*has_record && memchr(buf_str(&file->record).ptr, '\0', buf_len(&file->record))))
        return load_file_wrong(file, file->item_line, error, "not UTF-8, or with NUL");
    return STATUS_OK;
}

/* Takes one field off *rest. Returns what is wrong with it, or NULL; *is_last is set behind the last one. */
static const char *take_field(struct str *rest, struct arena *arena, struct str *field, bool *is_last)
{
    if (rest->len == 0 || rest->ptr[0] != '"') {
        const char *comma = rest->len ? memchr(rest->ptr, ',', rest->len) : NULL;
        size_t len = comma ? (size_t)(comma - rest->ptr) : rest->len;
        *field = str_of(rest->ptr, len);
        *is_last = !comma;
        *rest = str_of(rest->ptr + len + !!comma, rest->len - len - !!comma);
        return len && memchr(field->ptr, '"', len) ? "a quote inside a field that is not quoted" : NULL;
    }
    char *text = arena_alloc(arena, rest->len);
    size_t len = 0, at = 1;
    for (; at < rest->len; at++) {
        if (rest->ptr[at] != '"')
            text[len++] = rest->ptr[at];
        else if (at + 1 < rest->len && rest->ptr[at + 1] == '"')
            text[len++] = rest->ptr[at++];
        else
            break;
    }
    at++; /* the closing quote: read_record() has made sure of it */
    *field = str_of(text, len);
    *is_last = at >= rest->len;
    if (!*is_last && rest->ptr[at] != ',')
        return "text behind a closing quote";
    *rest = *is_last ? STR_NONE : str_of(rest->ptr + at + 1, rest->len - at - 1);
    return NULL;
}

/* ---- the header ---- */

static const char *add_column(struct load_file *file, struct str name, struct arena *arena)
{
    if (name.len == 0)
        return "a column has no name";
    if (file->column_count == COLUMNS_MAX)
        return "too many columns";
    for (size_t i = 0; i < file->column_count; i++)
        if (str_eq(file->columns[i], name))
            return "two columns have the same name";
    file->columns = memory_realloc_array(file->columns, file->column_count + 1, sizeof *file->columns);
    file->columns[file->column_count++] = arena_str(arena, name);
    return NULL;
}

static enum status find_key(struct load_file *file, struct error *error)
{
    file->key_index = 0;
    if (!file->key_column)
        return STATUS_OK;
    for (; file->key_index < file->column_count; file->key_index++)
        if (str_eq(file->columns[file->key_index], str_from(file->key_column)))
            return STATUS_OK;
    return error_set(error, STATUS_BAD_REQUEST, "%s:%llu: there is no column called %s", file->name,
                     (unsigned long long)file->item_line, file->key_column);
}

enum status load_csv_header(struct load_file *file, struct error *error)
{
    bool has_record, is_last = false;
    struct str field;
    enum status status = read_record(file, &has_record, error);
    if (status != STATUS_OK)
        return status;
    if (!has_record)
        return load_file_wrong(file, 1, error, "the header with the columns' names is missing");
    struct str rest = buf_str(&file->record);
    file->column_count = 0;
    arena_reset(&file->names);
    while (!is_last) {
        const char *mistake = take_field(&rest, &file->names, &field, &is_last);
        if (!mistake)
            mistake = add_column(file, field, &file->names);
        if (mistake)
            return load_file_wrong(file, file->item_line, error, mistake);
    }
    return find_key(file, error);
}

/* ---- records ---- */

/* The columns of the record: the key decoded, the payload as JSON. Returns what is wrong, or NULL. */
static const char *read_fields(struct load_file *file, struct str *key, struct buf *payload)
{
    struct str rest = buf_str(&file->record), field;
    bool is_last = false;
    size_t at = 0;
    buf_put_char(payload, '{');
    for (; !is_last; at++) {
        const char *mistake = take_field(&rest, &file->arena, &field, &is_last);
        if (mistake)
            return mistake;
        if (at >= file->column_count)
            return "more fields than the header has columns";
        if (at == file->key_index) {
            *key = field;
            continue;
        }
        json_put_key(payload, file->columns[at]);
        json_put_string(payload, field);
    }
    buf_put_char(payload, '}');
    return at < file->column_count ? "fewer fields than the header has columns" : load_key_mistake(*key);
}

enum status load_csv_next(struct load_file *file, struct buf *out, bool *has_item, struct error *error)
{
    struct buf key_json, payload;
    struct str key = STR_NONE;
    enum status status = read_record(file, has_item, error);
    if (status != STATUS_OK || !*has_item)
        return status;
    buf_init(&key_json), buf_init(&payload);
    const char *mistake = read_fields(file, &key, &payload);
    if (mistake) {
        status = load_file_wrong(file, file->item_line, error, mistake);
    } else {
        json_put_string(&key_json, key);
        load_file_put_item(out, buf_str(&key_json), buf_str(&payload));
    }
    buf_deinit(&key_json), buf_deinit(&payload);
    return status;
}
