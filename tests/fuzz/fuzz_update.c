/* Any bytes as an update: refused by name, or read; what was read can be walked and written, and what was written is
 * the same update again. */
#include <stdlib.h>

#include "modules/refdata/update.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct refdata_limits limits = {
    .items_max = 16, .key_bytes_max = 32, .payload_bytes_max = 512, .depth_max = 12};

static void check(bool holds)
{
    if (!holds)
        abort();
}

static enum status read_text(struct str text, enum refdata_origin origin, struct arena *arena,
                             struct refdata_update *update, struct error *error)
{
    struct json_value body;
    struct str code;
    enum status status = refdata_update_open(text, &limits, &body, &code, arena, error);
    if (status != STATUS_OK)
        return status;
    struct str tenant = origin == REFDATA_FROM_CLIENT ? STR("acme") : STR_NONE;
    return refdata_update_read(&body, origin, tenant, &limits, arena, update, error);
}

static void check_items(const struct refdata_update *update, struct arena *arena)
{
    struct refdata_items items;
    struct refdata_item item;
    size_t count = 0;
    refdata_items_begin(&items, update, arena);
    for (; refdata_items_next(&items, &item); count++) {
        check(item.key.len > 0 && item.key.len <= (size_t)limits.key_bytes_max && str_is_utf8(item.key));
        check(!memchr(item.key.ptr, '\0', item.key.len));
        check(item.is_delete ? update->has_delete && item.payload.len == 0
                             : update->has_upsert && item.payload.len > 0);
        check(item.payload.len <= (size_t)limits.payload_bytes_max && !json_has_nul_escape(item.payload));
    }
    check(count == update->item_count && count <= (size_t)limits.items_max);
}

static void check_update(const struct refdata_update *update, struct arena *arena)
{
    struct refdata_update again;
    struct error error;
    struct buf out = {0};

    check_items(update, arena);
    check(update->type == REFDATA_SNAPSHOT || update->chunks_total == 1);
    check(update->chunk_index >= 1 && update->chunk_index <= update->chunks_total);
    check(!refdata_update_is_chunk(update) || update->snapshot_id[0]);
    refdata_update_put(&out, update);
    check(read_text(buf_str(&out), REFDATA_FROM_BUS, arena, &again, &error) == STATUS_OK);
    check(strcmp(again.event_id, update->event_id) == 0 && str_eq(again.tenant, update->tenant));
    check(again.item_count == update->item_count && again.occurred_at_us == update->occurred_at_us);
    if (refdata_update_is_chunk(update))
        check(again.content.low == update->content.low && again.content.high == update->content.high);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = str_of((const char *)data, size);
    struct refdata_update update;
    struct error error = {0};
    struct arena arena = ARENA(4096);

    for (int origin = REFDATA_FROM_CLIENT; origin <= REFDATA_FROM_BUS; origin++) {
        enum status status = read_text(text, (enum refdata_origin)origin, &arena, &update, &error);
        if (status == STATUS_OK)
            check_update(&update, &arena);
        else
            check(status == error.status &&
                  (status == STATUS_BAD_REQUEST || status == STATUS_PAYLOAD_TOO_LARGE));
    }
    arena_deinit(&arena);
    return 0;
}
