/* The head parser and the chunk decoder: fed in pieces whose sizes the input chooses, they must say and find
 * exactly what they do when fed all at once. The first byte seeds the sizes. */
#include <stdlib.h>

#include "base/buf.h"
#include "http/http_inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADERS_MAX 16

static const struct http_limits limits = {
    .target_bytes_max = 300,
    .header_bytes_max = 600,
    .header_count_max = HEADERS_MAX,
};

static void check(bool holds)
{
    if (!holds)
        abort();
}

static size_t next_size(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 28 ? *seed >> 29 : *seed >> 20;
}

/* Every step sees a copy of exactly the bytes there are: reading on, or keeping a pointer, is found. */
static enum http_parse parse(struct http_parser *parser, struct http_span *spans, struct str text,
                             uint32_t seed, bool whole)
{
    enum http_parse result = HTTP_PARSE_MORE;
    size_t len = whole ? text.len : 0;

    http_parser_init(parser, &limits, spans);
    for (;;) {
        char *copy = malloc(len ? len : 1);
        if (len > 0)
            memcpy(copy, text.ptr, len);
        result = http_parser_run(parser, copy, len);
        free(copy);
        if (result != HTTP_PARSE_MORE || len == text.len)
            return result;
        size_t more = next_size(&seed);
        len = more < text.len - len ? len + more : text.len;
    }
}

/* A parser that knows the fields of `before`, read out of these bytes, must say and find in `text` what a new one does. */
static void check_known(struct http_parser *known, const struct http_head *before, const char *before_data,
                        struct str text)
{
    struct http_span spans[HEADERS_MAX];
    struct http_parser fresh;
    struct http_head head = *before, fresh_head;
    struct error error = {0}, fresh_error = {0};

    http_parser_next(known, before_data);
    http_parser_init(&fresh, &limits, spans);
    enum http_parse result = http_parser_run(&fresh, text.ptr, text.len);
    check(http_parser_run(known, text.ptr, text.len) == result);
    if (result == HTTP_PARSE_FAILED)
        check(known->status == fresh.status && known->message == fresh.message);
    if (result != HTTP_PARSE_DONE)
        return;
    check(known->at == fresh.at && known->span_count == fresh.span_count);
    check(memcmp(known->first, fresh.first, sizeof fresh.first) == 0 && known->repeated == fresh.repeated);
    const char *spans_of = known->is_known ? before_data : text.ptr;
    for (unsigned i = 0; i < fresh.span_count; i++) {
        const struct http_span *a = &known->spans[i], *b = &spans[i];
        check(a->field == b->field &&
              str_eq(str_of(spans_of + a->name_at, a->name_len), str_of(text.ptr + b->name_at, b->name_len)));
        check(str_eq(str_of(spans_of + a->value_at, a->value_len),
                     str_of(text.ptr + b->value_at, b->value_len)));
    }
    enum status status = http_head_read(&fresh, text.ptr, &fresh_head, &fresh_error);
    check(http_head_read(known, text.ptr, &head, &error) == status &&
          strcmp(error.message, fresh_error.message) == 0);
    if (status == STATUS_OK)
        check(head.method == fresh_head.method && str_eq(head.path, fresh_head.path) &&
              str_eq(head.query, fresh_head.query) && head.has_escapes == fresh_head.has_escapes &&
              head.body_kind == fresh_head.body_kind && head.content_length == fresh_head.content_length &&
              head.keep_alive == fresh_head.keep_alive &&
              head.expects_continue == fresh_head.expects_continue &&
              head.is_server_wide == fresh_head.is_server_wide);
}

/* After the head at the beginning of `text`: the same once more, the same with a changed byte, and whatever follows it. */
static void check_next_heads(const struct http_parser *parser, const struct http_head *head, struct str text,
                             uint32_t seed)
{
    char *changed = malloc(text.len);

    memcpy(changed, text.ptr, text.len);
    changed[seed * 2654435761u % parser->at] ^= (char)(1 << seed % 8);
    const struct str next[] = {text, str_of(changed, text.len), str_skip(text, parser->at)};
    for (int i = 0; i < 3; i++) {
        struct http_span spans[HEADERS_MAX];
        struct http_parser known = *parser;
        memcpy(spans, parser->spans, parser->span_count * sizeof *spans);
        known.spans = spans;
        check_known(&known, head, text.ptr, next[i]);
    }
    free(changed);
}

static void check_head(struct str text, uint32_t seed)
{
    struct http_parser whole, pieces;
    struct http_span whole_spans[HEADERS_MAX], piece_spans[HEADERS_MAX];
    enum http_parse result = parse(&whole, whole_spans, text, seed, true);

    check(parse(&pieces, piece_spans, text, seed, false) == result);
    if (result == HTTP_PARSE_FAILED)
        check(whole.status == pieces.status && whole.message == pieces.message);
    if (result != HTTP_PARSE_DONE)
        return;
    check(whole.at == pieces.at && whole.at <= text.len && whole.span_count == pieces.span_count);
    check(memcmp(whole.first, pieces.first, sizeof whole.first) == 0 && whole.repeated == pieces.repeated);
    check(memcmp(whole_spans, piece_spans, whole.span_count * sizeof *whole_spans) == 0);
    struct http_head head = {0};
    struct error error;
    if (http_head_read(&whole, text.ptr, &head, &error) == STATUS_OK) {
        check(head.path.len > 0 && (head.path.ptr[0] == '/' || head.is_server_wide));
        check_next_heads(&whole, &head, text, seed);
    } else {
        check(error.message[0] != '\0');
    }
}

static enum http_body_step decode(struct str text, uint32_t seed, bool whole, struct buf *out, size_t *used)
{
    struct http_body body;
    enum http_body_step step = HTTP_BODY_MORE;

    *used = 0;
    http_body_init(&body, HTTP_BODY_CHUNKED, 0);
    while (step == HTTP_BODY_MORE && *used < text.len) {
        size_t given = whole ? text.len : next_size(&seed);
        struct str raw = str_of(text.ptr + *used, given < text.len - *used ? given : text.len - *used), piece;
        size_t before = raw.len;
        while ((step = http_body_next(&body, &raw, &piece)) == HTTP_BODY_DATA)
            buf_put_str(out, piece);
        *used += before - raw.len;
    }
    check(body.received == buf_len(out));
    return step;
}

static void check_chunks(struct str text, uint32_t seed)
{
    struct buf whole = {0}, pieces = {0};
    size_t whole_used, pieces_used;
    enum http_body_step step = decode(text, seed, true, &whole, &whole_used);

    check(decode(text, seed, false, &pieces, &pieces_used) == step);
    check(whole_used == pieces_used && str_eq(buf_str(&whole), buf_str(&pieces)));
    buf_deinit(&whole);
    buf_deinit(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    struct str text = str_of((const char *)data + 1, size - 1);
    check_head(text, data[0]);
    check_chunks(text, data[0]);
    return 0;
}
