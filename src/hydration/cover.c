/* Covers: how much of an entity; and names of entities. Fields are sorted, so that one walk compares two covers. */
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "hydration/inside.h"

bool hydration_cover_includes(const struct hydration_cover *wide, const struct hydration_cover *narrow)
{
    unsigned at = 0;
    if (wide->mode == HYDRATION_FULL || narrow->mode == HYDRATION_FULL)
        return wide->mode == HYDRATION_FULL;
    for (unsigned i = 0; i < narrow->field_count; i++) {
        while (at < wide->field_count && str_compare(wide->fields[at], narrow->fields[i]) < 0)
            at++;
        if (at == wide->field_count || !str_eq(wide->fields[at], narrow->fields[i]))
            return false;
    }
    return true;
}

bool hydration_cover_equal(const struct hydration_cover *a, const struct hydration_cover *b)
{
    return a->mode == b->mode && a->field_count == b->field_count && hydration_cover_includes(a, b);
}

bool hydration_event_includes(const struct hydration_event *event, const struct hydration_cover *need)
{
    const struct json_value object = {JSON_OBJECT, event->data};
    struct json_value member;
    if (event->has_cover)
        return hydration_cover_includes(&event->cover, need);
    if (need->mode == HYDRATION_FULL)
        return false;
    for (unsigned i = 0; i < need->field_count; i++)
        if (!json_get(&object, need->fields[i], &member))
            return false;
    return true;
}

void hydration_cover_cut(const struct hydration_cover *cover, struct str object, struct buf *out)
{
    const struct json_value whole = {JSON_OBJECT, object};
    struct json_value member;
    struct json_iter it;
    struct str name;
    bool is_first = true;

    if (cover->mode == HYDRATION_FULL) {
        buf_put_str(out, object);
        return;
    }
    buf_put_char(out, '{');
    json_iter_init(&it, &whole);
    while (cover->field_count > 0 && json_iter_next(&it, &name, &member)) {
        unsigned at = 0;
        while (at < cover->field_count && !json_str_eq(name, cover->fields[at]))
            at++;
        if (at == cover->field_count)
            continue;
        if (!is_first)
            buf_put_char(out, ',');
        is_first = false;
        buf_put_str(out, name);
        buf_put_char(out, ':');
        buf_put_str(out, member.raw);
    }
    buf_put_char(out, '}');
}

/* ---- copies ---- */

static size_t cover_bytes(const struct hydration_cover *cover)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < cover->field_count; i++)
        bytes += sizeof cover->fields[i] + cover->fields[i].len;
    return bytes;
}

struct str hydration_text_keep(struct str text, char **at)
{
    struct str kept = str_of(*at, text.len);
    *at = str_put(*at, text);
    return kept;
}

static void keep_cover(struct hydration_cover *cover, char **at)
{
    struct str *fields = (struct str *)(void *)*at;
    *at += cover->field_count * sizeof *fields;
    for (unsigned i = 0; i < cover->field_count; i++)
        fields[i] = hydration_text_keep(cover->fields[i], at);
    cover->fields = fields;
}

size_t hydration_need_bytes(const struct hydration_need *need)
{
    return cover_bytes(&need->cover) + need->tenant.len + need->caller.len + need->entity_type.len +
           need->entity_id.len;
}

void hydration_need_keep(struct hydration_need *need, char *at)
{
    keep_cover(&need->cover, &at);
    need->tenant = hydration_text_keep(need->tenant, &at);
    need->caller = hydration_text_keep(need->caller, &at);
    need->entity_type = hydration_text_keep(need->entity_type, &at);
    need->entity_id = hydration_text_keep(need->entity_id, &at);
}

size_t hydration_event_bytes(const struct hydration_event *event)
{
    return cover_bytes(&event->cover) + event->tenant.len + event->caller.len + event->correlation_id.len +
           event->entity_type.len + event->entity_id.len + event->module.len + event->data.len +
           event->traceparent.len;
}

void hydration_event_keep(struct hydration_event *event, char *at)
{
    struct str *const texts[] = {&event->tenant,      &event->caller,     &event->correlation_id,
                                 &event->entity_type, &event->entity_id,  &event->module,
                                 &event->data,        &event->traceparent};
    keep_cover(&event->cover, &at);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        *texts[i] = hydration_text_keep(*texts[i], &at);
}

/* ---- names ---- */

/* Each name is hashed by itself, so that ("ab","c") and ("a","bc") have different hashes. */
uint64_t hydration_entity_hash(struct str tenant, struct str entity_type, struct str entity_id)
{
    uint64_t type_hash = hash_seeded(entity_type), tenant_hash = hash_seeded(tenant);
    return hash_seeded(entity_id) ^ (type_hash << 21 | type_hash >> 43) ^
           (tenant_hash << 42 | tenant_hash >> 22);
}

bool hydration_is_text(struct str text, size_t bytes_max)
{
    if (text.len == 0 || text.len > bytes_max || !str_is_utf8(text))
        return false;
    bool has_control = false;
    for (size_t i = 0; i < text.len; i++) /* no early exit, so that the compiler can vectorise the loop */
        has_control |= (unsigned char)text.ptr[i] < 0x20 || text.ptr[i] == 0x7F;
    return !has_control;
}

bool hydration_is_type(struct str text)
{
    if (text.len == 0 || text.len > HYDRATION_TYPE_BYTES_MAX || text.ptr[0] < 'a' || text.ptr[0] > 'z')
        return false;
    for (size_t i = 1; i < text.len; i++) {
        char c = text.ptr[i];
        if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_')
            return false;
    }
    return true;
}

enum status hydration_need_check(struct hydration_need *need, struct str *fields, unsigned field_count,
                                 struct error *error)
{
    if (!hydration_is_type(need->entity_type))
        return error_set_field(error, STATUS_BAD_REQUEST, "entity_type",
                               "entity_type: 1 to %d of a-z, 0-9 and _, the first a letter",
                               HYDRATION_TYPE_BYTES_MAX);
    if (!hydration_is_text(need->entity_id, HYDRATION_ID_BYTES_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "entity_id",
                               "entity_id: 1 to %d bytes of text without control characters",
                               HYDRATION_ID_BYTES_MAX);
    if (need->caller.len && !hydration_is_text(need->caller, HYDRATION_CALLER_BYTES_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "sub",
                               "sub: at most %d bytes of text without control characters",
                               HYDRATION_CALLER_BYTES_MAX);
    if (need->cover.mode != HYDRATION_PARTIAL)
        field_count = 0;
    else if (field_count == 0)
        return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: partial needs at least one");
    if (field_count > HYDRATION_FIELDS_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "fields", "fields: at most %d",
                               HYDRATION_FIELDS_MAX);
    for (unsigned i = 0; i < field_count; i++)
        if (!hydration_is_text(fields[i], HYDRATION_FIELD_BYTES_MAX))
            return error_set_field(error, STATUS_BAD_REQUEST, "fields",
                                   "fields: each is 1 to %d bytes of text without control characters",
                                   HYDRATION_FIELD_BYTES_MAX);
    need->cover.fields = fields;
    need->cover.field_count = (unsigned)str_sort(fields, field_count);
    return STATUS_OK;
}
