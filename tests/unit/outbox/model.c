/* Order as a model (O3): several engines, random results, leases taken away at random. Whatever happens, the
 * first publication of an event comes after the first publication, or the end, of every earlier one of its
 * aggregate. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "rig.h"

enum { STATIONS = 3, AGGREGATES = 12, EVENTS = 120, PLUCKS = 40 };

static struct journal journal;

static bool chance(unsigned of_thousand)
{
    return random_u64() % 1000 < of_thousand;
}

static enum outbox_result_kind judge(struct journal *own, const struct outbox_event *event, int aggregate,
                                     int number)
{
    (void)own, (void)event, (void)aggregate;
    if (chance(20))
        nanosleep(&(struct timespec){.tv_nsec = (long)(random_u64() % 5000000)}, NULL);
    if (number % 40 == 7)
        return OUTBOX_POISON;
    if (number % 50 == 9) /* never succeeds */
        return OUTBOX_RETRY;
    return chance(60) ? OUTBOX_RETRY : OUTBOX_DONE;
}

/* Publications of one aggregate: `next` is the first event that may not have been published yet. An event is
 * passed by when the table says in the end that it failed, and it has been tried by then. */
static void check_aggregate(int aggregate, const bool *failed, bool in_order)
{
    bool seen[EVENTS + 1] = {false}, tried[EVENTS + 1] = {false};
    int next = 1;
    for (size_t i = 0; i < journal.count; i++) {
        const struct publication *item = &journal.items[i];
        if (item->aggregate != aggregate || seen[item->number])
            continue;
        tried[item->number] = true;
        if (item->kind != OUTBOX_DONE)
            continue;
        while (next <= EVENTS && (seen[next] || (failed[next] && tried[next])))
            next++;
        if (item->number > next && in_order)
            fail_msg("%d of aggregate %d came before %d", item->number, aggregate, next);
        seen[item->number] = true;
    }
    for (int number = 1; number <= EVENTS; number++)
        if (seen[number] == failed[number] && !(seen[number] && failed[number]))
            fail_msg("%d of aggregate %d is neither published nor failed", number, aggregate);
}

static void read_failed(const struct rig_form *form, int aggregate, bool *failed)
{
    for (int number = 1; number <= EVENTS; number++) {
        char where[64];
        snprintf(where, sizeof where, "@failed AND @a = %d AND @n = %d", aggregate, number);
        failed[number] = rig_count(form, where) > 0;
    }
}

/* Takes leases away from whoever has them, as if their holders had been frozen. */
static void pluck(const struct outbox_table *table)
{
    rig_sql("UPDATE %s SET %s = now() WHERE %s IN (SELECT %s FROM %s WHERE %s > now() AND random() < 0.5"
            " FOR UPDATE SKIP LOCKED)",
            table->name, table->locked_until, table->id.name, table->id.name, table->name,
            table->locked_until);
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

static void run_model(const struct rig_form *form)
{
    const struct outbox_table *table = form->table;
    struct station stations[STATIONS];
    struct outbox_settings settings = rig_settings();
    settings.poll_ms = 5;
    settings.batch = 20;
    rig_clear();
    journal_init(&journal);
    journal.judge = judge;
    for (int i = 0; i < STATIONS; i++)
        station_open(&stations[i], &journal, table, &settings);
    for (int first = 1; first <= EVENTS; first += EVENTS / 4)
        for (int aggregate = 0; aggregate < AGGREGATES; aggregate++)
            rig_insert(table, aggregate, first, first + EVENTS / 4 - 1);
    for (int i = 0; i < PLUCKS; i++)
        pluck(table);
    bool ended = rig_await_live(form, 0);
    for (int i = 0; i < STATIONS; i++)
        station_close(&stations[i]);
    assert_true(ended);
    for (int aggregate = 0; aggregate < AGGREGATES; aggregate++) {
        bool failed[EVENTS + 1];
        read_failed(form, aggregate, failed);
        check_aggregate(aggregate, failed, table->sequence != NULL);
    }
    journal_deinit(&journal);
}

static void test_o3_order_holds_with_flags(void **state)
{
    (void)state;
    run_model(&rig_forms[0]);
}

static void test_o3_order_holds_with_words(void **state)
{
    (void)state;
    run_model(&rig_forms[1]);
}

static void test_n3_deliveries_are_neither_lost_nor_forgotten(void **state)
{
    (void)state;
    run_model(&rig_forms[2]);
    run_model(&rig_forms[3]);
}

int run_model_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_o3_order_holds_with_flags),
        cmocka_unit_test(test_o3_order_holds_with_words),
        cmocka_unit_test(test_n3_deliveries_are_neither_lost_nor_forgotten),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
