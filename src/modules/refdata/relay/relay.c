#include <stdlib.h>

#include "base/memory.h"
#include "modules/refdata/flow.h"

struct refdata_relay {
    struct refdata_flow *flow;
};

struct refdata_relay *refdata_relay_create(struct refdata_flow *flow)
{
    struct refdata_relay *relay = memory_zalloc(sizeof *relay);
    relay->flow = flow;
    return relay;
}

void refdata_relay_stop(struct refdata_relay *relay)
{
    (void)relay;
}

void refdata_relay_destroy(struct refdata_relay *relay)
{
    free(relay);
}

void refdata_relay_start(struct refdata_relay *relay)
{
    (void)relay;
}

void refdata_relay_wake(struct refdata_relay *relay)
{
    (void)relay;
}
