/* The load that an invalidation causes, as a span from its beginning to the swap (C9).
 *
 * A load may be caused by several messages, and by messages without a trace: Redis's Pub/Sub carries the payload alone, and the
 * traced message of the stream comes after it, perhaps when the load has ended. So the times of the last load are kept, and its span
 * is recorded when both are known, the load and a traced version that it brought; once for a load, for the newest such message. */
#include "base/clock.h"
#include "base/span.h"
#include "modules/refdata/query/holding.h"
#include "modules/refdata/query/query.h"

static void record_load(struct refdata_holding *holding)
{
    struct refdata_load_trace *known = &holding->load_trace;
    struct span span;
    span_begin(&span, SPAN_CONSUMER, "load dictionary", &known->cause);
    span.start_us = known->start_us;
    span.end_us = known->end_us;
    span_put_str(&span, "freshet.tenant.id", holding->tenant);
    span_put_str(&span, "freshet.dict.code", holding->code);
    span_put_int(&span, "freshet.dict.version", known->loaded_version);
    span_put_str(&span, "freshet.load.mode", known->is_delta ? STR("delta") : STR("full"));
    span_end(&span);
    known->cause = (struct trace){0};
    known->recorded_version = known->loaded_version;
    known->loaded_version = 0;
}

static void record_if_complete(struct refdata_holding *holding)
{
    const struct refdata_load_trace *known = &holding->load_trace;
    if (!trace_is_none(&known->cause) && known->loaded_version > 0 &&
        known->caused_version <= known->loaded_version)
        record_load(holding);
}

void refdata_load_span_caused(struct refdata_holding *holding, const struct trace *cause, int64_t version)
{
    struct refdata_load_trace *known = &holding->load_trace;
    if (version <= known->recorded_version) /* the same message by another way */
        return;
    known->cause = *cause;
    known->caused_version = version;
    record_if_complete(holding);
}

void refdata_load_span_loaded(struct refdata_holding *holding, int64_t version, bool is_delta)
{
    struct refdata_load_trace *known = &holding->load_trace;
    if (!span_is_on())
        return;
    known->end_us = clock_unix_us();
    known->start_us = known->end_us - (clock_mono_ns() - holding->began_ns) / 1000;
    known->loaded_version = version;
    known->is_delta = is_delta;
    record_if_complete(holding);
}
