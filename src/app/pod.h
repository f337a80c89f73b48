/* A pod as the commands that call it see it: a URL, a token, and one question at a time. Blocking: for the
 * main thread of a command. */
#ifndef FRESHET_APP_POD_H
#define FRESHET_APP_POD_H

#include "app/token.h"
#include "base/buf.h"
#include "base/status.h"

struct pod_call {
    struct str url;   /* http://host:port, of pod_url() */
    struct str token; /* of pod_token() */
    struct str tenant, code;
    struct str rest;        /* behind /v1/tenants/…/dictionaries/…, percent-encoded: "/items/DE" */
    const char *accept;     /* a media type; NULL = whatever comes */
    struct str min_version; /* X-Min-Version; empty = none */
    /* Takes a good answer piece by piece; NULL = it is kept in `body`. False ends the call: CANCELLED. */
    bool (*on_body)(void *context, struct str bytes);
    void *context;
};

/* A 2xx is OK. Otherwise *error says what to show: IO or TIMEOUT = no answer, UNAVAILABLE = a 503,
 * BAD_REQUEST = any other answer, with its number and code in the message. `body` is the caller's in every
 * case: buf_deinit(). */
enum status pod_get(const struct pod_call *call, struct buf *body, struct error *error) MUST_CHECK;
void pod_put_encoded(struct buf *out, struct str text); /* percent-encodes all but RFC 3986's unreserved */

/* What --url says, else $FRESHET_URL, else 127.0.0.1 and $FRESHET_PORT or 8080; without a slash at the end, in
 * `buffer` where it was made up. Empty when it is no URL of a pod, which has been said. */
struct str pod_url(const char *command, const char *given, struct buf *buffer);

/* What --token says, else $FRESHET_TOKEN, else a development token for `request`. */
enum status pod_token(const char *given, const struct auth_token_request *request, struct buf *token,
                      struct error *error) MUST_CHECK;

/* The rows that all such commands share. */
#define POD_URL_HELP "the pod (default $FRESHET_URL, else http://127.0.0.1:8080)"
#define POD_TOKEN_HELP "default $FRESHET_TOKEN, else a development token as of `freshet token`"

#endif
