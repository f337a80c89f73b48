/* E4, O4: a payload becomes protobuf, or is told to be none; keys that mean different entitlements differ. */
#include "modules/entitlement/entitlement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <entitlement.pb-c.h>

#define ID "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77"
#define REST                                                                                              \
    ",\"event_type\":\"EntitlementGranted\",\"occurred_at\":\"2026-01-08T07:10:00.123456Z\",\"user_id\":" \
    "\"u_123\",\"stock_keeping_unit\":\"item1\",\"source\":\"purchase\",\"source_id\":\"p_456\""
#define TAIL ",\"version\":12,\"tenant_id\":\"demo\"}"
#define GOOD "{\"event_id\":\"" ID "\"" REST TAIL

static const struct entitlement_event_row row = {{ID, 36}, {"EntitlementGranted", 18}, {"demo", 4}};

static const char *reason_of(const char *payload, const struct entitlement_event_row *of)
{
    struct entitlement_event event;
    const char *reason = NULL;
    struct arena arena = ARENA(1024);
    bool encoded = entitlement_event_encode(str_from(payload), of, &arena, &event, &reason);
    arena_deinit(&arena);
    assert_int_equal(encoded, reason == NULL);
    return reason;
}

static void a_payload_becomes_a_message(void **state)
{
    (void)state;
    struct entitlement_event event;
    const char *reason = NULL;
    struct arena arena = ARENA(1024);
    assert_true(entitlement_event_encode(STR(GOOD), &row, &arena, &event, &reason));
    assert_true(str_eq(event.occurred_at, STR("2026-01-08T07:10:00.123456Z")));
    Freshet__Entitlement__V1__EntitlementEvent *message = freshet__entitlement__v1__entitlement_event__unpack(
        NULL, event.message.len, (const uint8_t *)event.message.ptr);
    assert_non_null(message);
    assert_string_equal(message->event_id, ID);
    assert_string_equal(message->event_type, "EntitlementGranted");
    assert_string_equal(message->occurred_at, "2026-01-08T07:10:00.123456Z");
    assert_string_equal(message->user_id, "u_123");
    assert_string_equal(message->stock_keeping_unit, "item1");
    assert_string_equal(message->source, "purchase");
    assert_string_equal(message->source_id, "p_456");
    assert_int_equal(message->version, 12);
    assert_string_equal(message->tenant_id, "demo");
    freshet__entitlement__v1__entitlement_event__free_unpacked(message, NULL);
    arena_deinit(&arena);
}

static void an_invalid_event_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "null",
        "{}",
        "{\"event_id\":\"" ID "\"" TAIL,                                    /* half of it */
        "{\"event_id\":7" REST TAIL,                                        /* no text */
        "{\"event_id\":\"\"" REST TAIL,                                     /* an empty one */
        "{\"event_id\":\"00000000-0000-4000-8000-000000000000\"" REST TAIL, /* another row's */
        "{\"event_id\":\"" ID "\"" REST ",\"tenant_id\":\"demo\"}",         /* no version */
        "{\"event_id\":\"" ID "\"" REST ",\"tenant_id\":\"demo\",\"version\":0}",
        "{\"event_id\":\"" ID "\"" REST ",\"tenant_id\":\"demo\",\"version\":1.5}",
        "{\"event_id\":\"" ID "\"" REST ",\"tenant_id\":\"demo\",\"version\":\"1\"}",
        "{\"event_id\":\"" ID "\"" REST ",\"tenant_id\":\"other\",\"version\":1}",
        "{\"event_id\":\"" ID "\"" REST ",\"user_id\":\"u_9\"" TAIL, /* twice */
        GOOD "x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_non_null(reason_of(bad[i], &row));
    assert_null(reason_of(GOOD, &row));
}

static void it_must_be_the_rows_own_and_one_of_ours(void **state)
{
    (void)state;
    struct entitlement_event_row other = row;
    other.event_type = STR("EntitlementRevoked");
    assert_non_null(reason_of(GOOD, &other));
    assert_non_null(reason_of("{\"event_id\":\"" ID "\",\"event_type\":\"Odd\",\"occurred_at\":"
                              "\"2026-01-08T07:10:00Z\",\"user_id\":\"u\",\"stock_keeping_unit\":\"s\","
                              "\"source\":\"r\",\"source_id\":\"p\"" TAIL,
                              &(struct entitlement_event_row){row.event_id, STR("Odd"), row.tenant_id}));
    assert_non_null(reason_of("{\"event_id\":\"" ID
                              "\",\"event_type\":\"EntitlementGranted\",\"occurred_at\":"
                              "\"yesterday\",\"user_id\":\"u\",\"stock_keeping_unit\":\"s\","
                              "\"source\":\"r\",\"source_id\":\"p\"" TAIL,
                              &row));
}

static void keys_of_different_entitlements_differ(void **state)
{
    (void)state;
    struct arena arena = ARENA(1024);
    assert_true(str_eq(entitlement_aggregate_key(STR("demo"), STR("u_123"), STR("item1"), &arena),
                       STR("demo/u_123/item1")));
    assert_true(str_eq(entitlement_aggregate_key(STR("demo"), STR("a/b"), STR("100%\r\n"), &arena),
                       STR("demo/a%2Fb/100%25%0D%0A")));
    assert_true(str_eq(entitlement_aggregate_key(STR("demo"), STR("ключ"), STR("\x7f"), &arena),
                       STR("demo/ключ/%7F")));
    assert_false(str_eq(entitlement_aggregate_key(STR("t"), STR("a/b"), STR("c"), &arena),
                        entitlement_aggregate_key(STR("t"), STR("a"), STR("b/c"), &arena)));
    assert_false(str_eq(entitlement_aggregate_key(STR("t"), STR("a%2Fb"), STR("c"), &arena),
                        entitlement_aggregate_key(STR("t"), STR("a/b"), STR("c"), &arena)));
    arena_deinit(&arena);
}

/* H6: what a key has behind its tenant is the id that others know the entitlement by. */
static void an_id_is_taken_apart_as_it_was_written(void **state)
{
    (void)state;
    static const struct {
        const char *user, *sku, *id;
    } rows[] = {
        {"u_123", "item1", "u_123/item1"},
        {"a/b", "c", "a%2Fb/c"},
        {"a", "b/c", "a/b%2Fc"},
        {"100%", "50%25", "100%25/50%2525"},
        {"auth0|x", "a b+c", "auth0|x/a b+c"},
        {"ключ", "/", "ключ/%2F"},
    };
    struct arena arena = ARENA(1024);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct str user, sku;
        assert_true(entitlement_id_read(str_from(rows[i].id), &arena, &user, &sku));
        assert_true(str_eq(user, str_from(rows[i].user)));
        assert_true(str_eq(sku, str_from(rows[i].sku)));
    }
    arena_deinit(&arena);
}

static void an_id_has_one_spelling(void **state)
{
    (void)state;
    static const char *const ids[] = {
        "",      "/",     "u",     "u/",  "/s",   "a/b/c", "u//s",  "u/s/",  "100%/s",
        "u/%2f", "u/%73", "%75/s", "u/%", "u/%2", "u/%00", "u/%ff", "u/%0a", "u/\n",
    };
    struct arena arena = ARENA(1024);
    struct str user, sku;
    assert_false(entitlement_id_read(STR_NONE, &arena, &user, &sku));
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_false(entitlement_id_read(str_from(ids[i]), &arena, &user, &sku));
    arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_payload_becomes_a_message),
        cmocka_unit_test(an_invalid_event_is_refused_with_the_reason),
        cmocka_unit_test(it_must_be_the_rows_own_and_one_of_ours),
        cmocka_unit_test(keys_of_different_entitlements_differ),
        cmocka_unit_test(an_id_is_taken_apart_as_it_was_written),
        cmocka_unit_test(an_id_has_one_spelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
