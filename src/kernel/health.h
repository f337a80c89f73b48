/* Health (C8): every role and component of the process, UP or DOWN. A module adds its own; the process is ready while
 * at least one of its roles can work. */
#ifndef FRESHET_KERNEL_HEALTH_H
#define FRESHET_KERNEL_HEALTH_H

#include "base/buf.h"
#include "base/str.h"

struct health {
    struct buf roles, components; /* JSON members gathered so far */
    unsigned roles_up, roles_down;
    bool starting;
};

/* A role can work or not. `detail` (may be empty) is for people: never a secret. */
void health_role(struct health *health, const char *role, bool up, struct str detail);
/* A role has not finished what it does before its first request (preloads): alive, but not ready yet. */
void health_starting(struct health *health);
/* A thing the process depends on: reported, but by itself no reason to be taken out of service. */
void health_component(struct health *health, const char *kind, struct str name, bool up, struct str detail);

#endif
