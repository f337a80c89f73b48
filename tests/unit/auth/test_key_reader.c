/* C5: keys rotate, a changed file is seen, an unknown kid makes one reading, and a failure keeps the last
 * good keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/clock.h"
#include "rig.h"
#include "tiny_server.h"

static struct rig rig;
static struct tiny_server *server;
static struct forge_key old_key, new_key;
static struct buf old_token, new_token;

static int start(void **state)
{
    (void)state;
    rig_init(&rig);
    server = tiny_server_start();
    old_key = forge_key_create(AUTH_ES256, "old");
    new_key = forge_key_create(AUTH_EDDSA, "new");
    old_token = new_token = (struct buf){0};
    forge_honest(&old_key, RIG_NOW_S + 60, &old_token);
    forge_honest(&new_key, RIG_NOW_S + 60, &new_token);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rig_deinit(&rig);
    tiny_server_stop(server);
    forge_key_destroy(&old_key);
    forge_key_destroy(&new_key);
    buf_deinit(&old_token);
    buf_deinit(&new_token);
    return 0;
}

static void serve_keys(const struct forge_key *const *keys, size_t count)
{
    struct buf text = {0};
    forge_jwks(keys, count, &text);
    tiny_server_say(server, 200, "Content-Type: application/json\r\n", buf_str(&text));
    buf_deinit(&text);
}

static void start_with_url(void)
{
    const struct forge_key *keys[] = {&old_key};
    serve_keys(keys, 1);
    rig.settings.jwks_url = str_from(tiny_server_url(server));
    rig_start(&rig);
}

/* ---- file ---- */

static void a_changed_file_is_read_within_its_tick(void **state)
{
    (void)state;
    const struct forge_key *only_old[] = {&old_key}, *both[] = {&old_key, &new_key}, *only_new[] = {&new_key};

    rig_write_jwks(&rig, only_old, 1);
    rig_start(&rig);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    rig_write_jwks(&rig, both, 2);
    assert_true(rig_comes_to(&rig, buf_str(&new_token), AUTH_ALLOWED));
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    rig_write_jwks(&rig, only_new, 1); /* the old key is withdrawn: what was verified by it counts no more */
    assert_true(rig_comes_to(&rig, buf_str(&old_token), AUTH_DENIED));
    assert_int_equal(rig_ask_token(&rig, buf_str(&new_token)), AUTH_ALLOWED);
}

static void a_file_that_went_bad_leaves_the_last_good_keys(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&old_key}, *both[] = {&old_key, &new_key};

    rig_write_jwks(&rig, keys, 1);
    rig_start(&rig);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    rig_write_text(&rig, STR("{\"keys\":["));
    /* An unknown kid makes it be read for certain. */
    assert_int_equal(rig_ask_token(&rig, buf_str(&new_token)), AUTH_DENIED);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    assert_true(auth_is_ready(rig.auth));
    rig_write_jwks(&rig, both, 2);
    assert_true(rig_comes_to(&rig, buf_str(&new_token), AUTH_ALLOWED));
}

/* ---- URL ---- */

static void an_unknown_kid_makes_one_reading_and_is_then_known(void **state)
{
    (void)state;
    const struct forge_key *both[] = {&old_key, &new_key};

    start_with_url();
    assert_int_equal(tiny_server_count(server), 1);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    serve_keys(both, 2);
    assert_int_equal(rig_ask_token(&rig, buf_str(&new_token)), AUTH_ALLOWED); /* at the first question */
    assert_int_equal(tiny_server_count(server), 2);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
}

static void a_storm_of_unknown_kids_is_one_reading_per_interval(void **state)
{
    (void)state;
    struct buf token = {0};
    char header[64];

    start_with_url();
    for (int i = 0; i < 200; i++) {
        snprintf(header, sizeof(header), "{\"alg\":\"ES256\",\"kid\":\"made-up-%d\"}", i);
        forge_token(&old_key, header, "{\"exp\":1700000060,\"tenant_id\":\"acme\"}", &token);
        assert_int_equal(rig_ask_token(&rig, buf_str(&token)), AUTH_DENIED);
    }
    assert_int_equal(tiny_server_count(server), 2); /* the one at the start, and one */
    buf_deinit(&token);
}

static void a_token_waits_for_one_reading_and_no_second(void **state)
{
    (void)state;
    const struct forge_key *both[] = {&old_key, &new_key};
    struct buf token = {0};

    rig.settings.jwks_refresh_min_ms = 0; /* as many as anybody asks for */
    start_with_url();
    serve_keys(both, 2); /* new keys, though not the one that is looked for */
    forge_token(&old_key, "{\"alg\":\"ES256\",\"kid\":\"third\"}", "{\"exp\":1700000060}", &token);
    assert_int_equal(rig_ask_token(&rig, buf_str(&token)), AUTH_DENIED);
    assert_int_equal(tiny_server_count(server), 2);
    buf_deinit(&token);
}

static void a_url_that_is_down_keeps_the_last_good_keys(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *body;
    } ROWS[] = {{500, "oops"}, {200, "<html>"}, {200, "{\"keys\":[]}"}, {302, ""}, {200, ""}};

    rig.settings.jwks_refresh_min_ms = 0;
    start_with_url();
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        struct buf token = {0};
        char header[64];

        tiny_server_say(server, ROWS[i].status, "", str_from(ROWS[i].body));
        snprintf(header, sizeof(header), "{\"alg\":\"ES256\",\"kid\":\"row-%zu\"}", i);
        forge_token(&old_key, header, "{\"exp\":1700000060}", &token);
        assert_int_equal(rig_ask_token(&rig, buf_str(&token)), AUTH_DENIED);
        assert_int_equal(tiny_server_count(server), 2 + i); /* it was asked */
        assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
        assert_true(auth_is_ready(rig.auth));
        buf_deinit(&token);
    }
}

static void a_url_that_stalls_holds_nobody_longer_than_the_timeout(void **state)
{
    (void)state;
    rig.settings.jwks_timeout_ms = 200;
    start_with_url();
    tiny_server_stall(server, true);
    assert_int_equal(rig_ask_token(&rig, buf_str(&new_token)), AUTH_DENIED);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    tiny_server_stall(server, false);
}

static void without_keys_it_is_not_ready_and_comes_up_by_itself(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&old_key};

    tiny_server_say(server, 503, "", STR(""));
    rig.settings.jwks_url = str_from(tiny_server_url(server));
    rig_start(&rig);
    assert_false(auth_is_ready(rig.auth));
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_DENIED);
    serve_keys(keys, 1);
    assert_true(rig_comes_to(&rig, buf_str(&old_token), AUTH_ALLOWED));
    assert_true(auth_is_ready(rig.auth));
}

static void the_interval_picks_up_a_rotation(void **state)
{
    (void)state;
    const struct forge_key *only_new[] = {&new_key};

    rig.settings.jwks_refresh_ms = 1000;
    start_with_url();
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    serve_keys(only_new, 1);
    assert_true(rig_comes_to(&rig, buf_str(&old_token), AUTH_DENIED)); /* nobody asked with an unknown kid */
}

static void unchanged_keys_forget_nothing(void **state)
{
    (void)state;
    rig.settings.jwks_refresh_ms = 1000;
    start_with_url();
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    uint64_t before = rig.auth->loops[0].generation;
    for (int64_t deadline = clock_deadline_ms(10000);
         tiny_server_count(server) < 3 && clock_mono_ns() < deadline;)
        rig_turn(&rig);
    assert_true(tiny_server_count(server) >= 3);
    assert_int_equal(rig.auth->loops[0].generation, before);
}

static void file_and_url_count_together(void **state)
{
    (void)state;
    const struct forge_key *in_file[] = {&new_key};

    rig_write_jwks(&rig, in_file, 1);
    start_with_url();
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    assert_int_equal(rig_ask_token(&rig, buf_str(&new_token)), AUTH_ALLOWED);
}

static void a_reload_keeps_the_same_urls_keys_and_refuses_a_new_url_that_is_down(void **state)
{
    (void)state;
    struct auth_settings settings;
    struct error error;

    start_with_url();
    settings = rig.settings;
    tiny_server_say(server, 500, "", STR(""));
    settings.leeway_ms = 1;
    assert_int_equal(auth_reload(rig.auth, &settings, &error), STATUS_OK);
    rig_turn(&rig);
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
    settings.jwks_url = STR("http://127.0.0.1:1/");
    assert_int_equal(auth_reload(rig.auth, &settings, &error), STATUS_CONFIG);
    assert_string_equal(error.field, "auth.jwksUrl");
    assert_int_equal(rig_ask_token(&rig, buf_str(&old_token)), AUTH_ALLOWED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(a_changed_file_is_read_within_its_tick),
        TEST(a_file_that_went_bad_leaves_the_last_good_keys),
        TEST(an_unknown_kid_makes_one_reading_and_is_then_known),
        TEST(a_storm_of_unknown_kids_is_one_reading_per_interval),
        TEST(a_token_waits_for_one_reading_and_no_second),
        TEST(a_url_that_is_down_keeps_the_last_good_keys),
        TEST(a_url_that_stalls_holds_nobody_longer_than_the_timeout),
        TEST(without_keys_it_is_not_ready_and_comes_up_by_itself),
        TEST(the_interval_picks_up_a_rotation),
        TEST(unchanged_keys_forget_nothing),
        TEST(file_and_url_count_together),
        TEST(a_reload_keeps_the_same_urls_keys_and_refuses_a_new_url_that_is_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
