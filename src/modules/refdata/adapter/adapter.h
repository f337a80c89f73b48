/* The adapter (R9): messages of external topics are translated and accepted, each in the transaction that its position
 * commits behind.
 *
 *     topic ─ translate.c ─ handler.c: dictionary ─ intake.c: update_request ─ commands.h ─ commit ─ Kafka's offset
 *           └ what cannot be an update ─ topic.dlq, with the reason
 *
 * A message that comes again finds its event's row and has no second effect. */
#ifndef FRESHET_REFDATA_ADAPTER_H
#define FRESHET_REFDATA_ADAPTER_H

#include "modules/refdata/adapter/source.h"
#include "modules/refdata/commands.h"

/* One source, read for one flow: the context of its handler. */
struct refdata_reader {
    struct refdata_flow *flow;
    const struct refdata_adapter_source *source;
    struct metric_series *outcomes[3]; /* enum refdata_intake_result */
};

/* ---- handler.c: the bus's callbacks; their context is a struct refdata_reader ---- */
void refdata_reader_handle(void *context, struct bus_batch *batch);
void refdata_reader_committed(void *context, const struct bus_batch *batch, size_t settled);
void refdata_reader_uncommitted(void *context, const struct bus_batch *batch);
void refdata_reader_gap(void *context, unsigned partition, int64_t offset, int64_t next);

/* ---- intake.c: updates into update_request ---- */
enum refdata_intake_result {
    REFDATA_INTAKE_ACCEPTED,
    REFDATA_INTAKE_REPLAYED, /* it was there before, with the same content */
    REFDATA_INTAKE_REFUSED,  /* `error` says why */
};

struct refdata_intake {
    size_t at; /* which of the batch's messages */
    struct refdata_update update;
    struct str hash;         /* update_request.content_hash */
    struct str requested_by; /* update_request.requested_by */
    struct str traceparent;  /* empty = none */
    enum refdata_intake_result result;
    bool is_new, is_chunk_new; /* its event's row, its chunk's row is this one's: then it is published */
    struct error error;
};

static inline bool refdata_intake_is_published(const struct refdata_intake *intake)
{
    return intake->result != REFDATA_INTAKE_REFUSED && (intake->is_new || intake->is_chunk_new);
}

/* On a worker, in an open transaction: each intake gets its result. Any number of them may name the same event. */
enum status refdata_intakes_write(struct db_conn *conn, struct refdata_intake *intakes, size_t count,
                                  int64_t deadline_ns, struct arena *arena, struct error *error) MUST_CHECK;

extern struct metric_family refdata_adapter_messages_family;

#endif
