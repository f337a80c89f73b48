/* Places: bytes of the source to lines and columns and back, counted as libyaml counts them (characters, and all of
 * YAML 1.1's line breaks), and the way from a string's byte to the file.
 *
 * YAML folds, indents and chomps a block scalar, but never touches its characters that are not white space: the nth of
 * them in the string is the nth of them in the file. That holds up to the first that differs, where the environment
 * filled in something. */
#include "kernel/config_inside.h"

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

static size_t char_len(struct str source, size_t at)
{
    size_t len = str_utf8_char(str_of(source.ptr + at, source.len - at));

    return len ? len : 1;
}

struct setting_place config_place_at(struct str source, size_t byte)
{
    struct setting_place place = {1, 1};

    for (size_t at = 0; at < byte && at < source.len;) {
        size_t len = break_len(source, at);
        if (len > 0) {
            place.line++;
            place.column = 1;
        } else {
            len = char_len(source, at);
            place.column++;
        }
        at += len;
    }
    return place;
}

size_t config_place_byte(struct str source, struct setting_place place)
{
    size_t at = 0;

    for (unsigned line = 1; line < place.line && at < source.len;) {
        size_t len = break_len(source, at);
        if (len > 0)
            line++;
        at += len ? len : char_len(source, at);
    }
    for (unsigned column = 1; column < place.column && at < source.len && break_len(source, at) == 0;
         column++)
        at += char_len(source, at);
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

static size_t skip_word(struct str s, size_t at)
{
    while (at < s.len && !is_space(s.ptr[at]))
        at++;
    return at;
}

/* From where a value's node begins to where its text does: past an anchor, a tag and a block scalar's header line. */
static size_t content_begin(struct str source, size_t at)
{
    while (at < source.len && (source.ptr[at] == '&' || source.ptr[at] == '!'))
        at = skip_spaces(source, skip_word(source, at));
    if (at < source.len && (source.ptr[at] == '|' || source.ptr[at] == '>'))
        while (at < source.len && break_len(source, at) == 0)
            at++;
    return at;
}

struct setting_place config_place_in_text(const struct config *config, struct setting_place value_place,
                                          struct str text, size_t offset)
{
    struct str source = config->source;

    if (value_place.line == 0)
        return value_place;
    size_t at = content_begin(source, config_place_byte(source, value_place));
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
