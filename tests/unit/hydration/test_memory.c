/* What a loop remembers of entities (H4): whose, how much, how long, and never less new than what it heard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "hydration/inside.h"

#define SECOND CLOCK_NS_PER_S
#define TTL_MS 300000

static const struct str title = {"title", 5}, price = {"price", 5};
static const struct hydration_cover existence = {.mode = HYDRATION_EXISTENCE},
                                    of_title = {HYDRATION_PARTIAL, &title, 1},
                                    of_price = {HYDRATION_PARTIAL, &price, 1},
                                    full = {.mode = HYDRATION_FULL};

static struct hydration_memory own_memory, *memory = &own_memory;
static int64_t now;

static int open_memory(void **state)
{
    (void)state;
    hydration_memory_init(memory, 64, 64 * 1024);
    now = 1000 * SECOND;
    return 0;
}

static int close_memory(void **state)
{
    (void)state;
    hydration_memory_deinit(memory);
    return 0;
}

static struct hydration_need need_of(const char *caller, const char *id, struct hydration_cover cover)
{
    return (struct hydration_need){.tenant = STR("acme"),
                                   .caller = str_from(caller),
                                   .entity_type = STR("item"),
                                   .entity_id = str_from(id),
                                   .cover = cover};
}

enum { KNOWN_NOT, KNOWN_COPY, KNOWN_ABSENT };
static int kind_of(struct hydration_known_entity found)
{
    return !found.serves ? KNOWN_NOT : found.outcome.result == HYDRATION_UPDATED ? KNOWN_COPY : KNOWN_ABSENT;
}

static struct hydration_known_entity look(const char *caller, struct hydration_cover cover)
{
    struct hydration_need need = need_of(caller, "a", cover);
    return hydration_memory_find(memory, &need, now);
}

static struct hydration_event event_of(enum hydration_kind kind, int64_t version)
{
    return (struct hydration_event){.kind = kind,
                                    .tenant = STR("acme"),
                                    .entity_type = STR("item"),
                                    .entity_id = STR("a"),
                                    .module = STR("intake"),
                                    .data = kind == HYDRATION_EVENT_UPDATED ? STR("{\"title\":\"T\",\"n\":1}")
                                                                            : STR_NONE,
                                    .version = version};
}

static bool hear_event(struct hydration_event event, const struct hydration_cover *cover)
{
    event.has_cover = cover;
    if (cover)
        event.cover = *cover;
    return hydration_memory_store(memory, &event, true, TTL_MS, 0, now);
}

static bool hear_updated(int64_t version)
{
    return hear_event(event_of(HYDRATION_EVENT_UPDATED, version), &full);
}

static bool hear_not_found(int64_t version)
{
    return hear_event(event_of(HYDRATION_EVENT_NOT_FOUND, version), NULL);
}

static bool hear_private(enum hydration_kind kind, const char *caller, int64_t version)
{
    struct hydration_event event = event_of(kind, version);
    event.is_private = true;
    event.caller = str_from(caller);
    event.reason = HYDRATION_INACCESSIBLE;
    return hear_event(event, &full);
}

static void test_a_copy_serves_what_it_covers(void **state)
{
    (void)state;
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_NOT);
    assert_true(hear_event(event_of(HYDRATION_EVENT_UPDATED, 1), &of_title));
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_COPY);
    assert_int_equal(kind_of(look("bob", of_title)), KNOWN_COPY);
    assert_int_equal(kind_of(look("bob", of_price)), KNOWN_NOT);
    struct hydration_known_entity known = look("bob", full);
    assert_int_equal(kind_of(known), KNOWN_NOT);
    assert_true(
        str_eq(known.outcome.data, STR("{\"title\":\"T\",\"n\":1}"))); /* for who would rather have that */
    assert_true(str_eq(known.outcome.source_module, STR("intake")));
}

static void test_what_nobody_said_the_extent_of_serves_by_what_is_in_it(void **state)
{
    (void)state;
    assert_true(hear_event(event_of(HYDRATION_EVENT_UPDATED, 1), NULL));
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_COPY);
    assert_int_equal(kind_of(look("ann", of_title)), KNOWN_COPY);
    assert_int_equal(kind_of(look("ann", of_price)), KNOWN_NOT);
    assert_int_equal(kind_of(look("ann", full)), KNOWN_NOT);
}

static void test_a_wider_copy_stays_while_the_version_is_the_same(void **state)
{
    (void)state;
    assert_true(hear_updated(3));
    assert_true(hear_event(event_of(HYDRATION_EVENT_UPDATED, 3), &existence));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
    assert_true(hear_event(event_of(HYDRATION_EVENT_UPDATED, 4), &existence));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_NOT);
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_COPY);
}

static void test_h4_what_is_older_is_not_believed(void **state)
{
    (void)state;
    assert_true(hear_not_found(0));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_ABSENT);
    assert_true(hear_updated(2)); /* clears the absence */
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
    assert_false(hear_not_found(0));
    assert_false(hear_not_found(1));
    assert_false(hear_not_found(2)); /* of the same version something is more than nothing */
    assert_false(hear_updated(1));
    assert_int_equal(look("ann", full).outcome.version, 2);
    assert_true(hear_not_found(3));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_ABSENT);
    assert_false(hear_updated(2));
    assert_true(hear_updated(3));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
}

static void test_h4_a_version_is_remembered_of_what_nobody_asked_for(void **state)
{
    (void)state;
    struct hydration_event change = event_of(HYDRATION_EVENT_UPDATED, 5);
    change.has_cover = true;
    change.cover = full;
    assert_true(hydration_memory_store(memory, &change, false, TTL_MS, 0, now));
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_NOT);
    now += 30 * SECOND; /* longer than anything is handed out */
    assert_false(hear_not_found(0));
    assert_true(hear_updated(5));
    change.version = 6;
    assert_true(hydration_memory_store(memory, &change, false, TTL_MS, 0, now));
    assert_int_equal(look("ann", full).outcome.version, 6); /* a copy that is held is renewed */
    struct hydration_event end = event_of(HYDRATION_EVENT_NOT_FOUND, 7);
    assert_true(hydration_memory_store(memory, &end, false, TTL_MS, 0, now));
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_NOT); /* and forgotten when it ends */
    now += 61 * SECOND;
    assert_true(hear_not_found(0));
}

static void test_h4_nothing_is_handed_out_longer_than_its_time(void **state)
{
    (void)state;
    struct hydration_event gone = event_of(HYDRATION_EVENT_NOT_FOUND, 0);
    assert_true(hydration_memory_store(memory, &gone, true, 200, 0, now));
    now += 199 * CLOCK_NS_PER_MS;
    assert_int_equal(kind_of(look("ann", full)), KNOWN_ABSENT);
    now += CLOCK_NS_PER_MS;
    assert_int_equal(kind_of(look("ann", full)), KNOWN_NOT);
    assert_true(hear_updated(1));
    now += HYDRATION_MEMORY_MS * CLOCK_NS_PER_MS - 1;
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
    now += 1;
    assert_int_equal(kind_of(look("ann", full)), KNOWN_NOT);
}

static void test_h4_what_is_ones_own_is_nobody_elses(void **state)
{
    (void)state;
    assert_true(hear_private(HYDRATION_EVENT_UPDATED, "ann", 5));
    assert_true(hear_private(HYDRATION_EVENT_NOT_FOUND, "bob", 5)); /* inaccessible */
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
    assert_int_equal(kind_of(look("bob", full)), KNOWN_ABSENT);
    assert_int_equal(look("bob", full).outcome.reason, HYDRATION_INACCESSIBLE);
    assert_int_equal(look("bob", full).outcome.data.len, 0);
    struct hydration_known_entity eve = look("eve", full), nobody = look("", full);
    assert_int_equal(kind_of(eve), KNOWN_NOT);
    assert_true(eve.is_private);
    assert_int_equal(eve.outcome.data.len, 0);
    assert_int_equal(kind_of(nobody), KNOWN_NOT);
    assert_false(hear_private(HYDRATION_EVENT_NOT_FOUND, "ann", 5)); /* hers is something */
    assert_true(hear_private(HYDRATION_EVENT_UPDATED, "bob", 6));    /* it changed hands */
    assert_int_equal(kind_of(look("ann", full)), KNOWN_NOT);
    assert_int_equal(kind_of(look("bob", full)), KNOWN_COPY);
}

static void test_h4_inaccessible_to_one_stays_everybody_elses(void **state)
{
    (void)state;
    assert_true(hear_updated(5));
    assert_true(hear_private(HYDRATION_EVENT_NOT_FOUND, "bob", 5));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
    assert_int_equal(kind_of(look("bob", full)), KNOWN_ABSENT);
}

static void test_h4_somebodys_nobody_said_whose_is_for_nobody(void **state)
{
    (void)state;
    assert_true(hear_updated(4));
    assert_true(hear_private(HYDRATION_EVENT_UPDATED, "", 5));
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_NOT);
    assert_int_equal(kind_of(look("", existence)), KNOWN_NOT);
    assert_true(look("ann", existence).is_private);
    assert_false(hear_updated(4));
}

static void test_without_versions_the_later_holds_once_the_copy_is_old(void **state)
{
    (void)state;
    assert_true(hear_updated(0));
    assert_false(hear_not_found(0));
    now += HYDRATION_MEMORY_MS * CLOCK_NS_PER_MS;
    assert_true(hear_not_found(0));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_ABSENT);
    assert_true(hear_updated(0));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_COPY);
}

static bool is_known(int number)
{
    char id[16];
    snprintf(id, sizeof id, "%d", number);
    struct hydration_need need = need_of("ann", id, existence);
    return hydration_memory_find(memory, &need, now).serves;
}

static void hear_number(int number, struct str data)
{
    char id[16];
    struct hydration_event event = event_of(HYDRATION_EVENT_UPDATED, 1);
    snprintf(id, sizeof id, "%d", number);
    event.entity_id = str_from(id);
    event.data = data;
    assert_true(hear_event(event, &full));
}

static void test_the_oldest_go_when_there_are_too_many(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        hear_number(i, STR("{}"));
        assert_true(memory->entries.count <= 64);
    }
    for (int i = 0; i < 200; i++)
        assert_int_equal(is_known(i), i >= 200 - 64);
}

static void test_the_oldest_go_when_they_are_too_large(void **state)
{
    (void)state;
    static char large[10 * 1024];
    memset(large, ' ', sizeof large);
    large[0] = '{';
    large[sizeof large - 1] = '}';
    for (int i = 0; i < 20; i++) {
        hear_number(i, str_of(large, sizeof large));
        assert_true(memory->bytes <= 64 * 1024);
    }
    assert_int_equal(memory->entries.count, 6);
    assert_true(is_known(19));
    assert_false(is_known(0));
    static char huge[20 * 1024];
    memset(huge, ' ', sizeof huge);
    huge[0] = '{';
    huge[sizeof huge - 1] = '}';
    hear_number(100, str_of(huge, sizeof huge));
    assert_false(is_known(100)); /* one that is not worth the others */
    assert_true(is_known(19));
}

/* A failover may lose what was published: the owner's answer to a later question is newer, whatever its version. */
static void test_r14_an_answer_to_a_question_after_everything_known_is_believed(void **state)
{
    (void)state;
    struct hydration_event gone = event_of(HYDRATION_EVENT_NOT_FOUND, 0),
                           back = event_of(HYDRATION_EVENT_UPDATED, 2);
    assert_true(hear_updated(5));
    now += SECOND;
    assert_true(hear_private(HYDRATION_EVENT_UPDATED, "bob", 5));
    int64_t heard = now;
    now += SECOND;
    assert_false(
        hydration_memory_store(memory, &gone, true, TTL_MS, heard, now)); /* it began before, or at once */
    assert_false(hydration_memory_store(memory, &gone, true, TTL_MS, heard - SECOND / 2, now));
    assert_int_equal(kind_of(look("bob", full)), KNOWN_COPY);
    assert_true(hydration_memory_store(memory, &gone, true, TTL_MS, heard + 1, now));
    assert_int_equal(kind_of(look("ann", full)), KNOWN_ABSENT);
    assert_int_equal(kind_of(look("bob", full)), KNOWN_ABSENT);
    assert_true(
        hydration_memory_store(memory, &back, true, TTL_MS, 0, now)); /* and versions count on from there */
    assert_int_equal(kind_of(look("ann", existence)), KNOWN_COPY);
    assert_false(hear_not_found(1));
}

static void test_tenants_types_and_ids_are_kept_apart(void **state)
{
    (void)state;
    assert_true(hear_not_found(0));
    struct hydration_need need = need_of("ann", "a", existence);
    need.tenant = STR("acm");
    need.entity_type = STR("eitem");
    assert_int_equal(kind_of(hydration_memory_find(memory, &need, now)), KNOWN_NOT);
    need = need_of("ann", "a", existence);
    need.tenant = STR("other");
    assert_int_equal(kind_of(hydration_memory_find(memory, &need, now)), KNOWN_NOT);
    need = need_of("ann", "A", existence);
    assert_int_equal(kind_of(hydration_memory_find(memory, &need, now)), KNOWN_NOT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_memory, close_memory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_copy_serves_what_it_covers),
        TEST(test_what_nobody_said_the_extent_of_serves_by_what_is_in_it),
        TEST(test_a_wider_copy_stays_while_the_version_is_the_same),
        TEST(test_h4_what_is_older_is_not_believed),
        TEST(test_h4_a_version_is_remembered_of_what_nobody_asked_for),
        TEST(test_h4_nothing_is_handed_out_longer_than_its_time),
        TEST(test_h4_what_is_ones_own_is_nobody_elses),
        TEST(test_h4_inaccessible_to_one_stays_everybody_elses),
        TEST(test_h4_somebodys_nobody_said_whose_is_for_nobody),
        TEST(test_without_versions_the_later_holds_once_the_copy_is_old),
        TEST(test_the_oldest_go_when_there_are_too_many),
        TEST(test_the_oldest_go_when_they_are_too_large),
        TEST(test_r14_an_answer_to_a_question_after_everything_known_is_believed),
        TEST(test_tenants_types_and_ids_are_kept_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
