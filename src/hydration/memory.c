/* What a loop remembers of entities: a hash table, and a list in the order things were heard, so that the oldest go first.
 *
 *     bucket ─▶ item 7 for everybody: copy, version 3 ─▶ session 9 for ann: copy, version 5 ─▶ session 9 for bob: hidden, 5
 *     oldest ─▶ … ─▶ newest
 *
 * An entry is never changed: what is heard replaces it. It is handed out until it is HYDRATION_MEMORY_MS old at most, and
 * stays for its version VERSION_MS long, the time the bus itself keeps an answer: one that comes later than that is not an
 * answer any more. All callers' entries of an entity share its versions: one of them hears of a change, all are outdated. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "hydration/desk.h"

#define VERSION_MS 60000
#define LARGE_PART 4 /* what would take more than a quarter of the memory is not worth the rest of it */

struct entry {
    struct entry *next_in_bucket;
    struct entry *newer, *older;
    uint64_t hash;
    size_t bytes;
    enum hydration_known known; /* NOT: only the version */
    struct str tenant, entity_type, entity_id, subject;
    struct str data, source_module;
    struct hydration_cover cover;
    bool has_cover;
    enum hydration_reason reason;
    bool is_private;
    int64_t version, heard_ns, until_ns;
    struct str block[]; /* fields, then texts */
};

struct hydration_memory {
    struct entry **buckets;
    size_t bucket_mask;
    struct entry *oldest, *newest;
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
    memory->entries_max = entries_max;
    memory->bytes_max = bytes_max;
    return memory;
}

static void forget(struct hydration_memory *memory, struct entry *entry)
{
    struct entry **place = &memory->buckets[entry->hash & memory->bucket_mask];
    while (*place != entry)
        place = &(*place)->next_in_bucket;
    *place = entry->next_in_bucket;
    *(entry->older ? &entry->older->newer : &memory->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &memory->newest) = entry->older;
    memory->count--;
    memory->bytes -= entry->bytes;
    free(entry);
}

void hydration_memory_destroy(struct hydration_memory *memory)
{
    while (memory->oldest)
        forget(memory, memory->oldest);
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
        entry = entry->next_in_bucket;
    return entry;
}

static bool is_current(const struct entry *entry, int64_t now_ns)
{
    return entry->known != HYDRATION_KNOWN_NOT && entry->until_ns > now_ns;
}

/* What counts for this caller: their own word before everybody's, the newer before either. */
static const struct entry *better(const struct entry *a, const struct entry *b)
{
    if (!a || a->version != b->version)
        return a && a->version > b->version ? a : b;
    return a->subject.len ? a : b;
}

struct hydration_known_entity hydration_memory_look(struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns)
{
    struct hydration_known_entity result = {.known = HYDRATION_KNOWN_NOT};
    uint64_t hash = hydration_entity_hash(need->tenant, need->entity_type, need->entity_id);
    const struct entry *found = NULL;

    for (struct entry *entry = memory->buckets[hash & memory->bucket_mask]; entry;
         entry = entry->next_in_bucket) {
        if (!is_of(entry, hash, need->tenant, need->entity_type, need->entity_id))
            continue;
        result.is_private |= entry->is_private;
        result.was_heard |= entry->known == HYDRATION_KNOWN_NOT;
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

/* ---- hearing ---- */

/* Versions are the entity's: whoever heard of a later one makes this one old, for all. Of the same version something is
 * more than nothing, unless it is about different callers. Without versions (0) that holds as long as the copy serves. */
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

/* Does what is heard leave this entry of the same entity as it is? Only what is of the same version and about others. */
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

/* The same version known more widely is worth more than what is heard now. */
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
        return HYDRATION_KNOWN_NOT; /* somebody's, and nobody said whose: for nobody */
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

static void insert(struct hydration_memory *memory, struct entry *entry)
{
    struct entry **bucket = &memory->buckets[entry->hash & memory->bucket_mask];
    entry->next_in_bucket = *bucket;
    *bucket = entry;
    entry->older = memory->newest;
    *(memory->newest ? &memory->newest->newer : &memory->oldest) = entry;
    memory->newest = entry;
    memory->count++;
    memory->bytes += entry->bytes;
}

static void make_room(struct hydration_memory *memory, int64_t now_ns)
{
    while (memory->oldest && (memory->count > memory->entries_max || memory->bytes > memory->bytes_max ||
                              memory->oldest->heard_ns + VERSION_MS * CLOCK_NS_PER_MS <= now_ns))
        forget(memory, memory->oldest);
}

static void remember(struct hydration_memory *memory, uint64_t hash, const struct hydration_event *event,
                     const struct hydration_cover *cover, enum hydration_known known, int64_t ttl_ms,
                     int64_t now_ns)
{
    if (known == HYDRATION_KNOWN_COPY && event->data.len > memory->bytes_max / LARGE_PART)
        known = HYDRATION_KNOWN_NOT;
    struct entry *entry = make_entry(event, cover, known);
    entry->hash = hash;
    entry->heard_ns = now_ns;
    entry->until_ns =
        now_ns + (ttl_ms < HYDRATION_MEMORY_MS ? ttl_ms : HYDRATION_MEMORY_MS) * CLOCK_NS_PER_MS;
    insert(memory, entry);
    make_room(memory, now_ns);
}

bool hydration_memory_hear(struct hydration_memory *memory, const struct hydration_event *event,
                           const struct hydration_cover *cover, bool is_wanted, int64_t ttl_ms,
                           int64_t now_ns)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    struct entry **bucket = &memory->buckets[hash & memory->bucket_mask];
    bool is_held = false;

    make_room(memory, now_ns);
    for (struct entry *at = next_of(*bucket, hash, event); at;
         at = next_of(at->next_in_bucket, hash, event)) {
        if (is_outdated(event, at, now_ns))
            return false;
        if (is_wider(at, event, cover, now_ns))
            return true;
        is_held |= at->known == HYDRATION_KNOWN_COPY && is_same_view(event, at) && is_current(at, now_ns);
    }
    for (struct entry *at = next_of(*bucket, hash, event), *next; at; at = next) {
        next = next_of(at->next_in_bucket, hash, event);
        if (!leaves(event, at))
            forget(memory, at);
    }
    bool is_renewed = is_held && event->kind == HYDRATION_EVENT_UPDATED;
    enum hydration_known known = is_wanted || is_renewed ? known_by(event) : HYDRATION_KNOWN_NOT;
    remember(memory, hash, event, cover, known, ttl_ms, now_ns);
    return true;
}
