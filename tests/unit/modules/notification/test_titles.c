/* Titles of items (H6) with an owner that answers as the test says; the kernel and hydration are the test's. A window lasts an hour, so
 * that no time passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "modules/notification/notification.h"

enum { WAIT_MS = 500, EVENTS_MAX = 16 };

static struct notification_settings settings = {
    .hydration = {.enabled = true,
                  .policy = {.wait_timeout_ms = WAIT_MS, .in_flight_window_ms = 3600 * 1000}}};
static struct notification *notification;
static bool is_down;                      /* the owner answers no tenant */
static size_t waited_for, not_waited_for; /* questions, by the policy that they were asked with */

struct hydration *__wrap_kernel_hydration(struct kernel *kernel);
struct hydration *__wrap_kernel_hydration(struct kernel *kernel)
{
    (void)kernel;
    return (struct hydration *)&settings; /* never looked into */
}

void __wrap_kernel_hydration_consumes(struct kernel *kernel, const char *entity_type);
void __wrap_kernel_hydration_consumes(struct kernel *kernel, const char *entity_type)
{
    (void)kernel, (void)entity_type;
}

/* It is silent about items whose sku is "silent", and answers in time, not at once. */
void __wrap_hydration_ask_and_wait(struct hydration *hydration, const struct hydration_policy *policy,
                                   const struct hydration_need *needs, size_t count, struct arena *arena,
                                   struct hydration_outcome *outcomes);
void __wrap_hydration_ask_and_wait(struct hydration *hydration, const struct hydration_policy *policy,
                                   const struct hydration_need *needs, size_t count, struct arena *arena,
                                   struct hydration_outcome *outcomes)
{
    (void)hydration, (void)arena;
    bool waits = policy->wait_timeout_ms == WAIT_MS;
    *(waits ? &waited_for : &not_waited_for) += count;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(needs[i].cover.field_count, 1);
        assert_true(str_eq(needs[i].cover.fields[0], STR("title")));
        bool answers = waits && !is_down && !str_eq(needs[i].entity_id, STR("silent"));
        outcomes[i] = (struct hydration_outcome){.result = answers ? HYDRATION_UPDATED : HYDRATION_TIMEOUT,
                                                 .data = answers ? STR("{\"title\":\"Tea\"}") : STR_NONE};
    }
}

static int begin(void **state)
{
    (void)state;
    notification = calloc(1, sizeof *notification);
    notification->settings = &settings;
    is_down = false;
    waited_for = not_waited_for = 0;
    notification_titles_init(notification);
    return 0;
}

static int end(void **state)
{
    (void)state;
    notification_titles_deinit(notification);
    free(notification);
    return 0;
}

/* A tenant whose hash is none of an earlier one's. */
static const char *new_tenant(void)
{
    static char names[128][16];
    static bool is_used[NOTIFICATION_TITLE_TENANTS];
    static size_t count, tried;
    size_t number;
    do {
        snprintf(names[count], sizeof names[count], "tenant-%zu", tried++);
        number = hash_seeded(str_from(names[count])) % NOTIFICATION_TITLE_TENANTS;
    } while (is_used[number]);
    is_used[number] = true;
    return names[count++];
}

/* A batch of one event for each of these tenants, up to NULL. How many have their title. */
static size_t take(const char *const *tenants, const char *const *skus)
{
    struct notification_event events[EVENTS_MAX];
    struct arena arena = ARENA(1024);
    size_t count = 0, titled = 0;
    memset(events, 0, sizeof events);
    for (; tenants[count]; count++) {
        events[count].tenant = str_from(tenants[count]);
        events[count].user_id = STR("ann");
        events[count].sku = str_from(skus[count]);
    }
    notification_titles_take(notification, events, count, &arena);
    for (size_t i = 0; i < count; i++)
        titled += str_eq(events[i].item_title, STR("Tea"));
    arena_deinit(&arena);
    return titled;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
#define TEXTS(...)        \
    (const char *const[]) \
    {                     \
        __VA_ARGS__, NULL \
    }

static void test_h6_a_silent_item_of_one_tenant_leaves_the_titles_of_another(void **state)
{
    (void)state;
    const char *greedy = new_tenant(), *modest = new_tenant();
    assert_int_equal(take(TEXTS(greedy), TEXTS("silent")), 0);
    assert_int_equal(waited_for, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(take(TEXTS(modest), TEXTS("tea")), 1);
        assert_int_equal(take(TEXTS(greedy, modest), TEXTS("silent", "tea")), 1);
    }
    assert_int_equal(waited_for, 1 + 2 * 3); /* and not once more for greedy */
}

static void test_h6_a_tenant_without_answers_is_not_waited_for(void **state)
{
    (void)state;
    const char *greedy = new_tenant();
    assert_int_equal(take(TEXTS(greedy, greedy), TEXTS("silent", "silent")), 0);
    assert_int_equal(waited_for, 2);
    take(TEXTS(greedy, greedy), TEXTS("silent", "tea"));
    assert_int_equal(waited_for, 2);
}

static void test_h6_a_tenant_with_some_answers_is_asked_without_waiting(void **state)
{
    (void)state;
    const char *greedy = new_tenant();
    assert_int_equal(take(TEXTS(greedy, greedy), TEXTS("silent", "tea")), 1);
    take(TEXTS(greedy, greedy), TEXTS("tea", "tea"));
    assert_int_equal(not_waited_for, 2);
    assert_int_equal(waited_for, 2);
}

static void test_h6_an_owner_that_answers_no_tenant_pauses_all(void **state)
{
    (void)state;
    is_down = true;
    for (int i = 0; i < 20; i++)
        assert_int_equal(take(TEXTS(new_tenant()), TEXTS("tea")), 0);
    assert_int_equal(waited_for, 8);
}

static void test_h6_answers_for_others_keep_silent_tenants_from_pausing_all(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        take(TEXTS(new_tenant()), TEXTS("silent"));
        assert_int_equal(take(TEXTS(new_tenant()), TEXTS("tea")), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_h6_a_silent_item_of_one_tenant_leaves_the_titles_of_another),
        TEST(test_h6_a_tenant_without_answers_is_not_waited_for),
        TEST(test_h6_a_tenant_with_some_answers_is_asked_without_waiting),
        TEST(test_h6_an_owner_that_answers_no_tenant_pauses_all),
        TEST(test_h6_answers_for_others_keep_silent_tenants_from_pausing_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
