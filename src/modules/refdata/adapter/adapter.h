/* The adapter (R9): messages of external topics are translated and accepted, each in the transaction before the commit of
 * its position.
 *
 *     topic ─ translate.c ─ adapter.c: dictionary, accept ─ commands.h ─ commit ─ Kafka's offset
 *           └ what cannot be an update ─ topic.dlq, with the reason
 *
 * A redelivered message finds its event's row and has no second effect. */
#ifndef FRESHET_REFDATA_ADAPTER_H
#define FRESHET_REFDATA_ADAPTER_H

#include "modules/refdata/acceptance.h"
#include "modules/refdata/adapter/source.h"
#include "modules/refdata/commands.h"

/* One source, read for one flow: the context of its handler. */
struct refdata_reader {
    struct refdata_flow *flow;
    const struct refdata_adapter_source *source;
    struct metric_series *outcomes[3]; /* enum refdata_verdict */
};

/* The bus's callbacks; their context is a struct refdata_reader. */
void refdata_reader_handle(void *context, struct bus_batch *batch);
void refdata_reader_committed(void *context, const struct bus_batch *batch, size_t settled);
void refdata_reader_uncommitted(void *context, const struct bus_batch *batch);
void refdata_reader_gap(void *context, unsigned partition, int64_t offset, int64_t next);

extern struct metric_family refdata_adapter_messages_family;

#endif
