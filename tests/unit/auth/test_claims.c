/* C5: exp, nbf, iss, aud are checked; tenant, subject and scopes are read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "auth/jose.h"

#define NOW_S INT64_C(1700000000)
#define EXP "\"exp\":1700000060"

static struct arena arena;
static struct auth_checks checks = {.leeway_us = 5000000, .tenant_claim = {"tenant_id", 9}};

static enum auth_reason check(const char *payload, struct auth_claims *claims)
{
    return auth_claims_check(str_from(payload), &checks, NOW_S * 1000000, &arena, claims);
}

static void check_rows(const char *const *rows, enum auth_reason wanted)
{
    struct auth_claims claims;
    for (; *rows; rows++) {
        enum auth_reason reason = check(*rows, &claims);
        if (reason != wanted)
            fail_msg("%s: %s", *rows, auth_reason_label(reason));
    }
}

static void exp_is_required_a_number_and_in_range(void **state)
{
    (void)state;
    static const char *const BAD[] = {"{}",
                                      "{\"exp\":\"1700000060\"}",
                                      "{\"exp\":null}",
                                      "{\"exp\":true}",
                                      "{\"exp\":[1700000060]}",
                                      "{\"exp\":{}}",
                                      "{\"exp\":NaN}",
                                      "{\"exp\":Infinity}",
                                      "{\"exp\":1e999}",
                                      "{\"exp\":-1}",
                                      "{\"exp\":-1700000060}",
                                      "{\"exp\":1700000060000}",
                                      "{\"exp\":99999999999999999999999999}",
                                      "{\"exp\":0x7fffffff}",
                                      "{\"exp\":+1700000060}",
                                      "{\"exp\":01700000060}",
                                      "{" EXP "," EXP "}",
                                      "{" EXP ",\"\\u0065xp\":1}",
                                      "{" EXP ",\"nbf\":\"1\"}",
                                      "{" EXP ",\"iat\":\"1\"}",
                                      "{" EXP ",\"nbf\":1e999}",
                                      "[" EXP "]",
                                      "[]",
                                      "7",
                                      "",
                                      "{" EXP "}x",
                                      "{" EXP ",\"a\":\"\\ud800\"}",
                                      "{" EXP ",\"a\":\"\xc3\"}",
                                      NULL};
    static const char *const GOOD[] = {"{" EXP "}",
                                       "{\"exp\":1700000000.5}",
                                       "{\"exp\":1.70000006e9}",
                                       "{\"exp\":253402300799}",
                                       "{" EXP ",\"nbf\":1700000000,\"iat\":1700000000.25}",
                                       " {\"exp\" : 1700000060 }\n",
                                       NULL};
    static const char *const EXPIRED[] = {"{\"exp\":0}",
                                          "{\"exp\":1700000000}",
                                          "{\"exp\":1699999999.999}",
                                          "{\"exp\":-0}",
                                          "{\"exp\":1699999999,\"nbf\":1800000000}",
                                          NULL};
    check_rows(BAD, AUTH_REASON_CLAIMS);
    check_rows(GOOD, AUTH_REASON_VALID);
    check_rows(EXPIRED, AUTH_REASON_EXPIRED);
}

static void leeway_is_for_nbf_and_never_for_exp(void **state)
{
    (void)state;
    static const char *const GOOD[] = {"{" EXP ",\"nbf\":1700000005}", NULL};
    static const char *const EARLY[] = {"{" EXP ",\"nbf\":1700000006}", "{" EXP ",\"nbf\":1700000005.001}",
                                        NULL};
    static const char *const LATE[] = {"{\"exp\":1699999999}", NULL};
    check_rows(GOOD, AUTH_REASON_VALID);
    check_rows(EARLY, AUTH_REASON_NOT_YET);
    check_rows(LATE, AUTH_REASON_EXPIRED);
}

static void json_that_is_too_deep_is_refused(void **state)
{
    (void)state;
    struct buf text = {0};
    struct auth_claims claims;

    buf_printf(&text, "{" EXP ",\"a\":");
    for (int i = 0; i < 1000; i++)
        buf_put_char(&text, '[');
    for (int i = 0; i < 1000; i++)
        buf_put_char(&text, ']');
    buf_printf(&text, "}%c", '\0');
    assert_int_equal(check(text.data, &claims), AUTH_REASON_CLAIMS);
    buf_deinit(&text);
}

static void issuer_must_be_the_configured_one(void **state)
{
    (void)state;
    static const char *const GOOD[] = {"{" EXP ",\"iss\":\"https://id.example\"}",
                                       "{" EXP ",\"iss\":\"https:\\/\\/id.example\"}", NULL};
    static const char *const BAD[] = {"{" EXP "}",
                                      "{" EXP ",\"iss\":\"https://id.example/\"}",
                                      "{" EXP ",\"iss\":[\"https://id.example\"]}",
                                      "{" EXP ",\"iss\":null}",
                                      "{" EXP ",\"iss\":\"\"}",
                                      "{" EXP ",\"iss\":\"HTTPS://id.example\"}",
                                      NULL};
    checks.issuer = STR("https://id.example");
    check_rows(GOOD, AUTH_REASON_VALID);
    check_rows(BAD, AUTH_REASON_ISSUER);
    checks.issuer = STR_NONE;
}

static void one_audience_must_be_ours(void **state)
{
    (void)state;
    static struct str ours[] = {{"freshet", 7}, {"other", 5}};
    static const char *const GOOD[] = {"{" EXP ",\"aud\":\"freshet\"}", "{" EXP ",\"aud\":[\"x\",\"other\"]}",
                                       NULL};
    static const char *const BAD[] = {"{" EXP "}",
                                      "{" EXP ",\"aud\":\"fresh\"}",
                                      "{" EXP ",\"aud\":[]}",
                                      "{" EXP ",\"aud\":\"\"}",
                                      "{" EXP ",\"aud\":[\"freshet2\"]}",
                                      NULL};
    static const char *const BENT[] = {
        "{" EXP ",\"aud\":7}",    "{" EXP ",\"aud\":{\"freshet\":1}}", "{" EXP ",\"aud\":[\"freshet\",7]}",
        "{" EXP ",\"aud\":null}", "{" EXP ",\"aud\":[[\"freshet\"]]}", NULL};
    checks.audiences = (struct setting_strings){ours, 2};
    check_rows(GOOD, AUTH_REASON_VALID);
    check_rows(BAD, AUTH_REASON_AUDIENCE);
    check_rows(BENT, AUTH_REASON_CLAIMS);
    checks.audiences = (struct setting_strings){0};
}

static void a_tenant_is_a_name_or_none_at_all(void **state)
{
    (void)state;
    struct auth_claims claims;
    static const char *const NONE[] = {"{" EXP "}",
                                       "{" EXP ",\"tenant_id\":7}",
                                       "{" EXP ",\"tenant_id\":\"\"}",
                                       "{" EXP ",\"tenant_id\":\"a/b\"}",
                                       "{" EXP ",\"tenant_id\":\"a b\"}",
                                       "{" EXP ",\"tenant_id\":\"acme\\u0000\"}",
                                       "{" EXP ",\"tenant_id\":[\"acme\"]}",
                                       "{" EXP ",\"Tenant_id\":\"acme\"}",
                                       NULL};
    for (const char *const *row = NONE; *row; row++) {
        assert_int_equal(check(*row, &claims), AUTH_REASON_VALID);
        assert_int_equal(claims.tenant.len, 0);
    }
    assert_int_equal(check("{" EXP ",\"tenant_id\":\"acme\"}", &claims), AUTH_REASON_VALID);
    assert_true(str_eq(claims.tenant, STR("acme")));
    checks.tenant_claim = STR("https://x/tenant");
    assert_int_equal(check("{" EXP ",\"tenant_id\":\"acme\",\"https://x/tenant\":\"t2\"}", &claims),
                     AUTH_REASON_VALID);
    assert_true(str_eq(claims.tenant, STR("t2")));
    checks.tenant_claim = STR("tenant_id");
}

static void a_subject_is_bounded_text(void **state)
{
    (void)state;
    struct auth_claims claims;
    struct buf text = {0};
    static const char *const BAD[] = {"{" EXP ",\"sub\":7}",
                                      "{" EXP ",\"sub\":\"\"}",
                                      "{" EXP ",\"sub\":\"a\\u0000b\"}",
                                      "{" EXP ",\"sub\":\"a\\nb\"}",
                                      "{" EXP ",\"sub\":\"\\u007f\"}",
                                      "{" EXP ",\"sub\":null}",
                                      NULL};
    check_rows(BAD, AUTH_REASON_CLAIMS);
    assert_int_equal(check("{" EXP ",\"sub\":\"J\\u00fcrgen 🙂\"}", &claims), AUTH_REASON_VALID);
    assert_true(str_eq(claims.subject, STR("Jürgen 🙂")));
    for (int len = 255; len <= 256; len++) {
        buf_clear(&text);
        buf_printf(&text, "{" EXP ",\"sub\":\"%0*d\"}%c", len, 0, '\0');
        assert_int_equal(check(text.data, &claims), len == 255 ? AUTH_REASON_VALID : AUTH_REASON_CLAIMS);
    }
    buf_deinit(&text);
}

static void scopes_come_as_text_or_list_under_two_names(void **state)
{
    (void)state;
    static const struct {
        const char *payload, *scopes;
    } ROWS[] = {
        {"{" EXP "}", ""},
        {"{" EXP ",\"scope\":\"\"}", ""},
        {"{" EXP ",\"scope\":\"a b\"}", "a b"},
        {"{" EXP ",\"scope\":\"  a   b \"}", "a b"},
        {"{" EXP ",\"scp\":[\"a\",\"b\"]}", "a b"},
        {"{" EXP ",\"scp\":[]}", ""},
        {"{" EXP ",\"scp\":\"a b\",\"scope\":[\"c\"]}", "c a b"},
        {"{" EXP ",\"scope\":\"entitlement\\u003awrite\"}", "entitlement:write"},
    };
    static const char *const BAD[] = {"{" EXP ",\"scope\":7}",
                                      "{" EXP ",\"scp\":[\"a b\"]}",
                                      "{" EXP ",\"scp\":[\"\"]}",
                                      "{" EXP ",\"scp\":[7]}",
                                      "{" EXP ",\"scope\":\"a\\tb\"}",
                                      "{" EXP ",\"scope\":null}",
                                      "{" EXP ",\"scope\":\"a\\u0000\"}",
                                      NULL};
    struct auth_claims claims;
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        assert_int_equal(check(ROWS[i].payload, &claims), AUTH_REASON_VALID);
        if (!str_eq(claims.scopes, str_from(ROWS[i].scopes)))
            fail_msg("%s: %.*s", ROWS[i].payload, STR_ARG(claims.scopes));
    }
    check_rows(BAD, AUTH_REASON_CLAIMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_required_a_number_and_in_range),
        cmocka_unit_test(leeway_is_for_nbf_and_never_for_exp),
        cmocka_unit_test(json_that_is_too_deep_is_refused),
        cmocka_unit_test(issuer_must_be_the_configured_one),
        cmocka_unit_test(one_audience_must_be_ours),
        cmocka_unit_test(a_tenant_is_a_name_or_none_at_all),
        cmocka_unit_test(a_subject_is_bounded_text),
        cmocka_unit_test(scopes_come_as_text_or_list_under_two_names),
    };
    arena = ARENA(65536);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_deinit(&arena);
    return failed;
}
