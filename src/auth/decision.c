/* The one place that decides on tenants and scopes (C5), once it is known who asks. No route, module or
 * handler repeats any of this. */
#include <stdio.h>

#include "auth/state.h"

/* Tenant of requests to routes that name none, while auth is switched off. */
#define TENANT_WITHOUT_AUTH STR("default")

enum auth_answer auth_deny(enum auth_reason reason, struct error *error)
{
    error_set(error, STATUS_UNAUTHENTICATED, "%s", auth_reason_sentence(reason));
    return AUTH_DENIED;
}

static enum auth_answer forbid(struct error *error, enum status status, const char *message)
{
    error_set(error, status, "%s", message);
    return AUTH_DENIED;
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

/* Auth is switched off: everyone is everybody. The kernel sees to it that only loopback is listened on. */
enum auth_answer auth_anonymous(struct auth_loop *state, const struct auth_question *question,
                                const struct auth_identity **identity, struct error *error)
{
    if (question->path_tenant.ptr && !str_is_name(question->path_tenant)) {
        error_set_field(error, STATUS_BAD_REQUEST, "tenantId",
                        "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
        return AUTH_DENIED;
    }
    state->scratch = (struct auth_identity){
        .tenant = question->path_tenant.ptr ? question->path_tenant : TENANT_WITHOUT_AUTH,
        .subject = STR("anonymous"),
        .expires_at_s = INT64_MAX,
        .is_anybody = true,
    };
    *identity = &state->scratch;
    return AUTH_ALLOWED;
}

/* Who speaks through a configured mTLS client: its token's user where it brings a token, else the client
 * itself. A trusted one may name the tenant; anybody else's X-Tenant-Id is not looked at. */
static enum status through_client(struct auth_loop *state, const struct auth_question *question,
                                  const struct auth_client *client, const struct auth_identity **who,
                                  struct error *error)
{
    struct auth_identity *made = &state->scratch;

    if (*who)
        *made = **who;
    else
        *made = (struct auth_identity){.tenant = client->tenant,
                                       .subject = client->identity,
                                       .scopes = client->scopes,
                                       .expires_at_s = INT64_MAX};
    *who = made;
    made->may_override_tenant = client->trusted && state->rules->allow_tenant_header;
    if (!made->may_override_tenant || question->tenant_header.len == 0)
        return STATUS_OK;
    if (!str_is_name(question->tenant_header))
        return error_set_field(error, STATUS_TENANT_MISMATCH, "X-Tenant-Id",
                               "X-Tenant-Id is not a tenant name");
    made->tenant = question->tenant_header;
    return STATUS_OK;
}

enum auth_answer auth_decide(struct auth_loop *state, const struct auth_question *question,
                             const struct auth_identity *who, const struct auth_client *client,
                             const struct auth_identity **identity, struct error *error)
{
    if (client && through_client(state, question, client, &who, error) != STATUS_OK)
        return AUTH_DENIED;
    if (who->tenant.len == 0)
        return forbid(error, STATUS_TENANT_MISMATCH, "the token names no tenant");
    if (question->path_tenant.ptr && !str_eq(question->path_tenant, who->tenant))
        return forbid(error, STATUS_TENANT_MISMATCH, "the token belongs to another tenant than the path");
    if (question->scope && !auth_has_scope(who, str_from(question->scope))) {
        error_set(error, STATUS_INSUFFICIENT_SCOPE, "this needs the scope %s", question->scope);
        return AUTH_DENIED;
    }
    if (question->needs_user && who->subject.len == 0) /* all of these would be one user */
        return forbid(error, STATUS_INSUFFICIENT_SCOPE, "this needs a user: the token has no sub");
    *identity = who;
    return AUTH_ALLOWED;
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
