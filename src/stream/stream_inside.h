/* The broadcaster's own layout: what the owner's half (topic.c) and the loops' half (subscriber.c) share. */
#ifndef FRESHET_STREAM_STREAM_INSIDE_H
#define FRESHET_STREAM_STREAM_INSIDE_H

#include <stdatomic.h>

#include "stream/stream.h"

/* Holds a reference to the next one, so that a finger anywhere finds its way to the end. */
struct stream_segment {
    atomic_uint refs;
    unsigned lines;
    bool can_be_joined;
    uint64_t sequence; /* its place in the chain; set before it is linked */
    int64_t from, to;
    _Atomic(struct stream_segment *) next;
    size_t len;
    char bytes[];
};

/* A finger. It travels to its loop as a message, and back to the owner when it is done, to be freed there. */
struct stream_subscriber {
    struct loop_message message;
    struct stream_topic *topic; /* referenced */
    struct stream_subscriber *next, **link;
    struct loop_park_ref ref;       /* of the parked request, then of the stream */
    struct stream_segment *opening; /* given first; NULL = none, or over */
    struct stream_segment *at;      /* referenced; given up to `offset` */
    size_t offset;                  /* of the opening while there is one */
    int64_t position;               /* the newest when it was admitted */
    int64_t expires_at_s;
    uint32_t beats; /* heartbeats of its loop it has had, or did not need */
    bool greets;
};

/* One loop's part of a topic: touched by that loop alone. */
struct stream_local {
    struct stream_topic *topic;
    struct loop *loop;
    struct stream_subscriber *subscribers;
    uint64_t first_sequence; /* who stands before it is cut off */
    uint32_t beats;
    bool is_closed;
    struct loop_timer heartbeat;
    /* A pass over the subscribers, some in a tick, so that other connections have their turn in between. */
    struct stream_subscriber *wake_next;
    bool is_waking, wake_again;
    struct loop_message wake_message;
};

struct stream_topic {
    atomic_uint refs; /* its owner, each subscriber, each message on its way */
    struct stream_config config;
    atomic_llong heartbeat_ms;

    /* the owner's alone */
    struct stream_segment *first;  /* referenced: where who has caught up least may stand */
    struct stream_segment *newest; /* the chain's end; held by the chain */
    struct stream_segment **kept;  /* behind `first`, in order; held by the chain */
    size_t kept_start, kept_end, kept_capacity, kept_bytes;
    size_t subscriber_count;
    unsigned *members; /* per loop: how many were admitted there */

    struct stream_local locals[];
};

static inline void stream_topic_ref(struct stream_topic *topic)
{
    atomic_fetch_add(&topic->refs, 1);
}
void stream_topic_unref(struct stream_topic *topic);

/* subscriber.c, on its loop */
void stream_local_advance(struct stream_local *local, uint64_t first_sequence);
void stream_local_close(struct stream_local *local);
loop_message_fn stream_subscriber_arrive;
/* topic.c, on the owner: it is gone */
loop_message_fn stream_subscriber_left;

#endif
