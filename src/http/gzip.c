/* Streams as gzip: a producer that takes the bytes of another one and gives them compressed.
 *
 *     producer ──▶ at most HTTP_GZIP_SLICE_BYTES ──▶ deflate ──▶ out
 *
 * A slice at a time, on the loop: after each the connection looks at the clock and gives the loop to others when its turn is over
 * (http_stream_rests()). A stream holds STATE_BYTES for deflate, charged to its tenant, and no bytes: the slice is the
 * loop's. Without room for that, it is not compressed.
 * Nor is it for HTTP/1.0, which has no chunks: by its length such a client knows that an answer is whole.
 *
 * The fastest level and a small window: answers are JSON whose items resemble each other, so a window of 4 KiB finds what one of
 * 32 KiB does, with an eighth of the memory. */
#include <stdlib.h>
#include <zlib.h>

#include "base/budget.h"
#include "base/memory.h"
#include "http/http_inside.h"

enum {
    LEVEL = Z_BEST_SPEED,
    WINDOW_BITS = 12,
    MEMORY_LEVEL = 5,
    GZIP_FRAME = 16, /* added to the bits: gzip's header and checksum instead of zlib's */
    OUT_BYTES = 4096,
    /* As zconf.h gives it, with its struct; rounded up. */
    STATE_BYTES = (1 << (WINDOW_BITS + 2)) + (1 << (MEMORY_LEVEL + 9)) + 8 * 1024,
};

struct gzip {
    z_stream stream;
    struct http_home *home;
    struct http_producer producer;
    uint64_t left; /* of the producer's content_length */
    uint64_t tenant;
};

static bool begin_deflate(z_stream *stream)
{
    return deflateInit2(stream, LEVEL, Z_DEFLATED, WINDOW_BITS + GZIP_FRAME, MEMORY_LEVEL,
                        Z_DEFAULT_STRATEGY) == Z_OK;
}

static void put_deflated(z_stream *stream, struct str bytes, bool is_last, struct buf *out)
{
    stream->next_in = (unsigned char *)bytes.ptr; /* zlib only reads it */
    stream->avail_in = (unsigned)bytes.len;
    do {
        stream->next_out = (unsigned char *)buf_reserve(out, OUT_BYTES);
        stream->avail_out = OUT_BYTES;
        (void)deflate(stream, is_last ? Z_FINISH : Z_NO_FLUSH);
        buf_commit(out, OUT_BYTES - stream->avail_out);
    } while (stream->avail_out == 0);
}

/* ---- a stream ---- */

static enum http_producer_state produce_gzip(void *context, struct buf *out, size_t room)
{
    struct gzip *gzip = context;
    struct buf *in = &gzip->home->gzip_in;

    (void)room; /* a slice leaves less than that, or little more */
    buf_clear(in);
    enum http_producer_state state =
        gzip->producer.produce(gzip->producer.context, in, HTTP_GZIP_SLICE_BYTES);
    gzip->home->has_compressed = true;
    uint64_t len = buf_len(in);
    if (state == HTTP_PRODUCER_FAIL || len > gzip->left || (state == HTTP_PRODUCER_END && len < gzip->left))
        return HTTP_PRODUCER_FAIL;
    gzip->left -= len;
    put_deflated(&gzip->stream, buf_str(in), state == HTTP_PRODUCER_END, out);
    return state;
}

static void release_gzip(void *context)
{
    struct gzip *gzip = context;

    gzip->producer.release(gzip->producer.context);
    (void)deflateEnd(&gzip->stream); /* it complains of a stream that was not finished */
    budget_release_tenant(BUDGET_REQUESTS, gzip->tenant, STATE_BYTES);
    free(gzip);
}

bool http_gzip_begin(struct http_exchange *exchange, bool has_body, const struct http_producer *producer,
                     struct http_producer *packed)
{
    if (producer->content_length < HTTP_GZIP_BYTES_MIN || exchange->parser.minor_version != 1 ||
        !http_request_takes_gzip(&exchange->request))
        return false;
    *packed = *producer;
    packed->content_length = -1;
    if (!has_body)
        return true;
    if (!budget_charge_tenant(BUDGET_REQUESTS, exchange->held_tenant, STATE_BYTES))
        return false;
    struct gzip *gzip = memory_zalloc(sizeof *gzip);
    *gzip = (struct gzip){
        .home = exchange->home,
        .producer = *producer,
        .left = (uint64_t)producer->content_length,
        .tenant = exchange->held_tenant,
    };
    if (!begin_deflate(&gzip->stream)) {
        budget_release_tenant(BUDGET_REQUESTS, gzip->tenant, STATE_BYTES);
        free(gzip);
        return false;
    }
    *packed = (struct http_producer){
        .produce = produce_gzip,
        .release = release_gzip,
        .context = gzip,
        .content_length = -1,
    };
    return true;
}

/* ---- a whole text ---- */

bool http_gzip_put(struct buf *out, struct str text)
{
    z_stream stream = {0};

    if (!budget_charge(BUDGET_REQUESTS, STATE_BYTES))
        return false;
    bool has_begun = begin_deflate(&stream);
    for (size_t len; has_begun && text.len > 0; text = str_skip(text, len)) {
        len = text.len < HTTP_GZIP_SLICE_BYTES ? text.len : HTTP_GZIP_SLICE_BYTES;
        put_deflated(&stream, str_of(text.ptr, len), len == text.len, out);
    }
    if (has_begun)
        (void)deflateEnd(&stream);
    budget_release(BUDGET_REQUESTS, STATE_BYTES);
    return has_begun;
}
