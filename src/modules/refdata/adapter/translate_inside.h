/* What translate.c and parts.c have between them. */
#ifndef FRESHET_REFDATA_ADAPTER_TRANSLATE_INSIDE_H
#define FRESHET_REFDATA_ADAPTER_TRANSLATE_INSIDE_H

#include "modules/refdata/adapter/source.h"

struct translation {
    const struct refdata_adapter_source *source;
    const struct bus_message *message;
    const struct refdata_limits *limits;
    struct arena *arena;
    struct error *error;
    struct json_value values[REFDATA_MESSAGE_PARTS]; /* as the contract has them; without bytes: not there */
};

/* A part from where the source has it; `root` (the message, or an item) may be NULL: then there are no fields. */
enum status refdata_part_take(const struct translation *translation, enum refdata_part part,
                              const struct json_value *root, struct json_value *value) MUST_CHECK;

/* The event id of a message that brings none. */
void refdata_part_make_id(const struct bus_message *message, struct arena *arena, char out[UUID_TEXT_BYTES]);

#endif
