/* Accept-Encoding: when gzip is wanted (RFC 9110, 12.5.3). */
#include "harness.h"
#include "http/http_inside.h"

static bool wants(const char *first, const char *second)
{
    struct http_header headers[] = {
        {STR("Accept"), STR("gzip")},
        {STR("Accept-Encoding"), str_from(first)},
        {STR("accept-encoding"), str_from(second ? second : "")},
    };
    return http_encoding_wants_gzip(headers, second ? 3 : 2);
}

static void gzip_is_wanted_where_it_is_named_or_a_star_is(void **state)
{
    (void)state;
    const char *const lists[] = {
        "gzip",
        "GZip",
        "x-gzip",
        "*",
        "br, gzip",
        "gzip;q=1",
        "gzip;q=1.000",
        "gzip;q=1.",
        "gzip;Q=0.001",
        " gzip ; q=0.5 ,",
        ",,gzip",
        "gzip, identity",
        "gzip;q=0.5, identity;q=0.5",
        "br;q=1.0, *;q=0.1",
        "identity;q=0, *",
        "deflate, gzip;q=1.0, *;q=0.5",
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!wants(lists[i], NULL))
            fail_msg("not wanted: %s", lists[i]);
}

static void it_is_not_where_it_is_refused_or_identity_is_preferred(void **state)
{
    (void)state;
    const char *const lists[] = {
        "",
        ",,",
        "br",
        "identity",
        "gzip;q=0",
        "gzip; q=0.000",
        "*;q=0",
        "gzip;q=0, *",
        "gzip;q=0.5, identity",
        "gzip;q=0.5, identity;q=0.501",
        "*;q=0.5, identity;q=0.6",
        "gzip, gzip;q=0", /* the lowest counts */
        "x-gzip;q=0, gzip",
        "agzip",
        "gzipp",
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (wants(lists[i], NULL))
            fail_msg("wanted: %s", lists[i]);
    assert_false(http_encoding_wants_gzip(NULL, 0));
}

static void an_invalid_list_is_ignored_as_a_whole(void **state)
{
    (void)state;
    const char *const lists[] = {
        "gzip, ;q=1",    "gzip;",      "gzip;q",         "gzip;q=",     "gzip;q=2",      "gzip;q=1.001",
        "gzip;q=0.1234", "gzip;q=-1",  "gzip;q=.5",      "gzip;q=1,5;", "gzip;q=01",     "gzip;q=0.x",
        "gzip;x=1",      "gzip;q=1;x", "gzip, br br",    "gzip q=1",    "gzip, \"br\"",  "gzip;q =1",
        "gzip;q= 1",     "gzip, (br)", "gzip, br;level", "gzip; ;q=1",  "gzip\t;q=1\t;", "gzip, br;q=1.1",
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (wants(lists[i], NULL))
            fail_msg("not ignored: %s", lists[i]);
}

static void all_lines_are_one_list(void **state)
{
    (void)state;
    assert_true(wants("br", "gzip"));
    assert_false(wants("gzip", "identity, gzip;q=0.5"));
    assert_false(wants("*", "gzip;q=0"));
    assert_false(wants("gzip", "br;q=9"));
}

static void a_list_has_32_elements_at_most(void **state)
{
    (void)state;
    struct buf list = {0};

    buf_put_str(&list, STR("gzip"));
    for (unsigned i = 1; i < HTTP_ENCODINGS_MAX; i++)
        buf_put_str(&list, STR(",br"));
    buf_put_char(&list, '\0');
    assert_true(wants(list.data, NULL));
    assert_false(wants(list.data, "br"));
    assert_false(wants("br", list.data));
    buf_deinit(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gzip_is_wanted_where_it_is_named_or_a_star_is),
        cmocka_unit_test(it_is_not_where_it_is_refused_or_identity_is_preferred),
        cmocka_unit_test(an_invalid_list_is_ignored_as_a_whole),
        cmocka_unit_test(all_lines_are_one_list),
        cmocka_unit_test(a_list_has_32_elements_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
