/* C5: `freshet token` issues tokens that a server with its key set takes; its files are made once and kept
 * safe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/auth.h"
#include "auth/jose.h"
#include "base/clock.h"

static char folder[64], key_path[96], jwks_path[96];

static enum status issue(const struct auth_token_request *request, struct buf *token, struct error *error)
{
    return auth_token_issue(str_from(key_path), str_from(jwks_path), request, token, error);
}

static void read_text(const char *path, struct buf *text)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    buf_commit(text, fread(buf_reserve(text, 4096), 1, 4096, file));
    fclose(file);
}

static enum auth_reason verify(struct str token, struct arena *arena, struct auth_claims *claims)
{
    struct auth_checks checks = {
        .algorithms = AUTH_ALGORITHMS_ALL, .token_bytes_max = 8192, .tenant_claim = STR("tid")};
    struct auth_keyset *set = auth_keyset_create();
    struct error error;
    struct buf text = {0};

    read_text(jwks_path, &text);
    assert_int_equal(auth_keyset_add_jwks(set, buf_str(&text), "jwks", &error), STATUS_OK);
    enum auth_reason reason = auth_token_verify(token, &checks, set, clock_unix_us(), arena, claims);
    buf_deinit(&text);
    auth_keyset_unref(set);
    return reason;
}

static const struct auth_token_request REQUEST = {.tenant = {"acme", 4},
                                                  .subject = {"Ann \"A\"", 7},
                                                  .scopes = {"a b", 3},
                                                  .tenant_claim = {"tid", 3},
                                                  .ttl_s = 60};

static void a_token_carries_what_was_asked_and_verifies(void **state)
{
    (void)state;
    struct auth_claims claims;
    struct arena arena = ARENA(4096);
    struct error error;
    struct buf token = {0};
    struct stat info;

    assert_int_equal(issue(&REQUEST, &token, &error), STATUS_OK);
    assert_int_equal(verify(buf_str(&token), &arena, &claims), AUTH_REASON_VALID);
    assert_true(str_eq(claims.tenant, STR("acme")));
    assert_true(str_eq(claims.subject, STR("Ann \"A\"")));
    assert_true(str_eq(claims.scopes, STR("a b")));
    assert_in_range(claims.exp_us / 1000000 - clock_unix_us() / 1000000, 58, 60);
    assert_int_equal(stat(key_path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(stat(jwks_path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0644);
    buf_deinit(&token);
    arena_deinit(&arena);
}

static void the_public_set_holds_no_private_part(void **state)
{
    (void)state;
    struct buf text = {0};
    read_text(jwks_path, &text);
    assert_null(memmem(buf_str(&text).ptr, buf_len(&text), "\"d\"", 3));
    buf_deinit(&text);
}

static void the_key_is_kept_and_a_lost_public_set_is_written_again(void **state)
{
    (void)state;
    struct buf before = {0}, after = {0}, token = {0};
    struct auth_claims claims;
    struct arena arena = ARENA(4096);
    struct error error;

    read_text(key_path, &before);
    assert_int_equal(unlink(jwks_path), 0);
    assert_int_equal(issue(&REQUEST, &token, &error), STATUS_OK);
    assert_int_equal(verify(buf_str(&token), &arena, &claims), AUTH_REASON_VALID);
    read_text(key_path, &after);
    assert_true(str_eq(buf_str(&before), buf_str(&after)));
    arena_deinit(&arena);
    buf_deinit(&before);
    buf_deinit(&after);
    buf_deinit(&token);
}

/* The set may be somebody's real one: a development key must not slip into it. */
static void a_public_set_without_the_key_is_left_alone(void **state)
{
    (void)state;
    char other_key[128];
    struct buf token = {0}, before = {0}, after = {0};
    struct error error;

    snprintf(other_key, sizeof(other_key), "%s.other", key_path);
    read_text(jwks_path, &before);
    assert_int_equal(auth_token_issue(str_from(other_key), str_from(jwks_path), &REQUEST, &token, &error),
                     STATUS_CONFIG);
    read_text(jwks_path, &after);
    assert_true(str_eq(buf_str(&before), buf_str(&after)));
    buf_deinit(&token);
    buf_deinit(&before);
    buf_deinit(&after);
}

static void a_broken_key_file_is_an_error_and_not_replaced(void **state)
{
    (void)state;
    char path[128];
    struct buf token = {0};
    struct error error;
    struct stat info;

    snprintf(path, sizeof(path), "%s.broken", key_path);
    FILE *file = fopen(path, "w");
    fputs("{\"kty\":\"OKP\"}", file);
    fclose(file);
    assert_int_equal(auth_token_issue(str_from(path), STR(""), &REQUEST, &token, &error), STATUS_CONFIG);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 13);
    buf_deinit(&token);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct buf token = {0};
    struct error error;
    struct auth_token_request request = REQUEST;

    request.tenant = STR("a/b");
    assert_int_equal(issue(&request, &token, &error), STATUS_BAD_REQUEST);
    assert_string_equal(error.field, "tenant");
    request = REQUEST;
    request.ttl_s = 0;
    assert_int_equal(issue(&request, &token, &error), STATUS_BAD_REQUEST);
    assert_string_equal(error.field, "ttl");
    buf_deinit(&token);
}

/* Eight at once, from nothing: one key wins and every token is good under it. */
static pthread_barrier_t together;
static struct buf tokens[8];

static void *issue_in_thread(void *arg)
{
    struct error error;
    pthread_barrier_wait(&together);
    return (void *)(uintptr_t)(issue(&REQUEST, arg, &error) == STATUS_OK);
}

static void side_by_side_there_is_one_key(void **state)
{
    (void)state;
    pthread_t threads[8];
    struct auth_claims claims;
    struct arena arena = ARENA(4096);

    unlink(key_path);
    unlink(jwks_path);
    pthread_barrier_init(&together, NULL, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, issue_in_thread, &tokens[i]), 0);
    for (int i = 0; i < 8; i++) {
        void *issued;
        pthread_join(threads[i], &issued);
        assert_non_null(issued);
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(verify(buf_str(&tokens[i]), &arena, &claims), AUTH_REASON_VALID);
        buf_deinit(&tokens[i]);
    }
    pthread_barrier_destroy(&together);
    arena_deinit(&arena);
}

/* In this order; a folder that is not empty, because a temporary file was left, fails the test. */
static int remove_files(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"new/keys/key",
                                        "new/keys/key.lock",
                                        "new/keys/key.other",
                                        "new/keys/key.other.lock",
                                        "new/keys/key.broken",
                                        "new/keys/key.broken.lock",
                                        "new/keys",
                                        "new",
                                        "jwks",
                                        ""};
    char path[128];
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, NAMES[i]);
        if (remove(path) != 0)
            return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_carries_what_was_asked_and_verifies),
        cmocka_unit_test(the_public_set_holds_no_private_part),
        cmocka_unit_test(the_key_is_kept_and_a_lost_public_set_is_written_again),
        cmocka_unit_test(a_public_set_without_the_key_is_left_alone),
        cmocka_unit_test(a_broken_key_file_is_an_error_and_not_replaced),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(side_by_side_there_is_one_key),
    };
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%.40s/issue-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    snprintf(key_path, sizeof(key_path), "%s/new/keys/key", folder); /* folders are made, too */
    snprintf(jwks_path, sizeof(jwks_path), "%s/jwks", folder);
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
