/* How long to wait before trying again: doubling from min to max, with jitter so that pods do not return as
 * one. */
#include "base/hash.h"
#include "db/db_inside.h"

int64_t db_backoff_next_ms(struct db_backoff *backoff)
{
    int64_t ceiling = backoff->max_ms;

    if (backoff->failures < 20)
        backoff->failures++;
    if (backoff->min_ms < backoff->max_ms >> backoff->failures)
        ceiling = backoff->min_ms << backoff->failures;
    int64_t wait = ceiling / 2 + (int64_t)(random_u64() % (uint64_t)(ceiling / 2 + 1));
    return wait < backoff->min_ms ? backoff->min_ms : wait;
}

void db_backoff_reset(struct db_backoff *backoff)
{
    backoff->failures = 0;
}
