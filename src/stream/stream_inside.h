/* The broadcaster's own layout: what the owner's half (topic.c) and the loops' half (subscriber.c) share. */
#ifndef FRESHET_STREAM_STREAM_INSIDE_H
#define FRESHET_STREAM_STREAM_INSIDE_H

#include <stdatomic.h>

#include "base/list.h"
#include "stream/stream.h"

/* Holds a reference to the next one, so that a subscriber at any segment reaches the end. */
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

/* Why the owner has a subscriber that is led on. */
enum stream_lead {
    STREAM_LEAD_NONE,
    STREAM_LEAD_READING, /* a page is being read */
    STREAM_LEAD_AHEAD,   /* its position is yet to come */
};

/* A place on the chain. It is sent to its loop as a message, and back to the owner when it is done, to be freed there. */
struct stream_subscriber {
    struct loop_message message;
    struct stream_topic *topic;          /* referenced */
    LIST_ENTRY(stream_subscriber) entry; /* of its loop's list */
    struct loop_park_ref ref;            /* of the parked request, then of the stream */
    struct stream_segment *opening;      /* given first; NULL = none, or over */
    struct stream_segment *at;           /* referenced; given up to `offset`; NULL = not on the chain */
    size_t offset;                       /* of the opening while there is one */
    int64_t position;                    /* the newest when it was admitted; then its own, off the chain */
    int64_t expires_at_s;
    uint32_t beats; /* heartbeats of its loop it has had, or did not need */
    bool greets;
    bool is_ending; /* nothing follows the opening */

    /* Led on page by page, if is_paged. The owner has it from the request for a page until it hands it back, the loop otherwise. */
    struct loop_message gone_message; /* the loop's, when it is released meanwhile */
    int64_t after;                    /* where it stands, its opening included */
    bool is_paged;                    /* from its beginning to its end */
    bool is_with_owner, is_released;  /* the loop's */
    bool is_refused;
    struct stream_segment *handed_opening, *handed_at; /* set by the owner, taken over with it; referenced */
    bool handed_refusal;
    enum stream_lead lead; /* the owner's, as all below */
    bool is_gone;
    LIST_ENTRY(stream_subscriber) ahead;
};

/* One loop's part of a topic: touched by that loop alone once the owner has made it, but for `members`. */
struct stream_local {
    struct stream_topic *topic;
    struct loop *loop;
    unsigned members; /* the owner's: how many were admitted there */
    LIST_HEAD(, stream_subscriber) subscribers;
    uint64_t cut_sequence; /* subscribers before it are cut off */
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
    struct stream_segment *first;  /* referenced: the oldest segment a subscriber may be at */
    struct stream_segment *newest; /* the chain's end; held by the chain */
    struct stream_segment **kept;  /* after `first`, in order; held by the chain */
    size_t kept_start, kept_end, kept_capacity, kept_bytes;
    uint64_t cut_sequence;   /* subscribers before it are cut off */
    uint64_t quiet_sequence; /* the newest when it was last quiet */
    struct loop_timer quiet;
    size_t subscriber_count;
    LIST_HEAD(, stream_subscriber) ahead; /* whose positions are yet to come */

    struct stream_local *locals[]; /* by loop index; NULL until one is admitted there */
};

static inline void stream_topic_ref(struct stream_topic *topic)
{
    atomic_fetch_add(&topic->refs, 1);
}
void stream_topic_unref(struct stream_topic *topic);

/* subscriber.c, on its loop */
void stream_local_update(struct stream_local *local, uint64_t cut_sequence, bool closes);
loop_message_fn stream_subscriber_arrive;
loop_message_fn stream_subscriber_resume; /* it is the loop's again */
/* topic.c, on the owner */
loop_message_fn stream_subscriber_left; /* it is gone */
loop_message_fn stream_subscriber_ask;  /* all it had was given */
loop_message_fn stream_subscriber_gone; /* released while it was the owner's */

#endif
