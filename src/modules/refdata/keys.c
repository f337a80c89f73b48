/* The keys of a pair for operators, from the memory of this process: the snapshot is taken on the home loop, and read on the caller's
 * worker. */
#include <pthread.h>

#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/refdata.h"

struct keys_ask {
    struct loop_message message;
    struct refdata *refdata;
    const struct ops_keys *keys;
    struct cache_snapshot *snapshot; /* referenced; NULL = not held */
    pthread_mutex_t lock;
    pthread_cond_t is_done;
    bool done;
};

static void find_snapshot(struct loop *loop, struct loop_message *message)
{
    struct keys_ask *ask = CONTAINER_OF(message, struct keys_ask, message);
    const struct refdata_holding *holding =
        refdata_table_find(ask->refdata->own, ask->keys->tenant, ask->keys->dict_code);
    (void)loop;
    struct cache_snapshot *snapshot = holding ? cache_slot_acquire(&holding->slot) : NULL;
    pthread_mutex_lock(&ask->lock);
    ask->snapshot = snapshot;
    ask->done = true;
    pthread_cond_signal(&ask->is_done);
    pthread_mutex_unlock(&ask->lock);
}

static struct cache_snapshot *take_snapshot(struct refdata *refdata, const struct ops_keys *keys)
{
    struct keys_ask ask = {.message.on_message = find_snapshot,
                           .refdata = refdata,
                           .keys = keys,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .is_done = PTHREAD_COND_INITIALIZER};
    loop_post(refdata->home, &ask.message);
    pthread_mutex_lock(&ask.lock);
    while (!ask.done)
        pthread_cond_wait(&ask.is_done, &ask.lock);
    pthread_mutex_unlock(&ask.lock);
    pthread_mutex_destroy(&ask.lock);
    pthread_cond_destroy(&ask.is_done);
    return ask.snapshot;
}

static void put_key(struct ops_keys *keys, const struct cache_record *record)
{
    buf_put_str(keys->items, buf_len(keys->items) ? STR(",{") : STR("{"));
    json_put_member_str(keys->items, "key", cache_record_key(record));
    json_put_member_i64(keys->items, "bytes", (int64_t)cache_record_payload(record).len);
    buf_put_char(keys->items, '}');
}

/* The first key with a prefix may be the prefix itself, which a cursor that begins after it leaves out. */
bool refdata_list_keys(void *state, struct ops_keys *keys)
{
    struct cache_snapshot *snapshot = take_snapshot(state, keys);
    const struct cache_record *record = NULL;
    struct cache_cursor cursor;
    int64_t count = 0;
    if (!snapshot)
        return false;
    keys->version = cache_snapshot_info(snapshot)->version;
    bool begins = !keys->after.ptr && keys->prefix.len;
    if (begins && (record = cache_find(snapshot, keys->prefix)) != NULL && ++count)
        put_key(keys, record);
    if (record)
        keys->last = arena_str(keys->arena, keys->prefix);
    cache_cursor_init(&cursor, snapshot, begins ? keys->prefix : keys->after);
    while ((record = cache_cursor_next(&cursor)) != NULL) {
        struct str key = cache_record_key(record);
        if (!str_starts_with(key, keys->prefix))
            break;
        if (count++ == keys->limit) {
            keys->has_more = true;
            break;
        }
        put_key(keys, record);
        keys->last = arena_str(keys->arena, key);
    }
    cache_snapshot_unref(snapshot);
    return true;
}
