/* Escaping for roff. A backslash, a dot or an apostrophe at the beginning of a line, and a minus (which roff prints as a
 * hyphen, so that an option copied from the page would not work) mean something else there; characters past ASCII are named by
 * their code point. */
#include "base/roff.h"

static unsigned code_point(struct str character)
{
    static const unsigned char masks[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    unsigned code = (unsigned char)character.ptr[0] & masks[character.len];
    for (size_t i = 1; i < character.len; i++)
        code = code << 6 | ((unsigned char)character.ptr[i] & 0x3F);
    return code;
}

/* *bold: inside backquotes; NULL = they are text. */
static void put_escaped(struct buf *out, struct str text, bool *bold)
{
    for (size_t at = 0, len; at < text.len; at += len) {
        struct str rest = str_skip(text, at);
        len = str_utf8_char(rest);
        if (len > 1)
            buf_printf(out, "\\[u%04X]", code_point(str_of(rest.ptr, len)));
        else if (rest.ptr[0] == '`' && bold)
            buf_printf(out, "\\f%c", (*bold = !*bold) ? 'B' : 'R');
        else if (rest.ptr[0] == '\\')
            buf_put_str(out, STR("\\e"));
        else if (rest.ptr[0] == '\'')
            buf_put_str(out, STR("\\(aq"));
        else if (rest.ptr[0] == '-')
            buf_put_str(out, STR("\\-"));
        else if (rest.ptr[0] == '.' && at == 0)
            buf_put_str(out, STR("\\&."));
        else
            buf_put_char(out, len ? rest.ptr[0] : '?');
        len = len ? len : 1;
    }
}

void roff_put_line(struct buf *out, struct str text)
{
    bool bold = false;
    put_escaped(out, text, &bold);
    if (bold) /* a backquote without its end */
        buf_put_str(out, STR("\\fR"));
}

void roff_put_bold(struct buf *out, struct str text)
{
    buf_put_str(out, STR("\\fB"));
    put_escaped(out, text, NULL);
    buf_put_str(out, STR("\\fR"));
}

void roff_put_text(struct buf *out, struct str text)
{
    enum { PLAIN, EXAMPLE, GAP } state = PLAIN;
    struct str line;
    while (str_split(&text, '\n', &line)) {
        bool is_example = str_starts_with(line, STR("  "));
        if (state == EXAMPLE && !is_example)
            buf_put_str(out, STR(".fi\n.RE\n"));
        if (line.len == 0) {
            state = GAP;
            continue;
        }
        if (is_example && state != EXAMPLE)
            buf_put_str(out, STR(".PP\n.RS 4\n.nf\n"));
        else if (state == GAP || (state == EXAMPLE && !is_example))
            buf_put_str(out, STR(".PP\n"));
        state = is_example ? EXAMPLE : PLAIN;
        roff_put_line(out, is_example ? str_skip(line, 2) : line);
        buf_put_char(out, '\n');
    }
    if (state == EXAMPLE)
        buf_put_str(out, STR(".fi\n.RE\n"));
}
