/* Tenants take turns: of the shares with queued items each has one taken, then the next share has one.
 *
 *     line ─▶ greedy: item ─▶ item ─▶ … ─▶ modest: item       taken: greedy's, modest's, greedy's, … */
#include <stdlib.h>

#include "base/memory.h"
#include "hydration/inside.h"

void hydration_turns_init(struct hydration_turns *turns)
{
    *turns = (struct hydration_turns){0};
    TAILQ_INIT(&turns->line);
}

void hydration_turns_deinit(struct hydration_turns *turns)
{
    map_deinit(&turns->shares);
}

struct hydration_share *hydration_turns_find(struct hydration_turns *turns, uint64_t hash)
{
    struct map_node *node = map_first(&turns->shares, hash);
    return node ? CONTAINER_OF(node, struct hydration_share, node) : NULL;
}

struct hydration_share *hydration_turns_enter(struct hydration_turns *turns, uint64_t hash,
                                              size_t members_max)
{
    struct hydration_share *share = hydration_turns_find(turns, hash);
    if (!share) {
        share = memory_zalloc(sizeof *share);
        TAILQ_INIT(&share->items);
        map_add(&turns->shares, &share->node, hash);
    }
    if (share->members == members_max)
        return NULL;
    share->members++;
    return share;
}

void hydration_turns_leave(struct hydration_turns *turns, struct hydration_share *share)
{
    if (--share->members > 0)
        return;
    map_remove(&turns->shares, &share->node);
    free(share);
}

void hydration_turns_put(struct hydration_turns *turns, struct hydration_share *share,
                         struct hydration_turn_item *item)
{
    if (TAILQ_EMPTY(&share->items))
        TAILQ_INSERT_TAIL(&turns->line, share, in_line);
    item->share = share;
    TAILQ_INSERT_TAIL(&share->items, item, link);
    share->queued++;
    turns->queued++;
}

struct hydration_turn_item *hydration_turns_take(struct hydration_turns *turns, struct hydration_share *share)
{
    struct hydration_turn_item *item = TAILQ_FIRST(&share->items);
    TAILQ_REMOVE(&share->items, item, link);
    share->queued--;
    turns->queued--;
    if (TAILQ_EMPTY(&share->items))
        TAILQ_REMOVE(&turns->line, share, in_line);
    return item;
}

struct hydration_turn_item *hydration_turns_peek(struct hydration_turns *turns)
{
    struct hydration_share *share = TAILQ_FIRST(&turns->line);
    return share ? TAILQ_FIRST(&share->items) : NULL;
}

struct hydration_turn_item *hydration_turns_next(struct hydration_turns *turns)
{
    struct hydration_share *share = TAILQ_FIRST(&turns->line);
    if (!share)
        return NULL;
    struct hydration_turn_item *item = hydration_turns_take(turns, share);
    if (!TAILQ_EMPTY(&share->items)) {
        TAILQ_REMOVE(&turns->line, share, in_line);
        TAILQ_INSERT_TAIL(&turns->line, share, in_line);
    }
    return item;
}

struct hydration_share *hydration_turns_longest(struct hydration_turns *turns)
{
    struct hydration_share *longest = TAILQ_FIRST(&turns->line), *share;
    TAILQ_FOREACH(share, &turns->line, in_line)
        if (share->queued > longest->queued)
            longest = share;
    return longest;
}
