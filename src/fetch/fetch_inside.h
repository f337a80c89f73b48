/* One request between its beginning and its end, for fetch.c, which makes it, and many.c, which runs several at once. */
#ifndef FRESHET_FETCH_FETCH_INSIDE_H
#define FRESHET_FETCH_FETCH_INSIDE_H

#include <curl/curl.h>

#include "fetch/fetch.h"

struct fetch_transfer { /* does not move while it is under way: libcurl points into it */
    CURL *curl;
    const struct fetch_request *request;
    struct fetch_answer *answer;
    char *url;
    struct curl_slist *headers;
    char details[CURL_ERROR_SIZE];
    bool overflowed, refused;
};

bool fetch_is_stopping(void);
/* Fills the handle with the request. On failure there is nothing to end. */
enum status fetch_transfer_begin(struct fetch_transfer *transfer, const struct fetch_request *request,
                                 struct fetch_answer *answer, struct error *error) MUST_CHECK;
/* What it came to. The handle is the session's again, or gone. */
enum status fetch_transfer_end(struct fetch_transfer *transfer, CURLcode code,
                               struct error *error) MUST_CHECK;

#endif
