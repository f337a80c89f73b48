/* Tenants take turns: of those whose askings are in line for a visit each has one visited, then the next tenant has one. A share is
 * what one tenant asks for; it may have a part of a desk's askings, so that no tenant has all of them. Of that, what it asks for of one
 * entity type is a share too, with a part of its own, so that a type whose owner hangs leaves places to the tenant's other types.
 *
 *     line ─▶ greedy: asking ─▶ asking ─▶ … ─▶ modest: asking
 *
 * A share is known by a hash of its names: should two be alike, they share. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "hydration/desk_inside.h"

enum { SPARE_MAX = 64 };

struct hydration_share {
    struct hydration_share *next_in_bucket; /* or the next spare one */
    struct hydration_share *next_in_line;
    struct hydration_share *tenant; /* of a type's: the tenant's, which is the one in line */
    uint64_t hash;
    size_t askings;
    struct hydration_asking *queue, **queue_last; /* in line for a visit */
};

static struct hydration_share **share_bucket(struct hydration_desk *desk, uint64_t hash)
{
    return &desk->turns.buckets[hash % HYDRATION_SHARE_BUCKETS];
}

static struct hydration_share *make_share(struct hydration_desk *desk, uint64_t hash)
{
    struct hydration_turns *turns = &desk->turns;
    struct hydration_share *share = turns->spare, **bucket = share_bucket(desk, hash);
    if (share) {
        turns->spare = share->next_in_bucket;
        turns->spare_count--;
    } else {
        share = memory_alloc(sizeof *share);
    }
    *share = (struct hydration_share){.next_in_bucket = *bucket, .hash = hash, .queue_last = &share->queue};
    *bucket = share;
    return share;
}

static void end_share(struct hydration_desk *desk, struct hydration_share *share)
{
    struct hydration_turns *turns = &desk->turns;
    struct hydration_share **place = share_bucket(desk, share->hash);
    while (*place != share)
        place = &(*place)->next_in_bucket;
    *place = share->next_in_bucket;
    if (turns->spare_count == SPARE_MAX) {
        free(share);
        return;
    }
    share->next_in_bucket = turns->spare;
    turns->spare = share;
    turns->spare_count++;
}

/* NULL: it has as many askings as it may have. */
static struct hydration_share *enter(struct hydration_desk *desk, uint64_t hash, size_t askings_max)
{
    struct hydration_share *share = *share_bucket(desk, hash);
    while (share && share->hash != hash)
        share = share->next_in_bucket;
    if (!share)
        share = make_share(desk, hash);
    if (share->askings == askings_max)
        return NULL;
    share->askings++;
    return share;
}

static void leave(struct hydration_desk *desk, struct hydration_share *share)
{
    if (--share->askings == 0)
        end_share(desk, share);
}

struct hydration_share *hydration_share_enter(struct hydration_desk *desk, const struct hydration_need *need)
{
    uint64_t type_hash = hash_seeded(need->entity_type), tenant_hash = hash_seeded(need->tenant);
    struct hydration_share *tenant = enter(desk, tenant_hash, HYDRATION_TENANT_MAX);
    if (!tenant)
        return NULL;
    struct hydration_share *share =
        enter(desk, tenant_hash ^ (type_hash << 21 | type_hash >> 43), HYDRATION_SHARE_MAX);
    if (share)
        share->tenant = tenant;
    else
        leave(desk, tenant);
    return share;
}

void hydration_share_leave(struct hydration_desk *desk, struct hydration_share *share)
{
    struct hydration_share *tenant = share->tenant;
    leave(desk, share);
    leave(desk, tenant);
}

/* ---- the line ---- */

void hydration_turns_init(struct hydration_turns *turns)
{
    turns->last = &turns->first;
}

static void append_share(struct hydration_turns *turns, struct hydration_share *share)
{
    share->next_in_line = NULL;
    *turns->last = share;
    turns->last = &share->next_in_line;
}

void hydration_turns_queue(struct hydration_asking *asking)
{
    struct hydration_share *share = asking->share->tenant;
    if (!share->queue)
        append_share(&asking->desk->turns, share);
    asking->next_in_queue = NULL;
    *share->queue_last = asking;
    share->queue_last = &asking->next_in_queue;
}

struct hydration_asking *hydration_turns_next(struct hydration_desk *desk)
{
    struct hydration_turns *turns = &desk->turns;
    struct hydration_share *share = turns->first;
    if (!share)
        return NULL;
    struct hydration_asking *asking = share->queue;
    turns->first = share->next_in_line;
    if (!turns->first)
        turns->last = &turns->first;
    share->queue = asking->next_in_queue;
    if (share->queue)
        append_share(turns, share);
    else
        share->queue_last = &share->queue;
    return asking;
}

void hydration_turns_deinit(struct hydration_turns *turns)
{
    while (turns->spare) {
        struct hydration_share *share = turns->spare;
        turns->spare = share->next_in_bucket;
        free(share);
    }
}
