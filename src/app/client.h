/* A command that calls a pod: its options, address, token, time limits, messages and exit status in one place.
 *
 *     struct get { struct client client; bool all; … };
 *     return client_main(argc, argv, &get.client, &(struct client_command){
 *         .usage = "TENANT DICT [KEY…]", .words_min = 2, .rows = rows, .run = run_get, …});
 *
 * Blocking: for the main thread of a command; pod_*() for any thread with a call of its own. */
#ifndef FRESHET_APP_CLIENT_H
#define FRESHET_APP_CLIENT_H

#include "app/options.h"
#include "auth/auth.h"
#include "base/buf.h"
#include "base/status.h"
#include "fetch/fetch.h"

#define CLIENT_NAME_MISTAKE "TENANT and DICT are 1 to 64 characters of A-Z a-z 0-9 . _ -"
#define CLIENT_STRANGE_ANSWER "the answer is not one of freshet's: check --url"

/* ---- one call ---- */
struct pod_call {
    struct str url;          /* http://host:port */
    struct str token;        /* Bearer */
    struct str tenant, code; /* an empty code: the path is the tenant's own */
    struct str rest; /* of the path after /v1/tenants/…[/dictionaries/…], percent-encoded: "/items/DE" */
    struct str path; /* not empty: the whole path instead */
    const char *accept;     /* a media type; NULL = any */
    struct str min_version; /* X-Min-Version; empty = none */
    /* How long it may take: no answer and a 503 are tried again for as long, unless it is `single`. The last attempt has a second at
     * least. A streamed answer may take any time, but not that long without a byte. */
    int64_t patience_ms;
    bool single;
    /* Takes a good answer piece by piece; NULL = it is kept in `body`. False ends the call: CANCELLED. */
    bool (*on_body)(void *context, struct str bytes);
    void *context;
    struct fetch_session *session; /* NULL = a connection of its own */
    struct fetch_tls tls;
    int *http_status; /* of the answer, 0 = there was none; may be NULL */
};

/* A 2xx is OK. Otherwise *error has the message to print: IO or TIMEOUT = no answer, UNAVAILABLE = a 503,
 * BAD_REQUEST = any other answer, with its number and code in the message and its code in `field`. `body` is the
 * caller's in every case: buf_deinit(). */
enum status pod_get(const struct pod_call *call, struct buf *body, struct error *error) MUST_CHECK;
/* The same with a JSON document to send. A retry sends the same bytes, and so the same eventId. */
enum status pod_post(const struct pod_call *call, struct str json, struct buf *body,
                     struct error *error) MUST_CHECK;
enum {
    POD_ANSWER_MS = 60000
}; /* patience of calls that have none of their own: a first read waits for its load */
bool pod_is_away(enum status status); /* no answer, or a 503: the same call may succeed later */
void pod_pause(int64_t ms);

/* Lines of a streamed answer: pass `context` = this and `on_body` = pod_take_lines. Of a line past 64 MiB, which no stream of ours has,
 * take_line() gets nothing, and the call ends. */
struct pod_lines {
    struct buf line;                                   /* incomplete; the caller's to free */
    bool (*take_line)(void *context, struct str line); /* false ends the call */
    void *context;
};
bool pod_take_lines(void *lines, struct str bytes);

/* ---- one command ---- */
struct client {
    const char *command;       /* its name, for messages */
    const char *url, *token;   /* as given; NULL = the default */
    struct fetch_tls tls;      /* the same */
    struct str ready_token;    /* client_token_given() */
    struct option_words words; /* TENANT and DICT included */
    struct str tenant, code;   /* its first words */
    struct pod_call call;      /* ready after client_connect(); copy it for a call */
    struct buf url_text, token_text;
};

struct client_command {
    const char *usage, *summary;
    const struct option_row *rows;
    size_t words_min, words_max;       /* max 0 = no limit */
    bool names_dictionary;             /* the first two words are TENANT and DICT: checked */
    int (*run)(struct client *client); /* checks the call, then client_connect(); the exit status */
};
int client_main(int argc, char **argv, struct client *client, const struct client_command *command);

/* --url, else $FRESHET_URL, else 127.0.0.1 and $FRESHET_PORT or 8080; without a slash at the end, in
 * `buffer` where it was made up. Empty when it is not a URL, which is printed. */
struct str client_url(const char *command, const char *given, struct buf *buffer);
/* *token: --token, else $FRESHET_TOKEN, else empty. False when it is malformed, which is printed. */
bool client_token_given(const char *command, const char *given, struct str *token);
/* That, else a development token for `request`. */
enum status client_token(struct str given, const struct auth_token_request *request, struct buf *token,
                         struct error *error) MUST_CHECK;
/* False when a file cannot be read or a key has no certificate, which is printed. */
bool client_tls_given(const char *command, const struct fetch_tls *given);
/* A file that is not given is that of $FRESHET_CA, $FRESHET_CERT or $FRESHET_KEY, else NULL. */
struct fetch_tls client_tls(const struct fetch_tls *given);
/* A new connection, and a new token where it is a development token. False: the message is printed. */
bool client_connect(struct client *client);

/* The rows that all such commands share; they end the table. */
#define CLIENT_URL_HELP \
    "the pod's address (default $FRESHET_URL, else 127.0.0.1 with port $FRESHET_PORT or 8080)"
#define CLIENT_TOKEN_HELP \
    "bearer token (default $FRESHET_TOKEN, else a development token, see `freshet token`)"
#define CLIENT_TLS_ROWS(tls)                                                                   \
    {"--ca", "FILE",                                                                           \
     "authorities (PEM) for an https address (default $FRESHET_CA, else those of the system)", \
     .into = &(tls).ca_file},                                                                  \
        CLIENT_CERTIFICATE_ROWS(tls)
#define CLIENT_CERTIFICATE_ROWS(tls)                                                          \
    {"--cert", "FILE", "certificate (PEM) of this client (default $FRESHET_CERT, else none)", \
     .into = &(tls).cert_file},                                                               \
    {                                                                                         \
        "--key", "FILE", "its key (default $FRESHET_KEY, else in the file of --cert)",        \
            .into = &(tls).key_file                                                           \
    }
#define CLIENT_ROWS(client)                                                                              \
    {"--url", "URL", CLIENT_URL_HELP, .into = &(client).url},                                            \
        {"--token", "TOKEN", CLIENT_TOKEN_HELP, .into = &(client).token}, CLIENT_TLS_ROWS((client).tls), \
    {                                                                                                    \
        .name = NULL                                                                                     \
    }

/* ---- progress on standard error, where that is a terminal and standard output is not the same one ---- */
struct progress {
    bool shown;
    uint64_t items, bytes;
    uint64_t items_total; /* 0 = unknown */
    int64_t began_ns, drawn_ns;
};
/* A total of 0: it is not known, and items go to standard output. */
void progress_start(struct progress *progress, bool wanted, uint64_t items_total);
void progress_count(struct progress *progress, uint64_t items, uint64_t bytes);
void progress_end(struct progress *progress);

#endif
