/* The server's own layout, for the files of this folder only.
 *
 *     server ─ one home per loop ─ its connections ─ at most one exchange each
 *
 * An idle connection is a small struct. While bytes of a request are there it holds an exchange, taken from its home's pool: the block
 * the bytes were read into, the parser, the request, its arena. Pipelined requests use the same exchange one after the other. Output is
 * gathered in the home's one buffer while the connection runs; the connection keeps only what the socket did not take. */
#ifndef FRESHET_HTTP_HTTP_INSIDE_H
#define FRESHET_HTTP_HTTP_INSIDE_H

#include <assert.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/list.h"
#include "http/body.h"
#include "http/budget.h"
#include "http/http.h"
#include "http/parser.h"

enum {
    HTTP_BLOCK_BYTES = 16 * 1024,            /* read at once, and so the bound of one connection's turn */
    HTTP_KEPT_BYTES_MAX = 4 * 1024,          /* of that, with a head that later ones are compared with */
    HTTP_BODY_ROOM_MIN = 4 * 1024,           /* after a head whose body is still to come */
    HTTP_OUT_BYTES_MAX = 64 * 1024,          /* gathered answers past which they are written first */
    HTTP_SHARED_OUT_BYTES_MAX = 1024 * 1024, /* kept by a loop of the buffer it gathers them in */
    HTTP_DISCARD_BYTES_MAX = 64 * 1024,      /* of an unread body that is dropped to keep the connection */
    HTTP_STREAM_ROOM_BYTES = 64 * 1024,      /* asked of a stream's producer at once */
    HTTP_GZIP_SLICE_BYTES = 16 * 1024,       /* compressed at once: about 0.1 ms of the loop */
    HTTP_GZIP_BYTES_MIN = 1024,              /* a shorter answer is not compressed */
    HTTP_ENCODINGS_MAX = 32,                 /* elements of Accept-Encoding; with more it is ignored */
    HTTP_ROUNDS_PER_TURN = 16,               /* writes of one connection before others have their turn */
    HTTP_REQUESTS_PER_TURN = 128,            /* the same for pipelined requests */
    HTTP_REQUESTS_PER_CHECK = 32,            /* of the clock: a power of two */
    HTTP_TURNS_PER_CHECK = 16,               /* of the clock, a power of two, too */
    HTTP_TICK_US_MAX = 1000,                 /* past it a tick is long, and connections wait: turns.c */
    HTTP_REQUESTS_IN_LONG_TICK = 16,         /* of a turn then, … */
    HTTP_SHORT_TURN_US = 50,                 /* … or fewer, if they take longer than this */
    HTTP_REQUESTS_PER_SHORT_CHECK = 2,       /* of the clock, in such a turn: a power of two */
    HTTP_SHORT_PHASE_US = 100,               /* of turns, when more events wait than a tick takes */
    HTTP_GROUPS = 1024,                      /* of connections that wait: tenants, by a hash */
    HTTP_HANDSHAKES_US_MAX = 300,            /* of a tick, or one step: for TLS handshakes */
    HTTP_SPARE_EXCHANGES_MAX = 64,           /* kept per loop */
    HTTP_ARENA_BYTES = 4 * 1024,             /* of a request, without another malloc */
    HTTP_LINGER_MS = 2000,                   /* after the last answer, for the client to read it */
    HTTP_LINGER_BYTES_MAX = 4 * 1024 * 1024,
    HTTP_HOLDERS = 1024,     /* of connections: tenants, by a hash */
    HTTP_IDLE_SAMPLES = 64,  /* connections compared to find an idle one to close, when there are too many */
    HTTP_IDLE_MIN_MS = 1000, /* idle time after which a connection may be closed for another */
    HTTP_CACHE_LINE_BYTES = 64,
    HTTP_REQUEST_ID_BYTES_MAX = 128,
};

/* What a parsed head means for the server. */
struct http_head {
    enum http_method method;
    struct str path, query; /* slices of the head's bytes */
    bool has_escapes;       /* the path has a '%' */
    enum http_body_kind body_kind;
    uint64_t content_length; /* of a sized body */
    bool keep_alive;
    bool expects_continue; /* waits for 100 before it sends the body */
    bool is_server_wide;   /* OPTIONS * */
};

/* The route of every path that has this prefix and one more segment: requests for one item after another are not routed again. */
struct http_way {
    struct http_entry *entry; /* NULL = none is known */
    enum http_method method;
    struct str prefix; /* up to its last slash; slices of the request's bytes, as are its parameters */
    unsigned param_count;
    bool was_taken; /* by the latest request that was routed */
};

#define HTTP_STATUS_SLOTS 32

/* A row with what is worked out once: its parameters' names, and its metric series, found on first use. The
 * series are the only thing here that changes; a thread that finds one missing stores the same pointer as any other
 * would. */
struct http_entry {
    const struct http_route *route; /* NULL: stands for requests that have none */
    void *context;
    struct str param_names[HTTP_PARAMS_MAX];
    unsigned param_count;
    bool ends_in_tenant; /* its last parameter is its tenant */
    bool varies;         /* by Accept-Encoding: its row allows gzip */
    _Atomic(struct metric_series *) counters[2][HTTP_STATUS_SLOTS]; /* [is HEAD][slot of the status] */
    _Atomic(struct metric_series *) latency;
};

/* What a connection does. */
enum http_state {
    HTTP_STATE_HEAD,    /* reads a head; idle when no byte of one is there */
    HTTP_STATE_BODY,    /* reads the body of its request */
    HTTP_STATE_BUSY,    /* its request has the turn: see enum http_progress */
    HTTP_STATE_DISCARD, /* answered; the rest of the body is read and dropped */
    HTTP_STATE_FLUSH,   /* the last answer is leaving */
    HTTP_STATE_LINGER, /* our side is shut; input is read and dropped, since a reset would destroy the answer */
    HTTP_STATE_DEAD,   /* closed; the struct waits for the end of the tick, or for a worker */
};

/* How far a request is. http_exchange_move() is the only writer.
 *
 *     READING ─▶ RUNNING ─▶ ANSWERED ─▶ READING          within one turn, where no step waits
 *                 │   ▲
 *                 ├─▶ PARKED ─▶ RUNNING                   unparked, or its time is up
 *                 ├─▶ RESUMED ─▶ RUNNING                  the step passes, at the end of the tick
 *                 ├─▶ WORKER ─▶ RUNNING                   returned; its recorded answer is sent
 *                 └─▶ STREAMING ⇄ STREAM_WAITS ─▶ ANSWERED
 *
 * A dropped request goes to READING from every state but WORKER: the worker must return first. The worker reads the
 * state (http_send*() records there), so the loop does not change it meanwhile. */
enum http_progress {
    HTTP_READING, /* its head */
    HTTP_RUNNING, /* a step has it, on the loop, or its body is being read */
    HTTP_PARKED,
    HTTP_RESUMED, /* its step passed after parking; its turn is at the end of the tick */
    HTTP_ON_WORKER,
    HTTP_ANSWERED,      /* from here on: the answer's head is written */
    HTTP_STREAMING,     /* the producer is asked as the socket takes what it gave */
    HTTP_STREAM_ENDING, /* the same until the producer waits; then the answer ends */
    HTTP_STREAM_WAITS,  /* the producer waits for http_stream_wake() */
    HTTP_PROGRESSES,
};

/* What a request needs while a worker has it: in its arena. */
struct http_work {
    struct worker_job job;
    struct http_exchange *exchange;
    http_handler_fn *handler;      /* which runs */
    struct worker_pool *next_pool; /* of the handler that http_request_hand_on() named; NULL = none */
    struct http_response recorded; /* its answer, copied into the arena; status 0 = none yet */
};

/* The block's parts are drawn in block.c. head_end is where the head ended: each piece of its body is read to there. */
struct http_exchange {
    struct http_request request; /* first: a request is its exchange */
    struct http_connection *connection;
    struct http_home *home;
    SLIST_ENTRY(http_exchange) spare;

    char *block;
    size_t block_bytes, start, end, head_end;
    struct http_parser parser;
    struct http_span *spans;
    struct http_header *headers; /* slices of this head, or of an earlier one with the same fields */
    struct http_head head;
    struct http_way way; /* of the request before */
    struct http_body body;
    struct buf body_bytes; /* a body that did not come whole with its head; budget.c frees it */
    size_t body_charged;
    uint64_t body_tenant;
    size_t charged;    /* its own memory, to BUDGET_REQUESTS */
    size_t head_bytes; /* of that, charged before its head was complete, until it waits */
    size_t held_bytes; /* of that, by its tenant, since it waits; 0 = it does not */
    uint64_t held_tenant;
    bool has_arena_charged; /* `charged` counts what its arena takes for this request */
    bool has_waited;        /* its memory may be out of the reserve: http_budget_may_stay() */
    size_t answer_charged;  /* for a long answer that a worker gave, to BUDGET_REQUESTS, to held_tenant */
    int64_t body_since_ns;  /* the window in which the least rate is checked */
    uint64_t body_before;   /* received at its beginning */
    struct arena arena;

    unsigned holder; /* of its connection: 1 + its tenant's place in the server's `held`; 0 = not counted */
    struct http_entry *entry; /* the router's, or the server's for requests without a route */
    int64_t started_ns;
    struct http_observed { /* observe.c */
        bool has_ids;      /* a trace or a request id, for log lines */
        bool is_due;       /* http_observe_end() is */
        bool is_traced;    /* its span is recorded then */
        uint8_t parent_span[8];
    } observed;
    int64_t answer_bytes; /* of the body; -1 = a stream without a length */
    enum http_progress progress;
    unsigned step;      /* of the array in dispatch.c */
    bool is_late;       /* was off the loop: its duration is measured when it is answered */
    bool closes;        /* the connection ends with this answer */
    uint64_t discarded; /* of the unread body */

    struct loop_park_ref park;
    http_timeout_fn *on_timeout, *on_drop;
    void *park_context;

    int64_t deadline_ns;    /* of prepare and the worker's run; 0 = not counted yet */
    struct http_work *work; /* NULL = no worker has had it */

    struct http_producer producer; /* of a streamed answer, sent or recorded; produce NULL = none */
    bool is_chunked;
    uint64_t unproduced; /* of a content_length */
};

struct http_connection {
    struct loop_io io; /* first: the loop hands it back */
    struct http_home *home;
    struct http_exchange *exchange;
    struct http_tls_link *tls;         /* tls.h; NULL = bytes are sent as they are */
    LIST_ENTRY(http_connection) entry; /* of the home's list */
    enum http_state state;
    unsigned refs;      /* itself, and each worker that still holds a request of it */
    bool running;       /* in a turn, which follows up on answers */
    bool saw_end;       /* the client sent its last byte */
    bool wants_turn;    /* has more to do, without another event */
    bool may_be_unread; /* at the end: the client may have sent bytes that were not read */
    bool is_waiting;    /* for its turn: in its group's list */
    bool is_readable;   /* meanwhile its socket became so */
    bool is_ungrouped;  /* its next request decides its group */
    uint16_t group;     /* turns.c */
    TAILQ_ENTRY(http_connection) waiting;
    struct loop_tick tick;
    struct loop_timer timer; /* lazy: fires at or before deadline_ns, then checks again */
    int64_t deadline_ns;
    int64_t state_since_ns, progress_ns;
    uint64_t lingered_bytes;
    struct buf own_out, *out; /* out: own_out, or the home's while running with own_out empty */
    /* of what the socket did not take */
    bool is_behind;        /* its client has to read before it goes on, since the end of an earlier turn */
    bool is_unsent;        /* own_out was not empty then: in the home's list */
    uint16_t unsent_group; /* the group it had then */
    TAILQ_ENTRY(http_connection) unsent;
    size_t unsent_charged;
    uint64_t sent_bytes, seen_sent_bytes; /* to the socket; when its place in the list was last checked */
    int64_t reading_since_ns;             /* the window in which the least rate is checked */
    uint64_t reading_before;              /* read by the client at its beginning */
    struct sockaddr_in6 peer;             /* or a sockaddr_in */
    char *client_cert;                    /* of struct http_request; NULL = none */
};

/* Requests of a turn that count alike, added to the metrics together. */
struct http_tally {
    struct http_entry *entry;
    int status;
    bool is_head;
    unsigned count;
};

/* What a connection may do until others have their turn. */
struct http_turn {
    unsigned requests_max;
    unsigned check_mask; /* the clock is read after every check_mask + 1 requests, and after each write */
    int64_t until_ns;
};

/* Connections of one tenant that wait for their turn. */
struct http_group {
    TAILQ_HEAD(, http_connection) connections;
    TAILQ_ENTRY(http_group) entry; /* of its queue, unless it is empty */
};

/* Connections of one tenant whose clients have not read their answers. */
struct http_unsent {
    TAILQ_HEAD(, http_connection) connections; /* the first has waited for its client longest */
    size_t bytes;
};

struct http_queue {
    TAILQ_HEAD(, http_group) waiting; /* in the order of their turns */
    struct http_group groups[HTTP_GROUPS];
};

struct http_listener;

struct http_home {
    _Alignas(HTTP_CACHE_LINE_BYTES) struct http_server *server; /* no line is shared with another loop's */
    struct loop *loop;
    struct buf out;
    struct buf gzip_in;  /* a slice that is being compressed */
    bool has_compressed; /* a slice, since a stream last looked at the clock */
    SLIST_HEAD(, http_exchange) spares;
    unsigned spare_count;
    LIST_HEAD(, http_connection) connections;
    struct http_connection *idle_hand; /* the next to be looked at; NULL = the first */
    struct http_tally tally;
    int64_t clock_ns; /* when the clock was last read */
    unsigned turn_count;
    char usual_lines[128]; /* that most answers begin with: response.c */
    int64_t date_until_ns; /* so long they have the right date */
    struct http_unsent unsent[HTTP_GROUPS];
    size_t unsent_bytes;
    size_t head_bytes;    /* of its exchanges */
    int64_t next_cuts_ns; /* not before: connections with slow heads are looked for */
    SLIST_HEAD(, http_listener) listeners;
    struct http_cors *cors; /* NULL = none */
    bool leaving;           /* answers close their connections: drain.c */
    bool draining, drained; /* nothing new begins; nothing is left */
    struct loop_timer drain_timer;
    struct loop_tick waiting_tick, handshake_tick;
    struct http_queue turns;       /* connections that wait for their turn */
    struct http_tls *tls;          /* of new connections; NULL = they are plain */
    struct http_queue *handshakes; /* with TLS: those that wait for a step of theirs */
};

enum http_handshake { HTTP_HANDSHAKE_FULL, HTTP_HANDSHAKE_RESUMED, HTTP_HANDSHAKE_FAILED, HTTP_HANDSHAKES };

struct http_server {
    struct http_server_config config;
    struct http_home *homes; /* by loop index */
    unsigned home_count;
    atomic_uint refs; /* its owner, each worker that holds a request, each message on its way to a loop */
    bool is_destroyed;
    atomic_uint connection_count;
    unsigned port;
    struct http_entry *unmatched; /* counts requests without a route */
    struct metric_series *connections_gauge, *parse_errors, *slow_cuts, *full_cuts, *idle_closes,
        *held_refused, *handshakes[HTTP_HANDSHAKES];
    atomic_uint homes_to_cut;       /* loops that a message of budget.c is on its way to */
    atomic_uint held[HTTP_HOLDERS]; /* connections, by tenant: http_exchange_hold() */
    atomic_uint homes_left;         /* to drain */
    int64_t drain_deadline_ns;
    void (*on_drained)(void *arg);
    void *drained_arg;
};

static inline struct http_exchange *http_exchange_of(struct http_request *request)
{
    return (struct http_exchange *)request;
}

/* head.c. Pure. Whatever would let two readers see two different requests is refused here (C6): a length beside a coding, two
 * lengths, a coding that is not exactly "chunked", no or two hosts. Any failure leaves the framing in doubt: answer it and close.
 * Where the parser knew the fields, *head is that of the request before. */
enum status http_head_read(const struct http_parser *parser, const char *data, struct http_head *head,
                           struct error *error) MUST_CHECK;

/* router.c */
/* The entry that takes this request, its raw parameters in `params`; NULL when there is none, with the bits
 * (1 << method) of what the path does take in *allowed, 0 for an unknown path. *way is that of the request before, whose
 * parameters are still in `params`, and becomes this one's. */
struct http_entry *http_router_find(const struct http_router *router, enum http_method method,
                                    struct str path, struct str params[HTTP_PARAMS_MAX], struct http_way *way,
                                    unsigned *allowed);
/* For a path without a row that takes it: a row of the path, or of the longest part of it that has one, whose error style
 * applies (C4). NULL: there is none. */
const struct http_route *http_router_nearest(const struct http_router *router, struct str path);

/* exchange.c */
extern const uint16_t http_progress_next[HTTP_PROGRESSES]; /* bits of what may follow */

static inline void http_exchange_move(struct http_exchange *exchange, enum http_progress progress)
{
    assert(http_progress_next[exchange->progress] & 1u << progress);
    exchange->progress = progress;
}

/* Without room in the memory budget the exchange is not charged: its request may be answered within this turn, but must not
 * stay. */
struct http_exchange *http_exchange_acquire(struct http_connection *connection);
/* May it stay although its head is not complete? Charges it, if it is not yet. */
bool http_exchange_admit(struct http_exchange *exchange);
size_t http_exchange_bytes(const struct http_exchange *exchange); /* that it takes, unless it is slim */
void http_exchange_release(struct http_exchange *exchange);
void http_exchange_destroy(struct http_exchange *exchange);
void http_exchange_next(struct http_exchange *exchange); /* forgets the request, keeps the unparsed bytes */
/* Frees what only its request needed, while a stream without end waits. */
void http_exchange_slim(struct http_exchange *exchange);
void http_exchange_fill_request(struct http_exchange *exchange); /* out of its head */
struct str http_exchange_field(const struct http_exchange *exchange, enum http_field field); /* the first */
/* STR_NONE where it came more than once. */
struct str http_exchange_field_once(const struct http_exchange *exchange, enum http_field field);
void http_exchange_unpark(struct http_exchange *exchange);
/* The request does not end within this turn: it waits, streams, runs on a worker, or its body is still to come. Until it ends it
 * holds its connection, of which one tenant's requests hold at most limits.held_max. False: they do, answer 503. */
bool http_exchange_hold(struct http_exchange *exchange);
void http_work_set_deadline(struct http_exchange *exchange); /* the row's, from now, unless it runs already */
void http_work_submit(struct http_exchange *exchange);

/* block.c */
/* Before every read: moves or grows the read block, and returns the room in it; 0 = there is no memory for more. */
size_t http_exchange_make_room(struct http_exchange *exchange, bool head_is_fixed);
void http_exchange_make_body_room(struct http_exchange *exchange); /* after a head that is complete */

/* connection.c: life, input and output */
/* Takes over `fd`. Past the limit of connections it is answered 503, or closed. `peer` may be NULL. */
void http_connection_open(struct http_home *home, int fd, const struct sockaddr_in6 *peer);
void http_connection_move(struct http_connection *connection, enum http_state state);
void http_connection_drop(struct http_connection *connection); /* closes now, and drops its request */
/* The same by a reset: what was sent must not look complete, and the system drops what the client does not read. */
void http_connection_cut(struct http_connection *connection);
void http_connection_unref(struct http_connection *connection);
/* No further request: the output is sent, then the connection ends. Its request is dropped. */
void http_connection_finish(struct http_connection *connection, bool may_be_unread);

/* What an event leads to: a read, if the socket is readable, and a turn. */
void http_connection_serve(struct http_connection *connection, bool is_readable,
                           const struct http_turn *turn);

/* socket.c: as recv() and send(). ENOBUFS: there is no memory to receive more. */
ssize_t http_socket_receive(struct http_connection *connection, char *bytes, size_t room);
ssize_t http_socket_send(struct http_connection *connection, const char *bytes, size_t len);
uint64_t http_socket_taken(
    const struct http_connection *connection); /* bytes that its client's system has acknowledged */

/* turns.c */
void http_turns_init(struct http_home *home);
void http_turns_deinit(struct http_home *home);
void http_turns_join(struct http_connection *connection);  /* a new one */
void http_turns_group(struct http_exchange *exchange);     /* by the tenant of its request */
void http_turns_leave(struct http_connection *connection); /* it waits no longer */
void http_turns_again(
    struct http_connection *connection); /* at the end of this tick, also from inside a turn */
/* Its turn is now, or comes when its group has one. */
void http_turns_take(struct http_connection *connection, bool is_readable);
bool http_turn_is_over(const struct http_turn *turn, struct http_home *home); /* reads the clock */
void http_connection_resume(
    struct http_connection *connection); /* a turn at the end of this tick, unless it has one */
/* A step of its handshake comes when its group has one. */
void http_turns_take_handshake(struct http_connection *connection);

/* dispatch.c: a request's way; true when there may be more to do with what is there */
bool http_dispatch_step(struct http_connection *connection);
void http_dispatch_end_key(struct http_exchange *exchange); /* ends the idempotency step's hold, if any */

/* response.c */
unsigned http_status_slot(int status); /* a small number for each status; unknown ones share the last */
/* Answers without a request (408, 503, a worker that is too late), then closes. Only closes where the request has its answer: DISCARD. */
void http_connection_fail(struct http_connection *connection, enum status status);
void http_connection_refuse(struct http_connection *connection, const struct error *error); /* the same */
/* After its head was written. */
void http_answer_finish(struct http_exchange *exchange, int status, enum http_progress progress);
/* Puts status line, fields and the empty line, deciding whether the connection stays open. length -1 = stream. */
void http_answer_put_head(struct http_exchange *exchange, const struct http_response *response,
                          int64_t length);
bool http_answer_has_body(const struct http_exchange *exchange, int status);
/* On a worker: keeps the answer, whose body is in the arena or a stream, until the loop sends it. */
void http_answer_record(struct http_exchange *exchange, const struct http_response *response,
                        struct str body);

/* stream.c */
bool http_stream_pump(struct http_connection *connection); /* false: waits for the socket or producer */
void http_stream_release(struct http_exchange *exchange);
/* After a slice was compressed: is its turn over? Then it has the next one at the end of the tick. */
bool http_stream_rests(struct http_connection *connection, const struct http_turn *turn);
void http_stream_end_early(struct http_connection *connection); /* one without end, when the server stops */

/* encoding.c. Pure. Accept-Encoding (RFC 9110, 12.5.3), all its lines together: is gzip wanted, rather than bytes as they are? Not
 * where a line is invalid. */
bool http_encoding_wants_gzip(const struct http_header *headers, size_t header_count);

/* gzip.c */
/* A stream of the exchange, which http_budget_hold_waiting() holds: *packed gives the bytes of `producer`, which it takes over, as
 * gzip. False: they are to be sent as they are. Without a body (HEAD) only *packed's length is of use. */
bool http_gzip_begin(struct http_exchange *exchange, bool has_body, const struct http_producer *producer,
                     struct http_producer *packed);

/* tally.c */
void http_tally_count(struct http_exchange *exchange, int status);
void http_tally_count_unmatched(struct http_home *home, int status);
void http_tally_flush(struct http_home *home);
void http_tally_register(struct http_server *server);

/* observe.c. Few requests are observed: this is kept out of the functions that all of them run through. */
#define HTTP_COLD __attribute__((cold, noinline))
HTTP_COLD void http_observe_read(struct http_exchange *exchange); /* the request's ids */
bool http_observe_is_on(void); /* spans are recorded, or the access log is written */
HTTP_COLD void http_observe_begin(struct http_exchange *exchange);
HTTP_COLD void http_observe_end(struct http_exchange *exchange, int status); /* 0 = the client has gone */
HTTP_COLD void http_observe_enter(
    const struct http_exchange *exchange); /* log lines have its ids, until log_leave() */
/* The request's id, Vary, and those of CORS, into the head that was just put. */
HTTP_COLD void http_observe_put_lines(const struct http_exchange *exchange, int status, struct buf *out);
/* The line of a 500. A request without an id gets one, in the line and in the answer's headers. */
HTTP_COLD void http_observe_failure(const struct http_request *request, const struct error *error,
                                    struct buf *headers);

/* cors.c, of a server that has it */
void http_cors_put_lines(const struct http_exchange *exchange, struct buf *out);
/* Of OPTIONS, for a path that takes these methods; nothing where it is not a preflight, or not of an allowed origin. */
void http_cors_put_preflight(const struct http_exchange *exchange, struct str methods, struct buf *out);

/* request.c */
uint64_t http_peer_hash(const struct sockaddr_in6 *peer);

/* server.c */
bool http_home_close_idle(struct http_home *home); /* one of its connections, if there is one */
void http_home_close_listeners(struct http_home *home);
void http_home_drop_all(struct http_home *home); /* its connections */
void http_server_unref(struct http_server *server);

/* drain.c */
void http_drain_check(struct http_home *home); /* after a connection ended */
/* In the drain, after a turn that left the connection without a request. */
void http_drain_end_idle(struct http_connection *connection);
/* Of a server that leaves: does the connection end with this answer? Its request was read whole, or is not read any further. */
bool http_drain_ends_with(const struct http_exchange *exchange);

#endif
