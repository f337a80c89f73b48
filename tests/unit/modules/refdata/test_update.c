/* The command contract (R8, R1's body, C6): what is taken, what is refused by name, and what counts as the same
 * content. The examples of api/schemas are read by the same rules as the schema gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "modules/refdata/update.h"

#define EVENT "7f6d3c1e-2b3a-4c5d-8e9f-0a1b2c3d4e5f"
#define SNAP "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"

static const struct refdata_limits limits = {
    .items_max = 4, .key_bytes_max = 1024, .payload_bytes_max = 64, .depth_max = 8};

struct fixture {
    struct arena arena;
    struct refdata_update update;
    struct error error;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->arena = ARENA(4096);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    arena_deinit(&f->arena);
    free(f);
    return 0;
}

static enum status read_as(struct fixture *f, struct str text, enum refdata_origin origin,
                           const struct refdata_limits *with)
{
    struct json_value body;
    struct str code;
    f->error = (struct error){0};
    enum status status = refdata_update_open(text, with, &body, &code, &f->arena, &f->error);
    if (status != STATUS_OK)
        return status;
    struct str tenant = origin == REFDATA_FROM_CLIENT ? STR("acme") : STR_NONE;
    status = refdata_update_read(&body, origin, tenant, with, &f->arena, &f->update, &f->error);
    if (status == STATUS_OK)
        assert_true(str_eq(f->update.dict_code, code));
    return status;
}

static enum status post(struct fixture *f, const char *text)
{
    return read_as(f, str_from(text), REFDATA_FROM_CLIENT, &limits);
}

static struct hash128 content_of(struct fixture *f, const char *text)
{
    enum status status = post(f, text);
    if (status != STATUS_OK)
        print_message("%s: %s\n", text, f->error.message);
    assert_int_equal(status, STATUS_OK);
    return f->update.content;
}

static bool same(struct fixture *f, const char *a, const char *b)
{
    struct hash128 first = content_of(f, a), second = content_of(f, b);
    return first.low == second.low && first.high == second.high;
}

static void refused_with(struct fixture *f, const char *text, enum status status, const char *field)
{
    enum status got = post(f, text);
    if (got != status || strcmp(f->error.field, field) != 0)
        print_message("%s: %s, field '%s'\n", text, status_name(got), f->error.field);
    assert_int_equal(got, status);
    assert_string_equal(f->error.field, field);
    assert_true(f->error.message[0]);
}

#define DELTA(items) "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[" items "]}"
#define SNAPSHOT(items) "{\"dictCode\":\"C\",\"eventType\":\"SNAPSHOT\",\"items\":[" items "]}"
#define WITH(members) "{\"dictCode\":\"C\",\"eventType\":\"SNAPSHOT\",\"items\":[]," members "}"
#define UPSERT(key, payload) "{\"key\":\"" key "\",\"op\":\"UPSERT\",\"payload\":" payload "}"

static void a_client_may_leave_out_what_the_server_gives(void **state)
{
    struct fixture *f = *state;
    struct uuid uuid;
    assert_int_equal(post(f, DELTA(UPSERT("a", "1") ",{\"key\":\"b\",\"op\":\"DELETE\"}")), STATUS_OK);
    assert_true(uuid_parse(str_from(f->update.event_id), &uuid));
    assert_true(str_eq(f->update.tenant, STR("acme")));
    assert_int_equal(f->update.source, REFDATA_REST);
    assert_true(f->update.occurred_at_us > 0);
    assert_int_equal(f->update.item_count, 2);
    assert_true(f->update.has_upsert && f->update.has_delete && !f->update.has_revision);
    assert_int_equal(f->update.chunk_index, 1);
    assert_int_equal(f->update.chunks_total, 1);
    assert_string_equal(f->update.snapshot_id, "");
    assert_int_equal(post(f, WITH("\"source\":[\"whatever\"],\"tenantId\":\"acme\"")), STATUS_OK);
}

static void a_bus_message_must_say_it_all(void **state)
{
    struct fixture *f = *state;
    const char *whole =
        "{\"eventId\":\"" EVENT "\",\"tenantId\":\"t\",\"source\":\"KAFKA\",\"dictCode\":\"C\","
        "\"eventType\":\"DELTA\",\"occurredAt\":\"2026-02-27T12:00:00Z\",\"items\":[]}";
    assert_int_equal(read_as(f, str_from(whole), REFDATA_FROM_BUS, &limits), STATUS_OK);
    assert_true(str_eq(f->update.tenant, STR("t")));
    assert_int_equal(f->update.source, REFDATA_KAFKA);
    assert_int_equal(f->update.occurred_at_us, INT64_C(1772193600000000));
    static const char *const needed[] = {"eventId", "tenantId", "source", "occurredAt"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s", whole);
        char *at = strstr(text, needed[i]);
        memmove(at, strchr(at, ',') + 2, strlen(strchr(at, ',') + 2) + 1);
        assert_int_equal(read_as(f, str_from(text), REFDATA_FROM_BUS, &limits), STATUS_BAD_REQUEST);
        assert_string_equal(f->error.field, needed[i]);
    }
}

static void a_bad_member_is_refused_by_name(void **state)
{
    struct fixture *f = *state;
    static const char *const cases[][2] = {
        {"[]", ""},
        {"nonsense", ""},
        {"{}", "dictCode"},
        {"{\"dictCode\":7}", "dictCode"},
        {"{\"dictCode\":\"a b\"}", "dictCode"},
        {"{\"dictCode\":\"C\"}", "eventType"},
        {"{\"dictCode\":\"C\",\"eventType\":\"delta\",\"items\":[]}", "eventType"},
        {"{\"dictCode\":\"C\",\"eventType\":\"DELTA\"}", "items"},
        {"{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":{}}", "items"},
        {WITH("\"priority\":1"), "priority"},
        {WITH("\"dictCode\":\"C\""), "dictCode"},
        {WITH("\"\\u0064ictCode\":\"C\""), "dictCode"},
        {WITH("\"eventId\":\"x\""), "eventId"},
        {WITH("\"eventId\":null"), "eventId"},
        {WITH("\"eventId\":\"" EVENT "\\u0000\""), "eventId"},
        {WITH("\"tenantId\":\"other\""), "tenantId"},
        {WITH("\"tenantId\":null"), "tenantId"},
        {WITH("\"source\":\"a\\u0000\""), "source"},
        {WITH("\"sourceRevision\":\"1\""), "sourceRevision"},
        {WITH("\"sourceRevision\":1.5"), "sourceRevision"},
        {WITH("\"sourceRevision\":9223372036854775808"), "sourceRevision"},
        {WITH("\"sourceRevision\":null"), "sourceRevision"},
        {WITH("\"snapshotId\":\"x\""), "snapshotId"},
        {WITH("\"chunkIndex\":0"), "chunkIndex"},
        {WITH("\"chunkIndex\":2147483648"), "chunkIndex"},
        {WITH("\"chunkIndex\":2"), "chunksTotal"},
        {WITH("\"chunksTotal\":2"), "chunkIndex"},
        {WITH("\"chunksTotal\":2,\"chunkIndex\":1"), "snapshotId"},
        {WITH("\"chunksTotal\":2,\"chunkIndex\":1,\"snapshotId\":null"), "snapshotId"},
        {WITH("\"chunksTotal\":2,\"chunkIndex\":3,\"snapshotId\":\"" SNAP "\""), "chunkIndex"},
        {"{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[],\"chunksTotal\":2}", "chunksTotal"},
        {"{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[],\"chunkIndex\":2}", "chunkIndex"},
        {WITH("\"occurredAt\":1"), "occurredAt"},
        {WITH("\"occurredAt\":\"2026-02-27T12:00:00+01:00\""), "occurredAt"},
        {WITH("\"occurredAt\":\"2026-02-27T12:00:00z\""), "occurredAt"},
        {WITH("\"occurredAt\":\"2026-02-30T12:00:00Z\""), "occurredAt"},
        {WITH("\"occurredAt\":\"2026-02-27T12:00:00.1234567891Z\""), "occurredAt"},
        {WITH("\"occurredAt\":\"Z\""), "occurredAt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused_with(f, cases[i][0], STATUS_BAD_REQUEST, cases[i][1]);
}

static void a_bad_item_is_refused_by_its_place(void **state)
{
    struct fixture *f = *state;
    static const char *const cases[][2] = {
        {DELTA("1"), "items[0]"},
        {DELTA("{\"op\":\"DELETE\"}"), "items[0].key"},
        {DELTA("{\"key\":7,\"op\":\"DELETE\"}"), "items[0].key"},
        {DELTA("{\"key\":\"\",\"op\":\"DELETE\"}"), "items[0].key"},
        {DELTA(UPSERT("a", "1") "," UPSERT("a\\u0000b", "1")), "items[1].key"},
        {DELTA("{\"key\":\"a\",\"payload\":1}"), "items[0].op"},
        {DELTA("{\"key\":\"a\",\"op\":\"MERGE\"}"), "items[0].op"},
        {DELTA("{\"key\":\"a\",\"op\":null}"), "items[0].op"},
        {DELTA("{\"key\":\"a\",\"op\":\"UPSERT\"}"), "items[0].payload"},
        {DELTA(UPSERT("a", "{\"x\":[\"\\u0000\"]}")), "items[0].payload"},
        {DELTA(UPSERT("a", "{\"\\u0000\":1}")), "items[0].payload"},
        {DELTA("{\"key\":\"a\",\"op\":\"DELETE\",\"payload\":\"\\u0000\"}"), "items[0].payload"},
        {DELTA("{\"key\":\"a\",\"op\":\"DELETE\",\"ttl\":1}"), "items[0].ttl"},
        {DELTA("{\"key\":\"a\",\"op\":\"DELETE\",\"key\":\"b\"}"), "items[0].key"},
        {SNAPSHOT("{\"key\":\"a\",\"op\":\"DELETE\"}"), "items[0].op"},
        {SNAPSHOT("{\"key\":\"a\"}"), "items[0].payload"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused_with(f, cases[i][0], STATUS_BAD_REQUEST, cases[i][1]);
    assert_int_equal(post(f, DELTA(UPSERT("a", "\"\\\\u0000\""))), STATUS_OK); /* a backslash, not a NUL */
}

static void limits_hold_to_the_byte(void **state)
{
    struct fixture *f = *state;
    struct refdata_limits small = {
        .items_max = 2, .key_bytes_max = 4, .payload_bytes_max = 5, .depth_max = 4};
    const struct {
        const char *text;
        enum status status;
        const char *field;
    } cases[] = {
        {DELTA(UPSERT("abcd", "12345") "," UPSERT("b", "1")), STATUS_OK, ""},
        {DELTA(UPSERT("\\u0061\\u0062cd", "1")), STATUS_OK, ""}, /* four bytes, however they are written */
        {DELTA(UPSERT("abcde", "1")), STATUS_BAD_REQUEST, "items[0].key"},
        {DELTA(UPSERT("ééé", "1")), STATUS_BAD_REQUEST, "items[0].key"},
        {DELTA(UPSERT("a", "123456")), STATUS_PAYLOAD_TOO_LARGE, "items[0].payload"},
        {DELTA(UPSERT("a", "1") "," UPSERT("a", "1") "," UPSERT("a", "1")), STATUS_PAYLOAD_TOO_LARGE,
         "items"},
        {DELTA(UPSERT("a", "[1]")), STATUS_OK, ""},
        {DELTA(UPSERT("a", "[[1]]")), STATUS_BAD_REQUEST, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_as(f, str_from(cases[i].text), REFDATA_FROM_CLIENT, &small), cases[i].status);
        assert_string_equal(f->error.field, cases[i].field);
    }
}

static void a_long_or_strange_name_does_not_break_the_error(void **state)
{
    struct fixture *f = *state;
    char text[600];
    snprintf(text, sizeof text, "{\"dictCode\":\"C\",\"%s%s\":1}",
             "ééééééééééééééééééééééééééééééééééééééééééééééééééééé", "tail");
    assert_int_equal(post(f, text), STATUS_BAD_REQUEST);
    assert_true(str_is_utf8(str_from(f->error.field)));
    assert_int_equal(strlen(f->error.field), 62);
}

static void white_space_and_order_are_no_content(void **state)
{
    struct fixture *f = *state;
    assert_true(
        same(f,
             "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[{\"key\":\"a\",\"op\":\"UPSERT\","
             "\"payload\":{\"x\":[1,2],\"y\":{\"p\":\"q r\",\"z\":null}}}]}",
             "{ \"items\" : [ { \"payload\" : { \"y\":{ \"z\" : null,\"p\":\"q r\"},\n \"x\": [1, 2 ] },"
             "\"op\":\"UPSERT\",\"key\":\"\\u0061\"} ],\"eventType\":\"DELTA\",\"dictCode\":\"C\","
             "\"eventId\":\"" EVENT "\",\"tenantId\":\"acme\",\"source\":\"KAFKA\",\"chunkIndex\":1}"));
    assert_true(same(f, WITH("\"occurredAt\":\"2026-02-27T12:00:00Z\""),
                     WITH("\"occurredAt\":\"2026-02-27T12:00:00.000+00:00\"")));
    assert_true(same(f, SNAPSHOT("{\"key\":\"a\",\"payload\":1}"), SNAPSHOT(UPSERT("a", "1"))));
}

static void everything_else_is_content(void **state)
{
    struct fixture *f = *state;
    static const char *const pairs[][2] = {
        {DELTA(""), SNAPSHOT("")},
        {DELTA(UPSERT("a", "1")), DELTA(UPSERT("b", "1"))},
        {DELTA(UPSERT("a", "1")), DELTA(UPSERT("a", "2"))},
        {DELTA(UPSERT("a", "1")), DELTA(UPSERT("a", "\"1\""))},
        {DELTA(UPSERT("a", "1")), DELTA("{\"key\":\"a\",\"op\":\"DELETE\",\"payload\":1}")},
        {DELTA(UPSERT("a", "[1,2]")), DELTA(UPSERT("a", "[2,1]"))},
        {DELTA(UPSERT("a", "[[1],2]")), DELTA(UPSERT("a", "[[1,2]]"))},
        {DELTA(UPSERT("a", "[]")), DELTA(UPSERT("a", "{}"))},
        {DELTA(UPSERT("a", "{\"x\":{\"y\":1}}")), DELTA(UPSERT("a", "{\"y\":{\"x\":1}}"))},
        {DELTA(UPSERT("a", "1") "," UPSERT("b", "1")), DELTA(UPSERT("b", "1") "," UPSERT("a", "1"))},
        {DELTA(UPSERT("a", "1")), DELTA(UPSERT("a", "1") "," UPSERT("a", "1"))},
        {WITH("\"sourceRevision\":0"), SNAPSHOT("")},
        {WITH("\"sourceRevision\":1"), WITH("\"sourceRevision\":-1")},
        {WITH("\"snapshotId\":\"" SNAP "\""), WITH("\"snapshotId\":\"" EVENT "\"")},
        {WITH("\"occurredAt\":\"2026-02-27T12:00:00Z\""), WITH("\"occurredAt\":\"2026-02-27T12:00:01Z\"")},
        {WITH("\"snapshotId\":\"" SNAP "\",\"chunksTotal\":3,\"chunkIndex\":1"),
         WITH("\"snapshotId\":\"" SNAP "\",\"chunksTotal\":3,\"chunkIndex\":2")},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (same(f, pairs[i][0], pairs[i][1]))
            print_message("%s\n%s\n", pairs[i][0], pairs[i][1]);
        assert_false(same(f, pairs[i][0], pairs[i][1]));
    }
}

/* A chunk that is sent again without a time gets another one; on the bus that must not make it another chunk. */
static void what_goes_to_the_bus_comes_back_the_same(void **state)
{
    struct fixture *f = *state;
    static const char *const cases[] = {
        DELTA(UPSERT("\\u00e9\\\"", "{\"x\": 0.10}") ",{\"key\":\"b\",\"op\":\"DELETE\"}"),
        WITH("\"snapshotId\":\"" SNAP "\",\"chunksTotal\":3,\"chunkIndex\":2,\"sourceRevision\":-5"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hash128 content = content_of(f, cases[i]);
        struct refdata_update sent = f->update;
        struct buf out = {0};
        refdata_update_put(&out, &sent);
        assert_int_equal(read_as(f, buf_str(&out), REFDATA_FROM_BUS, &limits), STATUS_OK);
        const struct refdata_update *got = &f->update;
        assert_string_equal(got->event_id, sent.event_id);
        assert_true(str_eq(got->tenant, sent.tenant) && str_eq(got->items.raw, sent.items.raw));
        assert_int_equal(got->occurred_at_us, sent.occurred_at_us);
        assert_int_equal(got->source_revision, sent.source_revision);
        assert_int_equal(got->item_count, sent.item_count);
        if (refdata_update_is_chunk(&sent))
            assert_memory_equal(&got->content, &content, sizeof content);
        buf_deinit(&out);
    }
}

static void items_come_decoded_and_in_order(void **state)
{
    struct fixture *f = *state;
    struct refdata_items items;
    struct refdata_item item;
    assert_int_equal(
        post(f, DELTA(UPSERT("\\u0061/\\n",
                             "{\"x\": 0.10}") ","
                                              "{\"payload\":[1],\"op\":\"DELETE\",\"key\":\"b\"}")),
        STATUS_OK);
    refdata_items_begin(&items, &f->update, &f->arena);
    assert_true(refdata_items_next(&items, &item));
    assert_true(str_eq(item.key, STR("a/\n")) && str_eq(item.payload, STR("{\"x\": 0.10}")));
    assert_false(item.is_delete);
    assert_true(refdata_items_next(&items, &item));
    assert_true(item.is_delete && str_eq(item.key, STR("b")) && item.payload.len == 0);
    assert_false(refdata_items_next(&items, &item));
}

static struct str slurp(struct fixture *f, const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", EXAMPLES, folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = arena_alloc(&f->arena, 65536);
    size_t len = fread(text, 1, 65536, file);
    fclose(file);
    return str_of(text, len);
}

static void read_examples(struct fixture *f, const char *folder, bool valid)
{
    const struct refdata_limits by_default = {
        .items_max = 10000, .key_bytes_max = 1024, .payload_bytes_max = 1 << 20, .depth_max = 64};
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", EXAMPLES, folder);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        enum status status = read_as(f, slurp(f, folder, entry->d_name), REFDATA_FROM_BUS, &by_default);
        if ((status == STATUS_OK) != valid)
            print_message("%s/%s: %s %s\n", folder, entry->d_name, status_name(status), f->error.message);
        assert_int_equal(status == STATUS_OK, valid);
        count++;
    }
    closedir(dir);
    assert_true(count > 5);
}

static void the_schemas_examples_are_judged_as_the_schema_does(void **state)
{
    read_examples(*state, "valid", true);
    read_examples(*state, "invalid", false);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_client_may_leave_out_what_the_server_gives),
        TEST(a_bus_message_must_say_it_all),
        TEST(a_bad_member_is_refused_by_name),
        TEST(a_bad_item_is_refused_by_its_place),
        TEST(limits_hold_to_the_byte),
        TEST(a_long_or_strange_name_does_not_break_the_error),
        TEST(white_space_and_order_are_no_content),
        TEST(everything_else_is_content),
        TEST(what_goes_to_the_bus_comes_back_the_same),
        TEST(items_come_decoded_and_in_order),
        TEST(the_schemas_examples_are_judged_as_the_schema_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
