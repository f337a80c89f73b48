/* One connection to a Redis server, on a loop: a socket that never blocks, TLS where asked for, AUTH, and hiredis's reader.
 *
 * Commands are appended and go out together at the end of the tick; replies come one by one, in order, to on_reply. When it
 * ends by itself on_closed says why, once; after redis_link_close() nothing is called. All of it on the loop's thread. A
 * host's name is resolved where it is opened, which blocks for as long as the resolver takes: addresses cost nothing. */
#ifndef FRESHET_BUS_REDIS_LINK_H
#define FRESHET_BUS_REDIS_LINK_H

#include "bus/redis/slots.h"
#include "loop/loop.h"

struct ssl_ctx_st;
struct ssl_st;

/* The same for all links of a driver. */
struct redis_access {
    struct ssl_ctx_st *tls; /* NULL = without */
    char *username, *password;
    size_t reply_bytes_max;
};
struct bus_redis_security;
enum status redis_access_init(struct redis_access *access, const struct bus_redis_security *security,
                              size_t reply_bytes_max, struct error *error) MUST_CHECK;
void redis_access_deinit(struct redis_access *access);

enum redis_link_state { REDIS_LINK_CLOSED, REDIS_LINK_CONNECTING, REDIS_LINK_SHAKING_HANDS, REDIS_LINK_OPEN };

struct redis_link {
    struct loop_io io; /* first: the two share their address */
    struct loop_tick tick;
    struct loop *loop;
    const struct redis_access *access;
    enum redis_link_state state;
    bool authenticating; /* the first reply is AUTH's */
    struct ssl_st *ssl;
    unsigned address_turn; /* which of a name's addresses is next */
    struct buf out;
    struct redis_parser parser;
    struct arena own_arena; /* of replies that are the link's own business */
    struct arena *arena;    /* the owner's: where the next reply goes; NULL: none is expected */
    void (*on_open)(struct redis_link *link); /* may be NULL */
    void (*on_reply)(struct redis_link *link, const struct redis_reply *reply);
    void (*on_closed)(struct redis_link *link, const struct error *error);
};

void redis_link_init(struct redis_link *link, struct loop *loop, const struct redis_access *access);
void redis_link_deinit(struct redis_link *link);
enum status redis_link_open(struct redis_link *link, const struct redis_address *address,
                            struct error *error) MUST_CHECK;
void redis_link_send(struct redis_link *link, struct str commands); /* not to a closed one */
void redis_link_close(struct redis_link *link);

#endif
