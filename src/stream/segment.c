/* Segments: what was said once, for all who listen. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "stream/stream_inside.h"

struct stream_segment *stream_segment_create(const struct stream_step *step)
{
    struct stream_segment *segment = memory_alloc(sizeof *segment + step->bytes.len);
    *segment = (struct stream_segment){
        .lines = step->lines,
        .can_be_joined = step->can_be_joined,
        .from = step->from,
        .to = step->to,
        .len = step->bytes.len,
    };
    atomic_init(&segment->refs, 1);
    atomic_init(&segment->next, NULL);
    if (step->bytes.len)
        memcpy(segment->bytes, step->bytes.ptr, step->bytes.len);
    return segment;
}

void stream_segment_ref(struct stream_segment *segment)
{
    atomic_fetch_add_explicit(&segment->refs, 1, memory_order_relaxed);
}

/* The last one to let go of a segment lets go of the next: a chain nobody stands on goes link by link. */
void stream_segment_unref(struct stream_segment *segment)
{
    while (segment && atomic_fetch_sub(&segment->refs, 1) == 1) {
        struct stream_segment *next = atomic_load(&segment->next);
        free(segment);
        segment = next;
    }
}
