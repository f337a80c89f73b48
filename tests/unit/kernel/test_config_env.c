/* ${NAME} in values: what is filled in, what is left alone, and that it cannot become structure. */
#include <stdlib.h>

#include "config_load.h"
#include "kernel/config_inside.h"

static void expands(const char *raw, const char *expected)
{
    struct arena arena = ARENA(1024);
    struct str out;
    struct buf why = {0};

    if (!config_env_expand(&arena, str_from(raw), &out, &why))
        fail_msg("%s: %.*s", raw, STR_ARG(buf_str(&why)));
    if (!str_eq(out, str_from(expected)))
        fail_msg("%s became %.*s", raw, STR_ARG(out));
    buf_deinit(&why);
    arena_deinit(&arena);
}

static void refuses(const char *raw, const char *reason)
{
    struct arena arena = ARENA(1024);
    struct str out;
    struct buf why = {0};

    assert_false(config_env_expand(&arena, str_from(raw), &out, &why));
    buf_put_char(&why, '\0');
    assert_string_equal(why.data, reason);
    buf_deinit(&why);
    arena_deinit(&arena);
}

static void references_are_filled_in(void **state)
{
    (void)state;
    expands("${T_ONE}", "1");
    expands("a${T_ONE}b${T_ONE}", "a1b1");
    expands("${T_EMPTY}", "");
    expands("${T_EMPTY:x}", ""); /* set counts, even when empty */
    expands("${T_NONE:x}", "x");
    expands("${T_NONE:}", "");
    expands("${T_NONE:jdbc:postgresql://h:5432/db?a=b}", "jdbc:postgresql://h:5432/db?a=b");
    expands("${T_NONE:a}b}", "ab}");
    expands("${T_NESTED}", "${T_ONE}"); /* once only */
}

static void other_dollars_are_left_alone(void **state)
{
    (void)state;
    const char *same[] = {"",
                          "$",
                          "$$",
                          "$1",
                          "a = $1 and b = $2",
                          "$$ select 1 $$",
                          "$tag$ x $tag$",
                          "${",
                          "${}",
                          "${1}",
                          "$${\"a\": 1}$$::jsonb",
                          "$t${\"a\": 1}$t$",
                          "{T_ONE}",
                          "$T_ONE",
                          "$ {T_ONE}"};

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        expands(same[i], same[i]);
    expands("$${T_ONE}", "${T_ONE}");
    expands("$${T_ONE} ${T_ONE}", "${T_ONE} 1");
}

static void what_cannot_be_filled_in_is_refused(void **state)
{
    (void)state;
    refuses("x ${T_NONE}", "the environment has no T_NONE, and ${T_NONE} gives no default");
    refuses("${T_ONE", "${T_ONE has no closing }; for a literal ${ write $${");
    refuses("${T_ONE-x}", "${T_ONE must go on with } or :default}; for a literal ${ write $${");
    refuses("${T_BYTES}", "the environment's T_BYTES is not UTF-8");
}

static void growth_is_bounded(void **state)
{
    (void)state;
    struct buf big = {0};

    for (int i = 0; i < 100000; i++)
        buf_put_char(&big, 'x');
    buf_put_char(&big, '\0');
    setenv("T_BIG", big.data, 1);
    buf_clear(&big);
    for (int i = 0; i < 1000; i++)
        buf_put_str(&big, STR("${T_BIG}"));
    buf_put_char(&big, '\0');
    refuses(big.data, "the environment makes it larger than 4 MiB");
    unsetenv("T_BIG");
    buf_deinit(&big);
}

static void values_take_it_and_keys_do_not(void **state)
{
    (void)state;
    setenv("T_TRICK", "x\n  port: 1\n  color: red # {[", 1);
    struct config *config = loaded_from(sample_sections, "sample:\n"
                                                         "  title: ${T_TRICK}\n"
                                                         "  port: ${T_PORT:7}\n"
                                                         "  enabled: \"${T_NONE:false}\"\n"
                                                         "  listen: [\"${T_ONE}\", b]\n");
    const struct sample *sample = config_section(config, "sample");
    assert_string_equal(sample->title.ptr, "x\n  port: 1\n  color: red # {[");
    assert_int_equal(sample->port, 7);
    assert_int_equal(sample->color, SAMPLE_GREEN);
    assert_false(sample->enabled);
    assert_string_equal(sample->listen.items[0].ptr, "1");
    config_free(config);
    refused("sample:\n  inner: {\"${T_ONE}\": 1}\n",
            "t.yaml:2:11: sample.inner.${T_ONE}: unknown key (known here: depth, label)\n");
}

/* What the environment holds may be a secret, so an error shows the file's text only. */
static void errors_stand_at_the_value_and_tell_nothing(void **state)
{
    (void)state;
    setenv("T_SECRET", "s3cret", 1);
    refused("sample:\n  port: ${T_SECRET}\n  title: a ${T_NONE} b\n",
            "t.yaml:2:9: sample.port: must be a whole number such as 42, not what the environment makes of "
            "'${T_SECRET}'\n"
            "t.yaml:3:10: sample.title: the environment has no T_NONE, and ${T_NONE} gives no default\n");
}

static int set_up(void **state)
{
    (void)state;
    setenv("T_ONE", "1", 1);
    setenv("T_EMPTY", "", 1);
    setenv("T_NESTED", "${T_ONE}", 1);
    setenv("T_BYTES", "a\xFF", 1);
    unsetenv("T_NONE");
    unsetenv("T_PORT");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_are_filled_in),
        cmocka_unit_test(other_dollars_are_left_alone),
        cmocka_unit_test(what_cannot_be_filled_in_is_refused),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(values_take_it_and_keys_do_not),
        cmocka_unit_test(errors_stand_at_the_value_and_tell_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
