/* Stream entries to messages. Whoever wrote them: an entry needs an `event` field, and one without is a message without a
 * payload, for the handler to refuse. */
#include "bus/redis/inside.h"

static void take_fields(const struct redis_reply *fields, struct arena *arena, struct bus_message *message)
{
    struct bus_header *headers = arena_alloc(arena, (fields->count / 2 + 1) * sizeof headers[0]);
    bool has_payload = false;

    message->payload = STR("");
    for (size_t i = 0; i + 1 < fields->count; i += 2) {
        const struct redis_reply *name = &fields->items[i], *value = &fields->items[i + 1];
        if (name->kind != REDIS_TEXT || value->kind != REDIS_TEXT)
            continue;
        if (!has_payload && str_eq(name->text, STR("event"))) {
            has_payload = true;
            message->payload = value->text;
        } else if (!message->key.ptr && str_eq(name->text, STR("key"))) {
            message->key = value->text;
        } else if (message->header_count < BUS_HEADERS_MAX) {
            headers[message->header_count++] = (struct bus_header){name->text, value->text};
        }
    }
    message->headers = headers;
}

enum status redis_entries_parse(const struct redis_reply *reply, struct arena *arena,
                                struct redis_entries *entries, struct error *error)
{
    size_t count = reply->kind == REDIS_ARRAY ? reply->count : 0;

    if (reply->kind != REDIS_ARRAY && reply->kind != REDIS_NIL)
        return error_set(error, STATUS_IO, "what XREADGROUP answers are no entries");
    *entries = (struct redis_entries){
        .messages = arena_zalloc(arena, (count + 1) * sizeof(struct bus_message)),
        .ids = arena_alloc(arena, (count + 1) * sizeof(struct redis_id)),
        .gone = arena_alloc(arena, (count + 1) * sizeof(struct redis_id)),
    };
    for (size_t i = 0; i < count; i++) {
        const struct redis_reply *id = redis_reply_at(&reply->items[i], 0),
                                 *fields = redis_reply_at(&reply->items[i], 1);
        struct redis_id parsed;
        if (id->kind != REDIS_TEXT || !redis_id_parse(id->text, &parsed))
            return error_set(error, STATUS_IO, "what XREADGROUP answers has no ids");
        if (fields->kind != REDIS_ARRAY) {
            entries->gone[entries->gone_count++] = parsed;
            continue;
        }
        struct bus_message *message = &entries->messages[entries->count];
        take_fields(fields, arena, message);
        message->offset = redis_id_offset(parsed);
        message->created_us = (message->offset >> 20) * 1000;
        entries->ids[entries->count++] = parsed;
    }
    return STATUS_OK;
}
