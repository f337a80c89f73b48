/* Turns: a queue in which shares (tenants) take turns, and how many places of something bounded each of them has.
 *
 *     line ─▶ greedy: item ─▶ item ─▶ … ─▶ modest: item       taken: greedy's, modest's, greedy's, …
 *
 * A share is known by a hash of its name; shares with the same hash are one, and 0 is the process's own work. Members of a share
 * are the places it has: jobs that run, connections in use. A share without a place may take any free one. A share with places may
 * take one more if it then has at most TURNS_PER_FREE times the places that are left. So one share alone cannot take all places, and
 * the last ones are for shares that have none.
 *
 * Unused shares are kept for the next one, so that a queue which is empty most of the time does not allocate. Not synchronized. */
#ifndef FRESHET_BASE_TURNS_H
#define FRESHET_BASE_TURNS_H

#include "base/list.h"
#include "base/map.h"

enum { TURNS_PER_FREE = 5 };

struct turns_share {
    struct map_node node;
    TAILQ_ENTRY(turns_share) in_line;
    TAILQ_HEAD(turns_items, turns_item) items;
    size_t members, queued; /* the share is put away when both are 0 */
};

struct turns_item {
    TAILQ_ENTRY(turns_item) link;
    struct turns_share *share;
};

struct turns {
    struct map shares;
    TAILQ_HEAD(turns_line, turns_share) line; /* the shares with queued items */
    TAILQ_HEAD(, turns_share) spare;
    size_t queued, spares;
};

void turns_init(struct turns *turns);
void turns_deinit(struct turns *turns); /* items are their owner's */

/* ---- the queue ---- */
void turns_put(struct turns *turns, uint64_t hash, struct turns_item *item);
void turns_put_back(struct turns *turns, uint64_t hash, struct turns_item *item); /* as the share's oldest */
/* The oldest item of a share that has one; its place in the line does not change. */
struct turns_item *turns_take(struct turns *turns, struct turns_share *share);
/* The same, and the share goes to the end of the line. */
struct turns_item *turns_take_turn(struct turns *turns, struct turns_share *share);
void turns_remove(struct turns *turns, struct turns_item *item);
void turns_remove_turn(struct turns *turns, struct turns_item *item); /* the same: it was its share's turn */
/* The oldest item of the share whose turn it is, as turns_take_turn(); NULL: none. */
struct turns_item *turns_next(struct turns *turns);
struct turns_item *turns_peek(struct turns *turns); /* the same item, which stays queued */
/* Makes room for one more item of this share. Returns the item that was removed for it: the oldest of this share if it has
 * `share_max`, or the oldest of the longest share if `max` are queued. NULL: there was room. */
struct turns_item *turns_make_room(struct turns *turns, uint64_t hash, size_t share_max, size_t max);
/* For a full queue: removes and returns the newest item of the longest share, if that has at least two more than this one. NULL: it
 * has not, and the caller refuses the new item. */
struct turns_item *turns_displace(struct turns *turns, uint64_t hash);

/* ---- places ---- */
/* Adds a member to the share; NULL: it has `members_max` already. */
struct turns_share *turns_enter(struct turns *turns, uint64_t hash, size_t members_max);
void turns_leave(struct turns *turns, struct turns_share *share);
/* May the share, or the one with this hash, have one more of the `free` places? */
bool turns_may_enter(const struct turns_share *share, size_t free);
bool turns_may_enter_hash(const struct turns *turns, uint64_t hash, size_t free);
/* The first share in line that may; NULL: none. */
struct turns_share *turns_first_to_enter(const struct turns *turns, size_t free);
/* How many places there must be so that one share alone can have `members` of them. */
static inline size_t turns_places(size_t members)
{
    return members + (members + TURNS_PER_FREE - 1) / TURNS_PER_FREE;
}

/* ---- the share that this thread works for ---- */
void turns_work_for(uint64_t hash);
uint64_t turns_worked_for(void);

#endif
