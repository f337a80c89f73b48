/* What one loop remembers of entities: a hash table, and a list in the order of arrival, so that the oldest entries go first.
 *
 *     bucket ─▶ item 7 for every caller: copy, version 3 ─▶ session 9 for ann: copy, version 5 ─▶ session 9 for bob: hidden, 5
 *     oldest ─▶ … ─▶ newest
 *
 * An entry never changes: an event replaces it. It serves for HYDRATION_MEMORY_MS at most, and stays for its version for
 * VERSION_MS, as long as the bus keeps an answer, so that a late answer is recognized. Versions are those of the entity: an event
 * for one caller makes the older entries of all callers obsolete. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "hydration/inside.h"

enum {
    VERSION_MS = 60000,
    LARGE_PART = 4, /* data of more than a quarter of the memory is not kept */
};

struct entry {
    LIST_ENTRY(entry) in_bucket;
    TAILQ_ENTRY(entry) by_age;
    uint64_t hash;
    size_t bytes;
    enum hydration_known known; /* NOT: only the version */
    struct str tenant, entity_type, entity_id, subject;
    struct str data, source_module;
    struct hydration_cover cover;
    bool has_cover;
    enum hydration_reason reason;
    bool is_private;
    int64_t version, received_ns, until_ns;
    struct str block[]; /* fields, then texts */
};

struct hydration_memory {
    LIST_HEAD(entries, entry) * buckets;
    size_t bucket_mask;
    TAILQ_HEAD(, entry) by_age; /* the oldest first */
    size_t count, entries_max, bytes, bytes_max;
};

struct hydration_memory *hydration_memory_create(size_t entries_max, size_t bytes_max)
{
    struct hydration_memory *memory = memory_zalloc(sizeof *memory);
    size_t buckets = 16;
    while (buckets < entries_max)
        buckets *= 2;
    memory->buckets = memory_zalloc(buckets * sizeof memory->buckets[0]);
    memory->bucket_mask = buckets - 1;
    TAILQ_INIT(&memory->by_age);
    memory->entries_max = entries_max;
    memory->bytes_max = bytes_max;
    return memory;
}

static void forget(struct hydration_memory *memory, struct entry *entry)
{
    LIST_REMOVE(entry, in_bucket);
    TAILQ_REMOVE(&memory->by_age, entry, by_age);
    memory->count--;
    memory->bytes -= entry->bytes;
    free(entry);
}

void hydration_memory_destroy(struct hydration_memory *memory)
{
    while (!TAILQ_EMPTY(&memory->by_age))
        forget(memory, TAILQ_FIRST(&memory->by_age));
    free(memory->buckets);
    free(memory);
}

size_t hydration_memory_count(const struct hydration_memory *memory)
{
    return memory->count;
}

size_t hydration_memory_bytes(const struct hydration_memory *memory)
{
    return memory->bytes;
}

/* ---- finding ---- */

static bool is_of(const struct entry *entry, uint64_t hash, struct str tenant, struct str entity_type,
                  struct str entity_id)
{
    return entry->hash == hash && str_eq(entry->entity_id, entity_id) &&
           str_eq(entry->entity_type, entity_type) && str_eq(entry->tenant, tenant);
}

/* The next entry of an entity, from `entry` on. */
static struct entry *next_of(struct entry *entry, uint64_t hash, const struct hydration_event *event)
{
    while (entry && !is_of(entry, hash, event->tenant, event->entity_type, event->entity_id))
        entry = LIST_NEXT(entry, in_bucket);
    return entry;
}

static bool is_current(const struct entry *entry, int64_t now_ns)
{
    return entry->known != HYDRATION_KNOWN_NOT && entry->until_ns > now_ns;
}

/* The entry that counts for a caller: the newer one, and of the same version the caller's own. */
static const struct entry *better(const struct entry *a, const struct entry *b)
{
    if (!a || a->version != b->version)
        return a && a->version > b->version ? a : b;
    return a->subject.len ? a : b;
}

struct hydration_known_entity hydration_memory_find(struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns)
{
    struct hydration_known_entity result = {.known = HYDRATION_KNOWN_NOT};
    uint64_t hash = hydration_entity_hash(need->tenant, need->entity_type, need->entity_id);
    const struct entry *found = NULL;

    struct entry *entry;
    LIST_FOREACH(entry, &memory->buckets[hash & memory->bucket_mask], in_bucket) {
        if (!is_of(entry, hash, need->tenant, need->entity_type, need->entity_id))
            continue;
        result.is_private |= entry->is_private;
        result.was_received |= entry->known == HYDRATION_KNOWN_NOT;
        if (str_eq(entry->subject, entry->is_private ? need->subject : STR_NONE) &&
            entry->known != HYDRATION_KNOWN_NOT)
            found = better(found, entry);
    }
    if (!found)
        return result;
    result.data = found->data;
    result.source_module = found->source_module;
    result.version = found->version;
    result.reason = found->reason;
    if (is_current(found, now_ns) &&
        (found->known == HYDRATION_KNOWN_ABSENT ||
         hydration_data_includes(found->has_cover ? &found->cover : NULL, found->data, &need->cover)))
        result.known = found->known;
    return result;
}

/* ---- storing ---- */

/* An older version is outdated. Of the same version a copy counts more than a not-found, unless they are for different callers;
 * without versions (0) as long as the copy serves. */
static bool is_outdated(const struct hydration_event *event, const struct entry *entry, int64_t now_ns)
{
    if (event->version != entry->version)
        return event->version < entry->version;
    if (event->kind == HYDRATION_EVENT_UPDATED || entry->known != HYDRATION_KNOWN_COPY)
        return false;
    if (event->is_private && !str_eq(event->subject, entry->subject))
        return false;
    return event->version > 0 || is_current(entry, now_ns);
}

/* Does the entry of the same entity stay? Only if it has the same version and is for other callers. */
static bool leaves(const struct hydration_event *event, const struct entry *entry)
{
    return event->is_private && event->subject.len > 0 && entry->version == event->version &&
           !str_eq(entry->subject, event->subject) &&
           (entry->is_private || event->kind == HYDRATION_EVENT_NOT_FOUND);
}

static bool is_same_view(const struct hydration_event *event, const struct entry *entry)
{
    return entry->is_private == event->is_private &&
           str_eq(entry->subject, event->is_private ? event->subject : STR_NONE);
}

/* The same version with a wider cover is kept instead of the event. */
static bool is_wider(const struct entry *entry, const struct hydration_event *event,
                     const struct hydration_cover *cover, int64_t now_ns)
{
    return event->kind == HYDRATION_EVENT_UPDATED && entry->known == HYDRATION_KNOWN_COPY &&
           is_current(entry, now_ns) && event->version > 0 && entry->version == event->version &&
           is_same_view(event, entry) && entry->has_cover &&
           (cover ? hydration_cover_includes(&entry->cover, cover) &&
                        !hydration_cover_includes(cover, &entry->cover)
                  : entry->cover.mode == HYDRATION_FULL);
}

static enum hydration_known known_by(const struct hydration_event *event)
{
    if (event->is_private && !event->subject.len)
        return HYDRATION_KNOWN_NOT; /* private, and its caller is not named */
    return event->kind == HYDRATION_EVENT_UPDATED ? HYDRATION_KNOWN_COPY : HYDRATION_KNOWN_ABSENT;
}

static struct entry *make_entry(const struct hydration_event *event, const struct hydration_cover *cover,
                                enum hydration_known known)
{
    bool has_data = known == HYDRATION_KNOWN_COPY;
    struct str subject = event->is_private ? event->subject : STR_NONE;
    struct str data = has_data ? event->data : STR_NONE;
    size_t bytes = sizeof(struct entry) + (has_data ? hydration_cover_bytes(cover) : 0) + event->tenant.len +
                   event->entity_type.len + event->entity_id.len + subject.len + data.len + event->module.len;
    struct entry *entry = memory_alloc(bytes);
    char *at = (char *)entry->block;

    *entry = (struct entry){.bytes = bytes,
                            .known = known,
                            .reason = event->reason,
                            .is_private = event->is_private,
                            .version = event->version,
                            .has_cover = has_data && cover};
    if (entry->has_cover)
        entry->cover = hydration_cover_keep(cover, &at);
    entry->tenant = hydration_text_keep(event->tenant, &at);
    entry->entity_type = hydration_text_keep(event->entity_type, &at);
    entry->entity_id = hydration_text_keep(event->entity_id, &at);
    entry->subject = hydration_text_keep(subject, &at);
    entry->data = hydration_text_keep(data, &at);
    entry->source_module = hydration_text_keep(event->module, &at);
    return entry;
}

static void make_room(struct hydration_memory *memory, int64_t now_ns)
{
    struct entry *oldest;
    while ((oldest = TAILQ_FIRST(&memory->by_age)) != NULL &&
           (memory->count > memory->entries_max || memory->bytes > memory->bytes_max ||
            oldest->received_ns + VERSION_MS * CLOCK_NS_PER_MS <= now_ns))
        forget(memory, oldest);
}

static void insert(struct hydration_memory *memory, uint64_t hash, struct entry *entry, int64_t ttl_ms,
                   int64_t now_ns)
{
    entry->hash = hash;
    entry->received_ns = now_ns;
    entry->until_ns =
        now_ns + (ttl_ms < HYDRATION_MEMORY_MS ? ttl_ms : HYDRATION_MEMORY_MS) * CLOCK_NS_PER_MS;
    LIST_INSERT_HEAD(&memory->buckets[hash & memory->bucket_mask], entry, in_bucket);
    TAILQ_INSERT_TAIL(&memory->by_age, entry, by_age);
    memory->count++;
    memory->bytes += entry->bytes;
    make_room(memory, now_ns);
}

bool hydration_memory_store(struct hydration_memory *memory, const struct hydration_event *event,
                            const struct hydration_cover *cover, bool is_wanted, int64_t ttl_ms,
                            int64_t now_ns)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    struct entries *bucket = &memory->buckets[hash & memory->bucket_mask];
    bool is_held = false;

    make_room(memory, now_ns);
    for (struct entry *at = next_of(LIST_FIRST(bucket), hash, event); at;
         at = next_of(LIST_NEXT(at, in_bucket), hash, event)) {
        if (is_outdated(event, at, now_ns))
            return false;
        if (is_wider(at, event, cover, now_ns))
            return true;
        is_held |= at->known == HYDRATION_KNOWN_COPY && is_same_view(event, at) && is_current(at, now_ns);
    }
    for (struct entry *at = next_of(LIST_FIRST(bucket), hash, event), *next; at; at = next) {
        next = next_of(LIST_NEXT(at, in_bucket), hash, event);
        if (!leaves(event, at))
            forget(memory, at);
    }
    bool is_renewed = is_held && event->kind == HYDRATION_EVENT_UPDATED;
    enum hydration_known known = is_wanted || is_renewed ? known_by(event) : HYDRATION_KNOWN_NOT;
    if (known == HYDRATION_KNOWN_COPY && event->data.len > memory->bytes_max / LARGE_PART)
        known = HYDRATION_KNOWN_NOT;
    insert(memory, hash, make_entry(event, cover, known), ttl_ms, now_ns);
    return true;
}
