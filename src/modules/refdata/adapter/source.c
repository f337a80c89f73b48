/* Sources out of their settings: what contradicts itself is refused with its place in the file. */
#include "modules/refdata/adapter/adapter.h"

#include <stdarg.h>
#include <stdio.h>

#include "kernel/engines.h"
#include "modules/refdata/settings.h"

/* Its name in the contract, the setting that maps it, and whether it can stand outside the JSON at all. */
static const struct {
    const char *name, *setting;
    bool field_only;
} parts[REFDATA_PARTS] = {
    [REFDATA_PART_TENANT] = {"tenantId", "tenant", false},
    [REFDATA_PART_DICT_CODE] = {"dictCode", "dictCode", false},
    [REFDATA_PART_EVENT_ID] = {"eventId", "mapping.eventId", false},
    [REFDATA_PART_EVENT_TYPE] = {"eventType", "mapping.eventType", false},
    [REFDATA_PART_SOURCE_REVISION] = {"sourceRevision", "mapping.sourceRevision", false},
    [REFDATA_PART_SNAPSHOT_ID] = {"snapshotId", "mapping.snapshotId", false},
    [REFDATA_PART_CHUNK_INDEX] = {"chunkIndex", "mapping.chunkIndex", false},
    [REFDATA_PART_CHUNKS_TOTAL] = {"chunksTotal", "mapping.chunksTotal", false},
    [REFDATA_PART_OCCURRED_AT] = {"occurredAt", "mapping.occurredAt", false},
    [REFDATA_PART_ITEMS] = {"items", "mapping.items", true},
    [REFDATA_PART_KEY] = {"key", "mapping.key", false},
    [REFDATA_PART_OP] = {"op", "mapping.op", false},
    [REFDATA_PART_PAYLOAD] = {"payload", "mapping.payload", true},
};

const char *refdata_part_name(enum refdata_part part)
{
    return parts[part].name;
}

struct making {
    const struct config *config;
    const struct refdata_source_settings *settings;
    size_t index;
    struct arena *arena;
    struct error *error;
};

PRINTF_LIKE(4, 5)
static enum status refuse_setting(const struct making *making, struct setting_place place,
                                  const char *setting, const char *format, ...)
{
    char field[96], message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(field, sizeof field, "refdata.adapter.sources[%zu].%s", making->index, setting);
    return config_error_at(making->config, place, field, making->error, "%s", message);
}

/* ---- JSON pointers: parsed once, when the configuration is read, then applied to each message ---- */

enum status refdata_pointer_compile(struct str text, struct arena *arena, struct refdata_pointer *pointer,
                                    struct error *error)
{
    *pointer = (struct refdata_pointer){.text = arena_str(arena, text)};
    for (size_t i = 0; i < text.len; i++)
        pointer->count += text.ptr[i] == '/';
    if (text.len == 0)
        return STATUS_OK;
    if (text.ptr[0] != '/')
        return error_set(error, STATUS_CONFIG, "a JSON pointer begins with /: try /%.*s", STR_ARG(text));
    if (pointer->count > REFDATA_POINTER_STEPS_MAX)
        return error_set(error, STATUS_CONFIG, "a JSON pointer of more than %d steps",
                         REFDATA_POINTER_STEPS_MAX);
    pointer->steps = arena_alloc(arena, pointer->count * sizeof *pointer->steps);
    size_t at = 1; /* each step goes to the next slash; str_split() would not see an empty one at the end */
    for (size_t i = 0; i < pointer->count; i++, at++) {
        char *step = arena_alloc(arena, text.len);
        size_t len = 0;
        for (; at < text.len && text.ptr[at] != '/'; at++) {
            char c = text.ptr[at];
            if (c == '~') { /* "~1" is a slash, "~0" a tilde, and nothing else may follow one */
                if (++at == text.len || (text.ptr[at] != '0' && text.ptr[at] != '1'))
                    return error_set(error, STATUS_CONFIG,
                                     "in a JSON pointer ~ is written ~0, and / within a name ~1");
                c = text.ptr[at] == '0' ? '~' : '/';
            }
            step[len++] = c;
        }
        pointer->steps[i] = str_of(step, len);
    }
    return STATUS_OK;
}

/* An index of an array is 0, or digits that do not begin with it. */
enum status refdata_pointer_find(const struct refdata_pointer *pointer, const struct json_value *root,
                                 struct json_value *value, struct error *error)
{
    *value = *root;
    for (size_t i = 0; i < pointer->count && value->raw.len; i++) {
        const struct json_value container = *value;
        struct str step = pointer->steps[i], name;
        struct json_value element;
        struct json_iter it;
        uint64_t index = 0;
        bool is_object = container.type == JSON_OBJECT;
        bool is_index =
            container.type == JSON_ARRAY && str_to_u64(step, &index) && (step.len == 1 || step.ptr[0] != '0');
        *value = (struct json_value){0};
        if (!is_object && !is_index)
            break;
        json_iter_init(&it, &container);
        for (uint64_t at = 0; json_iter_next(&it, is_object ? &name : NULL, &element); at++) {
            if (is_object ? !json_str_eq(name, step) : at != index)
                continue;
            if (value->raw.len)
                return error_set_field(error, STATUS_BAD_REQUEST, pointer->text.ptr,
                                       "%s: comes more than once", pointer->text.ptr);
            *value = element;
            if (is_index)
                break;
        }
    }
    return STATUS_OK;
}

/* ---- where a part comes from ---- */

static enum status take_pointer(const struct making *making, enum refdata_part part, struct str text,
                                struct refdata_from *from)
{
    struct error error = {0};
    from->kind = REFDATA_AT_FIELD;
    if (refdata_pointer_compile(text, making->arena, &from->pointer, &error) == STATUS_OK)
        return STATUS_OK;
    return refuse_setting(making, making->settings->from[part].field_place, parts[part].setting, "%s",
                          error.message);
}

/* At most one of the four is given. */
static enum status take_from(const struct making *making, enum refdata_part part, struct refdata_from *from)
{
    const struct refdata_from_settings *own = &making->settings->from[part];
    const char *setting = parts[part].setting;
    const struct setting_place *first = own->field_place.line         ? &own->field_place
                                        : own->header_place.line      ? &own->header_place
                                        : own->message_key_place.line ? &own->message_key_place
                                                                      : &own->fixed_place;
    int given = (own->field_place.line > 0) + (own->header_place.line > 0) + (own->fixed_place.line > 0) +
                own->message_key;
    if (given > 1)
        return refuse_setting(making, *first, setting, "give one of field, header, messageKey and fixed");
    if (given == 0) {
        from->is_default = true;
        return take_pointer(making, part, arena_printf(making->arena, "/%s", parts[part].name), from);
    }
    if (own->field_place.line)
        return take_pointer(making, part, own->field, from);
    if (parts[part].field_only)
        return refuse_setting(making, *first, setting, "can only come from a field");
    if (own->message_key) {
        from->kind = REFDATA_AT_KEY;
        return STATUS_OK;
    }
    bool is_header = own->header_place.line;
    from->kind = is_header ? REFDATA_AT_HEADER : REFDATA_AT_FIXED;
    from->text = arena_str(making->arena, is_header ? own->header : own->fixed);
    if (from->text.len)
        return STATUS_OK;
    return refuse_setting(making, is_header ? own->header_place : own->fixed_place, setting, "is empty");
}

/* ---- one source ---- */

static bool in_body_elsewhere(const struct refdata_from *from)
{
    return from->kind == REFDATA_AT_FIELD && !from->is_default;
}

enum status refdata_source_init(struct refdata_adapter_source *source,
                                const struct refdata_source_settings *settings, size_t index,
                                const struct config *config, struct arena *arena, struct error *error)
{
    const struct making making = {
        .config = config, .settings = settings, .index = index, .arena = arena, .error = error};
    const struct refdata_from *from = source->from;
    const struct setting_strings *words = settings->words;
    enum status status = STATUS_OK;
    *source = (struct refdata_adapter_source){.settings = settings};
    if (!str_is_name(settings->topic))
        return refuse_setting(&making, settings->topic_place, "topic",
                              "must be 1 to 60 of A-Z a-z 0-9 . _ -");
    if (str_ends_with(settings->topic, STR(BUS_DEAD_SUFFIX)))
        return refuse_setting(&making, settings->topic_place, "topic",
                              "a topic of dead letters has none of its own");
    if (!str_is_name(settings->group))
        return refuse_setting(&making, settings->group_place, "group",
                              "must be 1 to 60 of A-Z a-z 0-9 . _ -");
    for (unsigned part = 0; part < REFDATA_PARTS && status == STATUS_OK; part++)
        status = take_from(&making, (enum refdata_part)part, &source->from[part]);
    source->is_mapped = settings->mapping_place.line || in_body_elsewhere(&from[REFDATA_PART_TENANT]) ||
                        in_body_elsewhere(&from[REFDATA_PART_DICT_CODE]);
    source->items_are_mapped = !from[REFDATA_PART_KEY].is_default || !from[REFDATA_PART_OP].is_default ||
                               !from[REFDATA_PART_PAYLOAD].is_default || words[REFDATA_WORD_UPSERT].count ||
                               words[REFDATA_WORD_DELETE].count;
    /* Of tenant and dictionary: a fixed one must be valid, and a message without a value has no fields. */
    static const enum refdata_part names[] = {REFDATA_PART_TENANT, REFDATA_PART_DICT_CODE};
    for (size_t i = 0; i < 2 && status == STATUS_OK; i++)
        if (from[names[i]].kind == REFDATA_AT_FIXED && !str_is_name(from[names[i]].text))
            status = refuse_setting(&making, settings->from[names[i]].fixed_place, parts[names[i]].setting,
                                    "must be 1 to 64 of A-Z a-z 0-9 . _ -");
    for (size_t i = 0; i < 2 && status == STATUS_OK; i++)
        if (settings->tombstones != REFDATA_TOMBSTONES_REFUSE && from[names[i]].kind == REFDATA_AT_FIELD)
            status = refuse_setting(
                &making, settings->tombstones_place, "tombstones",
                "a message without a value has no field for %s: take that from a header, or fix it",
                parts[names[i]].name);
    return status;
}

/* ---- all of them ---- */

static const struct refdata_dictionary_settings *find_dictionary(const struct refdata_settings *settings,
                                                                 struct str code)
{
    for (size_t i = 0; i < settings->dictionaries.count; i++) {
        const struct refdata_dictionary_settings *own = refdata_settings_dictionary(settings, i);
        if (own->enabled && str_eq(own->code, code))
            return own;
    }
    return NULL;
}

int refdata_source_database(const struct refdata_settings *settings,
                            const struct refdata_source_settings *source)
{
    const struct refdata_from_settings *code = &source->from[REFDATA_PART_DICT_CODE];
    const struct refdata_dictionary_settings *dictionary =
        code->fixed_place.line ? find_dictionary(settings, code->fixed) : NULL;
    if (source->postgres.len == 0 && dictionary)
        return refdata_settings_database(settings, dictionary->postgres);
    return refdata_settings_database(settings, source->postgres);
}

static enum status check_source(const struct making *making, const struct refdata_settings *settings)
{
    const struct refdata_source_settings *sources = settings->adapter.sources.items, *own = making->settings;
    const struct refdata_from_settings *code = &own->from[REFDATA_PART_DICT_CODE];
    int database = refdata_source_database(settings, own);
    struct refdata_adapter_source source;
    enum status status =
        refdata_source_init(&source, own, making->index, making->config, making->arena, making->error);
    if (status != STATUS_OK)
        return status;
    if (str_eq(own->topic, settings->kafka.commands_topic))
        return refuse_setting(making, own->topic_place, "topic", "the adapter's own messages go there");
    if (str_eq(own->group,
               settings->kafka.group)) /* Kafka refuses offsets of a group in which it has other members */
        return refuse_setting(making, own->group_place, "group",
                              "must differ from refdata.kafka.consumerGroup");
    for (size_t i = 0; i < making->index; i++)
        if (str_eq(sources[i].topic, own->topic))
            return refuse_setting(making, own->topic_place, "topic",
                                  "is read already, by the source at line %u", sources[i].topic_place.line);
    if (database < 0)
        return refuse_setting(making, own->postgres_place, "postgres",
                              "there is no postgres block called \"%.*s\"", STR_ARG(own->postgres));
    if (!code->fixed_place.line)
        return STATUS_OK;
    const struct refdata_dictionary_settings *dictionary = find_dictionary(settings, code->fixed);
    if (!dictionary)
        return refuse_setting(making, code->fixed_place, "dictCode", "there is no dictionary called \"%.*s\"",
                              STR_ARG(code->fixed));
    if (refdata_settings_database(settings, dictionary->postgres) != database)
        return refuse_setting(making, own->postgres_place, "postgres",
                              "the dictionary %.*s lives in another block", STR_ARG(dictionary->code));
    return STATUS_OK;
}

enum status refdata_sources_check(const struct config *config, const struct refdata_settings *settings,
                                  struct error *error)
{
    const struct refdata_source_settings *sources = settings->adapter.sources.items;
    const struct kernel_kafka *kafka = config_section(config, "kafka");
    enum status status = STATUS_OK;
    struct arena arena = ARENA(4096);
    if (settings->adapter.sources.count && !kafka->brokers.count)
        return config_error_at(config, settings->adapter.sources.places[0], "refdata.adapter.sources", error,
                               "kafka.brokers is missing: sources are topics of Kafka");
    for (size_t i = 0; i < settings->adapter.sources.count && status == STATUS_OK; i++)
        status = check_source(
            &(struct making){
                .config = config, .settings = &sources[i], .index = i, .arena = &arena, .error = error},
            settings);
    arena_deinit(&arena);
    return status;
}

/* ---- the rows of `refdata.adapter` ---- */

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
    WORDS("deltaWords", REFDATA_WORD_DELTA, "Other words for DELTA."),
    WORDS("snapshotWords", REFDATA_WORD_SNAPSHOT, "Other words for SNAPSHOT."),
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
    WORDS("upsertWords", REFDATA_WORD_UPSERT, "Other words for UPSERT."),
    WORDS("deleteWords", REFDATA_WORD_DELETE, "Other words for DELETE."),
    PART("payload", REFDATA_PART_PAYLOAD, "An item's value: `field` only. Its bytes are kept as they came."),
    {.name = NULL},
};

static const struct setting_row source_rows[] = {
    {"topic", SETTING_STRING, ROW(topic),
     "The external topic; it is not created here. Messages that are not valid updates go to the topic of this name with "
     ".dlq appended.",
     NULL, 1, 60, PLACE(topic_place)},
    {"group", SETTING_STRING, ROW(group),
     "The consumer group; not that of the commands, refdata.kafka.consumerGroup.", "refdata-adapter", 1, 60,
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
         "Where a message has the parts of an update. Without it a message is an update as in docs/REFDATA_WRITING.md, and unknown "
         "members are refused; with it, members that it does not name are ignored.",
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
