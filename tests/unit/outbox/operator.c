/* What an operator does (O4), on each form of table. */
#include <stdio.h>

#include "rig.h"

static struct outbox_selection everything = {.rows_max = 1000};

static int64_t must(enum outbox_change change, const struct outbox_table *table,
                    const struct outbox_selection *selection)
{
    struct error error = {0};
    int64_t count = -1;
    struct db_conn *conn = rig_conn();
    enum status status =
        outbox_change(conn, table, change, selection, clock_deadline_ms(PATIENCE_MS), &count, &error);
    db_release(conn);
    if (status != STATUS_OK)
        fail_msg("%s", error.message);
    return count;
}

static size_t listed(const struct outbox_table *table, enum outbox_state state,
                     const struct outbox_selection *selection)
{
    struct error error = {0};
    struct db_result *rows = NULL;
    struct db_conn *conn = rig_conn();
    enum status status =
        outbox_list(conn, table, state, selection, clock_deadline_ms(PATIENCE_MS), &rows, &error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    db_result_free(rows);
    db_release(conn);
    if (status != STATUS_OK)
        fail_msg("%s", error.message);
    return count;
}

static const struct rig_form *form_of(const struct outbox_table *table)
{
    const struct rig_form *form = rig_forms;
    while (form->table != table)
        form++;
    return form;
}

/* 1 pending, 2 in flight, 3 published, 4 failed; as many of each. */
static void fill(const struct outbox_table *table)
{
    rig_clear();
    rig_insert(table, 1, 1, 10);
    const struct rig_form *form = form_of(table);
    rig_form_sql(form, "UPDATE @table SET @leased = now() + interval '1 hour', claim_id = gen_random_uuid()"
                       " WHERE @n IN (2, 3)");
    if (table == &rig_flags) {
        rig_sql("UPDATE public.flag_outbox SET published = true, published_at = now()"
                " WHERE (payload->>'n')::int BETWEEN 4 AND 6");
        rig_sql("UPDATE public.flag_outbox SET failed_at = now(), attempt_count = 10, claim_count = 10,"
                " last_error = 'why' WHERE (payload->>'n')::int >= 7");
    } else {
        rig_form_sql(form, "UPDATE @table SET @published WHERE @n BETWEEN 4 AND 6");
        rig_form_sql(form, "UPDATE @table SET @failed, @attempts = 10, claim_count = 10 WHERE @n >= 7");
        if (table->last_error)
            rig_form_sql(form, "UPDATE @table SET last_error = 'why' WHERE @n >= 7");
    }
}

static void check_states(const struct outbox_table *table, size_t pending, size_t in_flight, size_t published,
                         size_t failed)
{
    assert_int_equal(listed(table, OUTBOX_PENDING, &everything), pending);
    assert_int_equal(listed(table, OUTBOX_IN_FLIGHT, &everything), in_flight);
    assert_int_equal(listed(table, OUTBOX_PUBLISHED, &everything), published);
    assert_int_equal(listed(table, OUTBOX_FAILED, &everything), failed);
}

/* Also those of a table that says nothing of order. */
static void run_on(const struct outbox_table *table)
{
    fill(table);
    check_states(table, 1, 2, 3, 4);
    assert_int_equal(must(OUTBOX_CHANGE_UNLOCK, table, &everything), 2);
    check_states(table, 3, 0, 3, 4);
    struct outbox_selection two = {.rows_max = 2};
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, table, &two), 2);
    check_states(table, 5, 0, 3, 2);
    assert_int_equal(must(OUTBOX_CHANGE_DISCARD, table, &everything), 2);
    check_states(table, 5, 0, 5, 0);
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, table, &everything), 0);
    bool knows = table->last_error != NULL; /* a table without it does not know what was given up */
    assert_int_equal(must(OUTBOX_CHANGE_REPUBLISH, table, &everything), knows ? 3 : 5);
    check_states(table, knows ? 8 : 10, 0, knows ? 2 : 0, 0);
    assert_int_equal(rig_count(form_of(table), "@attempts + claim_count > 0 AND @n >= 4"), knows ? 2 : 0);
}

static void test_o4_every_action_moves_what_it_says(void **state)
{
    (void)state;
    run_on(&rig_flags);
    run_on(&rig_words);
    run_on(&rig_deliveries);
    run_on(&rig_turns);
}

static void test_o4_a_selection_narrows(void **state)
{
    (void)state;
    char first[24], last[24], ids[64];
    fill(&rig_flags);
    int64_t base = rig_sql("SELECT min(id) FROM public.flag_outbox");
    snprintf(first, sizeof first, "%lld", (long long)base + 4);
    snprintf(last, sizeof last, "%lld", (long long)base + 7);
    snprintf(ids, sizeof ids, "{%lld,%lld}", (long long)base + 6, (long long)base + 9);
    struct outbox_selection range = {.first = str_from(first), .last = str_from(last), .rows_max = 10};
    struct outbox_selection some = {.ids = str_from(ids), .rows_max = 10};
    struct outbox_selection other = {.aggregate = STR("t/D002"), .rows_max = 10};
    struct outbox_selection own = {.aggregate = STR("t/D001"), .rows_max = 10};
    assert_int_equal(listed(&rig_flags, OUTBOX_PUBLISHED, &range), 2);
    assert_int_equal(listed(&rig_flags, OUTBOX_FAILED, &range), 2);
    assert_int_equal(listed(&rig_flags, OUTBOX_FAILED, &some), 2);
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, &rig_flags, &other), 0);
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, &rig_flags, &some), 2);
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, &rig_flags, &own), 2);
}

/* Issue 15, point 3. */
static void test_stuck_are_failed_ones_and_those_that_do_not_get_on(void **state)
{
    (void)state;
    fill(&rig_flags);
    assert_int_equal(listed(&rig_flags, OUTBOX_STUCK, &everything), 4);
    rig_sql("UPDATE public.flag_outbox SET attempt_count = 1, next_attempt_at = now() + interval '1 hour'"
            " WHERE (payload->>'n')::int = 1");
    assert_int_equal(listed(&rig_flags, OUTBOX_STUCK, &everything), 5);
    rig_sql(
        "UPDATE public.flag_outbox SET created_at = now() - interval '6 minutes' WHERE (payload->>'n')::int = 2");
    rig_sql(
        "UPDATE public.flag_outbox SET locked_until = now() + interval '3 hours' WHERE (payload->>'n')::int = 3");
    assert_int_equal(listed(&rig_flags, OUTBOX_STUCK, &everything), 7);
    /* what waits for its next attempt is tried now, what another has is left to it */
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, &rig_flags, &everything), 5);
    assert_int_equal(rig_sql("SELECT count(*) FROM public.flag_outbox WHERE next_attempt_at IS NOT NULL"), 0);
    assert_int_equal(listed(&rig_flags, OUTBOX_STUCK, &everything), 2);
}

static void test_a_count_is_what_the_change_would_change(void **state)
{
    (void)state;
    const struct outbox_selection others[] = {{.rows_max = 3},
                                              {.rows_max = 100, .tenant = STR("t")},
                                              {.rows_max = 100, .tenant = STR("other")},
                                              {.rows_max = 100, .until = STR("2000-01-01T00:00:00Z")},
                                              {.rows_max = 100, .event_type = STR("nothing")}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        for (int change = OUTBOX_CHANGE_RETRY; change <= OUTBOX_CHANGE_UNLOCK; change++) {
            struct error error = {0};
            int64_t count = -1;
            fill(&rig_flags);
            struct db_conn *conn = rig_conn();
            assert_int_equal(outbox_change_count(conn, &rig_flags, (enum outbox_change)change, &others[i],
                                                 clock_deadline_ms(PATIENCE_MS), &count, &error),
                             STATUS_OK);
            db_release(conn);
            assert_int_equal(must((enum outbox_change)change, &rig_flags, &others[i]), count);
            assert_true(i >= 2 ? count == 0 : count > 0);
        }
}

static void test_o4_what_was_given_up_comes_back_only_by_its_name(void **state)
{
    (void)state;
    char ids[32];
    fill(&rig_flags);
    snprintf(ids, sizeof ids, "{%lld}", (long long)rig_sql("SELECT max(id) FROM public.flag_outbox"));
    struct outbox_selection one = {.ids = str_from(ids), .rows_max = 10};
    assert_int_equal(must(OUTBOX_CHANGE_DISCARD, &rig_flags, &one), 1);
    assert_int_equal(must(OUTBOX_CHANGE_REPUBLISH, &rig_flags, &everything), 3);
    assert_int_equal(must(OUTBOX_CHANGE_REPUBLISH, &rig_flags, &one), 1);
    check_states(&rig_flags, 5, 2, 0, 3);
}

static void test_o4_since_a_moment(void **state)
{
    (void)state;
    struct outbox_selection since = {.since = STR("2026-03-01T00:00:00Z"), .rows_max = 10};
    for (const struct rig_form *form = rig_forms; form < rig_forms + RIG_FORMS; form++) {
        fill(form->table);
        rig_form_sql(form, "UPDATE @table SET created_at = '2026-03-01T00:00:00Z'::timestamptz"
                           " + (@n - 5) * interval '1 s'");
        assert_int_equal(listed(form->table, OUTBOX_PUBLISHED, &since), 2);
        assert_int_equal(must(OUTBOX_CHANGE_REPUBLISH, form->table, &since), 2);
        assert_int_equal(must(OUTBOX_CHANGE_UNLOCK, form->table, &since), 0);
        rig_form_sql(form, "UPDATE @table SET created_at = created_at - interval '3 s'");
        assert_int_equal(must(OUTBOX_CHANGE_RETRY, form->table, &since), 3);
        rig_form_sql(form, "UPDATE @table SET created_at = created_at + interval '3 s'");
        assert_int_equal(must(OUTBOX_CHANGE_DISCARD, form->table, &since), 1);
        check_states(form->table, 6, 2, 2, 0);
    }
}

/* A delivery without a sequence is in no range of one, and about whom its columns say. */
static void test_o4_deliveries_are_chosen_by_whom_they_are_about(void **state)
{
    (void)state;
    fill(&rig_deliveries);
    struct outbox_selection range = {.first = STR("1"), .rows_max = 10};
    struct outbox_selection own = {.aggregate = STR("u1"), .rows_max = 10};
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, &rig_deliveries, &range), 0);
    assert_int_equal(must(OUTBOX_CHANGE_RETRY, &rig_deliveries, &own), 4);
}

int run_operator_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_o4_every_action_moves_what_it_says),
        cmocka_unit_test(test_o4_a_selection_narrows),
        cmocka_unit_test(test_stuck_are_failed_ones_and_those_that_do_not_get_on),
        cmocka_unit_test(test_a_count_is_what_the_change_would_change),
        cmocka_unit_test(test_o4_what_was_given_up_comes_back_only_by_its_name),
        cmocka_unit_test(test_o4_since_a_moment),
        cmocka_unit_test(test_o4_deliveries_are_chosen_by_whom_they_are_about),
    };
    return cmocka_run_group_tests_name("by hand", tests, NULL, NULL);
}
