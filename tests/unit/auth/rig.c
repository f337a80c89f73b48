/* The rig: see rig.h. The loop runs on the test's own thread, so that every step is the test's decision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "rig.h"

int64_t rig_now_us;

static int64_t rig_clock(void)
{
    return __atomic_load_n(&rig_now_us, __ATOMIC_RELAXED);
}

void rig_init(struct rig *rig)
{
    const char *base = getenv("TMPDIR");

    *rig = (struct rig){.settings = {.enabled = true,
                                     .jwks_refresh_ms = 3600000,
                                     .jwks_refresh_min_ms = 3600000,
                                     .jwks_timeout_ms = 5000,
                                     .leeway_ms = 5000,
                                     .token_bytes_max = 8192,
                                     .cache_entries = 1000,
                                     .negative_entries = 1000}};
    log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    rig_now_us = RIG_NOW_S * 1000000;
    snprintf(rig->folder, sizeof(rig->folder), "%.40s/auth-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(rig->folder));
    snprintf(rig->jwks_path, sizeof(rig->jwks_path), "%s/jwks", rig->folder);
    rig->group = loop_group_create(1, 100);
    rig->loop = loop_group_loop(rig->group, 0);
    rig->workers = worker_pool_create("test", 2, 100);
}

void rig_write_text(struct rig *rig, struct str text)
{
    char temporary[112];
    snprintf(temporary, sizeof(temporary), "%s.new", rig->jwks_path);
    FILE *file = fopen(temporary, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text.ptr, 1, text.len, file), text.len);
    fclose(file);
    assert_int_equal(rename(temporary, rig->jwks_path), 0);
    rig->settings.jwks_file = str_from(rig->jwks_path);
}

void rig_write_jwks(struct rig *rig, const struct forge_key *const *keys, size_t count)
{
    struct buf text = {0};
    forge_jwks(keys, count, &text);
    rig_write_text(rig, buf_str(&text));
    buf_deinit(&text);
}

void rig_start(struct rig *rig)
{
    enum status status = auth_create(&rig->settings, rig->group, rig->workers, &rig->auth, &rig->error);
    if (status != STATUS_OK)
        fail_msg("auth_create: %s", rig->error.message);
    rig->auth->now_us = rig_clock;
}

void rig_deinit(struct rig *rig)
{
    worker_pool_destroy(rig->workers);
    auth_destroy(rig->auth);
    loop_group_destroy(rig->group);
    unlink(rig->jwks_path);
    assert_int_equal(rmdir(rig->folder), 0);
}

void rig_turn(struct rig *rig)
{
    loop_run_once(rig->loop, 20);
}

struct auth_question rig_question(struct str authorization)
{
    return (struct auth_question){.authorization = authorization,
                                  .authorization_count = authorization.len > 0,
                                  .path_tenant = STR("acme")};
}

static void set_true(void *context)
{
    *(bool *)context = true;
}

enum auth_answer rig_ask(struct rig *rig, const struct auth_question *question)
{
    enum auth_answer answer = auth_check(rig->auth, rig->loop, question, &rig->identity, &rig->error);
    bool verified = false;

    if (answer != AUTH_VERIFY)
        return answer;
    assert_true(auth_verify(rig->auth, rig->loop, 0, question->authorization, set_true, &verified));
    for (int i = 0; i < 1000 && !verified; i++)
        rig_turn(rig);
    assert_true(verified);
    return auth_check(rig->auth, rig->loop, question, &rig->identity, &rig->error);
}

enum auth_answer rig_ask_token(struct rig *rig, struct str token)
{
    struct buf header = {0};

    buf_printf(&header, "Bearer %.*s", STR_ARG(token));
    struct auth_question question = rig_question(buf_str(&header));
    enum auth_answer answer = rig_ask(rig, &question);
    buf_deinit(&header);
    return answer;
}

bool rig_comes_to(struct rig *rig, struct str token, enum auth_answer answer)
{
    int64_t deadline_ns = clock_deadline_ms(10000);

    while (rig_ask_token(rig, token) != answer) {
        if (clock_mono_ns() > deadline_ns)
            return false;
        rig_turn(rig);
    }
    return true;
}

/* ---- with one key ---- */

struct rig rig_keyed;
struct forge_key rig_key;

int rig_keyed_start(void **state)
{
    (void)state;
    const struct forge_key *keys[] = {&rig_key};
    rig_init(&rig_keyed);
    rig_key = forge_key_create(AUTH_EDDSA, "k1");
    rig_write_jwks(&rig_keyed, keys, 1);
    return 0;
}

int rig_keyed_stop(void **state)
{
    (void)state;
    rig_deinit(&rig_keyed);
    forge_key_destroy(&rig_key);
    return 0;
}

void rig_honest(struct buf *token, int64_t seconds)
{
    *token = (struct buf){0};
    forge_honest(&rig_key, RIG_NOW_S + seconds, token);
}

void rig_expect(enum auth_answer answer, enum status status, enum auth_answer got)
{
    assert_int_equal(got, answer);
    if (answer == AUTH_DENIED)
        assert_int_equal(rig_keyed.error.status, status);
}
