/* What a process has of reference data in memory, for its own row (kernel/pods.c): the pairs that it holds, the streams of changes, and how
 * fresh its copies were in the last minute. On the home loop.
 *
 *     "pairs":{"TENANT/DICT":[version,loaded at in µs,items,bytes,digest,freshness in ms,"error",read at in s]…},"pairs_held":N,
 *     "freshness":{"bounds":[seconds…],"counts":[…]},"streams":[…],"streams_open":N
 *
 * There may be more pairs and streams than fit; those that fail to load stand first. */
#include "base/clock.h"
#include "base/json.h"
#include "modules/refdata/query/watch.h"
#include "modules/refdata/refdata.h"

enum {
    PAIRS_BYTES_MAX = 28 * 1024,
    STREAMS_BYTES_MAX = 8 * 1024,
    ERROR_BYTES_MAX = 256,
    SLOTS_MAX = 16384, /* that are looked through for pairs that fail, and for streams */
    RING_MS = 4000,
};

static void put_pair(const struct refdata_holding *holding, struct buf *out)
{
    const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
    const struct cache_info none = {.version = -1}, *info = snapshot ? cache_snapshot_info(snapshot) : &none;
    char digest[HASH128_HEX_BYTES];
    struct buf name = {0};
    hash128_hex(info->digest, digest);
    buf_printf(&name, "%.*s/%.*s", STR_ARG(holding->tenant), STR_ARG(holding->code));
    json_put_key(out, buf_str(&name));
    buf_deinit(&name);
    buf_printf(out, "[%lld,%lld,%llu,%llu,\"%s\",", (long long)info->version, (long long)info->loaded_at_us,
               (unsigned long long)info->item_count, (unsigned long long)info->memory_bytes, digest);
    if (holding->freshness_us >= 0)
        buf_printf(out, "%lld.%03lld,", (long long)(holding->freshness_us / 1000),
                   (long long)(holding->freshness_us % 1000));
    else
        buf_put_str(out, STR("null,"));
    if (holding->failure != FAILURE_NONE)
        json_put_string(out, str_utf8_cut(str_from(holding->last_error), ERROR_BYTES_MAX));
    else
        buf_put_str(out, STR("null"));
    uint32_t used_at_s = refdata_holding_used_at_s(holding, loop_group_count(holding->refdata->loops));
    buf_printf(out, ",%lld]",
               (long long)(clock_unix_us() / 1000000 - (clock_mono_ns() / CLOCK_NS_PER_S - used_at_s)));
}

static void put_pairs(const struct refdata *refdata, struct buf *out)
{
    const struct refdata_table *table = refdata->own;
    size_t begin = buf_len(out);
    json_put_key(out, STR("pairs"));
    buf_put_char(out, '{');
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i <= table->mask && i < SLOTS_MAX && buf_len(out) - begin < PAIRS_BYTES_MAX; i++)
            if (table->slots[i] && (table->slots[i]->failure == FAILURE_NONE) == (pass == 1))
                put_pair(table->slots[i], out);
    buf_put_char(out, '}');
    json_put_member_i64(out, "pairs_held", (int64_t)table->count);
}

static void put_stream(const struct refdata_holding *holding, struct buf *out)
{
    struct stream_report report = {
        .kind = STR("watch"), .tenant = holding->tenant, .name = holding->code, .position = -1};
    for (int i = 0; i < STREAM_FORMATS; i++)
        stream_report_add(&report, holding->watch->topics[i]);
    if (report.readers > 0)
        stream_report_put(&report, out);
}

static void put_streams(const struct refdata *refdata, struct buf *out)
{
    const struct refdata_table *table = refdata->own;
    size_t begin = buf_len(out);
    json_put_key(out, STR("streams"));
    buf_put_char(out, '[');
    for (size_t i = 0; i <= table->mask && i < SLOTS_MAX && buf_len(out) - begin < STREAMS_BYTES_MAX; i++)
        if (table->slots[i] && table->slots[i]->watch)
            put_stream(table->slots[i], out);
    buf_put_char(out, ']');
    json_put_member_i64(out, "streams_open", (int64_t)refdata_metrics_watchers());
}

/* The observations of the last minute: those until now without those until a minute ago. */
static void put_freshness(struct refdata *refdata, struct buf *out)
{
    struct refdata_freshness *ring = &refdata->freshness;
    uint64_t now[METRIC_BUCKETS_MAX] = {0};
    const double *bounds = refdata_metrics_freshness(now);
    if (!bounds)
        return;
    const uint64_t *before = ring->counts[ring->at]; /* the oldest */
    json_put_key(out, STR("freshness"));
    buf_put_str(out, STR("{\"bounds\":["));
    unsigned count = 0;
    for (; bounds[count] != 0; count++) {
        buf_put_str(out, count ? STR(",") : STR(""));
        buf_put_double(out, bounds[count]);
    }
    buf_put_str(out, STR("],\"counts\":["));
    for (unsigned i = 0; i <= count; i++)
        buf_printf(out, "%s%llu", i ? "," : "", (unsigned long long)(now[i] - before[i]));
    buf_put_str(out, STR("]}"));
    if (clock_mono_ns() - ring->turned_ns < RING_MS * CLOCK_NS_PER_MS)
        return;
    ring->turned_ns = clock_mono_ns();
    memcpy(ring->counts[ring->at], now, sizeof now);
    ring->at = (ring->at + 1) % REFDATA_FRESHNESS_TURNS;
}

void refdata_report(void *state, struct buf *out)
{
    struct refdata *refdata = state;
    put_pairs(refdata, out);
    put_streams(refdata, out);
    put_freshness(refdata, out);
}
