/* GET …/items/{key} (R3), GET …/items?keys= (R4) and GET …/version (R6). */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/query/reading.h"

enum { KEYS_MAX = 1000, KEY_BYTES_MAX = 1024 };

static const char *const no_query[] = {NULL};

static enum status check_key(struct str key, const char *field, struct error *error)
{
    if (key.len == 0 || key.len > KEY_BYTES_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, field, "a key is 1 to %d bytes long",
                               KEY_BYTES_MAX);
    return STATUS_OK;
}

void refdata_get_item(struct http_request *request)
{
    struct refdata_reading reading;
    struct error error;
    struct str key, etag;
    if (!refdata_reading_begin(request, no_query, &reading))
        return;
    if (http_request_param(request, "key", &key, &error) != STATUS_OK ||
        check_key(key, "key", &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, &key, 1))
        return;
    const struct cache_record *record = cache_find(reading.snapshot, key);
    if (!record) {
        error_set(&error, STATUS_ITEM_NOT_FOUND, "there is no item with this key");
        http_send_error_with(request, &error, refdata_reading_headers(&reading), STR_NONE);
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

/* The list is split before it is decoded, so that a comma inside a key can be written %2C. */
static enum status read_keys(struct http_request *request, struct asked *asked, struct error *error)
{
    bool found = false;
    struct str raw;
    enum status status = http_request_query_raw(request, STR("keys"), &found, &raw, error);
    if (status != STATUS_OK)
        return status;
    if (!found || raw.len == 0)
        return error_set_field(error, STATUS_BAD_REQUEST, "keys", "keys is missing: ?keys=k1,k2");
    bool encoded = memchr(raw.ptr, '%', raw.len) || memchr(raw.ptr, '+', raw.len);
    const char *comma = raw.ptr;
    size_t most = raw.len / 2 + 1; /* a key has at least one byte, and a comma after it */
    asked->keys = arena_alloc(request->arena, (most < KEYS_MAX ? most : KEYS_MAX) * sizeof *asked->keys);
    for (asked->count = 0; comma; asked->count++) {
        if (asked->count == KEYS_MAX)
            return error_set_field(error, STATUS_BAD_REQUEST, "keys", "at most %d keys at once", KEYS_MAX);
        struct str *key = &asked->keys[asked->count];
        comma = memchr(raw.ptr, ',', raw.len);
        *key = comma ? str_of(raw.ptr, (size_t)(comma - raw.ptr)) : raw;
        if (comma)
            raw = str_of(comma + 1, raw.len - key->len - 1);
        if (encoded)
            status = http_percent_decode(*key, true, request->arena, "keys", key, error);
        if (status == STATUS_OK)
            status = check_key(*key, "keys", error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum { SEND_WHOLE_MAX = 128 * 1024 };

struct parts {
    struct refdata_pieces pieces;
    size_t count, bytes, at;
    struct str list[];
};

static void put_part(struct parts *parts, struct str part)
{
    parts->list[parts->count++] = part;
    parts->bytes += part.len;
}

static bool next_part(struct refdata_pieces *pieces)
{
    struct parts *parts = CONTAINER_OF(pieces, struct parts, pieces);
    while (parts->at < parts->count && !pieces->piece.len)
        pieces->piece = parts->list[parts->at++];
    return pieces->piece.len > 0;
}

/* {"version":7,"items":[ … ],"missing":[ … ]}: bodies in the order asked, all of one version. */
void refdata_get_items(struct http_request *request)
{
    static const char *const known[] = {"keys", NULL};
    struct refdata_reading reading;
    struct error error;
    struct asked asked = {0};
    if (!refdata_reading_begin(request, known, &reading))
        return;
    if (read_keys(request, &asked, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, asked.keys, asked.count))
        return;
    const struct cache_record **records = arena_alloc(request->arena, asked.count * sizeof *records);
    cache_find_many(reading.snapshot, asked.keys, asked.count, records);
    size_t parts_bytes = sizeof(struct parts) + (2 * asked.count + 4) * sizeof(struct str);
    struct parts *parts = arena_alloc(request->arena, parts_bytes);
    *parts = (struct parts){.pieces.next = next_part};
    struct buf missing = {0};
    bool first = true;
    put_part(parts,
             arena_printf(request->arena, "{\"version\":%lld,\"items\":[", (long long)reading.info->version));
    for (size_t i = 0; i < asked.count; i++) {
        if (records[i]) {
            if (!first)
                put_part(parts, STR(","));
            put_part(parts, cache_record_body(records[i]));
            first = false;
        } else {
            buf_put_str(&missing, buf_len(&missing) ? STR(",") : STR_NONE);
            json_put_string(&missing, asked.keys[i]);
        }
    }
    put_part(parts, STR("],\"missing\":["));
    put_part(parts, arena_str(request->arena, buf_str(&missing)));
    put_part(parts, STR("]}"));
    buf_deinit(&missing);
    const struct http_response response = {.status = 200, .headers = refdata_reading_headers(&reading)};
    if (parts->bytes <= SEND_WHOLE_MAX) {
        http_send_parts(request, &response, parts->list, parts->count);
        return;
    }
    parts = memcpy(memory_alloc(parts_bytes), parts, parts_bytes);
    parts->pieces.snapshot = refdata_reading_keep(&reading);
    refdata_reading_stream(request, &response, &parts->pieces, parts->bytes);
}

/* ---- what this pod holds, comparable with another pod or with the database by its digest ---- */

void refdata_get_version(struct http_request *request)
{
    struct refdata_reading reading;
    if (!refdata_reading_begin(request, no_query, &reading) ||
        !refdata_barrier_pass(request, &reading, NULL, 0))
        return;
    char digest[HASH128_HEX_BYTES], loaded_at[CLOCK_RFC3339_BYTES];
    struct buf body = {0};
    hash128_hex(reading.info->digest, digest);
    clock_rfc3339(reading.info->loaded_at_us, loaded_at);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "tenantId", reading.holding->tenant);
    json_put_member_str(&body, "dictCode", reading.holding->code);
    json_put_member_i64(&body, "version", reading.info->version);
    json_put_member_i64(&body, "itemCount", (int64_t)reading.info->item_count);
    json_put_member_str(&body, "digest", str_from(digest));
    json_put_member_str(&body, "loadedAt", str_from(loaded_at));
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200,
                                               .headers = refdata_reading_headers(&reading),
                                               .body = buf_str(&body)});
    buf_deinit(&body);
}
