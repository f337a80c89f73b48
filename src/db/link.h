/* A connection that lives on a loop: connects without blocking, reconnects with backoff for ever, and reports to its owner (the
 * listeners' hub, the notifier) when it is ready, has input, or went down. The first member of its owner; loop's thread only.
 * Those of one server, one loop and one kind are one. */
#ifndef FRESHET_DB_LINK_H
#define FRESHET_DB_LINK_H

#include <pthread.h>

#include "base/backoff.h"
#include "base/list.h"
#include "db/db_inside.h"

enum db_link_state { DB_LINK_WAITING, DB_LINK_LOOKING_UP, DB_LINK_CONNECTING, DB_LINK_READY };

struct db_link;
struct db_link_kind {
    const char *role; /* for logs */
    size_t size;      /* of the owner */
    void (*on_ready)(struct db_link *link);
    void (*on_input)(struct db_link *link); /* fetch results and notices */
    void (*on_down)(struct db_link *link);  /* it was ready and is not any more */
};

struct db_link {
    struct loop *loop;
    const struct db_link_kind *kind;
    struct db_server *server;  /* NULL: it has one user */
    LIST_ENTRY(db_link) entry; /* of the server's */
    unsigned users;            /* under the server's lock */
    struct db_parsed parsed;
    struct backoff backoff;
    enum db_link_state state;
    bool reported; /* this outage stands in the log already */
    PGconn *pg;
    struct loop_io io; /* of the lookup, then of the connection */
    bool
        watching; /* is io registered? With a descriptor of its own, since libpq may close its own at any time */
    struct loop_timer timer; /* the next attempt, or the limit of the current step */
    int lookup_fd;
    struct db_endpoints endpoints;
    unsigned endpoint_at;
};

/* The owner's memory is zero but for the link when it is new. NULL when the target's URL cannot be understood. */
struct db_link *db_link_ref(struct loop *loop, const struct db_target *target,
                            const struct db_link_kind *kind);
bool db_link_unref(struct db_link *link); /* true: no user is left, no event follows, the owner frees it */
/* After a PQsend…(): its result `sent`. Writes what it can, and gives the server until connect_timeout_ms to
 * answer. */
void db_link_sent(struct db_link *link, int sent);
void db_link_answered(struct db_link *link); /* nothing more is expected */

/* What server.c and link.c know of a server. */
struct db_server {
    struct db_server *next; /* of its list */
    struct db_parsed parsed;
    pthread_mutex_t lock; /* for what follows */
    LIST_HEAD(, db_shelf) shelves;
    LIST_HEAD(, db_link) links;
};

#endif
