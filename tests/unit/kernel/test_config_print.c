/* Help and docs/CONFIG.md, whole: a change in either is seen here first. */
#include "config_load.h"

/* clang-format off */
static const char help_text[] =
    "sample\n"
    "  One of each.\n"
    "\n"
    "  sample.title\n"
    "      text; default untitled; restart needed\n"
    "      A title, with a | in its help.\n"
    "  sample.password\n"
    "      text, 4 to 32 bytes long; default not shown; restart needed\n"
    "      A secret.\n"
    "  sample.enabled\n"
    "      true or false; default true; restart needed\n"
    "      Whether it works at all.\n"
    "  sample.port\n"
    "      whole number, 1 to 65535; default 8080; restart needed\n"
    "      Port.\n"
    "  sample.timeout\n"
    "      duration, 10ms to 1h; default 5s; reloadable\n"
    "      Patience.\n"
    "  sample.cache-size\n"
    "      size, at least 64KiB; default 64MiB; restart needed\n"
    "      Memory.\n"
    "  sample.color\n"
    "      one of red, green, blue; default green; restart needed\n"
    "      Paint.\n"
    "  sample.listen\n"
    "      list, 1 to 4 entries long; default 127.0.0.1:8080; restart needed\n"
    "      Where to listen.\n"
    "  sample.inner\n"
    "      object\n"
    "      A part.\n"
    "  sample.inner.depth\n"
    "      whole number, 1 to 64; default 3; restart needed\n"
    "      How deep.\n"
    "  sample.inner.label\n"
    "      text; default none; reloadable\n"
    "      What it is called.\n"
    "  sample.spare\n"
    "      object\n"
    "      A part that may be left out.\n"
    "  sample.spare.depth\n"
    "      whole number, 1 to 64; required; restart needed\n"
    "      How deep.\n"
    "  sample.spare.label\n"
    "      text; default spare; restart needed\n"
    "      What it is called.\n"
    "  sample.rules[]\n"
    "      list of objects; empty; restart needed\n"
    "      Rules.\n"
    "  sample.rules[].path\n"
    "      text, 1 to 16 bytes long; required; restart needed\n"
    "      Which path.\n"
    "  sample.rules[].weight\n"
    "      whole number, at most 100; default 1; restart needed\n"
    "      How much it counts.\n"
    "  sample.rules[].methods\n"
    "      list, 1 to 3 entries long; default [GET, HEAD]; restart needed\n"
    "      Which methods.\n";

static const char page_text[] =
    "# Configuration\n"
    "\n"
    "<!-- Printed by `freshet config --markdown` from the settings tables: change those. -->\n"
    "\n"
    "One YAML file. `${NAME}` and `${NAME:default}` in a value come from the environment; "
    "`$${NAME}` is the text `${NAME}`. Durations are `250ms`, `1s`, `5m`, `1h`, `30d` (a bare "
    "number is milliseconds), sizes `64KiB`, `8MiB`, `1GiB` (a bare number is bytes). A list of one "
    "may stand without its dash. \"Reload\" settings change on SIGHUP or when the file changes, the "
    "others need a restart.\n"
    "\n"
    "## `sample`\n"
    "\n"
    "One of each.\n"
    "\n"
    "| setting | type | default | bounds | change | meaning |\n"
    "|---|---|---|---|---|---|\n"
    "| `sample.title` | text | `untitled` |  | restart | A title, with a \\| in its help. |\n"
    "| `sample.password` | text | not shown | 4 to 32 bytes long | restart | A secret. |\n"
    "| `sample.enabled` | true or false | `true` |  | restart | Whether it works at all. |\n"
    "| `sample.port` | whole number | `8080` | 1 to 65535 | restart | Port. |\n"
    "| `sample.timeout` | duration | `5s` | 10ms to 1h | reload | Patience. |\n"
    "| `sample.cache-size` | size | `64MiB` | at least 64KiB | restart | Memory. |\n"
    "| `sample.color` | one of red, green, blue | `green` |  | restart | Paint. |\n"
    "| `sample.listen` | list | `127.0.0.1:8080` | 1 to 4 entries long | restart | Where to listen. "
    "|\n"
    "| `sample.inner` | object |  |  |  | A part. |\n"
    "| `sample.inner.depth` | whole number | `3` | 1 to 64 | restart | How deep. |\n"
    "| `sample.inner.label` | text | `none` |  | reload | What it is called. |\n"
    "| `sample.spare` | object |  |  |  | A part that may be left out. |\n"
    "| `sample.spare.depth` | whole number | required | 1 to 64 | restart | How deep. |\n"
    "| `sample.spare.label` | text | `spare` |  | restart | What it is called. |\n"
    "| `sample.rules[]` | list of objects | empty |  | restart | Rules. |\n"
    "| `sample.rules[].path` | text | required | 1 to 16 bytes long | restart | Which path. |\n"
    "| `sample.rules[].weight` | whole number | `1` | at most 100 | restart | How much it counts. |\n"
    "| `sample.rules[].methods` | list | `[GET, HEAD]` | 1 to 3 entries long | restart | Which "
    "methods. |\n";
/* clang-format on */

static void prints(void (*print)(const struct config_section *sections, struct buf *out),
                   const char *expected)
{
    struct buf out = {0};

    print(sample_sections, &out);
    assert_null(memmem(out.data, out.end, "hunter2", 7)); /* the secret's default */
    buf_put_char(&out, '\0');
    assert_string_equal(out.data, expected);
    buf_deinit(&out);
}

static void help_for_a_terminal(void **state)
{
    (void)state;
    prints(config_print_help, help_text);
}

static void a_page_of_markdown(void **state)
{
    (void)state;
    prints(config_print_markdown, page_text);
}

static void long_help_is_wrapped(void **state)
{
    (void)state;
    static const struct setting_row rows[] = {
        {"wordy", SETTING_BOOL, .offset = 0,
         "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
         "eighteen.",
         "true"},
        {0},
    };
    static const struct config_section sections[] = {{"s", "Help.", rows, 1}, {0}};
    struct buf out = {0};

    config_print_help(sections, &out);
    buf_put_char(&out, '\0');
    assert_string_equal(out.data,
                        "s\n  Help.\n\n  s.wordy\n      true or false; default true; restart needed\n"
                        "      One two three four five six seven eight nine ten eleven twelve thirteen "
                        "fourteen fifteen\n      sixteen seventeen eighteen.\n");
    buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_for_a_terminal),
        cmocka_unit_test(a_page_of_markdown),
        cmocka_unit_test(long_help_is_wrapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
