/* Formats of streams: what a request asks for, and lines of either kind. */
#include "stream/stream.h"

static const struct {
    struct str name, content_type;
} formats[STREAM_FORMATS] = {
    [STREAM_NDJSON] = {{"ndjson", 6}, {"application/x-ndjson", 20}},
    [STREAM_SSE] = {{"sse", 3}, {"text/event-stream", 17}},
};

enum stream_format stream_format_of(const struct http_request *request)
{
    unsigned sse = http_request_accepts(request, formats[STREAM_SSE].content_type);
    return sse > http_request_accepts(request, formats[STREAM_NDJSON].content_type) ? STREAM_SSE
                                                                                    : STREAM_NDJSON;
}

const struct str *stream_format_name(enum stream_format format)
{
    return &formats[format].name;
}

struct str stream_format_type(enum stream_format format)
{
    return formats[format].content_type;
}

void stream_line_begin(struct buf *out, enum stream_format format, int64_t position)
{
    if (format == STREAM_SSE && position >= 0)
        buf_printf(out, "id: %lld\n", (long long)position);
    if (format == STREAM_SSE)
        buf_put_str(out, STR("data: "));
}

void stream_line_end(struct buf *out, enum stream_format format)
{
    buf_put_str(out, format == STREAM_SSE ? STR("\n\n") : STR("\n"));
}

void stream_line_put(struct buf *out, enum stream_format format, int64_t position, struct str object)
{
    stream_line_begin(out, format, position);
    buf_put_str(out, object);
    stream_line_end(out, format);
}

static enum status read_position(struct str text, const char *field, const char *noun, int64_t *after,
                                 struct error *error)
{
    uint64_t number;
    if (!str_to_u64(text, &number) || number > INT64_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, field, "must be a %s: a whole number, not negative",
                               noun);
    *after = (int64_t)number;
    return STATUS_OK;
}

enum status stream_after_read(const struct http_request *request, const char *noun, int64_t *after,
                              struct error *error)
{
    bool found = false;
    struct str text, last = http_request_header(request, STR("last-event-id"));
    enum status status = http_request_query(request, STR("after"), &found, &text, error);
    if (status == STATUS_OK && found)
        status = read_position(text, "after", noun, after, error);
    if (status == STATUS_OK && last.len)
        status = read_position(last, "Last-Event-ID", noun, after, error);
    return status;
}
