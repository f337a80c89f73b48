/* Messages as PostgreSQL has them: array literals when they are written, rows when they are read, and attached to a notice, so that
 * a reader can begin before it has read the row. Keys and payloads are sent as they are, and used where the result has them. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "bus/postgres/inside.h"

#define NOTICE_BYTES_MAX 7900 /* PostgreSQL takes less than 8,000 */

/* ---- rows ---- */

static bool take_u32(struct str *bytes, uint32_t *number)
{
    if (bytes->len < sizeof *number)
        return false;
    memcpy(number, bytes->ptr, sizeof *number);
    *number = ntohl(*number);
    *bytes = str_of(bytes->ptr + sizeof *number, bytes->len - sizeof *number);
    return true;
}

/* A text[] of PostgreSQL's binary form: dimensions, flags, type, [count, first index], then a length and the text of each: names
 * and values in turn. */
static void take_headers(struct str bytes, struct arena *arena, struct bus_message *message)
{
    uint32_t unused, count = 0, len;

    for (int i = 0; i < 3; i++)
        (void)take_u32(&bytes, &unused);
    if (!take_u32(&bytes, &count) || count == 0 || !take_u32(&bytes, &unused))
        return;
    count = count < 2 * BUS_HEADERS_MAX ? count : 2 * BUS_HEADERS_MAX;
    struct bus_header *headers = arena_zalloc(arena, (count + 1) / 2 * sizeof headers[0]);
    for (uint32_t i = 0; i < count; i++) {
        if (!take_u32(&bytes, &len) || len > bytes.len)
            break;
        *(i % 2 ? &headers[i / 2].value : &headers[i / 2].name) = str_of(bytes.ptr, len);
        bytes = str_of(bytes.ptr + len, bytes.len - len);
        message->header_count = i / 2 + 1;
    }
    message->headers = headers;
}

struct bus_message *bus_postgres_row_messages(const struct db_result *result, size_t begin, size_t end,
                                              unsigned column, struct str topic, unsigned partition,
                                              struct arena *arena)
{
    struct bus_message *messages = arena_zalloc(arena, (end - begin) * sizeof messages[0]);

    for (size_t row = begin; row < end; row++) {
        struct bus_message *message = &messages[row - begin];
        message->topic = topic;
        message->partition = partition;
        message->offset = db_result_i64(result, row, column);
        if (!db_result_is_null(result, row, column + 1))
            message->key = db_result_str(result, row, column + 1);
        take_headers(db_result_str(result, row, column + 2), arena, message);
        message->payload = db_result_str(result, row, column + POSTGRES_PAYLOAD);
        message->created_us = db_result_i64(result, row, column + 4);
    }
    return messages;
}

size_t bus_postgres_before_hole(const struct bus_message *messages, size_t count)
{
    size_t end = count > 0;
    while (end < count && messages[end].offset == messages[end - 1].offset + 1)
        end++;
    return end;
}

/* ---- payloads that are larger than a batch ---- */

static const struct db_statement size_sql =
    DB_STATEMENT("SELECT octet_length(payload) FROM platform.bus_message"
                 " WHERE topic = $1 AND partition = $2 AND message_offset = $3");
static const struct db_statement payload_sql =
    DB_STATEMENT_BINARY("SELECT payload FROM platform.bus_message"
                        " WHERE topic = $1 AND partition = $2 AND message_offset = $3");

size_t bus_postgres_rows_loaded(const struct db_result *result, size_t begin, size_t end, unsigned column)
{
    size_t row = begin;

    while (row < end && !db_result_is_null(result, row, column + POSTGRES_PAYLOAD))
        row++;
    return row - begin;
}

static enum status query_message(struct db_conn *conn, const struct db_statement *statement,
                                 const struct bus_message *message, int64_t deadline_ns,
                                 struct db_result **result, struct error *error)
{
    enum status status =
        db_query(conn, statement,
                 DB_PARAMS(db_text(message->topic), db_int(message->partition), db_i64(message->offset)),
                 deadline_ns, result, error);

    if (status == STATUS_OK && db_result_rows(*result) != 1)
        status = error_set(error, STATUS_DB_RETRY, "the message was deleted meanwhile");
    return status;
}

enum status bus_postgres_payload_load(struct db_conn *conn, struct bus_message *message,
                                      size_t batch_bytes_max, const void *owner, struct bus_hold *hold,
                                      int64_t deadline_ns, struct db_result **payload, struct error *error)
{
    struct db_result *size = NULL;
    enum status status = query_message(conn, &size_sql, message, deadline_ns, &size, error);

    *payload = NULL;
    if (status == STATUS_OK && bus_hold_take(hold, owner, (size_t)db_result_i64(size, 0, 0), batch_bytes_max))
        status = query_message(conn, &payload_sql, message, deadline_ns, payload, error);
    if (status == STATUS_OK && *payload)
        message->payload = db_result_str(*payload, 0, 0);
    db_result_free(size);
    return status;
}

/* ---- attached to a notice: netstrings ("5:bytes,"): key, payload, then names and values of the headers in turn ---- */

static void put_part(struct buf *out, struct str part)
{
    buf_printf(out, "%zu:", part.len);
    buf_put_str(out, part);
    buf_put_char(out, ',');
}

void bus_postgres_attach(struct buf *notice, const struct bus_message *message)
{
    struct buf parts = {0};

    if (!message->key.ptr || message->payload.len > NOTICE_BYTES_MAX)
        return;
    put_part(&parts, message->key);
    put_part(&parts, message->payload);
    for (unsigned i = 0; i < message->header_count; i++) {
        put_part(&parts, message->headers[i].name);
        put_part(&parts, message->headers[i].value);
    }
    struct str text = buf_str(&parts);
    if (text.len + buf_str(notice).len < NOTICE_BYTES_MAX && str_is_utf8(text) &&
        !memchr(text.ptr, '\0', text.len)) {
        buf_put_char(notice, ':');
        buf_put_str(notice, text);
    }
    buf_deinit(&parts);
}

static bool take_part(struct str *text, struct str *part)
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

struct attached_message *bus_postgres_attached_parse(struct str text, int partition)
{
    struct attached_message *attached = memory_zalloc(sizeof *attached);
    struct bus_message *message = &attached->message;

    attached->text = str_dup(text);
    text.ptr = attached->text;
    attached->partition = partition;
    message->headers = attached->headers;
    message->partition = (unsigned)partition;
    bool is_valid = take_part(&text, &message->key) && take_part(&text, &message->payload);
    while (is_valid && text.len > 0) {
        struct bus_header *header = &attached->headers[message->header_count];
        is_valid = message->header_count < BUS_HEADERS_MAX && take_part(&text, &header->name) &&
                   take_part(&text, &header->value);
        message->header_count++;
    }
    if (is_valid)
        return attached;
    bus_postgres_attached_free(attached);
    return NULL;
}

struct attached_message *bus_postgres_attached_copy(const struct bus_message *message)
{
    struct attached_message *attached = NULL;
    struct buf text = {0};

    bus_postgres_attach(&text, message);
    if (buf_len(&text) > 0) { /* after the colon that it puts first */
        buf_consume(&text, 1);
        attached = bus_postgres_attached_parse(buf_str(&text), (int)message->partition);
    }
    if (attached) {
        attached->message.offset = message->offset;
        attached->message.created_us = message->created_us;
    }
    buf_deinit(&text);
    return attached;
}

void bus_postgres_attached_free(struct attached_message *attached)
{
    if (attached)
        free(attached->text);
    free(attached);
}
