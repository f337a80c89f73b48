/* C5, C7: verifications are bounded, none is forgotten, and loops, workers and reloads share nothing
 * unguarded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/budget.h"
#include "rig.h"

static struct forge_key key;

/* ---- a queue that is full ---- */

struct blocker {
    struct worker_job job;
    sem_t *gate;
};

static void wait_at_gate(struct worker_job *job)
{
    sem_wait(((struct blocker *)job)->gate);
}

static void nothing(struct worker_job *job)
{
    (void)job;
}

static void count_calls(void *context)
{
    ++*(unsigned *)context;
}

static void a_full_queue_refuses_and_calls_only_what_it_took(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&key};
    struct blocker blockers[2];
    struct rig rig;
    sem_t gate;
    unsigned calls = 0, taken = 0;
    char header[64];

    rig_init(&rig);
    rig_write_jwks(&rig, keys, 1);
    rig_start(&rig);
    sem_init(&gate, 0, 0);
    for (int i = 0; i < 2; i++) { /* both workers of the rig */
        blockers[i] = (struct blocker){.job = {.run = wait_at_gate, .done = nothing}, .gate = &gate};
        assert_true(worker_pool_submit(rig.workers, &blockers[i].job));
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(header, sizeof(header), "Bearer a.b.%d", i);
        taken += auth_verify(rig.auth, rig.loop, 0, str_from(header), count_calls, &calls);
    }
    assert_in_range(taken, 1, 200); /* the rig's queue holds 100 */
    assert_true(auth_verify(rig.auth, rig.loop, 0, STR("Bearer a.b.0"), count_calls, &calls)); /* joins one */
    assert_int_equal(calls, 0);
    sem_post(&gate);
    sem_post(&gate);
    for (int i = 0; i < 1000 && calls < taken + 1; i++)
        rig_turn(&rig);
    assert_int_equal(calls, taken + 1);
    rig_deinit(&rig);
    sem_destroy(&gate);
}

/* C6: a token that waits for its check is a copy of a header of up to 32 KiB, from a client that nothing is known of. */
static void tokens_that_wait_are_charged_to_their_sender(void **state)
{
    (void)state;
    enum { TOKEN_BYTES = 30000, TOKENS = 64, BOUND = 1 << 20 };
    static char header[TOKEN_BYTES + 1];
    const struct forge_key *keys[] = {&key};
    struct blocker blockers[2];
    struct rig rig;
    sem_t gate;
    unsigned calls = 0, taken = 0;

    rig_init(&rig);
    rig_write_jwks(&rig, keys, 1);
    rig_start(&rig);
    sem_init(&gate, 0, 0);
    for (int i = 0; i < 2; i++) {
        blockers[i] = (struct blocker){.job = {.run = wait_at_gate, .done = nothing}, .gate = &gate};
        assert_true(worker_pool_submit(rig.workers, &blockers[i].job));
    }
    budget_set_bound(BUDGET_REQUESTS, BOUND);
    memset(header, 'x', TOKEN_BYTES);
    for (int i = 0; i < TOKENS; i++) {
        header[snprintf(header, sizeof header, "Bearer a.b.%02d", i)] = 'x';
        taken += auth_verify(rig.auth, rig.loop, 1, str_of(header, TOKEN_BYTES), count_calls, &calls);
    }
    assert_in_range(taken, 5, BOUND / TOKEN_BYTES / 2);
    assert_in_range(budget_used(BUDGET_REQUESTS), taken * TOKEN_BYTES, BOUND);
    assert_true(auth_verify(rig.auth, rig.loop, 2, STR("Bearer a.c.1"), count_calls, &calls));
    sem_post(&gate);
    sem_post(&gate);
    for (int i = 0; i < 1000 && calls < taken + 1; i++)
        rig_turn(&rig);
    assert_int_equal(calls, taken + 1);
    rig_deinit(&rig);
    assert_int_equal(budget_used(BUDGET_REQUESTS), 0);
    budget_set_bound(BUDGET_REQUESTS, 0);
    sem_destroy(&gate);
}

struct order {
    unsigned *calls, before;
};

static void note_calls_before(void *context)
{
    struct order *order = context;
    order->before = (*order->calls)++;
}

/* C5: new tokens from one address, however many, leave places to those from another, which are checked in turn. */
static void a_flood_from_one_address_is_refused_and_others_are_not(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&key};
    struct blocker blockers[2];
    struct rig rig;
    sem_t gate;
    struct order orders[16];
    unsigned calls = 0, taken = 0, others_taken = 0;
    char header[64];

    rig_init(&rig);
    worker_pool_destroy(rig.workers);
    rig.workers = worker_pool_create("test", 2, 10000);
    rig_write_jwks(&rig, keys, 1);
    rig_start(&rig);
    sem_init(&gate, 0, 0);
    for (int i = 0; i < 2; i++) {
        blockers[i] = (struct blocker){.job = {.run = wait_at_gate, .done = nothing}, .gate = &gate};
        assert_true(worker_pool_submit(rig.workers, &blockers[i].job));
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(header, sizeof(header), "Bearer a.b.%d", i);
        taken += auth_verify(rig.auth, rig.loop, 1, str_from(header), count_calls, &calls);
    }
    assert_int_equal(taken, 1024);
    for (unsigned i = 0; i < 16; i++) {
        orders[i] = (struct order){.calls = &calls};
        snprintf(header, sizeof(header), "Bearer a.c.%u", i);
        others_taken +=
            auth_verify(rig.auth, rig.loop, 2 + i, str_from(header), note_calls_before, &orders[i]);
    }
    assert_int_equal(others_taken, 16);
    sem_post(&gate);
    sem_post(&gate);
    for (int i = 0; i < 1000 && calls < taken + others_taken; i++)
        rig_turn(&rig);
    assert_int_equal(calls, taken + others_taken);
    for (int i = 0; i < 16; i++)
        assert_in_range(orders[i].before, 0, 200);
    /* and the places are free again */
    assert_true(auth_verify(rig.auth, rig.loop, 1, STR("Bearer a.d.0"), count_calls, &calls));
    while (calls < taken + others_taken + 1)
        rig_turn(&rig);
    rig_deinit(&rig);
    sem_destroy(&gate);
}

/* ---- loops, workers and reloads together ---- */

#define LOOPS 2
#define TOKENS 20
#define RELOADS 100

static atomic_bool enough;

struct asker { /* one per loop; asks the next question when the last one is answered */
    struct loop_message message;
    struct loop *loop;
    struct auth *auth;
    atomic_uint asked;
    unsigned allowed, refused;
    atomic_bool finished;
};

static struct buf headers[TOKENS];

static void ask_on(struct asker *asker);

static void on_message(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    ask_on((struct asker *)message);
}

static void on_verified(void *context)
{
    ask_on(context);
}

/* Goes on until a token must be verified; back through the inbox now and then, so that messages get their
 * turn. */
static void ask_on(struct asker *asker)
{
    const struct auth_identity *identity;
    struct error error;

    for (int burst = 0; !atomic_load(&enough); burst++) {
        struct auth_question question = rig_question(buf_str(&headers[asker->asked % TOKENS]));
        enum auth_answer answer = auth_check(asker->auth, asker->loop, &question, &identity, &error);
        if (answer == AUTH_VERIFY) {
            if (auth_verify(asker->auth, asker->loop, 0, question.authorization, on_verified, asker))
                return;
            asker->refused++;
        }
        asker->asked++;
        asker->allowed += answer == AUTH_ALLOWED && str_eq(identity->tenant, STR("acme"));
        if (burst == 10) {
            asker->message.on_message = on_message;
            loop_post(asker->loop, &asker->message);
            return;
        }
    }
    atomic_store(&asker->finished, true);
}

static bool have_all_asked(struct asker *askers, unsigned count)
{
    bool have = true;

    for (unsigned i = 0; i < count; i++)
        have &= atomic_load(&askers[i].asked) > 0;
    return have;
}

static void loops_workers_and_reloads_get_along(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&key};
    struct asker askers[LOOPS];
    struct rig rig;
    struct error error;

    rig_init(&rig);
    rig_write_jwks(&rig, keys, 1);
    loop_group_destroy(rig.group);
    rig.group = loop_group_create(LOOPS, 100);
    rig_start(&rig);
    for (int i = 0; i < TOKENS; i++) {
        struct buf token = {0};
        headers[i] = (struct buf){0};
        forge_honest(&key, RIG_NOW_S + 1000 + i, &token);
        buf_printf(&headers[i], "Bearer %.*s", STR_ARG(buf_str(&token)));
        buf_deinit(&token);
    }
    loop_group_start(rig.group);
    for (unsigned i = 0; i < LOOPS; i++) {
        struct loop *loop = loop_group_loop(rig.group, i);
        askers[i] = (struct asker){.message.on_message = on_message, .loop = loop, .auth = rig.auth};
        loop_post(loop, &askers[i].message);
    }
    for (int i = 0; i < RELOADS || !have_all_asked(askers, LOOPS); i++) {
        rig_write_jwks(&rig, keys, 1);
        assert_int_equal(auth_reload(rig.auth, &rig.settings, &error), STATUS_OK);
        assert_true(auth_is_ready(rig.auth));
        auth_publish(rig.auth, true);
    }
    atomic_store(&enough, true);
    for (unsigned i = 0; i < LOOPS; i++)
        while (!atomic_load(&askers[i].finished))
            usleep(1000);
    worker_pool_stop(rig.workers);
    loop_group_stop(rig.group);
    for (unsigned i = 0; i < LOOPS; i++) {
        assert_true(askers[i].asked > 0);
        assert_int_equal(askers[i].refused, 0);
        assert_int_equal(askers[i].allowed, askers[i].asked);
    }
    rig_deinit(&rig);
    for (int i = 0; i < TOKENS; i++)
        buf_deinit(&headers[i]);
}

/* ---- the end, with work under way ---- */

static void auth_may_end_before_or_after_its_loops_have_ended(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&key};

    for (int order = 0; order < 2; order++) {
        struct rig rig;
        unsigned calls = 0;

        rig_init(&rig);
        rig_write_jwks(&rig, keys, 1);
        rig_start(&rig);
        assert_true(auth_verify(rig.auth, rig.loop, 0, STR("Bearer a.b.c"), count_calls, &calls));
        assert_true(auth_verify(rig.auth, rig.loop, 0, STR("Bearer a.b.d"), count_calls, &calls));
        auth_publish(rig.auth, true);
        worker_pool_stop(rig.workers);
        if (order == 1)
            loop_group_stop(rig.group);
        auth_destroy(rig.auth);
        loop_group_destroy(rig.group);
        assert_int_equal(calls, 2); /* told, though nobody turned the loop */
        rig.auth = NULL;
        rig.group = loop_group_create(1, 1);
        rig_deinit(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_refuses_and_calls_only_what_it_took),
        cmocka_unit_test(tokens_that_wait_are_charged_to_their_sender),
        cmocka_unit_test(a_flood_from_one_address_is_refused_and_others_are_not),
        cmocka_unit_test(loops_workers_and_reloads_get_along),
        cmocka_unit_test(auth_may_end_before_or_after_its_loops_have_ended),
    };
    key = forge_key_create(AUTH_EDDSA, "k1");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    forge_key_destroy(&key);
    return failed;
}
