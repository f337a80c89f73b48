/* The rows of `refdata.adapter`. */
#include "modules/refdata/adapter/settings.h"

#define FROM_ROW(member) .offset = offsetof(struct refdata_from_settings, member)
#define FROM_PLACE(member) .place_offset = 1 + offsetof(struct refdata_from_settings, member)
#define ROW(member) .offset = offsetof(struct refdata_source_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct refdata_source_settings, member)
#define PART(yaml, part, text)                                                         \
    {                                                                                  \
        yaml, SETTING_OBJECT, ROW(from[part]), text, .rows = from_rows, .fallback = "" \
    }
#define WORDS(yaml, word, text)                               \
    {                                                         \
        yaml, SETTING_STRING_LIST, ROW(words[word]), text, "" \
    }

static const char *const tombstone_choices[] = {"REFUSE", "DELETE", NULL};
static const char *const id_forms[] = {"UUID", "ANY", NULL};

/* Where a part of an update comes from: one of these. */
static const struct setting_row from_rows[] = {
    {"field", SETTING_STRING, FROM_ROW(field),
     "A JSON pointer (RFC 6901) into the message, for key, op and payload into the item: /meta/id; \"\" is the whole.",
     "", FROM_PLACE(field_place)},
    {"header", SETTING_STRING, FROM_ROW(header), "Name of the message's header that holds it.", "",
     FROM_PLACE(header_place)},
    {"messageKey", SETTING_BOOL, FROM_ROW(message_key), "true: the message's key is it, as text.", "false",
     FROM_PLACE(message_key_place)},
    {"fixed", SETTING_STRING, FROM_ROW(fixed), "The same for every message.", "", FROM_PLACE(fixed_place)},
    {.name = NULL},
};

static const struct setting_row mapping_rows[] = {
    PART("eventId", REFDATA_PART_EVENT_ID,
         "The event's id. Where a message has none, one is made of its topic, partition, offset and time."),
    {"eventIdForm", SETTING_ENUM, ROW(id_form),
     "UUID: another eventId is refused. ANY: a UUID is made of any other text or number.", "UUID",
     .choices = id_forms},
    PART("eventType", REFDATA_PART_EVENT_TYPE, "DELTA or SNAPSHOT."),
    WORDS("deltaWords", REFDATA_WORD_DELTA, "What else than DELTA means it."),
    WORDS("snapshotWords", REFDATA_WORD_SNAPSHOT, "What else than SNAPSHOT means it."),
    PART("sourceRevision", REFDATA_PART_SOURCE_REVISION, "A whole number, as such or as text."),
    PART("snapshotId", REFDATA_PART_SNAPSHOT_ID, "Of a chunk: its snapshot."),
    PART("chunkIndex", REFDATA_PART_CHUNK_INDEX, "Of a chunk: which it is, from 1."),
    PART("chunksTotal", REFDATA_PART_CHUNKS_TOTAL, "Of a chunk: how many there are."),
    PART(
        "occurredAt", REFDATA_PART_OCCURRED_AT,
        "A time in UTC as text, or milliseconds since 1970 as a number. Where a message has none, its own time counts."),
    PART("items", REFDATA_PART_ITEMS, "Where the items are: an array of them, or the only one."),
    PART("key", REFDATA_PART_KEY, "An item's key: text, or a number as it is written."),
    PART("op", REFDATA_PART_OP, "UPSERT or DELETE."),
    WORDS("upsertWords", REFDATA_WORD_UPSERT, "What else than UPSERT means it."),
    WORDS("deleteWords", REFDATA_WORD_DELETE, "What else than DELETE means it."),
    PART("payload", REFDATA_PART_PAYLOAD, "An item's value: `field` only. Its bytes are kept as they came."),
    {.name = NULL},
};

static const struct setting_row source_rows[] = {
    {"topic", SETTING_STRING, ROW(topic),
     "The topic, somebody else's: it is not created here. What cannot be understood goes to the topic with .dlq behind "
     "its name.",
     NULL, 1, 60, PLACE(topic_place)},
    {"group", SETTING_STRING, ROW(group), "The consumer group.", "refdata-adapter", 1, 60,
     PLACE(group_place)},
    {"postgres", SETTING_STRING, ROW(postgres),
     "Name of the postgres block its dictionaries live in; empty = that of the fixed dictCode, or the first.",
     "", PLACE(postgres_place)},
    PART("tenant", REFDATA_PART_TENANT, "The tenant of its messages; without it their field /tenantId."),
    PART("dictCode", REFDATA_PART_DICT_CODE, "Their dictionary; without it the field /dictCode."),
    {"tombstones", SETTING_ENUM, ROW(tombstones),
     "A message without a value: DELETE deletes the item whose key is the message's, REFUSE makes it a dead letter.",
     "REFUSE", .choices = tombstone_choices, PLACE(tombstones_place)},
    {"mapping", SETTING_OBJECT,
     .help =
         "Where the parts of an update stand. Without it a message is the update of docs/REFDATA.md and a member more "
         "is refused; with it, members that it does not name are ignored.",
     .rows = mapping_rows, .fallback = "", PLACE(mapping_place)},
    {.name = NULL},
};

const struct setting_row refdata_adapter_rows[] = {
    {"handlers", SETTING_INT, offsetof(struct refdata_adapter_settings, handlers),
     "Partitions of external topics handled at once, per database.", "4", .min = 1, .max = 64},
    {"sources", SETTING_OBJECT_LIST, offsetof(struct refdata_adapter_settings, sources),
     "The external Kafka topics that are read; needs kafka.brokers.", "", .min = 0, .max = 256,
     .rows = source_rows, .element_bytes = sizeof(struct refdata_source_settings)},
    {.name = NULL},
};
