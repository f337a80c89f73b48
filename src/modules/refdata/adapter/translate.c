/* A message becomes the contract's own text, part by part, as the slices that came; that text is then read by the very
 * code that reads a POST (R1), so that both take and refuse the same. Nothing here knows dictionaries or databases. */
#include <stdio.h>

#include "auth/digest.h"
#include "base/clock.h"
#include "modules/refdata/adapter/adapter.h"

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
    struct buf out = {0};
    json_put_string(&out, text);
    struct json_value value = {JSON_STRING, arena_str(arena, buf_str(&out))};
    buf_deinit(&out);
    return value;
}

/* ---- one part of an update ---- */

/* One of the source's own words for the contract's? */
static bool adapt_word(const struct translation *translation, struct json_value *value,
                       enum refdata_word word, const char *meaning)
{
    const struct setting_strings *words = &translation->source->settings->words[word];
    for (size_t i = 0; i < words->count && value->type == JSON_STRING; i++)
        if (json_str_eq(value->raw, words->items[i])) {
            *value = (struct json_value){JSON_STRING, str_from(meaning)};
            return true;
        }
    return false;
}

/* The contract's form of a value that others write differently; of a payload the bytes are kept. */
static void adapt(const struct translation *translation, enum refdata_part part, struct json_value *value)
{
    if (part == REFDATA_PART_PAYLOAD)
        return;
    struct arena *arena = translation->arena;
    struct str text = value->type == JSON_STRING ? json_str_decode(value->raw, arena) : value->raw;
    bool is_text = value->type == JSON_STRING || value->type == JSON_NUMBER;
    char out[CLOCK_RFC3339_BYTES > UUID_TEXT_BYTES ? CLOCK_RFC3339_BYTES : UUID_TEXT_BYTES];
    struct uuid uuid;
    int64_t number;
    switch (part) {
    case REFDATA_PART_EVENT_ID:
        if (translation->source->settings->id_form == REFDATA_ID_UUID || !is_text || text.len == 0 ||
            uuid_parse(text, &uuid))
            return;
        /* A '#' is in no topic's name, nor is a '/': this differs from every id that is made of a message. */
        uuid = auth_uuid_named(
            &id_space,
            arena_printf(arena, "%.*s#%.*s", STR_ARG(translation->source->settings->topic), STR_ARG(text)));
        uuid_format(&uuid, out);
        *value = text_value(str_from(out), arena);
        break;
    case REFDATA_PART_EVENT_TYPE:
        if (!adapt_word(translation, value, REFDATA_WORD_DELTA, "\"DELTA\""))
            adapt_word(translation, value, REFDATA_WORD_SNAPSHOT, "\"SNAPSHOT\"");
        break;
    case REFDATA_PART_SOURCE_REVISION:
    case REFDATA_PART_CHUNK_INDEX:
    case REFDATA_PART_CHUNKS_TOTAL:
        if (value->type == JSON_STRING && str_to_i64(text, &number))
            *value = (struct json_value){JSON_NUMBER, arena_printf(arena, "%lld", (long long)number)};
        break;
    case REFDATA_PART_OCCURRED_AT: /* milliseconds since 1970 */
        if (!json_to_i64(value, &number) || number < 0 || number > TIME_MS_MAX)
            return;
        clock_rfc3339(number * 1000, out);
        *value = text_value(str_from(out), arena);
        break;
    case REFDATA_PART_KEY:
        if (value->type == JSON_NUMBER)
            *value = text_value(value->raw, arena);
        break;
    case REFDATA_PART_OP:
        if (!adapt_word(translation, value, REFDATA_WORD_UPSERT, "\"UPSERT\""))
            adapt_word(translation, value, REFDATA_WORD_DELETE, "\"DELETE\"");
        break;
    default: break;
    }
}

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
    case REFDATA_AT_FIELD:
        if (root)
            status = refdata_pointer_find(&from->pointer, root, value, translation->error);
        /* For most senders a missing member and null are the same; a payload may be null. */
        if (value->type == JSON_NULL && part != REFDATA_PART_PAYLOAD)
            *value = (struct json_value){0};
        break;
    case REFDATA_AT_HEADER:
        status = take_text(translation, part, bus_message_header(message, from->text), "header", value);
        break;
    case REFDATA_AT_KEY: status = take_text(translation, part, message->key, "key", value); break;
    case REFDATA_AT_FIXED: *value = text_value(from->text, translation->arena); break;
    }
    if (status == STATUS_OK && value->raw.len)
        adapt(translation, part, value);
    return status;
}

static enum status take_parts(struct translation *translation, const struct json_value *body)
{
    enum status status = STATUS_OK;
    for (unsigned part = 0; part < REFDATA_MESSAGE_PARTS && status == STATUS_OK; part++)
        status = take_part(translation, (enum refdata_part)part, body, &translation->values[part]);
    return status;
}

/* Exactly the contract: an unknown member, or one that comes twice, is refused by name. Tenant and dictionary may be taken from
 * elsewhere, and must not differ in the body then. */
static enum status take_members(struct translation *translation, const struct json_value *body)
{
    enum { SOURCE = REFDATA_MESSAGE_PARTS, MEMBERS }; /* the parts, and `source` */
    static const enum refdata_part outside[] = {REFDATA_PART_TENANT, REFDATA_PART_DICT_CODE};
    struct str names[MEMBERS] = {[SOURCE] = STR("source")};
    struct json_value values[MEMBERS];
    if (body->type != JSON_OBJECT)
        return error_set(translation->error, STATUS_BAD_REQUEST, "an update must be a JSON object");
    for (unsigned part = 0; part < REFDATA_MESSAGE_PARTS; part++)
        names[part] = str_from(refdata_part_name((enum refdata_part)part));
    enum status status =
        refdata_members_read(body, "", names, MEMBERS, values, translation->arena, translation->error);
    memcpy(translation->values, values, sizeof translation->values);
    for (size_t i = 0; status == STATUS_OK && i < sizeof outside / sizeof *outside; i++) {
        const char *name = refdata_part_name(outside[i]);
        const struct json_value *in_body = &values[outside[i]];
        struct json_value *value = &translation->values[outside[i]];
        if (translation->source->from[outside[i]].is_default)
            continue;
        status = take_part(translation, outside[i], NULL, value);
        if (status == STATUS_OK && refdata_member_given(in_body) && refdata_member_given(value) &&
            !(in_body->type == JSON_STRING &&
              json_str_eq(in_body->raw, json_str_decode(value->raw, translation->arena))))
            status =
                error_set_field(translation->error, STATUS_BAD_REQUEST, name, "%s is not the source's", name);
    }
    return status;
}

/* ---- the contract's text ---- */

static enum status put_parts(const struct translation *translation, struct buf *out)
{
    if (!refdata_member_given(&translation->values[REFDATA_PART_TENANT]))
        return error_set_field(translation->error, STATUS_BAD_REQUEST, "tenantId", "tenantId is missing");
    for (unsigned part = 0; part < REFDATA_PART_ITEMS; part++)
        if (refdata_member_given(&translation->values[part]))
            json_put_member_raw(out, refdata_part_name((enum refdata_part)part),
                                translation->values[part].raw);
    return STATUS_OK;
}

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

/* An array of items, or the only one. Anything else is passed on, to be refused. */
static enum status put_items(const struct translation *translation, struct buf *out)
{
    const struct refdata_adapter_source *source = translation->source;
    const struct json_value *found = &translation->values[REFDATA_PART_ITEMS];
    bool is_only = source->is_mapped && found->type == JSON_OBJECT;
    enum status status = STATUS_OK;
    struct json_value item;
    struct json_iter it;
    if (!refdata_member_given(found))
        return STATUS_OK;
    json_put_key(out, STR("items"));
    if (!is_only && !(source->items_are_mapped && found->type == JSON_ARRAY)) {
        buf_put_str(out, found->raw);
        return STATUS_OK;
    }
    buf_put_char(out, '[');
    if (is_only && source->items_are_mapped)
        status = put_item(translation, found, out);
    else if (is_only)
        buf_put_str(out, found->raw);
    else
        json_iter_init(&it, found);
    for (size_t at = 0; !is_only && json_iter_next(&it, NULL, &item); at++) {
        if (at >= (size_t)translation->limits->items_max)
            return error_set_field(translation->error, STATUS_PAYLOAD_TOO_LARGE, "items",
                                   "items: at most %lld are taken",
                                   (long long)translation->limits->items_max);
        if (at)
            buf_put_char(out, ',');
        if (put_item(translation, &item, out) != STATUS_OK)
            return error_context(translation->error, "items[%zu]", at);
    }
    buf_put_char(out, ']');
    return status;
}

/* A message without a value: the item that its key names is gone. */
static enum status put_tombstone(struct translation *translation, struct buf *out)
{
    struct json_value key = {0};
    if (translation->source->settings->tombstones == REFDATA_TOMBSTONES_REFUSE)
        return error_set(translation->error, STATUS_BAD_REQUEST, "the message has no value");
    enum status status = take_parts(translation, NULL);
    translation->values[REFDATA_PART_EVENT_TYPE] = (struct json_value){JSON_STRING, STR("\"DELTA\"")};
    if (status == STATUS_OK)
        status = put_parts(translation, out);
    if (status == STATUS_OK)
        status = take_text(translation, REFDATA_PART_KEY, translation->message->key, "key", &key);
    buf_put_str(out, STR(",\"items\":[{"));
    if (refdata_member_given(&key))
        json_put_member_raw(out, "key", key.raw);
    json_put_member_str(out, "op", STR("DELETE"));
    buf_put_str(out, STR("}]"));
    return status;
}

/* ---- reading it ---- */

/* The reason names the contract's member: add where the sender has it. */
static void explain(const struct translation *translation)
{
    struct error *error = translation->error;
    size_t len = strlen(error->message), room = sizeof error->message - len;
    const char *dot = strrchr(error->field, '.');
    bool in_items = dot && strncmp(error->field, "items[", 6) == 0;
    for (unsigned part = 0; part < REFDATA_PARTS; part++) {
        const struct refdata_from *from = &translation->source->from[part];
        const char *name = refdata_part_name((enum refdata_part)part);
        bool is_named = part < REFDATA_MESSAGE_PARTS ? strcmp(error->field, name) == 0
                                                     : in_items && strcmp(dot + 1, name) == 0;
        if (from->is_default || !is_named)
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

enum status refdata_translate(const struct refdata_adapter_source *source, const struct bus_message *message,
                              const struct refdata_limits *limits, struct arena *arena,
                              struct refdata_update *update, struct error *error)
{
    struct translation translation = {
        .source = source, .message = message, .limits = limits, .arena = arena, .error = error};
    struct json_value body;
    struct buf out = {0};
    struct str text, code;
    buf_put_char(&out, '{');
    enum status status = message->payload.len > 0
                             ? json_parse(message->payload, (unsigned)limits->depth_max, &body, error)
                             : put_tombstone(&translation, &out);
    if (status == STATUS_OK && message->payload.len > 0) {
        status = source->is_mapped ? take_parts(&translation, &body) : take_members(&translation, &body);
        if (status == STATUS_OK)
            status = put_parts(&translation, &out);
        if (status == STATUS_OK)
            status = put_items(&translation, &out);
    }
    buf_put_char(&out, '}');
    text = arena_str(arena, buf_str(&out));
    buf_deinit(&out);
    if (status == STATUS_OK)
        status = refdata_update_open(text, limits, &body, &code, arena, error);
    if (status == STATUS_OK)
        status = refdata_update_read(&body, REFDATA_FROM_CLIENT, STR_NONE, limits, arena, update, error);
    if (status != STATUS_OK) {
        explain(&translation);
        return status;
    }
    /* What the sender left out is the message's own, the same each time it comes, and no part of the content: a sender's second
     * try is another message. Its time is part of the id since a topic that was deleted and created again counts its offsets from
     * 0 again. */
    update->source = REFDATA_KAFKA;
    if (!refdata_member_given(&translation.values[REFDATA_PART_EVENT_ID])) {
        struct uuid uuid = auth_uuid_named(
            &id_space, arena_printf(arena, "%.*s/%u/%lld/%lld", STR_ARG(message->topic), message->partition,
                                    (long long)message->offset, (long long)(message->created_us / 1000)));
        uuid_format(&uuid, update->event_id);
    }
    if (!refdata_member_given(&translation.values[REFDATA_PART_OCCURRED_AT]) && message->created_us > 0)
        update->occurred_at_us = message->created_us;
    return STATUS_OK;
}
