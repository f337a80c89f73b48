/* One connection to a Redis server, on a loop: a non-blocking socket, TLS and AUTH where configured, and hiredis's reader.
 *
 * Commands are buffered and sent together at the end of the tick; replies arrive one by one, in order, in on_reply. When the
 * server or an error ends the connection, on_closed is called once with the reason; redis_link_close() calls nothing. All of
 * it on the loop's thread. Resolving a host's name blocks the thread; addresses cost nothing. */
#ifndef FRESHET_BUS_REDIS_LINK_H
#define FRESHET_BUS_REDIS_LINK_H

#include "bus/redis/reply.h"
#include "loop/loop.h"

struct ssl_ctx_st;
struct ssl_st;

/* The same for all links of a driver. */
struct redis_access {
    struct ssl_ctx_st *tls; /* NULL = without */
    char *username, *password;
    size_t reply_bytes_max;
};
struct bus_security;
enum status redis_access_init(struct redis_access *access, const struct bus_security *security,
                              size_t reply_bytes_max, struct error *error) MUST_CHECK;
void redis_access_deinit(struct redis_access *access);

enum redis_link_state {
    REDIS_LINK_CLOSED,
    REDIS_LINK_CONNECTING,
    REDIS_LINK_HANDSHAKE,      /* of TLS */
    REDIS_LINK_AUTHENTICATING, /* as OPEN, and the next reply is AUTH's */
    REDIS_LINK_OPEN,
};

struct redis_link {
    struct loop_io io; /* first: the two share their address */
    struct loop_tick tick;
    struct loop *loop;
    const struct redis_access *access;
    enum redis_link_state state;
    bool was_open; /* since the last redis_link_open(): commands may have been sent */
    struct ssl_st *ssl;
    unsigned address_turn; /* which of a name's addresses is next */
    struct buf out;
    struct redis_parser parser;
    struct arena auth_arena;
    struct arena *arena;                      /* the owner's, for the next reply; NULL: none is expected */
    void (*on_open)(struct redis_link *link); /* optional; buffered commands are sent from here on */
    void (*on_reply)(struct redis_link *link, const struct redis_reply *reply);
    void (*on_closed)(struct redis_link *link, const struct error *error);
};

void redis_link_init(struct redis_link *link, struct loop *loop, const struct redis_access *access);
void redis_link_deinit(struct redis_link *link);
enum status redis_link_open(struct redis_link *link, const struct redis_address *address,
                            struct error *error) MUST_CHECK;
void redis_link_send(struct redis_link *link, struct str commands); /* not to a closed one */
void redis_link_close(struct redis_link *link);

static inline bool redis_link_is_open(const struct redis_link *link)
{
    return link->state >= REDIS_LINK_AUTHENTICATING;
}

#endif
