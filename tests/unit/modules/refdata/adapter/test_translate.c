/* Messages of other people's topics as updates (R9): the contract as it is, mapped from elsewhere, and what is refused
 * by name. Payloads are carried byte for byte. */
#include "../load.h"

#include <stdio.h>
#include <stdlib.h>

#include "modules/refdata/adapter/adapter.h"

#define EVENT "7f6d3c1e-2b3a-4c5d-8e9f-0a1b2c3d4e5f"
#define HEAD                                                                                         \
    "refdata:\n  postgres: {jdbcUrl: \"postgresql://127.0.0.1:1/a\"}\n  dictionaries: [{code: C}]\n" \
    "  adapter:\n    sources:\n      - topic: mdm\n"
/* Nothing but who and which: the rest is the contract's. */
#define PLAIN HEAD "        tenant: {fixed: acme}\n        dictCode: {fixed: C}\n"
/* As a change-data-capture writes it. */
#define CAPTURE                                                                                    \
    HEAD "        tenant: {header: x-tenant}\n        dictCode: {field: /source/table}\n"          \
         "        mapping: {eventId: {field: /id}, eventIdForm: ANY, eventType: {fixed: DELTA},\n" \
         "                  sourceRevision: {field: /source/lsn}, occurredAt: {field: /ts_ms},\n"  \
         "                  items: {field: \"\"}, key: {field: /after/code}, op: {field: /op},\n"  \
         "                  payload: {field: /after}, upsertWords: [c, r, u], deleteWords: [d]}\n"

static const struct refdata_limits limits = {
    .items_max = 4, .key_bytes_max = 16, .payload_bytes_max = 64, .depth_max = 8};

struct fixture {
    struct config *config;
    struct arena arena;
    struct refdata_adapter_source source;
    struct bus_header headers[2];
    struct bus_message message;
    struct refdata_update update;
    struct error error;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->arena = ARENA(1024);
    f->message = (struct bus_message){.topic = STR("mdm"),
                                      .partition = 3,
                                      .offset = 42,
                                      .created_us = 1772193600123456,
                                      .headers = f->headers};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    config_free(f->config);
    arena_deinit(&f->arena);
    free(f);
    return 0;
}

static void use(struct fixture *f, const char *yaml)
{
    config_free(f->config);
    f->config = load(yaml);
    const struct refdata_settings *settings = settings_of(f->config);
    if (refdata_source_init(&f->source, settings->adapter.sources.items, 0, f->config, &f->arena,
                            &f->error) != STATUS_OK)
        fail_msg("%s", f->error.message);
}

static enum status translate(struct fixture *f, struct str payload)
{
    f->message.payload = payload;
    f->error = (struct error){0};
    return refdata_translate(&f->source, &f->message, &limits, &f->arena, &f->update, &f->error);
}

static void takes(struct fixture *f, const char *payload)
{
    if (translate(f, str_from(payload)) != STATUS_OK)
        fail_msg("%s refused: %s", payload, f->error.message);
}

static void refuses(struct fixture *f, const char *payload, const char *message)
{
    enum status status = translate(f, str_from(payload));
    if (status == STATUS_OK)
        fail_msg("%s was taken", payload);
    assert_true(status == STATUS_BAD_REQUEST || status == STATUS_PAYLOAD_TOO_LARGE);
    assert_string_equal(f->error.message, message);
}

static void header(struct fixture *f, const char *name, const char *value)
{
    f->headers[f->message.header_count++] = (struct bus_header){str_from(name), str_from(value)};
}

static void written_as(struct fixture *f, const char *text)
{
    struct buf out = {0};
    refdata_update_put(&out, &f->update);
    if (!str_eq(buf_str(&out), str_from(text)))
        fail_msg("%.*s", STR_ARG(buf_str(&out)));
    buf_deinit(&out);
}

/* ---- the contract as it is ---- */

static void a_message_of_the_contract_needs_no_mapping(void **state)
{
    struct fixture *f = *state;
    use(f, HEAD);
    takes(
        f,
        "{\"eventId\":\"" EVENT "\",\"tenantId\":\"t1\",\"source\":\"REST\",\"dictCode\":\"C\","
        "\"eventType\":\"SNAPSHOT\",\"sourceRevision\":987654321,\"snapshotId\":null,\"chunkIndex\":1,"
        "\"chunksTotal\":1,\"occurredAt\":\"2026-02-27T12:00:00Z\",\"items\":[{\"key\":\"RU\",\"op\":\"UPSERT\","
        "\"payload\":{\"name\" : 0.10}}]}");
    written_as(f,
               "{\"eventId\":\"" EVENT "\",\"tenantId\":\"t1\",\"source\":\"KAFKA\",\"dictCode\":\"C\","
               "\"eventType\":\"SNAPSHOT\",\"sourceRevision\":987654321,\"chunkIndex\":1,\"chunksTotal\":1,"
               "\"occurredAt\":\"2026-02-27T12:00:00Z\",\"items\":[{\"key\":\"RU\",\"op\":\"UPSERT\","
               "\"payload\":{\"name\" : 0.10}}]}");
}

static void what_a_message_lacks_is_its_own_each_time_it_comes(void **state)
{
    struct fixture *f = *state;
    char first[UUID_TEXT_BYTES];
    use(f, PLAIN);
    takes(f, "{\"eventType\":\"DELTA\",\"items\":[]}");
    /* uuid.uuid5(uuid.UUID("23e2e327-37b1-5645-a760-8dd89f2ef6ef"), "mdm/3/42/1772193600123") */
    assert_string_equal(f->update.event_id, "954b21ac-c528-59e6-8c2a-cefdea47264c");
    assert_int_equal(f->update.occurred_at_us, 1772193600123456);
    assert_int_equal(f->update.source, REFDATA_KAFKA);
    assert_true(str_eq(f->update.tenant, STR("acme")) && str_eq(f->update.dict_code, STR("C")));
    memcpy(first, f->update.event_id, sizeof first);
    struct hash128 content = f->update.content;

    f->message.offset = 43; /* the sender's second try, some time later */
    f->message.created_us += 1000000;
    takes(f, " {\"items\":[],\"eventType\":\"DELTA\"}");
    assert_string_not_equal(f->update.event_id, first);
    assert_true(f->update.content.low == content.low && f->update.content.high == content.high);
    f->message.offset = 42; /* the topic was deleted and made anew */
    takes(f, "{\"eventType\":\"DELTA\",\"items\":[]}");
    assert_string_not_equal(f->update.event_id, first);
}

static void without_a_mapping_a_stranger_is_refused(void **state)
{
    struct fixture *f = *state;
    use(f, PLAIN);
    refuses(f, "{\"eventType\":\"DELTA\",\"items\":[],\"sourceRevison\":1}",
            "sourceRevison: there is no such member");
    refuses(f, "{\"eventType\":\"DELTA\",\"items\":[],\"items\":[]}", "items: comes more than once");
    refuses(f, "{\"eventType\":\"DELTA\",\"items\":{}}", "items must be an array");
    refuses(f, "[]", "an update must be a JSON object");
    refuses(f, "{\"eventType\":\"DELTA\",\"items\":[],\"eventId\":null}", "eventId must be a UUID");
    refuses(f, "{\"eventType\":\"DELTA\",\"items\":[],\"sourceRevision\":\"1\"}",
            "sourceRevision must be a whole number of 64 bits");
}

static void a_fixed_tenant_is_not_overruled(void **state)
{
    struct fixture *f = *state;
    use(f, PLAIN);
    takes(f, "{\"tenantId\":\"acme\",\"dictCode\":\"\\u0043\",\"eventType\":\"DELTA\",\"items\":[]}");
    refuses(f, "{\"tenantId\":\"evil\",\"eventType\":\"DELTA\",\"items\":[]}",
            "tenantId is not the source's (fixed)");
    refuses(f, "{\"tenantId\":7,\"eventType\":\"DELTA\",\"items\":[]}",
            "tenantId is not the source's (fixed)");
    refuses(f, "{\"dictCode\":\"D\",\"eventType\":\"DELTA\",\"items\":[]}",
            "dictCode is not the source's (fixed)");
}

/* ---- who and which ---- */

static void the_tenant_comes_from_a_header_or_a_field(void **state)
{
    struct fixture *f = *state;
    use(f, HEAD "        tenant: {header: x-tenant}\n");
    refuses(f, "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[]}",
            "tenantId is missing (header x-tenant)");
    header(f, "X-Tenant", "no: names of headers are exact");
    header(f, "x-tenant", "t2");
    takes(f, "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[]}");
    assert_true(str_eq(f->update.tenant, STR("t2")));
    f->headers[1].value = STR("a b");
    refuses(f, "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[]}",
            "tenantId must be 1 to 64 of A-Z a-z 0-9 . _ - (header x-tenant)");
    f->headers[1].value = STR("a\xff");
    refuses(f, "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[]}",
            "tenantId: the message's header is not UTF-8 (header x-tenant)");

    use(f, HEAD "        tenant: {field: /meta/tenant}\n        dictCode: {field: /meta/type}\n");
    takes(f, "{\"meta\":{\"tenant\":\"t3\",\"type\":\"C\"},\"eventType\":\"DELTA\",\"items\":[]}");
    assert_true(str_eq(f->update.tenant, STR("t3")) && str_eq(f->update.dict_code, STR("C")));
    refuses(f, "{\"meta\":{\"tenant\":\"t3\"},\"eventType\":\"DELTA\",\"items\":[]}",
            "dictCode is missing (field /meta/type)");
    refuses(
        f,
        "{\"meta\":{\"tenant\":\"t3\",\"tenant\":\"t4\",\"type\":\"C\"},\"eventType\":\"DELTA\",\"items\":[]}",
        "/meta/tenant: comes more than once");
}

/* ---- mapped ---- */

static void a_captured_change_becomes_one_item(void **state)
{
    struct fixture *f = *state;
    use(f, CAPTURE);
    header(f, "x-tenant", "acme");
    takes(
        f,
        "{\"id\":\"" EVENT "\",\"op\":\"u\",\"ts_ms\":1772193600123,\"before\":{\"code\":\"DE\"},"
        "\"source\":{\"table\":\"C\",\"lsn\":\"77\",\"db\":\"x\"},\"after\":{\"code\":\"DE\", \"n\":1E40}}");
    written_as(f,
               "{\"eventId\":\"" EVENT "\",\"tenantId\":\"acme\",\"source\":\"KAFKA\",\"dictCode\":\"C\","
               "\"eventType\":\"DELTA\",\"sourceRevision\":77,\"chunkIndex\":1,\"chunksTotal\":1,"
               "\"occurredAt\":\"2026-02-27T12:00:00.123000Z\",\"items\":[{\"key\":\"DE\",\"op\":\"UPSERT\","
               "\"payload\":{\"code\":\"DE\", \"n\":1E40}}]}");
    takes(f, "{\"op\":\"d\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":840}}");
    written_as(
        f,
        "{\"eventId\":\"954b21ac-c528-59e6-8c2a-cefdea47264c\",\"tenantId\":\"acme\",\"source\":\"KAFKA\",\"dictCode\":\"C\","
        "\"eventType\":\"DELTA\",\"chunkIndex\":1,\"chunksTotal\":1,"
        "\"occurredAt\":\"2026-02-27T12:00:00.123456Z\",\"items\":[{\"key\":\"840\",\"op\":\"DELETE\","
        "\"payload\":{\"code\":840}}]}");
}

static void an_id_of_any_form_makes_the_same_uuid_each_time(void **state)
{
    struct fixture *f = *state;
    use(f, CAPTURE);
    header(f, "x-tenant", "acme");
    takes(f, "{\"id\":\"evt-1\",\"op\":\"c\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}");
    /* uuid.uuid5(…, "mdm#evt-1") */
    assert_string_equal(f->update.event_id, "5559f5fe-d917-522d-84dd-f4ea1977ee80");
    f->message.offset++;
    takes(f, "{\"id\":\"evt\\u002d1\",\"op\":\"c\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}");
    assert_string_equal(f->update.event_id, "5559f5fe-d917-522d-84dd-f4ea1977ee80");
    takes(f, "{\"id\":17,\"op\":\"c\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}");
    assert_string_equal(f->update.event_id, "d9325a96-5cf4-5ec5-a5aa-dde87985852c");
    refuses(f, "{\"id\":[17],\"op\":\"c\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}",
            "eventId must be a UUID (field /id)");
    refuses(f, "{\"id\":\"\",\"op\":\"c\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}",
            "eventId must be a UUID (field /id)");
}

static void what_a_mapping_finds_is_refused_with_its_place(void **state)
{
    struct fixture *f = *state;
    use(f, CAPTURE);
    header(f, "x-tenant", "acme");
    refuses(f, "{\"op\":\"x\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}",
            "items[0].op: must be UPSERT or DELETE (field /op)");
    refuses(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\"},\"after\":{}}",
            "items[0].key: is missing (field /after/code)");
    refuses(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\\u0000\"}}",
            "items[0].key: must not hold \\u0000 (field /after/code)");
    refuses(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":true}}",
            "items[0].key: must be a string (field /after/code)");
    refuses(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\",\"lsn\":1.5},\"after\":{\"code\":\"a\"}}",
            "sourceRevision must be a whole number of 64 bits (field /source/lsn)");
    refuses(
        f,
        "{\"op\":\"u\",\"source\":{\"table\":\"C\",\"lsn\":\"9223372036854775808\"},\"after\":{\"code\":\"a\"}}",
        "sourceRevision must be a whole number of 64 bits (field /source/lsn)");
    refuses(f, "{\"op\":\"u\",\"ts_ms\":-1,\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}",
            "occurredAt must be a time in UTC: 2026-02-27T12:00:00Z (field /ts_ms)");
    refuses(
        f, "{\"op\":\"u\",\"ts_ms\":253402300800000,\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\"}}",
        "occurredAt must be a time in UTC: 2026-02-27T12:00:00Z (field /ts_ms)");
    refuses(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\",\"code\":\"b\"}}",
            "/after/code: comes more than once");
    refuses(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"aaaaaaaaaaaaaaaaa\"}}",
            "items[0].key: is too long (field /after/code)");
    takes(
        f,
        "{\"id\":null,\"ts_ms\":null,\"op\":\"u\",\"source\":{\"table\":\"C\",\"lsn\":null},\"after\":{\"code\":\"a\"}}");
    assert_false(f->update.has_revision);
}

static void items_in_an_array_are_each_taken_apart(void **state)
{
    struct fixture *f = *state;
    use(f, PLAIN
        "        mapping: {eventType: {field: /kind}, items: {field: /data/rows}, key: {field: /id},\n"
        "                  op: {fixed: UPSERT}, payload: {field: \"\"}, deltaWords: [part], snapshotWords: [full]}\n");
    takes(f,
          "{\"kind\":\"full\",\"data\":{\"rows\":[ {\"id\":\"a\",\"v\":1.0} , {\"id\":2} ]},\"other\":[]}");
    assert_int_equal(f->update.type, REFDATA_SNAPSHOT);
    assert_true(str_eq(f->update.items.raw,
                       STR("[{\"key\":\"a\",\"op\":\"UPSERT\",\"payload\":{\"id\":\"a\",\"v\":1.0}},"
                           "{\"key\":\"2\",\"op\":\"UPSERT\",\"payload\":{\"id\":2}}]")));
    takes(f, "{\"kind\":\"part\",\"data\":{\"rows\":[]}}");
    assert_int_equal(f->update.type, REFDATA_DELTA);
    takes(f, "{\"kind\":\"DELTA\",\"data\":{\"rows\":{\"id\":\"one\"}}}");
    assert_int_equal(f->update.item_count, 1);
    refuses(f, "{\"kind\":\"part\",\"data\":{\"rows\":[1,2,3,4,5]}}",
            "items: at most 4 are taken (field /data/rows)");
    refuses(f, "{\"kind\":\"part\",\"data\":{\"rows\":[{\"id\":\"a\"},7]}}",
            "items[1].key: is missing (field /id)");
    refuses(f, "{\"kind\":\"part\",\"data\":{\"rows\":[{\"id\":1,\"id\":1}]}}",
            "items[0]: /id: comes more than once");
    refuses(f, "{\"kind\":\"part\",\"data\":{\"rows\":\"no\"}}", "items must be an array (field /data/rows)");
    refuses(f, "{\"kind\":\"part\",\"data\":{\"rows\":null}}", "items is missing (field /data/rows)");
    refuses(f, "{\"kind\":\"some\",\"data\":{\"rows\":[]}}",
            "eventType must be DELTA or SNAPSHOT (field /kind)");
}

static void an_array_alone_may_be_the_message(void **state)
{
    struct fixture *f = *state;
    use(f, PLAIN "        mapping: {eventType: {fixed: SNAPSHOT}, items: {field: \"\"}}\n");
    takes(f, "[{\"key\":\"a\",\"payload\":null}]");
    assert_true(str_eq(f->update.items.raw, STR("[{\"key\":\"a\",\"payload\":null}]")));
    takes(f, "{\"key\":\"a\",\"payload\":[]}");
    assert_true(str_eq(f->update.items.raw, STR("[{\"key\":\"a\",\"payload\":[]}]")));
    refuses(f, "[{\"key\":\"a\",\"payload\":1,\"more\":2}]", "items[0].more: there is no such member");
    refuses(f, "7", "items must be an array (field \"\")");
}

/* ---- the message's key, and messages without a value ---- */

static void the_messages_key_may_be_the_items(void **state)
{
    struct fixture *f = *state;
    use(f,
        PLAIN "        mapping: {eventType: {fixed: DELTA}, items: {field: \"\"}, key: {messageKey: true},\n"
              "                  op: {fixed: UPSERT}, payload: {field: \"\"}}\n");
    f->message.key = STR("D\"E");
    takes(f, "{\"name\":\"Germany\"}");
    assert_true(str_eq(f->update.items.raw,
                       STR("[{\"key\":\"D\\\"E\",\"op\":\"UPSERT\",\"payload\":{\"name\":\"Germany\"}}]")));
    f->message.key = STR_NONE;
    refuses(f, "{\"name\":\"Germany\"}", "items[0].key: is missing (the message's key)");
    f->message.key = STR("\xc3");
    refuses(f, "{\"name\":\"Germany\"}", "key: the message's key is not UTF-8");
    f->message.key = str_of("a\0b", 3);
    refuses(f, "{\"name\":\"Germany\"}", "items[0].key: must not hold \\u0000 (the message's key)");
}

static void a_message_without_a_value_deletes_where_that_is_wanted(void **state)
{
    struct fixture *f = *state;
    f->message.key = STR("DE");
    use(f, PLAIN);
    assert_int_equal(translate(f, STR_NONE), STATUS_BAD_REQUEST);
    assert_string_equal(f->error.message, "the message has no value");
    use(f, PLAIN
        "        tombstones: DELETE\n        mapping: {sourceRevision: {header: rev}, key: {field: /id}}\n");
    assert_int_equal(translate(f, STR_NONE), STATUS_OK);
    assert_true(str_eq(f->update.items.raw, STR("[{\"key\":\"DE\",\"op\":\"DELETE\"}]")));
    assert_true(f->update.has_delete && !f->update.has_upsert && !f->update.has_revision);
    assert_int_equal(f->update.type, REFDATA_DELTA);
    assert_string_equal(f->update.event_id, "954b21ac-c528-59e6-8c2a-cefdea47264c");
    header(f, "rev", "9");
    assert_int_equal(translate(f, STR("")), STATUS_OK);
    assert_int_equal(f->update.source_revision, 9);
    f->message.key = STR_NONE;
    assert_int_equal(translate(f, STR_NONE), STATUS_BAD_REQUEST);
    assert_string_equal(f->error.field, "items[0].key");
}

/* ---- garbage ---- */

static void garbage_is_refused(void **state)
{
    struct fixture *f = *state;
    static const struct str garbage[] = {STR("{"),
                                         STR("not json"),
                                         STR("{\"items\":[]}x"),
                                         STR("\xff\xfe"),
                                         STR("{\"items\":\"\xc3\x28\"}"),
                                         STR("\0"),
                                         STR("{\"a\":\"\\ud800\"}"),
                                         STR("[[[[[[[[[]]]]]]]]]"),
                                         STR("null"),
                                         STR("\"\"")};
    use(f, PLAIN);
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        assert_int_equal(translate(f, garbage[i]), STATUS_BAD_REQUEST);
        assert_true(f->error.message[0]);
    }
    use(f, CAPTURE);
    header(f, "x-tenant", "acme");
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++)
        assert_int_equal(translate(f, garbage[i]), STATUS_BAD_REQUEST);
}

static void the_limits_are_those_of_a_post(void **state)
{
    struct fixture *f = *state;
    use(f, PLAIN);
    refuses(f, "{\"eventType\":\"DELTA\",\"items\":[1,1,1,1,1]}", "items[0]: must be an object");
    refuses(f,
            "{\"eventType\":\"DELTA\",\"items\":[{\"key\":\"a\",\"op\":\"UPSERT\",\"payload\":"
            "\"................................................................\"}]}",
            "items[0].payload: is too large");
    assert_int_equal(f->error.status, STATUS_PAYLOAD_TOO_LARGE);
    refuses(f,
            "{\"eventType\":\"DELTA\",\"items\":[{\"key\":\"a\",\"op\":\"UPSERT\",\"payload\":[1e131071]}]}",
            "items[0].payload: a number would be printed with more than 1000 digits");
    use(f, CAPTURE); /* as deep as it may be, but not where it goes */
    header(f, "x-tenant", "acme");
    takes(f, "{\"op\":\"u\",\"source\":{\"table\":\"C\"},\"after\":{\"code\":\"a\",\"d\":[[[[]]]]}}");
    assert_int_equal(translate(f, STR("{\"op\":\"u\",\"source\":{\"table\":\"C\"},"
                                      "\"after\":{\"code\":\"a\",\"d\":[[[[[]]]]]}}")),
                     STATUS_BAD_REQUEST);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_message_of_the_contract_needs_no_mapping),
        TEST(what_a_message_lacks_is_its_own_each_time_it_comes),
        TEST(without_a_mapping_a_stranger_is_refused),
        TEST(a_fixed_tenant_is_not_overruled),
        TEST(the_tenant_comes_from_a_header_or_a_field),
        TEST(a_captured_change_becomes_one_item),
        TEST(an_id_of_any_form_makes_the_same_uuid_each_time),
        TEST(what_a_mapping_finds_is_refused_with_its_place),
        TEST(items_in_an_array_are_each_taken_apart),
        TEST(an_array_alone_may_be_the_message),
        TEST(the_messages_key_may_be_the_items),
        TEST(a_message_without_a_value_deletes_where_that_is_wanted),
        TEST(garbage_is_refused),
        TEST(the_limits_are_those_of_a_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
