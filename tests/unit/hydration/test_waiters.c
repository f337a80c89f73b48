/* Waiters (H3, H5): deadlines, retries, outages, the end, and threads that block. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "lookup_rig.h"

/* ---- time ---- */

static void test_h3_timeout(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    rig_policy.wait_timeout_ms = 100;
    rig_policy.max_retries = 0;
    int64_t begun_ns = loop_now_ns(rig_loop);
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    assert_true(turn_until_done(&ann));
    assert_true(turn_until_done(&bob));
    assert_true(clock_mono_ns() - begun_ns >= 100 * CLOCK_NS_PER_MS);
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_string_equal(ann.data, "");
    assert_true(turn_until_empty());
    assert_int_equal(rig_questions(), 1);
    /* One for both; on a slow machine two, if they do not end in one turn, or none, if the loop is late for the last read. */
    assert_true(rig_looks() <= 2);
}

static void test_h2_the_last_read_finds_an_answer_that_did_not_arrive(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    struct hydration_need need = rig_need("ann", rig_full);
    char id[16];
    rig_policy.wait_timeout_ms = 500;
    script.find = join_others;
    script.look = in_ledger;
    script.look_is_set = true;
    unsigned tries = 0;
    do { /* a machine so slow that the look comes back too late has another try */
        snprintf(id, sizeof id, "%u", tries);
        need.entity_id = str_from(id);
        ask_need(&ann, need, false);
        ask_need(&bob, need, false);
        assert_true(turn_until_done(&ann));
        assert_true(turn_until_done(&bob));
        assert_true(turn_until_empty());
        assert_true(rig_looks() <= ++tries); /* one for both */
    } while (bob.result == HYDRATION_TIMEOUT && tries < 20);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    assert_int_equal(bob.result, HYDRATION_UPDATED);
    assert_int_equal(bob.way, HYDRATION_BY_LEDGER);
}

static void hear_title(void)
{
    struct hydration_event narrow = answer_of(HYDRATION_EVENT_UPDATED, 1);
    narrow.cover = rig_title;
    narrow.data = STR("{\"title\":\"T\"}");
    narrow.correlation_id = STR("another's");
    hear(narrow);
}

static void test_h5_a_narrow_copy_is_returned_on_timeout(void **state)
{
    (void)state;
    struct person ann = {0};
    hear_title();
    rig_policy.wait_timeout_ms = 20;
    rig_policy.max_retries = 0;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_true(turn_until_empty());
}

static void test_h5_a_stale_copy_is_returned_while_the_last_read_runs(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    rig_policy.wait_timeout_ms = 300;
    script.find = join_others;
    script.find.event.data = STR(DATA);
    script.find.event.module = STR("intake");
    script.find.event.caller = STR("ann");
    ask(&ann, "ann", rig_title);
    ask(&bob, "bob", rig_title);
    assert_true(turn_until_count(rig_finds, 1));
    turn_for_ms(1);
    rig_hold(); /* the last look does not come back */
    assert_true(turn_until_done(&ann));
    assert_true(turn_until_done(&bob));
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(ann.source_module, "intake");
    assert_string_equal(bob.data, ""); /* it is hers alone */
    rig_let_go();
    assert_true(turn_until_empty());
}

static void test_h3_the_lookup_that_asked_retries_even_if_its_caller_has_gone(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_policy.retry_backoff_ms = 10;
    rig_policy.max_retries = 2;
    script.grants = true;
    ask(&ann, "ann", rig_title);
    assert_true(turn_until_count(rig_questions, 1));
    struct rig_question first = rig_question();
    turn_for_ms(1);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_count(rig_questions, 3));
    assert_string_equal(rig_question().correlation_id, first.correlation_id);
    assert_string_equal(rig_question().caller, "ann");
    assert_int_equal(rig_question().mode, HYDRATION_PARTIAL);
    assert_true(turn_until_empty());
    assert_int_equal(rig_questions(), 3);
    assert_int_equal(rig_finds(), 1);
}

/* A retry that waits for a job while the answer arrives is no longer needed. */
static void test_h3_an_answer_ends_a_retry_that_is_queued(void **state)
{
    (void)state;
    struct person ann = {0}, others[HYDRATION_JOBS_MAX] = {0};
    char ids[HYDRATION_JOBS_MAX][8];
    struct hydration_need need = rig_need("bob", rig_full);
    rig_policy.retry_backoff_ms = 10;
    rig_policy.max_retries = 5;
    script.grants = true;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    struct hydration_event answer = answer_of(HYDRATION_EVENT_UPDATED, 1);
    rig_hold();
    script.find = not_in_ledger;
    for (size_t i = 0; i < HYDRATION_JOBS_MAX; i++) {
        snprintf(ids[i], sizeof ids[i], "x%zu", i);
        need.entity_id = str_from(ids[i]);
        ask_need(&others[i], need, false);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    turn_for_ms(30);
    assert_int_equal(rig_shard->job_turns.queued, 1);
    hear(answer);
    assert_int_equal(ann.result, HYDRATION_UPDATED);
    rig_let_go();
    assert_true(turn_until_empty());
    assert_int_equal(rig_retries(), 0);
    assert_int_equal(rig_questions(), 1);
}

static void test_h3_a_retry_that_is_not_granted_asks_nothing(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_policy.retry_backoff_ms = 5;
    rig_policy.max_retries = 3;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_retries, 1));
    turn_for_ms(30);
    assert_int_equal(rig_retries(), 1);
    assert_int_equal(rig_questions(), 1);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_empty());
}

static void test_h3_a_question_that_could_not_be_sent_is_retried(void **state)
{
    (void)state;
    struct person ann = {0};
    rig_policy.retry_backoff_ms = 5;
    script.publish_fails = true;
    script.grants = true;
    rig_hold();
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_held, 1));
    rig_let_go();
    assert_true(turn_until_count(rig_retries, 1));
    assert_int_equal(ann.times, 0);
    hydration_waiter_cancel(&ann.waiter);
    assert_true(turn_until_empty());
}

static void test_after_the_window_the_ledger_is_read_again(void **state)
{
    (void)state;
    struct person ann = {0};
    script.find = join_others;
    script.find.ttl_ms = 60;
    ask(&ann, "ann", rig_full);
    assert_true(turn_until_count(rig_finds, 3));
    hear_updated(1);
    assert_int_equal(ann.times, 1);
    assert_true(turn_until_empty());
}

/* ---- trouble ---- */

static void test_lookups_are_unavailable_while_postgresql_is_down(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    script.fails = true;
    rig_hold();
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(bob.result, HYDRATION_UNAVAILABLE);
    assert_true(turn_until_empty());
}

static void test_h5_a_narrow_copy_is_returned_without_postgresql(void **state)
{
    (void)state;
    struct person ann = {0}, bob = {0};
    hear_title();
    script.fails = true;
    rig_hold();
    ask(&ann, "ann", rig_full);
    ask(&bob, "bob", rig_full);
    rig_let_go();
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UNAVAILABLE);
    assert_string_equal(ann.data, "{\"title\":\"T\"}");
    assert_string_equal(bob.data, ann.data);
    assert_true(turn_until_empty());
}

static void test_h5_the_lookup_of_a_deferring_caller_goes_on(void **state)
{
    (void)state;
    struct person ann = {0}, again = {0};
    rig_policy.wait_timeout_ms = 20;
    rig_policy.max_retries = 0;
    rig_policy.in_flight_window_ms = 30;
    script.find = join_others;
    script.find.ttl_ms = 60;
    ask_need(&ann, rig_need("ann", rig_full), true);
    ask_need(&again, rig_need("ann", rig_full), true);
    assert_true(turn_until_done(&ann));
    assert_true(turn_until_done(&again));
    assert_int_equal(ann.result, HYDRATION_TIMEOUT);
    assert_int_equal(rig_shard->waiter_count, 1); /* one for both */
    rig_hold();
    script.fails = true; /* it outlasts an outage */
    rig_let_go();
    unsigned before = rig_finds();
    assert_true(turn_until_count(rig_finds, before + 2));
    hear_updated(1);
    assert_true(turn_until_empty());
    ask(&again, "ann", rig_full);
    assert_int_equal(again.way, HYDRATION_BY_MEMORY);
}

/* Lookups whose expired copies are large: these are charged, and where there is no room they are not kept. */
static void test_stale_copies_of_the_ledger_stay_within_the_share_of_hydration(void **state)
{
    (void)state;
    enum { COUNT = 64, COPY_BYTES = 256 * 1024, SHARE_COPIES = 8 };
    static char copy[COPY_BYTES];
    struct person *people = calloc(COUNT, sizeof *people);
    struct hydration_need need = rig_need("ann", rig_full);
    char ids[COUNT][8];
    size_t before = budget_used(BUDGET_HYDRATION), arenas = 0;
    struct map_node *node;
    memset(copy, ' ', COPY_BYTES);
    script.find = join_others;
    script.find.event.data = str_of(copy, COPY_BYTES);
    budget_set_limit((size_t)10 * SHARE_COPIES * COPY_BYTES); /* hydration has a tenth */
    for (int i = 0; i < COUNT; i++) {
        snprintf(ids[i], sizeof ids[i], "%d", i);
        need.entity_id = str_from(ids[i]);
        ask_need(&people[i], need, false);
    }
    assert_true(turn_until_count(rig_finds, COUNT));
    assert_true(turn_until_idle());
    size_t used = budget_used(BUDGET_HYDRATION) - before;
    assert_true(used >= (size_t)SHARE_COPIES / 4 * COPY_BYTES); /* some are kept, and charged … */
    assert_true(used <= budget_share(BUDGET_HYDRATION));        /* … others are not kept */
    MAP_EACH(node, &rig_shard->lookups)
        arenas += arena_bytes(&CONTAINER_OF(node, struct hydration_lookup, node)->job.arena);
    assert_true(arenas <= (size_t)COUNT * 2 * HYDRATION_ARENA_BYTES);
    for (int i = 0; i < COUNT; i++)
        hydration_waiter_cancel(&people[i].waiter);
    assert_true(turn_until_empty());
    loop_run_once(rig_loop, 0);
    assert_int_equal(budget_used(BUDGET_HYDRATION), before);
    budget_set_limit(0);
    free(people);
}

static void test_stopping_completes_all_waiters(void **state)
{
    (void)state;
    struct person running = {0}, waiting = {0}, queued[HYDRATION_JOBS_MAX] = {0}, deferred = {0};
    struct hydration_need other = rig_need("ann", rig_full);
    ask(&waiting, "ann", rig_full);
    assert_true(turn_until_count(rig_questions, 1));
    turn_for_ms(1);
    rig_hold();
    other.entity_id = STR("b");
    ask_need(&running, other, false);
    for (int i = 0; i < HYDRATION_JOBS_MAX; i++) {
        char id[] = {(char)('c' + i), 0};
        other.entity_id = str_from(id);
        ask_need(&queued[i], other, i == 0);
    }
    assert_true(turn_until_count(rig_held, HYDRATION_JOBS_MAX));
    waiting.cancels = &queued[HYDRATION_JOBS_MAX - 1];
    waiting.asks = &deferred;
    hydration_shard_stop(rig_shard);
    assert_int_equal(running.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(waiting.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(queued[0].result, HYDRATION_UNAVAILABLE);
    assert_int_equal(deferred.result, HYDRATION_UNAVAILABLE);
    assert_int_equal(running.times + waiting.times + queued[0].times + deferred.times, 4);
    assert_int_equal(rig_shard->waiter_count, 0);
    rig_let_go();
    assert_true(turn_until_empty());
    ask(&waiting, "ann", rig_full);
    assert_int_equal(waiting.result, HYDRATION_UNAVAILABLE);
}

static void test_without_workers_lookups_are_unavailable(void **state)
{
    (void)state;
    struct person ann = {0};
    worker_pool_stop(rig.config.workers);
    ask(&ann, "ann", rig_full);
    assert_int_equal(ann.times, 0); /* not in the middle of asking */
    assert_true(turn_until_done(&ann));
    assert_int_equal(ann.result, HYDRATION_UNAVAILABLE);
    assert_true(turn_until_empty());
}

/* ---- a thread that blocks ---- */

enum { BATCH = 50 };

struct batch_call {
    struct arena arena;
    struct hydration_outcome outcomes[BATCH];
    atomic_bool is_back;
};

static void *ask_batch(void *arg)
{
    struct batch_call *call = arg;
    struct hydration_need needs[BATCH];
    char ids[BATCH][8];
    for (int i = 0; i < BATCH; i++) {
        needs[i] = rig_need("ann", i % 2 ? rig_title : rig_full);
        snprintf(ids[i], sizeof ids[i], "%d", i / 2);
        needs[i].entity_id = str_from(ids[i]);
    }
    hydration_ask_and_wait(&rig, &rig_policy, needs, BATCH, &call->arena, call->outcomes);
    atomic_store(&call->is_back, true);
    return NULL;
}

static bool is_back(void *arg)
{
    return atomic_load(&((struct batch_call *)arg)->is_back);
}

static void run_batch(struct batch_call *call)
{
    pthread_t thread;
    call->arena = ARENA(1024);
    atomic_init(&call->is_back, false);
    pthread_create(&thread, NULL, ask_batch, call);
    bool came_back = turn_until(is_back, call);
    pthread_join(thread, NULL);
    assert_true(came_back);
}

static void test_a_thread_waits_for_all_at_once(void **state)
{
    (void)state;
    static struct batch_call call;
    script.find = in_ledger;
    run_batch(&call);
    for (int i = 0; i < BATCH; i++) {
        assert_int_equal(call.outcomes[i].result, HYDRATION_UPDATED);
        assert_true(str_eq(call.outcomes[i].data, i % 2 ? STR("{\"title\":\"T\"}") : STR(DATA)));
        assert_true(str_eq(call.outcomes[i].source_module, STR("intake")));
    }
    arena_deinit(&call.arena);
    assert_true(turn_until_empty());
}

static void test_a_thread_gets_timeouts(void **state)
{
    (void)state;
    static struct batch_call call;
    script.find = join_others;
    rig_policy.wait_timeout_ms = 30;
    run_batch(&call);
    for (int i = 0; i < BATCH; i++)
        assert_int_equal(call.outcomes[i].result, HYDRATION_TIMEOUT);
    arena_deinit(&call.arena);
    assert_true(turn_until_empty());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_h3_timeout),
        TEST(test_h2_the_last_read_finds_an_answer_that_did_not_arrive),
        TEST(test_h5_a_narrow_copy_is_returned_on_timeout),
        TEST(test_h5_a_stale_copy_is_returned_while_the_last_read_runs),
        TEST(test_h3_the_lookup_that_asked_retries_even_if_its_caller_has_gone),
        TEST(test_h3_an_answer_ends_a_retry_that_is_queued),
        TEST(test_h3_a_retry_that_is_not_granted_asks_nothing),
        TEST(test_h3_a_question_that_could_not_be_sent_is_retried),
        TEST(test_after_the_window_the_ledger_is_read_again),
        TEST(test_lookups_are_unavailable_while_postgresql_is_down),
        TEST(test_h5_a_narrow_copy_is_returned_without_postgresql),
        TEST(test_h5_the_lookup_of_a_deferring_caller_goes_on),
        TEST(test_stale_copies_of_the_ledger_stay_within_the_share_of_hydration),
        TEST(test_stopping_completes_all_waiters),
        TEST(test_without_workers_lookups_are_unavailable),
        TEST(test_a_thread_waits_for_all_at_once),
        TEST(test_a_thread_gets_timeouts),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
