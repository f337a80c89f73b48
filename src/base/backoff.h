/* How long to wait before the next try: doubles from min_ms to max_ms, with jitter so that pods do not return at the same
 * moment. The nth failure in a row waits between half of min_ms * 2^n and all of it, at least min_ms, at most max_ms. */
#ifndef FRESHET_BASE_BACKOFF_H
#define FRESHET_BASE_BACKOFF_H

#include <stdint.h>

struct backoff {
    int64_t min_ms, max_ms; /* set once */
    unsigned failures;      /* in a row */
};

int64_t backoff_next_ms(struct backoff *backoff); /* counts another failure and returns its wait */

/* An interval up to an eighth shorter, so that what started together is not due together for ever. */
int64_t backoff_spread_ms(int64_t interval_ms);

static inline void backoff_reset(struct backoff *backoff)
{
    backoff->failures = 0;
}

#endif
