/* Shared by the files about dead letters of topics: dead_change.c, dead_letters.c, dead_scan.c. */
#ifndef FRESHET_KERNEL_DEAD_INSIDE_H
#define FRESHET_KERNEL_DEAD_INSIDE_H

#include "kernel/dead_letters.h"

#define READ_BYTES_MAX ((size_t)64 << 20) /* of payloads, in one read */

/* Three arrays of SQL, $3 … $5 of a statement: partition, offset, time. */
struct dead_triples {
    struct buf partitions, offsets, times;
};
void dead_triples_put(struct dead_triples *triples, unsigned partition, int64_t offset, int64_t time);
void dead_triples_deinit(struct dead_triples *triples);
#define DEAD_TRIPLES(triples)                                                                              \
    db_text_array(db_array_end(&(triples)->partitions)), db_text_array(db_array_end(&(triples)->offsets)), \
        db_text_array(db_array_end(&(triples)->times))
#define DEAD_UNNESTED "unnest($3::text[]::int[], $4::text[]::bigint[], $5::text[]::bigint[]) WITH ORDINALITY"

bool dead_item_fits(const struct kernel_dead_topic *topic, const struct dead_filter *filter,
                    const struct dead_item *item);
/* Letters with their decisions, in the arena. */
enum status dead_items_make(const struct dead_place *place, const struct bus_dead_letter *letters,
                            size_t count, struct arena *arena, struct dead_item **items,
                            struct error *error) MUST_CHECK;

#endif
