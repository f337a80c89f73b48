/* HTTP/1.1 server: the contract for routes.
 *
 * A connection lives on one loop. Bytes are parsed strictly (RFC 9112), the request finds its route row and
 * goes through five steps: gate (authentication; the kernel's), body, idempotency key, the row's prepare,
 * handler. The handler answers at once (hot), from a worker thread (worker), later (parked), or piece by piece
 * (stream). Pipelined answers leave in order, gathered into as few writes as possible. At most one request of a
 * connection is off the loop; the next one is parsed after its answer.
 *
 * A `struct http_request` and every slice in it is borrowed until the answer is given; it does not move.
 * All calls are made on the request's loop, with one exception: a worker handler runs on a worker thread. It may
 * use the request and its arena and call http_send*(), whose answer leaves when the handler returns; it may
 * not park. */
#ifndef FRESHET_HTTP_HTTP_H
#define FRESHET_HTTP_HTTP_H

#include <netinet/in.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/metrics.h"
#include "base/setting.h"
#include "base/status.h"
#include "base/str.h"
#include "base/trace.h"
#include "loop/group.h"
#include "loop/loop.h"
#include "loop/worker.h"

enum http_method {
    HTTP_GET,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_PATCH,
    HTTP_DELETE,
    HTTP_OPTIONS,
    HTTP_METHODS,
    HTTP_METHOD_OTHER = HTTP_METHODS, /* any other token; no row takes it */
};
const char *http_method_name(enum http_method method);

/* ---- route rows ---- */
enum http_kind {
    HTTP_HOT,    /* handler runs on the loop and must not block */
    HTTP_WORKER, /* handler runs on a worker thread and may block */
    HTTP_STREAM, /* handler runs on the loop and answers by http_send_stream() without end; the request's slices
                    and arena are freed at its producer's first wait, so that thousands may wait */
};
enum http_access { HTTP_TOKEN, HTTP_PUBLIC };
enum http_consumes { HTTP_JSON, HTTP_ANY }; /* HTTP_JSON: a body of another Content-Type is 415 */
enum http_idempotency { HTTP_KEY_NONE, HTTP_KEY_REJECT, HTTP_KEY_SERIALIZE };
enum http_errors {
    HTTP_ERRORS_CODE,   /* {"code","message", …} */
    HTTP_ERRORS_DETAIL, /* {"detail","error_code", …} as specification 002 */
};

/* Whether answers are compressed. Not by default: where an answer holds a secret and text that another client chooses, its compressed
 * length depends on both and reveals the secret (BREACH). */
enum http_gzip {
    HTTP_GZIP_NEVER,
    HTTP_GZIP_READY, /* the handler has the compressed bytes: http_send_fixed(), http_request_takes_gzip() */
    HTTP_GZIP_STREAMS, /* the server compresses streams of known length while it sends them */
};

/* What a step on the way to the handler returns. */
enum http_step {
    HTTP_STEP_PASS,
    HTTP_STEP_ANSWERED, /* the request is answered */
    HTTP_STEP_PARKED,   /* http_request_resume() follows, or an answer */
};

struct http_request;
typedef void http_handler_fn(struct http_request *request);
typedef enum http_step http_step_fn(struct http_request *request, void *context);

struct http_route {
    enum http_method method;  /* a GET row answers HEAD too; OPTIONS is answered by the server */
    const char *path;         /* "/v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}" */
    http_handler_fn *handler; /* NULL ends a table */
    enum http_kind kind;
    enum http_access access;
    const char *tenant_param; /* the path parameter that must equal the token's tenant; NULL = none */
    const char *scope;        /* needed scope; NULL = none */
    bool needs_user;          /* a token without `sub` is refused */
    enum http_idempotency idempotency; /* of a POST row */
    bool key_required;                 /* 400 BAD_REQUEST without Idempotency-Key */
    bool key_stores_failures;          /* business failures are stored and replayed too (I4) */
    enum http_errors errors;
    enum http_gzip
        gzip; /* of a GET row that is not HTTP_STREAM; its answers vary by Accept-Encoding, errors do not */
    enum http_consumes consumes; /* of POST, PUT and PATCH rows */
    size_t body_bytes_max;       /* 0 = the server's default; a GET's body is read, bounded and dropped */
    int deadline_ms; /* of prepare and a worker's run, past which 503 is answered; 0 = the server's default */
    /* The step before the handler, on the loop; NULL = nothing. It waits, parked, for what the handler needs, so that no
     * worker thread waits, and leaves the result in handler_data. Its context is request->context. The deadline counts
     * from here: a longer parking ends at it, and a worker has the rest. */
    http_step_fn *prepare;
    /* Of an HTTP_WORKER row: the threads that its handler runs on, by request->context; NULL = the server's. */
    struct worker_pool *(*pool)(void *context);
};

#define HTTP_PARAMS_MAX 4

struct http_header {
    struct str name, value; /* value trimmed */
};

struct http_request {
    enum http_method method;            /* HEAD stays HEAD; the server drops the body of its answer */
    struct str path, query;             /* raw, split at '?' */
    struct str params[HTTP_PARAMS_MAX]; /* raw path segments in the order of the row's {names} */
    const struct http_header *headers;
    size_t header_count;
    /* what the gate asks of every request, found while parsing */
    struct str authorization;
    unsigned authorization_count;     /* 0, 1, or 2 for more than once */
    struct str forwarded_client_cert; /* X-Forwarded-Client-Cert; empty when it came more than once */
    struct str client_cert; /* the client's own, verified, as that header would have it; empty = none */
    bool has_body;          /* the handler may run in a later tick, when the body is complete */
    struct str body;        /* whole, dechunked */
    const struct http_route *route;
    void *context;       /* what the route table was added with: the module's own state */
    struct arena *arena; /* freed with the request */
    struct loop *loop;
    const struct sockaddr_in6 *peer; /* or a sockaddr_in, by its family */
    /* Of traceparent; of the request's own span where it is recorded; or zeros, where there is neither. What the request causes has
     * it as its parent. */
    struct trace trace;
    struct str request_id; /* X-Request-Id, which the answer has too; empty = none, or invalid */
    const void *identity;  /* the gate's; lives as long as the request */
    /* What the gate and the handler left with the request before, where this one repeats it: in the same turn, with the same fields,
     * and the same path but for its last segment. Else NULL. Valid, as left, until the callback of the loop returns. */
    struct http_carried {
        const void *identity;
        void *of_handler;
    } carried;
    struct str idempotency_key; /* the idempotency step's; ptr NULL = none came, or the row has no policy */
    void *idempotency_memo;     /* the idempotency step's own; see on_idempotency_end */
    void *handler_data;         /* the handler's own, NULL at first: kept while the request is parked */
    struct http_connection *connection;
};

/* The header `name` (case-insensitive), or STR_NONE. Repeated: the first. */
struct str http_request_header(const struct http_request *request, struct str name);
size_t http_request_header_count(const struct http_request *request, struct str name);
/* The path parameter `name` percent-decoded (a copy in the arena only when something was encoded).
 * BAD_REQUEST naming the field on a bad escape, invalid UTF-8 or %00. */
enum status http_request_param(const struct http_request *request, const char *name, struct str *value,
                               struct error *error) MUST_CHECK;
/* The query parameter `name`, decoded ('+' is a space); *found: it is there. The same name twice
 * is BAD_REQUEST. */
enum status http_request_query(const struct http_request *request, struct str name, bool *found,
                               struct str *value, struct error *error) MUST_CHECK;
/* A number of that range; *value stays as it is where the parameter is missing. */
enum status http_request_query_i64(const struct http_request *request, const char *name, int64_t min,
                                   int64_t max, int64_t *value, struct error *error) MUST_CHECK;
/* The elements of the list `name`: how many there are, of which the first `max` are in `raw`. `name=a,b` and `name=a&name=b` are the
 * same list. They are not decoded, since a comma inside an element is %2C. */
size_t http_request_query_list(const struct http_request *request, struct str name, struct str *raw,
                               size_t max);
/* Decodes %xx (and '+' when plus_is_space) of `raw` into the arena; same failures as http_request_param(). */
enum status http_percent_decode(struct str raw, bool plus_is_space, struct arena *arena, const char *field,
                                struct str *out, struct error *error) MUST_CHECK;
void http_percent_encode(struct buf *out, struct str text); /* all but the unreserved of RFC 3986 */
/* Every query parameter must be among `names` (NULL-terminated), else BAD_REQUEST naming the unknown one. */
enum status http_request_query_only(const struct http_request *request, const char *const *names,
                                    struct error *error) MUST_CHECK;
/* A hash of the address that the request was sent from; of an IPv6 address only the network, since a client may have any number of
 * addresses in it. Before its token is checked, nothing else is known of a sender. */
uint64_t http_request_sender(const struct http_request *request);
/* The weight, 0 to 1000, that Accept gives to `type` ("application/x-ndjson") by name; a star does not count. */
unsigned http_request_accepts(const struct http_request *request, struct str type);
/* Does the row allow gzip, the server too, and does the client prefer it to bytes as they are? */
bool http_request_takes_gzip(const struct http_request *request);
/* If-None-Match against a strong tag given with its quotes; weak comparison, lists and '*' understood. */
bool http_request_none_match(const struct http_request *request, struct str etag);

/* ---- answers: exactly one per request ---- */
struct http_response {
    int status;              /* 200 … */
    struct str content_type; /* empty = application/json */
    struct str headers;      /* whole lines, each ended by CRLF, already safe */
    struct str body;
    bool close; /* close the connection after this answer */
};
/* Copies everything; the caller's memory is free again on return. */
void http_send(struct http_request *request, const struct http_response *response);
/* The same for a body of exactly so many bytes, which the caller writes to where this returns, before it returns to the loop.
 * NULL: a body is not wanted (HEAD). Not on a worker. */
char *http_send_room(struct http_request *request, const struct http_response *response,
                     size_t bytes) MUST_CHECK;
/* The same for a body that stands in several pieces, copied once, straight into the socket's buffer. */
void http_send_parts(struct http_request *request, const struct http_response *response,
                     const struct str *parts, size_t part_count);
/* An answer that never changes, as plain bytes and compressed; the two have different strong tags, with their quotes. */
struct http_form {
    struct str bytes, etag;
};
struct http_fixed {
    struct str content_type;
    struct http_form plain, gzip;
};
/* By what the client takes, as a stream of bytes that outlive the request; 304 where If-None-Match has either tag. `headers` are
 * whole lines besides ETag, Content-Encoding and Vary. */
void http_send_fixed(struct http_request *request, const struct http_fixed *fixed, struct str headers);
/* Appends `text` as gzip. Any thread. False: there is no memory for it, and `out` is as it was. */
bool http_gzip_put(struct buf *out, struct str text) MUST_CHECK;
/* By the route's error style: code and message from `error` for 4xx (its field included), the status's own
 * safe sentence for 5xx; 401 carries WWW-Authenticate, 503 Retry-After. `headers` may be empty. */
void http_send_error(struct http_request *request, const struct error *error);
void http_send_error_with(struct http_request *request, const struct error *error, struct str headers,
                          struct str extra_members /* ",\"name\":value" or empty */);

/* Streams: the server asks for more whenever the socket's buffer has room. */
enum http_producer_state {
    HTTP_PRODUCER_MORE,
    HTTP_PRODUCER_END,
    HTTP_PRODUCER_WAIT, /* until http_stream_wake() */
    HTTP_PRODUCER_FAIL, /* cut the connection, so that the reader does not mistake it for the end */
};
struct http_producer {
    /* Appends about `room` bytes to `out`, which may hold other bytes already: append only. */
    enum http_producer_state (*produce)(void *context, struct buf *out, size_t room);
    void (*release)(void *context); /* called once, whatever happened */
    void *context;
    int64_t content_length; /* -1 = unknown: chunked, or close-delimited for HTTP/1.0 */
    /* Of a stream without end, when the server stops while it waits: appends the last bytes. NULL = none. */
    void (*put_last)(void *context, struct buf *out);
};
void http_send_stream(struct http_request *request, const struct http_response *response,
                      const struct http_producer *producer);

/* ---- parking: a step or handler returns without an answer; later, on the loop, it unparks the request ---- */
typedef void http_timeout_fn(struct http_request *request, void *context);
/* An on_timeout whose context is a static struct http_late: this error is the answer. */
struct http_late {
    enum status status;
    const char *message;
};
http_timeout_fn http_send_late;
/* False when too many are parked: the request has then been answered 503. `on_timeout` answers; NULL = 504. A request
 * whose client disconnects is dropped silently: unparking it gives NULL. */
bool http_request_park(struct http_request *request, int64_t deadline_ns, http_timeout_fn *on_timeout,
                       void *context, struct loop_park_ref *ref);
/* After parking: on_drop(request, context) is called when the client disconnects meanwhile. It must not
 * answer. */
void http_request_on_drop(struct http_request *request, http_timeout_fn *on_drop);
/* On the ref's loop: the request, now unparked and to be answered, parked again or (a step's) resumed; or NULL. */
struct http_request *http_request_unpark(struct loop_park_ref ref);
/* After unparking: the step that parked it passes. */
void http_request_resume(struct http_request *request);
/* Wakes a stream that returned HTTP_PRODUCER_WAIT; on its loop. The ref is taken after http_send_stream(); its
 * generation is 0 when the answer is not a stream: HEAD, or 503 because too many are open. */
struct loop_park_ref http_stream_ref(const struct http_request *request);
void http_stream_wake(struct loop_park_ref ref);
/* On its loop, not from inside produce(): has the socket taken all that was produced? */
bool http_stream_is_taken(struct loop_park_ref ref);
/* On its loop: cuts the connection now, with whatever is unsent. */
void http_stream_cut(struct loop_park_ref ref);

/* On a worker, instead of an answer: `handler` continues on a thread of `pool`, by the same deadline; 503 where its
 * queue is full. For handlers that wait long, so that the server's own workers do not. */
void http_request_hand_on(struct http_request *request, struct worker_pool *pool, http_handler_fn *handler);

/* ---- router ---- */
struct http_router;
struct http_router *http_router_create(void);
void http_router_destroy(struct http_router *router);
/* Adds a table (ended by a row without handler). Two rows that take the same requests, a bad path or a
 * tenant_param that is not in the path are CONFIG errors. */
enum status http_router_add(struct http_router *router, const struct http_route *routes, void *context,
                            struct error *error) MUST_CHECK;

/* ---- server ---- */
struct http_limits { /* C6; every one configurable */
    size_t body_bytes_max, target_bytes_max, header_bytes_max;
    size_t header_count_max;
    size_t connections_max;   /* of the whole server; one more is answered 503 and closed */
    size_t connections_extra; /* past that, being answered so; one more is closed at once */
    size_t held_max; /* held by unfinished requests of one tenant, if there is share_of; past it 503 */
    int64_t header_timeout_ms; /* first byte to end of headers, total */
    int64_t body_timeout_ms;   /* without progress, or below body_rate_min */
    int64_t idle_timeout_ms;   /* keep-alive between requests */
    int64_t write_timeout_ms;  /* a reader slower than write_rate_min for this long is disconnected */
    int64_t deadline_ms;       /* default of routes' deadline_ms */
    size_t body_rate_min;      /* bytes a second, on average over body_timeout_ms */
    size_t write_rate_min;     /* the same for readers, over write_timeout_ms */
    size_t bodies_bytes_max;   /* of all bodies together; at least four times body_bytes_max */
    size_t unsent_bytes_max;   /* of all answers that clients have not read yet */
};
extern const struct http_limits http_limits_default;

/* ---- TLS: what a server's connections share. Immutable, counted references, any thread ---- */
enum http_tls_version { HTTP_TLS_1_2, HTTP_TLS_1_3 };
struct http_tls_settings {
    struct str cert_file, key_file,
        client_ca_file; /* PEM, NUL-terminated; an empty one: clients are not asked for theirs */
    enum http_tls_version min_version;
    bool client_required; /* a client without a certificate is refused */
};
struct http_tls_certificate {
    struct str subject; /* RFC 2253 */
    int64_t not_before_s, not_after_s;
    bool asks_client; /* there are authorities for clients */
};
struct http_tls;
/* Reads the files. CONFIG with the field (certFile, keyFile, clientCaFile) if one cannot be used. Blocks: not on a loop. */
enum status http_tls_load(const struct http_tls_settings *settings, struct http_tls **tls,
                          struct error *error) MUST_CHECK;
void http_tls_unref(struct http_tls *tls);
struct http_tls_certificate http_tls_certificate(const struct http_tls *tls);

/* ---- CORS: for scripts of other origins. Immutable, counted references, any thread ---- */
struct http_cors_settings {
    struct setting_strings origins; /* "https://app.example.com"; or "*" alone; none = no CORS */
    struct setting_strings expose_headers;
    bool allows_credentials;
    int64_t max_age_s; /* of a preflight's answer */
};
struct http_cors;
/* CONFIG with the field (allowedOrigins, allowCredentials, exposeHeaders) that is wrong. */
enum status http_cors_check(const struct http_cors_settings *settings, struct error *error) MUST_CHECK;
struct http_cors *http_cors_create(const struct http_cors_settings *settings); /* NULL = no CORS */
struct http_cors *http_cors_ref(struct http_cors *cors);                       /* NULL is fine */
void http_cors_unref(struct http_cors *cors);                                  /* the same */

struct http_server_config {
    struct loop_group *group;
    struct http_tls *tls;        /* borrowed; NULL = connections are plain */
    struct http_cors *cors;      /* borrowed; NULL = none */
    struct worker_pool *workers; /* for HTTP_WORKER rows; may be NULL when there are none */
    const struct http_router *router;
    struct http_limits limits;
    bool gzip;          /* routes whose rows allow it compress their answers */
    void *context;      /* of both steps */
    http_step_fn *gate; /* NULL = everything passes */
    /* The step after the body, for POST rows with an idempotency policy; NULL = every request passes. When it has set
     * request->idempotency_memo, on_idempotency_end is called once, on the loop: when the request is answered or dropped,
     * and no worker holds it. It must not touch the answer. */
    http_step_fn *idempotency;
    void (*on_idempotency_end)(struct http_request *request);
    /* A hash of the request's tenant, 0 = it has none, which may take at most half of bodies_bytes_max and held_max connections;
     * NULL = no such limits. On the loop. */
    uint64_t (*share_of)(const struct http_request *request);
    /* Its name, for spans and the access log; empty = not known. NULL = never known. On the loop. */
    struct str (*tenant_of)(const struct http_request *request);
};
struct http_server;
enum status http_server_create(const struct http_server_config *config, struct http_server **server,
                               struct error *error) MUST_CHECK;
/* The access log, a line for each request: none, those answered by 400 and above or not at all, or all. Any thread. */
enum http_access_log { HTTP_ACCESS_OFF, HTTP_ACCESS_ERRORS, HTTP_ACCESS_ALL };
void http_set_access_log(enum http_access_log access); /* of the process */
/* Is it HOST:PORT or [IPV6]:PORT? CONFIG if not. */
enum status http_address_check(struct str address, struct error *error) MUST_CHECK;
/* "127.0.0.1:8080", "[::1]:8080", "localhost:8080", port 0 = any free one. One SO_REUSEPORT listener per
 * loop. May be called for several addresses. */
enum status http_server_listen(struct http_server *server, struct str address,
                               struct error *error) MUST_CHECK;
unsigned http_server_port(const struct http_server *server);        /* of the first address */
unsigned http_server_connections(const struct http_server *server); /* that are open; any thread */
/* New connections use it, if the server was created with TLS; those that are open keep theirs. `tls` is borrowed. */
void http_server_use_tls(struct http_server *server, struct http_tls *tls);
void http_server_use_cors(struct http_server *server, struct http_cors *cors); /* the same; NULL = none */
/* Before a drain, any thread: from now on answers close their connections. Everything else goes on. */
void http_server_leave(struct http_server *server);
/* Graceful stop: no new connections, idle ones closed, requests in flight answered with `Connection: close`, streams ended;
 * on_drained(arg) runs on a loop when none is left or the deadline passed (then the rest is cut). */
void http_server_drain(struct http_server *server, int64_t deadline_ns, void (*on_drained)(void *arg),
                       void *arg);
/* After loop_group_stop() and before loop_group_destroy(): closes what is still open. What workers and messages
 * on their way hold is freed when they are done. */
void http_server_destroy(struct http_server *server);
/* Adopts a connected, non-blocking stream socket; on this loop. Tests and the fuzzer talk through a
 * socketpair. */
void http_server_adopt(struct http_server *server, struct loop *loop, int fd);

#endif
