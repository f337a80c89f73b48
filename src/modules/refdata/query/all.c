/* GET …/all (R5): the whole dictionary in bytewise key order, by pages of JSON or as one NDJSON stream. Both walk the
 * snapshot while the socket takes bytes; a reference keeps it alive, so that every line is of one version. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/query/barrier.h"
#include "modules/refdata/query/reading.h"

enum { PAGE_DEFAULT = 1000, PAGE_MAX = 10000, KEY_BYTES_MAX = 1024 };

/* ---- cursors: VERSION.HEXKEY, where the key is the last one already given ---- */

struct page {
    uint64_t limit;
    bool has_cursor;
    int64_t cursor_version;
    struct str after;
};

static enum status parse_cursor(struct http_request *request, struct str text, struct page *page,
                                struct error *error)
{
    struct str version;
    uint64_t number;
    bool fits = str_split(&text, '.', &version) && str_to_u64(version, &number) && number <= INT64_MAX &&
                text.len && text.len % 2 == 0 && text.len / 2 <= KEY_BYTES_MAX;
    char *key = arena_alloc(request->arena, text.len / 2 + 1);
    fits = fits && hex_get(text.ptr, (uint8_t *)key, text.len / 2);
    if (!fits)
        return error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                               "this is not a nextCursor of an earlier page");
    page->has_cursor = true;
    page->cursor_version = (int64_t)number;
    page->after = str_of(key, text.len / 2);
    return STATUS_OK;
}

static struct str format_cursor(struct http_request *request, int64_t version, struct str last_key)
{
    struct str head = arena_printf(request->arena, "%lld.", (long long)version);
    char *out = arena_alloc(request->arena, head.len + 2 * last_key.len);
    memcpy(out, head.ptr, head.len);
    hex_put(out + head.len, (const uint8_t *)last_key.ptr, last_key.len);
    return str_of(out, head.len + 2 * last_key.len);
}

static enum status read_page(struct http_request *request, struct page *page, struct error *error)
{
    static const char *const known[] = {"limit", "cursor", NULL};
    bool has_limit = false, has_cursor = false;
    struct str limit, cursor;
    *page = (struct page){.limit = PAGE_DEFAULT, .after = STR_NONE};
    enum status status = http_request_query_only(request, known, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("limit"), &has_limit, &limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &has_cursor, &cursor, error);
    if (status != STATUS_OK)
        return status;
    if (has_limit && (!str_to_u64(limit, &page->limit) || page->limit < 1 || page->limit > PAGE_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "limit", "a number from 1 to %d", PAGE_MAX);
    return has_cursor ? parse_cursor(request, cursor, page, error) : STATUS_OK;
}

/* ---- walking ---- */

struct walk {
    struct cache_snapshot *snapshot; /* referenced */
    struct cache_cursor cursor;
    uint64_t left;        /* items still to give */
    struct str separator; /* "," between items, "\n" after each */
    bool separate_first;  /* the separator stands before the next item */
    struct str item;      /* the one being given, from `offset` on */
    size_t offset;
    char *head, *tail; /* before and after the items; NULL = none */
    size_t head_len, tail_len, head_at, tail_at;
};

static size_t give(struct buf *out, size_t room, const char *text, size_t len, size_t *at)
{
    size_t take = len - *at < room ? len - *at : room;
    buf_put(out, text + *at, take);
    *at += take;
    return take;
}

static bool next_item(struct walk *walk)
{
    const struct cache_record *record = walk->left ? cache_cursor_next(&walk->cursor) : NULL;
    if (!record)
        return false;
    walk->left--;
    walk->item = cache_record_body(record);
    walk->offset = 0;
    return true;
}

/* Bodies are given in pieces of `room`, so that even one item of a megabyte never stands in memory twice. */
static enum http_source_state produce(void *context, struct buf *out, size_t room)
{
    struct walk *walk = context;
    room -= give(out, room, walk->head, walk->head_len, &walk->head_at);
    bool lines = walk->separator.ptr[0] == '\n';
    while (room) {
        if (walk->item.ptr && walk->offset == walk->item.len) {
            if (lines)
                buf_put_char(out, '\n'), room--;
            walk->item = STR_NONE;
            continue;
        }
        if (!walk->item.ptr) {
            if (!next_item(walk))
                break;
            if (!lines && walk->separate_first)
                buf_put_char(out, ','), room--;
            walk->separate_first = true;
            if (!room)
                break;
        }
        room -= give(out, room, walk->item.ptr, walk->item.len, &walk->offset);
    }
    if (walk->item.ptr || walk->left)
        return HTTP_SOURCE_MORE;
    room -= give(out, room, walk->tail, walk->tail_len, &walk->tail_at);
    return walk->tail_at == walk->tail_len ? HTTP_SOURCE_END : HTTP_SOURCE_MORE;
}

static void release(void *context)
{
    struct walk *walk = context;
    cache_snapshot_unref(walk->snapshot);
    free(walk->head);
    free(walk->tail);
    free(walk);
}

static struct walk *start_walk(const struct refdata_reading *reading, struct str after, uint64_t items)
{
    struct walk *walk = memory_zalloc(sizeof *walk);
    walk->snapshot = refdata_reading_keep(reading);
    walk->left = items;
    cache_cursor_init(&walk->cursor, walk->snapshot, after);
    return walk;
}

/* ---- the two forms ---- */

/* One address, two forms: caches must know the header that selects one. */
static struct str headers_of(struct http_request *request, const struct refdata_reading *reading)
{
    return arena_printf(request->arena, "%.*sVary: Accept\r\n", STR_ARG(refdata_reading_headers(reading)));
}

static void send_lines(struct http_request *request, const struct refdata_reading *reading)
{
    struct walk *walk = start_walk(reading, STR_NONE, reading->info->item_count);
    walk->separator = STR("\n");
    http_send_stream(request,
                     &(struct http_response){.status = 200,
                                             .content_type = STR("application/x-ndjson"),
                                             .headers = headers_of(request, reading)},
                     &(struct http_source){produce, release, walk,
                                           (int64_t)(reading->info->body_bytes + reading->info->item_count)});
}

/* A first walk over the page finds its length and its last key, so that the answer has a Content-Length. */
static void measure(const struct refdata_reading *reading, const struct page *page, uint64_t *items,
                    uint64_t *bytes, const struct cache_record **last, bool *more)
{
    struct cache_cursor cursor;
    const struct cache_record *record = NULL;
    *items = *bytes = 0;
    *last = NULL;
    cache_cursor_init(&cursor, reading->snapshot, page->after);
    while (*items < page->limit && (record = cache_cursor_next(&cursor)) != NULL) {
        *items += 1;
        *bytes += cache_record_body(record).len;
        *last = record;
    }
    *more = record && cache_cursor_next(&cursor);
}

static struct str page_tail(struct http_request *request, const struct refdata_reading *reading,
                            const struct page *page, const struct cache_record *last, bool more)
{
    struct str next = STR("null");
    if (more)
        next = arena_printf(request->arena, "\"%.*s\"",
                            STR_ARG(format_cursor(request, reading->info->version, cache_record_key(last))));
    bool changed = page->has_cursor && page->cursor_version != reading->info->version;
    return arena_printf(request->arena, "],\"nextCursor\":%.*s%s}", STR_ARG(next),
                        changed ? ",\"versionChanged\":true" : "");
}

static void send_page(struct http_request *request, const struct refdata_reading *reading,
                      const struct page *page)
{
    uint64_t items, bytes;
    const struct cache_record *last;
    bool more;
    measure(reading, page, &items, &bytes, &last, &more);
    struct str head =
        arena_printf(request->arena, "{\"version\":%lld,\"items\":[", (long long)reading->info->version);
    struct str tail = page_tail(request, reading, page, last, more);
    struct walk *walk = start_walk(reading, page->after, items);
    walk->separator = STR(",");
    walk->head = str_dup(head), walk->head_len = head.len;
    walk->tail = str_dup(tail), walk->tail_len = tail.len;
    uint64_t total = head.len + bytes + (items ? items - 1 : 0) + tail.len;
    http_send_stream(request, &(struct http_response){.status = 200, .headers = headers_of(request, reading)},
                     &(struct http_source){produce, release, walk, (int64_t)total});
}

void refdata_get_all(struct http_request *request)
{
    struct refdata_reading reading;
    struct page page;
    struct error error;
    if (!refdata_reading_begin(request, &reading))
        return;
    if (read_page(request, &page, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    if (!refdata_barrier_pass(request, &reading, NULL, 0))
        return;
    /* JSON unless lines are asked for by name, and no less than JSON is. */
    unsigned lines = http_request_accepts(request, STR("application/x-ndjson"));
    if (lines && lines >= http_request_accepts(request, STR("application/json")))
        send_lines(request, &reading);
    else
        send_page(request, &reading, &page);
}
