/* What the files of this folder share: the parsed target, the connection, and the waits that respect a
 * deadline. Nothing outside src/db includes it. */
#ifndef FRESHET_DB_DB_INSIDE_H
#define FRESHET_DB_DB_INSIDE_H

#include <libpq-fe.h>
#include <netinet/in.h>

#include "base/metrics.h"
#include "db/db.h"

/* ---- target: a db_target understood once, owning its texts ---- */
#define DB_HOSTS_MAX 8
#define DB_KEYWORDS_MAX 48

struct db_host {
    const char *name; /* a host name, a numeric address, or a socket directory ("/…", "@…") */
    const char *port;
};

struct db_parsed {
    struct arena arena;
    const char *name, *address, *schema; /* schema: search_path as SQL text, NULL = the server's default */
    const char *password_file;           /* NULL = without */
    struct db_host hosts[DB_HOSTS_MAX];
    unsigned host_count;
    const char *keywords[DB_KEYWORDS_MAX],
        *values[DB_KEYWORDS_MAX]; /* libpq's, without host, hostaddr and port */
    unsigned keyword_count;
    unsigned connections_max;
    bool fixed_plans;
    int64_t connect_timeout_ms, statement_timeout_ms, idle_timeout_ms, backoff_min_ms, backoff_max_ms;
};

enum status db_parsed_init(struct db_parsed *parsed, const struct db_target *target,
                           struct error *error) MUST_CHECK;
void db_parsed_deinit(struct db_parsed *parsed);
const char *db_keyword_get(const struct db_parsed *parsed, const char *keyword); /* libpq's; NULL: not set */

/* ---- lookup: host names to addresses without blocking the caller ----
 * getaddrinfo() knows no deadline, so it runs on a thread of its own and the answer is a datagram on `fd`. */
#define DB_ENDPOINTS_MAX 16
struct db_endpoint {
    unsigned host;                       /* row of parsed->hosts */
    char address[INET6_ADDRSTRLEN + 16]; /* numeric, perhaps with a zone; empty for a socket directory */
};
struct db_endpoints {
    struct db_endpoint at[DB_ENDPOINTS_MAX];
    unsigned count;
    char failure[128]; /* why a name has no address; empty when all have */
};
/* Fills *endpoints and sets *fd = -1 when every host is numeric or a directory; otherwise *fd becomes
 * readable once db_lookup_finish() can be called, which closes it. Closing it earlier gives the lookup up. */
enum status db_lookup_start(const struct db_parsed *parsed, int *fd, struct db_endpoints *endpoints,
                            struct error *error) MUST_CHECK;
enum status db_lookup_finish(int fd, struct db_endpoints *endpoints, struct error *error) MUST_CHECK;

/* ---- connecting: the first steps, which are the same on a worker and on a loop ---- */
/* NULL: the password's file cannot be read, or memory is out. Else PQconnectPoll() is next. */
PGconn *db_connect_start(const struct db_parsed *parsed, const struct db_endpoint *endpoint,
                         struct error *error);
/* One line out of libpq's message for a connection that failed. */
enum status db_connect_failed(const PGconn *pg, struct error *error);

/* ---- connection ---- */
#define DB_PREPARED_MAX \
    512 /* keys and names per connection; past it all are dropped, which real use does not reach */

/* The statements prepared on one connection: a hash table with open addressing. A key is a statement's address, or its id, and
 * its parameters' types; a name is a hash of its text and types, so that it means the same in every process. */
struct db_prepared_slot {
    uint64_t key, name; /* key 0 = free; a name is a key too */
};
struct db_prepared {
    struct db_prepared_slot slots[2 * DB_PREPARED_MAX];
    unsigned count;
    bool stale; /* the server's and our idea differ: drop all before the next use */
};
void db_prepared_add(struct db_prepared *prepared, uint64_t key, uint64_t name);
void db_prepared_remove(struct db_prepared *prepared, uint64_t name); /* and all keys of it */
void db_prepared_clear(struct db_prepared *prepared);

/* A statement and its parameters as libpq wants them. Text is sent from where it stands (binary text is the same bytes, with a
 * length); the rest is copied to `scratch`, since libpq needs a NUL after what it takes as text. */
#define DB_PREPARED_NAME_BYTES 20
struct db_bound {
    uint64_t key; /* in db_prepared */
    unsigned count;
    size_t bytes; /* of all values */
    enum db_type types[DB_PARAMS_MAX];
    const char *values[DB_PARAMS_MAX];
    int lengths[DB_PARAMS_MAX], formats[DB_PARAMS_MAX];
    struct buf scratch;
};
enum status db_bound_set(struct db_bound *bound, const struct db_statement *statement,
                         const struct db_param *params, struct error *error) MUST_CHECK;
/* Is it prepared? `name` is set either way, and *hash, for db_prepared_add(). */
bool db_bound_is_prepared(const struct db_bound *bound, struct db_prepared *prepared,
                          const struct db_statement *statement, uint64_t *hash,
                          char name[DB_PREPARED_NAME_BYTES]);
void db_type_oids(const enum db_type *types, unsigned count, Oid oids[DB_PARAMS_MAX]);
void db_statement_seal(struct db_statement *statement); /* sets the id, once text and types stand */

/* One statement waiting in a pipeline: what was sent before it, and so has a result of its own. */
struct db_queued {
    bool drops, prepares;
    bool is_refused; /* its parameters could not be sent: stands for it, and fails */
    bool is_commit;
    uint64_t name; /* of what it prepares */
};

struct db_use { /* what a slot of a pool is used for */
    struct turns_share *share;
    bool is_long; /* db_acquire_long() */
};

struct db_conn {
    PGconn *pg;           /* NULL: lost or given up; every call then answers DB_DOWN */
    struct db_pool *pool; /* that lent it last */
    struct db_conn *next; /* on its shelf */
    int64_t opened_ns, lent_ns, idle_since_ns;
    int64_t uncrashed_ns; /* of the server, as known when it was lent: db_conn_opened_ns() */
    struct db_prepared prepared;
    struct db_bound bound;
    struct db_queued *queue;
    size_t queued, queue_capacity;
    size_t queue_first; /* those before it were left by an earlier begin: db_pipeline_leave() */
    struct db_result **left_results;
    size_t left_count;
    bool in_pipeline, pipeline_left;
    size_t asked; /* the place in the queue that db_pipeline_ask() is about, from 1; 0 = none */
    bool is_true;
    struct error pipeline_error; /* the first failure before the end */
    bool doomed;                 /* the server ended the session while nothing was running */
    bool answered;               /* the server has, since the pool lent it */
    size_t pipeline_bytes;       /* of the statements since the pipeline began */
    size_t most_bytes; /* that libpq had to buffer at once: its buffers grow to that and never shrink */
    struct db_use use; /* what the pool lent it for */
    uint64_t outages;  /* the pool's count when it was lent */
    char sqlstate[6];
};

enum status db_conn_open(struct db_pool *pool, const struct db_parsed *parsed, int64_t deadline_ns,
                         struct db_conn **conn, struct error *error) MUST_CHECK;
void db_conn_destroy(struct db_conn *conn);
/* Closes the socket now, and asks the server to cancel what runs there. The struct stays for its user. */
void db_conn_abandon(struct db_conn *conn);
bool db_conn_is_alive(struct db_conn *conn);                 /* no round trip: has the peer hung up? */
bool db_conn_is_clean(const struct db_conn *conn);           /* idle, outside a transaction and a pipeline */
void db_conn_note_bytes(struct db_conn *conn, size_t bytes); /* a statement or a result had so many */
bool db_conn_is_bulky(const struct db_conn *conn); /* its buffers are too large for an idle connection */
enum status db_conn_check(struct db_conn *conn,
                          struct error *error) MUST_CHECK; /* usable for a new statement? */

/* Waits end at the deadline with TIMEOUT or at a lost connection with DB_DOWN; either closes the
 * connection. */
enum status db_conn_flush(struct db_conn *conn, int64_t deadline_ns, struct error *error) MUST_CHECK;
/* The next result, NULL when the statement has no more. */
enum status db_conn_result(struct db_conn *conn, int64_t deadline_ns, PGresult **result,
                           struct error *error) MUST_CHECK;
/* Drops what is left of the statement that is running. */
enum status db_conn_drain(struct db_conn *conn, int64_t deadline_ns, struct error *error) MUST_CHECK;
/* Sets *error and the connection's SQLSTATE from a failed result. */
enum status db_conn_failure(struct db_conn *conn, const PGresult *result, struct error *error);
/* After a call of libpq's that failed, such as a PQsend…() that returned 0: closes the connection. */
enum status db_conn_lost(struct db_conn *conn, struct error *error);
bool db_result_is_failure(const PGresult *result);
/* Did the server reject the prepared statement itself (dropped by another statement, or its row type changed)? */
bool db_result_is_stale(const PGresult *result);

/* Simple query protocol: no parameters, several statements allowed; the last one's command tag decides
 * nothing. */
enum status db_conn_command(struct db_conn *conn, const char *sql, int64_t deadline_ns,
                            struct error *error) MUST_CHECK;
bool db_thread_start(void *(*run)(void *arg), void *arg); /* detached; signals are for others */

/* ---- server.c: what pools, listeners and notifiers of one server share; NULL = nothing is shared ---- */
struct db_shelf; /* idle connections whose sessions have the same settings */
struct db_shelf *db_shelf_ref(struct db_server *server, const struct db_parsed *parsed);
void db_shelf_unref(struct db_shelf *shelf);           /* the last one closes the idle connections */
struct db_conn *db_shelf_take(struct db_shelf *shelf); /* the last one put there; NULL: none */
/* Without one there: the right to open one (NULL), to be followed by db_shelf_opened(), unless another user gives one back
 * meanwhile. May wait until then. */
struct db_conn *db_shelf_open(struct db_shelf *shelf, int64_t deadline_ns);
/* is_open: db_shelf_closed() follows when it is closed. */
void db_shelf_opened(struct db_shelf *shelf, bool is_open);
void db_shelf_closed(struct db_shelf *shelf);
void db_shelf_lend(struct db_shelf *shelf, struct db_conn *conn); /* the caller has it from now on */
void db_shelf_put(struct db_shelf *shelf, struct db_conn *conn);
void db_shelf_close_unused(struct db_shelf *shelf); /* may take a moment: outside all locks */

/* ---- pool.c ---- */
struct metric_series *db_metric_connections(const char *database,
                                            const char *state); /* after a pool was created */
enum status db_pool_count_error(const struct db_pool *pool, enum status status); /* returns it */
#define DB_INTERRUPT_LOOK_MS 50 /* how often a wait looks whether the process is stopping */
bool db_pool_is_interrupted(const struct db_pool *pool);
/* The events of poll() at the descriptor; 0: the deadline passed, or the process is stopping. */
short db_wait(const struct db_pool *pool, int fd, short events, int64_t deadline_ns);

#endif
