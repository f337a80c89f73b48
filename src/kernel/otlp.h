/* Spans as OTLP/HTTP JSON: one ExportTraceServiceRequest for a batch. Pure. */
#ifndef FRESHET_KERNEL_OTLP_H
#define FRESHET_KERNEL_OTLP_H

#include "base/buf.h"
#include "base/span.h"

struct otlp_resource {
    struct str service_name, instance_id, version, host_name;
    int64_t pid;
};

/* begin, any number of spans, end. */
void otlp_begin(struct buf *out, const struct otlp_resource *resource);
void otlp_put_span(struct buf *out, const struct span *span);
void otlp_end(struct buf *out);
/* Of the answer to a request: how many spans the collector refused (partial success). */
int64_t otlp_read_rejected(struct str answer);

#endif
