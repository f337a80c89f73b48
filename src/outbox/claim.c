/* The claimed batch: its events, the results of publishing them, and the exchange with the database that settles it and claims
 * the next one in one transaction and one round trip. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "outbox/outbox_inside.h"

enum { TURNS = 4 }; /* of deliveries: so many tenants fill a batch, if there are as many */

/* ---- settings: the rows of `<module>.outbox`, the same for every module (O2) ---- */

#define ROW(member) .offset = offsetof(struct outbox_settings, member)
#define HOUR_MS INT64_C(3600000)

const struct setting_row outbox_setting_rows[] = {
    {"poll-interval", SETTING_DURATION_MS, ROW(poll_ms),
     "How often the table is searched for events without a notice, in case a notice was lost.", "1s", 10,
     HOUR_MS},
    {"batch-size", SETTING_INT, ROW(batch), "Most events claimed and published together.", "50", 1, 1000},
    {"lease", SETTING_DURATION_MS, ROW(lease_ms),
     "How long a claim is valid after its worker died; a batch that takes longer extends its lease.", "30s",
     100, HOUR_MS},
    {"max-attempt", SETTING_INT, ROW(attempts_max),
     "After this many failures, or claims whose worker died, an event is FAILED.", "10", 1, 1000},
    {"backoff-base", SETTING_DURATION_MS, ROW(backoff_base_ms),
     "Pause after the first failure; doubled each time.", "1s", 1, HOUR_MS},
    {"backoff-max", SETTING_DURATION_MS, ROW(backoff_max_ms), "Longest pause, before the jitter.", "60s", 1,
     24 * HOUR_MS},
    {"backoff-min", SETTING_DURATION_MS, ROW(backoff_min_ms), "Shortest pause, after the jitter.", "0", 0,
     HOUR_MS},
    {"backoff-jitter-min", SETTING_DECIMAL, ROW(jitter_min),
     "A pause is multiplied by a random number from this …", "0.5", 0, 10000},
    {"backoff-jitter-max", SETTING_DECIMAL, ROW(jitter_max), "… to this.", "1.5", 0, 10000},
    {"retention", SETTING_DURATION_MS, ROW(keep_ms),
     "How long published events are kept. All others are kept until they are published.", "24h", 1,
     3650 * 24 * HOUR_MS},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(cleanup_ms), "How often older ones are deleted.", "1h", 10,
     24 * HOUR_MS},
    {.name = NULL},
};

int64_t outbox_backoff_ms(const struct outbox_settings *settings, int64_t attempt)
{
    int64_t pause_ms = settings->backoff_base_ms;
    for (int64_t i = 1; i < attempt && pause_ms < settings->backoff_max_ms; i++)
        pause_ms *= 2;
    if (pause_ms > settings->backoff_max_ms)
        pause_ms = settings->backoff_max_ms;
    uint64_t width = settings->jitter_max > settings->jitter_min
                         ? (uint64_t)(settings->jitter_max - settings->jitter_min) + 1
                         : 1;
    pause_ms = pause_ms * (settings->jitter_min + (int64_t)(random_u64() % width)) / 1000;
    return pause_ms > settings->backoff_min_ms ? pause_ms : settings->backoff_min_ms;
}

/* ---- results ---- */

static void set_result(struct outbox_result *result, enum outbox_result_kind kind, const char *format,
                       va_list args) PRINTF_LIKE(3, 0);
static void set_result(struct outbox_result *result, enum outbox_result_kind kind, const char *format,
                       va_list args)
{
    result->kind = kind;
    int len = vsnprintf(result->reason, sizeof result->reason, format, args);
    struct str whole = str_from(result->reason);
    if (len >= (int)sizeof result->reason) /* it may end inside a character */
        whole = str_utf8_cut(whole, whole.len - 1);
    result->reason[whole.len] = '\0';
    /* PostgreSQL would refuse the results of the whole batch. */
    if (!str_is_utf8(whole))
        for (char *c = result->reason; *c; c++)
            *c = *c & 0x80 ? '?' : *c;
}

void outbox_result_set(struct outbox_result *result, enum outbox_result_kind kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_result(result, kind, format, args);
    va_end(args);
}

void outbox_batch_set(struct outbox_batch *batch, size_t at, enum outbox_result_kind kind, const char *format,
                      ...)
{
    va_list args;
    va_start(args, format);
    set_result(&batch->results[at], kind, format, args);
    va_end(args);
}

/* The event is published again later, so later events of its aggregate wait. */
static bool holds_aggregate(const struct outbox_result *result)
{
    return result->kind == OUTBOX_RETRY || result->kind == OUTBOX_RELEASE || result->kind == OUTBOX_OUTAGE;
}

bool outbox_batch_is_held(const struct outbox_batch *batch, size_t at)
{
    for (size_t i = at; i > 0 && batch->events[i - 1].run == batch->events[at].run; i--)
        if (holds_aggregate(&batch->results[i - 1]))
            return true;
    return false;
}

void outbox_results_conclude(struct outbox *outbox)
{
    struct outbox_claim *claim = &outbox->claim;
    bool is_held = false;
    for (size_t i = 0; i < claim->count; i++) {
        struct outbox_result *result = &claim->results[i];
        if (i > 0 && claim->events[i].run != claim->events[i - 1].run)
            is_held = false;
        if (is_held && result->kind != OUTBOX_OUTAGE)
            result->kind = OUTBOX_RELEASE;
        is_held |= holds_aggregate(result);
        /* FAILED blocks nothing, but the publisher has held later events back: they go with the next claim. */
        if (result->kind == OUTBOX_RETRY && claim->events[i].attempts + 1 >= outbox->settings.attempts_max)
            result->kind = OUTBOX_POISON;
    }
    for (size_t i = 0; i < outbox->late_count; i++) {
        struct outbox_late *late = &outbox->late[i];
        if (late->result.kind == OUTBOX_RETRY && late->attempts + 1 >= outbox->settings.attempts_max)
            late->result.kind = OUTBOX_POISON;
    }
}

/* ---- late events: left under way by their publisher ---- */

void outbox_late_add(struct outbox *outbox)
{
    const struct outbox_claim *claim = &outbox->claim;
    size_t count = 0;
    for (size_t i = 0; i < claim->count; i++)
        count += claim->results[i].kind == OUTBOX_UNDER_WAY;
    if (count == 0)
        return;
    pthread_mutex_lock(&outbox->lock);
    outbox->late = memory_realloc_array(outbox->late, outbox->late_count + count, sizeof *outbox->late);
    for (size_t i = 0; i < claim->count; i++) {
        if (claim->results[i].kind != OUTBOX_UNDER_WAY)
            continue;
        struct outbox_late *late = &outbox->late[outbox->late_count++];
        *late = (struct outbox_late){.result = claim->results[i], .attempts = claim->events[i].attempts};
        snprintf(late->id, sizeof late->id, "%.*s", STR_ARG(claim->events[i].id));
        memcpy(late->claim_id, claim->id, sizeof late->claim_id);
    }
    pthread_mutex_unlock(&outbox->lock);
}

/* Those that are settled now. */
static void remove_settled(struct outbox *outbox)
{
    size_t kept = 0;
    pthread_mutex_lock(&outbox->lock);
    for (size_t i = 0; i < outbox->late_count; i++)
        if (outbox->late[i].result.kind == OUTBOX_UNDER_WAY)
            outbox->late[kept++] = outbox->late[i];
    outbox->late_count = kept;
    pthread_mutex_unlock(&outbox->lock);
}

size_t outbox_late_ended(const struct outbox *outbox)
{
    size_t count = 0;
    for (size_t i = 0; i < outbox->late_count; i++)
        count += outbox->late[i].result.kind != OUTBOX_UNDER_WAY;
    return count;
}

/* ---- settle ---- */

/* The arrays of the statement. */
struct settled {
    struct buf claims, ids, results, pauses, reasons;
    size_t count;
};

static void put_settled(struct outbox *outbox, struct settled *settled, const char *claim_id, struct str id,
                        const struct outbox_result *result, int64_t attempts)
{
    static const char *const words[] = {[OUTBOX_DONE] = "done",
                                        [OUTBOX_RETRY] = "retry",
                                        [OUTBOX_POISON] = "dead",
                                        [OUTBOX_RELEASE] = "released",
                                        [OUTBOX_OUTAGE] = "outage"};
    struct outbox_claim *claim = &outbox->claim;
    int64_t pause_ms = 0;
    if (result->kind == OUTBOX_UNDER_WAY)
        return;
    if (result->kind == OUTBOX_RETRY) {
        pause_ms = outbox_backoff_ms(&outbox->settings, attempts + 1);
        if (!claim->backoff_ms || pause_ms < claim->backoff_ms)
            claim->backoff_ms = pause_ms;
    }
    if (result->kind == OUTBOX_OUTAGE)
        pause_ms = claim->outage_pause_ms;
    settled->count++;
    db_array_put(&settled->claims, str_from(claim_id));
    db_array_put(&settled->ids, id);
    db_array_put(&settled->results, str_from(words[result->kind]));
    db_array_put_i64(&settled->pauses, pause_ms);
    db_array_put(&settled->reasons, str_from(result->reason));
}

/* Adds the statement that settles everything that has a result; returns how many that are. */
static size_t add_settle(struct outbox *outbox, struct db_conn *conn)
{
    const struct outbox_claim *claim = &outbox->claim;
    struct settled settled = {0};
    size_t done = 0;
    while (done < claim->count && claim->results[done].kind == OUTBOX_DONE)
        done++;
    if (done == claim->count && !claim->is_moved && outbox_late_ended(outbox) == 0 &&
        !log_enabled(LOG_LEVEL_DEBUG)) { /* which needs the names of events */
        db_pipeline_add(conn, &outbox->sql.settle_done,
                        DB_PARAMS(db_uuid(str_from(claim->id)), db_text(buf_str(&claim->places))));
        return done;
    }
    for (size_t i = 0; i < claim->count; i++)
        put_settled(outbox, &settled, claim->id, claim->events[i].id, &claim->results[i],
                    claim->events[i].attempts);
    for (size_t i = 0; i < outbox->late_count; i++)
        put_settled(outbox, &settled, outbox->late[i].claim_id, str_from(outbox->late[i].id),
                    &outbox->late[i].result, outbox->late[i].attempts);
    db_pipeline_add(
        conn, &outbox->sql.settle,
        DB_PARAMS(db_text_array(db_array_end(&settled.claims)), db_text_array(db_array_end(&settled.ids)),
                  db_text_array(db_array_end(&settled.results)), db_text_array(db_array_end(&settled.pauses)),
                  db_text_array(db_array_end(&settled.reasons))));
    buf_deinit(&settled.claims), buf_deinit(&settled.ids), buf_deinit(&settled.results);
    buf_deinit(&settled.pauses), buf_deinit(&settled.reasons);
    return settled.count;
}

/* ---- claim ---- */

/* The claim's id is known here before the database has it: if the reply is lost, the claim can still be released. */
static void add_claim(struct outbox *outbox, struct db_conn *conn, struct buf *left_out)
{
    struct outbox_claim *claim = &outbox->claim;
    const struct outbox_settings *settings = &outbox->settings;
    const struct outbox_table *table = outbox->config.table;
    bool leaves_out = table->turn && !table->sequence;
    int64_t stride = !leaves_out ? OUTBOX_STRIDE : settings->batch < TURNS ? 1 : settings->batch / TURNS;
    unsigned columns;
    struct uuid uuid = uuid_random();
    uuid_format(&uuid, claim->doubtful);
    struct db_param params[OUTBOX_CLAIM_PARAMS + OUTBOX_AGGREGATE_MAX + 2] = {
        db_i64(outbox_walk_rows_max(outbox)), db_i64(settings->batch),
        db_uuid(str_from(claim->doubtful)),   db_cstr(outbox->worker),
        db_i64(settings->lease_ms),           db_i64(stride),
    };
    const struct db_statement *statement = outbox_walk_next(outbox, params + OUTBOX_CLAIM_PARAMS, &columns);
    params[OUTBOX_CLAIM_PARAMS + columns] = leaves_out ? db_text_array(db_array_end(left_out)) : DB_END;
    params[OUTBOX_CLAIM_PARAMS + columns + leaves_out] = DB_END;
    db_pipeline_add(conn, statement, params);
}

/* Columns of a claimed row: how the walk ended, where to go on, then the event: its order, its place in the table, id, … */
static void take_events(struct outbox *outbox, struct db_result *rows)
{
    struct outbox_claim *claim = &outbox->claim;
    const struct outbox_table *table = outbox->config.table;
    size_t count = db_result_rows(rows);
    unsigned place_column = 2 + outbox_walk_columns(table), id_column = place_column + 1;
    if (count == 1 && db_result_is_null(rows, 0, id_column))
        count = 0;
    claim->rows = rows;
    claim->count = count;
    claim->events = arena_zalloc(&claim->arena, (count + 1) * sizeof *claim->events);
    claim->results = arena_zalloc(&claim->arena, (count + 1) * sizeof *claim->results);
    for (size_t i = 0; i < count; i++) {
        struct outbox_event *event = &claim->events[i];
        unsigned at = id_column;
        bool is_same_run = i > 0 && table->sequence;
        event->id = db_result_str(rows, i, at++);
        for (unsigned j = 0; table->aggregate[j].name; j++) {
            event->aggregate[j] = db_result_str(rows, i, at++);
            is_same_run = is_same_run && str_eq(event->aggregate[j], event[-1].aggregate[j]);
        }
        event->attempts = db_result_i64(rows, i, at++);
        event->claims = db_result_i64(rows, i, at++);
        event->event_type = db_result_str(rows, i, at++);
        event->payload = db_result_str(rows, i, at++);
        for (unsigned j = 0; table->extra[j]; j++, at++)
            event->extra[j] = db_result_is_null(rows, i, at) ? STR_NONE : db_result_str(rows, i, at);
        event->run = i == 0 ? 0 : event[-1].run + !is_same_run;
        db_array_put(&claim->places, db_result_str(rows, i, place_column));
    }
    db_array_end(&claim->places);
}

/* ---- the exchange ---- */

enum { AT_SETTLE = 2, STATEMENTS_MAX = 5 };

/* Results may be lost in a crash (outbox.h). The index is the right plan even while the table is small or its statistics are old,
 * and a prepared plan outlives both. */
static const struct db_statement local_sql =
    DB_STATEMENT("SELECT set_config('synchronous_commit', 'off', true),"
                 " set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),"
                 " set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),"
                 " set_config('enable_memoize', 'off', true)");

/* A claim whose COMMIT was not answered holds rows that nobody knows of. */
static enum status release_doubtful(struct outbox *outbox, struct db_conn *conn, int64_t deadline_ns,
                                    struct error *error)
{
    struct outbox_claim *claim = &outbox->claim;
    if (!claim->doubtful[0])
        return STATUS_OK;
    enum status status = db_exec(conn, &outbox->sql.release, DB_PARAMS(db_uuid(str_from(claim->doubtful))),
                                 deadline_ns, NULL, error);
    if (status == STATUS_OK)
        claim->doubtful[0] = '\0';
    return status;
}

/* Rows that were moved by hand, as by VACUUM FULL, are not where the claim has put them: those are settled by their ids. */
static void settle_moved(struct outbox *outbox, struct db_conn *conn, int64_t deadline_ns)
{
    struct outbox_claim *claim = &outbox->claim;
    struct db_result *rows = NULL;
    struct error error = {0};
    claim->is_moved = true;
    db_pipeline_begin(conn);
    add_settle(outbox, conn);
    if (db_pipeline_end(conn, deadline_ns, &rows, 1, NULL, &error) != STATUS_OK)
        return; /* they are published again after the lease */
    claim->settled += db_result_rows(rows);
    outbox_report_settled(outbox->config.table, rows);
    db_result_free(rows);
}

static void take_settled(struct outbox *outbox, struct db_conn *conn, struct db_result *rows,
                         size_t unsettled, int64_t deadline_ns)
{
    struct outbox_claim *claim = &outbox->claim;
    claim->settled = db_result_rows(rows);
    outbox_report_settled(outbox->config.table, rows);
    if (claim->settled < unsettled && !claim->is_moved)
        settle_moved(outbox, conn, deadline_ns);
    if (claim->settled < unsettled)
        log_warn("outbox_claim_lost", LOG_CSTR("module", outbox->config.table->module),
                 LOG_INT("events", unsettled - claim->settled));
    remove_settled(outbox);
}

static void empty_claim(struct outbox_claim *claim)
{
    db_result_free(claim->rows);
    claim->rows = NULL;
    claim->count = 0;
    buf_clear(&claim->places);
    claim->is_moved = false;
    arena_reset(&claim->arena);
    claim->more = false;
}

/* Takes over `rows`. */
static void take_claimed(struct outbox *outbox, struct db_result *rows, int64_t sent_ns)
{
    struct outbox_claim *claim = &outbox->claim;
    memcpy(claim->id, claim->doubtful, sizeof claim->id);
    claim->doubtful[0] = '\0';
    claim->claimed_ns = sent_ns;
    take_events(outbox, rows);
    claim->more = outbox_walk_move(outbox, rows, claim->count);
}

/* BEGIN, local settings, [settle,] [claim,] COMMIT */
enum status outbox_claim_exchange(struct outbox *outbox, struct db_conn *conn, bool claims,
                                  int64_t deadline_ns, struct error *error)
{
    struct outbox_claim *claim = &outbox->claim;
    const struct outbox_later *later = outbox->config.later;
    struct db_result *results[STATEMENTS_MAX] = {NULL};
    struct buf left_out = {0};
    size_t unsettled = 0;
    bool settles = claim->count > 0 || outbox_late_ended(outbox) > 0;
    int64_t sent_ns = clock_mono_ns();
    claim->backoff_ms = 0;
    claim->settled = 0;
    enum status status = release_doubtful(outbox, conn, deadline_ns, error);
    if (status != STATUS_OK)
        return status;
    if (claims && later)
        claims = later->may_claim(outbox->config.context, &left_out);
    if (!claims)
        claim->more = false;
    if (!settles && !claims) {
        buf_deinit(&left_out);
        return STATUS_OK;
    }
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
    db_pipeline_add(conn, &local_sql, DB_NO_PARAMS);
    if (settles)
        unsettled = add_settle(outbox, conn);
    if (claims)
        add_claim(outbox, conn, &left_out);
    buf_deinit(&left_out);
    db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
    size_t count = 3 + (size_t)settles + (size_t)claims, at_claim = AT_SETTLE + (size_t)settles;
    status = db_pipeline_end(conn, deadline_ns, results, count, NULL, error);
    if (status != STATUS_OK) {
        db_rollback(conn);
        return status;
    }
    if (settles)
        take_settled(outbox, conn, results[AT_SETTLE], unsettled, deadline_ns);
    empty_claim(claim);
    if (claims) {
        take_claimed(outbox, results[at_claim], sent_ns);
        results[at_claim] = NULL;
    }
    for (size_t i = 0; i < STATEMENTS_MAX; i++)
        db_result_free(results[i]);
    return STATUS_OK;
}
