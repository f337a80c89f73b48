/* GET …/all (R5): the whole dictionary in bytewise key order, by pages of JSON or as one NDJSON stream. Both walk the
 * snapshot while the socket takes bytes; a reference keeps it alive, so that every line is of one version. */
#include "base/budget.h"
#include "base/buf.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/query/reading.h"

enum { PAGE_DEFAULT = 1000, PAGE_MAX = 10000, KEY_BYTES_MAX = 1024 };

/* ---- cursors: VERSION.HEXKEY, where the key is the last one already given ---- */

struct page {
    uint64_t limit;
    bool has_cursor;
    int64_t cursor_version;
    struct str after;
};

static enum status read_page(struct http_request *request, struct page *page, struct error *error)
{
    bool has_limit = false;
    struct str limit, cursor, version;
    uint64_t number;
    *page = (struct page){.limit = PAGE_DEFAULT, .after = STR_NONE};
    enum status status = http_request_query(request, STR("limit"), &has_limit, &limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &page->has_cursor, &cursor, error);
    if (status != STATUS_OK)
        return status;
    if (has_limit && (!str_to_u64(limit, &page->limit) || page->limit < 1 || page->limit > PAGE_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "limit", "limit must be a number from 1 to %d",
                               PAGE_MAX);
    if (!page->has_cursor)
        return STATUS_OK;
    bool fits = str_split(&cursor, '.', &version) && str_to_u64(version, &number) && number <= INT64_MAX &&
                cursor.len && cursor.len % 2 == 0 && cursor.len / 2 <= KEY_BYTES_MAX;
    char *key = arena_alloc(request->arena, cursor.len / 2 + 1);
    if (!fits || !hex_get(cursor.ptr, (uint8_t *)key, cursor.len / 2))
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                               "this is not a nextCursor of an earlier page");
    page->cursor_version = (int64_t)number;
    page->after = str_of(key, cursor.len / 2);
    return STATUS_OK;
}

/* ---- walking ---- */

struct walk {
    struct refdata_pieces pieces;
    struct cache_cursor cursor;
    uint64_t left; /* items still to give */
    bool is_lines; /* a line break after each item, instead of a comma between two */
    bool is_separator_due;
    struct str tail; /* after the items */
    char text[];     /* of head and tail */
};

static bool next_piece(struct refdata_pieces *pieces)
{
    struct walk *walk = CONTAINER_OF(pieces, struct walk, pieces);
    if (walk->is_separator_due) {
        pieces->piece = walk->is_lines ? STR("\n") : STR(",");
        walk->is_separator_due = false;
    } else if (walk->left) {
        pieces->piece = cache_record_body(cache_cursor_next(&walk->cursor));
        walk->left--;
        walk->is_separator_due = walk->is_lines || walk->left;
    } else {
        pieces->piece = walk->tail;
        walk->tail = STR_NONE;
    }
    return pieces->piece.len > 0;
}

/* `bytes` of `count` items, with what stands before and after them. */
static void send_walk(struct http_request *request, const struct refdata_reading *reading, struct str after,
                      uint64_t count, uint64_t bytes, struct str head, struct str tail)
{
    size_t own_bytes = sizeof(struct walk) + head.len + tail.len;
    struct walk *walk = memory_zalloc(own_bytes);
    walk->pieces.snapshot = refdata_reading_keep(reading);
    walk->pieces.next = next_piece;
    cache_cursor_init(&walk->cursor, reading->snapshot, after);
    walk->left = count;
    walk->is_lines = head.len == 0;
    memcpy(walk->text, head.len ? head.ptr : "", head.len);
    memcpy(walk->text + head.len, tail.len ? tail.ptr : "", tail.len);
    walk->pieces.piece = str_of(walk->text, head.len);
    walk->tail = str_of(walk->text + head.len, tail.len);
    uint64_t separators = walk->is_lines || !count ? count : count - 1;
    /* One address, two forms: caches must know the header that selects one. */
    struct http_response response = {.status = 200,
                                     .headers = arena_printf(request->arena, "%.*sVary: Accept\r\n",
                                                             STR_ARG(refdata_reading_headers(reading)))};
    if (walk->is_lines)
        response.content_type = STR("application/x-ndjson");
    refdata_reading_stream(request, &response, &walk->pieces, own_bytes,
                           head.len + bytes + separators + tail.len);
}

/* A first walk over the page finds its length and its last key, so that the answer has a Content-Length. */
static void send_page(struct http_request *request, const struct refdata_reading *reading,
                      const struct page *page)
{
    struct cache_cursor cursor;
    const struct cache_record *record = NULL, *last = NULL;
    uint64_t count = 0, bytes = 0;
    struct str next = STR("null");
    cache_cursor_init(&cursor, reading->snapshot, page->after);
    while (count < page->limit && (record = cache_cursor_next(&cursor)) != NULL) {
        count++;
        bytes += cache_record_body(record).len;
        last = record;
    }
    if (record && cache_cursor_next(&cursor)) { /* there are more */
        struct str key = cache_record_key(last);
        char *hex = arena_alloc(request->arena, 2 * key.len + 1);
        hex_put(hex, (const uint8_t *)key.ptr, key.len);
        next = arena_printf(request->arena, "\"%lld.%.*s\"", (long long)reading->info->version,
                            (int)(2 * key.len), hex);
    }
    bool changed = page->has_cursor && page->cursor_version != reading->info->version;
    send_walk(
        request, reading, page->after, count, bytes,
        arena_printf(request->arena, "{\"version\":%lld,\"items\":[", (long long)reading->info->version),
        arena_printf(request->arena, "],\"nextCursor\":%.*s%s}", STR_ARG(next),
                     changed ? ",\"versionChanged\":true" : ""));
}

void refdata_get_all(struct http_request *request)
{
    static const char *const known[] = {"limit", "cursor", NULL};
    struct refdata_reading reading;
    struct page page;
    struct error error;
    if (!refdata_reading_begin(request, known, &reading))
        return;
    if (read_page(request, &page, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, NULL, 0))
        return;
    if (budget_is_full(
            BUDGET_VERSIONS)) { /* it would keep this one in memory, after another has replaced it */
        budget_count_refusal(BUDGET_VERSIONS);
        (void)error_set(&error, STATUS_OVERLOADED, "readers keep too many old versions in memory");
        http_send_error(request, &error);
        return;
    }
    /* JSON unless lines are asked for by name, and no less than JSON is. */
    unsigned lines = http_request_accepts(request, STR("application/x-ndjson"));
    if (lines && lines >= http_request_accepts(request, STR("application/json")))
        send_walk(request, &reading, STR_NONE, reading.info->item_count, reading.info->body_bytes, STR_NONE,
                  STR_NONE);
    else
        send_page(request, &reading, &page);
}
