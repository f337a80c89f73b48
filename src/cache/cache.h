/* Immutable snapshots of dictionaries: build, publish, read, retire. No SQL, no HTTP.
 *
 * A record is the answer's body, ready to send: {"key":"RU","payload":{…}}; its key is found inside it.
 * Records stand in 1 MiB chunks, shared between versions. Two copy-on-write paged indexes lead to them: a hash
 * index (pages of ~256 slots, a fingerprint in the pointer's top bits) and order leaves (≤ 512 pointers,
 * bytewise key order), each under a two-level root.
 *
 *     snapshot v7 ── hash root ── pages ──┐
 *        │           order root ── leaves ─┴─→ records in chunks ←─ shared with v8, but for what changed
 *        └─ every part counts the references to it: what only v7 needs is freed with v7, whenever that is
 *
 * Threads: a builder belongs to one thread. A snapshot may be read while it is sure to live: on a loop,
 * until the callback returns (cache_slot_read); elsewhere and across callbacks, while holding a reference. */
#ifndef FRESHET_CACHE_CACHE_H
#define FRESHET_CACHE_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "base/str.h"
#include "base/uuid.h"
#include "loop/group.h"

struct cache_record;   /* opaque, immutable */
struct cache_snapshot; /* opaque, immutable */

/* ---- reading: no lock, no allocation, nothing shared written ---- */
const struct cache_record *cache_find(const struct cache_snapshot *snapshot,
                                      struct str key);           /* NULL = absent */
struct str cache_record_body(const struct cache_record *record); /* {"key":…,"payload":…} */
struct str cache_record_key(const struct cache_record *record);
struct str cache_record_payload(const struct cache_record *record);
uint64_t cache_record_tag(const struct cache_record *record); /* hash of the body's content, for ETag */
/* Looks many keys up at once, prefetching, so that cache misses overlap: out[i] is NULL when keys[i] is
 * absent. */
void cache_find_many(const struct cache_snapshot *snapshot, const struct str *keys, size_t count,
                     const struct cache_record **out);

/* In bytewise key order, starting after `after` (empty = from the first). O(log n) to start, O(1) a step. */
struct cache_cursor {
    const struct cache_snapshot *snapshot;
    struct order_place {
        size_t node, leaf, at;
    } place; /* inside */
};
void cache_cursor_init(struct cache_cursor *cursor, const struct cache_snapshot *snapshot, struct str after);
const struct cache_record *cache_cursor_next(struct cache_cursor *cursor); /* NULL at the end */

struct cache_info {
    int64_t version;
    char version_text[STR_U64_BYTES]; /* the same in decimal, which every answer has, … */
    uint32_t version_text_len;        /* … and how many of these bytes it is */
    struct uuid event; /* which event made the version; zeroes unless cache_snapshot_mark() was called */
    uint64_t item_count;
    uint64_t body_bytes;     /* sum of all bodies' lengths */
    uint64_t memory_bytes;   /* what it holds, chunks and indexes; shared parts counted in full */
    struct hash128 digest;   /* sum mod 2^128 of hash_item(key, payload) */
    int64_t loaded_at_us;    /* unix */
    int64_t committed_at_us; /* the same, of the version; 0 unless cache_snapshot_mark() was called with it */
};
const struct cache_info *cache_snapshot_info(const struct cache_snapshot *snapshot);

void cache_snapshot_ref(struct cache_snapshot *snapshot);
/* NULL is fine. Frees with the last one; a large one on a thread of its own, so that a loop never stalls on it. */
void cache_snapshot_unref(struct cache_snapshot *snapshot);
/* Waits until those threads are done: before a process ends. */
void cache_drain(void);

/* ---- building ---- */
struct cache_builder;
/* From nothing (`base` NULL), or on top of `base` (which it references until it ends): then work and memory
 * grow with what changes. `memory_max` bounds what the snapshot may hold, in the terms of info.memory_bytes
 * (0 = no bound); a load from nothing takes about 50 bytes an item more while it finishes. */
struct cache_builder *cache_builder_create(struct cache_snapshot *base, uint64_t memory_max);
/* A payload may have at most so many bytes; 1 GiB without this. */
void cache_builder_limit_payloads(struct cache_builder *builder, size_t payload_bytes_max);
/* `payload` must be one valid JSON value. Its line breaks, which can only stand between tokens, become
 * spaces, so that a body is always one NDJSON line; nothing else in it is looked at. The same key again
 * replaces (the last wins). BAD_REQUEST: key empty, over 1,024 bytes or not UTF-8, payload empty;
 * PAYLOAD_TOO_LARGE: over its limit, naming the key; NO_MEMORY: over memory_max. What failed has changed nothing, and the builder goes on. */
enum status cache_builder_put(struct cache_builder *builder, struct str key, struct str payload,
                              struct error *error) MUST_CHECK;
bool cache_builder_delete(struct cache_builder *builder, struct str key); /* was it there? */
/* From nothing: how many puts were replaced by a later one with the same key. Ask once, before finishing: it
 * sorts. */
size_t cache_builder_replaced(struct cache_builder *builder);
/* Ends the builder and gives a snapshot with one reference. Never fails. */
struct cache_snapshot *cache_builder_finish(struct cache_builder *builder, int64_t version);
void cache_builder_abandon(struct cache_builder *builder);
/* Sets info.event and info.committed_at_us. Before the snapshot is shared with another thread. */
void cache_snapshot_mark(struct cache_snapshot *snapshot, const struct uuid *event, int64_t committed_at_us);

/* ---- publishing ---- */
struct cache_slot {
    _Atomic(struct cache_snapshot *) current; /* NULL = nothing loaded */
};
/* On a loop: valid until this callback returns. */
static inline const struct cache_snapshot *cache_slot_read(const struct cache_slot *slot)
{
    return atomic_load_explicit(&slot->current, memory_order_acquire);
}
/* On a loop: the same with a reference, for streams and parked readers. NULL when empty. */
struct cache_snapshot *cache_slot_acquire(const struct cache_slot *slot);
/* One publisher at a time per slot; takes over the caller's reference. The old one loses the slot's reference
 * after every loop has passed its inbox. NULL empties the slot. */
void cache_slot_publish(struct cache_slot *slot, struct cache_snapshot *snapshot, struct loop_group *group);
/* Bytes of versions that are not current and that readers hold; an estimate, a grace period after a version was published.
 * CACHE_PINNED_UNKNOWN while large ones are being freed. */
#define CACHE_PINNED_UNKNOWN UINT64_MAX
uint64_t cache_pinned_bytes(void);
/* It is not a current one: a later one took its place, or it is for single readers and never gets a place. */
bool cache_snapshot_is_retired(const struct cache_snapshot *snapshot);
void cache_snapshot_retire(struct cache_snapshot *snapshot); /* of single readers */

#endif
