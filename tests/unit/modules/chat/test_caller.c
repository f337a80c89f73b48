/* M1: a user is its subject where that is a UUID, else a UUID of tenant and subject that anybody can compute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants those four before it */
#include <cmocka.h>

#include "modules/chat/chat.h"

static void check(struct str tenant, struct str subject, const char *expected)
{
    char user[UUID_TEXT_BYTES];
    chat_user_id(tenant, subject, user);
    assert_string_equal(user, expected);
}

static void test_a_uuid_is_itself(void **state)
{
    (void)state;
    check(STR("demo"), STR("0D3A1F0E-1C52-4F9F-9D0C-0D5B2A3C1E01"), "0d3a1f0e-1c52-4f9f-9d0c-0d5b2a3c1e01");
}

/* Python: uuid5(uuid5(NAMESPACE_OID, tenant), subject) */
static void test_anything_else_is_named(void **state)
{
    (void)state;
    check(STR("demo"), STR("alice"), "1e7207cf-6765-5d99-a294-cc4cf3953ab0");
    check(STR("demo"), STR_NONE, "3da59fb1-aaa0-5a57-9d42-e585b65fadc5");
    check(STR("demoa"), STR("lice"),
          "936a7278-c4e3-5eb7-b412-58cee28aebb2"); /* no matter where one ends and the other begins */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_uuid_is_itself),
        cmocka_unit_test(test_anything_else_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
