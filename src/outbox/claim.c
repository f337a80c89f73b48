/* What a batch says to the database: its verdicts, and which events come next. Both go out in one transaction
 * and one round trip, so a busy engine waits for the database once a batch. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "outbox/outbox_inside.h"

enum { WALK_MIN = 100 }; /* rows looked at by one claim, at least: most of them may be waiting */

void outbox_claims_init(struct outbox_claims *claims)
{
    arena_init(&claims->arena, 8192);
    buf_init(&claims->ids);
    buf_init(&claims->cursor_text);
}

static void clear_batch(struct outbox_claims *claims)
{
    db_result_free(claims->rows);
    claims->rows = NULL;
    claims->count = 0;
    buf_clear(&claims->ids);
    arena_reset(&claims->arena);
}

void outbox_claims_deinit(struct outbox_claims *claims)
{
    clear_batch(claims);
    arena_deinit(&claims->arena);
    buf_deinit(&claims->ids);
    buf_deinit(&claims->cursor_text);
}

/* ---- parameters ---- */

struct number {
    char text[24];
};

static struct db_param number_param(struct number *number, int64_t value)
{
    int len = snprintf(number->text, sizeof number->text, "%lld", (long long)value);
    return (struct db_param){str_of(number->text, (size_t)len)};
}

struct settle_arrays {
    struct buf verdicts, pauses, reasons;
};

static void put_verdicts(struct outbox_claims *claims, struct settle_arrays *arrays)
{
    db_array_begin(&arrays->verdicts);
    db_array_begin(&arrays->pauses);
    db_array_begin(&arrays->reasons);
    claims->backoff_ms = 0;
    for (size_t i = 0; i < claims->count; i++) {
        const struct outbox_verdict *verdict = &claims->verdicts[i];
        struct number number;
        int64_t pause_ms = 0;
        if (verdict->kind == OUTBOX_RETRY) {
            pause_ms = outbox_backoff_ms(claims->settings, claims->events[i].attempts + 1);
            if (!claims->backoff_ms || pause_ms < claims->backoff_ms)
                claims->backoff_ms = pause_ms;
        }
        if (verdict->kind == OUTBOX_OUTAGE)
            pause_ms = claims->away_ms;
        db_array_put(&arrays->verdicts, str_from(outbox_verdict_word(verdict->kind)));
        db_array_put(&arrays->pauses, number_param(&number, pause_ms).value);
        db_array_put(&arrays->reasons, str_from(verdict->reason));
    }
    db_array_end(&arrays->verdicts);
    db_array_end(&arrays->pauses);
    db_array_end(&arrays->reasons);
}

static enum status add_settle(struct outbox_claims *claims, struct db_conn *conn, struct error *error)
{
    struct settle_arrays arrays;
    buf_init(&arrays.verdicts), buf_init(&arrays.pauses), buf_init(&arrays.reasons);
    put_verdicts(claims, &arrays);
    const struct db_param params[] = {{str_from(claims->id)},
                                      {buf_str(&claims->ids)},
                                      {buf_str(&arrays.verdicts)},
                                      {buf_str(&arrays.pauses)},
                                      {buf_str(&arrays.reasons)}};
    enum status status = db_pipeline_add(conn, &claims->sql->settle, params, error);
    buf_deinit(&arrays.verdicts), buf_deinit(&arrays.pauses), buf_deinit(&arrays.reasons);
    return status;
}

static int64_t walk_max(const struct outbox_claims *claims)
{
    return claims->settings->batch > WALK_MIN ? claims->settings->batch : WALK_MIN;
}

/* The claim's id is ours before the database has it: if the answer is lost, the claim can still be given
 * back. */
static enum status add_claim(struct outbox_claims *claims, struct db_conn *conn, struct error *error)
{
    const struct outbox_settings *settings = claims->settings;
    struct uuid uuid = uuid_random();
    struct number numbers[4];
    uuid_format(&uuid, claims->doubtful);
    struct db_param params[OUTBOX_CLAIM_PARAMS + OUTBOX_AGGREGATE_MAX] = {
        number_param(&numbers[0], walk_max(claims)),
        number_param(&numbers[1], settings->batch),
        {str_from(claims->doubtful)},
        {claims->worker},
        number_param(&numbers[2], settings->lease_ms),
        number_param(&numbers[3], OUTBOX_STRIDE),
    };
    for (unsigned i = 0; i < OUTBOX_AGGREGATE_MAX; i++)
        params[OUTBOX_CLAIM_PARAMS + i].value = claims->cursor[i];
    return db_pipeline_add(
        conn, claims->cursor[0].ptr ? &claims->sql->claim_after : &claims->sql->claim_first, params, error);
}

/* ---- the answer ---- */

static unsigned cursor_columns(const struct outbox_table *table)
{
    return table->sequence ? outbox_aggregate_columns(table) : 0;
}

/* Columns: how far the walk came (rows, aggregate), then the event (line, id, aggregate, …). */
static void read_event(const struct outbox_table *table, const struct db_result *rows, size_t row,
                       struct outbox_event *event)
{
    unsigned aggregate = outbox_aggregate_columns(table), at = 1 + cursor_columns(table);
    event->id = db_result_str(rows, row, ++at);
    at++;
    for (unsigned i = 0; i < aggregate; i++)
        event->aggregate[i] = db_result_str(rows, row, at++);
    event->attempts = db_result_i64(rows, row, at++);
    event->claims = db_result_i64(rows, row, at++);
    event->event_type = db_result_str(rows, row, at++);
    event->payload = db_result_str(rows, row, at++);
    for (unsigned i = 0; table->extra[i]; i++, at++)
        event->extra[i] = db_result_is_null(rows, row, at) ? STR_NONE : db_result_str(rows, row, at);
}

static bool is_same_run(const struct outbox_table *table, const struct outbox_event *a,
                        const struct outbox_event *b)
{
    bool same = table->sequence != NULL;
    for (unsigned i = 0; same && table->aggregate[i].name; i++)
        same = str_eq(a->aggregate[i], b->aggregate[i]);
    return same;
}

static void take_events(struct outbox_claims *claims, struct db_result *rows)
{
    size_t count = db_result_rows(rows);
    unsigned id_column = 2 + cursor_columns(claims->table);
    if (count == 1 && db_result_is_null(rows, 0, id_column))
        count = 0;
    claims->rows = rows;
    claims->count = count;
    claims->events = arena_zalloc(&claims->arena, (count + 1) * sizeof *claims->events);
    claims->verdicts = arena_zalloc(&claims->arena, (count + 1) * sizeof *claims->verdicts);
    db_array_begin(&claims->ids);
    for (size_t i = 0; i < count; i++) {
        struct outbox_event *event = &claims->events[i];
        read_event(claims->table, rows, i, event);
        if (i > 0)
            event->run = event[-1].run + !is_same_run(claims->table, event, &event[-1]);
        db_array_put(&claims->ids, claims->events[i].id);
    }
    db_array_end(&claims->ids);
}

static void set_cursor(struct outbox_claims *claims, const struct str *aggregate)
{
    unsigned columns = outbox_aggregate_columns(claims->table);
    size_t starts[OUTBOX_AGGREGATE_MAX];
    buf_clear(&claims->cursor_text);
    for (unsigned i = 0; i < columns; i++) {
        starts[i] = buf_len(&claims->cursor_text);
        buf_put_str(&claims->cursor_text, aggregate[i]);
    }
    buf_put_char(&claims->cursor_text, '\0'); /* never NULL, also where all are empty */
    for (unsigned i = 0; i < columns; i++)
        claims->cursor[i] =
            str_of(claims->cursor_text.data + claims->cursor_text.start + starts[i], aggregate[i].len);
}

/* A claim that did not come to the end goes on behind the last row it looked at, so that one busy aggregate does not keep
 * the others waiting, and it goes round until a walk from the beginning to the end found nothing. */
static void move_cursor(struct outbox_claims *claims)
{
    bool from_middle = claims->cursor[0].ptr != NULL;
    int64_t walked = db_result_rows(claims->rows) ? db_result_i64(claims->rows, 0, 0) : 0;
    struct str last[OUTBOX_AGGREGATE_MAX] = {STR_NONE};
    claims->more = from_middle || claims->count > 0 || walked == walk_max(claims);
    claims->cursor[0] = STR_NONE;
    if (walked == walk_max(claims)) {
        for (unsigned i = 0; i < cursor_columns(claims->table); i++)
            last[i] = db_result_str(claims->rows, 0, 1 + i);
        set_cursor(claims, last);
    }
}

static void on_settled(struct outbox_claims *claims, const struct db_result *rows)
{
    claims->settled = db_result_rows(rows);
    outbox_verdicts_report(claims->table, rows);
    if (claims->settled < claims->count)
        log_warn("outbox_claim_lost", LOG_CSTR("module", claims->table->module),
                 LOG_INT("events", claims->count - claims->settled));
}

/* ---- the exchange ---- */

static enum status release_doubtful(struct outbox_claims *claims, struct db_conn *conn, int64_t deadline_ns,
                                    struct error *error)
{
    if (!claims->doubtful[0])
        return STATUS_OK;
    enum status status = db_exec(conn, &claims->sql->release,
                                 (struct db_param[]){{str_from(claims->doubtful)}}, deadline_ns, NULL, error);
    if (status == STATUS_OK)
        claims->doubtful[0] = '\0';
    return status;
}

enum { AT_SETTLE = 2, STATEMENTS_MAX = 5 };

/* begin, local, [settle,] [claim,] commit. *count of them went out. */
static enum status add_all(struct outbox_claims *claims, struct db_conn *conn, bool claim, size_t *count,
                           struct error *error)
{
    const struct outbox_sql *sql = claims->sql;
    enum status status = db_pipeline_add(conn, &sql->begin, NULL, error);
    if (status == STATUS_OK)
        status = db_pipeline_add(conn, &sql->local, NULL, error);
    if (status == STATUS_OK && claims->count > 0)
        status = add_settle(claims, conn, error);
    if (status == STATUS_OK && claim)
        status = add_claim(claims, conn, error);
    if (status == STATUS_OK)
        status = db_pipeline_add(conn, &sql->commit, NULL, error);
    *count = 3 + (size_t)(claims->count > 0) + (size_t)claim;
    return status;
}

static enum status run(struct outbox_claims *claims, struct db_conn *conn, bool claim, int64_t deadline_ns,
                       struct db_result **results, struct error *error)
{
    size_t count = 0;
    enum status status = db_pipeline_begin(conn, error);
    if (status == STATUS_OK)
        status = add_all(claims, conn, claim, &count, error);
    if (status == STATUS_OK)
        status = db_pipeline_end(conn, deadline_ns, results, count, NULL, error);
    if (status != STATUS_OK)
        db_rollback(conn);
    return status;
}

enum status outbox_claims_exchange(struct outbox_claims *claims, struct db_conn *conn, bool claim,
                                   int64_t deadline_ns, struct error *error)
{
    struct db_result *results[STATEMENTS_MAX] = {NULL};
    bool settles = claims->count > 0;
    enum status status = release_doubtful(claims, conn, deadline_ns, error);
    if (status != STATUS_OK || (!settles && !claim))
        return status;
    int64_t sent_ns = clock_mono_ns();
    status = run(claims, conn, claim, deadline_ns, results, error);
    if (status != STATUS_OK)
        return status;
    claims->settled = 0;
    if (settles)
        on_settled(claims, results[AT_SETTLE]);
    clear_batch(claims);
    claims->more = false;
    if (claim) {
        size_t at = AT_SETTLE + (size_t)settles;
        memcpy(claims->id, claims->doubtful, sizeof claims->id);
        claims->doubtful[0] = '\0';
        claims->claimed_ns = sent_ns;
        take_events(claims, results[at]);
        results[at] = NULL;
        move_cursor(claims);
    }
    for (size_t i = 0; i < STATEMENTS_MAX; i++)
        db_result_free(results[i]);
    return STATUS_OK;
}
