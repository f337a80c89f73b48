/* A ring per thread: its thread writes at `head`, the reader reads at `tail`, and neither waits for the other. A thread gets its ring
 * with its first span; the ring of a thread that has ended goes to the next one that needs one, with the spans that are left in it. */
#include "base/span.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/metrics.h"

enum { RINGS_MAX = 256, FLAG_SAMPLED = 1, SHARE_ALL = 100000 };

struct ring {
    atomic_size_t head, tail; /* counted without end; the slot is the number modulo the size */
    bool is_used;             /* by a thread; under the lock */
    struct span *slots;
};

atomic_bool span_recording;
static struct span_settings settings;
static atomic_int_fast64_t share;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t key; /* its destructor returns the ring */
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static struct ring *rings[RINGS_MAX]; /* published by ring_count */
static atomic_uint ring_count;
static size_t next_ring; /* the reader's */
static _Thread_local struct ring *own_ring;

static struct metric_family spans_family = {
    .name = "freshet_trace_spans_total",
    .help =
        "Spans: exported, dropped (a thread's queue was full), failed (the collector did not take them), rejected (by the "
        "collector, one by one).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
static struct metric_series *results[SPAN_RESULTS];

/* ---- ids: not secret, so that none of them costs a system call ---- */

static uint64_t next_random(void)
{
    static _Thread_local uint64_t state;
    if (state == 0)
        state = random_u64() | 1;
    uint64_t mixed = state += UINT64_C(0x9E3779B97F4A7C15); /* splitmix64 */
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

static void put_id(uint8_t *id, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t random = next_random();
        random += random == 0; /* all zeroes would mean none */
        memcpy(id + at, &random, sizeof random);
    }
}

/* ---- recording ---- */

bool span_enter(struct trace *trace, uint8_t parent_id[SPAN_ID_BYTES])
{
    if (!span_is_on() || !(trace->flags & FLAG_SAMPLED) || trace_is_none(trace))
        return false;
    memcpy(parent_id, trace->span_id, SPAN_ID_BYTES);
    put_id(trace->span_id, SPAN_ID_BYTES);
    return true;
}

static void begin_recorded(struct span *span, enum span_kind kind, const char *name)
{
    span->kind = kind;
    span->name = name;
    span->detail = NULL;
    span->is_failed = false;
    span->attribute_count = span->text_len = 0;
    span->start_us = clock_unix_us();
    span->end_us = 0;
}

bool span_enter_root(struct trace *trace, uint8_t parent_id[SPAN_ID_BYTES])
{
    if (!trace_is_none(trace))
        return span_enter(trace, parent_id);
    if (!span_is_on() ||
        next_random() % SHARE_ALL >= (uint64_t)atomic_load_explicit(&share, memory_order_relaxed))
        return false;
    memset(parent_id, 0, SPAN_ID_BYTES);
    put_id(trace->trace_id, sizeof trace->trace_id);
    put_id(trace->span_id, sizeof trace->span_id);
    trace->flags = FLAG_SAMPLED;
    return true;
}

void span_begin(struct span *span, enum span_kind kind, const char *name, const struct trace *parent)
{
    span->trace = *parent;
    span->is_recorded = span_enter(&span->trace, span->parent_id);
    if (span->is_recorded)
        begin_recorded(span, kind, name);
}

void span_begin_root(struct span *span, enum span_kind kind, const char *name, const struct trace *parent)
{
    span->trace = *parent;
    span->is_recorded = span_enter_root(&span->trace, span->parent_id);
    if (span->is_recorded)
        begin_recorded(span, kind, name);
}

void span_resume(struct span *span, enum span_kind kind, const char *name, const struct trace *trace,
                 const uint8_t parent_id[SPAN_ID_BYTES], int64_t elapsed_ns)
{
    span->trace = *trace;
    memcpy(span->parent_id, parent_id, SPAN_ID_BYTES);
    span->is_recorded = true;
    begin_recorded(span, kind, name);
    span->start_us -= elapsed_ns / 1000;
}

static struct str follow(struct span **span, enum span_kind kind, const char *name,
                         const struct trace *parent, struct str traceparent, struct arena *arena)
{
    uint8_t parent_id[SPAN_ID_BYTES];
    struct trace trace = *parent;
    if (!span_enter_root(&trace, parent_id))
        return traceparent;
    *span = arena_alloc(arena, sizeof **span);
    span_resume(*span, kind, name, &trace, parent_id, 0);
    return trace_text(&trace, arena);
}

struct str span_follow(struct span **span, enum span_kind kind, const char *name, struct str traceparent,
                       struct arena *arena)
{
    struct trace parent;
    *span = NULL;
    if (!span_is_on() || traceparent.len == 0 || !trace_parse(traceparent, &parent))
        return traceparent;
    return follow(span, kind, name, &parent, traceparent, arena);
}

struct str span_follow_root(struct span **span, enum span_kind kind, const char *name, struct str traceparent,
                            struct arena *arena)
{
    struct trace parent = {0};
    *span = NULL;
    if (!span_is_on())
        return traceparent;
    if (traceparent.len > 0)
        (void)trace_parse(traceparent, &parent);
    return follow(span, kind, name, &parent, traceparent, arena);
}

static struct span_attribute *new_attribute(struct span *span, const char *name)
{
    if (!span || !span->is_recorded || span->attribute_count == SPAN_ATTRIBUTES_MAX)
        return NULL;
    struct span_attribute *attribute = &span->attributes[span->attribute_count++];
    *attribute = (struct span_attribute){.name = name};
    return attribute;
}

void span_put_int(struct span *span, const char *name, int64_t number)
{
    struct span_attribute *attribute = new_attribute(span, name);
    if (attribute)
        attribute->number = number;
}

void span_put_str(struct span *span, const char *name, struct str text)
{
    struct span_attribute *attribute = text.len > 0 ? new_attribute(span, name) : NULL;
    if (!attribute)
        return;
    text = str_utf8_cut(text, SPAN_TEXT_BYTES - span->text_len);
    attribute->is_text = true;
    attribute->text_at = (uint16_t)span->text_len;
    attribute->text_len = (uint16_t)text.len;
    memcpy(span->text + span->text_len, text.ptr, text.len);
    span->text_len += (unsigned)text.len;
}

void span_fail(struct span *span, struct str type)
{
    if (!span || !span->is_recorded)
        return;
    span->is_failed = true;
    span_put_str(span, "error.type", type);
}

/* ---- rings ---- */

static void return_ring(void *arg)
{
    struct ring *ring = arg;
    pthread_mutex_lock(&lock);
    ring->is_used = false;
    pthread_mutex_unlock(&lock);
}

static void create_key(void)
{
    if (pthread_key_create(&key, return_ring) != 0)
        abort(); /* at start only */
}

/* NULL: there are too many threads. */
static struct ring *take_ring(void)
{
    struct ring *ring = NULL;
    pthread_mutex_lock(&lock);
    unsigned count = atomic_load(&ring_count);
    for (unsigned i = 0; i < count && !ring; i++)
        if (!rings[i]->is_used)
            ring = rings[i];
    if (!ring && count < RINGS_MAX) {
        ring = memory_zalloc(sizeof *ring);
        ring->slots = memory_alloc(settings.ring_spans * sizeof *ring->slots);
        rings[count] = ring;
        atomic_store(&ring_count, count + 1);
    }
    if (ring)
        ring->is_used = true;
    pthread_mutex_unlock(&lock);
    if (ring)
        pthread_setspecific(key, ring);
    return ring;
}

/* Of a slot only what is used: most spans have few attributes and little text. */
static void copy_span(struct span *to, const struct span *from)
{
    memcpy(to, from, offsetof(struct span, attributes) + from->attribute_count * sizeof from->attributes[0]);
    memcpy(to->text, from->text, from->text_len);
}

void span_end(struct span *span)
{
    if (!span || !span->is_recorded || !span_is_on())
        return;
    span->is_recorded = false;
    if (span->end_us == 0)
        span->end_us = clock_unix_us();
    if (span->end_us < span->start_us)
        span->end_us = span->start_us;
    struct ring *ring = own_ring ? own_ring : (own_ring = take_ring());
    size_t head = ring ? atomic_load_explicit(&ring->head, memory_order_relaxed) : 0;
    size_t used = ring ? head - atomic_load_explicit(&ring->tail, memory_order_acquire) : settings.ring_spans;
    if (used >= settings.ring_spans) {
        span_count(SPAN_DROPPED, 1);
        return;
    }
    copy_span(&ring->slots[head % settings.ring_spans], span);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    if (used == settings.ring_spans / 2 && settings.on_half_full)
        settings.on_half_full(settings.context);
}

size_t span_take(size_t max, void (*on_span)(void *context, const struct span *span), void *context)
{
    unsigned count = atomic_load(&ring_count);
    size_t taken = 0;
    for (unsigned i = 0; i < count && taken < max; i++) {
        struct ring *ring = rings[next_ring++ % count];
        size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
        size_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        for (; tail != head && taken < max; tail++, taken++)
            on_span(context, &ring->slots[tail % settings.ring_spans]);
        atomic_store_explicit(&ring->tail, tail, memory_order_release);
    }
    return taken;
}

/* ---- life ---- */

void span_count(enum span_result result, uint64_t spans)
{
    metric_add(results[result], spans);
}

void span_set_share(int64_t sample_share)
{
    atomic_store_explicit(&share, sample_share, memory_order_relaxed);
}

void span_metrics_register(void)
{
    static const char *const names[] = {[SPAN_EXPORTED] = "exported",
                                        [SPAN_DROPPED] = "dropped",
                                        [SPAN_FAILED] = "failed",
                                        [SPAN_REJECTED] = "rejected"};
    metrics_register(&spans_family);
    for (size_t i = 0; i < SPAN_RESULTS; i++)
        results[i] = metric_series_get(&spans_family, (struct str[]){str_from(names[i])});
}

void span_open(const struct span_settings *given)
{
    span_metrics_register();
    pthread_once(&key_once, create_key);
    settings = *given;
    span_set_share(given->sample_share);
    atomic_store(&span_recording, true);
}

void span_close(void)
{
    atomic_store(&span_recording, false);
}

void span_free(void)
{
    unsigned count = atomic_exchange(&ring_count, 0);
    for (unsigned i = 0; i < count; i++) {
        free(rings[i]->slots);
        free(rings[i]);
        rings[i] = NULL;
    }
    own_ring = NULL;
    next_ring = 0;
}
