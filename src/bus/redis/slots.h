/* Where keys are in a Redis Cluster: slots, the map of them, and the two ways a node says that we are mistaken. Pure: it
 * knows no connections. */
#ifndef FRESHET_BUS_REDIS_SLOTS_H
#define FRESHET_BUS_REDIS_SLOTS_H

#include "bus/redis/reply.h"

#define REDIS_SLOTS 16384
#define REDIS_MASTERS_MAX 1024

/* CRC16 of the key, or of what stands between its first { and the next } if that is anything. */
unsigned redis_slot_of(struct str key);

struct redis_address {
    char host[256];
    uint16_t port;
};
/* HOST:PORT; the last colon counts, so that an IPv6 address needs no brackets (and may have them). */
bool redis_address_parse(struct str text, struct redis_address *address);
bool redis_address_eq(const struct redis_address *a, const struct redis_address *b);

struct redis_topology {
    struct redis_address *masters;
    size_t count;
    uint16_t owner[REDIS_SLOTS]; /* 1 + index of its master; 0: nobody's */
    size_t covered;
};
/* Of CLUSTER SLOTS. A node that names itself by nothing is at `asked`'s host. IO: it makes no sense. */
enum status redis_topology_parse(const struct redis_reply *reply, const struct redis_address *asked,
                                 struct redis_topology *topology, struct error *error) MUST_CHECK;
void redis_topology_deinit(struct redis_topology *topology);

struct redis_redirect {
    bool ask; /* this once; otherwise the slot has moved for good */
    unsigned slot;
    struct redis_address to; /* host "": as the one who says it */
};
bool redis_redirect_parse(struct str error, struct redis_redirect *redirect); /* false: it is none */

#endif
