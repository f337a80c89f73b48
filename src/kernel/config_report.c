/* Configuration errors: their list, their places in the file, and suggestions. */
#include "kernel/config_inside.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- the list of errors ----
 * The first goes to the caller's struct error, the first twenty to a buffer, one line each in the form that editors and terminals
 * can jump to. */

#define LINES_MAX 20

void config_report_va(struct config_report *report, struct setting_place place, struct str field,
                      const char *format, va_list args)
{
    struct buf line = {0};
    char message[1024];
    report->count++;
    if (report->count > LINES_MAX || (report->count > 1 && !report->all))
        return;
    buf_put_str(&line, str_from(report->path));
    if (place.line > 0)
        buf_printf(&line, ":%u:%u", place.line, place.column);
    vsnprintf(message, sizeof message, format, args);
    buf_printf(&line, ": %.*s%s%s", STR_ARG(field), field.len ? ": " : "", message);
    if (report->all) {
        buf_put_str(report->all, buf_str(&line));
        buf_put_char(report->all, '\n');
    }
    if (report->count == 1 && report->error) {
        char name[sizeof report->error->field];
        snprintf(name, sizeof name, "%.*s", STR_ARG(str_utf8_cut(field, sizeof name - 1)));
        error_set_field(report->error, STATUS_CONFIG, name, "%.*s", STR_ARG(buf_str(&line)));
    }
    buf_deinit(&line);
}

void config_report_at(struct config_report *report, struct setting_place place, struct str field,
                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    config_report_va(report, place, field, format, args);
    va_end(args);
}

void config_report_end(struct config_report *report)
{
    if (report->all && report->count > LINES_MAX)
        buf_printf(report->all, "%s: and %u more\n", report->path, report->count - LINES_MAX);
}

/* ---- places ----
 * Bytes of the source to lines and columns and back, counted as libyaml counts them (characters, and all of YAML 1.1's line
 * breaks), and from a string's byte to the file's.
 *
 * YAML folds, indents and chomps a block scalar, but never touches its characters that are not white space: the nth of
 * them in the string is the nth of them in the file. That holds up to the first that differs, where the environment
 * filled in something. */

/* Bytes of the line break at `at`; 0 when there is none. */
static size_t break_len(struct str source, size_t at)
{
    struct str rest = str_of(source.ptr + at, source.len - at);
    if (str_starts_with(rest, STR("\r\n")) || str_starts_with(rest, STR("\xC2\x85")))
        return 2;
    if (str_starts_with(rest, STR("\xE2\x80\xA8")) || str_starts_with(rest, STR("\xE2\x80\xA9")))
        return 3;
    return rest.len > 0 && (rest.ptr[0] == '\n' || rest.ptr[0] == '\r') ? 1 : 0;
}

/* Moves *at and *place past one character or line break. */
static void pass_char(struct str source, size_t *at, struct setting_place *place)
{
    size_t len = break_len(source, *at);
    if (len > 0) {
        place->line++;
        place->column = 1;
    } else {
        len = str_utf8_char(str_of(source.ptr + *at, source.len - *at));
        place->column++;
    }
    *at += len ? len : 1;
}

struct setting_place config_place_at(struct str source, size_t byte)
{
    struct setting_place place = {1, 1};
    for (size_t at = 0; at < byte && at < source.len;)
        pass_char(source, &at, &place);
    return place;
}

size_t config_place_byte(struct str source, struct setting_place wanted)
{
    struct setting_place place = {1, 1};
    size_t at = 0;
    while (at < source.len && place.line < wanted.line)
        pass_char(source, &at, &place);
    while (at < source.len && place.column < wanted.column && break_len(source, at) == 0)
        pass_char(source, &at, &place);
    return at;
}

struct setting_place config_place_of(const yaml_node_t *node)
{
    return (struct setting_place){(unsigned)node->start_mark.line + 1, (unsigned)node->start_mark.column + 1};
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_spaces(struct str s, size_t at)
{
    while (at < s.len && is_space(s.ptr[at]))
        at++;
    return at;
}

struct setting_place config_place_in_text(const struct config *config, struct setting_place value_place,
                                          struct str text, size_t offset)
{
    if (!config || value_place.line == 0)
        return value_place;
    struct str source = config->source;
    size_t at = config_place_byte(source, value_place);
    /* from where the node begins to where its text does: past an anchor, a tag and a block scalar's header line */
    while (at < source.len && (source.ptr[at] == '&' || source.ptr[at] == '!')) {
        while (at < source.len && !is_space(source.ptr[at]))
            at++;
        at = skip_spaces(source, at);
    }
    if (at < source.len && (source.ptr[at] == '|' || source.ptr[at] == '>'))
        while (at < source.len && break_len(source, at) == 0)
            at++;
    if (at >= source.len || source.ptr[at] == '"' || source.ptr[at] == '\'')
        return value_place;

    size_t i;
    for (i = 0; i < offset && i < text.len; i++) {
        if (is_space(text.ptr[i]))
            continue;
        at = skip_spaces(source, at);
        if (at >= source.len || source.ptr[at] != text.ptr[i])
            return config_place_at(source, at);
        at++;
    }
    if (skip_spaces(text, i) < text.len)
        at = skip_spaces(source, at);
    return config_place_at(source, at);
}

/* ---- did you mean …? ----
 * The nearest known name by edit distance (insert, delete, replace, swap two neighbours), after case, '-' and '_' are taken
 * out of it, so that max_size and MaxSize both find maxSize. */

#define WORD_BYTES_MAX 48

/* The word without what does not count; its length, or 0 when it is too long to guess at. */
static size_t plain_word(struct str word, char plain[WORD_BYTES_MAX])
{
    size_t len = 0;
    if (word.len > WORD_BYTES_MAX)
        return 0;
    for (size_t i = 0; i < word.len; i++) {
        char c = word.ptr[i];
        if (c != '-' && c != '_')
            plain[len++] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    return len;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned rows[3][WORD_BYTES_MAX + 1]; /* two above, above, this one: row i % 3 */
    for (unsigned j = 0; j <= b_len; j++)
        rows[0][j] = j;
    for (unsigned i = 1; i <= a_len; i++) {
        unsigned *above = rows[(i - 1) % 3], *row = rows[i % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            bool same = a[i - 1] == b[j - 1];
            row[j] = least(above[j - 1] + !same, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], rows[(i - 2) % 3][j - 2] + 1);
        }
    }
    return rows[a_len % 3][b_len];
}

const char *config_suggest(struct str word, const char *const *names)
{
    char plain[WORD_BYTES_MAX], candidate[WORD_BYTES_MAX];
    size_t len = plain_word(word, plain);
    const char *nearest = NULL;
    /* A short word must match nearly, a long one may have 3 slips. */
    unsigned best = least((unsigned)len / 3, 3) + 1;
    for (; len > 0 && *names; names++) {
        size_t candidate_len = plain_word(str_from(*names), candidate);
        if (candidate_len == 0)
            continue;
        unsigned far = distance(plain, len, candidate, candidate_len);
        if (far < best) {
            best = far;
            nearest = *names;
        }
    }
    return nearest;
}
