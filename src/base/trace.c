/* W3C trace context, version 00:
 *
 *     00-<32 hex trace id>-<16 hex span id>-<2 hex flags>
 *
 * A later version may append fields after a dash; what we know of it is read and what we pass on is 00.
 * `tracestate` is not kept. */
#include "base/trace.h"

#include "base/hash.h"
#include "base/hex.h"

#define FLAG_SAMPLED 0x01 /* the only flag version 00 defines; the others must be passed on as zero */

static bool is_zero(const uint8_t *bytes, size_t count)
{
    uint8_t seen = 0;

    for (size_t i = 0; i < count; i++)
        seen |= bytes[i];
    return seen == 0;
}

bool trace_is_none(const struct trace *trace)
{
    return is_zero(trace->trace_id, sizeof(trace->trace_id));
}

bool trace_parse(struct str traceparent, struct trace *trace)
{
    const size_t len = TRACE_PARENT_BYTES - 1;
    const char *p = traceparent.ptr;
    struct trace parsed;
    uint8_t version, flags;

    if (traceparent.len < len || p[2] != '-' || p[35] != '-' || p[52] != '-')
        return false;
    for (size_t i = 0; i < len; i++)
        if (p[i] >= 'A' && p[i] <= 'F')
            return false;
    if (!hex_get(p, &version, 1) || !hex_get(p + 3, parsed.trace_id, sizeof(parsed.trace_id)) ||
        !hex_get(p + 36, parsed.span_id, sizeof(parsed.span_id)) || !hex_get(p + 53, &flags, 1))
        return false;
    if (version == 0xFF || (traceparent.len > len && (version == 0 || p[len] != '-')))
        return false;
    if (is_zero(parsed.trace_id, sizeof(parsed.trace_id)) || is_zero(parsed.span_id, sizeof(parsed.span_id)))
        return false;
    parsed.flags = flags & FLAG_SAMPLED;
    *trace = parsed;
    return true;
}

/* All zeroes means "none", so a draw of zeroes is drawn again. */
static void random_id(uint8_t *id, size_t len)
{
    do {
        random_bytes(id, len);
    } while (is_zero(id, len));
}

void trace_start(struct trace *trace)
{
    random_id(trace->trace_id, sizeof(trace->trace_id));
    random_id(trace->span_id, sizeof(trace->span_id));
    trace->flags = 0;
}

void trace_child(struct trace *trace)
{
    random_id(trace->span_id, sizeof(trace->span_id));
}

struct str trace_id_text(const struct trace *trace, char out[TRACE_ID_TEXT_BYTES])
{
    if (trace_is_none(trace))
        return STR_NONE;
    return str_of(out, (size_t)(hex_put(out, trace->trace_id, sizeof(trace->trace_id)) - out));
}

struct str trace_id_of(struct str traceparent)
{
    struct trace trace;

    return trace_parse(traceparent, &trace) ? str_of(traceparent.ptr + 3, 2 * sizeof(trace.trace_id))
                                            : STR_NONE;
}

void trace_format(const struct trace *trace, char out[TRACE_PARENT_BYTES])
{
    static const uint8_t version = 0;

    out = hex_put(out, &version, 1);
    *out++ = '-';
    out = hex_put(out, trace->trace_id, sizeof(trace->trace_id));
    *out++ = '-';
    out = hex_put(out, trace->span_id, sizeof(trace->span_id));
    *out++ = '-';
    out = hex_put(out, &trace->flags, 1);
    *out = '\0';
}

struct str trace_text(const struct trace *trace, struct arena *arena)
{
    if (trace_is_none(trace))
        return STR_NONE;
    char *text = arena_alloc(arena, TRACE_PARENT_BYTES);
    trace_format(trace, text);
    return str_of(text, TRACE_PARENT_BYTES - 1);
}
