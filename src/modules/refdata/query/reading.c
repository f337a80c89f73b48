/* The part every read has in common: the hot path is one table lookup and one pointer. */
#include "modules/refdata/query/reading.h"

#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/memory.h"

void refdata_reading_tag(struct refdata_reading *reading, uint64_t tag, struct str *etag)
{
    char *at = str_put(reading->headers + reading->headers_len, STR("ETag: \""));
    at = hex_put_u64(at, tag);
    *at++ = '"';
    *etag = str_of(at - 18, 18);
    at = str_put(at, STR("\r\n"));
    reading->headers_len = (size_t)(at - reading->headers);
}

/* ---- what is not in memory ---- */

static void on_timeout(struct http_request *request, void *context)
{
    (void)context;
    struct error error;
    error_set(&error, STATUS_DICTIONARY_UNAVAILABLE, "the dictionary is still being loaded");
    http_send_error(request, &error);
}

static bool may_read(const struct http_request *request, const char *scope, struct error *error)
{
    if (!scope || auth_has_scope(kernel_identity(request), str_from(scope)))
        return true;
    error_set(error, STATUS_INSUFFICIENT_SCOPE, "reading this dictionary needs the scope %s", scope);
    return false;
}

/* Unknown names are answered from the catalog: a storm of them never reaches PostgreSQL (R17). */
static void miss(struct refdata *refdata, struct http_request *request, struct str code)
{
    struct error error = {0};
    const struct refdata_catalog *catalog = atomic_load_explicit(&refdata->catalog, memory_order_acquire);
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    if (!str_is_name(code))
        error_set_field(&error, STATUS_BAD_REQUEST, "dictCode",
                        "a dictionary's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    else if (!dictionary)
        error_set(&error, STATUS_UNKNOWN_DICTIONARY, "there is no dictionary called %.*s", STR_ARG(code));
    else if (may_read(request, atomic_load(&dictionary->read_scope), &error) &&
             atomic_load(&dictionary->state) == REFDATA_DISABLED)
        error_set(&error, STATUS_DICTIONARY_UNAVAILABLE, "the dictionary is not available");
    if (error.status != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    refdata_ask_post(request, atomic_load(&refdata->catalog)->cache.first_read_timeout_ms, on_timeout,
                     refdata_keeper_admit, &(struct refdata_demand){.code = code});
}

/* That of the request before, where this one repeats all of its path but the last segment, which is never {dictCode} (check_routes() in refdata.c). *holding NULL:
 * there is none called *code. */
static enum status find_holding(struct http_request *request, struct refdata_holding **holding,
                                struct str *code, struct error *error)
{
    const struct refdata *refdata = request->context;
    *holding = request->carried.of_handler;
    if (*holding) {
        *code = (*holding)->code;
        return STATUS_OK;
    }
    if (http_request_param(request, "dictCode", code, error) != STATUS_OK)
        return error->status;
    const struct refdata_table *table = atomic_load_explicit(&refdata->table, memory_order_acquire);
    request->carried.of_handler = *holding =
        refdata_table_find(table, kernel_identity(request)->tenant, *code);
    return STATUS_OK;
}

bool refdata_reading_begin(struct http_request *request, const char *const *query,
                           struct refdata_reading *reading)
{
    struct refdata *refdata = request->context;
    struct refdata_demand *demand = request->handler_data;
    const struct cache_snapshot *answer = demand ? demand->answer : NULL;
    struct refdata_holding *holding;
    struct str code;
    struct error error;
    if (demand)
        demand->answer = NULL; /* it lives for one call of the handler */
    if (find_holding(request, &holding, &code, &error) != STATUS_OK)
        goto refuse;
    const char *scope = holding ? atomic_load_explicit(&holding->read_scope, memory_order_relaxed) : NULL;
    if (scope && !may_read(request, scope, &error))
        goto refuse;
    reading->snapshot = holding ? cache_slot_read(&holding->slot) : NULL;
    if (holding && answer)
        reading->snapshot = answer;
    if (!reading->snapshot) {
        miss(refdata, request, code);
        return false;
    }
    if (http_request_query_only(request, query, &error) != STATUS_OK)
        goto refuse;
    reading->holding = holding;
    reading->info = cache_snapshot_info(reading->snapshot);
    char *at = str_put(reading->headers, STR("X-Dict-Version: "));
    memcpy(at, reading->info->version_text, sizeof reading->info->version_text);
    at += reading->info->version_text_len;
    at = str_put(at, demand && demand->from_primary ? STR("\r\nX-Data-Source: postgres_fallback\r\n")
                                                    : STR("\r\nX-Data-Source: memory\r\n"));
    reading->headers_len = (size_t)(at - reading->headers);
    _Atomic uint32_t *used = &holding->used_at_s[loop_index(request->loop)];
    uint32_t now_s = (uint32_t)(loop_now_ns(request->loop) / CLOCK_NS_PER_S);
    if (atomic_load_explicit(used, memory_order_relaxed) != now_s)
        atomic_store_explicit(used, now_s, memory_order_relaxed);
    return true;
refuse:
    http_send_error(request, &error);
    return false;
}

struct cache_snapshot *refdata_reading_keep(const struct refdata_reading *reading)
{
    struct cache_snapshot *snapshot = (struct cache_snapshot *)reading->snapshot; /* only its count changes */
    cache_snapshot_ref(snapshot);
    return snapshot;
}

/* ---- bodies made of pieces of a snapshot ---- */

/* Given in pieces of `room`, so that even one item of a megabyte never stands in memory twice. */
static enum http_producer_state produce_pieces(void *context, struct buf *out, size_t room)
{
    struct refdata_pieces *pieces = context;
    while (pieces->piece.len || pieces->next(pieces)) {
        size_t take = pieces->piece.len < room ? pieces->piece.len : room;
        buf_put(out, pieces->piece.ptr, take);
        room -= take;
        pieces->piece = str_of(pieces->piece.ptr + take, pieces->piece.len - take);
        if (!pieces->piece.len)
            continue;
        /* A long one that keeps an old version in memory: cut when there is no room for such versions. */
        if (!cache_snapshot_is_retired(pieces->snapshot) || !budget_is_full(BUDGET_VERSIONS))
            return HTTP_PRODUCER_MORE;
        budget_count_refusal(BUDGET_VERSIONS);
        return HTTP_PRODUCER_FAIL;
    }
    return HTTP_PRODUCER_END;
}

static void release_pieces(void *context)
{
    struct refdata_pieces *pieces = context;
    cache_snapshot_unref(pieces->snapshot);
    if (pieces->charged > 0)
        budget_release_tenant(BUDGET_REQUESTS, pieces->sender, pieces->charged);
    free(pieces);
}

void refdata_reading_stream(struct http_request *request, const struct http_response *response,
                            struct refdata_pieces *pieces, size_t own_bytes, uint64_t bytes)
{
    pieces->sender = hash_seeded(kernel_identity(request)->tenant);
    if (!budget_charge_tenant(BUDGET_REQUESTS, pieces->sender, own_bytes)) {
        release_pieces(pieces);
        http_send_error(request, &(struct error){.status = STATUS_OVERLOADED});
        return;
    }
    pieces->charged = own_bytes;
    http_send_stream(request, response,
                     &(struct http_producer){.produce = produce_pieces,
                                             .release = release_pieces,
                                             .context = pieces,
                                             .content_length = (int64_t)bytes});
}
