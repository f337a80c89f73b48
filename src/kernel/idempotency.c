/* The idempotency step: requests with an Idempotency-Key, after the gate and before their handler (I1, I3). The caller's identity is
 * known by then; src/idempotency defines what a key means. */
#include "idempotency/idempotency.h"
#include "kernel/kernel_inside.h"

struct idempotency *kernel_idempotency(struct kernel *kernel)
{
    return kernel->idempotency;
}

/* A public route has keys too; all its callers share them. */
enum http_step kernel_idempotency_step(struct http_request *request, void *context)
{
    const struct kernel *kernel = context;
    const struct auth_identity *identity = kernel_identity(request);

    return idempotency_enter(kernel->idempotency, request, identity ? identity->tenant : STR_NONE,
                             identity ? identity->subject : STR_NONE);
}

void kernel_leave(struct http_request *request, void *context)
{
    const struct kernel *kernel = context;
    idempotency_leave(kernel->idempotency, request);
}
