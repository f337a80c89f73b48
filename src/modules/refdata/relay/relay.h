/* What others may know of the relay: its table, for `freshet outbox`. Its life is in flow.h. */
#ifndef FRESHET_REFDATA_RELAY_H
#define FRESHET_REFDATA_RELAY_H

#include "outbox/outbox.h"

extern const struct outbox_table refdata_outbox_table;

#endif
