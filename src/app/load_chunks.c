/* Items to chunks, and the ids of chunks. Snapshot and events have ids made of their content: the same command, run again
 * after an interruption, sends the same chunks, and those that have arrived have no second effect. */
#include <stdlib.h>

#include "app/load.h"
#include "base/json.h"
#include "base/memory.h"

/* ---- cutting ---- */

/* Chunks in order; the same file is always cut at the same places. An empty file is one empty chunk. */
static enum status cut_chunks(const struct load_plan *plan, struct load_file *file,
                              enum status (*take)(void *context, const struct load_chunk *chunk,
                                                  struct error *error),
                              void *context, struct error *error)
{
    struct buf items;
    struct load_chunk chunk = {0};
    bool has_item = true;
    enum status status = load_file_rewind(file, error);
    buf_init(&items);
    while (status == STATUS_OK && has_item) {
        if (chunk.item_count)
            buf_put_char(&items, ',');
        status = load_file_next(file, &items, &has_item, error);
        chunk.item_count += has_item;
        bool is_full =
            (int64_t)chunk.item_count >= plan->chunk_items || (int64_t)buf_len(&items) >= plan->chunk_bytes;
        bool is_rest = !has_item && (chunk.item_count || chunk.index == 0);
        if (status != STATUS_OK || !(is_rest || (has_item && is_full)))
            continue;
        chunk.items = buf_str(&items);
        if (!has_item && chunk.item_count)
            chunk.items.len--; /* the comma before nothing */
        status = take(context, &chunk, error);
        chunk = (struct load_chunk){.index = chunk.index + 1};
        buf_clear(&items);
    }
    buf_deinit(&items);
    return status;
}

/* ---- the first pass ---- */

static struct hash128 hash_chunk(const struct load_chunk *chunk)
{
    return hash_item(STR("chunk"), chunk->items);
}

static enum status note_chunk(void *context, const struct load_chunk *chunk, struct error *error)
{
    struct load_plan *plan = context;
    char before[HASH128_HEX_BYTES];
    (void)error;
    if (plan->chunk_count == plan->capacity) {
        plan->capacity = plan->capacity ? plan->capacity * 2 : 64;
        plan->hashes = memory_realloc_array(plan->hashes, plan->capacity, sizeof *plan->hashes);
    }
    plan->hashes[plan->chunk_count++] = hash_chunk(chunk);
    plan->item_count += chunk->item_count;
    plan->byte_count += chunk->items.len;
    hash128_hex(plan->content, before);
    plan->content = hash_item(str_from(before), chunk->items); /* with all before it */
    return STATUS_OK;
}

enum status load_plan_make(struct load_plan *plan, struct load_file *file, struct error *error)
{
    return cut_chunks(plan, file, note_chunk, plan, error);
}

void load_plan_deinit(struct load_plan *plan)
{
    free(plan->hashes);
}

/* ---- ids ---- */

/* Version 8 of RFC 9562: custom. */
static void format_id(struct hash128 hash, char out[UUID_TEXT_BYTES])
{
    struct uuid uuid;
    for (unsigned i = 0; i < 8; i++) {
        uuid.bytes[i] = (uint8_t)(hash.high >> (56 - 8 * i));
        uuid.bytes[8 + i] = (uint8_t)(hash.low >> (56 - 8 * i));
    }
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0F) | 0x80);
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3F) | 0x80);
    uuid_format(&uuid, out);
}

void load_plan_identify(struct load_plan *plan, uint64_t generation)
{
    char content[HASH128_HEX_BYTES], revision[24] = "-";
    struct buf text = {0};
    hash128_hex(plan->content, content);
    if (plan->revision != INT64_MIN)
        snprintf(revision, sizeof revision, "%lld", (long long)plan->revision);
    buf_printf(&text, "%.*s %.*s %s %zu %llu", STR_ARG(plan->tenant), STR_ARG(plan->code), revision,
               plan->chunk_count, (unsigned long long)generation);
    format_id(hash_item(str_from(content), buf_str(&text)), plan->snapshot_id);
    buf_deinit(&text);
}

void load_plan_event_id(const struct load_plan *plan, size_t index, char out[UUID_TEXT_BYTES])
{
    char number[24];
    snprintf(number, sizeof number, "%zu", index);
    format_id(hash_item(str_from(plan->snapshot_id), str_from(number)), out);
}

void load_chunk_put(struct buf *out, const struct load_plan *plan, const struct load_chunk *chunk)
{
    char event_id[UUID_TEXT_BYTES];
    load_plan_event_id(plan, chunk->index, event_id);
    buf_put_char(out, '{');
    json_put_member_str(out, "eventId", str_from(event_id));
    json_put_member_str(out, "dictCode", plan->code);
    json_put_member_str(out, "eventType", STR("SNAPSHOT"));
    json_put_member_str(out, "snapshotId", str_from(plan->snapshot_id));
    json_put_member_i64(out, "chunkIndex", (int64_t)chunk->index + 1);
    json_put_member_i64(out, "chunksTotal", (int64_t)plan->chunk_count);
    if (plan->revision != INT64_MIN)
        json_put_member_i64(out, "sourceRevision", plan->revision);
    json_put_key(out, STR("items"));
    buf_put_char(out, '[');
    buf_put_str(out, chunk->items);
    buf_put_str(out, STR("]}"));
}

/* ---- the second pass ---- */

struct second_pass {
    const struct load_plan *plan;
    bool (*on_chunk)(void *context, const struct load_chunk *chunk);
    void *context;
    size_t count;
};

static enum status changed_error(struct error *error)
{
    return error_set(error, STATUS_BAD_REQUEST, "the file changed while it was read: run the command again");
}

static enum status check_chunk(void *context, const struct load_chunk *chunk, struct error *error)
{
    struct second_pass *pass = context;
    struct hash128 hash = hash_chunk(chunk);
    if (pass->count == pass->plan->chunk_count || hash.low != pass->plan->hashes[pass->count].low ||
        hash.high != pass->plan->hashes[pass->count].high)
        return changed_error(error);
    pass->count++;
    return pass->on_chunk(pass->context, chunk) ? STATUS_OK : STATUS_CANCELLED;
}

enum status load_plan_walk(const struct load_plan *plan, struct load_file *file,
                           bool (*on_chunk)(void *context, const struct load_chunk *chunk), void *context,
                           struct error *error)
{
    struct second_pass pass = {plan, on_chunk, context, 0};
    enum status status = cut_chunks(plan, file, check_chunk, &pass, error);
    return status == STATUS_OK && pass.count != plan->chunk_count ? changed_error(error) : status;
}
