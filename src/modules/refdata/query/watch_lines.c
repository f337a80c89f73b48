/* Lines of a watch: what changed between two snapshots, encoded once for all followers. No thread of its own, no
 * database. */
#include <stdlib.h>

#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/query/watch.h"

enum { SMALL_KEYS = 256, SMALL_BYTES = 1024 * 1024 };

void refdata_watch_put_line(struct buf *out, enum stream_format format, int64_t version, struct str key,
                            const struct cache_record *record)
{
    stream_line_begin(out, format, -1);
    buf_put_str(out, STR("{\"version\":"));
    json_put_i64(out, version);
    buf_put_str(out, STR(",\"key\":"));
    json_put_string(out, key);
    if (record) {
        buf_put_str(out, STR(",\"op\":\"UPSERT\",\"payload\":"));
        buf_put_str(out, cache_record_payload(record));
        buf_put_char(out, '}');
    } else {
        buf_put_str(out, STR(",\"op\":\"DELETE\"}"));
    }
    stream_line_end(out, format);
}

void refdata_watch_put_up_to_date(struct buf *out, enum stream_format format, int64_t version)
{
    stream_line_begin(out, format, version);
    buf_printf(out, REFDATA_WATCH_UP_TO_DATE, (long long)version);
    stream_line_end(out, format);
}

/* ---- a change ---- */

static int64_t version_of(const struct cache_snapshot *snapshot)
{
    return cache_snapshot_info(snapshot)->version;
}

struct refdata_watch_change *refdata_watch_change_create(const struct cache_snapshot *before,
                                                         const struct cache_snapshot *after,
                                                         const struct refdata_change *change,
                                                         unsigned formats, size_t bytes_max)
{
    if (before == after)
        return NULL;
    struct refdata_watch_change *made = memory_zalloc(sizeof *made);
    made->before = (struct cache_snapshot *)before; /* only their counts change */
    made->after = (struct cache_snapshot *)after;
    made->bytes_max = bytes_max;
    made->formats = formats;
    cache_snapshot_ref(made->before);
    cache_snapshot_ref(made->after);
    made->arena = ARENA(1024);
    if (change && change->keys) {
        made->keys = arena_alloc(&made->arena, (change->key_count + 1) * sizeof *made->keys);
        for (; made->key_count < change->key_count; made->key_count++)
            made->keys[made->key_count] = arena_str(&made->arena, change->keys[made->key_count]);
    }
    return made;
}

void refdata_watch_change_destroy(struct refdata_watch_change *change)
{
    cache_snapshot_unref(change->before);
    cache_snapshot_unref(change->after);
    for (unsigned i = 0; i < STREAM_FORMATS; i++)
        stream_segment_unref(change->segments[i]);
    arena_deinit(&change->arena);
    free(change);
}

/* What a loop may write down by itself. The bytes are looked at by the writer's bound. */
bool refdata_watch_change_is_small(const struct refdata_watch_change *change)
{
    size_t bytes = 0;
    if (!change->keys || change->key_count > SMALL_KEYS)
        return false;
    for (size_t i = 0; i < change->key_count && bytes <= SMALL_BYTES; i++) {
        const struct cache_record *record = cache_find(change->after, change->keys[i]);
        bytes += record ? cache_record_body(record).len : 0;
    }
    return bytes <= SMALL_BYTES;
}

/* ---- writing it down ---- */

/* In every format that is followed. False when it has become too much. */
static bool put_line(struct refdata_watch_change *change, struct buf *out, struct str key,
                     const struct cache_record *record)
{
    for (unsigned i = 0; i < STREAM_FORMATS; i++) {
        if (!(change->formats & 1u << i))
            continue;
        refdata_watch_put_line(&out[i], (enum stream_format)i, version_of(change->after), key, record);
        change->is_too_large |= buf_len(&out[i]) > change->bytes_max;
    }
    change->lines++;
    return !change->is_too_large;
}

/* Both in key order, side by side. */
static void compare_all(struct refdata_watch_change *change, struct buf *out)
{
    struct cache_cursor old_cursor, new_cursor;
    bool fits = true;
    cache_cursor_init(&old_cursor, change->before, STR_NONE);
    cache_cursor_init(&new_cursor, change->after, STR_NONE);
    const struct cache_record *old = cache_cursor_next(&old_cursor), *new = cache_cursor_next(&new_cursor);
    while (fits && (old || new)) {
        int order = !old ? 1 : !new ? -1 : str_compare(cache_record_key(old), cache_record_key(new));
        if (order < 0)
            fits = put_line(change, out, cache_record_key(old), NULL);
        else if (order > 0 || (old != new && !str_eq(cache_record_payload(old), cache_record_payload(new))))
            fits = put_line(change, out, cache_record_key(new), new);
        if (order <= 0)
            old = cache_cursor_next(&old_cursor);
        if (order >= 0)
            new = cache_cursor_next(&new_cursor);
    }
}

void refdata_watch_change_write(struct worker_job *job)
{
    struct refdata_watch_change *change = CONTAINER_OF(job, struct refdata_watch_change, job);
    int64_t before = version_of(change->before), after = version_of(change->after);
    struct buf out[STREAM_FORMATS] = {0};
    bool fits = true;
    /* Every key named gets a line, also one whose value is the same: a follower at a version in between may have another. */
    for (size_t i = 0; i < change->key_count && fits; i++)
        fits = put_line(change, out, change->keys[i], cache_find(change->after, change->keys[i]));
    if (!change->keys)
        compare_all(change, out);
    bool is_nothing = !change->lines && after == before;
    for (unsigned i = 0; i < STREAM_FORMATS; i++) {
        if (change->formats & 1u << i && !change->is_too_large && !is_nothing) {
            refdata_watch_put_up_to_date(&out[i], (enum stream_format)i, after);
            change->segments[i] = stream_segment_create(&(struct stream_step){
                .from = before,
                .to = after,
                .can_be_joined = change->keys != NULL,
                .lines = change->lines,
                .bytes = buf_str(&out[i]),
            });
        }
        buf_deinit(&out[i]);
    }
}
