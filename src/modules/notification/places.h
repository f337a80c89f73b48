/* Places: how tenants share the webhook calls that a process may have under way (`parallel`), so that a receiver which does not answer
 * for some tenants leaves places to the others.
 *
 *   quick tenants  were answered within PLACES_SLOW_MS when they were last called. Each has at most all but a sixth of the places,
 *                  which is the rule of base/turns.h.
 *   new tenants    have one call each, until it is answered. New and slow ones have together at most all places but an eighth.
 *   slow tenants   have a call that lasts longer, or had one and fewer than PLACES_QUICK quick ones since. They have together at most
 *                  all places but two eighths.
 *
 * So, from three places on, there is always a place that slow tenants do not have, however many they are and whatever they send, and
 * one that new ones do not have. An eighth is rounded up; with two places slow tenants have one, and with one there is nothing to
 * divide: tenants take turns.
 *
 * A tenant is known while it is used, and afterwards if it is among the PLACES_KNOWN_MAX that were used last. Not synchronized. */
#ifndef FRESHET_MODULES_NOTIFICATION_PLACES_H
#define FRESHET_MODULES_NOTIFICATION_PLACES_H

#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"
#include "base/str.h"
#include "base/turns.h"

enum { PLACES_SLOW_MS = 1000, PLACES_QUICK = 8, PLACES_KNOWN_MAX = 1024 };

enum places_speed { PLACES_ARE_QUICK, PLACES_ARE_NEW, PLACES_ARE_SLOW, PLACES_SPEEDS };

struct places_tenant {
    struct map_node node; /* by its name */
    char *name;
    size_t uses; /* 0: in `unused` */
    enum places_speed speed;
    unsigned quick_left;      /* of a slow one: so many quick calls until it is quick */
    struct turns_share share; /* its members are the calls under way */
    TAILQ_ENTRY(places_tenant) link;
};

struct places {
    size_t count, used[PLACES_SPEEDS];
    struct map tenants;
    TAILQ_HEAD(, places_tenant) unused; /* the one that was used last is the last */
    size_t unused_count;
};

void places_init(struct places *places, size_t count);
void places_deinit(struct places *places);

struct places_tenant *places_use(struct places *places, struct str name);
void places_unuse(struct places *places, struct places_tenant *tenant);

bool places_may_begin(const struct places *places, const struct places_tenant *tenant);
void places_begin(struct places *places, struct places_tenant *tenant);
void places_lasts(struct places *places, struct places_tenant *tenant); /* a call has lasted PLACES_SLOW_MS */
void places_end(struct places *places, struct places_tenant *tenant, bool is_quick);

/* Puts the tenants that may not begin into a text[]; false: no tenant may. */
bool places_left_out(const struct places *places, struct buf *names);

#endif
