/* M2: a message's keywords choose its agent, the same way each time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants those four before it */
#include <cmocka.h>

#include "modules/chat/chat.h"

static struct arena arena;

static struct str of_billing[] = {{"invoice", 7}, {"Refund", 6}, {"счёт", 8}, {"C++", 3}};
static struct str of_support[] = {{"broken", 6}, {"error", 5}};
static struct str of_japan[] = {{"請求書", 9}};
static struct chat_agent agents[] = {
    {.name = {"billing", 7}, .keywords = {of_billing, 4}},
    {.name = {"support", 7}, .keywords = {of_support, 2}},
    {.name = {"japan", 5}, .keywords = {of_japan, 1}},
    {.name = {"nobody", 6}},
};
static struct chat_settings settings = {.agents = {.items = agents, .count = 4}};

static void check(const char *content, const char *name, int64_t score)
{
    struct chat_choice choice = chat_agent_choose(&settings, str_from(content), &arena);
    assert_int_equal(choice.score, score);
    assert_string_equal(choice.agent->name.ptr, name);
}

static void test_the_highest_share_of_keywords_wins(void **state)
{
    (void)state;
    check("my invoice", "billing", 250);
    check("refund of an invoice", "billing", 500);
    check("the invoice has an error", "support", 500);
    check("an error: broken", "support", 1000);
    check("error error error", "support", 500);
}

static void test_of_equals_the_first_in_the_file(void **state)
{
    (void)state;
    check("an invoice, a refund; broken", "billing", 500);
}

static void test_case_does_not_matter_in_any_of_the_scripts(void **state)
{
    (void)state;
    check("INVOICE", "billing", 250);
    check("refund", "billing", 250);
    check("СЧЁТ", "billing", 250);
    check("Счёт на оплату", "billing", 250);
}

static void test_words_end_where_latin_ones_do(void **state)
{
    (void)state;
    check("invoices", "assistant", 0);
    check("preinvoice", "assistant", 0);
    check("invoice_2", "assistant", 0);
    check("(invoice)", "billing", 250);
    check("terror, then error", "support", 500); /* the first is none, the second is */
    check("I write c++!", "billing", 250);
    check("c++20", "billing", 250); /* it does not end with a letter */
    check("по счётам", "billing", 250);
    check("この請求書を見て", "japan", 1000);
}

static void test_without_a_keyword_it_is_the_default(void **state)
{
    (void)state;
    check("hello", "assistant", 0);
    check("\xff\xfe broken bytes are no words", "support", 500);
    settings.default_agent = STR("nobody");
    check("hello", "nobody", 0);
    settings.default_agent = STR_NONE;
    const struct chat_settings none = {.agents = {.count = 0}};
    assert_string_equal(chat_agent_choose(&none, STR("hello"), &arena).agent->name.ptr, "assistant");
}

static void filled(const char *reply, const char *content, size_t max, const char *expected)
{
    assert_string_equal(chat_agent_fill(str_from(reply), str_from(content), max, &arena).ptr, expected);
}

static void test_templates(void **state)
{
    (void)state;
    filled("{content}", "hi", 100, "hi");
    filled("a {content} b {content}", "{content}", 100, "a {content} b {content}");
    filled("no mark", "hi", 100, "no mark");
    filled("{content", "hi", 100, "{content");
    filled("{content}{content}", "жж", 5, "жж"); /* no half a letter */
    filled("{content}", "", 5, "");
}

static int setup(void **state)
{
    (void)state;
    arena = ARENA(1024);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_deinit(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_highest_share_of_keywords_wins),
        cmocka_unit_test(test_of_equals_the_first_in_the_file),
        cmocka_unit_test(test_case_does_not_matter_in_any_of_the_scripts),
        cmocka_unit_test(test_words_end_where_latin_ones_do),
        cmocka_unit_test(test_without_a_keyword_it_is_the_default),
        cmocka_unit_test(test_templates),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
