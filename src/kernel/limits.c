/* Limits of the HTTP server: the settings, and what the system lets the process have.
 *
 * Every client is a descriptor. So that clients never take the last one, some are kept for databases, engines and files:
 * the connections of clients are bounded by RLIMIT_NOFILE less that reserve. */
#include <sys/resource.h>

#include "base/log.h"
#include "kernel/kernel_inside.h"

enum { EXTRA_CONNECTIONS_MAX = 256 };

void kernel_descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* What clients may have of them; a reserve of more than half is half. */
static uint64_t descriptors_for_clients(uint64_t reserved)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT32_MAX;
    uint64_t half = limit.rlim_cur / 2;
    return limit.rlim_cur - (reserved < half ? reserved : half);
}

static void bound_connections(struct http_limits *limits, uint64_t reserved)
{
    uint64_t most = descriptors_for_clients(reserved);
    unsigned wanted = limits->connections_max;
    limits->connections_extra = EXTRA_CONNECTIONS_MAX;
    if ((uint64_t)wanted + EXTRA_CONNECTIONS_MAX <= most)
        return;
    if (limits->connections_extra > most / 8)
        limits->connections_extra = (unsigned)(most / 8);
    most -= limits->connections_extra;
    limits->connections_max = most < wanted ? (unsigned)most : wanted;
    if (limits->connections_max < wanted)
        log_info("connections_bounded_by_descriptors", LOG_INT("connections", limits->connections_max),
                 LOG_INT("configured", wanted));
}

struct http_limits kernel_http_limits(const struct kernel_http_settings *http)
{
    struct http_limits limits = {
        .body_bytes_max = (size_t)http->body_bytes_max,
        .target_bytes_max = (size_t)http->target_bytes_max,
        .header_bytes_max = (size_t)http->header_bytes_max,
        .header_count_max = (unsigned)http->header_count_max,
        .connections_max = (unsigned)http->connections_max,
        .header_timeout_ms = http->header_timeout_ms,
        .body_timeout_ms = http->body_timeout_ms,
        .idle_timeout_ms = http->idle_timeout_ms,
        .write_timeout_ms = http->write_timeout_ms,
        .body_rate_min = (size_t)http->body_rate_min,
        .write_rate_min = (size_t)http->write_rate_min,
        .bodies_bytes_max = (size_t)http->bodies_bytes_max,
        .unsent_bytes_max = (size_t)http->unsent_bytes_max,
        .deadline_ms = http->request_timeout_ms,
    };
    bound_connections(&limits, (uint64_t)http->reserved_descriptors);
    return limits;
}
