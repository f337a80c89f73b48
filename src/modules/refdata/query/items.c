/* GET …/items/{key} (R3) and GET …/items?keys= (R4). */
#include "base/buf.h"
#include "base/json.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/reading.h"

enum { KEYS_MAX = 1000, KEY_BYTES_MAX = 1024 };

static enum status check_key(struct str key, const char *field, struct error *error)
{
    if (key.len == 0 || key.len > KEY_BYTES_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, field, "a key is 1 to %d bytes long",
                               KEY_BYTES_MAX);
    return STATUS_OK;
}

static void send_missing(struct http_request *request, const struct refdata_reading *reading)
{
    struct error error;
    error_set(&error, STATUS_ITEM_NOT_FOUND, "there is no item with this key");
    http_send_error_with(request, &error, refdata_reading_headers(reading), STR_NONE);
}

void refdata_get_item(struct http_request *request)
{
    struct refdata_reading reading;
    struct error error;
    struct str key, etag;
    if (!refdata_reading_begin(request, &reading))
        return;
    static const char *const no_query[] = {NULL};
    if (http_request_query_only(request, no_query, &error) != STATUS_OK ||
        http_request_param(request, "key", &key, &error) != STATUS_OK ||
        check_key(key, "key", &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, &key, 1))
        return;
    const struct cache_record *record = cache_find(reading.snapshot, key);
    if (!record) {
        send_missing(request, &reading);
        return;
    }
    refdata_reading_tag(&reading, cache_record_tag(record), &etag);
    struct http_response response = {.status = 200, .headers = refdata_reading_headers(&reading)};
    if (http_request_none_match(request, etag))
        response.status = 304;
    else
        response.body = cache_record_body(record);
    http_send(request, &response);
}

/* ---- many keys ---- */

struct asked {
    struct str *keys;
    size_t count;
};

/* Is there another key after this one? */
static bool take_until_comma(struct str *rest, struct str *part)
{
    const char *comma = memchr(rest->ptr, ',', rest->len);
    *part = *rest;
    if (!comma)
        return false;
    part->len = (size_t)(comma - rest->ptr);
    *rest = str_of(comma + 1, rest->len - part->len - 1);
    return true;
}

/* The list is split before it is decoded, so that a comma inside a key can be written %2C. */
static enum status split_keys(struct http_request *request, struct str raw, struct asked *asked,
                              struct error *error)
{
    bool encoded = memchr(raw.ptr, '%', raw.len) || memchr(raw.ptr, '+', raw.len);
    bool more = true;
    size_t most = raw.len / 2 + 1; /* a key has at least one byte, and a comma after it */
    asked->keys = arena_alloc(request->arena, (most < KEYS_MAX ? most : KEYS_MAX) * sizeof *asked->keys);
    for (asked->count = 0; more; asked->count++) {
        if (asked->count == KEYS_MAX)
            return error_set_field(error, STATUS_BAD_REQUEST, "keys", "at most %d keys at once", KEYS_MAX);
        struct str *key = &asked->keys[asked->count];
        more = take_until_comma(&raw, key);
        enum status status =
            encoded ? http_percent_decode(*key, true, request->arena, "keys", key, error) : STATUS_OK;
        if (status == STATUS_OK)
            status = check_key(*key, "keys", error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status read_keys(struct http_request *request, struct asked *asked, struct error *error)
{
    static const char *const known[] = {"keys", NULL};
    bool found = false;
    struct str raw;
    enum status status = http_request_query_only(request, known, error);
    if (status == STATUS_OK)
        status = http_request_query_raw(request, STR("keys"), &found, &raw, error);
    if (status != STATUS_OK)
        return status;
    if (!found || raw.len == 0)
        return error_set_field(error, STATUS_BAD_REQUEST, "keys", "name the keys: ?keys=k1,k2");
    return split_keys(request, raw, asked, error);
}

static void put_part(struct refdata_parts *parts, struct str part)
{
    parts->parts[parts->count++] = part;
    parts->bytes += part.len;
}

/* {"version":7,"items":[ … ],"missing":[ … ]}: bodies in the order asked, all of one version. */
static void put_answer(struct http_request *request, const struct refdata_reading *reading,
                       const struct asked *asked, const struct cache_record **records,
                       struct refdata_parts *parts)
{
    struct buf missing;
    buf_init(&missing);
    put_part(parts, arena_printf(request->arena, "{\"version\":%lld,\"items\":[",
                                 (long long)reading->info->version));
    bool first = true;
    for (size_t i = 0; i < asked->count; i++) {
        if (records[i]) {
            if (!first)
                put_part(parts, STR(","));
            put_part(parts, cache_record_body(records[i]));
            first = false;
        } else {
            buf_put_str(&missing, buf_len(&missing) ? STR(",") : STR_NONE);
            json_put_string(&missing, asked->keys[i]);
        }
    }
    put_part(parts, STR("],\"missing\":["));
    put_part(parts, arena_str(request->arena, buf_str(&missing)));
    put_part(parts, STR("]}"));
    buf_deinit(&missing);
}

void refdata_get_items(struct http_request *request)
{
    struct refdata_reading reading;
    struct error error;
    struct asked asked = {0};
    if (!refdata_reading_begin(request, &reading))
        return;
    if (read_keys(request, &asked, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, asked.keys, asked.count))
        return;
    const struct cache_record **records = arena_alloc(request->arena, asked.count * sizeof *records);
    cache_find_many(reading.snapshot, asked.keys, asked.count, records);
    struct refdata_parts parts = {
        .parts = arena_alloc(request->arena, (2 * asked.count + 4) * sizeof(struct str))};
    put_answer(request, &reading, &asked, records, &parts);
    refdata_reading_send(request, &reading, &parts);
}
