/* A file's lines as items, NDJSON or CSV. It is read twice, so a file that cannot be rewound is copied first.
 *
 * CSV is RFC 4180: commas, quotes that are doubled inside quotes, line breaks inside quotes. The first record names the
 * columns. One column is the key; every other becomes a string member of the payload, by its name.
 *
 * What is wrong with a line is a text, NULL = nothing; load_file_next() and load_file_rewind() add where it is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app/load.h"
#include "base/json.h"
#include "base/memory.h"

enum { KEY_BYTES_MAX = 1024, COLUMNS_MAX = 10000 };

/* ---- life ---- */

/* Into a file without a name, removed with the process. */
static FILE *copy_stream(FILE *from)
{
    char bytes[65536];
    size_t len;
    FILE *copy = tmpfile();
    while (copy && (len = fread(bytes, 1, sizeof bytes, from)) > 0)
        if (fwrite(bytes, 1, len, copy) != len)
            break;
    if (copy && !ferror(from) && feof(from) && fflush(copy) == 0)
        return copy;
    if (copy)
        fclose(copy);
    return NULL;
}

enum status load_file_open(struct load_file *file, const char *path, struct error *error)
{
    bool is_stdin = strcmp(path, "-") == 0;
    file->name = is_stdin ? "standard input" : path;
    file->names = ARENA(1024);
    file->arena = ARENA(4096);
    FILE *stream = is_stdin ? stdin : fopen(path, "r");
    if (stream && (file->start = ftello(stream)) < 0) {
        file->start = 0;
        FILE *copy = copy_stream(stream);
        if (!is_stdin)
            fclose(stream);
        stream = copy;
    }
    file->stream = stream;
    return stream ? STATUS_OK : error_set(error, STATUS_IO, "%s: %s", file->name, strerror(errno));
}

void load_file_close(struct load_file *file)
{
    if (file->stream && file->stream != stdin)
        fclose(file->stream);
    free(file->line);
    free(file->columns);
    buf_deinit(&file->record);
    arena_deinit(&file->names), arena_deinit(&file->arena);
}

/* ---- lines and items ---- */

static bool read_line(struct load_file *file, struct str *line)
{
    static const struct str byte_order_mark = {"\xEF\xBB\xBF", 3};
    ssize_t len = getline(&file->line, &file->line_capacity, file->stream);
    if (len < 0)
        return false;
    *line = str_of(file->line, (size_t)len);
    if (str_ends_with(*line, STR("\n")))
        line->len--;
    if (str_ends_with(*line, STR("\r")))
        line->len--;
    if (file->line_number++ == 0 && str_starts_with(*line, byte_order_mark))
        *line = str_skip(*line, byte_order_mark.len);
    return true;
}

static const char *key_mistake(struct str key)
{
    if (key.len == 0)
        return "the key is empty";
    if (key.len > KEY_BYTES_MAX)
        return "the key has more than 1024 bytes";
    return memchr(key.ptr, '\0', key.len) ? "the key holds NUL" : NULL;
}

/* A line is {"key","payload"} and nothing else. */
static const char *next_ndjson(struct load_file *file, struct buf *out, bool *has_item)
{
    struct str line, name, key = STR_NONE, payload = STR_NONE;
    struct json_value item, value;
    struct json_iter it;
    struct error error;
    do
        if (!read_line(file, &line))
            return NULL;
    while (str_trim(line).len == 0);
    file->item_line = file->line_number;
    if (json_parse(line, JSON_DEPTH_LIMIT, &item, &error) != STATUS_OK)
        return arena_str(&file->arena, str_from(error.message)).ptr;
    if (item.type != JSON_OBJECT)
        return "a line is {\"key\":…,\"payload\":…}";
    json_iter_init(&it, &item);
    while (json_iter_next(&it, &name, &value)) {
        struct str *into = json_str_eq(name, STR("key"))       ? &key
                           : json_str_eq(name, STR("payload")) ? &payload
                                                               : NULL;
        if (!into || into->len)
            return "a line is {\"key\":…,\"payload\":…}, each once and nothing else";
        if (into == &key && value.type != JSON_STRING)
            return "the key must be a string";
        *into = value.raw;
    }
    if (!key.len || !payload.len)
        return "a line is {\"key\":…,\"payload\":…}";
    if (json_has_nul_escape(payload))
        return "the payload holds \\u0000, which PostgreSQL cannot store";
    buf_printf(out, "{\"key\":%.*s,\"payload\":", STR_ARG(key));
    buf_put_str(out, payload);
    buf_put_char(out, '}');
    *has_item = true;
    return key_mistake(json_str_decode(key, &file->arena));
}

/* ---- CSV ---- */

/* A record into file->record; *has_record is false at the end. Blank lines are skipped. */
static const char *read_record(struct load_file *file, bool *has_record)
{
    struct str line;
    bool is_open = false; /* inside quotes */
    *has_record = false;
    buf_clear(&file->record);
    while (read_line(file, &line)) {
        if (!is_open && line.len == 0)
            continue;
        if (!*has_record)
            file->item_line = file->line_number;
        else
            buf_put_char(&file->record, '\n');
        *has_record = true;
        buf_put_str(&file->record, line);
        for (const char *at = line.ptr, *end = line.ptr + line.len;
             (at = memchr(at, '"', (size_t)(end - at))) != NULL; at++)
            is_open = !is_open;
        if (!is_open)
            break;
    }
    if (is_open)
        return "a quote is not closed";
    struct str record = buf_str(&file->record);
    bool is_text = str_is_utf8(record) && !(*has_record && memchr(record.ptr, '\0', record.len));
    return is_text ? NULL : "not UTF-8, or with NUL";
}

/* Takes one field off *rest; *is_last is set after the last one. */
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
        return "text after a closing quote";
    *rest = *is_last ? STR_NONE : str_of(rest->ptr + at + 1, rest->len - at - 1);
    return NULL;
}

static const char *read_csv_header(struct load_file *file)
{
    bool has_record, is_last = false, has_key = !file->key_column;
    const char *mistake = read_record(file, &has_record);
    struct str rest = buf_str(&file->record), name;
    if (!mistake && !has_record) {
        file->item_line = 1;
        return "the header with the columns' names is missing";
    }
    file->column_count = file->key_index = 0;
    arena_reset(&file->names);
    while (!mistake && !is_last) {
        mistake = take_field(&rest, &file->names, &name, &is_last);
        if (mistake)
            break;
        if (name.len == 0)
            return "a column has no name";
        if (file->column_count == COLUMNS_MAX)
            return "too many columns";
        for (size_t i = 0; i < file->column_count; i++)
            if (str_eq(file->columns[i], name))
                return "two columns have the same name";
        if (file->key_column && str_eq(name, str_from(file->key_column))) {
            file->key_index = file->column_count;
            has_key = true;
        }
        file->columns = memory_realloc_array(file->columns, file->column_count + 1, sizeof *file->columns);
        file->columns[file->column_count++] = arena_str(&file->names, name);
    }
    if (!mistake && !has_key)
        return arena_printf(&file->arena, "there is no column called %s", file->key_column).ptr;
    return mistake;
}

static const char *next_csv(struct load_file *file, struct buf *out, bool *has_item)
{
    struct buf payload = {0};
    struct str key = STR_NONE, field, rest;
    bool is_last = false;
    size_t at = 0;
    const char *mistake = read_record(file, has_item);
    if (mistake || !*has_item)
        return mistake;
    rest = buf_str(&file->record);
    for (; !mistake && !is_last; at++) {
        mistake = take_field(&rest, &file->arena, &field, &is_last);
        if (!mistake && at >= file->column_count)
            mistake = "more fields than the header has columns";
        if (mistake)
            break;
        if (at == file->key_index)
            key = field;
        else
            json_put_member_str(&payload, file->columns[at].ptr, field);
    }
    if (!mistake)
        mistake = at < file->column_count ? "fewer fields than the header has columns" : key_mistake(key);
    buf_put_str(out, STR("{\"key\":"));
    json_put_string(out, key);
    buf_put_str(out, STR(",\"payload\":{"));
    buf_put_str(out, buf_str(&payload));
    buf_put_str(out, STR("}}"));
    buf_deinit(&payload);
    return mistake;
}

/* ---- either ---- */

static enum status line_error(const struct load_file *file, const char *mistake, struct error *error)
{
    return error_set(error, STATUS_BAD_REQUEST, "%s:%llu: %s", file->name,
                     (unsigned long long)file->item_line, mistake);
}

enum status load_file_rewind(struct load_file *file, struct error *error)
{
    file->line_number = 0;
    clearerr(file->stream);
    if (fseeko(file->stream, file->start, SEEK_SET) != 0)
        return error_set(error, STATUS_IO, "%s: %s", file->name, strerror(errno));
    const char *mistake = file->format == LOAD_CSV ? read_csv_header(file) : NULL;
    return mistake ? line_error(file, mistake, error) : STATUS_OK;
}

enum status load_file_next(struct load_file *file, struct buf *out, bool *has_item, struct error *error)
{
    *has_item = false;
    arena_reset(&file->arena);
    const char *mistake = (file->format == LOAD_CSV ? next_csv : next_ndjson)(file, out, has_item);
    if (mistake)
        return line_error(file, mistake, error);
    if (!*has_item && ferror(file->stream))
        return error_set(error, STATUS_IO, "%s: %s", file->name, strerror(errno));
    return STATUS_OK;
}
