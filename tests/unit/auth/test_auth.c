/* C5: the question every request asks: who is it, is it their tenant, have they the scope; and what is
 * remembered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdlib.h>

#include "rig.h"

/* ---- tokens ---- */

static void a_good_token_is_verified_once_and_then_known(void **state)
{
    (void)state;
    struct buf token, header = {0};
    struct auth_question question;

    rig_start(&rig_keyed);
    rig_honest(&token, 60);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    assert_true(str_eq(rig_keyed.identity->tenant, STR("acme")));
    assert_true(str_eq(rig_keyed.identity->subject, STR("u1")));
    assert_int_equal(rig_keyed.identity->expires_at_s, RIG_NOW_S + 60);

    buf_printf(&header, "Bearer %.*s", STR_ARG(buf_str(&token)));
    question = rig_question(buf_str(&header));
    const struct auth_identity *identity;
    assert_int_equal(auth_check(rig_keyed.auth, rig_keyed.loop, &question, &identity, &rig_keyed.error),
                     AUTH_ALLOWED);
    buf_deinit(&header);
    buf_deinit(&token);
}

static void what_is_no_bearer_token_is_401_without_a_worker(void **state)
{
    (void)state;
    static const struct {
        const char *authorization;
        unsigned count;
    } ROWS[] = {
        {"", 0},
        {"", 1},
        {"Basic dXNlcjpwYXNz", 1},
        {"Bearer", 1},
        {"Bearer a b", 1},
        {"Bearer a.b.", 1},
        {"Bearer a.b", 1},
        {"Bearer a.b.c=", 1},
        {"Bearer ..", 1},
        {"Bearer a.b.c,a.b.c", 1},
        {"Bearer a.b.c", 2},
    };
    rig_start(&rig_keyed);
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct auth_question question = rig_question(str_from(ROWS[i].authorization));
        question.authorization_count = ROWS[i].count;
        rig_expect(
            AUTH_DENIED, STATUS_UNAUTHENTICATED,
            auth_check(rig_keyed.auth, rig_keyed.loop, &question, &rig_keyed.identity, &rig_keyed.error));
    }
}

static void a_bad_token_is_remembered_for_a_while(void **state)
{
    (void)state;
    struct forge_key stranger = forge_key_create(AUTH_EDDSA, "k1");
    struct buf token = {0}, header = {0};

    rig_start(&rig_keyed);
    forge_honest(&stranger, RIG_NOW_S + 60, &token);
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask_token(&rig_keyed, buf_str(&token)));
    buf_printf(&header, "Bearer %.*s", STR_ARG(buf_str(&token)));
    struct auth_question question = rig_question(buf_str(&header));
    for (int i = 0; i < 100; i++)
        assert_int_equal(
            auth_check(rig_keyed.auth, rig_keyed.loop, &question, &rig_keyed.identity, &rig_keyed.error),
            AUTH_DENIED);
    forge_key_destroy(&stranger);
    buf_deinit(&header);
    buf_deinit(&token);
}

static void a_known_token_ends_with_its_exp(void **state)
{
    (void)state;
    struct buf token;

    rig_start(&rig_keyed);
    rig_honest(&token, 60);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    rig_now_us = (RIG_NOW_S + 60) * 1000000 - 1;
    rig_turn(&rig_keyed);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    rig_now_us++;
    rig_turn(&rig_keyed);
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask_token(&rig_keyed, buf_str(&token)));
    assert_string_equal(rig_keyed.error.message, auth_reason_sentence(AUTH_REASON_EXPIRED));
    buf_deinit(&token);
}

static void a_token_that_is_early_is_taken_when_its_time_has_come(void **state)
{
    (void)state;
    struct buf token = {0};

    rig_start(&rig_keyed);
    forge_token(&rig_key, "{\"alg\":\"EdDSA\"}",
                "{\"tenant_id\":\"acme\",\"exp\":1700000900,\"nbf\":1700000006}", &token);
    rig_now_us = RIG_NOW_S * 1000000 + 995000; /* 5 ms before nbf less the leeway */
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask_token(&rig_keyed, buf_str(&token)));
    assert_string_equal(rig_keyed.error.message, auth_reason_sentence(AUTH_REASON_NOT_YET));
    rig_now_us += 5000;
    assert_true(
        rig_comes_to(&rig_keyed, buf_str(&token), AUTH_ALLOWED)); /* the denial lasted 5 ms, not seconds */
    buf_deinit(&token);
}

static void count_calls(void *context)
{
    ++*(unsigned *)context;
}

static void many_askers_share_one_verification(void **state)
{
    (void)state;
    struct buf token, header = {0};
    unsigned calls = 0;

    rig_start(&rig_keyed);
    rig_honest(&token, 60);
    buf_printf(&header, "Bearer %.*s", STR_ARG(buf_str(&token)));
    for (int i = 0; i < 50; i++)
        assert_true(auth_verify(rig_keyed.auth, rig_keyed.loop, 0, buf_str(&header), count_calls, &calls));
    assert_int_equal(rig_keyed.auth->loops[0].pending.count, 1);
    for (int i = 0; i < 1000 && calls == 0; i++)
        rig_turn(&rig_keyed);
    assert_int_equal(calls, 50);
    assert_int_equal(rig_keyed.auth->loops[0].pending.count, 0);
    buf_deinit(&header);
    buf_deinit(&token);
}

static void a_stopped_pool_says_so_and_forgets_nobody(void **state)
{
    (void)state;
    struct buf token, header = {0};
    unsigned calls = 0;

    rig_start(&rig_keyed);
    rig_honest(&token, 60);
    buf_printf(&header, "Bearer %.*s", STR_ARG(buf_str(&token)));
    assert_true(auth_verify(rig_keyed.auth, rig_keyed.loop, 0, buf_str(&header), count_calls, &calls));
    worker_pool_stop(rig_keyed.workers); /* runs it or cancels it: either way the asker is told */
    rig_turn(&rig_keyed);
    assert_int_equal(calls, 1);
    assert_false(auth_verify(rig_keyed.auth, rig_keyed.loop, 0, STR("Bearer a.b.c"), count_calls, &calls));
    rig_turn(&rig_keyed);
    assert_int_equal(calls, 1);
    buf_deinit(&header);
    buf_deinit(&token);
}

/* ---- tenant and scope ---- */

static void tenant_and_scope_decide(void **state)
{
    (void)state;
    static const struct {
        const char *claims, *path_tenant, *scope; /* path_tenant NULL = the route names none */
        enum status status;
    } ROWS[] = {
        {"\"tenant_id\":\"acme\"", "acme", NULL, STATUS_OK},
        {"\"tenant_id\":\"acme\"", NULL, NULL, STATUS_OK},
        {"\"tenant_id\":\"acme\"", "acm", NULL, STATUS_TENANT_MISMATCH},
        {"\"tenant_id\":\"acme\"", "acme2", NULL, STATUS_TENANT_MISMATCH},
        {"\"tenant_id\":\"acme\"", "ACME", NULL, STATUS_TENANT_MISMATCH},
        {"\"tenant_id\":\"acme\"", "", NULL, STATUS_TENANT_MISMATCH},
        {"\"sub\":\"u\"", "acme", NULL, STATUS_TENANT_MISMATCH},
        {"\"sub\":\"u\"", NULL, NULL, STATUS_TENANT_MISMATCH},
        {"\"tenant_id\":7", "acme", NULL, STATUS_TENANT_MISMATCH},
        {"\"tenant_id\":\"acme\"", "acme", "w:rite", STATUS_INSUFFICIENT_SCOPE},
        {"\"tenant_id\":\"acme\",\"scope\":\"r:ead w:rite\"", "acme", "w:rite", STATUS_OK},
        {"\"tenant_id\":\"acme\",\"scope\":\"w:rite2 xw:rite\"", "acme", "w:rite", STATUS_INSUFFICIENT_SCOPE},
        {"\"tenant_id\":\"acme\",\"scp\":[\"w:rite\"]", "acme", "w:rite", STATUS_OK},
        {"\"tenant_id\":\"other\",\"scope\":\"w:rite\"", "acme", "w:rite", STATUS_TENANT_MISMATCH},
    };
    rig_start(&rig_keyed);
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct buf token = {0}, header = {0}, claims = {0};
        buf_printf(&claims, "{%s,\"exp\":1700000060}%c", ROWS[i].claims, '\0');
        forge_token(&rig_key, "{\"alg\":\"EdDSA\"}", claims.data, &token);
        buf_printf(&header, "Bearer %.*s", STR_ARG(buf_str(&token)));
        struct auth_question question = rig_question(buf_str(&header));
        question.path_tenant = str_from(ROWS[i].path_tenant);
        question.scope = ROWS[i].scope;
        rig_keyed.error = (struct error){0};
        enum auth_answer answer = rig_ask(&rig_keyed, &question);
        if (answer != (ROWS[i].status == STATUS_OK ? AUTH_ALLOWED : AUTH_DENIED) ||
            rig_keyed.error.status != ROWS[i].status)
            fail_msg("row %zu: %s", i, status_name(rig_keyed.error.status));
        buf_deinit(&claims);
        buf_deinit(&header);
        buf_deinit(&token);
    }
}

static void switched_off_everyone_is_anonymous_in_the_tenant_they_name(void **state)
{
    (void)state;
    struct auth_question question = rig_question(STR_NONE);

    rig_keyed.settings.enabled = false;
    rig_keyed.settings.jwks_file = STR("/nonexistent"); /* not read */
    rig_start(&rig_keyed);
    assert_true(auth_is_ready(rig_keyed.auth));
    question.scope = "any";
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask(&rig_keyed, &question));
    assert_true(str_eq(rig_keyed.identity->tenant, STR("acme")));
    assert_true(str_eq(rig_keyed.identity->subject, STR("anonymous")));
    assert_true(auth_has_scope(rig_keyed.identity, STR("entitlement:read")));
    question.path_tenant = STR_NONE;
    question.authorization = STR("Bearer nonsense");
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask(&rig_keyed, &question));
    assert_true(str_is_name(rig_keyed.identity->tenant));
    rig_keyed.settings.jwks_file = str_from(rig_keyed.jwks_path);
}

/* ---- mTLS ---- */

static struct sockaddr_in6 local_peer(void)
{
    struct sockaddr_in6 peer = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&peer;
    v4->sin_family = AF_INET;
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return peer;
}

static void with_mtls(bool allow_tenant_header)
{
    static struct str peers[] = {{"127.0.0.0/8", 11}};
    static struct auth_client clients[] = {
        {.identity = {"spiffe://m/trusted", 18}, .scopes = {"w:rite", 6}, .trusted = true},
        {.identity = {"spiffe://m/plain", 16}, .tenant = {"acme", 4}, .trusted = false},
    };
    rig_keyed.settings.mtls_peers = (struct setting_strings){peers, 1};
    rig_keyed.settings.mtls_clients = (struct setting_objects){.items = clients, .count = 2};
    rig_keyed.settings.allow_tenant_header = allow_tenant_header;
    rig_start(&rig_keyed);
}

static void an_mtls_client_is_known_by_its_certificate_from_a_believed_peer(void **state)
{
    (void)state;
    struct sockaddr_in6 peer = local_peer(), stranger = local_peer();
    struct auth_question question = rig_question(STR_NONE);

    ((struct sockaddr_in *)&stranger)->sin_addr.s_addr = htonl(0x0A000001);
    with_mtls(true);
    question.forwarded_client_cert = STR("URI=spiffe://m/plain");
    question.peer = &peer;
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask(&rig_keyed, &question));
    assert_true(str_eq(rig_keyed.identity->subject, STR("spiffe://m/plain")));
    question.scope = "w:rite";
    rig_expect(AUTH_DENIED, STATUS_INSUFFICIENT_SCOPE, rig_ask(&rig_keyed, &question));
    question.scope = NULL;
    question.tenant_header = STR("beta"); /* not trusted: not looked at */
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask(&rig_keyed, &question));
    assert_true(str_eq(rig_keyed.identity->tenant, STR("acme")));
    question.peer = &stranger;
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask(&rig_keyed, &question));
    question.peer = &peer;
    question.forwarded_client_cert = STR("URI=spiffe://m/nobody");
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask(&rig_keyed, &question));
    question.forwarded_client_cert = STR("URI=spiffe://m/plain");
    question.authorization = STR("Bearer nonsense"); /* a bad token is bad whoever brings it */
    question.authorization_count = 1;
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask(&rig_keyed, &question));
}

static void a_trusted_client_names_the_tenant_where_that_is_allowed(void **state)
{
    (void)state;
    struct sockaddr_in6 peer = local_peer();
    struct auth_question question = rig_question(STR_NONE);
    struct buf token, header = {0};

    with_mtls(true);
    question.forwarded_client_cert = STR("URI=spiffe://m/trusted");
    question.peer = &peer;
    rig_expect(AUTH_DENIED, STATUS_TENANT_MISMATCH,
               rig_ask(&rig_keyed, &question)); /* it has no tenant of its own */
    question.tenant_header = STR("acme");
    question.scope = "w:rite";
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask(&rig_keyed, &question));
    assert_true(str_eq(rig_keyed.identity->tenant, STR("acme")) && rig_keyed.identity->may_override_tenant);
    question.tenant_header = STR("beta");
    rig_expect(AUTH_DENIED, STATUS_TENANT_MISMATCH, rig_ask(&rig_keyed, &question)); /* still the path's */
    question.tenant_header = STR("a b");
    rig_expect(AUTH_DENIED, STATUS_TENANT_MISMATCH, rig_ask(&rig_keyed, &question));

    rig_honest(&token, 60); /* acme's user, through the trusted client, in beta */
    buf_printf(&header, "Bearer %.*s", STR_ARG(buf_str(&token)));
    question = rig_question(buf_str(&header));
    question.forwarded_client_cert = STR("URI=spiffe://m/trusted");
    question.peer = &peer;
    question.tenant_header = STR("beta");
    question.path_tenant = STR("beta");
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask(&rig_keyed, &question));
    assert_true(str_eq(rig_keyed.identity->subject, STR("u1")) &&
                str_eq(rig_keyed.identity->tenant, STR("beta")));
    question.forwarded_client_cert = STR_NONE; /* the same header without the client */
    rig_expect(AUTH_DENIED, STATUS_TENANT_MISMATCH, rig_ask(&rig_keyed, &question));
    buf_deinit(&header);
    buf_deinit(&token);
}

static void without_leave_nobody_names_the_tenant(void **state)
{
    (void)state;
    struct sockaddr_in6 peer = local_peer();
    struct auth_question question = rig_question(STR_NONE);

    with_mtls(false);
    question.forwarded_client_cert = STR("URI=spiffe://m/trusted");
    question.peer = &peer;
    question.tenant_header = STR("acme");
    rig_expect(AUTH_DENIED, STATUS_TENANT_MISMATCH, rig_ask(&rig_keyed, &question));
}

/* ---- small things ---- */

static void a_challenge_says_why(void **state)
{
    (void)state;
    char out[AUTH_CHALLENGE_BYTES];
    struct error error;

    rig_start(&rig_keyed);
    auth_refuse(AUTH_REASON_MISSING, &error);
    size_t len = auth_challenge(&error, out);
    assert_int_equal(len, strlen(out));
    assert_string_equal(out, "Bearer realm=\"freshet\"");
    auth_refuse(AUTH_REASON_EXPIRED, &error);
    auth_challenge(&error, out);
    assert_string_equal(out, "Bearer realm=\"freshet\", error=\"invalid_token\", "
                             "error_description=\"the token has expired\"");
    for (int i = 0; i < AUTH_REASONS; i++) { /* each fits, quoted */
        auth_refuse((enum auth_reason)i, &error);
        assert_true(auth_challenge(&error, out) < AUTH_CHALLENGE_BYTES);
        assert_null(strpbrk(auth_reason_sentence((enum auth_reason)i), "\"\\"));
    }
}

static void a_copied_identity_stands_on_its_own(void **state)
{
    (void)state;
    struct arena arena = ARENA(256);
    char tenant[] = "acme";
    struct auth_identity one = {
        .tenant = str_from(tenant), .subject = STR("u"), .scopes = STR("a b"), .expires_at_s = 9};

    rig_start(&rig_keyed);
    struct auth_identity *copy = auth_identity_copy(&one, &arena);
    memset(tenant, 'x', 4);
    assert_true(str_eq(copy->tenant, STR("acme")) && copy->expires_at_s == 9);
    assert_true(auth_has_scope(copy, STR("b")) && !auth_has_scope(copy, STR("a b")) &&
                !auth_has_scope(copy, STR("")));
    arena_deinit(&arena);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_keyed_start, rig_keyed_stop)
    const struct CMUnitTest tests[] = {
        TEST(a_good_token_is_verified_once_and_then_known),
        TEST(what_is_no_bearer_token_is_401_without_a_worker),
        TEST(a_bad_token_is_remembered_for_a_while),
        TEST(a_known_token_ends_with_its_exp),
        TEST(a_token_that_is_early_is_taken_when_its_time_has_come),
        TEST(many_askers_share_one_verification),
        TEST(a_stopped_pool_says_so_and_forgets_nobody),
        TEST(tenant_and_scope_decide),
        TEST(switched_off_everyone_is_anonymous_in_the_tenant_they_name),
        TEST(an_mtls_client_is_known_by_its_certificate_from_a_believed_peer),
        TEST(a_trusted_client_names_the_tenant_where_that_is_allowed),
        TEST(without_leave_nobody_names_the_tenant),
        TEST(a_challenge_says_why),
        TEST(a_copied_identity_stands_on_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
