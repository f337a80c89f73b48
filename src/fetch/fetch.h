/* HTTP client with deadlines: JWKS, webhooks, agents of chats, and the commands that call a pod. The only folder
 * that knows libcurl. Blocking: on worker threads only. Redirects are not followed, only http and https
 * are spoken, paths are sent as they are, the answer is bounded or streamed, TLS is verified. */
#ifndef FRESHET_FETCH_FETCH_H
#define FRESHET_FETCH_FETCH_H

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

struct fetch_session; /* keeps a connection for the next request; one thread's at a time */

struct fetch_tls {       /* of https; files in PEM */
    const char *ca_file; /* authorities that the server's certificate must come from; NULL = the system's */
    const char *cert_file,
        *key_file; /* the client's own, NULL = none; without a key_file the key is in cert_file */
    /* Any certificate of the server is good: only for this machine's own, and without secrets. */
    bool is_unverified;
};

struct fetch_request {
    const char *method; /* NULL = GET */
    struct str url;
    const char *const *headers; /* "Name: value", NULL-terminated; may be NULL */
    struct str body;
    int64_t connect_timeout_ms, timeout_ms; /* total; 0 = as long as bytes come (stall_timeout_ms) */
    int64_t stall_timeout_ms;               /* without a byte, in whole seconds; 0 = only the total counts */
    size_t answer_bytes_max;
    /* Where the body of a 2xx goes, piece by piece, instead of into the answer; then it has no bound. Other
     * statuses' bodies are kept and bounded as ever. False ends the request: CANCELLED. NULL = keep all. */
    bool (*on_body)(void *context, struct str bytes);
    void *context;
    struct fetch_session *session; /* NULL = a connection of its own */
    struct fetch_tls tls;
};

struct fetch_answer {
    int status;
    int64_t retry_after_s; /* of the header Retry-After; 0 = none */
    struct buf body;       /* the caller's: buf_deinit() */
};

bool fetch_is_url(struct str url); /* http or https, a host, neither spaces nor control characters */
void fetch_init(void);             /* at the start of a server, before its threads; a command needs none */
/* Any thread, when the process ends: what is under way is CANCELLED within a second, and what comes after. */
void fetch_stop(void);
struct fetch_session *fetch_session_open(void);          /* connects to nothing yet */
void fetch_session_close(struct fetch_session *session); /* NULL is fine */
enum status fetch_run(const struct fetch_request *request, struct fetch_answer *answer,
                      struct error *error) MUST_CHECK;

/* ---- several at once, from one thread at a time ---- */
struct fetch_calls; /* the calls under way; they share connections, which are closed when none is */

struct fetch_call {               /* the caller's; it stays where it is from begin until it has ended */
    struct fetch_request request; /* without a session */
    struct fetch_answer answer;
    enum status status;
    struct error error;
    bool has_ended;
    struct fetch_transfer *transfer; /* fetch's */
};

struct fetch_calls *fetch_calls_open(void);
void fetch_calls_begin(struct fetch_calls *calls, struct fetch_call *call);
/* Moves the calls on; if none has ended, waits at most this long for one to move. Returns how many are under way: call it as
 * long as there are any. */
size_t fetch_calls_run(struct fetch_calls *calls, int64_t wait_ms);
/* Any thread: fetch_calls_run() returns, the next one if none waits. */
void fetch_calls_wake(struct fetch_calls *calls);
void fetch_calls_cancel(struct fetch_calls *calls); /* all under way: CANCELLED */
void fetch_calls_close(struct fetch_calls *calls);  /* cancels first; NULL is fine */

#endif
