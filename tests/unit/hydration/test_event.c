/* The three events: what is read, what is refused, and that what is written is read again as the same (H1). The examples of
 * api/schemas, which the schemas are tested with, are read here too, so that schemas and program say the same of them. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "hydration/event.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define UNKNOWN \
    "{\"entity_type\":\"item\",\"entity_id\":\"s\",\"requester_module\":\"m\",\"hydration_mode\":\"full\"}"
#define UPDATED "{\"entity_type\":\"item\",\"entity_id\":\"s\",\"source_module\":\"m\",\"data\":{\"a\":1}}"
#define NOT_FOUND                                                            \
    "{\"entity_type\":\"item\",\"entity_id\":\"s\",\"source_module\":\"m\"," \
    "\"reason\":\"deleted_or_never_existed\"}"

static const struct str whole[HYDRATION_KINDS] = {
    {UNKNOWN, sizeof UNKNOWN - 1}, {UPDATED, sizeof UPDATED - 1}, {NOT_FOUND, sizeof NOT_FOUND - 1}};
static const struct bus_header acme = {{"tenant_id", 9}, {"acme", 4}};
static struct arena arena;

static int set_up(void **state)
{
    (void)state;
    arena = ARENA(4096);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_deinit(&arena);
    return 0;
}

static enum status read_event(enum hydration_kind kind, struct str payload, const struct bus_header *headers,
                              unsigned count, struct hydration_event *event)
{
    struct error error = {0};
    enum status status = hydration_event_read(kind, payload, headers, count, &arena, event, &error);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_BAD_REQUEST);
        assert_int_equal(error.status, STATUS_BAD_REQUEST);
        assert_true(error.message[0] != '\0');
    }
    return status;
}

/* ---- the examples ---- */

static struct str read_file(const char *path)
{
    char *text = arena_alloc(&arena, 65536);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t len = fread(text, 1, 65536, file);
    fclose(file);
    return str_of(text, len);
}

static size_t judge_folder(enum hydration_kind kind, const char *name, const char *folder,
                           enum status expected)
{
    struct hydration_event event;
    struct dirent *entry;
    char path[1024];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/examples/%s/%s", getenv("SCHEMAS"), name, folder);
    DIR *opened = opendir(path);
    assert_non_null(opened);
    while ((entry = readdir(opened)) != NULL) {
        if (!str_ends_with(str_from(entry->d_name), STR(".json")))
            continue;
        snprintf(path, sizeof path, "%s/examples/%s/%s/%s", getenv("SCHEMAS"), name, folder, entry->d_name);
        if (read_event(kind, read_file(path), &acme, 1, &event) != expected)
            fail_msg("%s", path);
        count++;
    }
    closedir(opened);
    return count;
}

static void the_schemas_and_the_program_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"entity-unknown", "entity-updated", "entity-not-found"};
    if (!getenv("SCHEMAS"))
        skip();
    for (int kind = 0; kind < HYDRATION_KINDS; kind++) {
        assert_true(judge_folder((enum hydration_kind)kind, names[kind], "valid", STATUS_OK) >= 3);
        assert_true(judge_folder((enum hydration_kind)kind, names[kind], "invalid", STATUS_BAD_REQUEST) > 9);
    }
}

/* ---- payloads ---- */

static void what_no_schema_can_say_is_refused(void **state)
{
    (void)state;
    static const struct {
        enum hydration_kind kind;
        struct str payload;
    } cases[] = {
        {HYDRATION_EVENT_UPDATED, STR("")},
        {HYDRATION_EVENT_UPDATED, STR("{")},
        {HYDRATION_EVENT_UPDATED, STR("7")},
        {HYDRATION_EVENT_UPDATED, STR(UPDATED "x")},
        {HYDRATION_EVENT_UPDATED, STR("\xff")},
        {HYDRATION_EVENT_UPDATED, STR("{\"entity_type\":\"item\",\"entity_id\":\"s\",\"entity_id\":\"t\","
                                      "\"source_module\":\"m\",\"data\":{}}")},
        {HYDRATION_EVENT_UPDATED, STR("{\"entity_type\":\"item\",\"entity_id\":\"s\","
                                      "\"source_module\":\"m\",\"data\":{\"a\":1,\"\\u0061\":2}}")},
        {HYDRATION_EVENT_UPDATED, STR("{\"entity_type\":\"item\",\"entity_id\":\"\xed\xa0\x80\","
                                      "\"source_module\":\"m\",\"data\":{}}")},
        {HYDRATION_EVENT_UPDATED, STR("{\"entity_type\":\"item\",\"entity_id\":\"\\ud800\","
                                      "\"source_module\":\"m\",\"data\":{}}")},
        {HYDRATION_EVENT_UNKNOWN, STR(UPDATED)},
        {HYDRATION_EVENT_NOT_FOUND, STR(UPDATED)},
        {HYDRATION_EVENT_UPDATED, STR(NOT_FOUND)},
    };
    struct hydration_event event;
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(read_event(cases[i].kind, cases[i].payload, &acme, 1, &event), STATUS_BAD_REQUEST);
}

static struct str updated_of(size_t id_chars, size_t data_bytes)
{
    struct buf out = {0};
    buf_put_str(&out, STR("{\"entity_type\":\"item\",\"source_module\":\"m\",\"entity_id\":\""));
    for (size_t i = 0; i < id_chars; i++)
        buf_put_str(&out, STR("\xd1\x8f"));
    buf_put_str(&out, STR("\",\"data\":{\"a\":\""));
    for (size_t i = sizeof "{'a':''}" - 1; i < data_bytes; i++)
        buf_put_char(&out, 'd');
    buf_put_str(&out, STR("\"}}"));
    struct str text = arena_str(&arena, buf_str(&out));
    buf_deinit(&out);
    return text;
}

static void limits_are_in_bytes(void **state)
{
    (void)state;
    struct hydration_event event;
    const size_t id = HYDRATION_ID_BYTES_MAX / 2, data = HYDRATION_DATA_BYTES_MAX;
    assert_int_equal(read_event(HYDRATION_EVENT_UPDATED, updated_of(id, data), &acme, 1, &event), STATUS_OK);
    assert_int_equal(event.data.len, data);
    assert_int_equal(read_event(HYDRATION_EVENT_UPDATED, updated_of(id + 1, 9), &acme, 1, &event),
                     STATUS_BAD_REQUEST);
    assert_int_equal(read_event(HYDRATION_EVENT_UPDATED, updated_of(id, data + 1), &acme, 1, &event),
                     STATUS_BAD_REQUEST);
}

/* ---- headers ---- */

static void headers_say_whose_it_is_and_how_new(void **state)
{
    (void)state;
    const struct bus_header headers[] = {
        {STR("fields"), STR("[\"b\",\"a\",\"b\"]")},
        {STR("sub"), STR("alice")},
        {STR("tenant_id"), STR("acme")},
        {STR("X-Other"), STR("1")},
        {STR("X-Other"), STR("2")},
        {STR("correlation_id"), STR("c-1")},
        {STR("version"), STR("9223372036854775807")},
        {STR("hydration_mode"), STR("partial")},
        {STR("visibility"), STR("caller")},
        {STR("traceparent"), STR("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
    };
    struct hydration_event event;
    assert_int_equal(
        read_event(HYDRATION_EVENT_UPDATED, whole[HYDRATION_EVENT_UPDATED], headers, COUNT(headers), &event),
        STATUS_OK);
    assert_true(str_eq(event.tenant, STR("acme")) && str_eq(event.caller, STR("alice")));
    assert_true(str_eq(event.correlation_id, STR("c-1")) && event.version == INT64_MAX && event.is_private);
    assert_true(event.has_cover && event.cover.mode == HYDRATION_PARTIAL && event.cover.field_count == 2);
    assert_true(str_eq(event.cover.fields[0], STR("a")) && str_eq(event.cover.fields[1], STR("b")));
    assert_int_equal(event.traceparent.len, 55);
}

static void an_answer_without_a_cover_says_so(void **state)
{
    (void)state;
    struct hydration_event event;
    assert_int_equal(read_event(HYDRATION_EVENT_UPDATED, whole[HYDRATION_EVENT_UPDATED], &acme, 1, &event),
                     STATUS_OK);
    assert_true(!event.has_cover && !event.is_private && event.version == 0 && event.caller.len == 0);
}

static void inaccessible_is_always_the_callers_own(void **state)
{
    (void)state;
    struct hydration_event event;
    assert_int_equal(read_event(HYDRATION_EVENT_NOT_FOUND,
                                STR("{\"entity_type\":\"item\",\"entity_id\":\"s\",\"source_module\":\"m\","
                                    "\"reason\":\"inaccessible\"}"),
                                &acme, 1, &event),
                     STATUS_OK);
    assert_true(event.is_private);
    assert_int_equal(
        read_event(HYDRATION_EVENT_NOT_FOUND, whole[HYDRATION_EVENT_NOT_FOUND], &acme, 1, &event), STATUS_OK);
    assert_false(event.is_private);
}

static char long_text[HYDRATION_CALLER_BYTES_MAX + 1];

static void a_header_that_is_wrong_makes_it_no_event(void **state)
{
    (void)state;
    memset(long_text, 's', sizeof long_text);
    const struct bus_header wrong[] = {
        {STR("tenant_id"), STR("acme")}, /* twice */
        {STR("sub"), str_of(long_text, sizeof long_text)},
        {STR("sub"), STR("a\nb")},
        {STR("correlation_id"), str_of(long_text, HYDRATION_CORRELATION_BYTES_MAX + 1)},
        {STR("correlation_id"), STR("\xc3")},
        {STR("version"), STR("-1")},
        {STR("version"), STR("1.0")},
        {STR("version"), STR("9223372036854775808")},
        {STR("visibility"), STR("everybody")},
        {STR("hydration_mode"), STR("some")},
    };
    struct hydration_event event;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const struct bus_header headers[] = {acme, wrong[i]};
        assert_int_equal(
            read_event(HYDRATION_EVENT_UPDATED, whole[HYDRATION_EVENT_UPDATED], headers, 2, &event),
            STATUS_BAD_REQUEST);
    }
}

static void fields_of_an_answer_are_a_list_of_names(void **state)
{
    (void)state;
    static const char *const lists[] = {"a,b", "{}", "[1]", "[[]]", "[\"\"]", "[\"\\u0000\"]"};
    struct hydration_event event;
    for (size_t i = 0; i < COUNT(lists); i++) {
        const struct bus_header headers[] = {
            acme, {STR("hydration_mode"), STR("partial")}, {STR("fields"), str_from(lists[i])}};
        assert_int_equal(
            read_event(HYDRATION_EVENT_UPDATED, whole[HYDRATION_EVENT_UPDATED], headers, 3, &event),
            STATUS_BAD_REQUEST);
    }
}

static void without_a_tenant_it_is_nobodys(void **state)
{
    (void)state;
    static const char *const tenants[] = {"", "a/b", "a b", NULL};
    struct hydration_event event;
    for (int kind = 0; kind < HYDRATION_KINDS; kind++) {
        assert_int_equal(read_event((enum hydration_kind)kind, whole[kind], NULL, 0, &event),
                         STATUS_BAD_REQUEST);
        for (size_t i = 0; tenants[i]; i++) {
            const struct bus_header header = {STR("tenant_id"), str_from(tenants[i])};
            assert_int_equal(read_event((enum hydration_kind)kind, whole[kind], &header, 1, &event),
                             STATUS_BAD_REQUEST);
        }
    }
}

/* ---- there and back ---- */

static void check_same(const struct hydration_event *a, const struct hydration_event *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_true(str_eq(a->tenant, b->tenant) && str_eq(a->caller, b->caller) &&
                str_eq(a->correlation_id, b->correlation_id) && str_eq(a->entity_type, b->entity_type) &&
                str_eq(a->entity_id, b->entity_id) && str_eq(a->module, b->module) &&
                str_eq(a->data, b->data) && str_eq(a->traceparent, b->traceparent));
    assert_true(a->version == b->version && a->reason == b->reason && a->is_private == b->is_private &&
                a->has_cover == b->has_cover);
    assert_true(hydration_cover_includes(&a->cover, &b->cover) &&
                hydration_cover_includes(&b->cover, &a->cover));
}

static void what_is_written_is_read_as_the_same(void **state)
{
    (void)state;
    static const struct str fields[] = {{"a\"b", 3}, {"price", 5}};
    struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX];
    for (int i = 0; i < 18; i++) {
        struct hydration_event event =
                                   {
                                       .kind = (enum hydration_kind)(i % 3),
                                       .tenant = STR("acme"),
                                       .caller = STR("\xd0\x90lice"),
                                       .correlation_id = STR("c-1"),
                                       .entity_type = STR("item"),
                                       .entity_id = STR("a\"/\\\xf0\x9f\x98\x80"),
                                       .module = STR("intake"),
                                       .has_cover = i % 3 == HYDRATION_EVENT_UNKNOWN || i < 9,
                                       .data =
                                           i % 3 == HYDRATION_EVENT_UPDATED ? STR("{\"a\": 0.10}") : STR_NONE,
                                       .is_private = i % 3 != HYDRATION_EVENT_UNKNOWN && i % 2,
                                       .traceparent =
                                           STR("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                                   },
                               again;
        struct buf out = {0};
        if (event.has_cover)
            event.cover = (struct hydration_cover){(enum hydration_mode)(i / 3 % 3), fields,
                                                   i / 3 % 3 == HYDRATION_PARTIAL ? 2 : 0};
        if (event.kind != HYDRATION_EVENT_UNKNOWN)
            event.version = i;
        if (event.kind == HYDRATION_EVENT_NOT_FOUND && event.is_private)
            event.reason = HYDRATION_INACCESSIBLE;
        unsigned count = hydration_event_put(&event, &arena, &out, headers);
        assert_int_equal(read_event(event.kind, buf_str(&out), headers, count, &again), STATUS_OK);
        check_same(&event, &again);
        buf_deinit(&out);
    }
}

static void the_payload_has_the_seeds_members_and_no_others(void **state)
{
    (void)state;
    static const struct str fields[] = {{"title", 5}};
    struct bus_header headers[HYDRATION_EVENT_HEADERS_MAX];
    struct hydration_event event = {.kind = HYDRATION_EVENT_UNKNOWN,
                                    .tenant = STR("acme"),
                                    .entity_type = STR("item"),
                                    .entity_id = STR("s"),
                                    .module = STR("m"),
                                    .cover = {HYDRATION_PARTIAL, fields, 1},
                                    .data = STR("{}")};
    static const char *const expected[HYDRATION_KINDS] = {
        "{\"entity_type\":\"item\",\"entity_id\":\"s\",\"requester_module\":\"m\","
        "\"hydration_mode\":\"partial\",\"fields\":[\"title\"]}",
        "{\"entity_type\":\"item\",\"entity_id\":\"s\",\"source_module\":\"m\",\"data\":{}}",
        "{\"entity_type\":\"item\",\"entity_id\":\"s\",\"source_module\":\"m\","
        "\"reason\":\"deleted_or_never_existed\"}",
    };
    for (int kind = 0; kind < HYDRATION_KINDS; kind++) {
        struct buf out = {0};
        event.kind = (enum hydration_kind)kind;
        hydration_event_put(&event, &arena, &out, headers);
        buf_put_char(&out, '\0');
        assert_string_equal(buf_str(&out).ptr, expected[kind]);
        buf_deinit(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_schemas_and_the_program_agree),
        cmocka_unit_test(what_no_schema_can_say_is_refused),
        cmocka_unit_test(limits_are_in_bytes),
        cmocka_unit_test(headers_say_whose_it_is_and_how_new),
        cmocka_unit_test(an_answer_without_a_cover_says_so),
        cmocka_unit_test(inaccessible_is_always_the_callers_own),
        cmocka_unit_test(a_header_that_is_wrong_makes_it_no_event),
        cmocka_unit_test(fields_of_an_answer_are_a_list_of_names),
        cmocka_unit_test(without_a_tenant_it_is_nobodys),
        cmocka_unit_test(what_is_written_is_read_as_the_same),
        cmocka_unit_test(the_payload_has_the_seeds_members_and_no_others),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
