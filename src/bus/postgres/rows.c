/* Messages as PostgreSQL has them: array literals on the way in, rows on the way out. Keys and payloads travel
 * as they are, and are read where the result has them. */
#include <stdio.h>

#include "bus/postgres/inside.h"

struct db_param bus_postgres_param(struct postgres_number *number, int64_t value)
{
    int len = snprintf(number->text, sizeof number->text, "%lld", (long long)value);

    return (struct db_param){str_of(number->text, (size_t)len)};
}

/* ---- array elements ---- */

static void separate(struct buf *out)
{
    if (out->data[out->end - 1] != '{')
        buf_put_char(out, ',');
}

void bus_postgres_array_put_i64(struct buf *out, int64_t value)
{
    separate(out);
    buf_printf(out, "%lld", (long long)value);
}

void bus_postgres_put_headers(struct buf *out, const struct bus_message *message)
{
    db_array_begin(out);
    for (unsigned i = 0; i < message->header_count; i++) {
        db_array_put(out, message->headers[i].name);
        db_array_put(out, message->headers[i].value);
    }
    db_array_end(out);
}

void bus_postgres_array_put_headers(struct buf *out, const struct bus_message *message)
{
    struct buf inner;

    buf_init(&inner);
    bus_postgres_put_headers(&inner, message);
    db_array_put(out, buf_str(&inner));
    buf_deinit(&inner);
}

/* ---- rows ---- */

/* Takes one element of a text[] literal off *rest, which begins behind '{' or ','. */
static struct str take_element(struct str *rest, struct arena *arena)
{
    char *out = arena_alloc(arena, rest->len + 1);
    size_t len = 0, at = 0;
    bool quoted = rest->len > 0 && rest->ptr[0] == '"';

    for (at = quoted; at < rest->len; at++) {
        char c = rest->ptr[at];
        if (quoted ? c == '"' : c == ',' || c == '}')
            break;
        if (c == '\\' && at + 1 < rest->len)
            c = rest->ptr[++at];
        out[len++] = c;
    }
    at += quoted;
    *rest = at + 1 < rest->len ? str_of(rest->ptr + at + 1, rest->len - at - 1) : STR_NONE;
    out[len] = '\0';
    return str_of(out, len);
}

static void decode_headers(struct str text, struct arena *arena, struct bus_message *message)
{
    if (text.len <= 2) /* {} */
        return;
    struct bus_header *headers = arena_alloc(arena, BUS_HEADERS_MAX * sizeof headers[0]);
    struct str rest = str_of(text.ptr + 1, text.len - 1);
    while (rest.len > 0 && message->header_count < BUS_HEADERS_MAX) {
        struct bus_header *header = &headers[message->header_count++];
        header->name = take_element(&rest, arena);
        header->value = take_element(&rest, arena);
    }
    message->headers = headers;
}

void bus_postgres_row_message(const struct db_result *result, size_t row, unsigned column,
                              struct arena *arena, struct bus_message *message)
{
    message->offset = db_result_i64(result, row, column);
    message->key =
        db_result_is_null(result, row, column + 1) ? STR_NONE : db_result_str(result, row, column + 1);
    decode_headers(db_result_str(result, row, column + 2), arena, message);
    message->payload = db_result_str(result, row, column + 3);
    message->created_us = db_result_i64(result, row, column + 4);
}
