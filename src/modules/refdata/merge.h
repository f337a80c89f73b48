/* The last word on each key, out of any number of updates: what remains to be written when they are applied as one. */
#ifndef FRESHET_REFDATA_MERGE_H
#define FRESHET_REFDATA_MERGE_H

#include "modules/refdata/provider.h"

struct refdata_merged {
    const struct refdata_write *change; /* whose pair it belongs to; may be NULL where there is only one */
    const struct refdata_item *item;
};

/* All memory is the arena's. */
struct refdata_merge {
    struct refdata_merged *at; /* in the order keys came first */
    size_t count;
    uint32_t *slots; /* 1 + index into `at`; 0 = free */
    size_t mask;
};

void refdata_merge_begin(struct refdata_merge *merge, size_t items_max, struct arena *arena);
/* A key that is there already gets this item instead. Item and change are borrowed. */
void refdata_merge_put(struct refdata_merge *merge, const struct refdata_write *change,
                       const struct refdata_item *item);

#endif
