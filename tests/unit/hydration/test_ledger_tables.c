/* The ledger: rows of single callers (H4, H6), concurrent stores, held entities, clean-up and indexes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ledger_rig.h"

/* ---- whose (H4, H6) ---- */

static void test_a_private_answer_serves_one_caller(void **state)
{
    (void)state;
    expect_of("owner", FULL, "", "c1", "ask full");
    expect_of("other", FULL, "", "c2", "join");
    store(private_of(updated(4, "{\"mine\":1}", "c1"), "owner"));
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    expect_of("other", FULL, "", "c3", "ask full"); /* a flight of their own */
    expect_of("other", FULL, "", "c4", "join");
    expect_of("third", FULL, "", "c5", "ask full");
    store(hidden(4, "c3", "other"));
    expect_known("other", FULL, "", "inaccessible");
    expect_known("third", FULL, "", "join");
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    store(hidden(0, "c5", "third")); /* its owner tells strangers no version */
    expect_known("third", FULL, "", "inaccessible");
}

static void test_a_hidden_answer_to_one_caller_does_not_block_another(void **state)
{
    (void)state;
    expect_of("stranger", FULL, "", "c1", "ask full");
    expect_of("owner", FULL, "", "c2", "join");
    store(hidden(4, "c1", "stranger"));
    expect_of("owner", FULL, "", "c3", "ask full");
    expect_of("stranger", FULL, "", "c4", "inaccessible");
    store(private_of(updated(4, "{\"mine\":1}", "c3"), "owner"));
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    expect_known("stranger", FULL, "", "inaccessible");
    windows_end();
    absences_expire();
    sql("delete from hydration.flights"); /* that it is a matter of the caller is known still */
    expect_of("stranger", FULL, "", "c5", "ask full");
    expect_of("fourth", FULL, "", "c6", "ask full");
}

static void test_a_callers_own_flight_continues_the_shared_one(void **state)
{
    (void)state;
    expect_of("owner", EXISTENCE, "", "c1", "ask existence");
    assert_true(retry("owner", "c1"));
    store(private_of(updated(4, "{}", "c1"), "owner"));
    expect_of("owner", FULL, "", "c2", "join"); /* two were asked in this window */
    windows_end();
    expect_of("owner", FULL, "", "c3", "ask full");
    assert_true(retry("owner", "c3"));
    assert_false(retry("owner", "c3"));
}

static void test_an_entity_that_became_private_serves_no_other_caller(void **state)
{
    (void)state;
    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(4, "{\"all\":1}", "c1"));
    expect_known("v", FULL, "", "copy {\"all\":1}");
    store(covering(private_of(updated(5, "{\"mine\":1}", ""), "owner"), HYDRATION_FULL, NULL, 0));
    expect_known("v", FULL, "", "join");
    expect_known("owner", FULL, "", "copy {\"mine\":1}");
    store(covering(private_of(updated(6, "{\"mine\":2}", ""), "heir"), HYDRATION_FULL, NULL, 0));
    expect_known("owner", FULL, "", "join");
    store(covering(updated(7, "{\"all\":2}", ""), HYDRATION_FULL, NULL, 0));
    expect_known("owner", FULL, "", "copy {\"all\":2}");
    expect_known("v", FULL, "", "copy {\"all\":2}");
    store(private_of(updated(6, "{\"mine\":2}", ""), "heir"));
    expect_known("heir", FULL, "", "copy {\"all\":2}");
}

static void test_a_private_change_without_caller_drops_copies(void **state)
{
    (void)state;
    expect_of("owner", FULL, "", "c1", "ask full");
    store(private_of(updated(4, "{\"mine\":1}", "c1"), "owner"));
    expect_of("other", FULL, "", "c2", "ask full");
    store(hidden(4, "c2", "other"));
    store(covering(private_of(updated(5, "{\"mine\":2}", ""), ""), HYDRATION_FULL, NULL, 0));
    assert_string_equal(sql("select count(*) from hydration.copies"), "0");
    assert_string_equal(sql("select count(*) from hydration.absences"), "0");
    expect_of("owner", FULL, "", "c3", "ask full");
    store(private_of(updated(4, "{\"mine\":1}", "c1"), "owner")); /* late */
    expect_known("owner", FULL, "", "join");
    store(private_of(updated(5, "{\"mine\":2}", "c3"), "owner"));
    expect_known("owner", FULL, "", "copy {\"mine\":2}");
    store(hidden(5, "", ""));
    expect_known("owner", FULL, "", "copy {\"mine\":2}");
}

static void test_deleted_is_deleted_for_every_caller(void **state)
{
    (void)state;
    expect_of("owner", FULL, "", "c1", "ask full");
    store(private_of(updated(4, "{\"mine\":1}", "c1"), "owner"));
    expect_of("other", FULL, "", "c2", "ask full");
    store(hidden(4, "c2", "other"));
    store(not_found(5, ""));
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

static void test_storing_an_event_twice_has_the_effect_of_once(void **state)
{
    (void)state;
    char before[1024];
    const struct hydration_event events[] = {updated(4, "{\"a\":1}", "c1"),
                                             private_of(updated(5, "{\"b\":1}", ""), "owner"),
                                             hidden(5, "c2", "other"), not_found(0, "c1")};
    expect_of("u", FULL, "", "c1", "ask full");
    store_all(events, 4);
    snprintf(before, sizeof before, "%s", everything());
    store_all(events, 4);
    assert_string_equal(everything(), before);
    store_all(events, 0);
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
        store_all(events, KEYS);
    }
    return NULL;
}

static void test_concurrent_stores_of_the_same_entities_do_not_deadlock(void **state)
{
    (void)state;
    const struct hydration_policy policy = policy_of();
    pthread_t threads[4];
    for (int i = 0; i < 10; i++) {
        char id[24];
        snprintf(id, sizeof id, "k%d", i);
        const struct hydration_need need = need_of(id, "u", FULL, "");
        assert_int_equal(find_by(&need, &policy, id, &arena).kind, HYDRATION_LEDGER_ASK);
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
    struct arena own = ARENA(1024);
    size_t count = 0;
    assert_int_equal(hydration_list_held(&(struct hydration){.config.pool = pool}, "item", STR("t"),
                                         str_from(prefix), clock_deadline_ms(PATIENCE_MS), &own, &refs,
                                         &count, &error),
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
    struct db_conn *conn = NULL;
    struct error error = {0};
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS), deleted = -1;
    struct db_statement statement = db_statement_of(str_from(cleanup_sql));
    assert_int_equal(db_acquire(pool, deadline_ns, &conn, &error), STATUS_OK);
    if (db_exec(conn, &statement, DB_PARAMS(db_i64(rows_max), db_int(batch)), deadline_ns, &deleted,
                &error) != STATUS_OK)
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
                        "801"); /* those that expire first are deleted first */
    assert_int_equal(clean(hydration_absences_cleanup_sql, 300, 1000), 0);

    expect_of("u", FULL, "", "c1", "ask full");
    store(updated(1, "{}", "c1"));
    assert_int_equal(clean(hydration_copies_cleanup_sql, 1, 1000), 0);
    assert_int_equal(clean(hydration_flights_cleanup_sql, 1, 1000), 0);
    windows_end();
    copies_expire();
    sql("update hydration.copies set until = now() - interval '61 min'");
    assert_int_equal(clean(hydration_copies_cleanup_sql, 1, 1000), 1);
    assert_int_equal(clean(hydration_flights_cleanup_sql, 1, 1000), 1);
}

/* What this connection has counted, visible to no other before its transaction ends. */
static int64_t scans(struct db_conn *conn, const char *kind)
{
    char text[256];
    struct db_statement statement;
    struct db_result *rows = NULL;
    struct error error = {0};
    snprintf(text, sizeof text,
             "select coalesce(sum(%s), 0) from pg_stat_xact_user_tables where schemaname = 'hydration'",
             kind);
    statement = db_statement_of(str_from(text));
    assert_int_equal(db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &rows, &error),
                     STATUS_OK);
    int64_t count = db_result_i64(rows, 0, 0);
    db_result_free(rows);
    return count;
}

/* As the kernel's store: planned once, as lookups by index, also where the tables were empty. */
static void test_every_read_is_by_index(void **state)
{
    (void)state;
    const struct hydration_event events[] = {updated(4, "{\"a\":1}", "c1"),
                                             private_of(updated(5, "{\"b\":1}", ""), "owner"),
                                             hidden(5, "c2", "other"), not_found(6, "")};
    struct db_statement finds;
    struct db_conn *conn = NULL;
    struct error error = {0};
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    finds = db_statement_of(
        STR("select hydration.claim('t', 'item', 'a', 'u', 2, '{}', 'c' || i, 5000, 1, 1000, 1000) from"
            " generate_series(1, 4) i"));
    assert_int_equal(db_acquire(pool, deadline_ns, &conn, &error), STATUS_OK);
    assert_int_equal(db_begin(conn, DB_READ_COMMITTED, deadline_ns, &error), STATUS_OK);
    int64_t by_index = scans(conn, "idx_scan"), whole = scans(conn, "seq_scan");
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(db_exec(conn, &finds, NULL, deadline_ns, NULL, &error), STATUS_OK);
        assert_int_equal(hydration_ledger_store(conn, &events[i], 1, deadline_ns, &error), STATUS_OK);
    }
    assert_int_equal(scans(conn, "seq_scan"), whole);
    assert_true(scans(conn, "idx_scan") > by_index + 30);
    db_rollback(conn);
    db_release(conn);
}

const struct CMUnitTest ledger_table_tests[] = {
    TEST(test_a_private_answer_serves_one_caller),
    TEST(test_a_hidden_answer_to_one_caller_does_not_block_another),
    TEST(test_a_callers_own_flight_continues_the_shared_one),
    TEST(test_an_entity_that_became_private_serves_no_other_caller),
    TEST(test_a_private_change_without_caller_drops_copies),
    TEST(test_deleted_is_deleted_for_every_caller),
    TEST(test_storing_an_event_twice_has_the_effect_of_once),
    TEST(test_concurrent_stores_of_the_same_entities_do_not_deadlock),
    TEST(test_held_are_copies_absences_and_questions_by_prefix),
    TEST(test_tables_stay_small_by_time_and_by_count),
    TEST(test_every_read_is_by_index),
};
const size_t ledger_table_test_count = sizeof ledger_table_tests / sizeof *ledger_table_tests;
