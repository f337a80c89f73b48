/* The body decoder. Framing lines go byte by byte through a small machine, content is passed on in whole
 * runs. */
#include "http/body.h"

#include "base/hex.h"
#include "http/scan.h"

enum phase {
    PHASE_SIZED,
    PHASE_SIZE, /* chunk-size digits */
    /* chunk-ext of RFC 9112: *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] ) */
    PHASE_EXT_NAME_BEGIN, /* after ';' */
    PHASE_EXT_NAME,
    PHASE_EXT_NAME_GAP,    /* white space after a name */
    PHASE_EXT_VALUE_BEGIN, /* after '=' */
    PHASE_EXT_TOKEN,
    PHASE_EXT_QUOTED,
    PHASE_EXT_ESCAPED,  /* after a backslash */
    PHASE_EXT_UNQUOTED, /* after the closing quote */
    PHASE_EXT_GAP,      /* white space before ';' */
    PHASE_SIZE_LF,
    PHASE_CHUNK,
    PHASE_CHUNK_CR,
    PHASE_CHUNK_LF,
    PHASE_TRAILER, /* in a trailer line, or at the empty one */
    PHASE_TRAILER_LF,
    PHASE_DONE,
    PHASE_FAILED,
};

#define SIZE_DIGITS_MAX 15                       /* fits 60 bits: no overflow to check */
#define OVERHEAD_BYTES_MAX ((uint64_t)16 * 1024) /* extensions and trailers of one body */

void http_body_init(struct http_body *body, enum http_body_kind kind, uint64_t content_length)
{
    *body = (struct http_body){.kind = kind, .remaining = content_length};
    if (kind == HTTP_BODY_CHUNKED)
        body->phase = PHASE_SIZE;
    else
        body->phase = kind == HTTP_BODY_SIZED && content_length > 0 ? PHASE_SIZED : PHASE_DONE;
}

bool http_body_is_done(const struct http_body *body)
{
    return body->phase == PHASE_DONE;
}

static enum phase fail_body(struct http_body *body, const char *message)
{
    body->message = message;
    return PHASE_FAILED;
}

static bool over_allowance(struct http_body *body)
{
    return ++body->overhead_bytes > OVERHEAD_BYTES_MAX;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* ---- framing: each takes a byte and returns the phase after it ---- */

static enum phase take_size(struct http_body *body, char c)
{
    int value = hex_digit(c);

    if (value >= 0) {
        if (++body->digits > SIZE_DIGITS_MAX)
            return fail_body(body, "a chunk size is too long");
        body->remaining = body->remaining << 4 | (unsigned)value;
        return PHASE_SIZE;
    }
    if (body->digits == 0)
        return fail_body(body, "a chunk size has no hexadecimal digits");
    if (c == ';')
        return PHASE_EXT_NAME_BEGIN;
    if (is_blank(c))
        return PHASE_EXT_GAP;
    return c == '\r' ? PHASE_SIZE_LF
                     : fail_body(body, "a chunk size is not followed by an extension or CRLF");
}

/* The phase after a byte that ends a name or a value; FAILED when the byte is not allowed there. */
static enum phase after_extension_part(char c, enum phase gap)
{
    if (c == ';')
        return PHASE_EXT_NAME_BEGIN;
    if (c == '\r' && gap != PHASE_FAILED)
        return PHASE_SIZE_LF;
    return is_blank(c) && gap != PHASE_FAILED ? gap : PHASE_FAILED;
}

static enum phase next_in_extension(enum phase phase, char c)
{
    bool is_token = http_byte_is(c, HTTP_BYTE_TOKEN);

    switch (phase) {
    case PHASE_EXT_NAME_BEGIN: return is_blank(c) ? phase : is_token ? PHASE_EXT_NAME : PHASE_FAILED;
    case PHASE_EXT_NAME:
        if (is_token)
            return phase;
        return c == '=' ? PHASE_EXT_VALUE_BEGIN : after_extension_part(c, PHASE_EXT_NAME_GAP);
    case PHASE_EXT_NAME_GAP:
        if (is_blank(c))
            return phase;
        return c == '=' ? PHASE_EXT_VALUE_BEGIN : after_extension_part(c, PHASE_FAILED);
    case PHASE_EXT_VALUE_BEGIN:
        if (is_blank(c))
            return phase;
        return c == '"' ? PHASE_EXT_QUOTED : is_token ? PHASE_EXT_TOKEN : PHASE_FAILED;
    case PHASE_EXT_TOKEN: return is_token ? phase : after_extension_part(c, PHASE_EXT_GAP);
    case PHASE_EXT_QUOTED:
        if (c == '"')
            return PHASE_EXT_UNQUOTED;
        if (c == '\\')
            return PHASE_EXT_ESCAPED;
        return http_byte_is(c, HTTP_BYTE_VALUE) ? phase : PHASE_FAILED;
    case PHASE_EXT_ESCAPED: return http_byte_is(c, HTTP_BYTE_VALUE) ? PHASE_EXT_QUOTED : PHASE_FAILED;
    case PHASE_EXT_UNQUOTED: return after_extension_part(c, PHASE_EXT_GAP);
    case PHASE_EXT_GAP: return is_blank(c) ? phase : after_extension_part(c, PHASE_FAILED);
    default: return PHASE_FAILED;
    }
}

static enum phase take_trailer(struct http_body *body, char c)
{
    if (c == '\r')
        return body->line_bytes == 0 || body->name_ended ? PHASE_TRAILER_LF
                                                         : fail_body(body, "a trailer line has no colon");
    if (over_allowance(body))
        return fail_body(body, "trailers are too long");
    if (c == ':' && !body->name_ended && body->line_bytes > 0)
        body->name_ended = true;
    else if (!http_byte_is(c, body->name_ended ? HTTP_BYTE_VALUE : HTTP_BYTE_TOKEN))
        return fail_body(body, "a trailer line is not a valid field");
    body->line_bytes++;
    return PHASE_TRAILER;
}

static enum phase begin_line(struct http_body *body, enum phase phase)
{
    body->digits = body->line_bytes = 0;
    body->name_ended = false;
    return phase;
}

static enum phase take_byte(struct http_body *body, char c)
{
    enum phase next;

    switch ((enum phase)body->phase) {
    case PHASE_SIZE: return take_size(body, c);
    case PHASE_SIZE_LF:
        if (c != '\n')
            return fail_body(body, "a chunk size ends in a bare CR");
        return begin_line(body, body->remaining > 0 ? PHASE_CHUNK : PHASE_TRAILER);
    case PHASE_CHUNK_CR:
        return c == '\r' ? PHASE_CHUNK_LF : fail_body(body, "a chunk is longer than its size");
    case PHASE_CHUNK_LF: return c == '\n' ? PHASE_SIZE : fail_body(body, "a chunk does not end in CRLF");
    case PHASE_TRAILER: return take_trailer(body, c);
    case PHASE_TRAILER_LF:
        if (c != '\n')
            return fail_body(body, "a trailer line ends in a bare CR");
        return begin_line(body, body->line_bytes == 0 ? PHASE_DONE : PHASE_TRAILER);
    case PHASE_SIZED:
    case PHASE_CHUNK:
    case PHASE_DONE:
    case PHASE_FAILED: return PHASE_FAILED;
    default:
        next = next_in_extension((enum phase)body->phase, c);
        if (next == PHASE_FAILED)
            return fail_body(body, "a chunk extension is not valid");
        return over_allowance(body) ? fail_body(body, "chunk extensions are too long") : next;
    }
}

enum http_body_step http_body_next(struct http_body *body, struct str *raw, struct str *piece)
{
    while (body->phase != PHASE_DONE) {
        if (body->phase == PHASE_FAILED)
            return HTTP_BODY_FAILED;
        if (raw->len == 0)
            return HTTP_BODY_MORE;
        if (body->phase == PHASE_SIZED || body->phase == PHASE_CHUNK) { /* as much content as there is */
            size_t len = raw->len < body->remaining ? raw->len : (size_t)body->remaining;
            *piece = str_of(raw->ptr, len);
            *raw = str_of(raw->ptr + len, raw->len - len);
            body->remaining -= len;
            body->received += len;
            if (body->remaining == 0)
                body->phase = body->phase == PHASE_SIZED ? PHASE_DONE : PHASE_CHUNK_CR;
            return HTTP_BODY_DATA;
        }
        char c = *raw->ptr;
        *raw = str_of(raw->ptr + 1, raw->len - 1);
        body->phase = take_byte(body, c);
    }
    return HTTP_BODY_DONE;
}
