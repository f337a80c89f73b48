/* The router from inside: entries, and finding one. */
#ifndef FRESHET_HTTP_ROUTER_H
#define FRESHET_HTTP_ROUTER_H

#include <stdatomic.h>

#include "http/http.h"

#define HTTP_STATUS_SLOTS 32

/* A row with what is worked out once: its parameters' names, and its metric series, found on first use. The
 * series are the only thing here that changes; whoever finds one missing stores the same pointer as any other
 * would. */
struct http_entry {
    const struct http_route *route; /* NULL: stands for requests that have none */
    void *context;
    struct str param_names[HTTP_PARAMS_MAX];
    unsigned param_count;
    _Atomic(struct metric_series *) counters[2][HTTP_STATUS_SLOTS]; /* [is HEAD][slot of the status] */
    _Atomic(struct metric_series *) latency;
};

/* The entry that takes this request, its raw parameters in `params`; NULL when there is none, with the bits
 * (1 << method) of what the path does take in *allowed, 0 for an unknown path. */
struct http_entry *http_router_find(const struct http_router *router, enum http_method method,
                                    struct str path, struct str params[HTTP_PARAMS_MAX], unsigned *allowed);
/* For a path without a row that takes it: a row of the path, or of the longest part of it that has one, which says how its
 * errors look (C4). NULL: there is none. */
const struct http_route *http_router_nearest(const struct http_router *router, struct str path);

#endif
