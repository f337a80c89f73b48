/* The gate: asks src/auth about every request before its body is read (C5). A token that is not known yet is checked
 * on a worker while the request is parked; nothing about tenants or scopes is decided here. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"

enum { GATE_TIMEOUT_MS = 5000 };

/* Kept outside the request, which may be gone when the signature has been checked. */
struct parked_check {
    struct kernel *kernel;
    struct loop_park_ref ref;
};

static void allow(struct http_request *request, const struct auth_identity *identity)
{
    request->identity = identity;
    /* The identity stands in the loop's table only until this callback returns. A hot GET is answered by then. */
    if (request->method != HTTP_GET || request->route->kind != HTTP_HOT)
        kernel_identity_keep(request);
}

void kernel_identity_keep(struct http_request *request)
{
    request->identity = auth_identity_copy(request->identity, request->arena);
}

static enum auth_answer ask(struct kernel *kernel, struct http_request *request, struct error *error)
{
    struct auth_question question = {
        .authorization = request->authorization,
        .authorization_count = request->authorization_count,
        .peer = request->peer,
        .scope = request->route->scope,
    };
    if (request->forwarded_client_cert.len) {
        question.forwarded_client_cert = request->forwarded_client_cert;
        question.tenant_header = http_request_header(request, STR("x-tenant-id"));
    }
    if (request->route->tenant_param &&
        http_request_param(request, request->route->tenant_param, &question.path_tenant, error) != STATUS_OK)
        return AUTH_DENIED;
    const struct auth_identity *identity = NULL;
    enum auth_answer answer = auth_check(kernel->auth, request->loop, &question, &identity, error);
    if (answer == AUTH_ALLOWED)
        allow(request, identity);
    return answer;
}

static enum http_gate refuse(struct http_request *request, const struct error *error)
{
    http_send_error(request, error);
    return HTTP_GATE_ANSWERED;
}

static void on_verified(void *context)
{
    struct parked_check *check = context;
    struct http_request *request = http_request_unpark(check->ref);
    struct kernel *kernel = check->kernel;
    free(check);
    if (!request)
        return;
    struct error error = {0};
    enum auth_answer answer = ask(kernel, request, &error);
    if (answer == AUTH_ALLOWED) {
        kernel_identity_keep(
            request); /* its turn comes later in this tick, when the loop's table may have changed */
        http_gate_resume(request);
        return;
    }
    if (answer ==
        AUTH_VERIFY) /* pushed out of its table within one tick: more tokens at once than it holds */
        error_set(&error, STATUS_OVERLOADED, "too many new tokens at once");
    http_send_error(request, &error);
}

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    struct error error;
    error_set(&error, STATUS_OVERLOADED, "checking the token took too long");
    http_send_error(request, &error);
}

static enum http_gate verify(struct kernel *kernel, struct http_request *request)
{
    struct parked_check *check = memory_alloc(sizeof *check);
    check->kernel = kernel;
    int64_t deadline_ns = loop_now_ns(request->loop) + GATE_TIMEOUT_MS * CLOCK_NS_PER_MS;
    if (!http_request_park(request, deadline_ns, on_timeout, NULL, &check->ref)) {
        free(check);
        return HTTP_GATE_ANSWERED; /* with 503, by http_request_park() */
    }
    if (auth_verify(kernel->auth, request->loop, request->authorization, on_verified, check))
        return HTTP_GATE_PARKED;
    http_request_unpark(check->ref);
    free(check);
    struct error error;
    error_set(&error, STATUS_OVERLOADED, "too many new tokens at once");
    return refuse(request, &error);
}

enum http_gate kernel_gate(struct http_request *request, void *context)
{
    struct kernel *kernel = context;
    if (request->route->access == HTTP_PUBLIC)
        return HTTP_GATE_PASS;
    struct error error = {0};
    switch (ask(kernel, request, &error)) {
    case AUTH_ALLOWED: return HTTP_GATE_PASS;
    case AUTH_VERIFY: return verify(kernel, request);
    case AUTH_DENIED: break;
    }
    return refuse(request, &error);
}
