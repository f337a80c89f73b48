/* Files that are no YAML, or more of it than we take: each is one line with its place. */
#include "config_load.h"

static void syntax_errors_have_a_place(void **state)
{
    (void)state;
    refused("sample:\n  port: [1\n",
            "t.yaml:3:1: is not valid YAML: did not find expected ',' or ']' (while parsing a "
            "flow sequence from line 2)\n");
    refused("sample:\n  title: a: b\n",
            "t.yaml:2:11: is not valid YAML: mapping values are not allowed in this context; "
            "a value that holds ': ' needs quotes\n");
    refused("sample:\n  title: \"a\n",
            "t.yaml:3:1: is not valid YAML: found unexpected end of stream (while scanning a "
            "quoted scalar from line 2)\n");
    refused("sample:\n  title: @a\n",
            "t.yaml:2:10: is not valid YAML: found character that cannot start any token; a "
            "value that begins so needs quotes\n");
    refused(
        "sample:\n   port: 1\n  color: red\n",
        "t.yaml:3:3: is not valid YAML: did not find expected key; is the line indented like its neighbours? (while "
        "parsing a block mapping from line 1)\n");
    refused(
        "sample:\n  title: *a\n",
        "t.yaml:2:10: is not valid YAML: found undefined alias; a value that begins with * needs quotes\n");
}

static void tabs_do_not_indent(void **state)
{
    (void)state;
    refused("sample:\n\tport: 1\n", "t.yaml:2:1: is not valid YAML: indent with spaces, not tabs\n");
    refused("sample:\n  inner:\n  \tdepth: 1\n",
            "t.yaml:3:3: is not valid YAML: indent with spaces, not tabs\n");
}

static void there_is_one_document(void **state)
{
    (void)state;
    refused("sample: {}\n---\nsample: {}\n",
            "t.yaml:2:1: a second document begins here; a configuration is one document\n");
    refused("---\n---\n", "t.yaml:2:1: a second document begins here; a configuration is one document\n");
    refused("sample: {}\n...\n]\n",
            "t.yaml:3:1: is not valid YAML: did not find expected <document start>\n");
}

static void only_utf8_is_read(void **state)
{
    (void)state;
    refused("sample:\n  title: caf\xE9\n",
            "t.yaml:2:13: is not UTF-8 here (byte 0xE9): save the file as UTF-8\n");
    assert_lines(sample_sections, STR("\xFF\xFEs\0a\0"),
                 "t.yaml:1:1: is not UTF-8 here (byte 0xFF): save the file as UTF-8\n");
    assert_lines(sample_sections, STR("sample:\n  title: a\0b\n"),
                 "t.yaml:2:11: is not valid YAML: control characters are not allowed\n");
    assert_lines(sample_sections, STR("sample: {title: \x07}\n"),
                 "t.yaml:1:17: is not valid YAML: control characters are not allowed\n");
}

/* `head`, then count times `part`: refused with `line`, at once however long it is. */
static void excess(const char *head, const char *part, int count, const char *line)
{
    struct buf yaml = {0};

    buf_put_str(&yaml, str_from(head));
    for (int i = 0; i < count; i++)
        buf_printf(&yaml, part, i);
    assert_lines(sample_sections, buf_str(&yaml), line);
    buf_deinit(&yaml);
}

static void what_costs_libyaml_dearly_is_bounded(void **state)
{
    (void)state;
    excess("", "[", 1000000, "t.yaml:1:65: is nested too deeply (over 64 levels)\n");
    excess("sample: ", "{a: ", 1000000, "t.yaml:1:261: is nested too deeply (over 64 levels)\n");
    excess("", "- ", 1000000, "t.yaml:1:129: is nested too deeply (over 64 levels)\n");
    excess("", "- &a%d x\n", 300000, "t.yaml:1001:3: has too many anchors (over 1000)\n");
    excess("", "- x\n", 1000000, "t.yaml:499998:3: holds too much (over 500000 keys and values)\n");
}

static void size_is_bounded(void **state)
{
    (void)state;
    struct config *config = NULL;
    struct error error = {0};
    struct buf yaml = {0};
    size_t max = (size_t)4 << 20;

    memset(buf_reserve(&yaml, max + 1), '\n', max + 1);
    buf_commit(&yaml, max);
    assert_int_equal(config_load_text("t.yaml", buf_str(&yaml), sample_sections, &config, NULL, &error),
                     STATUS_OK);
    config_free(config);
    buf_commit(&yaml, 1);
    assert_lines(sample_sections, buf_str(&yaml), "t.yaml: is larger than 4 MiB\n");
    buf_deinit(&yaml);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(syntax_errors_have_a_place),
        cmocka_unit_test(tabs_do_not_indent),
        cmocka_unit_test(there_is_one_document),
        cmocka_unit_test(only_utf8_is_read),
        cmocka_unit_test(what_costs_libyaml_dearly_is_bounded),
        cmocka_unit_test(size_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
