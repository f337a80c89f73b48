/* What a claim takes, and where the next one goes on: no tenant and no aggregate waits for the backlog of another (O2, O3), and a claim is
 * bounded by bytes. */
#include <stdio.h>
#include <stdlib.h>

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

int run_turn_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_o2_a_backlog_of_many_aggregates_does_not_delay_other_tenants),
        cmocka_unit_test(test_o2_several_backlogs_take_turns),
        cmocka_unit_test(test_o3_long_tails_do_not_delay_aggregates_after_them),
        cmocka_unit_test(test_o3_claims_end_while_many_aggregates_wait),
        cmocka_unit_test(test_o2_a_claim_is_bounded_by_bytes),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
