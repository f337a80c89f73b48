/* An update's own members: read strictly, written again for the bus. Its items are in update_items.c. */
#include "modules/refdata/update.h"

#include <stdio.h>

#include "base/clock.h"

/* ---- members of an object ---- */

static enum status refuse_unknown(struct error *error, const char *path, struct str name, const char *why)
{
    char field[sizeof error->field];
    size_t room = sizeof field - 1 - strlen(path);
    name = str_utf8_cut(name, room);
    snprintf(field, sizeof field, "%s%.*s", path, STR_ARG(name));
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

enum status refdata_members_read(const struct json_value *object, const char *path, const struct str *names,
                                 size_t count, struct json_value *values, struct arena *arena,
                                 struct error *error)
{
    struct json_value value;
    struct json_iter it;
    struct str raw;

    memset(values, 0, count * sizeof *values);
    json_iter_init(&it, object);
    while (json_iter_next(&it, &raw, &value)) {
        size_t at = 0;
        while (at < count && !json_str_eq(raw, names[at]))
            at++;
        if (at == count)
            return refuse_unknown(error, path, json_str_decode(raw, arena), "there is no such member");
        if (refdata_member_given(&values[at]))
            return refuse_unknown(error, path, names[at], "comes more than once");
        values[at] = value;
    }
    return STATUS_OK;
}

/* ---- the update's own ---- */

enum {
    EVENT_ID,
    TENANT_ID,
    SOURCE,
    DICT_CODE,
    EVENT_TYPE,
    SOURCE_REVISION,
    SNAPSHOT_ID,
    CHUNK_INDEX,
    CHUNKS_TOTAL,
    OCCURRED_AT,
    ITEMS,
    MEMBERS
};

#define NAME(text)             \
    {                          \
        text, sizeof(text) - 1 \
    }
static const struct str member_names[MEMBERS] = {
    [EVENT_ID] = NAME("eventId"),
    [TENANT_ID] = NAME("tenantId"),
    [SOURCE] = NAME("source"),
    [DICT_CODE] = NAME("dictCode"),
    [EVENT_TYPE] = NAME("eventType"),
    [SOURCE_REVISION] = NAME("sourceRevision"),
    [SNAPSHOT_ID] = NAME("snapshotId"),
    [CHUNK_INDEX] = NAME("chunkIndex"),
    [CHUNKS_TOTAL] = NAME("chunksTotal"),
    [OCCURRED_AT] = NAME("occurredAt"),
    [ITEMS] = NAME("items"),
};
static const char *const type_names[] = {[REFDATA_DELTA] = "DELTA", [REFDATA_SNAPSHOT] = "SNAPSHOT"};
static const char *const source_names[] = {[REFDATA_REST] = "REST", [REFDATA_KAFKA] = "KAFKA"};

struct reading {
    const struct json_value *values; /* of each member */
    enum refdata_origin origin;
    struct refdata_update *update;
    struct arena *arena;
    struct error *error;
    enum status status; /* the first failure: what is read after it has no effect */
};

static void refuse_update(struct reading *reading, unsigned member, const char *why)
{
    const char *name = member_names[member].ptr;
    if (reading->status == STATUS_OK)
        reading->status = error_set_field(reading->error, STATUS_BAD_REQUEST, name, "%s %s", name, why);
}

static bool is_given(const struct reading *reading, unsigned member)
{
    return refdata_member_given(&reading->values[member]);
}

static bool is_required(struct reading *reading, unsigned member)
{
    bool given = is_given(reading, member);
    if (!given)
        refuse_update(reading, member, "is missing");
    return given;
}

/* ---- scalars ---- */

static struct str read_name(struct reading *reading, unsigned member)
{
    const struct json_value *value = &reading->values[member];
    if (!is_required(reading, member))
        return STR_NONE;
    if (value->type != JSON_STRING) {
        refuse_update(reading, member, "must be a string");
        return STR_NONE;
    }
    struct str name = json_str_decode(value->raw, reading->arena);
    if (!str_is_name(name))
        refuse_update(reading, member, "must be 1 to 64 of A-Z a-z 0-9 . _ -");
    return name;
}

static void read_uuid(struct reading *reading, unsigned member, char out[UUID_TEXT_BYTES])
{
    const struct json_value *value = &reading->values[member];
    struct uuid uuid;
    if (value->type == JSON_STRING && uuid_parse(json_str_decode(value->raw, reading->arena), &uuid))
        uuid_format(&uuid, out);
    else
        refuse_update(reading, member, "must be a UUID");
}

static unsigned read_choice(struct reading *reading, unsigned member, const char *const choices[2])
{
    const struct json_value *value = &reading->values[member];
    char why[64];
    if (!is_required(reading, member))
        return 0;
    for (unsigned choice = 0; choice < 2; choice++)
        if (value->type == JSON_STRING && json_str_eq(value->raw, str_from(choices[choice])))
            return choice;
    snprintf(why, sizeof why, "must be %s or %s", choices[0], choices[1]);
    refuse_update(reading, member, why);
    return 0;
}

static int32_t read_count(struct reading *reading, unsigned member)
{
    int64_t number = 1;
    if (is_given(reading, member) &&
        (!json_to_i64(&reading->values[member], &number) || number < 1 || number > INT32_MAX))
        refuse_update(reading, member, "must be a whole number from 1 to 2147483647");
    return (int32_t)number;
}

/* ---- members ---- */

static void read_event(struct reading *reading)
{
    struct refdata_update *update = reading->update;
    bool from_bus = reading->origin == REFDATA_FROM_BUS;
    if (is_given(reading, EVENT_ID)) {
        read_uuid(reading, EVENT_ID, update->event_id);
    } else if (from_bus) {
        refuse_update(reading, EVENT_ID, "is missing");
    } else {
        struct uuid uuid = uuid_random();
        uuid_format(&uuid, update->event_id);
    }
    update->source = from_bus ? read_choice(reading, SOURCE, source_names) : REFDATA_REST;
    if (!from_bus && json_has_nul_escape(reading->values[SOURCE].raw))
        refuse_update(reading, SOURCE, "must not hold \\u0000");
    update->type = read_choice(reading, EVENT_TYPE, type_names);
    update->has_revision = is_given(reading, SOURCE_REVISION);
    if (update->has_revision && !json_to_i64(&reading->values[SOURCE_REVISION], &update->source_revision))
        refuse_update(reading, SOURCE_REVISION, "must be a whole number of 64 bits");
}

static void read_chunk(struct reading *reading)
{
    struct refdata_update *update = reading->update;
    if (is_given(reading, SNAPSHOT_ID) && reading->values[SNAPSHOT_ID].type != JSON_NULL)
        read_uuid(reading, SNAPSHOT_ID, update->snapshot_id);
    update->chunk_index = read_count(reading, CHUNK_INDEX);
    update->chunks_total = read_count(reading, CHUNKS_TOTAL);
    if (update->chunks_total == 1 && update->chunk_index == 1)
        return;
    if (update->type == REFDATA_DELTA)
        refuse_update(reading, update->chunks_total > 1 ? CHUNKS_TOTAL : CHUNK_INDEX,
                      "must be 1: only a SNAPSHOT comes in chunks");
    if (!is_given(reading, CHUNKS_TOTAL))
        refuse_update(reading, CHUNKS_TOTAL, "is missing: this is a chunk");
    if (!is_given(reading, CHUNK_INDEX))
        refuse_update(reading, CHUNK_INDEX, "is missing: this is a chunk");
    if (!update->snapshot_id[0])
        refuse_update(reading, SNAPSHOT_ID, "is missing: this is a chunk");
    if (update->chunk_index > update->chunks_total)
        refuse_update(reading, CHUNK_INDEX, "must be at most chunksTotal");
}

/* The contract's pattern: upper case, UTC, at most nine digits of a second. */
static void read_time(struct reading *reading)
{
    const size_t seconds = sizeof "2026-02-27T12:00:00" - 1;
    const struct json_value *value = &reading->values[OCCURRED_AT];
    struct str text = value->type == JSON_STRING ? json_str_decode(value->raw, reading->arena) : STR_NONE;
    struct str zone = str_ends_with(text, STR("Z")) ? STR("Z") : STR("+00:00");
    if (!clock_rfc3339_parse(text, &reading->update->occurred_at_us) || !str_ends_with(text, zone) ||
        text.len <= seconds || text.ptr[10] != 'T' || text.len - zone.len > seconds + 10)
        refuse_update(reading, OCCURRED_AT, "must be a time in UTC: 2026-02-27T12:00:00Z");
}

struct hash128 refdata_update_hash(const struct refdata_update *update, bool is_timed, struct arena *arena)
{
    char bytes[REFDATA_HASH_BYTES];
    struct str rest = arena_printf(arena, "%.*s %s %s%lld %s %d/%d %lld", STR_ARG(update->dict_code),
                                   type_names[update->type], update->has_revision ? "r" : "-",
                                   (long long)(update->has_revision ? update->source_revision : 0),
                                   update->snapshot_id, (int)update->chunk_index, (int)update->chunks_total,
                                   is_timed ? (long long)update->occurred_at_us : -1LL);
    return hash_item(rest, refdata_hash_bytes(update->items_hash, bytes));
}

static enum status read_items(struct reading *reading, const struct refdata_limits *limits)
{
    struct refdata_update *update = reading->update;

    update->items = reading->values[ITEMS];
    if (is_required(reading, ITEMS) && update->items.type != JSON_ARRAY)
        refuse_update(reading, ITEMS, "must be an array");
    if (reading->status == STATUS_OK)
        reading->status =
            refdata_items_check(update, limits, reading->arena, &update->items_hash, reading->error);
    if (reading->status != STATUS_OK)
        return reading->status;
    bool is_timed = is_given(reading, OCCURRED_AT) && !refdata_update_is_chunk(update);
    update->content = refdata_update_hash(update, is_timed, reading->arena);
    return STATUS_OK;
}

enum status refdata_update_open(struct str text, const struct refdata_limits *limits, struct json_value *body,
                                struct str *dict_code, struct arena *arena, struct error *error)
{
    struct json_value values[MEMBERS] = {{0}};
    struct reading reading = {.values = values, .arena = arena, .error = error};
    enum status status = json_parse(text, (unsigned)limits->depth_max, body, error);
    if (status != STATUS_OK)
        return status;
    if (body->type != JSON_OBJECT)
        return error_set(error, STATUS_BAD_REQUEST, "an update must be a JSON object");
    (void)json_get(body, member_names[DICT_CODE], &values[DICT_CODE]);
    *dict_code = read_name(&reading, DICT_CODE);
    return reading.status;
}

enum status refdata_update_read(const struct json_value *body, enum refdata_origin origin, struct str tenant,
                                const struct refdata_limits *limits, struct arena *arena,
                                struct refdata_update *update, struct error *error)
{
    struct json_value values[MEMBERS];
    struct reading reading = {
        .values = values, .origin = origin, .update = update, .arena = arena, .error = error};
    *update = (struct refdata_update){0};
    reading.status = refdata_members_read(body, "", member_names, MEMBERS, values, arena, error);
    if (reading.status != STATUS_OK)
        return reading.status;
    update->tenant = tenant;
    if (origin == REFDATA_FROM_BUS || is_given(&reading, TENANT_ID)) {
        update->tenant = read_name(&reading, TENANT_ID);
        if (tenant.ptr && !str_eq(tenant, update->tenant))
            refuse_update(&reading, TENANT_ID, "is not the path's");
    }
    update->dict_code = read_name(&reading, DICT_CODE);
    read_event(&reading);
    read_chunk(&reading);
    if (is_given(&reading, OCCURRED_AT))
        read_time(&reading);
    else if (origin == REFDATA_FROM_BUS)
        refuse_update(&reading, OCCURRED_AT, "is missing");
    else
        update->occurred_at_us = clock_unix_us();
    return reading.status == STATUS_OK ? read_items(&reading, limits) : reading.status;
}

/* ---- writing ---- */

void refdata_update_put(struct buf *out, const struct refdata_update *update)
{
    char occurred_at[CLOCK_RFC3339_BYTES];
    clock_rfc3339(update->occurred_at_us, occurred_at);
    buf_put_char(out, '{');
    json_put_member_str(out, "eventId", str_from(update->event_id));
    json_put_member_str(out, "tenantId", update->tenant);
    json_put_member_str(out, "source", str_from(source_names[update->source]));
    json_put_member_str(out, "dictCode", update->dict_code);
    json_put_member_str(out, "eventType", str_from(type_names[update->type]));
    if (update->has_revision)
        json_put_member_i64(out, "sourceRevision", update->source_revision);
    if (update->snapshot_id[0])
        json_put_member_str(out, "snapshotId", str_from(update->snapshot_id));
    json_put_member_i64(out, "chunkIndex", update->chunk_index);
    json_put_member_i64(out, "chunksTotal", update->chunks_total);
    json_put_member_str(out, "occurredAt", str_from(occurred_at));
    json_put_member_raw(out, "items", update->items.raw);
    buf_put_char(out, '}');
}

static const char *const decisions[] = {"PENDING", "COMMITTED", "FAILED"};

const char *refdata_decision_name(enum refdata_decision decision)
{
    return decisions[decision];
}

enum refdata_decision refdata_decision_of(struct str name)
{
    return str_eq(name, str_from(decisions[REFDATA_COMMITTED])) ? REFDATA_COMMITTED
           : str_eq(name, str_from(decisions[REFDATA_FAILED]))  ? REFDATA_FAILED
                                                                : REFDATA_PENDING;
}

struct str refdata_source_name(enum refdata_source source)
{
    return str_from(source_names[source]);
}
