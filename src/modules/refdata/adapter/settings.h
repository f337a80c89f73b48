/* The adapter's settings: which topics are read, and where in their messages the parts of an update stand (R9). */
#ifndef FRESHET_REFDATA_ADAPTER_SETTINGS_H
#define FRESHET_REFDATA_ADAPTER_SETTINGS_H

#include "base/setting.h"

/* The parts of an update that a mapping may look for elsewhere than the contract has them. */
enum refdata_part {
    REFDATA_PART_TENANT,
    REFDATA_PART_DICT_CODE,
    REFDATA_PART_EVENT_ID,
    REFDATA_PART_EVENT_TYPE,
    REFDATA_PART_SOURCE_REVISION,
    REFDATA_PART_SNAPSHOT_ID,
    REFDATA_PART_CHUNK_INDEX,
    REFDATA_PART_CHUNKS_TOTAL,
    REFDATA_PART_OCCURRED_AT,
    REFDATA_PART_ITEMS,
    REFDATA_MESSAGE_PARTS, /* the rest is looked for in each item */
    REFDATA_PART_KEY = REFDATA_MESSAGE_PARTS,
    REFDATA_PART_OP,
    REFDATA_PART_PAYLOAD,
    REFDATA_PARTS
};

/* One of the four, or none of them: then the part stands where the contract has it. */
struct refdata_from_settings {
    struct str fixed, header, field;
    bool message_key;
    struct setting_place fixed_place, header_place, field_place, message_key_place;
};

/* Other people's words for the contract's. */
enum refdata_word {
    REFDATA_WORD_DELTA,
    REFDATA_WORD_SNAPSHOT,
    REFDATA_WORD_UPSERT,
    REFDATA_WORD_DELETE,
    REFDATA_WORDS
};

enum refdata_tombstones { REFDATA_TOMBSTONES_REFUSE, REFDATA_TOMBSTONES_DELETE };
enum refdata_id_form { REFDATA_ID_UUID, REFDATA_ID_ANY };

struct refdata_source_settings {
    struct str topic, group, postgres;
    struct setting_place topic_place, group_place, postgres_place, tombstones_place, mapping_place;
    int tombstones, id_form;
    struct refdata_from_settings from[REFDATA_PARTS];
    struct setting_strings words[REFDATA_WORDS];
};

struct refdata_adapter_settings {
    struct setting_objects sources; /* struct refdata_source_settings */
    int64_t handlers;
};

extern const struct setting_row refdata_adapter_rows[]; /* of struct refdata_adapter_settings */

#endif
