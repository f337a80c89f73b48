/* Text for manual pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/roff.h"

typedef void put_fn(struct buf *out, struct str text);

static void expect(put_fn *put, const char *text, const char *wanted)
{
    struct buf out = {0};
    put(&out, str_from(text));
    buf_put_char(&out, '\0');
    assert_string_equal(buf_str(&out).ptr, wanted);
    buf_deinit(&out);
}

static void what_means_something_to_roff_is_escaped(void **state)
{
    (void)state;
    expect(roff_put_line, "--all \\n it's", "\\-\\-all \\en it\\(aqs");
    expect(roff_put_line, ".TH is text", "\\&.TH is text");
    expect(roff_put_line, "'x", "\\(aqx");
    expect(roff_put_line, "KEY… ä 😀", "KEY\\[u2026] \\[u00E4] \\[u1F600]");
    expect(roff_put_line, "\xFF", "?");
}

static void backquoted_words_are_bold(void **state)
{
    (void)state;
    expect(roff_put_line, "run `freshet -x` now", "run \\fBfreshet \\-x\\fR now");
    expect(roff_put_line, "`open", "\\fBopen\\fR");
    expect(roff_put_bold, "a`b", "\\fBa`b\\fR");
}

static void paragraphs_and_examples_are_kept_apart(void **state)
{
    (void)state;
    expect(roff_put_text, "one\ntwo", "one\ntwo\n");
    expect(roff_put_text, "one\n\ntwo", "one\n.PP\ntwo\n");
    expect(roff_put_text, "one\n\n  a b\n  c\n\ntwo", "one\n.PP\n.RS 4\n.nf\na b\nc\n.fi\n.RE\n.PP\ntwo\n");
    expect(roff_put_text, "one\n  a", "one\n.PP\n.RS 4\n.nf\na\n.fi\n.RE\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_means_something_to_roff_is_escaped),
        cmocka_unit_test(backquoted_words_are_bold),
        cmocka_unit_test(paragraphs_and_examples_are_kept_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
