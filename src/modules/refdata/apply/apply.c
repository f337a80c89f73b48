#include <stdlib.h>

#include "base/memory.h"
#include "modules/refdata/flow.h"

struct refdata_apply {
    struct refdata_flow *flow;
};

struct refdata_apply *refdata_apply_create(struct refdata_flow *flow)
{
    struct refdata_apply *apply = memory_zalloc(sizeof *apply);
    apply->flow = flow;
    return apply;
}

void refdata_apply_stop(struct refdata_apply *apply)
{
    (void)apply;
}

void refdata_apply_destroy(struct refdata_apply *apply)
{
    free(apply);
}

void refdata_apply_start(struct refdata_apply *apply)
{
    (void)apply;
}
