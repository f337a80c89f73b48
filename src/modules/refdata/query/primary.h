/* Questions to the primary on behalf of readers at the barrier: is a version committed, and what do these keys hold.
 * Both run on threads of their own, bounded in number and queue, behind the pool's circuit breaker (R21). */
#ifndef FRESHET_REFDATA_PRIMARY_H
#define FRESHET_REFDATA_PRIMARY_H

#include "modules/refdata/query/query.h"

struct refdata_primary_answer {
    enum status status;
    struct error error;
    struct refdata_committed committed;
    struct cache_snapshot
        *snapshot; /* of the keys asked for, under that version; the callee's. NULL = none asked for */
};

/* On a worker: the version, and unless `keys` (a text[]) is empty what they hold under it, by one transaction. The answer
 * is zeroed to begin with. */
void refdata_primary_read(const struct refdata_dictionary *dictionary, struct str tenant, struct str keys,
                          int64_t deadline_ns, struct refdata_primary_answer *answer);

/* On the home loop. Calls on_answer(context, answer) there, once. `keys` (a text[], copied) empty = the version alone.
 * False when too much waits: nothing will be called. */
bool refdata_primary_ask(struct refdata *refdata, struct refdata_dictionary *dictionary, struct str tenant,
                         struct str keys,
                         void (*on_answer)(void *context, struct refdata_primary_answer *answer),
                         void *context);

#endif
