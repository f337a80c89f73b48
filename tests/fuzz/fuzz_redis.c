/* Any bytes as what a Redis server sends: replies are whole or refused, however the bytes are cut, within the limit; and
 * whatever a reply is, reading it as a node's address, a redirect or entries does no harm. */
#include <stdlib.h>

#include "bus/redis/inside.h"

#define REPLY_BYTES_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_entries(const struct redis_reply *reply, struct arena *arena)
{
    struct redis_entries entries;

    if (redis_entries_parse(reply, STR("topic"), arena, &entries, NULL) != STATUS_OK)
        return;
    check(entries.count == (reply->kind == REDIS_ARRAY ? reply->count : 0));
    for (size_t i = 0; i < entries.count; i++) {
        char text[REDIS_ID_BYTES];
        struct redis_id again;
        check(entries.messages[i].offset >= 0 && entries.messages[i].header_count <= BUS_HEADERS_MAX);
        check(redis_id_parse(redis_id_put(entries.ids[i], text), &again));
        check(redis_id_compare(entries.ids[i], again) == 0);
    }
}

static void check_reply(const struct redis_reply *reply, struct arena *arena)
{
    static const struct redis_address asked = {"host", 1};
    struct redis_address address;
    struct redis_redirect redirect;

    if (redis_address_of_node(reply, &asked, &address))
        check(address.port > 0 && address.host[0]);
    if (reply->kind == REDIS_ERROR && redis_redirect_parse(reply->text, &redirect))
        check(redirect.to.port > 0);
    check(redis_reply_at(reply, reply->count)->kind == REDIS_NIL);
    check_entries(reply, arena);
    for (size_t i = 0; reply->kind == REDIS_ARRAY && i < reply->count; i++)
        check_entries(&reply->items[i], arena);
}

/* The first byte says how long the pieces are in which the rest arrives. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t piece = size ? 1 + data[0] : 1;
    struct redis_parser parser;
    struct arena arena = ARENA(4096);
    enum status status = STATUS_OK;

    redis_parser_init(&parser, REPLY_BYTES_MAX);
    for (size_t at = 1; at < size && status == STATUS_OK; at += piece) {
        const struct redis_reply *reply = NULL;
        size_t len = size - at < piece ? size - at : piece;
        redis_parser_feed(&parser, str_of((const char *)data + at, len));
        while ((status = redis_parser_next(&parser, &arena, &reply, NULL)) == STATUS_OK && reply) {
            check_reply(reply, &arena);
            arena_reset(&arena);
        }
    }
    redis_parser_deinit(&parser);
    arena_deinit(&arena);
    return 0;
}
