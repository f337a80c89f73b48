#include <stdlib.h>

#include "base/memory.h"
#include "modules/refdata/flow.h"

struct refdata_invalidations {
    struct refdata_flow *flow;
};

struct refdata_invalidations *refdata_invalidations_create(struct refdata_flow *flow)
{
    struct refdata_invalidations *invalidations = memory_zalloc(sizeof *invalidations);
    invalidations->flow = flow;
    return invalidations;
}


void refdata_invalidations_destroy(struct refdata_invalidations *invalidations)
{
    free(invalidations);
}

void refdata_invalidations_hint(struct refdata_invalidations *invalidations, struct str tenant,
                                struct str code, int64_t version)
{
    (void)invalidations, (void)tenant, (void)code, (void)version;
}
