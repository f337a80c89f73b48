/* What a follower that reconnects has missed: the keys the outbox names since its version, with their current values.
 *
 * One query at a time per pair, from the oldest version of the followers that asked; its result is one segment for all of them,
 * and for those that reconnect before the next change: neither many followers at once nor a slow one costs more queries.
 * A key stands in it once, at the place of the last version that touched it, so that a follower with version N starts after
 * all keys last touched up to N. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "modules/refdata/query/watch.h"

/* Both by the unique index on (tenant_id, dict_code, version). */
static const struct db_statement keys_sql =
    DB_STATEMENT("select k.key, max(e.version)"
                 "  from refdata.outbox_event e, unnest(e.keys) as k(key)"
                 " where e.tenant_id = $1 and e.dict_code = $2 and e.version > $3 and e.version <= $4"
                 " group by k.key order by 2, 1");
/* The last version that is not kept, or does not know its keys: a follower before it cannot be brought up to date. Planned on an empty
 * table, a plain join would read all events of the dictionary. */
static const struct db_statement gap_sql =
    DB_STATEMENT("select max(v.version)"
                 "  from generate_series($3::bigint + 1, $4::bigint) as v(version)"
                 "  left join lateral (select keys from refdata.outbox_event"
                 "       where tenant_id = $1 and dict_code = $2 and version = v.version offset 0) e on true"
                 " where e.keys is null");

struct touched {
    struct str key;
    int64_t version; /* the last that touched it */
    const struct cache_record *record;
    size_t offsets[STREAM_FORMATS]; /* of its line */
};

struct refdata_history {
    struct worker_job job;
    struct refdata_watch *watch;           /* referenced while the question is under way */
    struct refdata_dictionary *dictionary; /* referenced */
    struct cache_snapshot *snapshot;       /* referenced: the values of now */
    struct arena arena;
    struct str tenant;
    int64_t from, to, timeout_ms;
    size_t bytes_max;
    enum status status;
    int64_t gap; /* a follower before it cannot be brought up to date */
    struct touched *touched;
    size_t count;
    unsigned formats;                                /* bits: those that are asked for */
    size_t end_offsets[STREAM_FORMATS];              /* of the last line, upToDate */
    struct stream_segment *segments[STREAM_FORMATS]; /* of these formats */
};

/* ---- on a worker ---- */

/* The keys first: what is deleted in between shows as a gap. */
static enum status read_outbox(struct refdata_history *history, struct db_conn *conn, int64_t deadline_ns,
                               struct error *error)
{
    const struct db_param params[] = {db_text(history->tenant), db_text(history->dictionary->code),
                                      db_i64(history->from), db_i64(history->to), DB_END};
    struct db_result *keys = NULL, *gap = NULL;
    enum status status = db_query(conn, &keys_sql, params, deadline_ns, &keys, error);
    if (status == STATUS_OK)
        status = db_query(conn, &gap_sql, params, deadline_ns, &gap, error);
    if (status == STATUS_OK) {
        history->gap = db_result_is_null(gap, 0, 0) ? history->from : db_result_i64(gap, 0, 0);
        history->count = db_result_rows(keys);
        history->touched = arena_alloc(&history->arena, (history->count + 1) * sizeof *history->touched);
        for (size_t i = 0; i < history->count; i++) {
            struct touched *touched = &history->touched[i];
            *touched = (struct touched){.key = arena_str(&history->arena, db_result_str(keys, i, 0)),
                                        .version = db_result_i64(keys, i, 1)};
            touched->record = cache_find(history->snapshot, touched->key);
        }
    }
    db_result_free(keys);
    db_result_free(gap);
    return status;
}

/* As many of the latest as fit: one follower with an old version must not take the space of the others. */
static size_t first_that_fits(struct refdata_history *history)
{
    enum { LINE_BYTES = 96 }; /* beside key and payload, escapes aside */
    size_t bytes = 0, first = history->count;
    while (first > 0 && history->touched[first - 1].version > history->gap) {
        const struct touched *touched = &history->touched[first - 1];
        bytes +=
            LINE_BYTES + touched->key.len + (touched->record ? cache_record_payload(touched->record).len : 0);
        if (bytes > history->bytes_max) {
            history->gap = touched->version;
            while (first < history->count && history->touched[first].version == history->gap)
                first++;
            break;
        }
        first--;
    }
    return first;
}

static void write_segment(struct refdata_history *history, enum stream_format format, size_t first)
{
    struct buf out = {0};
    for (size_t i = first; i < history->count; i++) {
        struct touched *touched = &history->touched[i];
        touched->offsets[format] = buf_len(&out);
        refdata_watch_put_line(&out, format, history->to, touched->key, touched->record);
    }
    history->end_offsets[format] = buf_len(&out);
    refdata_watch_put_up_to_date(&out, format, history->to);
    history->segments[format] = stream_segment_create(&(struct stream_step){
        .from = history->gap,
        .to = history->to,
        .lines = (unsigned)(history->count - first),
        .bytes = buf_str(&out),
    });
    buf_deinit(&out);
}

static void run_history(struct worker_job *job)
{
    struct refdata_history *history = CONTAINER_OF(job, struct refdata_history, job);
    int64_t deadline_ns = clock_deadline_ms(history->timeout_ms);
    struct error error;
    struct db_conn *conn = NULL;
    history->status = db_acquire_long(history->dictionary->database->site.pool, deadline_ns, &conn, &error);
    if (history->status == STATUS_OK)
        history->status = read_outbox(history, conn, deadline_ns, &error);
    db_release(conn);
    if (history->status != STATUS_OK)
        return;
    size_t first = first_that_fits(history);
    for (unsigned i = 0; i < STREAM_FORMATS; i++)
        if (history->formats & 1u << i)
            write_segment(history, (enum stream_format)i, first);
}

/* ---- on the home loop ---- */

/* The question is answered: what remains is the answer. */
static void close_question(struct refdata_history *history)
{
    cache_snapshot_unref(history->snapshot);
    refdata_dictionary_unref(history->dictionary);
    history->watch = NULL;
}

static void destroy_history(struct refdata_history *history)
{
    for (unsigned i = 0; i < STREAM_FORMATS; i++)
        stream_segment_unref(history->segments[i]);
    arena_deinit(&history->arena);
    free(history);
}

void refdata_watch_forget(struct refdata_watch *watch)
{
    if (watch->history)
        destroy_history(watch->history);
    watch->history = NULL;
}

static void give_history(struct refdata_watch *watch, const struct refdata_history *history,
                         struct refdata_ask *ask)
{
    size_t low = 0, high = history->count;
    ask->current = history->to;
    if (history->status != STATUS_OK) {
        refdata_ask_refuse(ask, STATUS_UNAVAILABLE, "the outbox could not be read");
    } else if (!watch->holding) {
        refdata_ask_again(ask);
    } else if (ask->version < history->gap) {
        refdata_ask_refuse(ask, STATUS_VERSION_TOO_OLD, "");
    } else {
        while (low < high) { /* the first line that it needs */
            size_t middle = low + (high - low) / 2;
            if (history->touched[middle].version > ask->version)
                high = middle;
            else
                low = middle + 1;
        }
        ask->opening = history->segments[ask->format];
        stream_segment_ref(ask->opening);
        ask->opening_offset = low < history->count ? history->touched[low].offsets[ask->format]
                                                   : history->end_offsets[ask->format];
        ask->version = history->to;
        refdata_watch_place(watch, ask);
    }
}

bool refdata_watch_recall(struct refdata_watch *watch, struct refdata_ask *ask, int64_t version)
{
    const struct refdata_history *history = watch->history;
    if (!history || history->to != version || history->from > ask->version ||
        !(history->formats & 1u << ask->format))
        return false;
    give_history(watch, history, ask);
    return true;
}

static void history_done(struct worker_job *job)
{
    struct refdata_history *history = CONTAINER_OF(job, struct refdata_history, job);
    struct refdata_watch *watch = history->watch;
    struct refdata_asks asked = STAILQ_HEAD_INITIALIZER(asked), queued = STAILQ_HEAD_INITIALIZER(queued);
    struct refdata_ask *ask;
    STAILQ_CONCAT(&asked, &watch->asked);
    STAILQ_CONCAT(&queued, &watch->queued);
    if (job->cancelled)
        history->status = STATUS_CANCELLED;
    while ((ask = refdata_asks_take(&asked)) != NULL)
        give_history(watch, history, ask);
    const struct cache_snapshot *now = watch->holding ? cache_slot_read(&watch->holding->slot) : NULL;
    bool is_current = now == history->snapshot && history->status == STATUS_OK;
    close_question(history);
    if (is_current) {
        refdata_watch_forget(watch);
        watch->history = history;
    } else {
        destroy_history(history);
    }
    while ((ask = refdata_asks_take(&queued)) != NULL) /* those it does not reach wait for the next query */
        refdata_watch_place(watch, ask);
    refdata_watch_settle(watch);
    refdata_watch_unref(watch);
}

void refdata_watch_ask(struct refdata_watch *watch)
{
    const struct refdata_holding *holding = watch->holding;
    const struct refdata_ask *ask;
    if (!STAILQ_EMPTY(&watch->asked))
        return;
    STAILQ_CONCAT(&watch->asked, &watch->queued);
    struct refdata_history *history = memory_zalloc(sizeof *history);
    history->job = (struct worker_job){.loop = watch->refdata->home,
                                       .share = hash_seeded(holding->tenant),
                                       .run = run_history,
                                       .done = history_done};
    history->watch = watch;
    history->dictionary = refdata_dictionary_ref(holding->dictionary);
    history->snapshot = cache_slot_acquire(&holding->slot);
    history->arena = ARENA(4096);
    history->tenant = arena_str(&history->arena, holding->tenant);
    history->to = history->from = cache_snapshot_info(history->snapshot)->version;
    STAILQ_FOREACH(ask, &watch->asked, next) {
        history->from = ask->version < history->from ? ask->version : history->from;
        history->formats |= 1u << ask->format;
    }
    history->timeout_ms = atomic_load(&watch->refdata->catalog)->barrier.timeout_ms;
    history->bytes_max = (size_t)refdata_watch_settings(watch->refdata)->buffer_bytes_max;
    if (worker_pool_submit(watch->refdata->readers, &history->job)) {
        watch->refs++;
        return;
    }
    refdata_asks_refuse(&watch->asked, STATUS_OVERLOADED, "too many reads from the primary at once");
    close_question(history);
    destroy_history(history);
}
