/* Places inside texts: the position that PostgreSQL or the SQL compiler names, as a line and column of the file. */
#include <stdlib.h>

#include "config_load.h"
#include "kernel/config_inside.h"

/* `needle` in the title has to be found at line and column of the file. */
static void stands_at(const char *yaml, const char *needle, unsigned line, unsigned column)
{
    struct config *config = loaded_from(sample_sections, yaml);
    const struct sample *sample = config_section(config, "sample");
    const char *at = strstr(sample->title.ptr, needle);

    assert_non_null(at);
    struct setting_place place =
        config_place_in_text(config, sample->title_place, sample->title, (size_t)(at - sample->title.ptr));
    if (place.line != line || place.column != column)
        fail_msg("'%s' is at %u:%u, not %u:%u", needle, place.line, place.column, line, column);
    config_free(config);
}

static void in_a_literal_block(void **state)
{
    (void)state;
    const char *yaml = "sample:\n"
                       "  title: |\n"
                       "\n"
                       "    select code as k,\n"
                       "           name as v\n"
                       "\n"
                       "    where \u0416 = :tenant and x\n"
                       "  port: 1\n";

    stands_at(yaml, "select", 4, 5);
    stands_at(yaml, "code", 4, 12);
    stands_at(yaml, "name", 5, 12);
    stands_at(yaml, "v\n", 5, 20);
    stands_at(yaml, ":tenant", 7, 15); /* columns count characters */
    stands_at(yaml, "x", 7, 27);
}

static void whatever_the_blocks_header_is(void **state)
{
    (void)state;
    stands_at("sample:\n  title: |-  # why\n    a\n     b\n", "b", 4, 6);
    stands_at("sample:\n  title: |2\n      a\n    b\n", "b", 4, 5);
    stands_at("sample:\n  title: &x |\n    a\n    b\n", "b", 4, 5);
    stands_at("sample:\n  title: !!str\n    |\n    a\n    b\n", "b", 5, 5);
    stands_at("sample:\r\n  title: |\r\n    a\r\n    b\r\n", "b", 4, 5);
    stands_at("\xEF\xBB\xBFsample: {title: ab}", "b", 1, 18);
}

static void in_folded_and_plain_text(void **state)
{
    (void)state;
    stands_at("sample:\n  title: >\n    select a\n    from b\n\n\n    where c\n", "from", 4, 5);
    stands_at("sample:\n  title: >\n    select a\n    from b\n\n\n    where c\n", "where", 7, 5);
    stands_at("sample:\n  title: select a\n    from b\n", "a", 2, 17);
    stands_at("sample:\n  title: select a\n    from b\n", "b", 3, 10);
}

static void quoted_text_has_the_place_of_its_value(void **state)
{
    (void)state;
    stands_at("sample:\n  title: \"a \\n b\"\n", "b", 2, 10);
    stands_at("sample:\n  title: 'a '' b'\n", "b", 2, 10);
}

static void behind_the_environment_it_is_where_that_begins(void **state)
{
    (void)state;
    setenv("T_TABLE", "big_table\nx", 1);
    stands_at("sample:\n  title: |\n    from ${T_TABLE} where\n", "from", 3, 5);
    stands_at("sample:\n  title: |\n    from ${T_TABLE} where\n", "big", 3, 10);
    stands_at("sample:\n  title: |\n    from ${T_TABLE} where\n", "where", 3, 10);
}

static void at_the_ends(void **state)
{
    (void)state;
    struct config *config = loaded_from(sample_sections, "sample:\n  title: |\n    ab\n    cd\n  port: 1\n");
    const struct sample *sample = config_section(config, "sample");
    struct setting_place place = config_place_in_text(config, sample->title_place, sample->title, 1000);

    assert_int_equal(place.line, 4);
    assert_int_equal(place.column, 7); /* just behind the last character */
    place = config_place_in_text(config, (struct setting_place){0}, STR("abc"), 1);
    assert_int_equal(place.line, 0); /* a default has no place */
    config_free(config);
}

static void bytes_and_places_agree(void **state)
{
    (void)state;
    struct str source = STR("a\u0416b\nc\r\nd\re\u2028f\xC2\x85"
                            "g");

    for (size_t at = 0; at < source.len; at += str_utf8_char(str_of(source.ptr + at, source.len - at)))
        if ((unsigned char)source.ptr[at] > 0x20)
            assert_int_equal(config_place_byte(source, config_place_at(source, at)), at);
    assert_int_equal(config_place_at(source, source.len - 1).line, 6);
    assert_int_equal(config_place_byte(source, (struct setting_place){99, 1}), source.len);
    assert_int_equal(config_place_byte(source, (struct setting_place){1, 99}),
                     4); /* no further than its line */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_a_literal_block),
        cmocka_unit_test(whatever_the_blocks_header_is),
        cmocka_unit_test(in_folded_and_plain_text),
        cmocka_unit_test(quoted_text_has_the_place_of_its_value),
        cmocka_unit_test(behind_the_environment_it_is_where_that_begins),
        cmocka_unit_test(at_the_ends),
        cmocka_unit_test(bytes_and_places_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
