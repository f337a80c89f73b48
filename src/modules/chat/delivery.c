/* Events on their way to the rooms of this process: a message to the rooms' loop, with a copy of each event. */
#include <stdlib.h>

#include "base/memory.h"
#include "modules/chat/rooms.h"

struct delivered {
    struct delivered *next;
    struct chat_key key;
    int64_t sequence;
    struct str line;
};

struct chat_delivery {
    struct loop_message message;
    struct chat_rooms *rooms;
    struct arena arena;
    struct delivered *first, **last;
    bool is_gap; /* events may be missing in any room */
};

static void on_delivery(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct chat_delivery *delivery = (struct chat_delivery *)message;
    for (const struct delivered *event = delivery->first; event; event = event->next)
        chat_rooms_event(delivery->rooms, &event->key, event->sequence, event->line);
    if (delivery->is_gap)
        chat_rooms_catch_up(delivery->rooms);
    arena_deinit(&delivery->arena);
    free(delivery);
}

struct chat_delivery *chat_delivery_create(struct chat_rooms *rooms)
{
    if (chat_rooms_are_empty(rooms))
        return NULL;
    struct chat_delivery *delivery = memory_zalloc(sizeof *delivery);
    delivery->message.on_message = on_delivery;
    delivery->rooms = rooms;
    delivery->last = &delivery->first;
    delivery->arena = ARENA(4096);
    return delivery;
}

void chat_delivery_add(struct chat_delivery *delivery, const struct chat_key *key, struct str sequence,
                       struct str line)
{
    int64_t number;
    if (!delivery || !str_to_i64(sequence, &number))
        return;
    struct delivered *event = arena_zalloc(&delivery->arena, sizeof *event);
    event->key = chat_key_copy(key, &delivery->arena);
    event->sequence = number;
    event->line = arena_str(&delivery->arena, line);
    *delivery->last = event;
    delivery->last = &event->next;
}

void chat_delivery_send(struct chat_delivery *delivery)
{
    if (delivery)
        loop_post(chat_rooms_home(delivery->rooms), &delivery->message);
}

void chat_rooms_reread(struct chat_rooms *rooms)
{
    struct chat_delivery *delivery = chat_delivery_create(rooms);
    if (delivery)
        delivery->is_gap = true;
    chat_delivery_send(delivery);
}
