#include "kernel/otlp.h"

#include "base/hex.h"
#include "base/json.h"

enum { STATUS_CODE_ERROR = 2, ANSWER_DEPTH_MAX = 8 };

static void put_text_attribute(struct buf *out, const char *name, struct str text)
{
    buf_put_str(out, STR("{"));
    json_put_member_str(out, "key", str_from(name));
    buf_put_str(out, STR(",\"value\":{"));
    json_put_member_str(out, "stringValue", text);
    buf_put_str(out, STR("}}"));
}

/* Numbers of 64 bits are strings in OTLP's JSON. */
static void put_int_attribute(struct buf *out, const char *name, int64_t number)
{
    buf_put_str(out, STR("{"));
    json_put_member_str(out, "key", str_from(name));
    buf_printf(out, ",\"value\":{\"intValue\":\"%lld\"}}", (long long)number);
}

void otlp_begin(struct buf *out, const struct otlp_resource *resource)
{
    buf_put_str(out, STR("{\"resourceSpans\":[{\"resource\":{\"attributes\":["));
    put_text_attribute(out, "service.name", resource->service_name);
    buf_put_char(out, ',');
    put_text_attribute(out, "service.instance.id", resource->instance_id);
    buf_put_char(out, ',');
    put_text_attribute(out, "service.version", resource->version);
    buf_put_char(out, ',');
    put_text_attribute(out, "host.name", resource->host_name);
    buf_put_char(out, ',');
    put_int_attribute(out, "process.pid", resource->pid);
    buf_put_str(out, STR("]},\"scopeSpans\":[{\"scope\":{\"name\":\"freshet\"},\"spans\":["));
}

static void put_id(struct buf *out, const char *name, const uint8_t *id, size_t bytes)
{
    char hex[2 * sizeof((struct trace){0}.trace_id)];
    json_put_member_str(out, name, str_of(hex, (size_t)(hex_put(hex, id, bytes) - hex)));
}

void otlp_put_span(struct buf *out, const struct span *span)
{
    static const uint8_t none[SPAN_ID_BYTES];
    char last = out->data[out->end - 1];
    if (last != '[')
        buf_put_char(out, ',');
    buf_put_char(out, '{');
    put_id(out, "traceId", span->trace.trace_id, sizeof span->trace.trace_id);
    put_id(out, "spanId", span->trace.span_id, sizeof span->trace.span_id);
    if (memcmp(span->parent_id, none, sizeof none) != 0)
        put_id(out, "parentSpanId", span->parent_id, sizeof span->parent_id);
    buf_printf(out, ",\"flags\":%u,\"kind\":%d,\"name\":\"%s%s%s\"", span->trace.flags, (int)span->kind,
               span->name, span->detail ? " " : "", span->detail ? span->detail : "");
    buf_printf(out, ",\"startTimeUnixNano\":\"%lld000\",\"endTimeUnixNano\":\"%lld000\"",
               (long long)span->start_us, (long long)span->end_us);
    buf_put_str(out, STR(",\"attributes\":["));
    for (unsigned i = 0; i < span->attribute_count; i++) {
        const struct span_attribute *attribute = &span->attributes[i];
        if (i > 0)
            buf_put_char(out, ',');
        if (attribute->is_text)
            put_text_attribute(out, attribute->name,
                               str_of(span->text + attribute->text_at, attribute->text_len));
        else
            put_int_attribute(out, attribute->name, attribute->number);
    }
    buf_put_char(out, ']');
    if (span->is_failed)
        buf_printf(out, ",\"status\":{\"code\":%d}", STATUS_CODE_ERROR);
    buf_put_char(out, '}');
}

void otlp_end(struct buf *out)
{
    buf_put_str(out, STR("]}]}]}"));
}

int64_t otlp_read_rejected(struct str answer)
{
    struct json_value body, partial, value;
    int64_t rejected = 0;
    if (json_parse(answer, ANSWER_DEPTH_MAX, &body, NULL) != STATUS_OK || body.type != JSON_OBJECT ||
        !json_get(&body, STR("partialSuccess"), &partial) || partial.type != JSON_OBJECT ||
        !json_get(&partial, STR("rejectedSpans"), &value))
        return 0;
    if (value.type == JSON_STRING && value.raw.len > 2)
        (void)str_to_i64(str_of(value.raw.ptr + 1, value.raw.len - 2), &rejected);
    else
        (void)json_to_i64(&value, &rejected);
    return rejected > 0 ? rejected : 0;
}
