/* C9: a batch of spans as OTLP's JSON, and the collector's answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "kernel/otlp.h"

static struct span example(void)
{
    struct span span = {.is_recorded = true,
                        .kind = SPAN_SERVER,
                        .name = "GET",
                        .detail = "/items/{key}",
                        .start_us = 1700000000000001,
                        .end_us = 1700000000000250};
    assert_true(trace_parse(STR("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), &span.trace));
    memset(span.parent_id, 0xcd, sizeof span.parent_id);
    return span;
}

static void a_batch_is_one_request(void **state)
{
    (void)state;
    const struct otlp_resource resource = {STR("shop"), STR("pod-1/7"), STR("1.2"), STR("pod-1"), 7};
    struct span child = example(), root = example();
    struct buf out = {0};
    struct json_value value;
    span_put_int(&child, "http.response.status_code", 200);
    span_put_str(&child, "url.path", STR("/a\"b\n\xff"));
    memset(root.parent_id, 0, sizeof root.parent_id);
    root.detail = NULL;
    span_fail(&root, STR("timeout"));
    otlp_begin(&out, &resource);
    otlp_put_span(&out, &child);
    otlp_put_span(&out, &root);
    otlp_end(&out);
    assert_int_equal(json_parse(buf_str(&out), JSON_DEPTH_MAX, &value, NULL), STATUS_OK);
    buf_put_char(&out, '\0');
    assert_string_equal(
        buf_str(&out).ptr,
        "{\"resourceSpans\":[{\"resource\":{\"attributes\":["
        "{\"key\":\"service.name\",\"value\":{\"stringValue\":\"shop\"}},"
        "{\"key\":\"service.instance.id\",\"value\":{\"stringValue\":\"pod-1/7\"}},"
        "{\"key\":\"service.version\",\"value\":{\"stringValue\":\"1.2\"}},"
        "{\"key\":\"host.name\",\"value\":{\"stringValue\":\"pod-1\"}},"
        "{\"key\":\"process.pid\",\"value\":{\"intValue\":\"7\"}}]},"
        "\"scopeSpans\":[{\"scope\":{\"name\":\"freshet\"},\"spans\":["
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"b7ad6b7169203331\",\"parentSpanId\":\"cdcdcdcdcdcdcdcd\","
        "\"flags\":1,\"kind\":2,\"name\":\"GET /items/{key}\","
        "\"startTimeUnixNano\":\"1700000000000001000\",\"endTimeUnixNano\":\"1700000000000250000\",\"attributes\":["
        "{\"key\":\"http.response.status_code\",\"value\":{\"intValue\":\"200\"}},"
        "{\"key\":\"url.path\",\"value\":{\"stringValue\":\"/a\\\"b\\n\xef\xbf\xbd\"}}]},"
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"b7ad6b7169203331\","
        "\"flags\":1,\"kind\":2,\"name\":\"GET\","
        "\"startTimeUnixNano\":\"1700000000000001000\",\"endTimeUnixNano\":\"1700000000000250000\",\"attributes\":["
        "{\"key\":\"error.type\",\"value\":{\"stringValue\":\"timeout\"}}],\"status\":{\"code\":2}}"
        "]}]}]}");
    buf_deinit(&out);
}

static void rejected_spans_are_read(void **state)
{
    (void)state;
    static const struct {
        struct str answer;
        int64_t rejected;
    } cases[] = {
        {STR("{}"), 0},
        {STR(""), 0},
        {STR("<html>"), 0},
        {STR("[]"), 0},
        {STR("{\"partialSuccess\":{}}"), 0},
        {STR("{\"partialSuccess\":null}"), 0},
        {STR("{\"partialSuccess\":{\"rejectedSpans\":\"12\",\"errorMessage\":\"x\"}}"), 12},
        {STR("{\"partialSuccess\":{\"rejectedSpans\":3}}"), 3},
        {STR("{\"partialSuccess\":{\"rejectedSpans\":\"-3\"}}"), 0},
        {STR("{\"partialSuccess\":{\"rejectedSpans\":\"\"}}"), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(otlp_read_rejected(cases[i].answer), cases[i].rejected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_is_one_request),
        cmocka_unit_test(rejected_spans_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
