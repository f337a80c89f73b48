/* C5: settings that cannot work are refused, at the start and on a reload. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "rig.h"

static void settings_that_cannot_work_are_refused(void **state)
{
    (void)state;
    static struct str bad_algorithm[] = {{"none", 4}}, bad_peer[] = {{"10.0.0.0/99", 11}};
    static struct auth_client bad_client[] = {{.identity = {"x", 1}, .tenant = {"a/b", 3}}};
    struct auth *auth;
    struct auth_settings settings = rig_keyed.settings;
    struct error error;

    rig_start(&rig_keyed); /* so that stop() has something to end */
    settings.algorithms = (struct setting_strings){bad_algorithm, 1};
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    assert_string_equal(error.field, "auth.algorithms");
    settings = rig_keyed.settings;
    settings.mtls_peers = (struct setting_strings){bad_peer, 1};
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    settings = rig_keyed.settings;
    settings.mtls_clients = (struct setting_objects){.items = bad_client, .count = 1};
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    settings = rig_keyed.settings;
    settings.jwks_file = STR("/nonexistent/jwks");
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    assert_string_equal(error.field, "auth.jwksFile");
    settings.jwks_file = STR_NONE;
    settings.hs256_secret_env = STR("FRESHET_TEST_SECRET");
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    setenv("FRESHET_TEST_SECRET", "too short", 1);
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    assert_string_equal(error.field, "auth.hs256SecretFromEnv");
    setenv("FRESHET_TEST_SECRET", "0123456789012345678901234567890", 1); /* one byte less than needed */
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    char too_long[AUTH_SECRET_BYTES_MAX + 2] = {0};
    memset(too_long, 's', AUTH_SECRET_BYTES_MAX + 1);
    setenv("FRESHET_TEST_SECRET", too_long, 1);
    assert_int_equal(auth_create(&settings, rig_keyed.group, rig_keyed.workers, &auth, &error),
                     STATUS_CONFIG);
    assert_string_equal(error.field, "auth.hs256SecretFromEnv");
    unsetenv("FRESHET_TEST_SECRET");
}

static void a_secret_of_the_environment_signs_hs256(void **state)
{
    (void)state;
    struct forge_key secret = forge_key_create(AUTH_HS256, "any");
    struct buf token = {0};

    for (size_t i = 0; i < sizeof(secret.secret); i++)
        secret.secret[i] = (char)('a' + i % 26);
    char text[sizeof(secret.secret) + 1] = {0};
    memcpy(text, secret.secret, sizeof(secret.secret));
    setenv("FRESHET_TEST_SECRET", text, 1);
    rig_keyed.settings.hs256_secret_env = STR("FRESHET_TEST_SECRET");
    rig_start(&rig_keyed);
    unsetenv("FRESHET_TEST_SECRET");
    forge_honest(&secret, RIG_NOW_S + 60, &token);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    buf_deinit(&token);
}

static void a_reload_takes_effect_or_changes_nothing(void **state)
{
    (void)state;
    struct auth_settings settings = rig_keyed.settings;
    struct error error;
    struct buf token;

    rig_start(&rig_keyed);
    rig_honest(&token, 60);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    settings.jwks_file = STR("/nonexistent/jwks");
    settings.issuer = STR("somebody");
    assert_int_equal(auth_reload(rig_keyed.auth, &settings, &error), STATUS_CONFIG);
    rig_turn(&rig_keyed);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    settings.jwks_file = rig_keyed.settings.jwks_file;
    assert_int_equal(auth_reload(rig_keyed.auth, &settings, &error), STATUS_OK);
    rig_turn(&rig_keyed);
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask_token(&rig_keyed, buf_str(&token)));
    assert_string_equal(rig_keyed.error.message, auth_reason_sentence(AUTH_REASON_ISSUER));
    assert_int_equal(auth_reload(rig_keyed.auth, &rig_keyed.settings, &error), STATUS_OK);
    rig_turn(&rig_keyed);
    rig_expect(AUTH_ALLOWED, STATUS_OK, rig_ask_token(&rig_keyed, buf_str(&token)));
    buf_deinit(&token);
}

/* C2, R15: a file without a word about keys is valid at the start; later it would lock everybody out. */
static void without_keys_nobody_is_let_in(void **state)
{
    (void)state;
    struct error error;

    rig_keyed.settings.jwks_file = STR("");
    rig_start(&rig_keyed);
    rig_turn(&rig_keyed);
    assert_false(auth_is_ready(rig_keyed.auth));
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask_token(&rig_keyed, STR("a.b.c")));
    assert_int_equal(auth_reload(rig_keyed.auth, &rig_keyed.settings, &error), STATUS_OK);
}

/* C5: off only together with a loopback-only listener, and listeners do not change while the program runs. */
static void a_reload_never_switches_auth_off(void **state)
{
    (void)state;
    struct auth_settings settings = rig_keyed.settings;
    struct error error;

    rig_start(&rig_keyed);
    settings.enabled = false;
    assert_int_equal(auth_reload(rig_keyed.auth, &settings, &error), STATUS_OK);
    rig_turn(&rig_keyed);
    rig_expect(AUTH_DENIED, STATUS_UNAUTHENTICATED, rig_ask_token(&rig_keyed, STR("a.b.c")));
    settings.jwks_file = STR("");
    assert_int_equal(auth_reload(rig_keyed.auth, &settings, &error), STATUS_CONFIG);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_keyed_start, rig_keyed_stop)
    const struct CMUnitTest tests[] = {
        TEST(settings_that_cannot_work_are_refused),    TEST(a_secret_of_the_environment_signs_hs256),
        TEST(a_reload_takes_effect_or_changes_nothing), TEST(without_keys_nobody_is_let_in),
        TEST(a_reload_never_switches_auth_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
