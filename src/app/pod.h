/* A pod as the commands that call it see it: a URL, a token, and one question at a time. Blocking: for the
 * main thread of a command. */
#ifndef FRESHET_APP_POD_H
#define FRESHET_APP_POD_H

#include "app/token.h"
#include "base/buf.h"
#include "base/status.h"
#include "fetch/fetch.h"

struct pod_call {
    struct str url;          /* http://host:port, of pod_url() */
    struct str token;        /* of pod_token() */
    struct str tenant, code; /* an empty code: the path is the tenant's own */
    struct str rest;         /* behind /v1/tenants/…[/dictionaries/…], percent-encoded: "/items/DE" */
    struct str path;         /* not empty: instead of all that, from the slash behind the host on */
    const char *accept;      /* a media type; NULL = whatever comes */
    struct str min_version;  /* X-Min-Version; empty = none */
    /* Takes a good answer piece by piece; NULL = it is kept in `body`. False ends the call: CANCELLED. */
    bool (*on_body)(void *context, struct str bytes);
    void *context;
    struct fetch_session *session; /* NULL = a connection of its own */
    int *http_status;              /* where the answer's goes, 0 = there was none; may be NULL */
};

/* A 2xx is OK. Otherwise *error says what to show: IO or TIMEOUT = no answer, UNAVAILABLE = a 503,
 * BAD_REQUEST = any other answer, with its number and code in the message and its code in `field`. `body` is the caller's in every
 * case: buf_deinit(). */
enum status pod_get(const struct pod_call *call, struct buf *body, struct error *error) MUST_CHECK;
/* The same with a JSON document to send. */
enum status pod_post(const struct pod_call *call, struct str json, struct buf *body,
                     struct error *error) MUST_CHECK;
void pod_put_encoded(struct buf *out, struct str text); /* percent-encodes all but RFC 3986's unreserved */

/* What --url says, else $FRESHET_URL, else 127.0.0.1 and $FRESHET_PORT or 8080; without a slash at the end, in
 * `buffer` where it was made up. Empty when it is no URL of a pod, which has been said. */
struct str pod_url(const char *command, const char *given, struct buf *buffer);

/* What --token says, else $FRESHET_TOKEN, else a development token for `request`. */
enum status pod_token(const char *given, const struct auth_token_request *request, struct buf *token,
                      struct error *error) MUST_CHECK;

/* All of that for one tenant, with a connection that is kept. */
struct pod_session {
    struct pod_call call; /* copy it for a question */
    struct buf url, token;
};
/* 0, or the exit status of a command that can't go on, which has been said. Close it in either case. */
int pod_session_open(struct pod_session *session, const char *command, const char *url, const char *token,
                     struct str tenant);
void pod_session_close(struct pod_session *session);

/* The rows that all such commands share. */
#define POD_URL_HELP "the pod (default $FRESHET_URL, else http://127.0.0.1:8080)"
#define POD_TOKEN_HELP "default $FRESHET_TOKEN, else a development token as of `freshet token`"

#endif
