/* HTTP client with deadlines, for what we call: JWKS, later webhooks, agents and OTLP. The only folder
 * that knows libcurl. Blocking: on worker threads only. Redirects are not followed, only http and https
 * are spoken, the answer is bounded, TLS is verified. */
#ifndef FRESHET_FETCH_FETCH_H
#define FRESHET_FETCH_FETCH_H

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

struct fetch_request {
    const char *method; /* NULL = GET */
    struct str url;
    const char *const *headers; /* "Name: value", NULL-terminated; may be NULL */
    struct str body;
    int64_t connect_timeout_ms, timeout_ms; /* total */
    size_t answer_bytes_max;
};

struct fetch_answer {
    int status;
    struct buf body; /* the caller's: buf_deinit() */
};

void fetch_init(void); /* once per process, before threads */
enum status fetch_run(const struct fetch_request *request, struct fetch_answer *answer,
                      struct error *error) MUST_CHECK;

#endif
