/* Spans (C9): what this process did for a traced request or message, as OpenTelemetry describes it. A span is recorded where
 * exporting is on and its trace is sampled; elsewhere every function here does nothing, and the trace context is passed on as it
 * came.
 *
 *     struct span span;
 *     span_begin(&span, SPAN_CLIENT, "chat.agent", &request->trace);
 *     … pass span.trace on …
 *     span_put_str(&span, "chat.agent", agent->name);
 *     span_end(&span);
 *
 * A finished span is copied into a ring of its thread, of fixed size. One reader, the exporter, takes spans out of all rings. A full
 * ring drops the span and counts it: recording never waits and, once the thread has its ring, never allocates.
 *
 * Sampling is by the parent: the flag of a traceparent decides. Of requests and messages without one a share is sampled
 * (span_begin_root).
 *
 * Threads: begin, put and end on any, also on different ones for one span. span_open() before the others, span_take() on one thread
 * at a time. */
#ifndef FRESHET_BASE_SPAN_H
#define FRESHET_BASE_SPAN_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/trace.h"

enum { SPAN_ATTRIBUTES_MAX = 12, SPAN_TEXT_BYTES = 320, SPAN_ID_BYTES = 8 };

enum span_kind { /* with the numbers of OTLP */
                 SPAN_INTERNAL = 1,
                 SPAN_SERVER,
                 SPAN_CLIENT,
                 SPAN_PRODUCER,
                 SPAN_CONSUMER,
};

struct span_attribute {
    const char *name; /* a literal */
    bool is_text;
    uint16_t text_at, text_len; /* in the span's text */
    int64_t number;
};

struct span {
    struct trace trace; /* its own: to be passed on, as the parent of what follows */
    uint8_t parent_id[SPAN_ID_BYTES];
    bool is_recorded; /* the rest is undefined otherwise */
    bool is_failed;
    enum span_kind kind;
    const char *name, *detail; /* literals; "name" or "name detail" */
    int64_t start_us, end_us;  /* since 1970; end 0 = when span_end() is called */
    unsigned attribute_count, text_len;
    struct span_attribute attributes[SPAN_ATTRIBUTES_MAX];
    char text[SPAN_TEXT_BYTES];
};

extern atomic_bool span_recording;

static inline bool span_is_on(void)
{
    return atomic_load_explicit(&span_recording, memory_order_relaxed);
}

/* ---- recording ---- */
void span_begin(struct span *span, enum span_kind kind, const char *name, const struct trace *parent);
/* The same for what enters the system. Without a parent it may begin a trace. */
void span_begin_root(struct span *span, enum span_kind kind, const char *name, const struct trace *parent);
/* Only the ids, for a caller that has no room for a span yet: the trace becomes that of a new span, and its parent's id is stored.
 * False: not recorded, the trace stays as it is. */
bool span_enter(struct trace *trace, uint8_t parent_id[SPAN_ID_BYTES]);
bool span_enter_root(struct trace *trace, uint8_t parent_id[SPAN_ID_BYTES]);
/* The span of these ids, which began so long ago. */
void span_resume(struct span *span, enum span_kind kind, const char *name, const struct trace *trace,
                 const uint8_t parent_id[SPAN_ID_BYTES], int64_t elapsed_ns);
/* A span in the arena for a message or row: *span is NULL where it is not recorded. Returns the traceparent to pass on. */
struct str span_follow(struct span **span, enum span_kind kind, const char *name, struct str traceparent,
                       struct arena *arena);
struct str span_follow_root(struct span **span, enum span_kind kind, const char *name, struct str traceparent,
                            struct arena *arena);
/* Attributes past the limits are left out, long texts are cut; empty texts are left out. NULL and spans that are not recorded are
 * fine, here and below. */
void span_put_int(struct span *span, const char *name, int64_t number);
void span_put_str(struct span *span, const char *name, struct str text);
void span_fail(struct span *span, struct str type); /* error.type, a short word */
void span_end(struct span *span);                   /* once */

/* ---- life ---- */
struct span_settings {
    size_t ring_spans;                   /* of a thread */
    int64_t sample_share;                /* of roots, in hundred-thousandths */
    void (*on_half_full)(void *context); /* any thread, often: the reader should come soon */
    void *context;
};
void span_metrics_register(void); /* also where nothing is recorded */
void span_open(const struct span_settings *settings);
void span_set_share(int64_t sample_share); /* any thread */
void span_close(void); /* nothing is recorded any more; the rings stay until span_free() */
void span_free(void);  /* when no other thread is left */

/* ---- the reader ---- */
/* Calls on_span for at most `max` spans, which are then gone; returns how many. */
size_t span_take(size_t max, void (*on_span)(void *context, const struct span *span), void *context);

enum span_result { SPAN_EXPORTED, SPAN_DROPPED, SPAN_FAILED, SPAN_REJECTED, SPAN_RESULTS };
void span_count(enum span_result result, uint64_t spans); /* freshet_trace_spans_total */

#endif
