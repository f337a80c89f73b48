/* A message that travels with the notice of it. Whoever was the last to handle its partition can begin with it while the
 * right to it is still being asked for (shared.c): one round trip less for a message that somebody waits for.
 *
 * A reader of everything in the process that published it needs no right: it takes the message itself, if it has all before it.
 *
 * In a notice: netstrings ("5:bytes,"), first the key, then the payload, then the headers' names and values in turn. */
#include <stdlib.h>

#include "base/memory.h"
#include "bus/postgres/inside.h"

#define NOTICE_BYTES_MAX 7900 /* PostgreSQL takes less than 8,000 */

/* ---- to text ---- */

static void put(struct buf *out, struct str part)
{
    buf_printf(out, "%zu:", part.len);
    buf_put_str(out, part);
    buf_put_char(out, ',');
}

void bus_postgres_preview_put(struct buf *notice, const struct bus_message *message)
{
    struct buf parts;

    if (!message->key.ptr || message->payload.len > NOTICE_BYTES_MAX)
        return;
    buf_init(&parts);
    put(&parts, message->key);
    put(&parts, message->payload);
    for (unsigned i = 0; i < message->header_count; i++) {
        put(&parts, message->headers[i].name);
        put(&parts, message->headers[i].value);
    }
    struct str text = buf_str(&parts);
    if (text.len + buf_str(notice).len < NOTICE_BYTES_MAX && str_is_utf8(text) &&
        !memchr(text.ptr, '\0', text.len)) {
        buf_put_char(notice, ':');
        buf_put_str(notice, text);
    }
    buf_deinit(&parts);
}

/* ---- from text ---- */

static bool take(struct str *text, struct str *part)
{
    struct str digits;
    int64_t len;

    if (!str_split(text, ':', &digits) || !str_to_i64(digits, &len) || len < 0 || (size_t)len >= text->len ||
        text->ptr[len] != ',')
        return false;
    *part = str_of(text->ptr, (size_t)len);
    *text = str_of(text->ptr + len + 1, text->len - (size_t)len - 1);
    return true;
}

static bool take_headers(struct str text, struct bus_header *headers, unsigned *count)
{
    for (*count = 0; text.len > 0; (*count)++)
        if (*count == BUS_HEADERS_MAX || !take(&text, &headers[*count].name) ||
            !take(&text, &headers[*count].value))
            return false;
    return true;
}

struct postgres_preview *bus_postgres_preview_take(struct str text, int partition)
{
    struct postgres_preview *preview = memory_zalloc(sizeof *preview);
    struct bus_message *message = &preview->message;

    preview->text = str_dup(text);
    text.ptr = preview->text;
    preview->partition = partition;
    message->headers = preview->headers;
    message->partition = (unsigned)partition;
    if (take(&text, &message->key) && take(&text, &message->payload) &&
        take_headers(text, preview->headers, &message->header_count))
        return preview;
    bus_postgres_preview_free(preview);
    return NULL;
}

struct postgres_preview *bus_postgres_preview_copy(const struct bus_message *message)
{
    struct postgres_preview *preview = NULL;
    struct buf text;

    buf_init(&text);
    bus_postgres_preview_put(&text, message);
    if (buf_len(&text) > 0) { /* behind the colon that it puts first */
        buf_consume(&text, 1);
        preview = bus_postgres_preview_take(buf_str(&text), (int)message->partition);
    }
    if (preview) {
        preview->message.offset = message->offset;
        preview->message.created_us = message->created_us;
    }
    buf_deinit(&text);
    return preview;
}

void bus_postgres_preview_free(struct postgres_preview *preview)
{
    if (preview)
        free(preview->text);
    free(preview);
}

bool bus_postgres_preview_is(const struct postgres_preview *preview, const struct bus_message *message)
{
    const struct bus_message *own = &preview->message;

    if (!str_eq(own->key, message->key) || !str_eq(own->payload, message->payload) ||
        own->header_count != message->header_count)
        return false;
    for (unsigned i = 0; i < own->header_count; i++)
        if (!str_eq(own->headers[i].name, message->headers[i].name) ||
            !str_eq(own->headers[i].value, message->headers[i].value))
            return false;
    return true;
}
