/* What stands before a handler. The gate asks src/auth about every request before its body is read (C5), once where requests of one
 * turn repeat one another; a token that is not known yet is checked on a worker while the request is parked; nothing about tenants or
 * scopes is decided here. A request whose tenant is known counts for the rate limits (rates.c). Then the idempotency step takes requests
 * with an Idempotency-Key (I1, I3); src/idempotency defines what a key means. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "idempotency/idempotency.h"
#include "kernel/kernel_inside.h"

enum { GATE_TIMEOUT_MS = 5000, VERIFY_TRIES = 3 };

/* Kept outside the request, which may be gone when the signature has been checked. */
struct parked_check {
    struct kernel *kernel;
    struct loop_park_ref ref;
    unsigned tries;
};

void kernel_identity_keep(struct http_request *request)
{
    request->identity = auth_identity_copy(request->identity, request->arena);
    request->carried.identity = NULL;
}

static enum auth_answer ask(struct kernel *kernel, struct http_request *request, struct error *error)
{
    struct auth_question question = {
        .authorization = request->authorization,
        .authorization_count = request->authorization_count,
        .peer = request->peer,
        .scope = request->route->scope,
        .needs_user = request->route->needs_user,
    };
    if (request->forwarded_client_cert.len || request->client_cert.len) {
        question.forwarded_client_cert = request->forwarded_client_cert;
        question.client_cert = request->client_cert;
        question.is_forwarded = request->client_cert.len &&
                                http_request_header_count(request, STR("x-forwarded-client-cert")) > 0;
        if (http_request_header_count(request, STR("x-tenant-id")) == 1)
            question.tenant_header = http_request_header(request, STR("x-tenant-id"));
    }
    if (request->route->tenant_param &&
        http_request_param(request, request->route->tenant_param, &question.path_tenant, error) != STATUS_OK)
        return AUTH_DENIED;
    const struct auth_identity *identity = NULL;
    enum auth_answer answer = auth_check(kernel->auth, request->loop, &question, &identity, error);
    if (answer != AUTH_ALLOWED)
        return answer;
    request->identity = identity;
    /* The identity stands in the loop's table only until this callback returns. A hot GET is answered by then, unless
     * it waits for its body. */
    if (request->method != HTTP_GET || request->route->kind != HTTP_HOT || request->has_body)
        kernel_identity_keep(request);
    else
        request->carried.identity = identity;
    return answer;
}

static enum http_step refuse_request(struct http_request *request, const struct error *error)
{
    char challenge[AUTH_CHALLENGE_BYTES], line[AUTH_CHALLENGE_BYTES + 32] = "";
    if (error->status == STATUS_UNAUTHENTICATED) {
        auth_challenge(error, challenge);
        snprintf(line, sizeof line, "WWW-Authenticate: %s\r\n", challenge);
    }
    http_send_error_with(request, error, str_from(line), STR_NONE);
    return HTTP_STEP_ANSWERED;
}

/* The caller is known and may use the route. False: answered, since its tenant has reached a rate limit. */
static bool admit(struct kernel *kernel, struct http_request *request)
{
    const struct kernel_rates *rates = atomic_load_explicit(&kernel->rates, memory_order_acquire);
    return !rates || kernel_rates_admit(rates, request);
}

static enum http_step verify(struct kernel *kernel, struct http_request *request, unsigned tries);

static void on_verified(void *context)
{
    struct parked_check check = *(struct parked_check *)context;
    free(context);
    struct http_request *request = http_request_unpark(check.ref);
    if (!request)
        return;
    struct error error = {0};
    switch (ask(check.kernel, request, &error)) {
    case AUTH_ALLOWED:
        /* Its turn comes at the end of the tick, when the table may have changed. */
        kernel_identity_keep(request);
        if (admit(check.kernel, request))
            http_request_resume(request);
        return;
    case AUTH_VERIFY: /* rare: the keys were replaced meanwhile, or more tokens came at once than are remembered */
        verify(check.kernel, request, check.tries + 1);
        return;
    case AUTH_DENIED: refuse_request(request, &error); return;
    }
}

static enum http_step verify(struct kernel *kernel, struct http_request *request, unsigned tries)
{
    static struct http_late late = {STATUS_OVERLOADED, "checking the token took too long"};
    struct error error;
    if (tries == VERIFY_TRIES) {
        error_set(&error, STATUS_OVERLOADED, "too many new tokens at once");
        return refuse_request(request, &error);
    }
    struct parked_check *check = memory_alloc(sizeof *check);
    *check = (struct parked_check){.kernel = kernel, .tries = tries};
    int64_t deadline_ns = loop_now_ns(request->loop) + GATE_TIMEOUT_MS * CLOCK_NS_PER_MS;
    if (!http_request_park(request, deadline_ns, http_send_late, &late, &check->ref)) {
        free(check);
        return HTTP_STEP_ANSWERED; /* with 503, by http_request_park() */
    }
    if (auth_verify(kernel->auth, request->loop, http_request_sender(request), request->authorization,
                    on_verified, check))
        return HTTP_STEP_PARKED;
    http_request_unpark(check->ref);
    free(check);
    error_set(&error, STATUS_OVERLOADED, "too many new tokens at once");
    return refuse_request(request, &error);
}

enum http_step kernel_gate(struct http_request *request, void *context)
{
    struct kernel *kernel = context;
    if (request->route->access == HTTP_PUBLIC)
        return HTTP_STEP_PASS;
    if (request->carried.identity) {
        request->identity = request->carried.identity;
        return admit(kernel, request) ? HTTP_STEP_PASS : HTTP_STEP_ANSWERED;
    }
    struct error error;
    switch (ask(kernel, request, &error)) {
    case AUTH_ALLOWED: return admit(kernel, request) ? HTTP_STEP_PASS : HTTP_STEP_ANSWERED;
    case AUTH_VERIFY: return verify(kernel, request, 0);
    case AUTH_DENIED: break;
    }
    return refuse_request(request, &error);
}

uint64_t kernel_share_of(const struct http_request *request)
{
    const struct auth_identity *identity = kernel_identity(request);
    return identity ? hash_seeded(identity->tenant) : 0;
}

struct str kernel_tenant_of(const struct http_request *request)
{
    const struct auth_identity *identity = kernel_identity(request);
    return identity ? identity->tenant : STR_NONE;
}

/* ---- Idempotency-Key ---- */

/* A public route has keys too; all its callers share them. */
enum http_step kernel_idempotency_step(struct http_request *request, void *context)
{
    const struct kernel *kernel = context;
    const struct auth_identity *identity = kernel_identity(request);
    return idempotency_enter(kernel->idempotency, request, identity ? identity->tenant : STR_NONE,
                             identity ? identity->subject : STR_NONE);
}
