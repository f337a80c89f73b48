/* The wire and owners, on a real bus: the embedded one or, with the argument "nats", NATS (H1, H6). */
#include "wire_rig.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"

static struct rig_pod pods[2];

/* Both answer for items, the second for chats too; the first follows the items' own events. */
static int open_pods(void **state)
{
    static const char *const types[2][3] = {{"item"}, {"item", "chat_session"}};
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        rig_pod_open(&pods[i], i, types[i]);
    for (unsigned i = 0; i < 2; i++)
        rig_pod_start(&pods[i]);
    rig_await_ready(pods, 2, "item");
    return 0;
}

static int close_pods(void **state)
{
    (void)state;
    rig_gate_open(); /* whatever a test that failed left behind */
    rig_pod_close(&pods[0]);
    rig_pod_close(&pods[1]);
    return 0;
}

static void a_question_goes_to_one_owner_and_its_answer_to_every_process(void **state)
{
    (void)state;
    char id[32];
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "%s-%d", i % 2 ? "there" : "absent", i);
        rig_ask(&pods[i % 2], "item", id, "bob", NULL);
    }
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "%s-%d", i % 2 ? "there" : "absent", i);
        rig_await(RIG_RECEIVED, id, 2);
        rig_await(RIG_STORED, id, 1);
        assert_int_equal(rig_count(RIG_LOOKED, id), 1);
        assert_int_equal(rig_count_of(0, RIG_RECEIVED, id), 1);
        assert_int_equal(rig_count_of(1, RIG_RECEIVED, id), 1);
        assert_int_equal(rig_count(RIG_STORED, id), 1);
    }
}

static void check_answer(const char *id, const char *caller, struct rig_note expected)
{
    rig_ask(&pods[0], "item", id, caller, NULL);
    rig_await(RIG_RECEIVED, id, 2);
    struct rig_note heard = rig_note_of(RIG_RECEIVED, id);
    char correlation_id[80];
    snprintf(correlation_id, sizeof correlation_id, "c-%s", id);
    assert_string_equal(rig_note_of(RIG_LOOKED, id).caller, caller);
    assert_string_equal(heard.correlation_id, correlation_id);
    assert_int_equal(heard.kind, expected.kind);
    assert_int_equal(heard.reason, expected.reason);
    assert_int_equal(heard.is_private, expected.is_private);
    assert_string_equal(heard.caller, expected.caller);
    assert_string_equal(heard.data, expected.data);
    assert_int_equal(heard.version, 7);
}

static void an_answer_names_its_caller(void **state)
{
    (void)state;
    check_answer("there-a", "bob",
                 (struct rig_note){.kind = HYDRATION_EVENT_UPDATED,
                                   .data = "{\"id\":\"there-a\",\"title\":\"t\",\"price\":1}"});
    check_answer("private-a", "alice",
                 (struct rig_note){.kind = HYDRATION_EVENT_UPDATED,
                                   .is_private = true,
                                   .caller = "alice",
                                   .data = "{\"id\":\"private-a\",\"title\":\"t\",\"price\":1}"});
    check_answer("absent-a", "bob", (struct rig_note){.kind = HYDRATION_EVENT_NOT_FOUND});
    check_answer("hidden-a", "bob",
                 (struct rig_note){.kind = HYDRATION_EVENT_NOT_FOUND,
                                   .reason = HYDRATION_INACCESSIBLE,
                                   .is_private = true,
                                   .caller = "bob"});
}

static void a_question_without_a_caller_gets_nothing_private(void **state)
{
    (void)state;
    check_answer("there-b", "",
                 (struct rig_note){.kind = HYDRATION_EVENT_UPDATED,
                                   .data = "{\"id\":\"there-b\",\"title\":\"t\",\"price\":1}"});
    check_answer("private-b", "",
                 (struct rig_note){.kind = HYDRATION_EVENT_NOT_FOUND,
                                   .reason = HYDRATION_INACCESSIBLE,
                                   .is_private = true});
}

static void an_answer_is_cut_to_what_was_asked_for(void **state)
{
    (void)state;
    static const struct str title[] = {{"title", 5}};
    rig_ask(&pods[0], "item", "there-c", "bob", &(struct hydration_cover){HYDRATION_PARTIAL, title, 1});
    rig_ask(&pods[0], "item", "there-d", "bob", &(struct hydration_cover){HYDRATION_EXISTENCE, NULL, 0});
    rig_await(RIG_RECEIVED, "there-c", 2);
    rig_await(RIG_RECEIVED, "there-d", 2);
    assert_string_equal(rig_note_of(RIG_RECEIVED, "there-c").data, "{\"title\":\"t\"}");
    assert_string_equal(rig_note_of(RIG_RECEIVED, "there-d").data, "{}");
}

static void questions_of_another_type_are_left_to_their_owner(void **state)
{
    (void)state;
    char id[32];
    rig_ask(&pods[0], "customer", "there-g", "bob", NULL);
    for (int i = 0; i < 8; i++) { /* by chance both would be asked */
        snprintf(id, sizeof id, "there-e-%d", i);
        rig_ask(&pods[0], "chat_session", id, "bob", NULL);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(id, sizeof id, "there-e-%d", i);
        rig_await(RIG_RECEIVED, id, 2);
        assert_int_equal(rig_count_of(0, RIG_LOOKED, id), 0);
        assert_int_equal(rig_count_of(1, RIG_LOOKED, id), 1);
    }
    assert_int_equal(rig_count(RIG_LOOKED, "there-g"), 0);
}

static void an_invalid_event_is_counted_and_dead_lettered(void **state)
{
    (void)state;
    char reason[BUS_REASON_BYTES];
    size_t before = rig_ignored("malformed");
    assert_int_equal(rig_send_raw(&pods[0], HYDRATION_EVENT_UNKNOWN, "{\"entity_type\":\"item\"}"),
                     STATUS_OK);
    rig_await_ignored("malformed", before + 1);
    assert_int_equal(rig_send_raw(&pods[0], HYDRATION_EVENT_UPDATED, "\xff"), STATUS_OK);
    assert_int_equal(rig_send_raw(&pods[0], HYDRATION_EVENT_NOT_FOUND, "[]"), STATUS_OK);
    rig_await_dead(HYDRATION_EVENT_UPDATED, 1, reason);
    assert_non_null(strstr(reason, "invalid event: the payload is not JSON"));
    rig_await_dead(HYDRATION_EVENT_NOT_FOUND, 1, reason);
    assert_non_null(strstr(reason, "invalid event: the payload is not a JSON object"));
    assert_int_equal(rig_ignored("malformed"), before + 3);
    if (!rig_is_nats()) {
        rig_await_dead(HYDRATION_EVENT_UNKNOWN, 1, reason);
        assert_non_null(strstr(reason, "entity_id: is missing"));
    }
    rig_ask(&pods[1], "item", "there-h", "bob", NULL); /* and it all goes on */
    rig_await(RIG_RECEIVED, "there-h", 2);
    rig_await(RIG_STORED, "there-h", 1);
}

static void an_owner_that_fails_does_not_answer_and_is_asked_again(void **state)
{
    (void)state;
    rig_ask(&pods[1], "item", "fails-a", "bob", NULL);
    rig_await(RIG_LOOKED, "fails-a", 1);
    rig_ask(&pods[1], "item", "fails-a", "bob", NULL);
    rig_await(RIG_RECEIVED, "fails-a", 2);
    assert_int_equal(rig_count(RIG_LOOKED, "fails-a"), 2);
    assert_int_equal(rig_count(RIG_RECEIVED, "fails-a"), 2);
}

static void events_that_could_not_be_stored_are_retried(void **state)
{
    (void)state;
    rig_store_next(STATUS_DB_ERROR);
    rig_ask(&pods[0], "item", "there-i", "bob", NULL);
    rig_await(RIG_STORED, "there-i", 1);
}

static enum status publish_change(const char *entity_type, const char *id, struct error *error)
{
    return hydration_publish_change(&pods[0].engine, entity_type, STR("acme"), str_from(id),
                                    clock_deadline_ms(RIG_PATIENCE_MS), error);
}

static void a_change_is_published_to_every_process(void **state)
{
    (void)state;
    static const struct {
        const char *id, *caller, *data;
        enum hydration_kind kind;
        bool is_private;
    } cases[] = {
        {"there-j", "", "{\"id\":\"there-j\",\"title\":\"t\",\"price\":1}", HYDRATION_EVENT_UPDATED, false},
        {"private-j", "alice", "{\"id\":\"private-j\",\"title\":\"t\",\"price\":1}", HYDRATION_EVENT_UPDATED,
         true},
        {"nobodys-j", "", "{}", HYDRATION_EVENT_UPDATED, true},
        {"absent-j", "", "", HYDRATION_EVENT_NOT_FOUND, false},
    };
    struct error error = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(publish_change("item", cases[i].id, &error), STATUS_OK);
        rig_await(RIG_RECEIVED, cases[i].id, 2);
        rig_await(RIG_STORED, cases[i].id, 1);
        struct rig_note heard = rig_note_of(RIG_RECEIVED, cases[i].id);
        assert_int_equal(heard.kind, cases[i].kind);
        assert_int_equal(heard.is_private, cases[i].is_private);
        assert_string_equal(heard.caller, cases[i].caller);
        assert_string_equal(heard.data, cases[i].data);
        assert_string_equal(heard.correlation_id, "");
        assert_int_equal(heard.version, 7);
    }
    assert_int_equal(publish_change("customer", "there-k", &error), STATUS_CONFIG);
}

static void a_change_of_many_is_published_for_each_held_entity(void **state)
{
    (void)state;
    struct error error = {0};
    struct hydration_ref *held;
    struct arena arena = ARENA(1024);
    size_t count = 0;
    assert_int_equal(hydration_list_held(&pods[0].engine, "item", STR("acme"), STR("held-"),
                                         clock_deadline_ms(RIG_PATIENCE_MS), &arena, &held, &count, &error),
                     STATUS_OK);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(hydration_publish_change(&pods[0].engine, "item", held[i].tenant, held[i].entity_id,
                                                  clock_deadline_ms(RIG_PATIENCE_MS), &error),
                         STATUS_OK);
    arena_deinit(&arena);
    rig_await(RIG_RECEIVED, "held-0", 2);
    rig_await(RIG_RECEIVED, "held-1", 2);
    rig_await(RIG_RECEIVED, "held-2", 2);
}

/* ---- following ---- */

static void events_of_an_owner_are_followed_once_it_can_look(void **state)
{
    (void)state;
    struct error error = {0};
    struct bus_message messages[] = {
        {.topic = STR(RIG_OWN_TOPIC), .key = STR("k"), .payload = STR("of-no-entity")},
        {.topic = STR(RIG_OWN_TOPIC), .key = STR("k"), .payload = STR("there-l")},
        {.topic = STR(RIG_OWN_TOPIC), .key = STR("k"), .payload = STR("absent-l")},
    };
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    while (rig_count(RIG_STORED, "absent-l") == 0 && clock_mono_ns() < deadline_ns) {
        struct timespec pause = {.tv_nsec = 50 * CLOCK_NS_PER_MS};
        assert_int_equal(bus_publish(pods[1].bus, messages, 3, deadline_ns, &error), STATUS_OK);
        nanosleep(&pause, NULL); /* the group begins when it is there: what was before is not followed */
    }
    rig_await(RIG_RECEIVED, "there-l", 2);
    rig_await(RIG_RECEIVED, "absent-l", 2);
    assert_int_equal(rig_count(RIG_LOOKED, "of-no-entity"), 0);
    struct bus_message fails = {.topic = STR(RIG_OWN_TOPIC), .key = STR("k"), .payload = STR("fails-l")};
    assert_int_equal(bus_publish(pods[1].bus, &fails, 1, deadline_ns, &error), STATUS_OK);
    rig_await(RIG_RECEIVED, "fails-l", 2);
    assert_int_equal(rig_count(RIG_LOOKED, "fails-l"), 2);
}

/* ---- too much at once ---- */

static void questions_to_an_owner_that_hangs_are_dropped(void **state)
{
    (void)state;
    char id[32];
    if (!rig_is_nats())
        skip();
    size_t before = rig_ignored("overload");
    rig_gate_close();
    for (int i = 0; i < 1100; i++) {
        snprintf(id, sizeof id, "there-m-%d", i);
        rig_ask(&pods[0], "chat_session", id, "bob", NULL);
    }
    rig_await_ignored("overload", before + 50); /* 1,024 wait, two are being looked up */
    rig_gate_open();
    rig_await(RIG_RECEIVED, "there-m-0", 2);
}

static void await_queued(struct hydration_owner_slot *slot, size_t count)
{
    int64_t deadline_ns = clock_deadline_ms(RIG_PATIENCE_MS);
    const struct timespec pause = {.tv_nsec = CLOCK_NS_PER_MS};
    size_t queued = 0;
    while (queued < count && clock_mono_ns() < deadline_ns) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&slot->lock);
        queued = slot->turns.queued;
        pthread_mutex_unlock(&slot->lock);
    }
    assert_int_equal(queued, count);
}

/* Every look that the owner runs at a time waits at the gate: what is asked next is queued. */
static void hold_all_looks(const char *prefix)
{
    char id[32];
    rig_gate_close();
    for (int i = 0; i < HYDRATION_PARALLEL; i++) {
        snprintf(id, sizeof id, "%s-%d", prefix, i);
        rig_ask(&pods[0], "chat_session", id, "bob", NULL);
        rig_await(RIG_LOOKED, id, 1);
    }
}

/* An owner publishes answers together; one that the bus refuses is not in the way of the others. */
static void an_answer_that_is_too_large_holds_up_no_other(void **state)
{
    (void)state;
    enum { COUNT = 16 };
    char id[32];
    hold_all_looks("there-n-first");
    for (int i = 0; i < COUNT; i++) {
        snprintf(id, sizeof id, "%s-n-%d", i % 2 ? "there" : "huge", i);
        rig_ask(&pods[0], "chat_session", id, "bob", NULL);
    }
    await_queued(&pods[1].engine.owners[1], COUNT);
    rig_gate_open();
    for (int i = 1; i < COUNT; i += 2) {
        snprintf(id, sizeof id, "there-n-%d", i);
        rig_await(RIG_RECEIVED, id, 2);
    }
}

static void an_answer_does_not_wait_for_the_next_look(void **state)
{
    (void)state;
    char id[32];
    hold_all_looks("there-o-first");
    for (int i = 0; i < HYDRATION_PARALLEL; i++) {
        snprintf(id, sizeof id, "there-o-%d", i);
        rig_ask(&pods[0], "chat_session", id, "bob", NULL);
        snprintf(id, sizeof id, "slow-o-%d", i);
        rig_ask(&pods[0], "chat_session", id, "bob", NULL);
    }
    await_queued(&pods[1].engine.owners[1], 2 * HYDRATION_PARALLEL);
    rig_gate_open_but_slow();
    rig_await(RIG_RECEIVED, "there-o-0", 2);
    rig_gate_open();
    snprintf(id, sizeof id, "slow-o-%d", HYDRATION_PARALLEL - 1);
    rig_await(RIG_RECEIVED, id, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_goes_to_one_owner_and_its_answer_to_every_process),
        cmocka_unit_test(an_answer_names_its_caller),
        cmocka_unit_test(a_question_without_a_caller_gets_nothing_private),
        cmocka_unit_test(an_answer_is_cut_to_what_was_asked_for),
        cmocka_unit_test(questions_of_another_type_are_left_to_their_owner),
        cmocka_unit_test(an_invalid_event_is_counted_and_dead_lettered),
        cmocka_unit_test(an_owner_that_fails_does_not_answer_and_is_asked_again),
        cmocka_unit_test(events_that_could_not_be_stored_are_retried),
        cmocka_unit_test(a_change_is_published_to_every_process),
        cmocka_unit_test(a_change_of_many_is_published_for_each_held_entity),
        cmocka_unit_test(events_of_an_owner_are_followed_once_it_can_look),
        cmocka_unit_test(an_answer_that_is_too_large_holds_up_no_other),
        cmocka_unit_test(an_answer_does_not_wait_for_the_next_look),
        cmocka_unit_test(questions_to_an_owner_that_hangs_are_dropped),
    };
    rig_start(argc > 1 && strcmp(argv[1], "nats") == 0);
    int failed = cmocka_run_group_tests(tests, open_pods, close_pods);
    rig_stop();
    return failed;
}
