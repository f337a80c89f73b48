/* The ledger against a PostgreSQL of its own: every rule of who asks, what is remembered, and what is too old to be believed.
 * Time passes because a test says so: it moves what is stored into the past. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../db/pg_fixture.h"
#include "base/clock.h"
#include "base/log.h"
#include "hydration/ledger.h"

#define PATIENCE_MS 20000
#define COPY_TTL_MS INT64_C(300000)

enum { THREADS = 24 };

#define EXISTENCE HYDRATION_EXISTENCE
#define PARTIAL HYDRATION_PARTIAL
#define FULL HYDRATION_FULL

static struct db_pool *pool;
static struct arena arena;

/* ---- SQL of the tests' own ---- */

static const char *sql(const char *format, ...) PRINTF_LIKE(1, 2);
static const char *sql(const char *format, ...)
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
    db_statement_init(&statement, statement_text, 0, NULL);
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

static void windows_end(void)
{
    sql("update hydration.flights set begun_at = begun_at - interval '1 h', window_until = window_until - interval '1 h'");
}

static void absences_expire(void)
{
    sql("update hydration.absences set until = until - interval '1 h'");
}

static void copies_expire(void)
{
    sql("update hydration.copies set until = until - interval '1 h', heard_at = heard_at - interval '1 h'");
}

/* ---- asking ---- */

static struct hydration_policy policy_of(void)
{
    struct hydration_policy policy = hydration_policy_default;
    policy.in_flight_window_ms = 600000; /* ends when a test says so */
    return policy;
}

static struct hydration_need need_of(const char *id, const char *subject, enum hydration_mode mode,
                                     const char *fields)
{
    static _Thread_local struct str names[HYDRATION_FIELDS_MAX];
    struct hydration_need need = {.tenant = STR("t"),
                                  .subject = str_from(subject),
                                  .entity_type = STR("item"),
                                  .entity_id = str_from(id),
                                  .cover = {mode, names, 0}};
    struct str rest = str_from(fields), name;
    while (mode == HYDRATION_PARTIAL && str_split(&rest, ',', &name))
        names[need.cover.field_count++] = name;
    return need;
}

static struct hydration_finding claim_by(const struct hydration_need *need,
                                         const struct hydration_policy *policy, const char *correlation_id,
                                         struct arena *texts)
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

static struct hydration_finding claim(const char *subject, enum hydration_mode mode, const char *fields,
                                      const char *correlation_id)
{
    const struct hydration_need need = need_of("a", subject, mode, fields);
    const struct hydration_policy policy = policy_of();
    return claim_by(&need, &policy, correlation_id, &arena);
}

/* "ask full", "ask partial a,b", "join", "copy {…}", "absent", "inaccessible" */
static const char *said(const struct hydration_finding *claim)
{
    static const char *const modes[] = {"existence", "partial", "full"};
    static char text[512];
    struct buf fields = {0};
    for (unsigned i = 0; i < claim->cover.field_count; i++)
        buf_printf(&fields, "%s%.*s", i ? "," : " ", STR_ARG(claim->cover.fields[i]));
    switch (claim->verdict) {
    case HYDRATION_LEDGER_ASK:
        snprintf(text, sizeof text, "ask %s%.*s", modes[claim->cover.mode], STR_ARG(buf_str(&fields)));
        break;
    case HYDRATION_LEDGER_COPY: snprintf(text, sizeof text, "copy %.*s", STR_ARG(claim->data)); break;
    case HYDRATION_LEDGER_ABSENT:
        snprintf(text, sizeof text, "%s", claim->reason == HYDRATION_ABSENT ? "absent" : "inaccessible");
        break;
    case HYDRATION_LEDGER_JOIN: snprintf(text, sizeof text, "join"); break;
    }
    buf_deinit(&fields);
    return text;
}

/* What this caller is told; asks under the correlation id. */
static void expect_of(const char *subject, enum hydration_mode mode, const char *fields,
                      const char *correlation_id, const char *wanted)
{
    const struct hydration_finding got = claim(subject, mode, fields, correlation_id);
    assert_string_equal(said(&got), wanted);
}

/* Without asking: what is known to this caller. */
static void expect_known(const char *subject, enum hydration_mode mode, const char *fields,
                         const char *wanted)
{
    expect_of(subject, mode, fields, "", wanted);
}

static bool retry(const char *subject, const char *correlation_id)
{
    const struct hydration_need need = need_of("a", subject, EXISTENCE, "");
    const struct hydration_policy policy = policy_of();
    struct error error = {0};
    bool granted = false;
    assert_int_equal(hydration_ledger_retry(pool, &need, &policy, str_from(correlation_id),
                                            clock_deadline_ms(PATIENCE_MS), &granted, &error),
                     STATUS_OK);
    return granted;
}

/* ---- hearing ---- */

static struct hydration_event updated(int64_t version, const char *data, const char *correlation_id)
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

static struct hydration_event not_found(int64_t version, const char *correlation_id)
{
    struct hydration_event event = updated(version, "", correlation_id);
    event.kind = HYDRATION_EVENT_NOT_FOUND;
    event.reason = HYDRATION_ABSENT;
    return event;
}

static struct hydration_event of(struct hydration_event event, const char *subject) /* private */
{
    event.is_private = true;
    event.subject = str_from(subject);
    return event;
}

static struct hydration_event hidden(int64_t version, const char *correlation_id, const char *subject)
{
    struct hydration_event event = of(not_found(version, correlation_id), subject);
    event.reason = HYDRATION_INACCESSIBLE;
    return event;
}

static struct hydration_event covering(struct hydration_event event, enum hydration_mode mode,
                                       const struct str *fields, unsigned count)
{
    event.has_cover = true;
    event.cover = (struct hydration_cover){mode, fields, count};
    return event;
}

static void hear_all(const struct hydration_event *events, size_t count)
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

static void hear(struct hydration_event event)
{
    hear_all(&event, 1);
}

/* ---- collapse (H3, H4) ---- */

static void test_the_first_asks_and_all_others_join(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    expect_of("u", EXISTENCE, "", "c2", "join");
    expect_of("v", EXISTENCE, "", "c3", "join");
    const struct hydration_finding joined = claim("w", EXISTENCE, "", "c4");
    assert_in_range(joined.ttl_ms, 1, 600000);
    windows_end();
    expect_of("v", EXISTENCE, "", "c5", "ask existence");
    expect_of("u", EXISTENCE, "", "c6", "join");
}

static void test_a_tenant_knows_nothing_of_another(void **state)
{
    (void)state;
    const struct hydration_policy policy = policy_of();
    struct hydration_need other = need_of("a", "u", EXISTENCE, "");
    other.tenant = STR("t2");
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(not_found(0, "c1"));
    expect_of("u", EXISTENCE, "", "c2", "absent");
    struct hydration_finding got = claim_by(&other, &policy, "c3", &arena);
    assert_string_equal(said(&got), "ask existence");
    other = need_of("a", "u", EXISTENCE, "");
    other.entity_type = STR("entitlement");
    got = claim_by(&other, &policy, "c4", &arena);
    assert_string_equal(said(&got), "ask existence");
}

static void test_a_look_claims_nothing(void **state)
{
    (void)state;
    expect_known("u", FULL, "", "join");
    assert_string_equal(sql("select count(*) from hydration.flights"), "0");
    expect_of("u", FULL, "", "c1", "ask full");
}

static pthread_barrier_t barrier;

static void *claim_at_once(void *arg)
{
    const struct hydration_policy policy = policy_of();
    unsigned *asked = arg;
    struct arena own;
    arena_init(&own, 1024);
    for (int round = 0; round < 20; round++) {
        char id[24];
        snprintf(id, sizeof id, "k%d", round);
        const struct hydration_need need = need_of(id, "u", round % 2 ? EXISTENCE : FULL, "");
        pthread_barrier_wait(&barrier);
        *asked += claim_by(&need, &policy, id, &own).verdict == HYDRATION_LEDGER_ASK;
    }
    arena_deinit(&own);
    return NULL;
}

static void test_of_any_number_at_once_one_asks(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    unsigned asked[THREADS] = {0}, sum = 0;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int again = 0; again < 2; again++) { /* the second time the rows are there */
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, claim_at_once, &asked[i]);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        windows_end();
    }
    for (int i = 0; i < THREADS; i++)
        sum += asked[i];
    assert_int_equal(sum, 2 * 20);
    pthread_barrier_destroy(&barrier);
}

static void test_one_retry_in_a_window_and_only_the_publishers(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    expect_of("v", EXISTENCE, "", "c2", "join");
    assert_false(retry("v", "c2"));
    assert_true(retry("u", "c1"));
    assert_false(retry("u", "c1"));
    windows_end();
    assert_false(retry("u", "c1"));
    expect_of("u", EXISTENCE, "", "c3", "ask existence");
    assert_false(retry("u", "c1"));
    assert_true(retry("u", "c3"));
}

static void test_no_retry_behind_an_answer(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(1, "{}", "c1"));
    assert_false(retry("u", "c1"));
}

static void test_who_needs_more_asks_for_all_of_it_once(void **state)
{
    (void)state;
    expect_of("u", PARTIAL, "a,b", "c1", "ask partial a,b");
    expect_of("u", PARTIAL, "b", "c2", "join");
    expect_of("u", EXISTENCE, "", "c3", "join");
    expect_of("u", PARTIAL, "b,c", "c4", "ask full");
    expect_of("u", FULL, "", "c5", "join");
    expect_of("u", PARTIAL, "z", "c6", "join");
    assert_false(retry("u", "c1")); /* 1 + max_retries were asked */
    hear(updated(1, "{\"a\":1,\"b\":2}", "c1"));
    expect_known("u", PARTIAL, "a,b", "copy {\"a\":1,\"b\":2}");
    expect_of("u", FULL, "", "c7", "join"); /* the narrow answer did not end the wide question */
    hear(updated(1, "{\"a\":1,\"b\":2,\"c\":3}", "c4"));
    expect_known("u", FULL, "", "copy {\"a\":1,\"b\":2,\"c\":3}");
}

static void test_the_third_need_waits_and_gets_what_there_is(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(updated(1, "{}", "c1"));
    expect_of("u", PARTIAL, "a", "c2", "ask full");
    hear(covering(updated(1, "{\"a\":1}", "c2"), HYDRATION_PARTIAL, (const struct str[]){STR("a")}, 1));
    struct hydration_finding got = claim("u", FULL, "", "c3"); /* 2 were asked in this window */
    assert_string_equal(said(&got), "join");
    assert_string_equal(got.data.ptr, "{\"a\":1}");
}

/* ---- how much an answer is ---- */

static void test_the_cover_is_what_was_asked_unless_said(void **state)
{
    (void)state;
    const struct str fields[] = {STR("a"), STR("b")};
    expect_of("u", PARTIAL, "a,b", "c1", "ask partial a,b");
    hear(updated(1, "{\"a\":1}", "c1")); /* it has no b: that is known too */
    expect_known("u", PARTIAL, "b", "copy {\"a\":1}");
    expect_known("u", FULL, "", "join");
    hear(covering(updated(2, "{\"a\":1,\"b\":1,\"x\":1}", "c1"), HYDRATION_PARTIAL, fields, 2));
    expect_known("u", PARTIAL, "x", "join");
    hear(covering(updated(3, "{}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("u", FULL, "", "copy {}");
}

static void test_a_change_whose_cover_nobody_said_has_the_members_it_has(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(updated(1, "{\"b\":{\"x\":1},\"a\":[1.50],\"\\u0041\":1}", ""));
    expect_known("u", EXISTENCE, "", "copy {\"b\":{\"x\":1},\"a\":[1.50],\"\\u0041\":1}");
    expect_known("u", PARTIAL, "A,a,b", "copy {\"b\":{\"x\":1},\"a\":[1.50],\"\\u0041\":1}");
    expect_known("u", PARTIAL, "a,x", "join");
    expect_known("u", FULL, "", "join");
}

static void test_the_same_version_adds_up_and_a_newer_one_replaces(void **state)
{
    (void)state;
    const struct str a[] = {STR("a"), STR("m")}, b[] = {STR("b"), STR("m")};
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(covering(updated(5, "{\"a\":1.50,\"m\":1}", ""), HYDRATION_PARTIAL, a, 2));
    hear(covering(updated(5, "{\"b\":2,\"m\":1}", ""), HYDRATION_PARTIAL, b, 2));
    expect_known("u", PARTIAL, "a,b,m", "copy {\"a\":1.50,\"b\":2,\"m\":1}");
    hear(covering(updated(5, "{}", ""), HYDRATION_EXISTENCE, NULL, 0));
    expect_known("u", PARTIAL, "a,b,m", "copy {\"a\":1.50,\"b\":2,\"m\":1}");
    hear(covering(updated(5, "{\"all\":1}", ""), HYDRATION_FULL, NULL, 0));
    hear(covering(updated(5, "{\"a\":1.50,\"m\":1}", ""), HYDRATION_PARTIAL, a, 2));
    expect_known("u", FULL, "", "copy {\"all\":1}");
    hear(covering(updated(6, "{\"a\":2}", ""), HYDRATION_PARTIAL, a, 1));
    expect_known("u", FULL, "", "join");
    expect_known("u", PARTIAL, "a", "copy {\"a\":2}");
    hear(covering(updated(4, "{\"old\":1}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("u", FULL, "", "join");
}

static void test_names_that_postgresql_cannot_hold_are_no_trouble(void **state)
{
    (void)state;
    const struct str a[] = {STR("a")}, b[] = {STR("b")};
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(updated(5, "{\"\\u0000\":1,\"a\":\"\\u0000\"}", ""));
    expect_known("u", PARTIAL, "a", "copy {\"\\u0000\":1,\"a\":\"\\u0000\"}");
    hear(covering(updated(5, "{\"b\":2}", ""), HYDRATION_PARTIAL, b, 1));
    expect_known("u", PARTIAL, "b", "copy {\"b\":2}");
    hear(covering(updated(5, "{\"a\":\"{,\\\"'\\\\\"}", ""), HYDRATION_PARTIAL, a, 1));
    expect_known("u", PARTIAL, "a,b", "copy {\"a\":\"{,\\\"'\\\\\",\"b\":2}");
}

static void test_copies_of_one_version_add_up_to_no_more_than_an_event(void **state)
{
    (void)state;
    const struct str a[] = {STR("a")}, b[] = {STR("b")};
    const size_t bytes = 600 * 1024;
    char *of_a = malloc(bytes + 16), *of_b = malloc(bytes + 16);
    memset(of_a, 'x', bytes + 16);
    memcpy(of_a, "{\"a\":\"", 6);
    memcpy(of_a + bytes, "\"}", 3);
    memcpy(of_b, of_a, bytes + 16);
    of_b[2] = 'b';
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(covering(updated(5, of_a, ""), HYDRATION_PARTIAL, a, 1));
    hear(covering(updated(5, of_b, ""), HYDRATION_PARTIAL, b, 1));
    assert_string_equal(sql("select octet_length(data) || fields::text from hydration.copies"), "614402{b}");
    free(of_a);
    free(of_b);
}

static void test_nothing_is_copied_that_nobody_asked_for(void **state)
{
    (void)state;
    hear(updated(1, "{\"a\":1}", ""));
    hear(not_found(2, ""));
    assert_string_equal(sql("select count(*) from hydration.copies"), "0");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(3, "{\"a\":1}", "c1"));
    windows_end();
    hear(covering(updated(4, "{\"a\":2}", ""), HYDRATION_FULL, NULL,
                  0)); /* a copy is kept up without asking */
    expect_known("u", FULL, "", "copy {\"a\":2}");
    hear(not_found(5, ""));
    expect_of("u", FULL, "", "c2", "ask full");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
}

static void test_an_old_copy_is_asked_for_anew_and_handed_out_with_that(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(7, "{\"a\":1}", "c1"));
    windows_end();
    copies_expire();
    const struct hydration_finding got = claim("u", FULL, "", "c2");
    assert_string_equal(said(&got), "ask full");
    assert_string_equal(got.data.ptr, "{\"a\":1}");
    assert_int_equal(got.version, 7);
    hear(covering(updated(7, "{\"a\":1}", ""), HYDRATION_FULL, NULL, 0)); /* told of: it is good again */
    expect_known("u", FULL, "", "copy {\"a\":1}");
    windows_end();
    copies_expire();
    sql("update hydration.flights set heard_at = heard_at - interval '2 min'"); /* nothing comes that late */
    expect_of("u", FULL, "", "c3", "ask full");
    hear(not_found(0, "c3")); /* its owner forgot it: what is old does not stand against that */
    expect_known("u", FULL, "", "absent");
}

/* ---- the negative cache ---- */

static void test_absent_is_everybodys_until_its_time_is_over(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(not_found(0, "c1"));
    const struct hydration_finding got = claim("v", PARTIAL, "a", "c2");
    assert_string_equal(said(&got), "absent");
    assert_in_range(got.ttl_ms, 1, 300000);
    assert_int_equal(got.subject.len, 0);
    windows_end();
    expect_of("u", FULL, "", "c3", "absent");
    absences_expire();
    expect_of("u", FULL, "", "c4", "ask full");
}

/* Scenario 5 of the seed where the negative cache is shorter than the window; and still at most 1 + max_retries. */
static void test_within_a_window_what_expired_is_asked_again_and_then_believed(void **state)
{
    (void)state;
    expect_of("u", EXISTENCE, "", "c1", "ask existence");
    hear(not_found(0, "c1"));
    absences_expire();
    expect_of("u", EXISTENCE, "", "c2", "ask existence");
    expect_of("u", EXISTENCE, "", "c3", "join");
    hear(not_found(0, "c2"));
    sql("update hydration.absences set until = now()");
    expect_of("u", EXISTENCE, "", "c4", "absent");
    windows_end();
    expect_of("u", EXISTENCE, "", "c5", "ask existence");
}

static void test_updated_clears_an_absence(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(not_found(3, "c1"));
    hear(updated(2, "{\"old\":1}", ""));
    expect_known("u", FULL, "", "absent");
    hear(covering(updated(3, "{\"a\":1}", ""), HYDRATION_FULL, NULL, 0)); /* at the same version it wins */
    expect_known("u", FULL, "", "copy {\"a\":1}");
}

static void test_a_not_found_that_is_older_hides_nothing(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(1, "{\"a\":1}", "c1"));
    hear(not_found(0, "c1"));
    hear(not_found(1, ""));
    expect_known("u", FULL, "", "copy {\"a\":1}");
    sql("delete from hydration.copies"); /* as if there had been no room: the flight still knows */
    hear(not_found(0, "c1"));
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    hear(not_found(2, ""));
    expect_known("u", FULL, "", "absent");
}

static void test_an_earlier_windows_not_found_hides_nothing(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    windows_end();
    hear(updated(1, "{}", "")); /* nobody asks: nothing is copied */
    sql("delete from hydration.flights");
    expect_of("u", FULL, "", "c2", "ask full");
    hear(not_found(0, "c1"));
    expect_known("u", FULL, "", "join");
    assert_true(retry("u", "c2"));
    hear(updated(1, "{}", "c2"));
    expect_known("u", FULL, "", "copy {}");
}

static void test_without_versions_updated_wins_while_it_is_fresh(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(0, "{\"a\":1}", "c1"));
    hear(not_found(0, "c1"));
    expect_known("u", FULL, "", "copy {\"a\":1}");
    hear(covering(updated(0, "{\"a\":2}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("u", FULL, "", "copy {\"a\":2}");
    hear(covering(updated(0, "{}", ""), HYDRATION_EXISTENCE, NULL, 0));
    expect_known("u", FULL, "", "copy {\"a\":2}");
}

/* Whatever the order, an entity that is there is not hidden (H4). */
static void test_all_orders_of_updated_not_found_and_claim(void **state)
{
    (void)state;
    static const char *const orders[] = {"cun", "cnu", "ucn", "unc", "ncu", "nuc"};
    static const char *const ends[] = {"copy {}", "copy {}", "join", "join", "copy {}", "join"};
    for (size_t i = 0; i < 6; i++) {
        sql("truncate hydration.copies, hydration.absences, hydration.flights");
        for (const char *step = orders[i]; *step; step++) {
            if (*step == 'c')
                expect_of("u", FULL, "", "c1", "ask full");
            else
                hear(*step == 'u' ? covering(updated(1, "{}", ""), HYDRATION_FULL, NULL, 0)
                                  : not_found(0, "earlier"));
        }
        expect_of("u", FULL, "", "", ends[i]);
        assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    }
}

/* ---- whose (H4, H6) ---- */

static void test_a_private_answer_is_one_callers(void **state)
{
    (void)state;
    expect_of("owner", FULL, "", "c1", "ask full");
    expect_of("other", FULL, "", "c2", "join");
    hear(of(updated(4, "{\"mine\":1}", "c1"), "owner"));
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    expect_of("other", FULL, "", "c3", "ask full"); /* a flight of their own */
    expect_of("other", FULL, "", "c4", "join");
    expect_of("third", FULL, "", "c5", "ask full");
    hear(hidden(4, "c3", "other"));
    expect_known("other", FULL, "", "inaccessible");
    expect_known("third", FULL, "", "join");
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    hear(hidden(0, "c5", "third")); /* its owner tells strangers no version */
    expect_known("third", FULL, "", "inaccessible");
}

static void test_a_stranger_cannot_lock_out_the_owner(void **state)
{
    (void)state;
    expect_of("stranger", FULL, "", "c1", "ask full");
    expect_of("owner", FULL, "", "c2", "join");
    hear(hidden(4, "c1", "stranger"));
    expect_of("owner", FULL, "", "c3", "ask full");
    expect_of("stranger", FULL, "", "c4", "inaccessible");
    hear(of(updated(4, "{\"mine\":1}", "c3"), "owner"));
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    expect_known("stranger", FULL, "", "inaccessible");
    windows_end();
    absences_expire();
    sql("delete from hydration.flights"); /* that it is a matter of the caller is known still */
    expect_of("stranger", FULL, "", "c5", "ask full");
    expect_of("fourth", FULL, "", "c6", "ask full");
}

static void test_the_callers_own_flight_goes_on_where_the_shared_one_was(void **state)
{
    (void)state;
    expect_of("owner", EXISTENCE, "", "c1", "ask existence");
    assert_true(retry("owner", "c1"));
    hear(of(updated(4, "{}", "c1"), "owner"));
    expect_of("owner", FULL, "", "c2", "join"); /* two were asked in this window */
    windows_end();
    expect_of("owner", FULL, "", "c3", "ask full");
    assert_true(retry("owner", "c3"));
    assert_false(retry("owner", "c3"));
}

static void test_what_became_private_is_nobody_elses_any_more(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(4, "{\"all\":1}", "c1"));
    expect_known("v", FULL, "", "copy {\"all\":1}");
    hear(covering(of(updated(5, "{\"mine\":1}", ""), "owner"), HYDRATION_FULL, NULL, 0));
    expect_known("v", FULL, "", "join");
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    hear(covering(of(updated(6, "{\"mine\":2}", ""), "heir"), HYDRATION_FULL, NULL, 0));
    expect_known("owner", FULL, "", "join");
    hear(covering(updated(7, "{\"all\":2}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("owner", FULL, "", "copy {\"all\":2}");
    expect_known("v", FULL, "", "copy {\"all\":2}");
    hear(of(updated(6, "{\"mine\":2}", ""), "heir"));
    expect_known("heir", FULL, "", "copy {\"all\":2}");
}

static void test_a_private_change_of_nobody_is_only_forgotten_by(void **state)
{
    (void)state;
    expect_of("owner", FULL, "", "c1", "ask full");
    hear(of(updated(4, "{\"mine\":1}", "c1"), "owner"));
    expect_of("other", FULL, "", "c2", "ask full");
    hear(hidden(4, "c2", "other"));
    hear(covering(of(updated(5, "{\"mine\":2}", ""), ""), HYDRATION_FULL, NULL, 0));
    assert_string_equal(sql("select count(*) from hydration.copies"), "0");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    expect_of("owner", FULL, "", "c3", "ask full");
    hear(of(updated(4, "{\"mine\":1}", "c1"), "owner")); /* late */
    expect_known("owner", FULL, "", "join");
    hear(of(updated(5, "{\"mine\":2}", "c3"), "owner"));
    expect_known("owner", FULL, "", "copy {\"mine\":2}");
    hear(hidden(5, "", ""));
    expect_known("owner", FULL, "", "copy {\"mine\":2}");
}

static void test_deleted_is_deleted_for_everybody(void **state)
{
    (void)state;
    expect_of("owner", FULL, "", "c1", "ask full");
    hear(of(updated(4, "{\"mine\":1}", "c1"), "owner"));
    expect_of("other", FULL, "", "c2", "ask full");
    hear(hidden(4, "c2", "other"));
    hear(not_found(5, ""));
    expect_known("owner", FULL, "", "absent");
    expect_known("other", FULL, "", "absent");
    assert_string_equal(sql("select count(*) from hydration.absences"), "1");
}

/* ---- writing ---- */

static const char *everything(void)
{
    return sql(
        "select md5((select string_agg(row(subject, version, mode, fields, data)::text, '|' order by subject) from"
        " hydration.copies)) || coalesce((select string_agg(row(subject, version, reason)::text, '|' order by"
        " subject) from hydration.absences), '') || (select string_agg(row(subject, answered, by_caller,"
        " heard_updated, heard_gone)::text, '|' order by subject) from hydration.flights)");
}

static void test_heard_twice_is_heard_once(void **state)
{
    (void)state;
    char before[1024];
    const struct hydration_event events[] = {updated(4, "{\"a\":1}", "c1"),
                                             of(updated(5, "{\"b\":1}", ""), "owner"),
                                             hidden(5, "c2", "other"), not_found(0, "c1")};
    expect_of("u", FULL, "", "c1", "ask full");
    hear_all(events, 4);
    snprintf(before, sizeof before, "%s", everything());
    hear_all(events, 4);
    assert_string_equal(everything(), before);
    hear_all(events, 0);
    assert_string_equal(everything(), before);
}

enum { KEYS = 40, ROUNDS = 25 };

static void *write_batches(void *arg)
{
    bool backwards = arg != NULL;
    static const char *const ids[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"};
    for (int round = 0; round < ROUNDS; round++) {
        struct hydration_event events[KEYS];
        for (int i = 0; i < KEYS; i++) {
            events[i] = backwards ? not_found(round, "") : updated(round + 1, "{}", "");
            events[i].entity_id = str_from(ids[backwards ? 9 - i % 10 : i % 10]);
        }
        hear_all(events, KEYS);
    }
    return NULL;
}

static void test_two_who_write_the_same_never_wait_around_a_corner(void **state)
{
    (void)state;
    const struct hydration_policy policy = policy_of();
    pthread_t threads[4];
    for (int i = 0; i < 10; i++) {
        char id[24];
        snprintf(id, sizeof id, "k%d", i);
        const struct hydration_need need = need_of(id, "u", FULL, "");
        assert_int_equal(claim_by(&need, &policy, id, &arena).verdict, HYDRATION_LEDGER_ASK);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, write_batches, i % 2 ? "backwards" : NULL);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    /* Versions up to 25 were updated, and those of not-found were below. */
    assert_string_equal(sql("select count(*) from hydration.copies where version = %d", ROUNDS), "10");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
}

/* ---- what is held, and what goes ---- */

static unsigned held(const char *prefix)
{
    struct hydration_ref *refs;
    struct error error = {0};
    struct arena own;
    size_t count = 0;
    arena_init(&own, 1024);
    assert_int_equal(hydration_ledger_list_held(pool, STR("item"), STR("t"), str_from(prefix),
                                                clock_deadline_ms(PATIENCE_MS), &own, &refs, &count, &error),
                     STATUS_OK);
    for (size_t i = 0; i < count; i++)
        assert_true(str_starts_with(refs[i].entity_id, STR("h/")) && str_eq(refs[i].tenant, STR("t")));
    arena_deinit(&own);
    return (unsigned)count;
}

static void test_held_are_copies_absences_and_questions_by_prefix(void **state)
{
    (void)state;
    const char *const into = "insert into hydration.";
    assert_int_equal(held("h/"), 0);
    sql("%scopies select 't', 'item', 'h/' || i, '', 1, 2, '{}', 'm', '{}', now(), now() from generate_series(1, 2100) i",
        into);
    sql("%sabsences select 't', 'item', 'h/' || i, s, 1, 0, 'm', now(), now(), now() from generate_series(2000, 2200) i,"
        " unnest(array['', 'u']) s",
        into);
    sql("%sflights (tenant_id, entity_type, entity_id, subject, begun_at, window_until, asked, mode, fields,"
        " correlation_ids, negative_ttl_ms, copy_ttl_ms) select t, 'item', i, '', now(), now(), 1, 0, '{}', '{}', 1, 1 from"
        " unnest(array['h/\xc3\xbf', 'h/', 'g/1', 'h', 'i/1']) i, unnest(array['t', 't2']) t",
        into);
    assert_int_equal(held("h/"), 2202);
    assert_int_equal(held("h/219"), 11); /* 219, 2190 … 2199 */
    assert_int_equal(held("h/\xc3\xbf"), 1);
}

static int64_t clean(const char *cleanup_sql, int64_t rows_max, int batch)
{
    static const enum db_type types[] = {DB_BIGINT, DB_INT};
    char stay[24], at_once[24];
    struct db_statement statement;
    struct db_conn *conn = NULL;
    struct error error = {0};
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS), deleted = -1;
    snprintf(stay, sizeof stay, "%lld", (long long)rows_max);
    snprintf(at_once, sizeof at_once, "%d", batch);
    db_statement_init(&statement, cleanup_sql, 2, types);
    assert_int_equal(db_acquire(pool, deadline_ns, &conn, &error), STATUS_OK);
    if (db_exec(conn, &statement, (const struct db_param[]){{str_from(stay)}, {str_from(at_once)}},
                deadline_ns, &deleted, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    db_release(conn);
    return deleted;
}

static void test_tables_stay_small_by_time_and_by_count(void **state)
{
    (void)state;
    sql("insert into hydration.absences select 't', 'item', i::text, '', 0, 0, 'm', now(), now(), now() + (i - 100) * interval"
        " '1 s' from generate_series(1, 1100) i");
    assert_int_equal(clean(hydration_absences_cleanup_sql, 100000, 60), 60);
    assert_int_equal(clean(hydration_absences_cleanup_sql, 100000, 1000), 40);
    assert_int_equal(clean(hydration_absences_cleanup_sql, 300, 1000), 700);
    assert_string_equal(sql("select min(entity_id::int) from hydration.absences"),
                        "801"); /* who expire first go */
    assert_int_equal(clean(hydration_absences_cleanup_sql, 300, 1000), 0);

    expect_of("u", FULL, "", "c1", "ask full");
    hear(updated(1, "{}", "c1"));
    assert_int_equal(clean(hydration_copies_cleanup_sql, 1, 1000), 0);
    assert_int_equal(clean(hydration_flights_cleanup_sql, 1, 1000), 0);
    windows_end();
    copies_expire();
    sql("update hydration.copies set until = now() - interval '61 min'");
    assert_int_equal(clean(hydration_copies_cleanup_sql, 1, 1000), 1);
    assert_int_equal(clean(hydration_flights_cleanup_sql, 1, 1000), 1);
}

/* What this connection has counted, which is nobody else's before its transaction ends. */
static int64_t scans(struct db_conn *conn, const char *kind)
{
    char text[256];
    struct db_statement statement;
    struct db_result *rows = NULL;
    struct error error = {0};
    snprintf(text, sizeof text,
             "select coalesce(sum(%s), 0) from pg_stat_xact_user_tables where schemaname = 'hydration'",
             kind);
    db_statement_init(&statement, text, 0, NULL);
    assert_int_equal(db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &rows, &error),
                     STATUS_OK);
    int64_t count = db_result_i64(rows, 0, 0);
    db_result_free(rows);
    return count;
}

/* As the kernel's store: planned once, as lookups by index, also where the tables were empty. */
static void test_every_lookup_is_by_index(void **state)
{
    (void)state;
    const struct hydration_event events[] = {updated(4, "{\"a\":1}", "c1"),
                                             of(updated(5, "{\"b\":1}", ""), "owner"),
                                             hidden(5, "c2", "other"), not_found(6, "")};
    struct db_statement claims;
    struct db_conn *conn = NULL;
    struct error error = {0};
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    db_statement_init(
        &claims,
        "select hydration.claim('t', 'item', 'a', 'u', 2, '{}', 'c' || i, 5000, 1, 1000, 1000) from"
        " generate_series(1, 4) i",
        0, NULL);
    assert_int_equal(db_acquire(pool, deadline_ns, &conn, &error), STATUS_OK);
    assert_int_equal(db_begin(conn, DB_READ_COMMITTED, deadline_ns, &error), STATUS_OK);
    int64_t by_index = scans(conn, "idx_scan"), whole = scans(conn, "seq_scan");
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(db_exec(conn, &claims, NULL, deadline_ns, NULL, &error), STATUS_OK);
        assert_int_equal(hydration_ledger_store(conn, &events[i], 1, deadline_ns, &error), STATUS_OK);
    }
    assert_int_equal(scans(conn, "seq_scan"), whole);
    assert_true(scans(conn, "idx_scan") > by_index + 30);
    db_rollback(conn);
    db_release(conn);
}

/* ---- life ---- */

static int start(void **state)
{
    (void)state;
    struct error error = {0};
    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    struct db_target target = pg_fixture_target();
    target.connections_max = THREADS;
    target.fixed_plans = true;
    target.statement_timeout_ms = PATIENCE_MS;
    arena_init(&arena, 4096);
    if (db_pool_create(&target, &pool, &error) == STATUS_OK &&
        db_migrate(pool, "hydration", hydration_migrations, clock_deadline_ms(PATIENCE_MS), NULL, &error) ==
            STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", error.message);
    return -1;
}

static int stop(void **state)
{
    (void)state;
    arena_deinit(&arena);
    db_pool_destroy(pool);
    pg_fixture_stop();
    return 0;
}

static int clear(void **state)
{
    (void)state;
    arena_reset(&arena);
    sql("truncate hydration.copies, hydration.absences, hydration.flights");
    return 0;
}

#define TEST(name) cmocka_unit_test_setup(name, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_first_asks_and_all_others_join),
        TEST(test_a_tenant_knows_nothing_of_another),
        TEST(test_a_look_claims_nothing),
        TEST(test_of_any_number_at_once_one_asks),
        TEST(test_one_retry_in_a_window_and_only_the_publishers),
        TEST(test_no_retry_behind_an_answer),
        TEST(test_who_needs_more_asks_for_all_of_it_once),
        TEST(test_the_third_need_waits_and_gets_what_there_is),
        TEST(test_the_cover_is_what_was_asked_unless_said),
        TEST(test_a_change_whose_cover_nobody_said_has_the_members_it_has),
        TEST(test_the_same_version_adds_up_and_a_newer_one_replaces),
        TEST(test_names_that_postgresql_cannot_hold_are_no_trouble),
        TEST(test_copies_of_one_version_add_up_to_no_more_than_an_event),
        TEST(test_nothing_is_copied_that_nobody_asked_for),
        TEST(test_an_old_copy_is_asked_for_anew_and_handed_out_with_that),
        TEST(test_absent_is_everybodys_until_its_time_is_over),
        TEST(test_within_a_window_what_expired_is_asked_again_and_then_believed),
        TEST(test_updated_clears_an_absence),
        TEST(test_a_not_found_that_is_older_hides_nothing),
        TEST(test_an_earlier_windows_not_found_hides_nothing),
        TEST(test_without_versions_updated_wins_while_it_is_fresh),
        TEST(test_all_orders_of_updated_not_found_and_claim),
        TEST(test_a_private_answer_is_one_callers),
        TEST(test_a_stranger_cannot_lock_out_the_owner),
        TEST(test_the_callers_own_flight_goes_on_where_the_shared_one_was),
        TEST(test_what_became_private_is_nobody_elses_any_more),
        TEST(test_a_private_change_of_nobody_is_only_forgotten_by),
        TEST(test_deleted_is_deleted_for_everybody),
        TEST(test_heard_twice_is_heard_once),
        TEST(test_two_who_write_the_same_never_wait_around_a_corner),
        TEST(test_held_are_copies_absences_and_questions_by_prefix),
        TEST(test_tables_stay_small_by_time_and_by_count),
        TEST(test_every_lookup_is_by_index),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
