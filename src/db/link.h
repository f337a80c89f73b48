/* A connection that lives on a loop: connects without blocking, reconnects with backoff for ever, and tells
 * its owner (the listener, the notifier) when it is ready, has input, or went down. Embedded in its owner;
 * loop's thread only. */
#ifndef FRESHET_DB_LINK_H
#define FRESHET_DB_LINK_H

#include "base/backoff.h"
#include "db/db_inside.h"

enum db_link_state { DB_LINK_WAITING, DB_LINK_LOOKING_UP, DB_LINK_CONNECTING, DB_LINK_READY };

struct db_link;
struct db_link_events {
    const char *role; /* for logs */
    void (*on_ready)(struct db_link *link);
    void (*on_input)(struct db_link *link); /* fetch results and notices */
    void (*on_down)(struct db_link *link);  /* it was ready and is not any more */
};

struct db_link {
    struct loop *loop;
    const struct db_link_events *events;
    struct db_parsed parsed;
    struct backoff backoff;
    enum db_link_state state;
    bool reported; /* this outage stands in the log already */
    PGconn *pg;
    struct loop_io io; /* of the lookup, then of the connection */
    bool watching;     /* is io registered? With a descriptor of its own: libpq closes its as it likes */
    struct loop_timer timer; /* the next attempt, or the limit of the current step */
    int lookup_fd;
    struct db_endpoints endpoints;
    unsigned endpoint_at;
};

enum status db_link_init(struct db_link *link, struct loop *loop, const struct db_target *target,
                         const struct db_link_events *events, struct error *error) MUST_CHECK;
void db_link_deinit(struct db_link *link); /* no event follows */
void db_link_start(struct db_link *link);
/* After a PQsend…(): its result `sent`. Writes what it can, and gives the server until connect_timeout_ms to
 * answer. */
void db_link_sent(struct db_link *link, int sent);
void db_link_answered(struct db_link *link); /* nothing more is expected */

#endif
