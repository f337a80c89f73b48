/* What stands on a stream (M3): NDJSON, a JSON object a line; or server-sent events, the same objects as data, with the
 * sequence as the id that a browser comes back with. */
#include "modules/chat/pages.h"

void chat_line_put(struct buf *out, enum chat_format format, int64_t sequence, struct str line)
{
    if (format == CHAT_SSE)
        buf_printf(out, "id: %lld\ndata: ", (long long)sequence);
    buf_put_str(out, line);
    buf_put_str(out, format == CHAT_SSE ? STR("\n\n") : STR("\n"));
}

static void put_up_to_date(struct buf *out, int64_t sequence)
{
    buf_printf(out, "{\"event_type\":\"up_to_date\",\"sequence\":%lld}\n", (long long)sequence);
}

static void put_heartbeat(struct buf *out, int64_t sequence)
{
    (void)sequence;
    buf_put_str(out, STR("{\"event_type\":\"heartbeat\"}\n"));
}

static void put_cut_off(struct buf *out, int64_t sequence)
{
    buf_printf(out, "{\"event_type\":\"cut_off\",\"sequence\":%lld}\n", (long long)sequence);
}

static void put_sse_up_to_date(struct buf *out, int64_t sequence)
{
    buf_printf(out, "id: %lld\ndata: ", (long long)sequence);
    put_up_to_date(out, sequence);
    buf_put_char(out, '\n');
}

static void put_sse_heartbeat(struct buf *out, int64_t sequence)
{
    buf_put_str(out, STR("data: "));
    put_heartbeat(out, sequence);
    buf_put_char(out, '\n');
}

static void put_sse_cut_off(struct buf *out, int64_t sequence)
{
    buf_printf(out, "id: %lld\ndata: ", (long long)sequence);
    put_cut_off(out, sequence);
    buf_put_char(out, '\n');
}

const struct chat_lines chat_lines[CHAT_FORMATS] = {
    [CHAT_NDJSON] = {{"application/x-ndjson", 20}, put_up_to_date, put_heartbeat, put_cut_off},
    [CHAT_SSE] = {{"text/event-stream", 17}, put_sse_up_to_date, put_sse_heartbeat, put_sse_cut_off},
};
