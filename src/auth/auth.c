/* The life of auth, how changes reach the loops, and the question every request asks. auth_check() for a
 * token that is known takes no lock, no allocation and no system call but one reading of the wall clock
 * per tick. */
#include "auth/state.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

struct auth *auth_ref(struct auth *auth)
{
    atomic_fetch_add_explicit(&auth->refs, 1, memory_order_relaxed);
    return auth;
}

void auth_unref(struct auth *auth)
{
    if (atomic_fetch_sub_explicit(&auth->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (unsigned i = 0; i < auth->loop_count; i++) {
        struct auth_loop *state = &auth->loops[i];
        auth_rules_unref(state->rules);
        auth_keyset_unref(state->keys);
        auth_verified_deinit(&state->verified);
        auth_denied_deinit(&state->denied);
        map_deinit(&state->pending);
    }
    auth_rules_unref(auth->rules);
    pthread_mutex_destroy(&auth->mutex);
    free(auth);
}

struct auth_loop *auth_loop_of(struct auth *auth, const struct loop *loop)
{
    return &auth->loops[loop_index(loop)];
}

/* ---- changes ---- */

/* Takes the rules and keys that are current. True: they are new to this loop. */
static bool take_current(struct auth_loop *state)
{
    struct auth *auth = state->auth;
    struct auth_rules *old_rules = state->rules;
    struct auth_keyset *old_keys = state->keys;

    pthread_mutex_lock(&auth->mutex);
    bool changed = state->generation != auth->generation;
    state->rules = auth_rules_ref(auth->rules);
    state->keys = auth->key_reader ? auth_key_reader_keys(auth->key_reader) : auth_keyset_ref(old_keys);
    state->generation = auth->generation;
    pthread_mutex_unlock(&auth->mutex);

    if (state->rules != old_rules) {
        auth_verified_deinit(&state->verified);
        auth_denied_deinit(&state->denied);
        auth_verified_init(&state->verified, state->rules->verified_max);
        auth_denied_init(&state->denied, state->rules->denied_max);
    }
    auth_rules_unref(old_rules);
    auth_keyset_unref(old_keys);
    return changed;
}

static void on_published(struct loop *loop, void *arg)
{
    struct auth_loop *state = auth_loop_of(arg, loop);

    auth_verifications_settle(state, take_current(state));
    auth_unref(arg);
}

void auth_publish(struct auth *auth, bool changed)
{
    if (changed) {
        pthread_mutex_lock(&auth->mutex);
        auth->generation++;
        pthread_mutex_unlock(&auth->mutex);
    }
    for (unsigned i = 0; i < auth->loop_count; i++)
        auth_ref(auth);
    loop_group_broadcast(auth->group, on_published, auth);
}

bool auth_demand_keys(struct auth *auth)
{
    pthread_mutex_lock(&auth->mutex);
    bool coming = auth->key_reader && auth_key_reader_demand(auth->key_reader);
    pthread_mutex_unlock(&auth->mutex);
    return coming;
}

/* ---- life ---- */

enum status auth_create(const struct auth_settings *settings, struct loop_group *group,
                        struct worker_pool *workers, struct auth **out, struct error *error)
{
    unsigned count = loop_group_count(group);
    size_t size = sizeof(struct auth) + count * sizeof(struct auth_loop);
    struct auth *auth = memset(memory_aligned(_Alignof(struct auth), size), 0, size);

    atomic_init(&auth->refs, 1);
    pthread_mutex_init(&auth->mutex, NULL);
    auth->group = group;
    auth->workers = workers;
    auth->now_us = clock_unix_us;
    auth->generation = 1;
    auth_metrics_register();
    enum status status = auth_rules_create(settings, &auth->rules, error);
    if (status == STATUS_OK)
        status = auth_key_reader_create(auth, auth->rules, NULL, &auth->key_reader, error);
    if (status != STATUS_OK) {
        auth_unref(auth);
        return status;
    }
    /* A file without keys is valid (the specification's own); then no request is let in. */
    if (!auth_rules_let_in(auth->rules))
        log_warn("auth_lets_nobody_in",
                 LOG_CSTR("remedy", "set auth.jwksFile, auth.jwksUrl, auth.hs256SecretFromEnv or auth.mtls"));
    for (; auth->loop_count < count; auth->loop_count++) {
        struct auth_loop *state = &auth->loops[auth->loop_count];
        *state =
            (struct auth_loop){.auth = auth, .loop = loop_group_loop(group, auth->loop_count), .tick_ns = -1};
        TAILQ_INIT(&state->awaiting);
        (void)take_current(state);
    }
    auth_key_reader_start(auth->key_reader);
    *out = auth;
    return STATUS_OK;
}

void auth_destroy(struct auth *auth)
{
    if (!auth)
        return;
    pthread_mutex_lock(&auth->mutex);
    struct auth_key_reader *key_reader = auth->key_reader;
    auth->key_reader = NULL;
    pthread_mutex_unlock(&auth->mutex);
    auth_key_reader_destroy(key_reader);
    auth_unref(auth);
}

enum status auth_reload(struct auth *auth, const struct auth_settings *settings, struct error *error)
{
    struct auth_rules *rules, *old_rules;
    struct auth_key_reader *key_reader, *old_key_reader;
    struct auth_settings kept = *settings;

    kept.enabled = auth->rules->enabled; /* the listeners stay as they were, and so does this */
    enum status status = auth_rules_create(&kept, &rules, error);

    if (status != STATUS_OK)
        return status;
    if (auth_rules_let_in(auth->rules) && !auth_rules_let_in(rules))
        status = error_set_field(error, STATUS_CONFIG, "auth", "no client could be authenticated any more");
    else
        status = auth_key_reader_create(auth, rules, auth->key_reader, &key_reader, error);
    if (status != STATUS_OK) {
        auth_rules_unref(rules);
        return status;
    }
    pthread_mutex_lock(&auth->mutex);
    old_rules = auth->rules;
    old_key_reader = auth->key_reader;
    auth->rules = rules;
    auth->key_reader = key_reader;
    pthread_mutex_unlock(&auth->mutex);
    auth_publish(auth, true);
    auth_key_reader_start(key_reader);
    auth_key_reader_destroy(old_key_reader);
    auth_rules_unref(old_rules);
    return STATUS_OK;
}

bool auth_needs_keys(const struct auth *auth)
{
    struct auth *shared = (struct auth *)(uintptr_t)auth; /* only the mutex changes */

    pthread_mutex_lock(&shared->mutex);
    const struct auth_rules *rules = shared->rules;
    bool needs_keys = rules->enabled && (rules->jwks_file.len > 0 || rules->jwks_url.len > 0);
    pthread_mutex_unlock(&shared->mutex);
    return needs_keys;
}

bool auth_is_ready(const struct auth *auth)
{
    struct auth *shared = (struct auth *)(uintptr_t)auth; /* only the mutex changes */
    bool needs_keys = auth_needs_keys(auth);

    pthread_mutex_lock(&shared->mutex);
    bool lets_in = auth_rules_let_in(shared->rules);
    struct auth_keyset *keys = auth_key_reader_keys(shared->key_reader);
    pthread_mutex_unlock(&shared->mutex);
    bool ready = lets_in && (!needs_keys || keys->count > 0);
    auth_keyset_unref(keys);
    return ready;
}

/* ---- the one place that decides on tenants and scopes (C5), once the caller is known; no route, module or handler
 * repeats any of this ---- */

/* Tenant of requests to routes that name none, while auth is switched off. */
#define TENANT_WITHOUT_AUTH STR("default")

enum status auth_refuse(enum auth_reason reason, struct error *error)
{
    return error_set(error, STATUS_UNAUTHENTICATED, "%s", auth_reason_sentence(reason));
}

bool auth_has_scope(const struct auth_identity *identity, struct str scope)
{
    struct str rest = identity->scopes, one;

    if (identity->is_anybody)
        return true;
    while (rest.len > 0 && str_split(&rest, ' ', &one))
        if (one.len > 0 && str_eq(one, scope))
            return true;
    return false;
}

/* Auth is switched off: everyone may do everything. The kernel sees to it that only loopback is listened on. */
static enum status decide_anonymous(struct auth_loop *state, const struct auth_question *question,
                                    const struct auth_identity **identity, struct error *error)
{
    if (question->path_tenant.ptr && !str_is_name(question->path_tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenantId",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    state->scratch = (struct auth_identity){
        .tenant = question->path_tenant.ptr ? question->path_tenant : TENANT_WITHOUT_AUTH,
        .subject = STR("anonymous"),
        .expires_at_s = INT64_MAX,
        .is_anybody = true,
    };
    *identity = &state->scratch;
    return STATUS_OK;
}

static enum status decide_request(struct auth_loop *state, const struct auth_question *question,
                                  const struct auth_identity *who, const struct auth_client *client,
                                  const struct auth_identity **identity, struct error *error)
{
    /* The caller through a configured mTLS client is the user of its token, or without a token the client itself. A
     * trusted client may name the tenant; X-Tenant-Id of any other is ignored. */
    if (client) {
        state->scratch = who ? *who
                             : (struct auth_identity){.tenant = client->tenant,
                                                      .subject = client->identity,
                                                      .scopes = client->scopes,
                                                      .expires_at_s = INT64_MAX};
        who = &state->scratch;
        state->scratch.may_override_tenant = client->trusted && state->rules->allow_tenant_header;
        if (state->scratch.may_override_tenant && question->tenant_header.len > 0) {
            if (!str_is_name(question->tenant_header))
                return error_set_field(error, STATUS_TENANT_MISMATCH, "X-Tenant-Id",
                                       "X-Tenant-Id is not a tenant name");
            state->scratch.tenant = question->tenant_header;
        }
    }
    if (who->tenant.len == 0)
        return error_set(error, STATUS_TENANT_MISMATCH, "the token names no tenant");
    if (question->path_tenant.ptr && !str_eq(question->path_tenant, who->tenant))
        return error_set(error, STATUS_TENANT_MISMATCH, "the token belongs to another tenant than the path");
    if (question->scope && !auth_has_scope(who, str_from(question->scope)))
        return error_set(error, STATUS_INSUFFICIENT_SCOPE, "this needs the scope %s", question->scope);
    if (question->needs_user && who->subject.len == 0) /* all of these would be one user */
        return error_set(error, STATUS_INSUFFICIENT_SCOPE, "this needs a user: the token has no sub");
    *identity = who;
    return STATUS_OK;
}

size_t auth_challenge(const struct error *error, char out[AUTH_CHALLENGE_BYTES])
{
    bool without_token = strcmp(error->message, auth_reason_sentence(AUTH_REASON_MISSING)) == 0;
    int len =
        without_token
            ? snprintf(out, AUTH_CHALLENGE_BYTES, "Bearer realm=\"freshet\"")
            : snprintf(out, AUTH_CHALLENGE_BYTES,
                       "Bearer realm=\"freshet\", error=\"invalid_token\", error_description=\"%.160s\"",
                       error->message);

    return (size_t)len;
}

struct auth_identity *auth_identity_copy(const struct auth_identity *identity, struct arena *arena)
{
    struct auth_identity *copy = arena_alloc(arena, sizeof(*copy));

    *copy = *identity;
    copy->tenant = arena_str(arena, identity->tenant);
    copy->subject = arena_str(arena, identity->subject);
    copy->scopes = arena_str(arena, identity->scopes);
    return copy;
}

/* ---- the question ---- */

static enum auth_answer answer_of(enum status status)
{
    return status == STATUS_OK ? AUTH_ALLOWED : AUTH_DENIED;
}

enum auth_answer auth_check(struct auth *auth, struct loop *loop, const struct auth_question *question,
                            const struct auth_identity **identity, struct error *error)
{
    struct auth_loop *state = auth_loop_of(auth, loop);
    const struct auth_client *client = NULL;
    const struct auth_verified *known;

    if (!state->rules->enabled)
        return answer_of(decide_anonymous(state, question, identity, error));
    if (question->forwarded_client_cert.len > 0 || question->client_cert.len > 0)
        client = auth_client_of(state->rules, question);
    if (question->authorization_count > 1)
        return answer_of(auth_refuse(AUTH_REASON_REPEATED, error));
    if (question->authorization_count == 0 && question->authorization.len == 0)
        return answer_of(client ? decide_request(state, question, NULL, client, identity, error)
                                : auth_refuse(AUTH_REASON_MISSING, error));

    known = auth_verified_find(&state->verified, question->authorization);
    if (!known || known->generation != state->generation) {
        /* Refused at sight where that is possible, else to be verified. */
        enum auth_reason reason = AUTH_REASON_SCHEME;
        struct str token;
        if (auth_bearer_token(question->authorization, &token))
            reason = auth_token_shape(token, &state->rules->checks);
        if (reason != AUTH_REASON_VALID ||
            auth_denied_find(&state->denied, question->authorization, state->generation,
                             loop_now_ns(state->loop), &reason))
            return answer_of(auth_refuse(reason, error));
        return AUTH_VERIFY;
    }
    if (state->tick_ns != loop_now_ns(loop)) {
        state->tick_ns = loop_now_ns(loop);
        state->wall_us = auth->now_us();
    }
    if (state->wall_us >= known->exp_us)
        return answer_of(auth_refuse(AUTH_REASON_EXPIRED, error));
    return answer_of(decide_request(state, question, &known->identity, client, identity, error));
}
