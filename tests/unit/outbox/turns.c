/* What a claim takes, and where the next one goes on: no tenant and no aggregate waits for the backlog of another (O2, O3), and a claim is
 * bounded by bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "outbox/outbox_inside.h"
#include "rig.h"

enum { BATCH = 50, MIB = 1 << 20, CLAIMS_MAX = 8 };

static const struct rig_form *form;
static struct outbox worker;
static struct db_conn *conn;

static void begin(const struct rig_form *of)
{
    form = of;
    rig_clear();
    worker =
        (struct outbox){.config = {.table = form->table}, .settings = rig_settings(), .arena = ARENA(4096)};
    worker.settings.batch = BATCH;
    worker.walk.rows_max = 2 * BATCH;
    worker.claim.arena = ARENA(4096);
    snprintf(worker.worker, sizeof worker.worker, "worker");
    outbox_metrics_init();
    outbox_sql_init(&worker.sql, form->table, &worker.arena);
    conn = rig_conn();
}

static void end(void)
{
    db_result_free(worker.claim.rows);
    arena_deinit(&worker.claim.arena);
    buf_deinit(&worker.claim.places);
    outbox_walk_deinit(&worker.walk);
    arena_deinit(&worker.arena);
    db_release(conn);
}

/* Settles what was claimed as published, and claims. */
static size_t claim_next(void)
{
    struct error error = {0};
    for (size_t i = 0; i < worker.claim.count; i++)
        worker.claim.results[i].kind = OUTBOX_DONE;
    if (outbox_claim_exchange(&worker, conn, true, clock_deadline_ms(PATIENCE_MS), &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return worker.claim.count;
}

static bool is_claimed(int aggregate)
{
    for (size_t i = 0; i < worker.claim.count; i++) {
        char text[96];
        int of, number;
        str_copy(text, sizeof text, worker.claim.events[i].payload);
        if (sscanf(text, "{\"a\": %d, \"n\": %d", &of, &number) == 2 && of == aggregate)
            return true;
    }
    return false;
}

/* How many claims it takes until an event of the aggregate is among them. */
static int claims_until(int aggregate)
{
    for (int claims = 1; claims <= CLAIMS_MAX; claims++)
        if (claim_next() > 0 && is_claimed(aggregate))
            return claims;
    return CLAIMS_MAX + 1;
}

/* Of tenant t, with one event each. */
static void insert_aggregates(int count)
{
    const char *columns = form == &rig_keys_form ? "aggregate_key" : "tenant_id, dict_code";
    const char *values =
        form == &rig_keys_form ? "'t/E' || to_char(a, 'FM00000')" : "'t', 'E' || to_char(a, 'FM00000')";
    rig_sql("INSERT INTO %s (%s, payload%s) SELECT %s, jsonb_build_object('a', a, 'n', 1)%s"
            " FROM generate_series(1, %d) a",
            form->table->name, columns, form == &rig_keys_form ? ", event_type" : "", values,
            form == &rig_keys_form ? ", 'granted'" : "", count);
}

static const struct rig_form *form_of_tenants(int which)
{
    return which == 0 ? &rig_forms[0] : &rig_keys_form;
}

static void test_o2_a_backlog_of_many_aggregates_does_not_delay_other_tenants(void **state)
{
    enum { AGGREGATES = 20000, OTHER = 0, LATER = -1 };
    (void)state;
    for (int which = 0; which < 2; which++) {
        size_t claimed = 0, claims = 0, empty = 0;
        begin(form_of_tenants(which));
        insert_aggregates(AGGREGATES);
        rig_insert_of(form->table, 1, OTHER, 1, 1);
        assert_in_range(claims_until(OTHER), 1, 4);
        for (int i = 0; i < 20; i++) {
            rig_insert_of(form->table, 1, LATER, i + 1, i + 1); /* also when it comes later, */
            assert_in_range(claims_until(LATER), 1, 4);
        }
        rig_sql("UPDATE %s SET %s = replace(%s, 't1', 's') WHERE payload->>'a' = '-1'", form->table->name,
                form->table->aggregate[0].name, form->table->aggregate[0].name);
        rig_insert_of(form->table, 1, OTHER, 2, 2);
        rig_sql("UPDATE %s SET %s = replace(%s, 't1', 's') WHERE %s", form->table->name,
                form->table->aggregate[0].name, form->table->aggregate[0].name,
                form->live); /* and when it stands before */
        assert_in_range(claims_until(OTHER), 1, 4);
        /* One tenant alone has every claim to itself. */
        do {
            claims++;
            claimed += claim_next();
            empty += worker.claim.count == 0;
        } while (claimed < 1000);
        assert_int_equal(empty, 0);
        assert_int_equal(claims, 1000 / BATCH);
        end();
    }
}

static void test_o2_several_backlogs_take_turns(void **state)
{
    enum { EACH = 2000, OTHER = 0 };
    (void)state;
    begin(&rig_forms[0]);
    for (int tenant = 1; tenant <= 4; tenant++)
        rig_sql("INSERT INTO public.flag_outbox (tenant_id, dict_code, payload)"
                " SELECT 't%d', 'E' || n, jsonb_build_object('a', %d, 'n', n) FROM generate_series(1, %d) n",
                tenant, tenant, EACH);
    size_t of[5] = {0};
    for (int claims = 0; claims < 40; claims++) {
        assert_int_equal(claim_next(), BATCH);
        for (int tenant = 1; tenant <= 4; tenant++)
            of[tenant] += is_claimed(tenant);
    }
    for (int tenant = 1; tenant <= 4; tenant++)
        assert_in_range(of[tenant], 5, 20);
    rig_insert_of(form->table, 5, OTHER, 1, 1);
    assert_in_range(claims_until(OTHER), 1, CLAIMS_MAX);
    end();
}

/* The walk sees them all, the batch has no room for the last one. */
static void test_o3_long_tails_do_not_delay_aggregates_after_them(void **state)
{
    enum { TAILS = 5, OTHER = 9 };
    (void)state;
    for (int which = 0; which < 3; which++) {
        begin(which < 2 ? &rig_forms[which] : &rig_keys_form);
        for (int aggregate = 1; aggregate <= TAILS; aggregate++)
            rig_insert_of(form->table, 0, aggregate, 1, 1000);
        rig_insert_of(form->table, 1, OTHER, 1, 1);
        assert_in_range(claims_until(OTHER), 1, 4);
        end();
    }
}

/* More than one claim looks at: nothing is due, so the claims end, and each aggregate was looked at. */
static void test_o3_claims_end_while_many_aggregates_wait(void **state)
{
    enum { AGGREGATES = 700, DUE = 650 };
    (void)state;
    for (int which = 0; which < 2; which++) {
        begin(form_of_tenants(which));
        insert_aggregates(AGGREGATES);
        rig_insert_of(form->table, 1, -1, 1, 1);
        rig_form_sql(form, "UPDATE @table SET @retry = now() + interval '1 hour'");
        int claims = 1;
        while (claim_next() == 0 && worker.claim.more)
            assert_in_range(claims++, 1, 40);
        assert_int_equal(worker.claim.count, 0);
        rig_form_sql(form, "UPDATE @table SET @retry = NULL WHERE @a = 650");
        for (claims = 1; claim_next() == 0;)
            assert_in_range(claims++, 1, 40);
        assert_true(is_claimed(DUE));
        end();
    }
}

/* 3 MiB each, of one aggregate and of many: the third one exceeds 8 MiB, and is the last. A larger one goes alone. */
static void test_o2_a_claim_is_bounded_by_bytes(void **state)
{
    (void)state;
    for (int which = 0; which < RIG_FORMS; which++)
        for (int spread = 0; spread < 2; spread++) {
            begin(&rig_forms[which]);
            for (int i = 1; i <= 7; i++)
                rig_insert(form->table, spread ? i : 1, i, i);
            rig_form_sql(form,
                         form->table->payload_is_bytes
                             ? "UPDATE @table SET payload = decode(repeat('20', (CASE WHEN @n = 7 THEN 9"
                               " ELSE 3 END) * 1024 * 1024), 'hex')"
                             : "UPDATE @table SET payload = payload || jsonb_build_object('z',"
                               " repeat('x', (CASE WHEN @n = 7 THEN 9 ELSE 3 END) * 1024 * 1024))");
            size_t claimed = 0;
            for (int claims = 1; claimed < 7; claims++) {
                size_t bytes = 0, count = claim_next();
                for (size_t i = 0; i < count; i++)
                    bytes += worker.claim.events[i].payload.len;
                assert_true(count > 0 || worker.claim.more);
                assert_in_range(count, 0, 3);
                assert_in_range(bytes, 0, 17 * MIB + 1024);
                if (claims == 1 && !spread && form->table->sequence)
                    assert_int_equal(count, 3);
                assert_in_range(claims, 1, CLAIMS_MAX);
                claimed += count;
            }
            assert_int_equal(claimed, 7);
            assert_int_equal(claim_next(), 0); /* and settles the last ones */
            assert_int_equal(rig_count(form, "@published"), 7);
            end();
        }
}

static unsigned rnd_state;
static unsigned rnd(unsigned n)
{
    rnd_state = rnd_state * 1103515245u + 12345u;
    return (rnd_state >> 16) % n;
}

static void insert_random(int tenants, int per)
{
    static const char *const names[] = {"a",   "A",        "ab", "a-b", "a.b", "a0", "B",   "b",
                                        "a b", "\xc3\xa4", "a_", "z",   "Z",   "aa", "a\"", "a+"};
    for (int t = 0; t < tenants; t++) {
        const char *name = names[rnd(16)];
        int count = rnd(4) == 0 ? (int)rnd((unsigned)per) * 4 : (int)rnd((unsigned)per);
        int rows = 1 + (int)rnd(3);
        unsigned kind = rnd(4);
        const char *due = kind == 0 ? "0.0" : kind == 1 ? "1.0" : kind == 2 ? "0.5" : "0.05";
        const char *sus = rnd(10) == 0 ? "2" : "0";
        if (form == &rig_keys_form)
            rig_sql(
                "INSERT INTO public.key_outbox (aggregate_key, event_type, payload, next_retry_at, claim_count)"
                " SELECT '%s/E' || lpad((random()*100000)::int::text, 6, '0'), 'x', jsonb_build_object('a', a, 'n', n, 'z', (random()*4000000)::int), CASE WHEN random() < %s THEN NULL ELSE now() + interval '1 hour' END, CASE WHEN random() < 0.1 THEN %s ELSE 0 END"
                " FROM generate_series(1, %d) a, generate_series(1, %d) n",
                name, due, sus, count, rows);
        else
            rig_sql(
                "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload, next_attempt_at, claim_count)"
                " SELECT '%s', 'E' || lpad((random()*100000)::int::text, 6, '0'), jsonb_build_object('a', a, 'n', n, 'z', (random()*4000000)::int), CASE WHEN random() < %s THEN NULL ELSE now() + interval '1 hour' END, CASE WHEN random() < 0.1 THEN %s ELSE 0 END"
                " FROM generate_series(1, %d) a, generate_series(1, %d) n",
                name, due, sus, count, rows);
    }
}

static int64_t due_heads(void)
{
    const char *agg = form == &rig_keys_form ? "aggregate_key" : "tenant_id, dict_code";
    const char *seq = form == &rig_keys_form ? "sequence" : "id";
    return rig_sql("SELECT count(*) FROM (SELECT DISTINCT ON (%s) * FROM %s WHERE %s ORDER BY %s, %s) h"
                   " WHERE (h.%s IS NULL OR h.%s <= now()) AND (h.%s IS NULL OR h.%s <= now())",
                   agg, form->table->name, form->live, agg, seq, form->table->next_attempt_at,
                   form->table->next_attempt_at, form->table->locked_until, form->table->locked_until);
}

static void test_rev1_random(void **state)
{
    (void)state;
    int seeds = getenv("REV_SEEDS") ? atoi(getenv("REV_SEEDS")) : 40,
        from = getenv("REV_FROM") ? atoi(getenv("REV_FROM")) : 0;
    bool inserts = getenv("REV_INSERTS") != NULL;
    const char *collation = getenv("REV_COLLATION");
    if (collation)
        rig_sql(
            "ALTER TABLE public.flag_outbox ALTER tenant_id TYPE text COLLATE \"%s\", ALTER dict_code TYPE text COLLATE \"%s\"",
            collation, collation);
    int bad = 0;
    for (int seed = from; seed < from + seeds; seed++) {
        rnd_state = (unsigned)seed * 7919u + 1;
        begin(form_of_tenants(seed % 2));
        rig_sql("SELECT setseed(%d / 10000.0)", seed);
        worker.settings.batch = 1 + rnd(8);
        worker.walk.rows_max = worker.settings.batch + rnd(12);
        worker.settings.backoff_base_ms = worker.settings.backoff_max_ms = 3600000;
        insert_random(1 + (int)rnd(12), 1 + (int)rnd(60));
        int claims = 0, empty = 0, late = 0, rows = (int)rig_count(form, "@live");
        bool woken = false;
        for (;;) {
            struct error error = {0};
            woken = false;
            for (size_t i = 0; i < worker.claim.count; i++) {
                worker.claim.results[i].kind = rnd(10) == 0 ? OUTBOX_RETRY : OUTBOX_DONE;
                snprintf(worker.claim.results[i].reason, 8, "x");
            }
            outbox_results_conclude(&worker);
            if (inserts && late < 6 && rnd(6) == 0) {
                insert_random(1, 4);
                woken = true;
                late++;
                woken = false;
            }
            if (outbox_claim_exchange(&worker, conn, true, clock_deadline_ms(PATIENCE_MS), &error) !=
                STATUS_OK)
                fail_msg("%s", error.message);
            claims++;
            empty += worker.claim.count == 0;
            /* order: a claimed row is preceded by no live row outside of the claim */
            if (worker.claim.count == 0 && !worker.claim.more && !woken)
                break;
            if (claims > 20000) {
                printf("seed %d: does not end, %d rows\n", seed, rows);
                bad++;
                break;
            }
        }
        int64_t left = due_heads();
        const char *agg = form == &rig_keys_form
                              ? "x.aggregate_key = y.aggregate_key AND x.sequence > y.sequence"
                              : "x.tenant_id = y.tenant_id AND x.dict_code = y.dict_code AND x.id > y.id";
        int64_t over = rig_sql(
            "SELECT count(*) FROM %s x JOIN %s y ON %s WHERE (x.published_at IS NOT NULL) AND y.published_at > x.published_at",
            form->table->name, form->table->name, agg);
        int64_t over2 =
            form == &rig_keys_form
                ? rig_sql(
                      "SELECT count(*) FROM %s x JOIN %s y ON %s WHERE x.status = 'PUBLISHED' AND y.status = 'PENDING'",
                      form->table->name, form->table->name, agg)
                : rig_sql(
                      "SELECT count(*) FROM %s x JOIN %s y ON %s WHERE x.published AND NOT y.published AND y.failed_at IS NULL",
                      form->table->name, form->table->name, agg);
        if (left || over || over2 || empty > 50 + 4 * rows) {
            bad++;
            printf(
                "seed %d %s: batch %d rows_max %d rows %d claims %d empty %d due heads left %d, order %d %d\n",
                seed, form->name, (int)worker.settings.batch, (int)worker.walk.rows_max, rows, claims, empty,
                (int)left, (int)over, (int)over2);
        }
        end();
    }
    assert_int_equal(bad, 0);
}

static void test_rev1_missed(void **state)
{
    (void)state;
    begin(&rig_forms[0]);
    insert_aggregates(700);
    rig_form_sql(form, "UPDATE @table SET @retry = now() + interval '1 hour'");
    int claims = 1;
    assert_int_equal(claim_next(), 0);
    assert_true(worker.claim.more);
    rig_sql(
        "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload) SELECT 't', 'A0', jsonb_build_object('a', 1, 'n', 1)");
    while (claim_next() == 0 && worker.claim.more)
        claims++;
    printf("missed: claims %d, claimed %d, due heads left %d\n", claims, (int)worker.claim.count,
           (int)due_heads());
    end();
}

static void test_rev1_tails(void **state)
{
    (void)state;
    begin(&rig_forms[0]);
    worker.settings.batch = 5;
    worker.walk.rows_max = 10;
    rig_sql(
        "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload, next_attempt_at)"
        " SELECT 't' || to_char(t, 'FM0000'), 'E' || to_char(a, 'FM0000'), '{}', now() + interval '1 hour' FROM generate_series(1, 400) t, generate_series(1, 60) a");
    rig_sql(
        "UPDATE public.flag_outbox SET next_attempt_at = NULL WHERE tenant_id = 't0350' AND dict_code = 'E0050'");
    for (int pass = 0; pass < 3; pass++) {
        int claims = 1;
        size_t tails = 0;
        while (claim_next() == 0 && worker.claim.more) {
            claims++;
            if (worker.walk.tail_count > tails)
                tails = worker.walk.tail_count;
        }
        printf("tails: pass %d claims %d, claimed %d, most tails %d, due heads left %d\n", pass, claims,
               (int)worker.claim.count, (int)tails, (int)due_heads());
    }
    end();
}

static void test_rev1_missed_engine(void **state)
{
    (void)state;
    struct journal journal;
    struct station station;
    struct outbox_settings settings = rig_settings();
    settings.poll_ms = getenv("REV_POLL") ? atoi(getenv("REV_POLL")) : settings.poll_ms;
    begin(&rig_forms[0]);
    insert_aggregates(20000);
    rig_form_sql(form, "UPDATE @table SET @retry = now() + interval '1 hour'");
    rig_sql("ANALYZE public.flag_outbox");
    journal_init(&journal);
    station_open(&station, &journal, form->table, &settings);
    for (int try = 0; try < 5; try++) {
        outbox_wake(station.engine);
        struct timespec nap = {.tv_nsec = 60000000};
        nanosleep(&nap, NULL);
        rig_sql(
            "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload) SELECT 't', 'A%d', jsonb_build_object('a', 1, 'n', 1)",
            try);
        outbox_wake(station.engine);
        int64_t t0 = clock_mono_ns();
        int waited = 0;
        while (rig_count(form, "@live") != 20000 && waited++ < 200) {
            struct timespec n = {.tv_nsec = 50000000};
            nanosleep(&n, NULL);
        }
        printf("engine: try %d: %s after %d ms\n", try,
               rig_count(form, "@live") == 20000 ? "published" : "NOT published",
               (int)((clock_mono_ns() - t0) / 1000000));
        rig_sql("DELETE FROM public.flag_outbox WHERE dict_code LIKE 'A%%'");
    }
    station_close(&station);
    journal_deinit(&journal);
    end();
}

static void test_rev1_suspect(void **state)
{
    (void)state;
    for (int suspects = 0; suspects < 2; suspects++) {
        begin(&rig_forms[0]);
        rig_sql(
            "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload) VALUES ('a', 'D', jsonb_build_object('a', 7, 'n', 1))");
        rig_sql(
            "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload, claim_count) VALUES ('m', 'D', jsonb_build_object('a', 8, 'n', 1), %d)",
            2 * suspects);
        rig_sql(
            "INSERT INTO public.flag_outbox (tenant_id, dict_code, payload)"
            " SELECT 't' || to_char(t, 'FM0000'), 'E' || to_char(a, 'FM0000'), jsonb_build_object('a', 1, 'n', 1) FROM generate_series(1, 100) t, generate_series(1, 200) a");
        int claims = 1;
        while (claim_next() > 0 && !is_claimed(7))
            claims++;
        printf("suspect: with %d suspects the event of tenant a is in claim %d\n", suspects, claims);
        end();
    }
}

int run_turn_tests(void)
{
    if (getenv("REV_SUS")) {
        const struct CMUnitTest mine[] = {cmocka_unit_test(test_rev1_suspect)};
        return cmocka_run_group_tests_name("rev1", mine, NULL, NULL);
    }
    if (getenv("REV_ENGINE")) {
        const struct CMUnitTest mine[] = {cmocka_unit_test(test_rev1_missed_engine)};
        return cmocka_run_group_tests_name("rev1", mine, NULL, NULL);
    }
    if (getenv("REV_TWO")) {
        const struct CMUnitTest mine[] = {cmocka_unit_test(test_rev1_missed),
                                          cmocka_unit_test(test_rev1_tails)};
        return cmocka_run_group_tests_name("rev1", mine, NULL, NULL);
    }
    if (getenv("REV_ONLY")) {
        const struct CMUnitTest mine[] = {cmocka_unit_test(test_rev1_random)};
        return cmocka_run_group_tests_name("rev1", mine, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_o2_a_backlog_of_many_aggregates_does_not_delay_other_tenants),
        cmocka_unit_test(test_o2_several_backlogs_take_turns),
        cmocka_unit_test(test_o3_long_tails_do_not_delay_aggregates_after_them),
        cmocka_unit_test(test_o3_claims_end_while_many_aggregates_wait),
        cmocka_unit_test(test_o2_a_claim_is_bounded_by_bytes),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
