/* Lookups, events and time of the ledger's tests. */
#include "ledger_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "../db/pg_fixture.h"
#include "base/log.h"

struct db_pool *pool;
struct arena arena;

/* ---- SQL of the tests' own ---- */

const char *sql(const char *format, ...)
{
    static _Thread_local char text[1024];
    char statement_text[2048];
    struct db_statement statement;
    struct db_result *rows = NULL;
    struct db_conn *conn = NULL;
    struct error error = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(statement_text, sizeof statement_text, format, args);
    va_end(args);
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    statement = db_statement_of(str_from(statement_text));
    if (db_acquire(pool, deadline_ns, &conn, &error) != STATUS_OK ||
        db_query(conn, &statement, NULL, deadline_ns, &rows, &error) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", statement_text, error.message);
        abort();
    }
    snprintf(text, sizeof text, "%s", db_result_rows(rows) ? db_result_str(rows, 0, 0).ptr : "");
    db_result_free(rows);
    db_release(conn);
    return text;
}

void windows_end(void)
{
    sql("update hydration.flights set begun_at = begun_at - interval '1 h', window_until = window_until - interval '1 h'");
}

void absences_expire(void)
{
    sql("update hydration.absences set until = until - interval '1 h'");
}

void copies_expire(void)
{
    sql("update hydration.copies set until = until - interval '1 h', heard_at = heard_at - interval '1 h'");
}

/* ---- asking ---- */

struct hydration_policy policy_of(void)
{
    struct hydration_policy policy = {.module = "hydration",
                                      .wait_timeout_ms = 500,
                                      .negative_cache_ttl_ms = 300000,
                                      .in_flight_window_ms = 5000,
                                      .max_retries = 1,
                                      .retry_backoff_ms = 200};
    policy.in_flight_window_ms = 600000; /* ends when a test says so */
    return policy;
}

struct hydration_need need_of(const char *id, const char *caller, enum hydration_mode mode,
                              const char *fields)
{
    static _Thread_local struct str names[HYDRATION_FIELDS_MAX];
    struct hydration_need need = {.tenant = STR("t"),
                                  .caller = str_from(caller),
                                  .entity_type = STR("item"),
                                  .entity_id = str_from(id),
                                  .cover = {mode, names, 0}};
    struct str rest = str_from(fields), name;
    while (mode == HYDRATION_PARTIAL && str_split(&rest, ',', &name))
        names[need.cover.field_count++] = name;
    return need;
}

struct hydration_finding find_by(const struct hydration_need *need, const struct hydration_policy *policy,
                                 const char *correlation_id, struct arena *texts)
{
    struct hydration_finding claim;
    struct error error = {0};
    if (hydration_ledger_find(pool, need, policy, str_from(correlation_id), COPY_TTL_MS,
                              clock_deadline_ms(PATIENCE_MS), texts, &claim, &error) != STATUS_OK) {
        fprintf(stderr, "claim: %s\n", error.message);
        abort();
    }
    return claim;
}

struct hydration_finding find(const char *caller, enum hydration_mode mode, const char *fields,
                              const char *correlation_id)
{
    const struct hydration_need need = need_of("a", caller, mode, fields);
    const struct hydration_policy policy = policy_of();
    return find_by(&need, &policy, correlation_id, &arena);
}

/* "ask full", "ask partial a,b", "join", "copy {…}", "absent", "inaccessible" */
const char *finding_text(const struct hydration_finding *claim)
{
    static const char *const modes[] = {"existence", "partial", "full"};
    static char text[512];
    struct buf fields = {0};
    for (unsigned i = 0; i < claim->event.cover.field_count; i++)
        buf_printf(&fields, "%s%.*s", i ? "," : " ", STR_ARG(claim->event.cover.fields[i]));
    switch (claim->kind) {
    case HYDRATION_LEDGER_ASK:
        snprintf(text, sizeof text, "ask %s%.*s", modes[claim->event.cover.mode], STR_ARG(buf_str(&fields)));
        break;
    case HYDRATION_LEDGER_COPY: snprintf(text, sizeof text, "copy %.*s", STR_ARG(claim->event.data)); break;
    case HYDRATION_LEDGER_ABSENT:
        snprintf(text, sizeof text, "%s",
                 claim->event.reason == HYDRATION_ABSENT ? "absent" : "inaccessible");
        break;
    case HYDRATION_LEDGER_JOIN: snprintf(text, sizeof text, "join"); break;
    }
    buf_deinit(&fields);
    return text;
}

/* What this caller is told; asks under the correlation id. */
void expect_of(const char *caller, enum hydration_mode mode, const char *fields, const char *correlation_id,
               const char *wanted)
{
    const struct hydration_finding got = find(caller, mode, fields, correlation_id);
    assert_string_equal(finding_text(&got), wanted);
}

/* Without asking: what is known to this caller. */
void expect_known(const char *caller, enum hydration_mode mode, const char *fields, const char *wanted)
{
    expect_of(caller, mode, fields, "", wanted);
}

bool retry(const char *caller, const char *correlation_id)
{
    const struct hydration_need need = need_of("a", caller, EXISTENCE, "");
    const struct hydration_policy policy = policy_of();
    struct error error = {0};
    bool granted = false;
    assert_int_equal(hydration_ledger_retry(pool, &need, &policy, str_from(correlation_id),
                                            clock_deadline_ms(PATIENCE_MS), &granted, &error),
                     STATUS_OK);
    return granted;
}

/* ---- hearing ---- */

struct hydration_event updated(int64_t version, const char *data, const char *correlation_id)
{
    return (struct hydration_event){.kind = HYDRATION_EVENT_UPDATED,
                                    .tenant = STR("t"),
                                    .entity_type = STR("item"),
                                    .entity_id = STR("a"),
                                    .module = STR("intake"),
                                    .correlation_id = str_from(correlation_id),
                                    .data = str_from(data),
                                    .version = version};
}

struct hydration_event not_found(int64_t version, const char *correlation_id)
{
    struct hydration_event event = updated(version, "", correlation_id);
    event.kind = HYDRATION_EVENT_NOT_FOUND;
    event.reason = HYDRATION_ABSENT;
    return event;
}

struct hydration_event private_of(struct hydration_event event, const char *caller)
{
    event.is_private = true;
    event.caller = str_from(caller);
    return event;
}

struct hydration_event hidden(int64_t version, const char *correlation_id, const char *caller)
{
    struct hydration_event event = private_of(not_found(version, correlation_id), caller);
    event.reason = HYDRATION_INACCESSIBLE;
    return event;
}

struct hydration_event covering(struct hydration_event event, enum hydration_mode mode,
                                const struct str *fields, unsigned count)
{
    event.has_cover = true;
    event.cover = (struct hydration_cover){mode, fields, count};
    return event;
}

void store_all(const struct hydration_event *events, size_t count)
{
    struct db_conn *conn = NULL;
    struct error error = {0};
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    if (db_acquire(pool, deadline_ns, &conn, &error) != STATUS_OK ||
        db_begin(conn, DB_READ_COMMITTED, deadline_ns, &error) != STATUS_OK ||
        hydration_ledger_store(conn, events, count, deadline_ns, &error) != STATUS_OK ||
        db_commit(conn, deadline_ns, &error) != STATUS_OK) {
        fprintf(stderr, "write: %s\n", error.message);
        abort();
    }
    db_release(conn);
}

void store(struct hydration_event event)
{
    store_all(&event, 1);
}

/* ---- life ---- */

int ledger_rig_start(void **state)
{
    (void)state;
    struct error error = {0};
    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    struct db_target target = pg_fixture_target();
    target.connections_max = THREADS;
    target.fixed_plans = true;
    target.statement_timeout_ms = PATIENCE_MS;
    arena = ARENA(4096);
    if (db_pool_create(&target, &pool, &error) == STATUS_OK &&
        db_migrate(pool, "hydration", hydration_migrations, clock_deadline_ms(PATIENCE_MS), NULL, &error) ==
            STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", error.message);
    return -1;
}

int ledger_rig_stop(void **state)
{
    (void)state;
    arena_deinit(&arena);
    db_pool_destroy(pool);
    pg_fixture_stop();
    return 0;
}

int ledger_rig_clear(void **state)
{
    (void)state;
    arena_reset(&arena);
    sql("truncate hydration.copies, hydration.absences, hydration.flights");
    return 0;
}
