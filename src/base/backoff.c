/* Pauses between attempts: exponential, with jitter. */
#include "base/backoff.h"

#include "base/hash.h"

int64_t backoff_next_ms(struct backoff *backoff)
{
    int64_t ceiling_ms = backoff->max_ms;

    if (backoff->failures < 30)
        backoff->failures++;
    if (backoff->min_ms < backoff->max_ms >> backoff->failures)
        ceiling_ms = backoff->min_ms << backoff->failures;
    int64_t wait_ms = ceiling_ms / 2 + (int64_t)(random_u64() % (uint64_t)(ceiling_ms / 2 + 1));
    return wait_ms < backoff->min_ms ? backoff->min_ms : wait_ms;
}

int64_t backoff_spread_ms(int64_t interval_ms)
{
    return interval_ms - (int64_t)(random_u64() % (uint64_t)(interval_ms / 8 + 1));
}
