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
    size_t count;
    struct str keys[KEYS_MAX];
    const struct cache_record *records[KEYS_MAX];
};

static enum status read_keys(struct http_request *request, struct asked *asked, struct error *error)
{
    const struct str query = request->query;
    bool encoded = query.len > 0 && (memchr(query.ptr, '%', query.len) || memchr(query.ptr, '+', query.len));
    asked->count = http_request_query_list(request, STR("keys"), asked->keys, KEYS_MAX);
    for (size_t i = 0; i < asked->count && i < KEYS_MAX; i++) {
        struct str *key = &asked->keys[i];
        enum status status = STATUS_OK;
        if (encoded)
            status = http_percent_decode(*key, true, request->arena, "keys", key, error);
        if (status == STATUS_OK)
            status = check_key(*key, "keys", error);
        if (status != STATUS_OK)
            return status;
    }
    if (asked->count > KEYS_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "keys", "at most %d keys at once", KEYS_MAX);
    if (asked->count == 0)
        return error_set_field(error, STATUS_BAD_REQUEST, "keys", "keys is missing: ?keys=k1,k2");
    return STATUS_OK;
}

/* {"version":7,"items":[ … ],"missing":[ … ]}: bodies in the order asked, all of one version. `head` and `tail` are what stands
 * before the first body and after the last. */
struct items {
    const struct asked *asked;
    struct str head, tail;
    size_t bytes;
};

/* `missing` keeps the keys that were not found. */
static void measure(struct items *items, struct buf *missing)
{
    const struct asked *asked = items->asked;
    for (size_t i = 0; i < asked->count; i++) {
        if (asked->records[i]) {
            items->bytes += cache_record_body(asked->records[i]).len + (items->bytes > 0); /* and a comma */
        } else {
            buf_put_str(missing, buf_len(missing) ? STR(",") : STR("],\"missing\":["));
            json_put_string(missing, asked->keys[i]);
        }
    }
    items->tail = STR("],\"missing\":[]}");
    if (buf_len(missing) > 0) {
        buf_put_str(missing, STR("]}"));
        items->tail = buf_str(missing);
    }
    items->bytes += items->head.len + items->tail.len;
}

static void write_items(const struct items *items, char *at)
{
    const char *first = at = str_put(at, items->head);
    for (size_t i = 0; i < items->asked->count; i++) {
        const struct cache_record *record = items->asked->records[i];
        if (!record)
            continue;
        if (at != first)
            *at++ = ',';
        at = str_put(at, cache_record_body(record));
    }
    str_put(at, items->tail);
}

enum { SEND_WHOLE_MAX = 128 * 1024 };

/* A longer answer is streamed: slices of its snapshot, and copies of head and tail behind the list. */
struct parts {
    struct refdata_pieces pieces;
    size_t count, at;
    struct str list[];
};

static bool next_part(struct refdata_pieces *pieces)
{
    struct parts *parts = CONTAINER_OF(pieces, struct parts, pieces);
    while (parts->at < parts->count && !pieces->piece.len)
        pieces->piece = parts->list[parts->at++];
    return pieces->piece.len > 0;
}

static void stream_items(struct http_request *request, const struct http_response *response,
                         const struct refdata_reading *reading, const struct items *items)
{
    size_t count = 2 * items->asked->count + 2;
    size_t own_bytes =
        sizeof(struct parts) + count * sizeof(struct str) + items->head.len + items->tail.len + 2;
    struct parts *parts = memory_alloc(own_bytes);
    char *text = (char *)&parts->list[count];
    *parts = (struct parts){.pieces = {.snapshot = refdata_reading_keep(reading), .next = next_part}};
    parts->list[parts->count++] = str_pack(&text, items->head);
    for (size_t i = 0; i < items->asked->count; i++) {
        if (!items->asked->records[i])
            continue;
        if (parts->count > 1)
            parts->list[parts->count++] = STR(",");
        parts->list[parts->count++] = cache_record_body(items->asked->records[i]);
    }
    parts->list[parts->count++] = str_pack(&text, items->tail);
    refdata_reading_stream(request, response, &parts->pieces, own_bytes, items->bytes);
}

void refdata_get_items(struct http_request *request)
{
    static const char *const known[] = {"keys", NULL};
    struct refdata_reading reading;
    struct error error;
    struct asked asked;
    if (!refdata_reading_begin(request, known, &reading))
        return;
    if (read_keys(request, &asked, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, asked.keys, asked.count))
        return;
    cache_find_many(reading.snapshot, asked.keys, asked.count, asked.records);
    char head[64], *end = str_put_u64(str_put(head, STR("{\"version\":")), (uint64_t)reading.info->version);
    struct buf missing = {0};
    struct items items = {.asked = &asked};
    items.head = str_of(head, (size_t)(str_put(end, STR(",\"items\":[")) - head));
    measure(&items, &missing);
    const struct http_response response = {.status = 200, .headers = refdata_reading_headers(&reading)};
    if (items.bytes <= SEND_WHOLE_MAX) {
        char *room = http_send_room(request, &response, items.bytes);
        if (room)
            write_items(&items, room);
    } else {
        stream_items(request, &response, &reading, &items);
    }
    buf_deinit(&missing);
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
