/* The named-parameter SQL compiler: ":name" templates in, "$n" statements out.
 *
 * It knows just enough of PostgreSQL's lexer to tell where a colon is a parameter: everything that may hold
 * arbitrary text (literals, quoted identifiers, dollar quotes, comments) is one token and copied as it came.
 * It does not parse: PostgreSQL checks the statement when it is prepared. A colon directly
 * followed by a letter or an underscore is a parameter, so a slice bound that is a column needs a space: a[1:
 * n]. */
#include "db/db.h"

#include "base/hash.h"
#include "db/db_inside.h"

enum token { TOKEN_END, TOKEN_BLANK, TOKEN_TEXT, TOKEN_PARAMETER, TOKEN_SEMICOLON, TOKEN_BAD };

/* Walks the template; after next_token() the token is [start, at). */
struct scan {
    struct str sql;
    size_t start, at;
    const char *complaint; /* of TOKEN_BAD, which stands at `start` */
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* PostgreSQL takes any byte past ASCII for a letter. */
static bool begins_word(char c)
{
    return is_letter(c) || (unsigned char)c >= 0x80;
}

static bool continues_word(char c)
{
    return begins_word(c) || is_digit(c) || c == '$';
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static char peek(const struct scan *scan, size_t ahead)
{
    return scan->at + ahead < scan->sql.len ? scan->sql.ptr[scan->at + ahead] : '\0';
}

static bool at_end(const struct scan *scan)
{
    return scan->at >= scan->sql.len;
}

static enum token bad(struct scan *scan, const char *complaint)
{
    scan->complaint = complaint;
    return TOKEN_BAD;
}

/* Past the closing quote, `quote` doubled being one of the text's own. A backslash escapes only in E'…'. */
static bool skip_quoted(struct scan *scan, char quote, bool backslash)
{
    for (scan->at++; !at_end(scan); scan->at++) {
        if (backslash && peek(scan, 0) == '\\' && scan->at + 1 < scan->sql.len) {
            scan->at++;
        } else if (peek(scan, 0) == quote) {
            if (peek(scan, 1) != quote) {
                scan->at++;
                return true;
            }
            scan->at++;
        }
    }
    return false;
}

static void skip_line(struct scan *scan)
{
    while (!at_end(scan) && peek(scan, 0) != '\n' && peek(scan, 0) != '\r')
        scan->at++;
}

/* Two literals with a newline between them are one literal, in the mode of the first: E'a'\n'\'' is a
 * whole. */
static bool continues_literal(struct scan *scan)
{
    struct scan ahead = *scan;
    bool newline = false;

    for (; !at_end(&ahead); ahead.at++) {
        if (peek(&ahead, 0) == '-' && peek(&ahead, 1) == '-')
            skip_line(&ahead);
        if (!is_blank(peek(&ahead, 0)))
            break;
        newline |= peek(&ahead, 0) == '\n' || peek(&ahead, 0) == '\r';
    }
    if (!newline || peek(&ahead, 0) != '\'')
        return false;
    scan->at = ahead.at;
    return true;
}

/* A keyword or identifier; B, N, U& and X before a quote need nothing special, E changes what a backslash
 * does. */
static enum token take_word(struct scan *scan)
{
    char first = peek(scan, 0);

    while (continues_word(peek(scan, 0)))
        scan->at++;
    if (scan->at - scan->start != 1 || (first != 'e' && first != 'E') || peek(scan, 0) != '\'')
        return TOKEN_TEXT;
    do {
        if (!skip_quoted(scan, '\'', true))
            return bad(scan, "a string literal is not closed");
    } while (continues_literal(scan));
    return TOKEN_TEXT;
}

/* $$…$$ or $tag$…$tag$; $1 is refused, since the numbers are ours. */
static enum token take_dollar(struct scan *scan)
{
    size_t end = 1;

    if (is_digit(peek(scan, 1)))
        return bad(scan, "a positional parameter: use a named one");
    if (begins_word(peek(scan, 1)))
        while (continues_word(peek(scan, end)) && peek(scan, end) != '$')
            end++;
    if (peek(scan, end) != '$') {
        scan->at++;
        return TOKEN_TEXT;
    }
    size_t tag_len = end + 1;
    const char *tag = scan->sql.ptr + scan->at;
    const char *body = tag + tag_len;
    const char *closing = memmem(body, scan->sql.len - scan->at - tag_len, tag, tag_len);
    if (!closing)
        return bad(scan, "a dollar-quoted string is not closed");
    scan->at = (size_t)(closing - scan->sql.ptr) + tag_len;
    return TOKEN_TEXT;
}

static enum token take_block_comment(struct scan *scan)
{
    unsigned depth = 0;

    do {
        if (at_end(scan))
            return bad(scan, "a comment is not closed");
        if (peek(scan, 0) == '/' && peek(scan, 1) == '*') {
            depth++;
            scan->at += 2;
        } else if (peek(scan, 0) == '*' && peek(scan, 1) == '/') {
            depth--;
            scan->at += 2;
        } else {
            scan->at++;
        }
    } while (depth > 0);
    return TOKEN_BLANK;
}

static enum token take_colon(struct scan *scan)
{
    scan->at++;
    if (peek(scan, 0) == ':') { /* a cast */
        scan->at++;
        return TOKEN_TEXT;
    }
    if (!is_letter(peek(scan, 0)))
        return TOKEN_TEXT; /* := or a slice */
    while (continues_word(peek(scan, 0)))
        scan->at++;
    return TOKEN_PARAMETER;
}

static enum token next_token(struct scan *scan)
{
    scan->start = scan->at;
    if (at_end(scan))
        return TOKEN_END;

    char c = peek(scan, 0);
    if (begins_word(c))
        return take_word(scan);
    if (c == '\'' && !skip_quoted(scan, c, false))
        return bad(scan, "a string literal is not closed");
    if (c == '"' && !skip_quoted(scan, c, false))
        return bad(scan, "a quoted identifier is not closed");
    if (c == '\'' || c == '"')
        return TOKEN_TEXT;
    if (c == '$')
        return take_dollar(scan);
    if (c == ':')
        return take_colon(scan);
    if (c == '/' && peek(scan, 1) == '*')
        return take_block_comment(scan);
    if (c == '-' && peek(scan, 1) == '-') {
        skip_line(scan);
        return TOKEN_BLANK;
    }
    if (c == '\0')
        return bad(scan, "a NUL byte");
    scan->at++;
    return c == ';' ? TOKEN_SEMICOLON : is_blank(c) ? TOKEN_BLANK : TOKEN_TEXT;
}

static struct str token_text(const struct scan *scan)
{
    return str_of(scan->sql.ptr + scan->start, scan->at - scan->start);
}

/* "SELECT:a" must not become the identifier "SELECT$1". */
static bool needs_space(const struct scan *scan)
{
    return scan->start > 0 && continues_word(scan->sql.ptr[scan->start - 1]);
}

/* A new $n at the first use of its name. */
static enum status put_parameter(const struct scan *scan, const struct db_name *names,
                                 struct db_statement *statement, struct buf *out, struct error *error)
{
    struct str name = token_text(scan);
    unsigned row = 0, at = 0;

    while (names[row].name && !str_eq(str_from(names[row].name), str_of(name.ptr + 1, name.len - 1)))
        row++;
    if (!names[row].name)
        return error_set(error, STATUS_CONFIG, "unknown parameter %.*s", STR_ARG(str_utf8_cut(name, 64)));
    while (at < statement->param_count && statement->names[at] != row)
        at++;
    if (at == DB_PARAMS_MAX)
        return error_set(error, STATUS_CONFIG, "more than %d parameters", DB_PARAMS_MAX);
    if (at == statement->param_count) {
        statement->names[at] = row;
        statement->types[statement->param_count++] = names[row].type;
    }
    buf_printf(out, "%s$%u", needs_space(scan) ? " " : "", at + 1);
    return STATUS_OK;
}

/* The whole walk; on failure scan->start is where it stopped. */
static enum status compile(struct scan *scan, const struct db_name *names, struct db_statement *statement,
                           struct buf *out, struct error *error)
{
    bool any = false, ended = false;
    enum token token;

    while ((token = next_token(scan)) != TOKEN_END) {
        if (token == TOKEN_BAD)
            return error_set(error, STATUS_CONFIG, "%s", scan->complaint);
        if (ended && (token == TOKEN_TEXT || token == TOKEN_PARAMETER))
            return error_set(error, STATUS_CONFIG, "a second statement after ';'");
        ended |= token == TOKEN_SEMICOLON;
        any |= token == TOKEN_TEXT || token == TOKEN_PARAMETER;
        if (token != TOKEN_PARAMETER) {
            buf_put_str(out, token_text(scan));
            continue;
        }
        enum status status = put_parameter(scan, names, statement, out, error);
        if (status != STATUS_OK)
            return status;
    }
    return any ? STATUS_OK : error_set(error, STATUS_CONFIG, "there is no statement");
}

enum status db_sql_compile(struct str sql, const struct db_name *names, struct arena *arena,
                           struct db_statement *statement, size_t *offset, struct error *error)
{
    struct scan scan = {.sql = sql};
    struct buf out = {0};

    *statement = (struct db_statement){0};
    for (size_t at = 0, len; at < sql.len; at += len) {
        *offset = at;
        len = str_utf8_char(str_of(sql.ptr + at, sql.len - at));
        if (len == 0 || sql.ptr[at] == '\0')
            return error_set(error, STATUS_CONFIG, len == 0 ? "not valid UTF-8" : "a NUL byte");
    }
    enum status status = compile(&scan, names, statement, &out, error);
    *offset = status == STATUS_OK ? 0 : scan.start;
    if (status == STATUS_OK) {
        statement->text = arena_str(arena, buf_str(&out));
        db_statement_seal(statement);
    }
    buf_deinit(&out);
    return status;
}

size_t db_statement_offset(const struct db_statement *statement, struct str sql, size_t position)
{
    struct scan scan = {.sql = sql};
    struct str text = statement->text;
    size_t left = 0; /* bytes of the characters before the position */
    enum token token;

    for (; position > 1 && left < text.len; position--) {
        size_t len = str_utf8_char(str_skip(text, left));
        left += len ? len : 1;
    }
    if (str_eq(text, sql))
        return left;
    /* Both differ in their parameters only: walk them side by side. */
    while ((token = next_token(&scan)) != TOKEN_END && token != TOKEN_BAD) {
        bool parameter = token == TOKEN_PARAMETER;
        size_t len = parameter ? (size_t)1 + needs_space(&scan) : scan.at - scan.start;
        while (parameter && len < text.len && is_digit(text.ptr[len]))
            len++; /* $n, as it came out in the compiled text */
        if (left < len)
            return parameter ? scan.start : scan.start + left;
        if (len > text.len)
            break;
        text = str_of(text.ptr + len, text.len - len);
        left -= len;
    }
    return scan.start;
}
