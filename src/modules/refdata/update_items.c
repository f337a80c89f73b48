/* The items of an update: each checked once, when it is read (R8), then walked without further checks; and the hash of their
 * content. */
#include <stdio.h>

#include "modules/refdata/update.h"

/* ---- the content of a JSON value ----
 * The same hash for any white space and any order of an object's members. Texts and numbers count as they were written: 1.0 is not 1.
 * One pass over the bytes, with what is open on a stack: a nested value costs no more than a flat one.
 *
 *     object = H('{', sum of H(name, value))      the sum knows no order
 *     array  = H('[', H(… H(H(0, first), second) …))
 *     scalar = H('"' or 'v', its bytes) */

/* One open container. */
struct content_level {
    struct hash128 sum;
    struct str name; /* of the member whose value comes next; ptr NULL = none was read */
    bool is_object;
};

struct walk {
    const char *p, *end;
    struct content_level *levels;
    size_t depth;
    struct hash128 value; /* the last one that was finished */
};

struct str refdata_hash_bytes(struct hash128 hash, char out[REFDATA_HASH_BYTES])
{
    for (unsigned i = 0; i < 8; i++) {
        out[i] = (char)(hash.low >> (8 * i));
        out[8 + i] = (char)(hash.high >> (8 * i));
    }
    return str_of(out, REFDATA_HASH_BYTES);
}

static void add(struct walk *walk, struct hash128 value)
{
    char value_bytes[REFDATA_HASH_BYTES], sum_bytes[REFDATA_HASH_BYTES];
    walk->value = value;
    if (walk->depth == 0)
        return;
    struct content_level *level = &walk->levels[walk->depth - 1];
    struct str value_text = refdata_hash_bytes(value, value_bytes);
    if (level->is_object) {
        hash128_add(&level->sum, hash_item(level->name, value_text));
        level->name = STR_NONE;
    } else {
        level->sum = hash_item(refdata_hash_bytes(level->sum, sum_bytes), value_text);
    }
}

static bool is_delimiter(char c)
{
    return c == ',' || c == ':' || c == '}' || c == ']' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* From the opening quote on; what is between the quotes. */
static struct str take_string(struct walk *walk)
{
    const char *start = ++walk->p;
    while (walk->p < walk->end && *walk->p != '"')
        walk->p += *walk->p == '\\' ? 2 : 1;
    struct str inside = str_of(start, (size_t)(walk->p - start));
    walk->p++;
    return inside;
}

/* `raw` is validated and at most as deep as `levels` has room. */
static struct hash128 hash_json(struct str raw, struct content_level *levels)
{
    struct walk walk = {.p = raw.ptr, .end = raw.ptr + raw.len, .levels = levels};
    while (walk.p < walk.end) {
        struct content_level *level = walk.depth ? &levels[walk.depth - 1] : NULL;
        char c = *walk.p, bytes[REFDATA_HASH_BYTES];
        if (c == '{' || c == '[') {
            levels[walk.depth++] = (struct content_level){.is_object = c == '{'};
            walk.p++;
        } else if (c == '}' || c == ']') {
            walk.depth--;
            add(&walk, hash_item(c == '}' ? STR("{") : STR("["), refdata_hash_bytes(level->sum, bytes)));
            walk.p++;
        } else if (c == '"' && level && level->is_object && !level->name.ptr) {
            level->name = take_string(&walk);
        } else if (c == '"') {
            add(&walk, hash_item(STR("\""), take_string(&walk)));
        } else if (is_delimiter(c)) {
            walk.p++;
        } else {
            const char *start = walk.p;
            while (walk.p < walk.end && !is_delimiter(*walk.p))
                walk.p++;
            add(&walk, hash_item(STR("v"), str_of(start, (size_t)(walk.p - start))));
        }
    }
    return walk.value;
}

/* ---- the items ---- */

enum { KEY, OP, PAYLOAD, MEMBERS };

static const struct str item_names[MEMBERS] = {
    [KEY] = {"key", 3},
    [OP] = {"op", 2},
    [PAYLOAD] = {"payload", 7},
};

struct check {
    const struct refdata_limits *limits;
    struct refdata_update *update;
    struct arena *arena;
    struct content_level *levels;
    size_t at;
    struct hash128 content;
    struct error *error;
};

static enum status refuse_item(const struct check *check, const char *member, const char *why)
{
    char field[sizeof check->error->field];
    snprintf(field, sizeof field, "items[%zu]%s%s", check->at, *member ? "." : "", member);
    return error_set_field(check->error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

static enum status check_key(const struct check *check, const struct json_value *value, struct str *key)
{
    if (!refdata_member_given(value))
        return refuse_item(check, "key", "is missing");
    if (value->type != JSON_STRING)
        return refuse_item(check, "key", "must be a string");
    if (json_has_nul_escape(value->raw))
        return refuse_item(check, "key", "must not hold \\u0000");
    *key = json_str_decode(value->raw, check->arena);
    if (key->len == 0)
        return refuse_item(check, "key", "must not be empty");
    return key->len > (size_t)check->limits->key_bytes_max ? refuse_item(check, "key", "is too long")
                                                           : STATUS_OK;
}

/* Its content goes into the hash of all. The order of items counts, since of the same key twice the last wins. */
static enum status check_item(struct check *check, const struct json_value *item)
{
    struct json_value values[MEMBERS];
    struct str key = STR_NONE;
    char path[32], bytes[REFDATA_HASH_BYTES + 1], sum[REFDATA_HASH_BYTES];

    if (item->type != JSON_OBJECT)
        return refuse_item(check, "", "must be an object");
    snprintf(path, sizeof path, "items[%zu].", check->at);
    enum status status =
        refdata_members_read(item, path, item_names, MEMBERS, values, check->arena, check->error);
    if (status == STATUS_OK)
        status = check_key(check, &values[KEY], &key);
    if (status != STATUS_OK)
        return status;

    const struct json_value *op = &values[OP];
    bool is_snapshot = check->update->type == REFDATA_SNAPSHOT;
    bool is_delete = op->type == JSON_STRING && json_str_eq(op->raw, STR("DELETE"));
    bool is_upsert = op->type == JSON_STRING && json_str_eq(op->raw, STR("UPSERT"));
    if (!refdata_member_given(op) && !is_snapshot)
        return refuse_item(check, "op", "is missing: UPSERT or DELETE");
    if (is_delete && is_snapshot)
        return refuse_item(check, "op", "a SNAPSHOT has no deletions: items that are not in it are deleted");
    if (refdata_member_given(op) && !is_delete && !is_upsert)
        return refuse_item(check, "op", "must be UPSERT or DELETE");

    /* Its size is that of what jsonb prints. Few payloads are long enough for that to be computed. */
    struct str raw = values[PAYLOAD].raw;
    size_t bytes_max = (size_t)check->limits->payload_bytes_max;
    struct hash128 payload = {0, 0};
    if (raw.len == 0 && !is_delete)
        return refuse_item(check, "payload", "is missing");
    if (raw.len > bytes_max ||
        (raw.len > bytes_max / JSON_GROWTH_FACTOR_MAX && json_printed_size(raw) > bytes_max)) {
        refuse_item(check, "payload", "is too large");
        return check->error->status = STATUS_PAYLOAD_TOO_LARGE;
    }
    if (json_has_nul_escape(raw))
        return refuse_item(check, "payload", "must not hold \\u0000");

    check->update->has_delete |= is_delete;
    check->update->has_upsert |= !is_delete;
    if (raw.len > 0)
        payload = hash_json(raw, check->levels);
    refdata_hash_bytes(payload, bytes);
    bytes[REFDATA_HASH_BYTES] = is_delete ? 'D' : 'U';
    struct hash128 content = hash_item(key, str_of(bytes, sizeof bytes));
    check->content = hash_item(refdata_hash_bytes(check->content, sum), refdata_hash_bytes(content, bytes));
    return STATUS_OK;
}

enum status refdata_items_check(struct refdata_update *update, const struct refdata_limits *limits,
                                struct arena *arena, struct hash128 *content, struct error *error)
{
    struct check check = {.limits = limits, .update = update, .arena = arena, .error = error};
    struct json_value item;
    struct json_iter it;

    check.levels = arena_alloc(arena, ((size_t)limits->depth_max + 1) * sizeof *check.levels);
    json_iter_init(&it, &update->items);
    for (; json_iter_next(&it, NULL, &item); check.at++) {
        if (check.at >= (size_t)limits->items_max)
            return error_set_field(error, STATUS_PAYLOAD_TOO_LARGE, "items", "items: at most %lld are taken",
                                   (long long)limits->items_max);
        enum status status = check_item(&check, &item);
        if (status != STATUS_OK)
            return status;
    }
    update->item_count = check.at;
    *content = check.content;
    return STATUS_OK;
}

void refdata_items_begin(struct refdata_items *items, const struct refdata_update *update,
                         struct arena *arena)
{
    json_iter_init(&items->iter, &update->items);
    items->arena = arena;
}

bool refdata_items_next(struct refdata_items *items, struct refdata_item *item)
{
    struct json_value element, value;
    struct json_iter it;
    struct str name;

    if (!json_iter_next(&items->iter, NULL, &element))
        return false;
    *item = (struct refdata_item){0};
    json_iter_init(&it, &element);
    while (json_iter_next(&it, &name, &value)) {
        if (json_str_eq(name, item_names[KEY]))
            item->key = json_str_decode(value.raw, items->arena);
        else if (json_str_eq(name, item_names[OP]))
            item->is_delete = json_str_eq(value.raw, STR("DELETE"));
        else
            item->payload = value.raw;
    }
    if (item->is_delete)
        item->payload = STR_NONE;
    return true;
}
