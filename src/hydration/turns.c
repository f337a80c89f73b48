/* Tenants take turns: one item of the first share in line is taken, the share goes to the end of the line, and so on.
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

static struct hydration_share *share_of(struct hydration_turns *turns, uint64_t hash)
{
    struct map_node *node = map_first(&turns->shares, hash);
    if (node)
        return CONTAINER_OF(node, struct hydration_share, node);
    struct hydration_share *share = memory_zalloc(sizeof *share);
    TAILQ_INIT(&share->items);
    map_add(&turns->shares, &share->node, hash);
    return share;
}

static void free_unused(struct hydration_turns *turns, struct hydration_share *share)
{
    if (share->members > 0 || share->queued > 0)
        return;
    map_remove(&turns->shares, &share->node);
    free(share);
}

struct hydration_share *hydration_turns_enter(struct hydration_turns *turns, uint64_t hash,
                                              size_t members_max)
{
    struct hydration_share *share = share_of(turns, hash);
    if (share->members == members_max)
        return NULL;
    share->members++;
    return share;
}

void hydration_turns_leave(struct hydration_turns *turns, struct hydration_share *share)
{
    share->members--;
    free_unused(turns, share);
}

void hydration_turns_put(struct hydration_turns *turns, uint64_t hash, struct hydration_turn_item *item)
{
    struct hydration_share *share = share_of(turns, hash);
    if (share->queued++ == 0)
        TAILQ_INSERT_TAIL(&turns->line, share, in_line);
    item->share = share;
    TAILQ_INSERT_TAIL(&share->items, item, link);
    turns->queued++;
}

struct hydration_turn_item *hydration_turns_take(struct hydration_turns *turns, struct hydration_share *share)
{
    struct hydration_turn_item *item = TAILQ_FIRST(&share->items);
    TAILQ_REMOVE(&share->items, item, link);
    turns->queued--;
    if (--share->queued == 0)
        TAILQ_REMOVE(&turns->line, share, in_line);
    free_unused(turns, share);
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
    TAILQ_REMOVE(&turns->line, share, in_line);
    TAILQ_INSERT_TAIL(&turns->line, share, in_line);
    return hydration_turns_take(turns, share);
}

struct hydration_turn_item *hydration_turns_make_room(struct hydration_turns *turns, uint64_t hash,
                                                      size_t share_max, size_t max)
{
    struct map_node *node = map_first(&turns->shares, hash);
    struct hydration_share *full = node ? CONTAINER_OF(node, struct hydration_share, node) : NULL, *share;
    if (!full || full->queued < share_max) {
        full = NULL;
        if (turns->queued >= max)
            TAILQ_FOREACH(share, &turns->line, in_line)
                if (!full || share->queued > full->queued)
                    full = share;
    }
    return full ? hydration_turns_take(turns, full) : NULL;
}
