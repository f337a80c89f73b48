/* What desks keep: names and covers of entities, copied into the block of whoever keeps them, so that one allocation holds
 * an entry and one free() ends it. */
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "hydration/desk.h"

/* Each is hashed by itself, so that where one ends cannot be moved. */
uint64_t hydration_entity_hash(struct str tenant, struct str entity_type, struct str entity_id)
{
    uint64_t type = hash_seeded(entity_type), owner = hash_seeded(tenant);
    return hash_seeded(entity_id) ^ (type << 21 | type >> 43) ^ (owner << 42 | owner >> 22);
}

static unsigned fields_of(const struct hydration_cover *cover)
{
    return cover && cover->mode == HYDRATION_PARTIAL ? cover->field_count : 0;
}

size_t hydration_cover_bytes(const struct hydration_cover *cover)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < fields_of(cover); i++)
        bytes += sizeof cover->fields[i] + cover->fields[i].len;
    return bytes;
}

struct str hydration_text_keep(struct str text, char **at)
{
    struct str kept = str_of(*at, text.len);
    if (text.len)
        memcpy(*at, text.ptr, text.len);
    *at += text.len;
    return kept;
}

struct hydration_cover hydration_cover_keep(const struct hydration_cover *cover, char **at)
{
    unsigned count = fields_of(cover);
    struct str *fields = (struct str *)(void *)*at;
    *at += count * sizeof *fields;
    for (unsigned i = 0; i < count; i++)
        fields[i] = hydration_text_keep(cover->fields[i], at);
    return (struct hydration_cover){cover->mode, fields, count};
}

bool hydration_cover_equal(const struct hydration_cover *a, const struct hydration_cover *b)
{
    if (a->mode != b->mode || fields_of(a) != fields_of(b))
        return false;
    for (unsigned i = 0; i < fields_of(a); i++)
        if (!str_eq(a->fields[i], b->fields[i]))
            return false;
    return true;
}

bool hydration_data_includes(const struct hydration_cover *cover, struct str data,
                             const struct hydration_cover *need)
{
    const struct json_value object = {JSON_OBJECT, data};
    struct json_value member;
    if (cover)
        return hydration_cover_includes(cover, need);
    if (need->mode == HYDRATION_FULL)
        return false;
    for (unsigned i = 0; i < fields_of(need); i++)
        if (!json_get(&object, need->fields[i], &member))
            return false;
    return true;
}
