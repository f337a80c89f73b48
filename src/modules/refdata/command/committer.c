#include <stdlib.h>

#include "base/memory.h"
#include "modules/refdata/flow.h"

struct refdata_committer {
    struct refdata_flow *flow;
};

struct refdata_committer *refdata_committer_create(struct refdata_flow *flow)
{
    struct refdata_committer *committer = memory_zalloc(sizeof *committer);
    committer->flow = flow;
    return committer;
}

void refdata_committer_stop(struct refdata_committer *committer)
{
    (void)committer;
}

void refdata_committer_destroy(struct refdata_committer *committer)
{
    free(committer);
}
