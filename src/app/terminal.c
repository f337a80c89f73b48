#include "app/terminal.h"

/* U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069: right-to-left marks, embeddings, overrides, isolates; U+2028 and U+2029. */
static bool turns_text(struct str character)
{
    const unsigned char *c = (const unsigned char *)character.ptr;
    if (character.len == 2)
        return c[0] == 0xd8 && c[1] == 0x9c;
    if (character.len != 3 || c[0] != 0xe2)
        return false;
    return (c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae))) ||
           (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9);
}

void terminal_put(struct buf *out, struct str text)
{
    terminal_put_lines(out, text, STR_NONE);
}

void terminal_put_lines(struct buf *out, struct str text, struct str line_break)
{
    while (text.len) {
        size_t len = str_utf8_char(text);
        unsigned char c = (unsigned char)text.ptr[0];
        bool is_control =
            c < 0x20 || c == 0x7f || (len == 2 && c == 0xc2 && (unsigned char)text.ptr[1] < 0xa0);
        if (!line_break.ptr && (c == '\n' || c == '\t' || c == '\r'))
            buf_put_char(out, ' ');
        else if (c == '\n')
            buf_put_str(out, line_break);
        else if (c == '\t')
            buf_put_char(out, '\t');
        else if (len == 0 || is_control || turns_text(str_of(text.ptr, len)))
            buf_put_char(out, '?');
        else
            buf_put(out, text.ptr, len);
        text = str_skip(text, len ? len : 1);
    }
}

const char *terminal_text(struct str text, struct arena *arena)
{
    struct buf safe = {0};
    terminal_put(&safe, text);
    const char *copy = arena_str(arena, buf_str(&safe)).ptr;
    buf_deinit(&safe);
    return copy;
}
