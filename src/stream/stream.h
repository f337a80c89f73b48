/* Live streams: one broadcaster for everything that many connections follow at once.
 *
 * A topic is a chain of immutable segments, each encoded once for all subscribers. A subscriber is a place on that chain: its
 * whole state is a segment and an offset, its work a copy into the socket.
 *
 *     first ─→ segment ─→ segment ─→ segment ─→ newest          kept: bounded by positions and bytes
 *       ↑         ↑                     ↑
 *     subscriber  subscriber (late)   subscriber (up to date)   before `first`: cut off
 *
 * A segment leads from one position to another (a version, a sequence number). A client that reconnects sends its position and
 * continues from there while that is kept.
 *
 * Where the topic has pages (a table, for example), a client with an older position gets them first: a page is read when the
 * one before it has been sent, until the next position is kept. So nothing is kept for clients to come, and a topic that was
 * quiet for a heartbeat keeps nothing.
 *
 * Threads: a topic has one owner, a loop, which alone publishes, admits and closes. Subscribers live on the loops of
 * their connections; one message per loop and segment wakes them. A slow subscriber delays
 * no other: it is cut off when its segment is no longer kept. */
#ifndef FRESHET_STREAM_STREAM_H
#define FRESHET_STREAM_STREAM_H

#include "base/buf.h"
#include "base/metrics.h"
#include "http/http.h"
#include "loop/group.h"

/* ---- formats: a stream is JSON objects, each a line or a server-sent event. format.c; any thread ---- */
enum stream_format { STREAM_NDJSON, STREAM_SSE, STREAM_FORMATS };
/* That Accept prefers; else NDJSON. */
enum stream_format stream_format_of(const struct http_request *request);
const struct str *stream_format_name(enum stream_format format); /* for labels of metrics; lives for ever */
struct str stream_format_type(enum stream_format format);        /* Content-Type */
/* Neither a browser nor a proxy keeps lines. */
#define STREAM_HEADERS "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
/* One object, without line breaks. `position`: a client that has it may continue after this position, and a browser sends it in
 * Last-Event-ID when it reconnects; -1 = not from here. */
void stream_line_put(struct buf *out, enum stream_format format, int64_t position, struct str object);
void stream_line_begin(struct buf *out, enum stream_format format, int64_t position); /* before the object */
void stream_line_end(struct buf *out, enum stream_format format);
/* The position that the client has: `after`, or Last-Event-ID, which wins, since a browser that reconnects repeats its URL. *after stays
 * as it is where there is neither. BAD_REQUEST names the field; `noun`: what a position is called. */
enum status stream_after_read(const struct http_request *request, const char *noun, int64_t *after,
                              struct error *error) MUST_CHECK;

/* ---- segments: immutable, counted; any thread ---- */
struct stream_segment;

struct stream_step {    /* what a segment covers */
    int64_t from, to;   /* positions; equal where it only puts something right */
    bool can_be_joined; /* is valid for a subscriber between `from` and `to` too */
    unsigned lines;     /* for the metrics */
    struct str bytes;   /* whole lines, in the topic's format; copied */
};
struct stream_segment *stream_segment_create(const struct stream_step *step);
void stream_segment_ref(struct stream_segment *segment);
void stream_segment_unref(struct stream_segment *segment); /* NULL is fine */

/* ---- topics ---- */
struct stream_topic;
struct stream_subscriber;

struct stream_limits {
    int64_t positions_max; /* kept before the newest */
    size_t bytes_max;      /* of them; the newest segment is kept whatever its size */
    int64_t heartbeat_ms;  /* after so long without a segment */
};

struct stream_config {
    struct loop_group *loops;
    struct loop *owner;
    struct stream_limits limits;
    enum stream_format format;
    /* Objects with a subscriber's position as %lld: at its beginning when there is nothing to catch up with; when it has been quiet;
     * when it is cut off, or the process stops, having everything up to that position (NULL = no such line). */
    const char *greeting, *heartbeat, *cut_off, *stopping;
    bool greets_all; /* every subscriber gets the greeting, once it has caught up */
    /* On the owner, for those admitted as is_paged: what follows `after`? Answered on the owner too, once, by
     * stream_page_give(), also when the process is stopping. */
    void (*read_page)(void *context, struct stream_subscriber *subscriber, int64_t after);
    /* On the request's loop: answer it by stream_send(). `position` is the newest one. */
    void (*on_admitted)(struct http_request *request, struct stream_subscriber *subscriber, int64_t position);
    void (*on_idle)(void *context); /* on the owner: the last subscriber left; may close the topic */
    void *context;                  /* of both, until the topic is closed */
    struct metric_series *subscribers, *lines, *cuts; /* a gauge and two counters */
};

/* On the owner, all of them. */
struct stream_topic *stream_topic_create(const struct stream_config *config, int64_t position);
void stream_topic_set_limits(struct stream_topic *topic, const struct stream_limits *limits);
int64_t stream_topic_position(const struct stream_topic *topic); /* the newest */
/* Takes over the caller's reference. It must lead on from the newest position. */
void stream_topic_publish(struct stream_topic *topic, struct stream_segment *segment);
bool stream_topic_reaches(const struct stream_topic *topic, int64_t after); /* is everything after it kept? */
size_t stream_topic_count(const struct stream_topic *topic);                /* of subscribers */
/* Subscribers get what was published, then their streams end. The topic is no longer the caller's. */
void stream_topic_close(struct stream_topic *topic);

/* What a process reports of one stream in its own row (kernel/pods.c): the sum of its topics, one of each format. */
struct stream_report {
    struct str kind, tenant, name;
    size_t readers, bytes;
    int64_t position;
};
void stream_report_add(struct stream_report *report, const struct stream_topic *topic); /* NULL: nothing */
void stream_report_put(const struct stream_report *report, struct buf *out); /* as an object of an array */

/* A new subscriber: a request parked as `ref`, on any loop. */
struct stream_entry {
    struct loop_park_ref ref;
    int64_t after; /* the position it has, or that `opening` brings it to: must be reached */
    /* Sent first, from `opening_offset` on; NULL = nothing. The topic takes a reference of its own. */
    struct stream_segment *opening;
    size_t opening_offset;
    bool is_paged; /* `after` may be any position: pages follow from there; past the end, it waits */
};
void stream_topic_admit(struct stream_topic *topic, const struct stream_entry *entry);

/* A page leads on from where its reader stood; it takes over the caller's reference. NULL = there is none, or it could not be
 * read: the stream is cut, as it is when there is no memory for the page. */
void stream_page_give(struct stream_subscriber *subscriber, struct stream_segment *page);

/* ---- subscribers ---- */
/* On the request's loop, in on_admitted, once. No data is begun past `expires_at_s` (unix): the stream ends. */
void stream_send(struct stream_subscriber *subscriber, struct http_request *request,
                 const struct http_response *response, int64_t expires_at_s);

#endif
