/* Mistakes in a table are found without a file. */
#include "config_load.h"
#include "kernel/config_inside.h"

static void mistake(struct setting_row row, const char *expected)
{
    struct setting_row rows[] = {row, {0}};
    struct buf why = {0};

    bool right = config_check(rows, &why);
    buf_put_char(&why, '\0');
    assert_string_equal(why.data, expected);
    assert_int_equal(right, expected[0] == '\0');
    buf_deinit(&why);
}

#define ROW(...) ((struct setting_row){.name = "x", .help = "h", __VA_ARGS__})

static void defaults_must_be_values(void **state)
{
    (void)state;
    static const char *const choices[] = {"a", NULL};

    mistake(ROW(.type = SETTING_INT, .fallback = "5"), "");
    mistake(ROW(.type = SETTING_INT, .fallback = "", .min = 1, .max = 2), "");
    mistake(ROW(.type = SETTING_INT, .fallback = "5s"), "x: its fallback is not a value it accepts");
    mistake(ROW(.type = SETTING_INT, .fallback = "5", .min = 6, .max = 7),
            "x: its fallback is not a value it accepts");
    mistake(ROW(.type = SETTING_SIZE, .fallback = "5MB"), "x: its fallback is not a value it accepts");
    mistake(ROW(.type = SETTING_ENUM, .fallback = "b", .choices = choices),
            "x: its fallback is not a value it accepts");
    mistake(ROW(.type = SETTING_STRING, .fallback = "abc", .min = 4, .max = 5),
            "x: its fallback is out of its bounds");
    mistake(ROW(.type = SETTING_STRING_LIST, .fallback = "[a, b]", .min = 1, .max = 1),
            "x: its fallback is out of its bounds");
    mistake(ROW(.type = SETTING_OBJECT_LIST, .fallback = "[]", .rows = (struct setting_row[]){{0}},
                .element_bytes = 1),
            "x: its fallback can only be NULL or empty");
}

static void rows_must_be_whole(void **state)
{
    (void)state;
    struct setting_row inner[] = {{.name = "y", .type = SETTING_INT, .help = "h", .min = 2, .max = 1}, {0}};

    mistake((struct setting_row){.name = "x", .type = SETTING_INT}, "x: it has no help");
    mistake((struct setting_row){.name = "", .type = SETTING_INT, .help = "h"}, ": it has no name");
    mistake(ROW(.type = SETTING_ENUM), "x: an ENUM needs choices");
    mistake(ROW(.type = SETTING_OBJECT), "x: an object needs rows");
    mistake(ROW(.type = SETTING_OBJECT_LIST, .rows = inner), "x: an OBJECT_LIST needs element_bytes");
    mistake(ROW(.type = SETTING_OBJECT, .rows = inner), "y: min is above max");
    mistake(ROW(.type = SETTING_STRING, .min = -1, .max = 1), "x: a length cannot be below 0");
}

static void names_stand_once(void **state)
{
    (void)state;
    struct setting_row rows[] = {ROW(.type = SETTING_INT), ROW(.type = SETTING_BOOL), {0}};
    struct buf why = {0};

    assert_false(config_check(rows, &why));
    assert_true(str_eq(buf_str(&why), STR("x: the name stands twice in its table")));
    buf_deinit(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_must_be_values),
        cmocka_unit_test(rows_must_be_whole),
        cmocka_unit_test(names_stand_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
