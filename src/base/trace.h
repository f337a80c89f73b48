/* W3C trace context: accepted from a `traceparent` header, passed on through every engine (C9). */
#ifndef FRESHET_BASE_TRACE_H
#define FRESHET_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/str.h"

struct trace {
    uint8_t trace_id[16];
    uint8_t span_id[8];
    uint8_t flags;
};

#define TRACE_PARENT_BYTES 56

bool trace_is_none(const struct trace *trace);                 /* all zeroes: nothing to pass on */
bool trace_parse(struct str traceparent, struct trace *trace); /* strict; false means: start a new one */
void trace_start(struct trace *trace);                         /* new random ids, not sampled */
void trace_child(struct trace *trace);                         /* same trace, new span */
void trace_format(const struct trace *trace, char out[TRACE_PARENT_BYTES]);
#define TRACE_ID_TEXT_BYTES 32
/* Its 32 digits, in `out`; STR_NONE when there is none. */
struct str trace_id_text(const struct trace *trace, char out[TRACE_ID_TEXT_BYTES]);
struct str trace_id_of(struct str traceparent); /* its 32 digits, a slice; STR_NONE where it is invalid */
struct str trace_text(const struct trace *trace, struct arena *arena); /* STR_NONE when there is none */

#endif
