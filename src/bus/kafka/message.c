/* Messages between the bus and Kafka. What other programs write is taken as it is: a key may be missing or any bytes, a
 * payload may be missing, and a header that is not text is left out. */
#include "bus/kafka/inside.h"

static bool is_text(struct str s)
{
    return str_is_utf8(s) && (s.len == 0 || !memchr(s.ptr, '\0', s.len));
}

/* ---- from Kafka ---- */

static void read_headers(const rd_kafka_message_t *from, struct arena *arena, struct bus_message *to)
{
    rd_kafka_headers_t *headers;

    if (rd_kafka_message_headers(from, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    size_t count = rd_kafka_header_cnt(headers);
    struct bus_header *out = arena_alloc(arena, (count + 1) * sizeof out[0]);
    unsigned kept = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name;
        const void *value;
        size_t size;
        if (rd_kafka_header_get_all(headers, i, &name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        struct bus_header header = {str_from(name), str_of(value ? value : "", value ? size : 0)};
        if (header.name.len > 0 && is_text(header.name) && is_text(header.value))
            out[kept++] = header;
    }
    to->headers = out;
    to->header_count = kept;
}

void bus_kafka_message_read(const rd_kafka_message_t *from, struct str topic, struct arena *arena,
                            struct bus_message *to)
{
    rd_kafka_timestamp_type_t type;
    int64_t at_ms = rd_kafka_message_timestamp(from, &type);

    *to = (struct bus_message){
        .topic = topic,
        .key = from->key ? str_of(from->key, from->key_len) : STR_NONE,
        .payload = from->payload ? str_of(from->payload, from->len) : STR(""),
        .partition = (unsigned)from->partition,
        .offset = from->offset,
        .created_us = at_ms > 0 ? at_ms * 1000 : 0,
    };
    read_headers(from, arena, to);
}

/* ---- to Kafka ---- */

static rd_kafka_headers_t *make_headers(const struct bus_message *message)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(message->header_count);

    for (unsigned i = 0; i < message->header_count; i++) {
        const struct bus_header *header = &message->headers[i];
        rd_kafka_header_add(headers, header->name.ptr, (ssize_t)header->name.len,
                            header->value.ptr ? header->value.ptr : "", (ssize_t)header->value.len);
    }
    return headers;
}

/* A payload of no bytes is not Kafka's null, which would mean a deletion to some. */
rd_kafka_resp_err_t bus_kafka_message_send(rd_kafka_t *rk, const char *topic,
                                           const struct bus_message *message, void *opaque)
{
    rd_kafka_headers_t *headers = message->header_count ? make_headers(message) : NULL;
    const char *payload = message->payload.ptr ? message->payload.ptr : "";
    const rd_kafka_vu_t parts[] = {
        {.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = topic},
        {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = (int32_t)message->partition},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {(void *)payload, message->payload.len}},
        {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {(void *)message->key.ptr, message->key.len}},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = opaque},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
    };
    size_t count = sizeof parts / sizeof parts[0];
    rd_kafka_error_t *error = rd_kafka_produceva(rk, parts, headers ? count : count - 1);

    if (!error)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    if (headers)
        rd_kafka_headers_destroy(headers);
    return code;
}
