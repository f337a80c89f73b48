/* The map of slots: who is asked for it and when, and what its answer changes. For cluster.c. */
#ifndef FRESHET_BUS_REDIS_MAP_H
#define FRESHET_BUS_REDIS_MAP_H

#include "bus/redis/cluster.h"

void redis_map_init(struct redis_cluster *cluster);
void redis_map_close(struct redis_cluster *cluster, const struct error *error);
/* Soon, if it is not being asked for: something is not where it was. */
void redis_map_want(struct redis_cluster *cluster);
/* There is no map yet: the request goes on when there is one, or fails when nobody has one. */
void redis_map_wait(struct redis_cluster *cluster, struct redis_request *request);
struct redis_node *redis_map_node(struct redis_cluster *cluster, const struct redis_address *address);
void redis_map_judge(struct redis_cluster *cluster); /* is it up? */

/* cluster.c */
void redis_node_init(struct redis_node *node, struct redis_cluster *cluster);

#endif
