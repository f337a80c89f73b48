/* One part of an update: found in the message, and brought into the contract's form where others write it differently. A
 * value that has no such form stays as it is, to be refused by whoever reads the update. */
#include "base/clock.h"
#include "modules/refdata/adapter/translate_inside.h"

#define TIME_MS_MAX INT64_C(253402300799999) /* the last of the year 9999 */

/* The version 5 UUID of the DNS name refdata-adapter.freshet: ids are made in it, so that anybody can make them too. */
static const struct uuid id_space = {
    {0x23, 0xe2, 0xe3, 0x27, 0x37, 0xb1, 0x56, 0x45, 0xa7, 0x60, 0x8d, 0xd8, 0x9f, 0x2e, 0xf6, 0xef}};

static struct json_value text_value(struct str text, struct arena *arena)
{
    struct buf out;
    buf_init(&out);
    json_put_string(&out, text);
    struct json_value value = {JSON_STRING, arena_str(arena, buf_str(&out))};
    buf_deinit(&out);
    return value;
}

/* ---- ids ---- */

static struct json_value id_value(struct str name, struct arena *arena)
{
    char text[UUID_TEXT_BYTES];
    struct uuid uuid = uuid_named(&id_space, name);
    uuid_format(&uuid, text);
    return text_value(str_from(text), arena);
}

/* The time is in it since a topic that was deleted and made anew counts its offsets from 0 again. */
void refdata_part_make_id(const struct bus_message *message, struct arena *arena, char out[UUID_TEXT_BYTES])
{
    struct uuid uuid = uuid_named(&id_space, arena_printf(arena, "%.*s/%u/%lld/%lld", STR_ARG(message->topic),
                                                          message->partition, (long long)message->offset,
                                                          (long long)(message->created_us / 1000)));
    uuid_format(&uuid, out);
}

/* A '#' is in no topic's name, nor is a '/': ids of the two kinds cannot meet. */
static void adapt_id(const struct translation *translation, struct json_value *value)
{
    struct arena *arena = translation->arena;
    struct str text = value->type == JSON_STRING ? json_str_decode(value->raw, arena) : value->raw;
    struct uuid uuid;
    bool is_id = value->type == JSON_STRING || value->type == JSON_NUMBER;
    if (translation->source->id_form == REFDATA_ID_UUID || !is_id || text.len == 0 || uuid_parse(text, &uuid))
        return;
    *value =
        id_value(arena_printf(arena, "%.*s#%.*s", STR_ARG(translation->source->topic), STR_ARG(text)), arena);
}

/* ---- the other forms ---- */

static void adapt_number(const struct translation *translation, struct json_value *value)
{
    int64_t number;
    if (value->type != JSON_STRING || !str_to_i64(json_str_decode(value->raw, translation->arena), &number))
        return;
    *value = (struct json_value){JSON_NUMBER, arena_printf(translation->arena, "%lld", (long long)number)};
}

static void adapt_time(const struct translation *translation, struct json_value *value)
{
    char text[CLOCK_RFC3339_BYTES];
    int64_t ms;
    if (!json_to_i64(value, &ms) || ms < 0 || ms > TIME_MS_MAX)
        return;
    clock_rfc3339(ms * 1000, text);
    *value = text_value(str_from(text), translation->arena);
}

static void adapt_key(const struct translation *translation, struct json_value *value)
{
    if (value->type == JSON_NUMBER)
        *value = text_value(value->raw, translation->arena);
}

static bool is_among(const struct setting_strings *words, struct str raw)
{
    for (size_t i = 0; i < words->count; i++)
        if (json_str_eq(raw, words->items[i]))
            return true;
    return false;
}

static void adapt_word(const struct translation *translation, struct json_value *value,
                       enum refdata_word first, const char *const meanings[2])
{
    for (unsigned i = 0; i < 2 && value->type == JSON_STRING; i++)
        if (is_among(&translation->source->words[first + i], value->raw)) {
            *value = (struct json_value){JSON_STRING, str_from(meanings[i])};
            return;
        }
}

static void adapt_type(const struct translation *translation, struct json_value *value)
{
    adapt_word(translation, value, REFDATA_WORD_DELTA, (const char *const[2]){"\"DELTA\"", "\"SNAPSHOT\""});
}

static void adapt_op(const struct translation *translation, struct json_value *value)
{
    adapt_word(translation, value, REFDATA_WORD_UPSERT, (const char *const[2]){"\"UPSERT\"", "\"DELETE\""});
}

static void (*const adapters[REFDATA_PARTS])(const struct translation *translation,
                                             struct json_value *value) = {
    [REFDATA_PART_EVENT_ID] = adapt_id,
    [REFDATA_PART_EVENT_TYPE] = adapt_type,
    [REFDATA_PART_SOURCE_REVISION] = adapt_number,
    [REFDATA_PART_CHUNK_INDEX] = adapt_number,
    [REFDATA_PART_CHUNKS_TOTAL] = adapt_number,
    [REFDATA_PART_OCCURRED_AT] = adapt_time,
    [REFDATA_PART_KEY] = adapt_key,
    [REFDATA_PART_OP] = adapt_op,
};

/* ---- finding ---- */

static enum status take_text(const struct translation *translation, enum refdata_part part, struct str text,
                             const char *what, struct json_value *value)
{
    if (text.len == 0)
        return STATUS_OK;
    if (!str_is_utf8(text))
        return error_set_field(translation->error, STATUS_BAD_REQUEST, refdata_part_name(part),
                               "%s: the message's %s is not UTF-8", refdata_part_name(part), what);
    *value = text_value(text, translation->arena);
    return STATUS_OK;
}

/* To leave something out and to say null is the same to most senders; a payload may well be null. */
static enum status take_field(const struct translation *translation, enum refdata_part part,
                              const struct json_value *root, struct json_value *value)
{
    enum status status =
        refdata_pointer_find(&translation->source->from[part].pointer, root, value, translation->error);
    if (status == STATUS_OK && value->type == JSON_NULL && part != REFDATA_PART_PAYLOAD)
        *value = (struct json_value){0};
    return status;
}

enum status refdata_part_take(const struct translation *translation, enum refdata_part part,
                              const struct json_value *root, struct json_value *value)
{
    const struct refdata_from *from = &translation->source->from[part];
    const struct bus_message *message = translation->message;
    enum status status = STATUS_OK;
    *value = (struct json_value){0};
    switch (from->kind) {
    case REFDATA_AT_FIELD: status = root ? take_field(translation, part, root, value) : STATUS_OK; break;
    case REFDATA_AT_HEADER:
        status = take_text(translation, part, bus_message_header(message, from->text), "header", value);
        break;
    case REFDATA_AT_KEY: status = take_text(translation, part, message->key, "key", value); break;
    case REFDATA_AT_FIXED: *value = text_value(from->text, translation->arena); break;
    }
    if (status == STATUS_OK && value->raw.len && adapters[part])
        adapters[part](translation, value);
    return status;
}
