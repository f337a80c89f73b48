/* Turns: a map of shares, and the line of those that have queued items. */
#include "base/turns.h"

#include <stdlib.h>

#include "base/memory.h"

enum { SPARES_MAX = 32 };

void turns_init(struct turns *turns)
{
    *turns = (struct turns){0};
    TAILQ_INIT(&turns->line);
    TAILQ_INIT(&turns->spare);
}

void turns_deinit(struct turns *turns)
{
    struct turns_share *share, *next;
    struct map_node *node;
    TAILQ_FOREACH_SAFE(share, &turns->spare, in_line, next)
        free(share);
    MAP_EACH(node, &turns->shares)
        free(CONTAINER_OF(node, struct turns_share, node));
    map_deinit(&turns->shares);
}

/* ---- shares ---- */

static struct turns_share *find_share(const struct turns *turns, uint64_t hash)
{
    struct map_node *node = map_first(&turns->shares, hash);
    return node ? CONTAINER_OF(node, struct turns_share, node) : NULL;
}

static struct turns_share *share_of(struct turns *turns, uint64_t hash)
{
    struct turns_share *share = find_share(turns, hash);
    if (share)
        return share;
    share = TAILQ_FIRST(&turns->spare);
    if (share) {
        TAILQ_REMOVE(&turns->spare, share, in_line);
        turns->spares--;
    } else {
        share = memory_zalloc(sizeof *share);
        TAILQ_INIT(&share->items);
    }
    map_add(&turns->shares, &share->node, hash);
    return share;
}

static void put_away_unused(struct turns *turns, struct turns_share *share)
{
    if (share->members > 0 || share->queued > 0)
        return;
    map_remove(&turns->shares, &share->node);
    if (turns->spares == SPARES_MAX) {
        free(share);
        return;
    }
    TAILQ_INSERT_HEAD(&turns->spare, share, in_line);
    turns->spares++;
}

/* ---- the queue ---- */

static struct turns_share *add_queued(struct turns *turns, uint64_t hash, struct turns_item *item)
{
    struct turns_share *share = item->share = share_of(turns, hash);
    if (share->queued++ == 0)
        TAILQ_INSERT_TAIL(&turns->line, share, in_line);
    turns->queued++;
    return share;
}

void turns_put(struct turns *turns, uint64_t hash, struct turns_item *item)
{
    struct turns_share *share = add_queued(turns, hash, item);
    TAILQ_INSERT_TAIL(&share->items, item, link);
}

void turns_put_back(struct turns *turns, uint64_t hash, struct turns_item *item)
{
    struct turns_share *share = add_queued(turns, hash, item);
    TAILQ_INSERT_HEAD(&share->items, item, link);
}

void turns_remove(struct turns *turns, struct turns_item *item)
{
    struct turns_share *share = item->share;
    TAILQ_REMOVE(&share->items, item, link);
    turns->queued--;
    if (--share->queued == 0)
        TAILQ_REMOVE(&turns->line, share, in_line);
    put_away_unused(turns, share);
}

struct turns_item *turns_take(struct turns *turns, struct turns_share *share)
{
    struct turns_item *item = TAILQ_FIRST(&share->items);
    turns_remove(turns, item);
    return item;
}

void turns_remove_turn(struct turns *turns, struct turns_item *item)
{
    TAILQ_REMOVE(&turns->line, item->share, in_line);
    TAILQ_INSERT_TAIL(&turns->line, item->share, in_line);
    turns_remove(turns, item);
}

struct turns_item *turns_take_turn(struct turns *turns, struct turns_share *share)
{
    struct turns_item *item = TAILQ_FIRST(&share->items);
    turns_remove_turn(turns, item);
    return item;
}

struct turns_item *turns_next(struct turns *turns)
{
    struct turns_share *share = TAILQ_FIRST(&turns->line);
    return share ? turns_take_turn(turns, share) : NULL;
}

struct turns_item *turns_peek(struct turns *turns)
{
    struct turns_share *share = TAILQ_FIRST(&turns->line);
    return share ? TAILQ_FIRST(&share->items) : NULL;
}

static struct turns_share *longest_share(const struct turns *turns)
{
    struct turns_share *longest = TAILQ_FIRST(&turns->line), *share;
    TAILQ_FOREACH(share, &turns->line, in_line)
        if (share->queued > longest->queued)
            longest = share;
    return longest;
}

struct turns_item *turns_make_room(struct turns *turns, uint64_t hash, size_t share_max, size_t max)
{
    struct turns_share *full = find_share(turns, hash);
    if (!full || full->queued < share_max)
        full = turns->queued >= max ? longest_share(turns) : NULL;
    return full ? turns_take(turns, full) : NULL;
}

struct turns_item *turns_displace(struct turns *turns, uint64_t hash)
{
    const struct turns_share *own = find_share(turns, hash);
    struct turns_share *longest = longest_share(turns);
    if (!longest || longest->queued < (own ? own->queued : 0) + 2)
        return NULL;
    struct turns_item *newest = TAILQ_LAST(&longest->items, turns_items);
    turns_remove(turns, newest);
    return newest;
}

/* ---- places ---- */

struct turns_share *turns_enter(struct turns *turns, uint64_t hash, size_t members_max)
{
    struct turns_share *share = share_of(turns, hash);
    if (share->members == members_max)
        return NULL;
    share->members++;
    return share;
}

void turns_leave(struct turns *turns, struct turns_share *share)
{
    share->members--;
    put_away_unused(turns, share);
}

bool turns_may_enter(const struct turns_share *share, size_t free)
{
    return free > 0 && (share->members == 0 || share->node.hash == 0 ||
                        share->members + 1 <= TURNS_PER_FREE * (free - 1));
}

bool turns_may_enter_hash(const struct turns *turns, uint64_t hash, size_t free)
{
    const struct turns_share *share = find_share(turns, hash);
    return share ? turns_may_enter(share, free) : free > 0;
}

struct turns_share *turns_first_to_enter(const struct turns *turns, size_t free)
{
    struct turns_share *share;
    TAILQ_FOREACH(share, &turns->line, in_line)
        if (turns_may_enter(share, free))
            break;
    return share;
}

/* ---- the share that this thread works for ---- */

static _Thread_local uint64_t worked_for;

void turns_work_for(uint64_t hash)
{
    worked_for = hash;
}

uint64_t turns_worked_for(void)
{
    return worked_for;
}
