/* Replies are built into the caller's arena by functions given to hiredis's reader, so that a reply needs no free and an
 * array's length is checked before anything is allocated for it. */
#include "bus/redis/reply.h"

#include <hiredis/hiredis.h>
#include <stdio.h>

#include "base/memory.h"

enum { OFFSET_SEQ_BITS = 20 };
#define OFFSET_MS_MAX ((UINT64_C(1) << (63 - OFFSET_SEQ_BITS)) - 1)
#define OFFSET_SEQ_MAX ((UINT64_C(1) << OFFSET_SEQ_BITS) - 1)

/* ---- looking at replies ---- */

static const struct redis_reply nil = {.kind = REDIS_NIL};

const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t at)
{
    return reply->kind == REDIS_ARRAY && at < reply->count ? &reply->items[at] : &nil;
}

bool redis_reply_is_error(const struct redis_reply *reply, const char *prefix)
{
    return reply->kind == REDIS_ERROR && str_starts_with(reply->text, str_from(prefix));
}

const struct redis_reply *redis_reply_field(const struct redis_reply *reply, struct str name)
{
    for (size_t i = 0; reply->kind == REDIS_ARRAY && i + 1 < reply->count; i += 2)
        if (reply->items[i].kind == REDIS_TEXT && str_eq(reply->items[i].text, name))
            return &reply->items[i + 1];
    return &nil;
}

/* ---- building them ---- */

/* NULL: it is too much, which the reader takes for a lack of memory. */
static void *place(const redisReadTask *task, size_t more_bytes)
{
    struct redis_parser *parser = task->privdata;

    parser->bytes += sizeof(struct redis_reply) + more_bytes;
    if (parser->bytes > parser->bytes_max)
        return NULL;
    if (task->parent)
        return &((struct redis_reply *)task->parent->obj)->items[task->idx];
    return arena_zalloc(parser->arena, sizeof(struct redis_reply));
}

static struct arena *arena_of(const redisReadTask *task)
{
    return ((struct redis_parser *)task->privdata)->arena;
}

static void *create_string(const redisReadTask *task, char *bytes, size_t len)
{
    struct redis_reply *reply = place(task, len);

    if (!reply)
        return NULL;
    reply->kind = task->type == REDIS_REPLY_ERROR ? REDIS_ERROR : REDIS_TEXT;
    reply->text = arena_str(arena_of(task), str_of(bytes, len));
    return reply;
}

static void *create_array(const redisReadTask *task, int count)
{
    size_t items = count > 0 ? (size_t)count : 0;
    struct redis_reply *reply = place(task, items * sizeof(struct redis_reply));

    if (!reply)
        return NULL;
    reply->kind = REDIS_ARRAY;
    reply->count = items;
    reply->items = items ? arena_zalloc(arena_of(task), items * sizeof reply->items[0]) : NULL;
    return reply;
}

static void *create_integer(const redisReadTask *task, long long value)
{
    struct redis_reply *reply = place(task, 0);

    if (!reply)
        return NULL;
    reply->kind = REDIS_INTEGER;
    reply->integer = value;
    return reply;
}

static void *create_nil(const redisReadTask *task)
{
    struct redis_reply *reply = place(task, 0);

    if (reply)
        reply->kind = REDIS_NIL;
    return reply;
}

static void free_nothing(void *reply)
{
    (void)reply; /* the arena's */
}

static redisReplyObjectFunctions functions = {
    .createString = create_string,
    .createArray = create_array,
    .createInteger = create_integer,
    .createNil = create_nil,
    .freeObject = free_nothing,
};

/* ---- the reader ---- */

void redis_parser_init(struct redis_parser *parser, size_t reply_bytes_max)
{
    *parser = (struct redis_parser){.bytes_max = reply_bytes_max};
    parser->reader = redisReaderCreateWithFunctions(&functions);
    if (!parser->reader)
        memory_alloc(SIZE_MAX / 2); /* ends the process as any other lack of memory does */
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
    redisReaderFeed(parser->reader, bytes.ptr, bytes.len); /* its failure is told by the next reply */
}

enum status redis_parser_next(struct redis_parser *parser, struct arena *arena,
                              const struct redis_reply **reply, struct error *error)
{
    struct redisReader *reader = parser->reader;
    void *found = NULL;

    *reply = NULL;
    parser->arena = arena;
    if (redisReaderGetReply(reader, &found) != REDIS_OK)
        return error_set(error, STATUS_IO, "what it answers makes no sense: %s",
                         reader->err == REDIS_ERR_OOM ? "it is too much" : reader->errstr);
    if (!found && reader->len - reader->pos > parser->bytes_max)
        return error_set(error, STATUS_IO, "an answer is over the limit of %zu bytes", parser->bytes_max);
    if (found)
        parser->bytes = 0;
    *reply = found;
    return STATUS_OK;
}

/* ---- commands ---- */

void redis_command_put(struct buf *out, const struct str *arguments, size_t count)
{
    const char **texts = memory_alloc(count * sizeof texts[0]);
    size_t *lens = memory_alloc(count * sizeof lens[0]);
    char *command = NULL;

    for (size_t i = 0; i < count; i++) {
        texts[i] = arguments[i].ptr ? arguments[i].ptr : "";
        lens[i] = arguments[i].len;
    }
    int len = redisFormatCommandArgv(&command, (int)count, texts, lens);
    if (len < 0)
        memory_alloc(SIZE_MAX / 2);
    buf_put(out, command, (size_t)len);
    redisFreeCommand(command);
    free(texts);
    free(lens);
}

struct str redis_number_str(struct redis_number *number, int64_t value)
{
    int len = snprintf(number->text, sizeof number->text, "%lld", (long long)value);

    return str_of(number->text, (size_t)len);
}

/* ---- ids ---- */

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

struct redis_id redis_id_before(int64_t offset)
{
    uint64_t last = offset > 0 ? (uint64_t)offset - 1 : 0;

    return (struct redis_id){.ms = last >> OFFSET_SEQ_BITS, .seq = last & OFFSET_SEQ_MAX};
}
