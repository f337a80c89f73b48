/* Slots of handlers: a batch counts for every share of its messages, and is cut before the first message whose share has all that it
 * may have (base/turns.h). */
#include <stdlib.h>

#include "base/memory.h"
#include "bus/bus_inside.h"

/* A share that the batch of a slot counts for. */
struct held_share {
    struct map_node node;
    struct turns_share *share;
};

void bus_slots_init(struct bus_slots *slots, const struct bus_consumer *consumer)
{
    *slots = (struct bus_slots){.shares = consumer->spec.shares, .free = consumer->spec.parallel};
    turns_init(&slots->turns);
}

void bus_slots_deinit(struct bus_slots *slots)
{
    turns_deinit(&slots->turns);
}

bool bus_slots_are_scarce(const struct bus_slots *slots)
{
    struct map_node *node;

    MAP_EACH(node, &slots->turns.shares)
        if (!turns_may_enter(CONTAINER_OF(node, struct turns_share, node), slots->free))
            return true;
    return false;
}

/* May a batch with this message begin, or go on, when `free` slots are left for it? */
static bool may_enter(const struct bus_slots *slots, const struct map *held, const uint64_t *shares,
                      unsigned count, size_t free)
{
    bool may = true;

    for (unsigned i = 0; i < count; i++)
        may &= (held && map_first(held, shares[i])) || turns_may_enter_hash(&slots->turns, shares[i], free);
    return may;
}

bool bus_slots_may_enter(const struct bus_slots *slots, const struct bus_message *message)
{
    uint64_t shares[BUS_SHARES_MAX];

    return !slots->shares || may_enter(slots, NULL, shares, slots->shares(message, shares), slots->free);
}

size_t bus_slots_enter(struct bus_slots *slots, struct bus_slot *slot, const struct bus_message *messages,
                       size_t count)
{
    size_t free = slots->free + slot->is_taken, allowed = 0;

    if (!slots->shares)
        return count;
    for (; allowed < count; allowed++) {
        uint64_t shares[BUS_SHARES_MAX];
        if (allowed > 0 && str_eq(messages[allowed].key, messages[allowed - 1].key))
            continue;
        unsigned share_count = slots->shares(&messages[allowed], shares);
        if (!may_enter(slots, &slot->held, shares, share_count, free))
            break;
        for (unsigned i = 0; i < share_count; i++) {
            if (map_first(&slot->held, shares[i]))
                continue;
            struct held_share *held = memory_alloc(sizeof *held);
            held->share = turns_enter(&slots->turns, shares[i], SIZE_MAX);
            map_add(&slot->held, &held->node, shares[i]);
        }
    }
    if (allowed > 0 && !slot->is_taken) {
        slot->is_taken = true;
        slots->free--;
    }
    return allowed;
}

void bus_slots_leave(struct bus_slots *slots, struct bus_slot *slot)
{
    struct map_node *node;

    MAP_EACH(node, &slot->held) {
        struct held_share *held = CONTAINER_OF(node, struct held_share, node);
        turns_leave(&slots->turns, held->share);
        map_remove(&slot->held, node);
        free(held);
    }
    map_deinit(&slot->held);
    slots->free += slot->is_taken;
    *slot = (struct bus_slot){0};
}
