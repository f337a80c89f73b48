/* Intake: items that are created by POST, once each (I8, specification 002), with an event for each. */
#ifndef FRESHET_INTAKE_H
#define FRESHET_INTAKE_H

#include "base/arena.h"
#include "base/str.h"

/* The sku of an event's aggregate_key, in the arena; false: the key is not of an item. */
bool intake_sku_of_key(struct str key, struct arena *arena, struct str *sku);

#endif
