/* Live streams: one broadcaster for everything that many connections follow at once.
 *
 * What a topic says is a chain of immutable segments, each encoded once, whoever follows. A subscriber is a finger on
 * that chain: its whole state is a segment and an offset, its work a copy into the socket.
 *
 *     first ─→ segment ─→ segment ─→ segment ─→ newest          kept: bounded by positions and bytes
 *       ↑         ↑                     ↑
 *     finger    finger (behind)       finger (up to date)       behind `first`: cut off
 *
 * A segment leads from one position to another (a version, a sequence number). Who comes back says which position it has
 * and goes on from there, while that is kept.
 *
 * Who is further behind than that, where what was said is written down somewhere, is led up to the chain page by page: one
 * page is read when the one before it has been given, however slowly, until the next position is one that is kept. So nothing
 * need be kept for those who come, and of what has been quiet for a heartbeat nothing is.
 *
 * Threads: a topic has one owner, a loop, which alone publishes, admits and closes. Subscribers live on the loops of
 * their connections; one message per loop and segment wakes them. Nobody waits for a slow one: it is left behind, and
 * cut off when what it stands on is no longer kept. */
#ifndef FRESHET_STREAM_STREAM_H
#define FRESHET_STREAM_STREAM_H

#include "base/buf.h"
#include "base/metrics.h"
#include "http/http.h"
#include "loop/group.h"

/* ---- segments: immutable, counted; any thread ---- */
struct stream_segment;

struct stream_step {    /* what a segment says */
    int64_t from, to;   /* positions; equal where it only puts something right */
    bool can_be_joined; /* makes sense to somebody standing between `from` and `to` too */
    unsigned lines;     /* for the metrics */
    struct str bytes;   /* whole lines; copied */
};
struct stream_segment *stream_segment_create(const struct stream_step *step);
void stream_segment_ref(struct stream_segment *segment);
void stream_segment_unref(struct stream_segment *segment); /* NULL is fine */

/* ---- topics ---- */
struct stream_topic;
struct stream_subscriber;

struct stream_limits {
    int64_t positions_max; /* kept behind the newest */
    size_t bytes_max;      /* of them; the newest segment is kept whatever its size */
    int64_t heartbeat_ms;  /* after so long without a segment */
};

struct stream_config {
    struct loop_group *loops;
    struct loop *owner;
    struct stream_limits limits;
    /* Lines that say where a subscriber stands: at its beginning when there is nothing to catch up with, and when it
     * has been quiet. On any loop. */
    void (*put_greeting)(struct buf *out, int64_t position);
    void (*put_heartbeat)(struct buf *out, int64_t position);
    bool greets_all; /* the greeting is everybody's, once there is nothing more to catch up with */
    /* The last line of who is cut off: all up to `position` was given. NULL = the connection is cut without a word. */
    void (*put_goodbye)(struct buf *out, int64_t position);
    /* On the owner, for those admitted as is_paged: what follows `after`? Answered on the owner too, once, by
     * stream_page_give() or stream_page_refuse(), also when the process is stopping. */
    void (*read_page)(void *context, struct stream_subscriber *subscriber, int64_t after);
    /* On the request's loop: answer it by stream_send(). `position` is the newest one. */
    void (*on_admitted)(struct http_request *request, struct stream_subscriber *subscriber, int64_t position);
    void (*on_idle)(void *context); /* on the owner: nobody follows any more; may close the topic */
    void *context;                  /* of both, until the topic is closed */
    struct metric_series *subscribers, *lines, *cuts; /* a gauge and two counters */
};

/* On the owner, all of them. */
struct stream_topic *stream_topic_create(const struct stream_config *config, int64_t position);
void stream_topic_set_limits(struct stream_topic *topic, const struct stream_limits *limits);
int64_t stream_topic_position(const struct stream_topic *topic); /* the newest */
/* Takes over the caller's reference. It must lead on from the newest position. */
void stream_topic_publish(struct stream_topic *topic, struct stream_segment *segment);
bool stream_topic_reaches(const struct stream_topic *topic,
                          int64_t after);                    /* is everything behind it kept? */
size_t stream_topic_count(const struct stream_topic *topic); /* of subscribers */
/* Subscribers get what was published, then their streams end. The topic is no longer the caller's. */
void stream_topic_close(struct stream_topic *topic);

/* Somebody wants to follow: a request parked as `ref`, on whatever loop. */
struct stream_entry {
    struct loop_park_ref ref;
    int64_t after; /* the position it has, or that `opening` brings it to: must be reached */
    /* What it is given first, from `opening_offset` on; NULL = nothing. Referenced anew. */
    struct stream_segment *opening;
    size_t opening_offset;
    bool
        is_paged; /* `after` may be anything: it is led on from there, and waits where nothing was said yet */
};
void stream_topic_admit(struct stream_topic *topic, const struct stream_entry *entry);

/* A page leads on from where its reader stood; it takes over the caller's reference. NULL = nothing is there. */
void stream_page_give(struct stream_subscriber *subscriber, struct stream_segment *page);
void stream_page_refuse(struct stream_subscriber *subscriber); /* it could not be read: the stream is cut */

/* ---- subscribers ---- */
/* On the request's loop, in on_admitted, once. No data is begun past `expires_at_s` (unix): the stream ends. */
void stream_send(struct stream_subscriber *subscriber, struct http_request *request,
                 const struct http_response *response, int64_t expires_at_s);

#endif
