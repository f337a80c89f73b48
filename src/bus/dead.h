/* For the drivers of bus_dead.h. Nothing outside src/bus includes it. */
#ifndef FRESHET_BUS_DEAD_H
#define FRESHET_BUS_DEAD_H

#include "bus/bus_dead.h"

/* What a read has found so far. */
struct bus_dead_list {
    struct arena *arena;
    const struct bus_dead_query *query;
    struct bus_dead_letter *letters;
    size_t count, capacity, bytes;
};
/* Copies the message, whose payload has `bytes` in all. False: no more is wanted. */
bool bus_dead_list_add(struct bus_dead_list *list, const struct bus_message *message, size_t bytes);
/* Where a message is published: by its key; without one where it was before. */
unsigned bus_dead_partition(const struct bus_message *message, unsigned partitions);

struct bus_dead_driver {
    const char *engine;
    enum status (*look)(struct bus_dead *dead, const char *topic, const char *group, struct arena *arena,
                        struct bus_dead_range **ranges, size_t *count, int64_t deadline_ns,
                        struct error *error);
    enum status (*read)(struct bus_dead *dead, const struct bus_dead_query *query, struct bus_dead_list *list,
                        int64_t deadline_ns, struct error *error);
    enum status (*publish)(struct bus_dead *dead, struct bus_message *messages, size_t count,
                           int64_t deadline_ns, struct error *error);
    /* NULL: there is nothing to lock */
    enum status (*lock)(struct bus_dead *dead, struct str topic, int64_t deadline_ns, struct error *error);
    void (*wake)(struct bus_dead *dead, struct str topic, int64_t deadline_ns); /* NULL: the engine does */
    void (*close)(struct bus_dead *dead);
};

struct bus_dead {
    const struct bus_dead_driver *driver;
};

#endif
