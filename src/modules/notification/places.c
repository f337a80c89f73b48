/* Places of calls: a map of the tenants that are known, and how many places are used by tenants of each speed. */
#include "modules/notification/places.h"

#include <stdlib.h>

#include "base/memory.h"
#include "db/db.h"

enum { KEPT_PART = 8 };

void places_init(struct places *places, size_t count)
{
    *places = (struct places){.count = count};
    TAILQ_INIT(&places->unused);
}

static void forget(struct places *places, struct places_tenant *tenant)
{
    map_remove(&places->tenants, &tenant->node);
    free(tenant->name);
    free(tenant);
}

void places_deinit(struct places *places)
{
    struct map_node *node;
    MAP_EACH(node, &places->tenants)
        forget(places, CONTAINER_OF(node, struct places_tenant, node));
    map_deinit(&places->tenants);
}

/* ---- tenants ---- */

struct places_tenant *places_use(struct places *places, struct str name)
{
    struct places_tenant *tenant = NULL;
    struct map_node *node;
    MAP_MATCH(node, &places->tenants, hash_seeded(name)) {
        tenant = CONTAINER_OF(node, struct places_tenant, node);
        if (str_eq(str_from(tenant->name), name))
            break;
        tenant = NULL;
    }
    if (!tenant) {
        tenant = memory_zalloc(sizeof *tenant);
        tenant->name = str_dup(name);
        tenant->speed = PLACES_ARE_NEW;
        tenant->share.node.hash = 1; /* 0 would be the process's own work, which has no bound */
        map_add(&places->tenants, &tenant->node, hash_seeded(name));
    } else if (tenant->uses == 0) {
        TAILQ_REMOVE(&places->unused, tenant, link);
        places->unused_count--;
    }
    tenant->uses++;
    return tenant;
}

void places_unuse(struct places *places, struct places_tenant *tenant)
{
    if (--tenant->uses > 0)
        return;
    TAILQ_INSERT_TAIL(&places->unused, tenant, link);
    if (++places->unused_count <= PLACES_KNOWN_MAX)
        return;
    tenant = TAILQ_FIRST(&places->unused);
    TAILQ_REMOVE(&places->unused, tenant, link);
    places->unused_count--;
    forget(places, tenant);
}

static void set_speed(struct places *places, struct places_tenant *tenant, enum places_speed speed)
{
    places->used[tenant->speed] -= tenant->share.members;
    tenant->speed = speed;
    places->used[speed] += tenant->share.members;
}

/* ---- places ---- */

/* How many places tenants of this speed, and slower ones, have at most. */
static size_t places_max(const struct places *places, enum places_speed speed)
{
    size_t kept = (places->count + KEPT_PART - 1) / KEPT_PART;
    size_t slow_max = places->count > 2 * kept ? places->count - 2 * kept : 1;
    size_t new_max = places->count - kept > slow_max ? places->count - kept : slow_max + 1;
    if (speed == PLACES_ARE_SLOW)
        return slow_max;
    return speed == PLACES_ARE_NEW && new_max < places->count ? new_max : places->count;
}

bool places_may_begin(const struct places *places, const struct places_tenant *tenant)
{
    size_t free = places->count, used = 0;
    for (enum places_speed speed = 0; speed < PLACES_SPEEDS; speed++) {
        free -= places->used[speed];
        used += speed >= tenant->speed ? places->used[speed] : 0;
    }
    return turns_may_enter(&tenant->share, free) && used < places_max(places, tenant->speed) &&
           (tenant->speed != PLACES_ARE_NEW || tenant->share.members == 0);
}

void places_begin(struct places *places, struct places_tenant *tenant)
{
    tenant->share.members++;
    places->used[tenant->speed]++;
}

void places_lasts(struct places *places, struct places_tenant *tenant)
{
    set_speed(places, tenant, PLACES_ARE_SLOW);
    tenant->quick_left = PLACES_QUICK;
}

void places_end(struct places *places, struct places_tenant *tenant, bool is_quick)
{
    if (!is_quick)
        places_lasts(places, tenant);
    else if (tenant->speed != PLACES_ARE_SLOW || --tenant->quick_left == 0)
        set_speed(places, tenant, PLACES_ARE_QUICK);
    tenant->share.members--;
    places->used[tenant->speed]--;
}

bool places_left_out(const struct places *places, struct buf *names)
{
    size_t used =
        places->used[PLACES_ARE_QUICK] + places->used[PLACES_ARE_NEW] + places->used[PLACES_ARE_SLOW];
    struct map_node *node;
    MAP_EACH(node, &places->tenants) {
        const struct places_tenant *tenant = CONTAINER_OF(node, struct places_tenant, node);
        if (!places_may_begin(places, tenant))
            db_array_put(names, str_from(tenant->name));
    }
    return used < places->count;
}
