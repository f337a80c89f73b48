/* C6: the server compares a head with the one before it, and does not parse or route again what is the same in both, nor asks the gate
 * again who sent it. Nobody may notice: what a handler sees of a request, and what is answered, is the same as if it had come alone. */
#include <unistd.h>

#include "base/buf.h"
#include "harness.h"
#include "http/http_inside.h"

/* ---- a handler that tells all it can see ---- */

static unsigned gate_calls, gate_refuses_at; /* 0 = never */
static unsigned carried_count;               /* requests whose caller was carried over from the one before */

struct caller {
    char tenant[16], authorization[64];
};

static void put_field(struct buf *out, const char *name, struct str value)
{
    buf_printf(out, "%s=%.*s;", name, STR_ARG(value));
}

static void tell(struct http_request *request)
{
    struct buf out = {0};
    struct error error;
    struct str value = STR_NONE;

    buf_printf(&out, "%d %s;", (int)request->method, request->route->path);
    put_field(&out, "path", request->path);
    put_field(&out, "query", request->query);
    if (http_request_param(request, "tenantId", &value, &error) == STATUS_OK)
        put_field(&out, "tenant", value);
    if (http_request_param(request, "key", &value, &error) == STATUS_OK)
        put_field(&out, "key", value);
    for (size_t i = 0; i < request->header_count; i++)
        buf_printf(&out, "%.*s: %.*s;", STR_ARG(request->headers[i].name),
                   STR_ARG(request->headers[i].value));
    put_field(&out, "authorization", request->authorization);
    put_field(&out, "certificate", request->forwarded_client_cert);
    if (request->identity) {
        const struct caller *caller = request->identity;
        buf_printf(&out, "%s of %s;", caller->authorization, caller->tenant);
    }
    buf_printf(&out, "%u %d %d ", request->authorization_count, request->has_body,
               http_request_none_match(request, STR("\"e\"")));
    for (size_t i = 0; i < sizeof request->trace; i++)
        buf_printf(&out, "%02x", ((const uint8_t *)&request->trace)[i]);
    put_field(&out, "body", request->body);
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&out)});
    buf_deinit(&out);
}

/* As the kernel's: what is carried over is the caller by this tenant and token. */
static enum http_step gate(struct http_request *request, void *context)
{
    static struct caller callers[1024];
    static unsigned next;
    struct error error;
    struct str tenant;

    (void)context;
    if (++gate_calls == gate_refuses_at || str_eq(request->authorization, STR("Bearer bad")) ||
        http_request_param(request, "tenantId", &tenant, &error) != STATUS_OK) {
        http_send_error(request, &(struct error){.status = STATUS_UNAUTHENTICATED});
        return HTTP_STEP_ANSWERED;
    }
    carried_count += request->carried.identity != NULL;
    if (!request->carried.identity) {
        struct caller *caller = &callers[next++ % (sizeof callers / sizeof *callers)];
        str_copy(caller->tenant, sizeof caller->tenant, tenant);
        str_copy(caller->authorization, sizeof caller->authorization, request->authorization);
        request->carried.identity = caller;
    }
    request->identity = request->carried.identity;
    return HTTP_STEP_PASS;
}

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/{tenantId}/items/{key}", .handler = tell},
    {.method = HTTP_PUT, .path = "/{tenantId}/items/{key}", .handler = tell, .consumes = HTTP_ANY},
    {.method = HTTP_GET, .path = "/{tenantId}/list", .handler = tell},
    {.method = HTTP_GET, .path = "/tenants/{tenantId}", .handler = tell, .tenant_param = "tenantId"},
    {0},
};

static int setup(void **state)
{
    struct harness *harness = malloc(sizeof *harness);

    harness_init(harness, routes);
    harness->config.gate = gate;
    harness_start(harness);
    *state = harness;
    return 0;
}

static int teardown(void **state)
{
    harness_deinit(*state);
    free(*state);
    return 0;
}

/* ---- requests that are alike, and where they differ ---- */

#define HOST "Host: a\r\n"
#define TOKEN "Authorization: Bearer one.two.three\r\n"
#define OTHER_TOKEN "Authorization: Bearer one.two.other\r\n"

static const char *const requests[] = {
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /t/items/key-22 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /t/items/a%2Fb?x=1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "HEAD /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /other/items/k1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /t/list HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /t/nothing/k1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /t/items/ HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "OPTIONS * HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "OPTIONS * HTTP/1.1\r\n" HOST OTHER_TOKEN "\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST OTHER_TOKEN "\r\n",
    "GET /t/nothing/k1 HTTP/1.1\r\n" HOST OTHER_TOKEN "\r\n",
    "GET /tenants/t HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /tenants/other HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "\r\nGET /t/items/k1 HTTP/1.1\r\n" HOST "Authorization: Bearer one.two.thre3\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST "Authorization: Bearer bad\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST "\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST "X-Authorizatio: Bearer one.two.thre\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN TOKEN "\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "If-None-Match: \"e\"\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "Connection: close\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "x-forwarded-client-cert: c\r\n"
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
    "GET /t/items/k1 HTTP/1.0\r\n" HOST TOKEN "\r\n",
    "GET /t/items/k1 HTTP/1.0\r\n" HOST TOKEN "Connection: keep-alive\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "Connection: keep-alive\r\n\r\n",
    "PUT /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "Content-Length: 5\r\n\r\nhello",
    "PUT /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "PUT /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN "Content-Length: 0\r\n\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST HOST TOKEN "\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" TOKEN "\r\n",
    "GET /t/items/k1 HTTP/1.1\r\n" HOST TOKEN " \r\n\r\n",
    "GET /t/it ems/k1 HTTP/1.1\r\n" HOST TOKEN "\r\n",
};

enum { REQUESTS = sizeof requests / sizeof *requests };

static void put_without_dates(struct buf *out, struct str rest)
{
    const char *date, *after;

    while (rest.len > 0 && (date = memmem(rest.ptr, rest.len, "\r\nDate: ", 8)) != NULL) {
        after = strchr(date + 2, '\r');
        buf_put(out, rest.ptr, (size_t)(date - rest.ptr));
        rest = str_skip(rest, (size_t)(after - rest.ptr));
    }
    buf_put_str(out, rest);
}

/* Takes all that was received. */
static void expect_answer(struct client *client, const struct buf *expected)
{
    struct buf got = {0};

    put_without_dates(&got, buf_str(&client->in));
    buf_clear(&client->in);
    if (!str_eq(buf_str(&got), buf_str(expected)))
        fail_msg("got\n%.*s\nexpected\n%.*s", STR_ARG(buf_str(&got)), STR_ARG(buf_str(expected)));
    buf_deinit(&got);
}

/* All that comes back, without the lines that depend on the clock. */
static void converse(struct harness *harness, struct str sent, size_t split, struct buf *out, bool *closed)
{
    struct client client;

    gate_calls = 0;
    client_connect(harness, &client);
    client_send(&client, str_of(sent.ptr, split));
    if (split < sent.len) {
        client_receive(&client);
        client_send(&client, str_skip(sent, split));
    }
    client_receive(&client);
    *closed = client.at_end;
    put_without_dates(out, buf_str(&client.in));
    client_close(&client);
}

struct alone {
    struct buf answer;
    bool closed;
};

static void answer_alone(struct harness *harness, struct alone alone[REQUESTS])
{
    for (int i = 0; i < REQUESTS; i++) {
        alone[i] = (struct alone){0};
        converse(harness, str_from(requests[i]), strlen(requests[i]), &alone[i].answer, &alone[i].closed);
    }
}

static void expect_as_alone(struct harness *harness, const struct alone alone[REQUESTS], const int *order,
                            int count, size_t every)
{
    struct buf sent = {0}, expected = {0};
    bool closes = false;

    for (int i = 0; i < count; i++) {
        buf_put_str(&sent, str_from(requests[order[i]]));
        if (!closes)
            buf_put_str(&expected, buf_str(&alone[order[i]].answer));
        closes = closes || alone[order[i]].closed;
    }
    for (size_t split = every ? 0 : buf_len(&sent); split <= buf_len(&sent); split += every ? every : 1) {
        struct buf got = {0};
        bool closed;
        converse(harness, buf_str(&sent), split, &got, &closed);
        if (!str_eq(buf_str(&got), buf_str(&expected)))
            fail_msg("split at %zu of\n%.*s\ngot\n%.*s\nexpected\n%.*s", split, STR_ARG(buf_str(&sent)),
                     STR_ARG(buf_str(&got)), STR_ARG(buf_str(&expected)));
        assert_int_equal(closed, closes);
        buf_deinit(&got);
    }
    buf_deinit(&sent);
    buf_deinit(&expected);
}

static void test_c6_a_request_is_answered_as_if_it_had_come_alone(void **state)
{
    struct alone alone[REQUESTS];

    answer_alone(*state, alone);
    for (int first = 0; first < REQUESTS; first++)
        for (int second = 0; second < REQUESTS; second++)
            expect_as_alone(*state, alone, (int[]){first, second, second, first, second}, 5, 0);
    for (int i = 0; i < REQUESTS; i++)
        buf_deinit(&alone[i].answer);
}

/* With another token, a request that is not routed comes between two that are. */
static void test_c5_no_other_caller_is_carried_over(void **state)
{
    struct alone alone[REQUESTS];
    enum { ITEM = 0, OPTIONS_OTHER = 9, ITEM_OTHER = 10, NOTHING_OTHER = 11 };

    answer_alone(*state, alone);
    expect_as_alone(*state, alone, (int[]){ITEM, OPTIONS_OTHER, ITEM_OTHER}, 3, 0);
    expect_as_alone(*state, alone, (int[]){ITEM, NOTHING_OTHER, ITEM_OTHER}, 3, 0);
    expect_as_alone(*state, alone, (int[]){ITEM, ITEM, OPTIONS_OTHER, ITEM_OTHER, ITEM_OTHER, ITEM}, 6, 0);
    for (int i = 0; i < REQUESTS; i++)
        buf_deinit(&alone[i].answer);
}

static void test_c6_the_same_at_every_split(void **state)
{
    struct alone alone[REQUESTS];

    answer_alone(*state, alone);
    for (int second = 1; second < REQUESTS; second += 3)
        expect_as_alone(*state, alone, (int[]){0, 0, second, second, 1}, 5, 1);
    for (int i = 0; i < REQUESTS; i++)
        buf_deinit(&alone[i].answer);
}

/* More than one read takes: the bytes of earlier heads are moved, overwritten and grown out of meanwhile. */
static void test_c6_a_long_row_of_requests(void **state)
{
    struct alone alone[REQUESTS];
    int order[400];
    uint32_t seed = 1;

    answer_alone(*state, alone);
    for (int i = 0; i < 400; i++) {
        seed = seed * 1664525u + 1013904223u;
        order[i] = i > 0 && seed >> 30 ? order[i - 1] : (int)(seed >> 16) % REQUESTS;
        while (alone[order[i]].closed)
            order[i] = (order[i] + 1) % REQUESTS;
    }
    expect_as_alone(*state, alone, order, 400, 0);
    for (int i = 0; i < REQUESTS; i++)
        buf_deinit(&alone[i].answer);
}

/* The head that others are compared with stays in the block while more is read, on this connection and the next: heads that are the
 * same, of another length, too long to be kept, or with a body, in any order. */
static void test_c6_the_same_over_many_reads_and_connections(void **state)
{
    struct alone alone[REQUESTS];
    struct client clients[3];
    uint32_t seed = 7;
    char long_head[HTTP_KEPT_BYTES_MAX + 100], long_fields[HTTP_KEPT_BYTES_MAX];

    answer_alone(*state, alone);
    memset(long_fields, 'x', sizeof long_fields);
    snprintf(long_head, sizeof long_head, "GET /t/none/ HTTP/1.1\r\nHost: a\r\nX-Long: %.*s\r\n\r\n",
             (int)sizeof long_fields, long_fields);
    for (size_t i = 0; i < 3; i++)
        client_connect(*state, &clients[i]);
    for (int round = 0; round < 3000; round++) {
        struct client *client;
        int which;
        seed = seed * 1664525u + 1013904223u;
        client = &clients[seed >> 30 & 1 ? seed >> 28 & 1 : 2];
        which = seed >> 27 & 1 ? 0 : (int)(seed >> 16 & 0x7ff) % REQUESTS;
        if (alone[which].closed)
            continue;
        if (round % 97 == 0) {
            client_send(client, str_from(long_head));
            client_receive(client);
            assert_int_equal(client_take(client).status, 404);
        }
        client_send(client, str_from(requests[which]));
        client_receive(client);
        assert_int_equal(buf_len(&client->in) > 0, true);
        expect_answer(client, &alone[which].answer);
    }
    for (size_t i = 0; i < 3; i++)
        client_close(&clients[i]);
    for (int i = 0; i < REQUESTS; i++)
        buf_deinit(&alone[i].answer);
}

/* When the rest of a read is moved to the front, other heads come to lie where the last one was. */
static void test_c6_heads_of_the_same_length_after_a_full_read(void **state)
{
    struct alone alone[REQUESTS];
    int order[2 * HTTP_BLOCK_BYTES / 64], count = 0, other = 17;

    answer_alone(*state, alone);
    assert_int_equal(strlen(requests[0]), strlen(requests[other]));
    while (count < HTTP_BLOCK_BYTES / (int)strlen(requests[0]))
        order[count++] = 0;
    for (int both = 2 * count; count < both;)
        order[count++] = other;
    expect_as_alone(*state, alone, order, count, 0);
    for (int i = 0; i < REQUESTS; i++)
        buf_deinit(&alone[i].answer);
}

/* What was found for a request is for those that came with it: later the token may have expired, or its entry in a table be gone. */
static void test_c5_the_caller_is_carried_over_within_a_turn(void **state)
{
    struct client client;
    struct buf sent = {0};

    for (int i = 0; i < 4; i++)
        buf_put_str(&sent, str_from(requests[i % 2]));
    client_connect(*state, &client);
    for (unsigned turn = 0; turn < 2; turn++) {
        carried_count = 0;
        client_send(&client, buf_str(&sent));
        client_receive(&client);
        for (int i = 0; i < 4; i++)
            assert_int_equal(client_take(&client).status, 200);
        assert_int_equal(carried_count, 3);
    }
    client_close(&client);
    buf_deinit(&sent);
}

/* C5: a token may be refused from one request to the next; the gate is asked for each. */
static void test_c5_the_gate_is_asked_for_each(void **state)
{
    struct client client;
    struct buf sent = {0};

    for (int i = 0; i < 4; i++)
        buf_put_str(&sent, str_from(requests[0]));
    gate_calls = 0;
    gate_refuses_at = 3;
    client_connect(*state, &client);
    client_send(&client, buf_str(&sent));
    client_receive(&client);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(client_take(&client).status, 401);
    assert_int_equal(client_take(&client).status, 200);
    assert_int_equal(gate_calls, 4);
    gate_refuses_at = 0;
    client_close(&client);
    buf_deinit(&sent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_c6_a_request_is_answered_as_if_it_had_come_alone, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_c5_no_other_caller_is_carried_over, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_the_same_at_every_split, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_a_long_row_of_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_the_same_over_many_reads_and_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c6_heads_of_the_same_length_after_a_full_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c5_the_caller_is_carried_over_within_a_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(test_c5_the_gate_is_asked_for_each, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
