/* GET …/dictionaries: the dictionaries that the client may read, by pages. What is held is answered from memory; the versions of the
 * others come from a read that all requests of the tenant share (versions.h), one database after the other. */
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/query/reading.h"

enum { PAGE_DEFAULT = 100, PAGE_MAX = 1000 };

/* What the request knows so far, in its arena. */
struct listing {
    struct refdata_demand demand; /* first: request->handler_data */
    struct refdata_versions *known;
    size_t known_count, known_max;
};

struct list_page {
    int64_t limit;
    struct str after; /* the last code of the page before; empty = from the first */
};

static enum status read_page(struct http_request *request, struct list_page *page, struct error *error)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    bool has_cursor = false;
    struct str cursor;
    *page = (struct list_page){.limit = PAGE_DEFAULT, .after = STR_NONE};
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = http_request_query_i64(request, "limit", 1, PAGE_MAX, &page->limit, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("cursor"), &has_cursor, &cursor, error);
    if (status != STATUS_OK || !has_cursor)
        return status;
    page->after = cursor;
    return str_is_name(cursor) ? STATUS_OK
                               : error_set_field(error, STATUS_BAD_REQUEST, "cursor",
                                                 "this is not a nextCursor of an earlier page");
}

/* A copy in the arena: a reference would have to be released when the client disconnects. */
static void keep_versions(struct http_request *request, struct listing *listing)
{
    const struct refdata_versions *from = listing->demand.versions;
    listing->demand.versions = NULL;
    if (!from)
        return;
    if (listing->known_count == listing->known_max) {
        struct refdata_versions *before = listing->known;
        listing->known_max = listing->known_max ? 2 * listing->known_max : 4;
        listing->known = arena_zalloc(request->arena, listing->known_max * sizeof *listing->known);
        if (before)
            memcpy(listing->known, before, listing->known_count * sizeof *before);
    }
    struct refdata_versions *to = &listing->known[listing->known_count++];
    to->database = from->database;
    to->is_known = from->is_known;
    to->count = from->count;
    to->rows = arena_alloc(request->arena, (from->count + 1) * sizeof *to->rows);
    for (size_t i = 0; i < from->count; i++) {
        to->rows[i] = from->rows[i];
        to->rows[i].code = arena_str(request->arena, from->rows[i].code);
    }
}

static const struct refdata_versions *known_of(const struct listing *listing,
                                               const struct refdata_database *database)
{
    for (size_t i = 0; listing && i < listing->known_count; i++)
        if (listing->known[i].database == database->fingerprint)
            return &listing->known[i];
    return NULL;
}

static void put_time(struct buf *out, const char *name, int64_t unix_us)
{
    char text[CLOCK_RFC3339_BYTES];
    if (unix_us == 0)
        return;
    clock_rfc3339(unix_us, text);
    json_put_member_str(out, name, str_from(text));
}

/* One dictionary. False: its version is not known, and is to be asked for. */
static bool put_dictionary(struct buf *out, const struct refdata_dictionary *dictionary,
                           const struct cache_snapshot *snapshot, const struct listing *listing)
{
    const struct refdata_versions *known = snapshot ? NULL : known_of(listing, dictionary->database);
    if (!snapshot && !known)
        return false;
    const struct cache_info *info = snapshot ? cache_snapshot_info(snapshot) : NULL;
    const struct refdata_versions_row *row = info ? NULL : refdata_versions_find(known, dictionary->code);
    buf_put_str(out, buf_str(out).ptr[buf_len(out) - 1] == '[' ? STR("{") : STR(",{"));
    json_put_member_str(out, "dictCode", dictionary->code);
    if (info || known->is_known)
        json_put_member_i64(out, "version", info ? info->version : row ? row->version : 0);
    else
        json_put_member_raw(out, "version", STR("null"));
    json_put_member_bool(out, "held", info != NULL);
    json_put_member_bool(out, "available", info || atomic_load(&dictionary->state) != REFDATA_DISABLED);
    if (info)
        json_put_member_i64(out, "itemCount", (int64_t)info->item_count);
    put_time(out, "updatedAt", info ? info->committed_at_us : row ? row->committed_at_us : 0);
    put_time(out, "loadedAt", info ? info->loaded_at_us : 0);
    buf_put_char(out, '}');
    return true;
}

/* The page as far as it is known. NULL: it is complete; else the dictionary whose version is not known. */
static const struct refdata_dictionary *put_page(struct buf *out, struct http_request *request,
                                                 const struct list_page *page, const struct listing *listing)
{
    struct refdata *refdata = request->context;
    const struct auth_identity *identity = kernel_identity(request);
    const struct refdata_catalog *catalog = atomic_load_explicit(&refdata->catalog, memory_order_acquire);
    const struct refdata_table *table = atomic_load_explicit(&refdata->table, memory_order_acquire);
    const struct refdata_dictionary *last = NULL;
    int64_t count = 0;
    bool has_more = false;
    buf_put_str(out, STR("{\"dictionaries\":["));
    for (size_t i = 0; i < catalog->dictionary_count && !has_more; i++) {
        const struct refdata_dictionary *dictionary = catalog->dictionaries[i];
        const char *scope = atomic_load(&dictionary->read_scope);
        if (str_compare(dictionary->code, page->after) <= 0 ||
            (scope && !auth_has_scope(identity, str_from(scope))))
            continue;
        has_more = count == page->limit;
        if (has_more)
            break;
        const struct refdata_holding *holding = refdata_table_find(table, identity->tenant, dictionary->code);
        if (!put_dictionary(out, dictionary, holding ? cache_slot_read(&holding->slot) : NULL, listing))
            return dictionary;
        last = dictionary;
        count++;
    }
    buf_put_str(out, STR("],\"nextCursor\":"));
    if (has_more)
        json_put_string(out, last->code);
    else
        buf_put_str(out, STR("null"));
    buf_put_char(out, '}');
    return NULL;
}

void refdata_get_dictionaries(struct http_request *request)
{
    struct refdata *refdata = request->context;
    struct listing *listing = request->handler_data;
    struct list_page page;
    struct error error;
    struct buf body = {0};
    if (listing)
        keep_versions(request, listing);
    if (read_page(request, &page, &error) != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    const struct refdata_dictionary *unknown = put_page(&body, request, &page, listing);
    if (!unknown) {
        http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    } else {
        if (!listing)
            listing = request->handler_data = arena_zalloc(request->arena, sizeof *listing);
        listing->demand.code = arena_str(request->arena, unknown->code);
        refdata_ask_post(request, 2 * atomic_load(&refdata->catalog)->barrier.timeout_ms, refdata_ask_late,
                         refdata_versions_ask, &listing->demand);
    }
    buf_deinit(&body);
}
