/* Replies are built in the caller's arena by functions given to hiredis's reader, so that a reply needs no free and an array's
 * length is checked before anything is allocated for it. */
#include "bus/redis/inside.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

enum { OFFSET_SEQ_BITS = 20 };
#define OFFSET_MS_MAX ((UINT64_C(1) << (63 - OFFSET_SEQ_BITS)) - 1)
#define OFFSET_SEQ_MAX ((UINT64_C(1) << OFFSET_SEQ_BITS) - 1)

/* ---- replies ---- */

static const struct redis_reply nil = {.kind = REDIS_NIL};

const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t at)
{
    return reply->kind == REDIS_ARRAY && at < reply->count ? &reply->items[at] : &nil;
}

enum status redis_reply_error(const struct redis_reply *reply, enum status status, struct error *error)
{
    return error_set(error, status, "%.*s", STR_ARG(str_utf8_cut(reply->text, 200)));
}

const struct redis_reply *redis_reply_field(const struct redis_reply *reply, struct str name)
{
    for (size_t i = 0; reply->kind == REDIS_ARRAY && i + 1 < reply->count; i += 2)
        if (reply->items[i].kind == REDIS_TEXT && str_eq(reply->items[i].text, name))
            return &reply->items[i + 1];
    return &nil;
}

/* ---- hiredis's callbacks ---- */

/* NULL: over the limit. The reader reports it as out of memory. */
static struct redis_reply *new_reply(const redisReadTask *task, enum redis_kind kind, size_t more_bytes)
{
    struct redis_parser *parser = task->privdata;
    struct redis_reply *reply;

    parser->bytes += sizeof(struct redis_reply) + more_bytes;
    if (parser->bytes > parser->bytes_max)
        return NULL;
    reply = task->parent ? &((struct redis_reply *)task->parent->obj)->items[task->idx]
                         : arena_zalloc(parser->arena, sizeof *reply);
    reply->kind = kind;
    return reply;
}

static void *create_string(const redisReadTask *task, char *bytes, size_t len)
{
    struct redis_parser *parser = task->privdata;
    struct redis_reply *reply =
        new_reply(task, task->type == REDIS_REPLY_ERROR ? REDIS_ERROR : REDIS_TEXT, len);

    if (reply)
        reply->text = arena_str(parser->arena, str_of(bytes, len));
    return reply;
}

static void *create_array(const redisReadTask *task, int count)
{
    struct redis_parser *parser = task->privdata;
    size_t bytes = count > 0 ? (size_t)count * sizeof(struct redis_reply) : 0;
    struct redis_reply *reply = new_reply(task, REDIS_ARRAY, bytes);

    if (reply && bytes > 0) {
        reply->count = (size_t)count;
        reply->items = arena_zalloc(parser->arena, bytes);
    }
    return reply;
}

static void *create_integer(const redisReadTask *task, long long value)
{
    struct redis_reply *reply = new_reply(task, REDIS_INTEGER, 0);

    if (reply)
        reply->integer = value;
    return reply;
}

static void *create_nil(const redisReadTask *task)
{
    return new_reply(task, REDIS_NIL, 0);
}

static redisReplyObjectFunctions functions = {
    .createString = create_string,
    .createArray = create_array,
    .createInteger = create_integer,
    .createNil = create_nil,
    .freeObject = NULL, /* replies are the arena's */
};

/* ---- the parser ---- */

void redis_parser_init(struct redis_parser *parser, size_t reply_bytes_max)
{
    *parser = (struct redis_parser){.bytes_max = reply_bytes_max};
    parser->reader = redisReaderCreateWithFunctions(&functions);
    if (!parser->reader)
        memory_alloc(SIZE_MAX / 2); /* ends the process */
    parser->reader->privdata = parser;
}

void redis_parser_deinit(struct redis_parser *parser)
{
    if (parser->reader)
        redisReaderFree(parser->reader);
    parser->reader = NULL;
}

void redis_parser_feed(struct redis_parser *parser, struct str bytes)
{
    redisReaderFeed(parser->reader, bytes.ptr, bytes.len); /* redis_parser_next() reports its failure */
}

enum status redis_parser_next(struct redis_parser *parser, struct arena *arena,
                              const struct redis_reply **reply, struct error *error)
{
    struct redisReader *reader = parser->reader;
    void *found = NULL;

    *reply = NULL;
    parser->arena = arena;
    if (redisReaderGetReply(reader, &found) != REDIS_OK)
        return error_set(error, STATUS_IO, "the reply is not valid Redis protocol: %s",
                         reader->err == REDIS_ERR_OOM ? "over the size limit" : reader->errstr);
    if (!found && reader->len - reader->pos > parser->bytes_max)
        return error_set(error, STATUS_IO, "a reply is over the limit of %zu bytes", parser->bytes_max);
    if (found)
        parser->bytes = 0;
    *reply = found;
    return STATUS_OK;
}

/* ---- commands ---- */

void redis_command_put(struct buf *out, const struct str *arguments, size_t count)
{
    buf_printf(out, "*%zu\r\n", count);
    for (size_t i = 0; i < count; i++) {
        buf_printf(out, "$%zu\r\n", arguments[i].len);
        buf_put_str(out, arguments[i]);
        buf_put_str(out, STR("\r\n"));
    }
}

void redis_command_vprintf(struct buf *out, const char *format, va_list arguments)
{
    char *command = NULL;
    int len = redisvFormatCommand(&command, format, arguments);

    if (len < 0)
        memory_alloc(SIZE_MAX / 2); /* ends the process, as every failed allocation */
    buf_put(out, command, (size_t)len);
    redisFreeCommand(command);
}

/* ---- streams ---- */

bool redis_id_parse(struct str text, struct redis_id *id)
{
    struct str ms;

    return str_split(&text, '-', &ms) && text.ptr && str_to_u64(ms, &id->ms) && str_to_u64(text, &id->seq);
}

struct str redis_id_put(struct redis_id id, char out[REDIS_ID_BYTES])
{
    int len =
        snprintf(out, REDIS_ID_BYTES, "%llu-%llu", (unsigned long long)id.ms, (unsigned long long)id.seq);

    return str_of(out, (size_t)len);
}

int redis_id_compare(struct redis_id a, struct redis_id b)
{
    if (a.ms != b.ms)
        return a.ms < b.ms ? -1 : 1;
    return a.seq < b.seq ? -1 : a.seq > b.seq;
}

int64_t redis_id_offset(struct redis_id id)
{
    uint64_t ms = id.ms < OFFSET_MS_MAX ? id.ms : OFFSET_MS_MAX;
    uint64_t seq = id.seq < OFFSET_SEQ_MAX ? id.seq : OFFSET_SEQ_MAX;

    return (int64_t)(ms << OFFSET_SEQ_BITS | seq);
}

bool redis_stream_info_parse(const struct redis_reply *reply, struct redis_stream_info *info)
{
    const struct redis_reply *added = redis_reply_field(reply, STR("entries-added"));

    info->added = added->kind == REDIS_INTEGER ? added->integer : -1;
    info->length = redis_reply_field(reply, STR("length"))->integer;
    return redis_id_parse(redis_reply_field(reply, STR("last-generated-id"))->text, &info->last);
}

enum status redis_entries_parse(const struct redis_reply *reply, struct str topic, struct arena *arena,
                                struct redis_entries *entries, struct error *error)
{
    size_t count = reply->kind == REDIS_ARRAY ? reply->count : 0;

    if (reply->kind != REDIS_ARRAY && reply->kind != REDIS_NIL)
        return error_set(error, STATUS_IO, "the reply is not a list of entries");
    *entries = (struct redis_entries){
        .messages = arena_zalloc(arena, (count + 1) * sizeof(struct bus_message)),
        .ids = arena_alloc(arena, (count + 1) * sizeof(struct redis_id)),
    };
    for (size_t i = 0; i < count; i++) {
        const struct redis_reply *id = redis_reply_at(&reply->items[i], 0),
                                 *fields = redis_reply_at(&reply->items[i], 1);
        struct bus_message *message = &entries->messages[i];
        if (id->kind != REDIS_TEXT || !redis_id_parse(id->text, &entries->ids[i]))
            return error_set(error, STATUS_IO, "an entry has no id");
        struct bus_header *headers = arena_alloc(arena, (fields->count / 2 + 1) * sizeof headers[0]);
        for (size_t at = 0; fields->kind == REDIS_ARRAY && at + 1 < fields->count; at += 2) {
            const struct redis_reply *name = &fields->items[at], *value = &fields->items[at + 1];
            if (name->kind != REDIS_TEXT || value->kind != REDIS_TEXT)
                continue;
            if (!message->payload.ptr && str_eq(name->text, STR("event")))
                message->payload = value->text;
            else if (!message->key.ptr && str_eq(name->text, STR("key")))
                message->key = value->text;
            else if (message->header_count < BUS_HEADERS_MAX)
                headers[message->header_count++] = (struct bus_header){name->text, value->text};
        }
        message->topic = topic;
        message->headers = headers;
        if (!message->payload.ptr)
            message->payload = STR("");
        message->offset = redis_id_offset(entries->ids[i]);
        message->created_us = (message->offset >> OFFSET_SEQ_BITS) * 1000;
    }
    entries->count = count;
    return STATUS_OK;
}

/* ---- nodes ---- */

static bool address_set(struct redis_address *address, struct str host, uint64_t port)
{
    if (host.len > 2 && host.ptr[0] == '[' && host.ptr[host.len - 1] == ']')
        host = str_of(host.ptr + 1, host.len - 2);
    if (host.len >= sizeof address->host || port == 0 || port > UINT16_MAX ||
        (host.len && memchr(host.ptr, '\0', host.len)))
        return false;
    snprintf(address->host, sizeof address->host, "%.*s", STR_ARG(host));
    address->port = (uint16_t)port;
    return true;
}

static bool address_split(struct str text, struct redis_address *address)
{
    size_t colon = text.len;
    uint64_t port;

    while (colon > 0 && text.ptr[colon - 1] != ':')
        colon--;
    return colon > 0 && str_to_u64(str_of(text.ptr + colon, text.len - colon), &port) &&
           address_set(address, str_of(text.ptr, colon - 1), port);
}

bool redis_address_parse(struct str text, struct redis_address *address)
{
    return address_split(text, address) && address->host[0];
}

bool redis_address_of_node(const struct redis_reply *node, const struct redis_address *asked,
                           struct redis_address *address)
{
    const struct redis_reply *host = redis_reply_at(node, 0), *port = redis_reply_at(node, 1);
    bool unnamed = host->text.len == 0 || str_eq(host->text, STR("?"));

    return port->kind == REDIS_INTEGER && port->integer > 0 &&
           (host->kind == REDIS_TEXT || host->kind == REDIS_NIL) &&
           address_set(address, unnamed ? str_from(asked->host) : host->text, (uint64_t)port->integer);
}

/* "MOVED 3999 127.0.0.1:6381", "ASK …" */
bool redis_redirect_parse(struct str error, struct redis_redirect *redirect)
{
    struct str word, slot;
    uint64_t number;

    if (!str_split(&error, ' ', &word) || !str_split(&error, ' ', &slot) || !error.ptr)
        return false;
    redirect->is_ask = str_eq(word, STR("ASK"));
    return (redirect->is_ask || str_eq(word, STR("MOVED"))) && str_to_u64(slot, &number) && number < 16384 &&
           address_split(error, &redirect->to);
}
