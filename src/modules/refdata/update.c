/* An update's own members: read strictly, written again for the bus. Its items are in update_items.c. */
#include "modules/refdata/update.h"

#include <stdio.h>

#include "base/clock.h"
#include "modules/refdata/update_inside.h"

/* ---- members of an object ---- */

static enum status refuse_unknown(struct error *error, const char *path, struct str name, const char *why)
{
    char field[sizeof error->field];
    size_t room = sizeof field - 1 - strlen(path);
    name = str_utf8_cut(name, room);
    snprintf(field, sizeof field, "%s%.*s", path, STR_ARG(name));
    return error_set_field(error, STATUS_BAD_REQUEST, field, "%s: %s", field, why);
}

static size_t find_name(const struct str *names, size_t count, struct str raw)
{
    size_t at = 0;
    while (at < count && !json_str_eq(raw, names[at]))
        at++;
    return at;
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
        size_t at = find_name(names, count, raw);
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
};

static enum status refuse_member(struct error *error, unsigned member, const char *why)
{
    return error_set_field(error, STATUS_BAD_REQUEST, member_names[member].ptr, "%s %s",
                           member_names[member].ptr, why);
}

static bool is_given(const struct reading *reading, unsigned member)
{
    return refdata_member_given(&reading->values[member]);
}

/* ---- scalars ---- */

static enum status read_name(const struct json_value *value, unsigned member, struct arena *arena,
                             struct str *name, struct error *error)
{
    if (!refdata_member_given(value))
        return refuse_member(error, member, "is missing");
    if (value->type != JSON_STRING)
        return refuse_member(error, member, "must be a string");
    *name = json_str_decode(value->raw, arena);
    return str_is_name(*name) ? STATUS_OK
                              : refuse_member(error, member, "must be 1 to 64 of A-Z a-z 0-9 . _ -");
}

static enum status read_uuid(const struct reading *reading, unsigned member, char out[UUID_TEXT_BYTES])
{
    const struct json_value *value = &reading->values[member];
    struct uuid uuid;
    if (value->type != JSON_STRING || !uuid_parse(json_str_decode(value->raw, reading->arena), &uuid))
        return refuse_member(reading->error, member, "must be a UUID");
    uuid_format(&uuid, out);
    return STATUS_OK;
}

static enum status read_choice(const struct reading *reading, unsigned member, const char *const choices[2],
                               unsigned *choice)
{
    const struct json_value *value = &reading->values[member];
    if (!refdata_member_given(value))
        return refuse_member(reading->error, member, "is missing");
    for (*choice = 0; *choice < 2; ++*choice)
        if (value->type == JSON_STRING && json_str_eq(value->raw, str_from(choices[*choice])))
            return STATUS_OK;
    return error_set_field(reading->error, STATUS_BAD_REQUEST, member_names[member].ptr,
                           "%s must be %s or %s", member_names[member].ptr, choices[0], choices[1]);
}

static enum status read_count(const struct reading *reading, unsigned member, int32_t *count)
{
    int64_t number = 1;
    if (is_given(reading, member) &&
        (!json_to_i64(&reading->values[member], &number) || number < 1 || number > INT32_MAX))
        return refuse_member(reading->error, member, "must be a whole number from 1 to 2147483647");
    *count = (int32_t)number;
    return STATUS_OK;
}

/* ---- members ---- */

static enum status read_event_id(const struct reading *reading)
{
    if (is_given(reading, EVENT_ID))
        return read_uuid(reading, EVENT_ID, reading->update->event_id);
    if (reading->origin == REFDATA_FROM_BUS)
        return refuse_member(reading->error, EVENT_ID, "is missing");
    struct uuid uuid = uuid_random();
    uuid_format(&uuid, reading->update->event_id);
    return STATUS_OK;
}

static enum status read_tenant(const struct reading *reading, struct str tenant)
{
    struct refdata_update *update = reading->update;
    update->tenant = tenant;
    if (reading->origin == REFDATA_FROM_CLIENT && !is_given(reading, TENANT_ID))
        return STATUS_OK;
    struct str named = STR_NONE;
    enum status status =
        read_name(&reading->values[TENANT_ID], TENANT_ID, reading->arena, &named, reading->error);
    if (status != STATUS_OK)
        return status;
    if (tenant.ptr && !str_eq(tenant, named))
        return refuse_member(reading->error, TENANT_ID, "is not the path's");
    update->tenant = named;
    return STATUS_OK;
}

static enum status read_source(const struct reading *reading)
{
    unsigned source = REFDATA_REST;
    enum status status = STATUS_OK;
    if (reading->origin == REFDATA_FROM_BUS)
        status = read_choice(reading, SOURCE, source_names, &source);
    else if (json_has_nul_escape(reading->values[SOURCE].raw))
        status = refuse_member(reading->error, SOURCE, "must not hold \\u0000");
    reading->update->source = source;
    return status;
}

static enum status read_type(const struct reading *reading)
{
    unsigned type = REFDATA_DELTA;
    enum status status = read_choice(reading, EVENT_TYPE, type_names, &type);
    reading->update->type = type;
    return status;
}

static enum status read_revision(const struct reading *reading)
{
    struct refdata_update *update = reading->update;
    update->has_revision = is_given(reading, SOURCE_REVISION);
    if (update->has_revision && !json_to_i64(&reading->values[SOURCE_REVISION], &update->source_revision))
        return refuse_member(reading->error, SOURCE_REVISION, "must be a whole number of 64 bits");
    return STATUS_OK;
}

static enum status read_snapshot_id(const struct reading *reading)
{
    reading->update->snapshot_id[0] = '\0';
    if (!is_given(reading, SNAPSHOT_ID) || reading->values[SNAPSHOT_ID].type == JSON_NULL)
        return STATUS_OK;
    return read_uuid(reading, SNAPSHOT_ID, reading->update->snapshot_id);
}

static enum status check_chunk(const struct reading *reading)
{
    const struct refdata_update *update = reading->update;
    bool chunked = update->chunks_total > 1 || update->chunk_index > 1;
    if (!chunked)
        return STATUS_OK;
    if (update->type == REFDATA_DELTA)
        return refuse_member(reading->error, update->chunks_total > 1 ? CHUNKS_TOTAL : CHUNK_INDEX,
                             "must be 1: only a SNAPSHOT comes in chunks");
    if (!is_given(reading, CHUNKS_TOTAL))
        return refuse_member(reading->error, CHUNKS_TOTAL, "is missing: this is a chunk");
    if (!is_given(reading, CHUNK_INDEX))
        return refuse_member(reading->error, CHUNK_INDEX, "is missing: this is a chunk");
    if (!update->snapshot_id[0])
        return refuse_member(reading->error, SNAPSHOT_ID, "is missing: this is a chunk");
    if (update->chunk_index > update->chunks_total)
        return refuse_member(reading->error, CHUNK_INDEX, "must be at most chunksTotal");
    return STATUS_OK;
}

static enum status read_chunk(const struct reading *reading)
{
    enum status status = read_snapshot_id(reading);
    if (status == STATUS_OK)
        status = read_count(reading, CHUNK_INDEX, &reading->update->chunk_index);
    if (status == STATUS_OK)
        status = read_count(reading, CHUNKS_TOTAL, &reading->update->chunks_total);
    return status == STATUS_OK ? check_chunk(reading) : status;
}

/* The contract's pattern: upper case, UTC, at most nine digits of a second. */
static bool is_utc(struct str text)
{
    const size_t seconds = sizeof "2026-02-27T12:00:00" - 1;
    struct str zone = str_ends_with(text, STR("Z")) ? STR("Z") : STR("+00:00");
    return str_ends_with(text, zone) && text.len > seconds && text.ptr[10] == 'T' &&
           text.len - zone.len <= seconds + 10;
}

static enum status read_occurred_at(const struct reading *reading)
{
    const struct json_value *value = &reading->values[OCCURRED_AT];
    if (!refdata_member_given(value)) {
        reading->update->occurred_at_us = clock_unix_us();
        return reading->origin == REFDATA_FROM_CLIENT
                   ? STATUS_OK
                   : refuse_member(reading->error, OCCURRED_AT, "is missing");
    }
    struct str text = value->type == JSON_STRING ? json_str_decode(value->raw, reading->arena) : STR_NONE;
    if (!clock_rfc3339_parse(text, &reading->update->occurred_at_us) || !is_utc(text))
        return refuse_member(reading->error, OCCURRED_AT, "must be a time in UTC: 2026-02-27T12:00:00Z");
    return STATUS_OK;
}

/* The content without the items, as one line that does not depend on the order of members. The time of a chunk is not part of it: a
 * sender may stamp each retry of it. */
static struct str describe(const struct reading *reading)
{
    const struct refdata_update *update = reading->update;
    bool timed = is_given(reading, OCCURRED_AT) && !refdata_update_is_chunk(update);
    return arena_printf(reading->arena, "%.*s %s %s%lld %s %d/%d %lld", STR_ARG(update->dict_code),
                        type_names[update->type], update->has_revision ? "r" : "-",
                        (long long)(update->has_revision ? update->source_revision : 0), update->snapshot_id,
                        (int)update->chunk_index, (int)update->chunks_total,
                        timed ? (long long)update->occurred_at_us : -1LL);
}

static enum status read_items(const struct reading *reading, const struct refdata_limits *limits)
{
    struct refdata_update *update = reading->update;
    struct hash128 items = {0, 0};
    char bytes[REFDATA_HASH_BYTES];

    if (!is_given(reading, ITEMS))
        return refuse_member(reading->error, ITEMS, "is missing");
    update->items = reading->values[ITEMS];
    if (update->items.type != JSON_ARRAY)
        return refuse_member(reading->error, ITEMS, "must be an array");
    enum status status = refdata_items_check(update, limits, reading->arena, &items, reading->error);
    if (status == STATUS_OK)
        update->content = hash_item(describe(reading), refdata_hash_bytes(items, bytes));
    return status;
}

enum status refdata_update_open(struct str text, const struct refdata_limits *limits, struct json_value *body,
                                struct str *dict_code, struct arena *arena, struct error *error)
{
    struct json_value code = {0};
    enum status status = json_parse(text, limits->depth_max, body, error);
    if (status != STATUS_OK)
        return status;
    if (body->type != JSON_OBJECT)
        return error_set(error, STATUS_BAD_REQUEST, "an update must be a JSON object");
    (void)json_get(body, member_names[DICT_CODE], &code);
    return read_name(&code, DICT_CODE, arena, dict_code, error);
}

enum status refdata_update_read(const struct json_value *body, enum refdata_origin origin, struct str tenant,
                                const struct refdata_limits *limits, struct arena *arena,
                                struct refdata_update *update, struct error *error)
{
    struct json_value values[MEMBERS];
    struct reading reading = {
        .values = values, .origin = origin, .update = update, .arena = arena, .error = error};
    static enum status (*const steps[])(const struct reading *reading) = {
        read_event_id, read_source, read_type, read_revision, read_chunk, read_occurred_at};

    *update = (struct refdata_update){0};
    enum status status = refdata_members_read(body, "", member_names, MEMBERS, values, arena, error);
    if (status == STATUS_OK)
        status = read_tenant(&reading, tenant);
    if (status == STATUS_OK)
        status = read_name(&values[DICT_CODE], DICT_CODE, arena, &update->dict_code, error);
    for (size_t i = 0; status == STATUS_OK && i < sizeof steps / sizeof *steps; i++)
        status = steps[i](&reading);
    return status == STATUS_OK ? read_items(&reading, limits) : status;
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

const char *refdata_decision_name(enum refdata_decision decision)
{
    static const char *const decisions[] = {"PENDING", "COMMITTED", "FAILED"};
    return decisions[decision];
}

struct str refdata_source_name(enum refdata_source source)
{
    return str_from(source_names[source]);
}
