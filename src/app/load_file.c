/* Lines to items, read twice: so a file that can't be rewound is copied first. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app/load.h"
#include "base/json.h"

enum { KEY_BYTES_MAX = 1024 };

/* ---- life ---- */

/* Into a file without a name, gone with the process. */
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
    arena_init(&file->names, 1024), arena_init(&file->arena, 4096);
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

enum status load_file_rewind(struct load_file *file, struct error *error)
{
    file->line_number = 0;
    clearerr(file->stream);
    if (fseeko(file->stream, file->start, SEEK_SET) != 0)
        return error_set(error, STATUS_IO, "%s: %s", file->name, strerror(errno));
    return file->format == LOAD_CSV ? load_csv_header(file, error) : STATUS_OK;
}

enum status load_file_wrong(const struct load_file *file, uint64_t line, struct error *error,
                            const char *what)
{
    return error_set(error, STATUS_BAD_REQUEST, "%s:%llu: %s", file->name, (unsigned long long)line, what);
}

/* ---- lines ---- */

bool load_file_line(struct load_file *file, struct str *line)
{
    static const struct str mark = {"\xEF\xBB\xBF", 3};
    ssize_t len = getline(&file->line, &file->line_capacity, file->stream);
    if (len < 0)
        return false;
    *line = str_of(file->line, (size_t)len);
    if (str_ends_with(*line, STR("\n")))
        line->len--;
    if (str_ends_with(*line, STR("\r")))
        line->len--;
    if (file->line_number++ == 0 && str_starts_with(*line, mark))
        *line = str_of(line->ptr + mark.len, line->len - mark.len);
    return true;
}

static bool is_blank(struct str line)
{
    return str_trim(line).len == 0;
}

/* ---- items ---- */

const char *load_key_mistake(struct str key)
{
    if (key.len == 0)
        return "the key is empty";
    if (key.len > KEY_BYTES_MAX)
        return "the key has more than 1024 bytes";
    return memchr(key.ptr, '\0', key.len) ? "the key holds NUL" : NULL;
}

void load_file_put_item(struct buf *out, struct str key_json, struct str payload_json)
{
    buf_put_str(out, STR("{\"key\":"));
    buf_put_str(out, key_json);
    buf_put_str(out, STR(",\"payload\":"));
    buf_put_str(out, payload_json);
    buf_put_char(out, '}');
}

/* {"key","payload"} and nothing else; NULL = it is one. */
static const char *read_item(struct load_file *file, const struct json_value *item, struct str *key,
                             struct str *payload)
{
    struct json_iter it;
    struct json_value value;
    struct str name;
    *key = *payload = STR_NONE;
    json_iter_init(&it, item);
    while (json_iter_next(&it, &name, &value)) {
        struct str *into = json_str_eq(name, STR("key"))       ? key
                           : json_str_eq(name, STR("payload")) ? payload
                                                               : NULL;
        if (!into || into->len)
            return "a line is {\"key\":…,\"payload\":…}, each once and nothing else";
        if (into == key && value.type != JSON_STRING)
            return "the key must be a string";
        *into = value.raw;
    }
    if (!key->len || !payload->len)
        return "a line is {\"key\":…,\"payload\":…}";
    if (json_has_nul_escape(*payload))
        return "the payload holds \\u0000, which PostgreSQL cannot store";
    return load_key_mistake(json_str_decode(*key, &file->arena));
}

static enum status next_ndjson(struct load_file *file, struct buf *out, bool *has_item, struct error *error)
{
    struct str line, key, payload;
    struct json_value item;
    struct error detail;
    do
        if (!load_file_line(file, &line))
            return STATUS_OK;
    while (is_blank(line));
    file->item_line = file->line_number;
    if (json_parse(line, JSON_DEPTH_LIMIT, &item, &detail) != STATUS_OK)
        return load_file_wrong(file, file->item_line, error, detail.message);
    if (item.type != JSON_OBJECT)
        return load_file_wrong(file, file->item_line, error, "a line is {\"key\":…,\"payload\":…}");
    const char *mistake = read_item(file, &item, &key, &payload);
    if (mistake)
        return load_file_wrong(file, file->item_line, error, mistake);
    load_file_put_item(out, key, payload);
    *has_item = true;
    return STATUS_OK;
}

enum status load_file_next(struct load_file *file, struct buf *out, bool *has_item, struct error *error)
{
    *has_item = false;
    arena_reset(&file->arena);
    enum status status = file->format == LOAD_CSV ? load_csv_next(file, out, has_item, error)
                                                  : next_ndjson(file, out, has_item, error);
    if (status == STATUS_OK && !*has_item && ferror(file->stream))
        return error_set(error, STATUS_IO, "%s: %s", file->name, strerror(errno));
    return status;
}
