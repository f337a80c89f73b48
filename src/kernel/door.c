/* The door: requests with an Idempotency-Key, behind the gate and before their handler (I1, I3). Who asks is known by
 * then; what a key means is src/idempotency's. */
#include "idempotency/idempotency.h"
#include "kernel/kernel_inside.h"

struct idempotency *kernel_idempotency(struct kernel *kernel)
{
    return kernel->idempotency;
}

/* A public row has keys too, shared by everybody who may ask it. */
enum http_step kernel_door(struct http_request *request, void *context)
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
