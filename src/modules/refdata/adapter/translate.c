/* A message becomes the contract's own text, part by part, as the slices that came; that text is then read by the very
 * code that reads a POST (R1), so that both take and refuse the same. Nothing here knows dictionaries or databases. */
#include <stdio.h>

#include "base/clock.h"
#include "modules/refdata/adapter/source.h"

struct translation {
    const struct refdata_adapter_source *source;
    const struct bus_message *message;
    const struct refdata_limits *limits;
    struct arena *arena;
    struct error *error;
    struct json_value values[REFDATA_MESSAGE_PARTS]; /* as the contract has them; without bytes: not there */
};

#define TIME_MS_MAX INT64_C(253402300799999) /* the last of the year 9999 */

/* The version 5 UUID of the DNS name refdata-adapter.freshet: ids are made in it, so that others can make them too. */
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

/* ---- one part of an update ---- */

static struct json_value id_value(struct str name, struct arena *arena)
{
    char text[UUID_TEXT_BYTES];
    struct uuid uuid = uuid_named(&id_space, name);
    uuid_format(&uuid, text);
    return text_value(str_from(text), arena);
}

/* The event id of a message that brings none. The time is part of it
 * since a topic that was deleted and created again counts its offsets from 0 again. */
static void make_event_id(const struct bus_message *message, struct arena *arena, char out[UUID_TEXT_BYTES])
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

/* For most senders a missing member and null are the same; a payload may be null. */
static enum status take_field(const struct translation *translation, enum refdata_part part,
                              const struct json_value *root, struct json_value *value)
{
    enum status status =
        refdata_pointer_find(&translation->source->from[part].pointer, root, value, translation->error);
    if (status == STATUS_OK && value->type == JSON_NULL && part != REFDATA_PART_PAYLOAD)
        *value = (struct json_value){0};
    return status;
}

/* A part from where the source has it, in the contract's form where others write it differently. A value that has no such form
 * stays as it is, and is refused when the update is read. `root` (the message, or an item) may be NULL: then there are no fields. */
static enum status take_part(const struct translation *translation, enum refdata_part part,
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

/* ---- the message ---- */

enum { SOURCE = REFDATA_MESSAGE_PARTS, MEMBERS }; /* the contract's members: the parts, and `source` */

static enum status refuse_part(const struct translation *translation, enum refdata_part part, const char *why)
{
    const char *name = refdata_part_name(part);
    return error_set_field(translation->error, STATUS_BAD_REQUEST, name, "%s %s", name, why);
}

/* ---- gathering the parts ---- */

/* A part that is taken from elsewhere must not differ in the body. */
static enum status take_outside(struct translation *translation, enum refdata_part part)
{
    const struct json_value in_body = translation->values[part];
    struct json_value *value = &translation->values[part];
    if (translation->source->from[part].is_default)
        return STATUS_OK;
    enum status status = take_part(translation, part, NULL, value);
    if (status != STATUS_OK || !refdata_member_given(&in_body) || !refdata_member_given(value))
        return status;
    bool same = in_body.type == JSON_STRING &&
                json_str_eq(in_body.raw, json_str_decode(value->raw, translation->arena));
    return same ? STATUS_OK : refuse_part(translation, part, "is not the source's");
}

/* Exactly the contract: an unknown member, or one that comes twice, is refused by name. */
static enum status take_members(struct translation *translation, const struct json_value *body)
{
    struct str names[MEMBERS] = {[SOURCE] = STR("source")};
    struct json_value values[MEMBERS];
    if (body->type != JSON_OBJECT)
        return error_set(translation->error, STATUS_BAD_REQUEST, "an update must be a JSON object");
    for (unsigned part = 0; part < REFDATA_MESSAGE_PARTS; part++)
        names[part] = str_from(refdata_part_name((enum refdata_part)part));
    enum status status =
        refdata_members_read(body, "", names, MEMBERS, values, translation->arena, translation->error);
    memcpy(translation->values, values, sizeof translation->values);
    if (status == STATUS_OK)
        status = take_outside(translation, REFDATA_PART_TENANT);
    return status == STATUS_OK ? take_outside(translation, REFDATA_PART_DICT_CODE) : status;
}

static enum status take_parts(struct translation *translation, const struct json_value *body)
{
    enum status status = STATUS_OK;
    for (unsigned part = 0; part < REFDATA_MESSAGE_PARTS && status == STATUS_OK; part++)
        status = take_part(translation, (enum refdata_part)part, body, &translation->values[part]);
    return status;
}

/* ---- items ---- */

static enum status put_item(const struct translation *translation, const struct json_value *item,
                            struct buf *out)
{
    buf_put_char(out, '{');
    for (unsigned part = REFDATA_MESSAGE_PARTS; part < REFDATA_PARTS; part++) {
        struct json_value value;
        enum status status = take_part(translation, (enum refdata_part)part, item, &value);
        if (status != STATUS_OK)
            return status;
        if (refdata_member_given(&value))
            json_put_member_raw(out, refdata_part_name((enum refdata_part)part), value.raw);
    }
    buf_put_char(out, '}');
    return STATUS_OK;
}

static enum status put_items(const struct translation *translation, const struct json_value *array,
                             struct buf *out)
{
    struct json_value item;
    struct json_iter it;
    size_t at = 0;
    buf_put_char(out, '[');
    json_iter_init(&it, array);
    for (; json_iter_next(&it, NULL, &item); at++) {
        if (at >= translation->limits->items_max)
            return error_set_field(translation->error, STATUS_PAYLOAD_TOO_LARGE, "items",
                                   "items: at most %zu are taken", translation->limits->items_max);
        if (at)
            buf_put_char(out, ',');
        if (put_item(translation, &item, out) != STATUS_OK)
            return error_context(translation->error, "items[%zu]", at);
    }
    buf_put_char(out, ']');
    return STATUS_OK;
}

static enum status put_only_item(const struct translation *translation, const struct json_value *item,
                                 struct buf *out)
{
    enum status status = STATUS_OK;
    buf_put_char(out, '[');
    if (translation->source->items_are_mapped)
        status = put_item(translation, item, out);
    else
        buf_put_str(out, item->raw);
    buf_put_char(out, ']');
    return status;
}

/* What is neither an array nor an object is passed on, to be refused. */
static enum status put_found(const struct translation *translation, struct buf *out)
{
    const struct refdata_adapter_source *source = translation->source;
    const struct json_value *found = &translation->values[REFDATA_PART_ITEMS];
    if (!refdata_member_given(found))
        return STATUS_OK;
    json_put_key(out, STR("items"));
    if (source->is_mapped && found->type == JSON_OBJECT)
        return put_only_item(translation, found, out);
    if (source->items_are_mapped && found->type == JSON_ARRAY)
        return put_items(translation, found, out);
    buf_put_str(out, found->raw);
    return STATUS_OK;
}

/* ---- the contract's text ---- */

static enum status put_parts(const struct translation *translation, struct buf *out)
{
    if (!refdata_member_given(&translation->values[REFDATA_PART_TENANT]))
        return refuse_part(translation, REFDATA_PART_TENANT, "is missing");
    for (unsigned part = 0; part < REFDATA_PART_ITEMS; part++)
        if (refdata_member_given(&translation->values[part]))
            json_put_member_raw(out, refdata_part_name((enum refdata_part)part),
                                translation->values[part].raw);
    return STATUS_OK;
}

static enum status put_value(struct translation *translation, struct buf *out)
{
    struct json_value body;
    enum status status =
        json_parse(translation->message->payload, translation->limits->depth_max, &body, translation->error);
    if (status != STATUS_OK)
        return status;
    status =
        translation->source->is_mapped ? take_parts(translation, &body) : take_members(translation, &body);
    if (status == STATUS_OK)
        status = put_parts(translation, out);
    return status == STATUS_OK ? put_found(translation, out) : status;
}

/* A message without a value: the item that its key names is gone. */
static enum status put_tombstone(struct translation *translation, struct buf *out)
{
    const struct refdata_adapter_source deletion = {
        .from[REFDATA_PART_KEY].kind = REFDATA_AT_KEY,
        .from[REFDATA_PART_OP] = {.kind = REFDATA_AT_FIXED, .text = STR("DELETE")}};
    struct translation item = {.source = &deletion,
                               .message = translation->message,
                               .arena = translation->arena,
                               .error = translation->error};
    if (translation->source->tombstones == REFDATA_TOMBSTONES_REFUSE)
        return error_set(translation->error, STATUS_BAD_REQUEST, "the message has no value");
    enum status status = take_parts(translation, NULL);
    translation->values[REFDATA_PART_EVENT_TYPE] = (struct json_value){JSON_STRING, STR("\"DELTA\"")};
    if (status == STATUS_OK)
        status = put_parts(translation, out);
    if (status != STATUS_OK)
        return status;
    buf_put_str(out, STR(",\"items\":["));
    status = put_item(&item, NULL, out);
    buf_put_char(out, ']');
    return status;
}

static enum status put_text(struct translation *translation, struct str *text)
{
    bool has_value = translation->message->payload.len > 0;
    struct buf out;
    buf_init(&out);
    buf_put_char(&out, '{');
    enum status status = has_value ? put_value(translation, &out) : put_tombstone(translation, &out);
    buf_put_char(&out, '}');
    if (status == STATUS_OK)
        *text = arena_str(translation->arena, buf_str(&out));
    buf_deinit(&out);
    return status;
}

/* ---- reading it ---- */

static bool names(const char *field, enum refdata_part part)
{
    const char *dot = strrchr(field, '.');
    if (part >= REFDATA_MESSAGE_PARTS)
        return dot && strncmp(field, "items[", 6) == 0 && strcmp(dot + 1, refdata_part_name(part)) == 0;
    return strcmp(field, refdata_part_name(part)) == 0;
}

/* The reason names the contract's member: add where the sender has it. */
static void explain(const struct translation *translation)
{
    struct error *error = translation->error;
    size_t len = strlen(error->message), room = sizeof error->message - len;
    for (unsigned part = 0; part < REFDATA_PARTS; part++) {
        const struct refdata_from *from = &translation->source->from[part];
        if (from->is_default || !names(error->field, (enum refdata_part)part))
            continue;
        if (from->kind == REFDATA_AT_FIELD)
            snprintf(error->message + len, room, " (field %s)",
                     from->pointer.text.len ? from->pointer.text.ptr : "\"\"");
        else if (from->kind == REFDATA_AT_HEADER)
            snprintf(error->message + len, room, " (header %s)", from->text.ptr);
        else
            snprintf(error->message + len, room,
                     from->kind == REFDATA_AT_KEY ? " (the message's key)" : " (fixed)");
        return;
    }
}

static enum status read_text(const struct translation *translation, struct str text,
                             struct refdata_update *update)
{
    struct json_value body;
    struct str code;
    enum status status =
        refdata_update_open(text, translation->limits, &body, &code, translation->arena, translation->error);
    if (status == STATUS_OK)
        status = refdata_update_read(&body, REFDATA_FROM_CLIENT, STR_NONE, translation->limits,
                                     translation->arena, update, translation->error);
    return status;
}

/* What the sender did not say is the message's own, the same each time it comes, and no part of the content: a sender's
 * second try is another message. */
static void give_rest(const struct translation *translation, struct refdata_update *update)
{
    const struct bus_message *message = translation->message;
    update->source = REFDATA_KAFKA;
    if (!refdata_member_given(&translation->values[REFDATA_PART_EVENT_ID]))
        make_event_id(message, translation->arena, update->event_id);
    if (!refdata_member_given(&translation->values[REFDATA_PART_OCCURRED_AT]) && message->created_us > 0)
        update->occurred_at_us = message->created_us;
}

enum status refdata_translate(const struct refdata_adapter_source *source, const struct bus_message *message,
                              const struct refdata_limits *limits, struct arena *arena,
                              struct refdata_update *update, struct error *error)
{
    struct translation translation = {
        .source = source, .message = message, .limits = limits, .arena = arena, .error = error};
    struct str text;
    enum status status = put_text(&translation, &text);
    if (status == STATUS_OK)
        status = read_text(&translation, text, update);
    if (status == STATUS_OK)
        give_rest(&translation, update);
    else
        explain(&translation);
    return status;
}
