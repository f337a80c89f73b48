/* Time. Deadlines are monotonic nanoseconds; what people see is UTC in RFC 3339. */
#ifndef FRESHET_BASE_CLOCK_H
#define FRESHET_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

#define CLOCK_NS_PER_MS INT64_C(1000000)
#define CLOCK_NS_PER_S INT64_C(1000000000)
#define CLOCK_NEVER INT64_MAX

int64_t clock_mono_ns(void);
int64_t clock_unix_us(void); /* microseconds since 1970 */

static inline int64_t clock_deadline_ms(int64_t timeout_ms)
{
    return clock_mono_ns() + timeout_ms * CLOCK_NS_PER_MS;
}

/* Milliseconds left until `deadline_ns`, rounded up, 0 when it passed, capped at INT32_MAX (fits poll()). */
int clock_ms_left(int64_t deadline_ns);

/* pthread_cond_wait() until `deadline_ns` at most, which may be CLOCK_NEVER; false when it passed. */
bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);

#define CLOCK_RFC3339_BYTES 32
/* "2026-02-27T12:00:00.123456Z", without the fraction when it is zero. Returns the length; NUL-terminated. */
size_t clock_rfc3339(int64_t unix_us, char out[CLOCK_RFC3339_BYTES]);
/* Strict RFC 3339 with any offset; false otherwise. */
bool clock_rfc3339_parse(struct str s, int64_t *unix_us);

#define CLOCK_HTTP_DATE_BYTES 30
void clock_http_date(int64_t unix_us, char out[CLOCK_HTTP_DATE_BYTES]); /* IMF-fixdate, 29 bytes and NUL */

#endif
