/* The router: literal before parameter, raw segments, methods, and tables that contradict themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "http/http_inside.h"

static void handler(struct http_request *request)
{
    (void)request;
}

#define ROW(m, p)                                         \
    {                                                     \
        .method = HTTP_##m, .path = p, .handler = handler \
    }

static const struct http_route table[] = {
    ROW(GET, "/"),
    ROW(GET, "/v1/tenants/{tenantId}/dictionaries/{dictCode}/items"),
    ROW(GET, "/v1/tenants/{tenantId}/dictionaries/{dictCode}/items/{key}"),
    ROW(POST, "/v1/tenants/{tenantId}/updates"),
    ROW(GET, "/v1/tenants/{tenantId}/updates/{eventId}"),
    ROW(GET, "/a/{x}/c"),
    ROW(GET, "/a/b/d"),
    ROW(POST, "/i/search"),
    ROW(GET, "/i/{id}"),
    ROW(GET, "/j/first"),
    ROW(GET, "/j/{id}"),
    ROW(GET, "/q/b/x"),
    ROW(GET, "/q/{p}/{y}"),
    {0},
};

static struct http_router *build(const struct http_route *routes)
{
    struct error error;
    struct http_router *router = http_router_create();
    assert_int_equal(http_router_add(router, routes, NULL, &error), STATUS_OK);
    return router;
}

static void expect(const struct http_router *router, enum http_method method, const char *path,
                   const char *row, unsigned allowed)
{
    struct str params[HTTP_PARAMS_MAX];
    unsigned found_allowed;
    struct http_way way = {0};
    struct http_entry *entry = http_router_find(router, method, str_from(path), params, &way, &found_allowed);

    if (!row) {
        assert_null(entry);
        assert_int_equal(found_allowed, allowed);
        return;
    }
    assert_non_null(entry);
    assert_string_equal(entry->route->path, row);
}

#define BIT(m) (1u << HTTP_##m)

static void test_finds_the_row_of_a_path(void **state)
{
    (void)state;
    struct http_router *router = build(table);
    expect(router, HTTP_GET, "/", "/", 0);
    expect(router, HTTP_HEAD, "/", "/", 0);
    expect(router, HTTP_GET, "/v1/tenants/t/dictionaries/d/items/k", table[2].path, 0);
    expect(router, HTTP_GET, "/v1/tenants/t/dictionaries/d/items", table[1].path, 0);
    expect(router, HTTP_GET, "/v1/tenants/t/dictionaries/d/items/k/x", NULL, 0);
    expect(router, HTTP_GET, "/v1/tenants//dictionaries/d/items/k", NULL, 0);
    expect(router, HTTP_GET, "/v1/tenants/t/dictionaries/d/items/", NULL, 0);
    expect(router, HTTP_GET, "//", NULL, 0);
    expect(router, HTTP_GET, "/V1/tenants/t/updates/1", NULL, 0);
    http_router_destroy(router);
}

static void test_a_literal_goes_first_and_gives_way(void **state)
{
    (void)state;
    struct http_router *router = build(table);
    expect(router, HTTP_GET, "/a/b/d", "/a/b/d", 0);
    expect(router, HTTP_GET, "/a/b/c", "/a/{x}/c", 0);
    expect(router, HTTP_GET, "/i/search", "/i/{id}", 0);
    expect(router, HTTP_POST, "/i/search", "/i/search", 0);
    http_router_destroy(router);
}

static void test_c6_tells_what_a_path_takes(void **state)
{
    (void)state;
    struct http_router *router = build(table);
    expect(router, HTTP_GET, "/v1/tenants/t/updates", NULL, BIT(POST) | BIT(OPTIONS));
    expect(router, HTTP_OPTIONS, "/v1/tenants/t/updates", NULL, BIT(POST) | BIT(OPTIONS));
    expect(router, HTTP_PUT, "/i/search", NULL, BIT(POST) | BIT(GET) | BIT(HEAD) | BIT(OPTIONS));
    http_router_destroy(router);
}

static void test_parameters_are_raw_segments_in_order(void **state)
{
    (void)state;
    struct http_router *router = build(table);
    struct str params[HTTP_PARAMS_MAX];
    unsigned allowed;
    struct http_way way = {0};
    struct http_entry *entry = http_router_find(
        router, HTTP_GET, STR("/v1/tenants/t/dictionaries/d/items/a%2Fb"), params, &way, &allowed);
    assert_non_null(entry);
    assert_int_equal(entry->param_count, 3);
    assert_true(str_eq(entry->param_names[2], STR("key")));
    assert_true(str_eq(params[0], STR("t")));
    assert_true(str_eq(params[1], STR("d")));
    assert_true(str_eq(params[2], STR("a%2Fb")));
    http_router_destroy(router);
}

/* A row that the request before has led to must be the one that the table says, and so must its parameters. */
static void test_the_way_of_an_earlier_request_changes_nothing(void **state)
{
    (void)state;
    static const char *const paths[] = {
        "/",
        "/a/b/c",
        "/a/b/d",
        "/a/x/c",
        "/a/x/d",
        "/a/",
        "/i/1",
        "/i/22",
        "/i/",
        "/i/search",
        "/i/1/2",
        "/v1/tenants/t/dictionaries/d/items/k1",
        "/v1/tenants/t/dictionaries/d/items/another",
        "/v1/tenants/t/dictionaries/d/items/",
        "/v1/tenants/t/dictionaries/d/items/k/1",
        "/v1/tenants/t/dictionaries/e/items/k1",
        "/v1/tenants/u/dictionaries/d/items/k1",
        "/v1/tenants/t/dictionaries/d/items",
        "/v1/tenants/t/updates/e",
        "/v1/tenants/t/updates",
        "/j/1",
        "/j/first",
        "/q/b/1",
        "/q/b/x",
        "/q/c/x",
    };
    static const enum http_method methods[] = {HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_PUT};
    const size_t count = sizeof paths / sizeof *paths, all = 4 * count;
    struct http_router *router = build(table);
    for (size_t pair = 0; pair < all * all; pair++) {
        size_t first = pair % all, second = pair / all;
        struct str params[HTTP_PARAMS_MAX] = {0}, fresh_params[HTTP_PARAMS_MAX] = {0};
        struct http_way way = {0}, none = {0};
        unsigned allowed = 0, fresh_allowed = 0;
        (void)http_router_find(router, methods[first / count], str_from(paths[first % count]), params, &way,
                               &allowed);
        struct str path = str_from(paths[second % count]);
        enum http_method method = methods[second / count];
        struct http_entry *entry = http_router_find(router, method, path, params, &way, &allowed);
        assert_ptr_equal(entry, http_router_find(router, method, path, fresh_params, &none, &fresh_allowed));
        for (unsigned i = 0; entry && i < entry->param_count; i++)
            assert_true(str_eq(params[i], fresh_params[i]));
        if (!entry)
            assert_int_equal(allowed, fresh_allowed);
    }
    http_router_destroy(router);
}

static void test_bad_tables_are_refused(void **state)
{
    (void)state;
    static const struct http_route bad[][3] = {
        {ROW(GET, "/x/{a}"), ROW(GET, "/x/{b}")},
        {ROW(GET, "x")},
        {ROW(GET, "")},
        {ROW(GET, "/x/")},
        {ROW(GET, "/x//y")},
        {ROW(GET, "/x?y")},
        {ROW(GET, "/x/{}")},
        {ROW(GET, "/x/{a")},
        {ROW(GET, "/%41")},
        {ROW(HEAD, "/x")},
        {ROW(OPTIONS, "/x")},
        {{.method = HTTP_GET, .path = "/x/{a}", .handler = handler, .tenant_param = "b"}},
        {ROW(GET, "/{a}/{b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}")},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error error;
        struct http_router *router = http_router_create();
        assert_int_equal(http_router_add(router, bad[i], NULL, &error), STATUS_CONFIG);
        http_router_destroy(router);
    }
}

static void nearest(const struct http_router *router, const char *path, const char *row)
{
    const struct http_route *found = http_router_nearest(router, str_from(path));
    if (!row) {
        assert_null(found);
        return;
    }
    assert_non_null(found);
    assert_string_equal(found->path, row);
}

/* C4: whose errors a path without a row has. */
static void test_finds_the_row_nearest_to_a_path(void **state)
{
    (void)state;
    struct http_router *router = build(table);
    nearest(router, "/v1/tenants/t/updates", "/v1/tenants/{tenantId}/updates");
    nearest(router, "/v1/tenants/t/updates/e/more/and/more", "/v1/tenants/{tenantId}/updates/{eventId}");
    nearest(router, "/v1/tenants/t/updates/", "/v1/tenants/{tenantId}/updates");
    nearest(router, "/v1/tenants/t", NULL);
    nearest(router, "/v1/unknown", NULL);
    nearest(router, "/", NULL);
    nearest(router, "//", NULL);
    nearest(router, "*", NULL);
    nearest(router, "", NULL);
    http_router_destroy(router);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_row_of_a_path),
        cmocka_unit_test(test_a_literal_goes_first_and_gives_way),
        cmocka_unit_test(test_c6_tells_what_a_path_takes),
        cmocka_unit_test(test_parameters_are_raw_segments_in_order),
        cmocka_unit_test(test_the_way_of_an_earlier_request_changes_nothing),
        cmocka_unit_test(test_bad_tables_are_refused),
        cmocka_unit_test(test_finds_the_row_nearest_to_a_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
