/* H6: an id of a session has one spelling. */
#include "modules/chat/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void an_id_is_a_uuid_as_chat_writes_it(void **state)
{
    (void)state;
    static const char *const others[] = {
        "",
        "3f0c8f0e",
        "3F0C8F0E-6C52-4F9F-9D0C-0D5B2A3C1E77",
        "{3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77}",
        "3f0c8f0e6c524f9f9d0c0d5b2a3c1e77",
        "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e7",
        "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77 ",
        "3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e7g",
    };
    assert_true(chat_owner_is_id(STR("3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77")));
    assert_false(chat_owner_is_id(STR_NONE));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(chat_owner_is_id(str_from(others[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_id_is_a_uuid_as_chat_writes_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
