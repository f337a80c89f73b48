/* Verdicts: as the publisher gives them, what they come to, and who is told. */
#include <stdarg.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/metrics.h"
#include "outbox/outbox_inside.h"

/* ---- the publisher's ---- */

static void judge(struct outbox_batch *batch, size_t at, enum outbox_verdict_kind kind, const char *format,
                  va_list args)
{
    struct outbox_verdict *verdict = &batch->verdicts[at];
    verdict->kind = kind;
    int len = vsnprintf(verdict->reason, sizeof verdict->reason, format, args);
    struct str whole = str_from(verdict->reason);
    if (len >= (int)sizeof verdict->reason) /* it may end inside a character: one byte less shows where */
        whole = str_utf8_cut(whole, whole.len - 1);
    verdict->reason[whole.len] = '\0';
    /* One byte that PostgreSQL does not take, and no verdict of the batch could be written. */
    if (!str_is_utf8(whole))
        for (char *c = verdict->reason; *c; c++)
            *c = *c & 0x80 ? '?' : *c;
}

void outbox_batch_retry(struct outbox_batch *batch, size_t at, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    judge(batch, at, OUTBOX_RETRY, format, args);
    va_end(args);
}

void outbox_batch_poison(struct outbox_batch *batch, size_t at, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    judge(batch, at, OUTBOX_POISON, format, args);
    va_end(args);
}

void outbox_batch_outage(struct outbox_batch *batch, size_t at, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    judge(batch, at, OUTBOX_OUTAGE, format, args);
    va_end(args);
}

void outbox_batch_release(struct outbox_batch *batch, size_t at)
{
    batch->verdicts[at].kind = OUTBOX_RELEASE;
}

/* It comes again, so those behind it of its aggregate wait. */
static bool holds(const struct outbox_verdict *verdict)
{
    return verdict->kind == OUTBOX_RETRY || verdict->kind == OUTBOX_RELEASE || verdict->kind == OUTBOX_OUTAGE;
}

bool outbox_batch_is_held(const struct outbox_batch *batch, size_t at)
{
    for (size_t i = at; i > 0 && batch->events[i - 1].run == batch->events[at].run; i--)
        if (holds(&batch->verdicts[i - 1]))
            return true;
    return false;
}

/* ---- what they come to ---- */

void outbox_verdicts_conclude(struct outbox_claims *claims)
{
    bool held = false;
    for (size_t i = 0; i < claims->count; i++) {
        struct outbox_verdict *verdict = &claims->verdicts[i];
        if (i > 0 && claims->events[i].run != claims->events[i - 1].run)
            held = false;
        if (held && verdict->kind != OUTBOX_OUTAGE)
            verdict->kind = OUTBOX_RELEASE;
        held |= holds(verdict);
        /* Those behind it were held back by the publisher: nothing blocks them now, but they are for the next
         * claim. */
        if (verdict->kind == OUTBOX_RETRY && claims->events[i].attempts + 1 >= claims->settings->attempts_max)
            verdict->kind = OUTBOX_POISON;
    }
}

void outbox_verdicts_doubt(struct outbox_claims *claims)
{
    for (size_t i = 0; i < claims->count; i++)
        if (claims->verdicts[i].kind == OUTBOX_DONE)
            claims->verdicts[i].kind = OUTBOX_RELEASE;
    claims->is_relaxed = false;
}

const char *outbox_verdict_word(enum outbox_verdict_kind kind)
{
    static const char *const words[] = {[OUTBOX_DONE] = "done",
                                        [OUTBOX_RETRY] = "retry",
                                        [OUTBOX_POISON] = "dead",
                                        [OUTBOX_RELEASE] = "left",
                                        [OUTBOX_OUTAGE] = "away"};
    return words[kind];
}

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

void outbox_log_enqueued(const struct outbox_table *table, struct str event_type, struct str id)
{
    log_debug("outbox_event_enqueued", LOG_CSTR("module", table->module), LOG_STR("eventType", event_type),
              LOG_STR("eventId", id));
}

/* ---- who is told; rows: verdict, event type, age in ms, id, reason, attempts, what the table has logged ---- */

enum { LOGGED = 6, FIELDS_MAX = 5 + OUTBOX_LOGGED_MAX + 1 };

static void report(const struct outbox_table *table, const struct db_result *rows, size_t row,
                   enum log_level level, const char *event)
{
    struct log_field fields[FIELDS_MAX] = {LOG_CSTR("module", table->module),
                                           LOG_STR("eventType", db_result_str(rows, row, 1)),
                                           LOG_STR("id", db_result_str(rows, row, 3))};
    size_t count = 3;
    for (unsigned i = 0; table->logged[i].name; i++)
        fields[count++] = table->logged[i].is_number
                              ? LOG_INT(table->logged[i].name, db_result_i64(rows, row, LOGGED + i))
                              : LOG_STR(table->logged[i].name, db_result_str(rows, row, LOGGED + i));
    if (level != LOG_LEVEL_DEBUG) {
        fields[count++] = LOG_INT("attempt", db_result_i64(rows, row, 5));
        fields[count++] = LOG_STR("error", db_result_str(rows, row, 4));
    }
    log_write(level, event, fields);
}

static void report_row(const struct outbox_table *table, const struct db_result *rows, size_t row,
                       const struct outbox_counters *counters)
{
    struct str verdict = db_result_str(rows, row, 0);
    if (str_eq(verdict, STR("done"))) {
        metric_add(counters->success, 1);
        metric_observe(counters->latency, (double)db_result_i64(rows, row, 2));
        if (log_enabled(LOG_LEVEL_DEBUG))
            report(table, rows, row, LOG_LEVEL_DEBUG, "outbox_publish_succeeded");
    } else if (str_eq(verdict, STR("away"))) { /* the log has one line for the whole outage */
        metric_add(counters->failed, 1);
    } else if (!str_eq(verdict, STR("left"))) {
        bool dead = str_eq(verdict, STR("dead"));
        metric_add(counters->failed, 1);
        if (dead)
            metric_add(counters->dead, 1);
        report(table, rows, row, dead ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN,
               dead ? "outbox_event_dead_lettered" : "outbox_publish_failed");
    }
}

void outbox_verdicts_report(const struct outbox_table *table, const struct db_result *rows)
{
    struct outbox_counters counters = {0};
    struct str type = STR_NONE;
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        if (i == 0 || !str_eq(type, db_result_str(rows, i, 1))) {
            type = db_result_str(rows, i, 1);
            outbox_metrics_of(table->module, type, &counters);
        }
        report_row(table, rows, i, &counters);
    }
}
