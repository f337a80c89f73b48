/* The copies and absences in the memory of one loop: a map by the entity, and a list in the order of arrival, so that the oldest
 * entries are removed first.
 *
 *     map    ─▶ item 7 for every caller: copy, version 3 ─▶ session 9 for ann: copy, version 5 ─▶ session 9 for bob: hidden, 5
 *     oldest ─▶ … ─▶ newest
 *
 * An entry never changes: an event replaces it. It serves for HYDRATION_MEMORY_MS at most, and its version is remembered for
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

struct hydration_memory_entry {
    struct map_node node;
    TAILQ_ENTRY(hydration_memory_entry) by_age;
    size_t bytes;
    enum hydration_known known; /* KNOWN_NOT: only the version */
    struct str tenant, entity_type, entity_id, subject;
    struct str data, source_module;
    struct hydration_cover cover;
    bool has_cover;
    enum hydration_reason reason;
    bool is_private;
    int64_t version, received_ns, until_ns;
    struct str block[]; /* fields, then texts */
};

void hydration_memory_init(struct hydration_memory *memory, size_t entries_max, size_t bytes_max)
{
    *memory = (struct hydration_memory){.entries_max = entries_max, .bytes_max = bytes_max};
    TAILQ_INIT(&memory->by_age);
    map_reserve(&memory->entries, entries_max);
}

static void forget(struct hydration_memory *memory, struct hydration_memory_entry *entry)
{
    map_remove(&memory->entries, &entry->node);
    TAILQ_REMOVE(&memory->by_age, entry, by_age);
    memory->bytes -= entry->bytes;
    free(entry);
}

void hydration_memory_deinit(struct hydration_memory *memory)
{
    while (!TAILQ_EMPTY(&memory->by_age))
        forget(memory, TAILQ_FIRST(&memory->by_age));
    map_deinit(&memory->entries);
}

/* ---- finding ---- */

/* The next entry of an entity, from `node` on. */
static struct hydration_memory_entry *entry_of(struct map_node *node, struct str tenant,
                                               struct str entity_type, struct str entity_id)
{
    for (; node; node = map_match(node->next, node->hash)) {
        struct hydration_memory_entry *entry = CONTAINER_OF(node, struct hydration_memory_entry, node);
        if (str_eq(entry->entity_id, entity_id) && str_eq(entry->entity_type, entity_type) &&
            str_eq(entry->tenant, tenant))
            return entry;
    }
    return NULL;
}

static bool is_current(const struct hydration_memory_entry *entry, int64_t now_ns)
{
    return entry->known != HYDRATION_KNOWN_NOT && entry->until_ns > now_ns;
}

/* Of the entries that a caller may see the newest counts, and of the same version the caller's own. */
struct hydration_known_entity hydration_memory_find(const struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns)
{
    struct hydration_known_entity result = {.known = HYDRATION_KNOWN_NOT};
    uint64_t hash = hydration_entity_hash(need->tenant, need->entity_type, need->entity_id);
    const struct hydration_memory_entry *found = NULL, *entry;

    for (struct map_node *node = map_first(&memory->entries, hash);
         (entry = entry_of(node, need->tenant, need->entity_type, need->entity_id)) != NULL;
         node = map_match(entry->node.next, hash)) {
        result.is_private |= entry->is_private;
        result.was_received |= entry->known == HYDRATION_KNOWN_NOT;
        if (entry->known == HYDRATION_KNOWN_NOT ||
            !str_eq(entry->subject, entry->is_private ? need->subject : STR_NONE))
            continue;
        if (!found || entry->version > found->version ||
            (entry->version == found->version && !found->subject.len))
            found = entry;
    }
    if (!found)
        return result;
    bool is_copy = found->known == HYDRATION_KNOWN_COPY;
    result.outcome = (struct hydration_outcome){.result = is_copy ? HYDRATION_UPDATED : HYDRATION_NOT_FOUND,
                                                .reason = found->reason,
                                                .way = HYDRATION_BY_MEMORY,
                                                .is_negative_hit = !is_copy,
                                                .source_module = found->source_module,
                                                .version = found->version,
                                                .data = found->data};
    if (is_current(found, now_ns) &&
        (!is_copy ||
         hydration_data_includes(found->has_cover ? &found->cover : NULL, found->data, &need->cover)))
        result.known = found->known;
    return result;
}

/* ---- storing ---- */

/* An older version is outdated. Of the same version a copy counts more than a not-found, unless they are for different callers;
 * without versions (0) as long as the copy serves. */
static bool is_outdated(const struct hydration_event *event, const struct hydration_memory_entry *entry,
                        int64_t now_ns)
{
    if (event->version != entry->version)
        return event->version < entry->version;
    if (event->kind == HYDRATION_EVENT_UPDATED || entry->known != HYDRATION_KNOWN_COPY)
        return false;
    if (event->is_private && !str_eq(event->subject, entry->subject))
        return false;
    return event->version > 0 || is_current(entry, now_ns);
}

static bool is_same_view(const struct hydration_event *event, const struct hydration_memory_entry *entry)
{
    return entry->is_private == event->is_private &&
           str_eq(entry->subject, event->is_private ? event->subject : STR_NONE);
}

/* The same version with a wider cover is kept instead of the event. */
static bool is_wider(const struct hydration_memory_entry *entry, const struct hydration_event *event,
                     const struct hydration_cover *cover, int64_t now_ns)
{
    return event->kind == HYDRATION_EVENT_UPDATED && entry->known == HYDRATION_KNOWN_COPY &&
           is_current(entry, now_ns) && event->version > 0 && entry->version == event->version &&
           is_same_view(event, entry) && entry->has_cover &&
           (cover ? hydration_cover_includes(&entry->cover, cover) &&
                        !hydration_cover_includes(cover, &entry->cover)
                  : entry->cover.mode == HYDRATION_FULL);
}

static void make_room(struct hydration_memory *memory, int64_t now_ns)
{
    struct hydration_memory_entry *oldest;
    while ((oldest = TAILQ_FIRST(&memory->by_age)) != NULL &&
           (memory->entries.count > memory->entries_max || memory->bytes > memory->bytes_max ||
            oldest->received_ns + VERSION_MS * CLOCK_NS_PER_MS <= now_ns))
        forget(memory, oldest);
}

static void add_entry(struct hydration_memory *memory, uint64_t hash, const struct hydration_event *event,
                      const struct hydration_cover *cover, enum hydration_known known, int64_t ttl_ms,
                      int64_t now_ns)
{
    bool has_data = known == HYDRATION_KNOWN_COPY;
    struct str subject = event->is_private ? event->subject : STR_NONE;
    struct str data = has_data ? event->data : STR_NONE;
    size_t bytes = sizeof(struct hydration_memory_entry) + (has_data ? hydration_cover_bytes(cover) : 0) +
                   event->tenant.len + event->entity_type.len + event->entity_id.len + subject.len +
                   data.len + event->module.len;
    int64_t serves_ms = ttl_ms < HYDRATION_MEMORY_MS ? ttl_ms : HYDRATION_MEMORY_MS;
    struct hydration_memory_entry *entry = memory_alloc(bytes);
    char *at = (char *)entry->block;

    *entry = (struct hydration_memory_entry){.bytes = bytes,
                                             .known = known,
                                             .reason = event->reason,
                                             .is_private = event->is_private,
                                             .version = event->version,
                                             .has_cover = has_data && cover,
                                             .received_ns = now_ns,
                                             .until_ns = now_ns + serves_ms * CLOCK_NS_PER_MS};
    if (entry->has_cover)
        entry->cover = hydration_cover_keep(cover, &at);
    entry->tenant = hydration_text_keep(event->tenant, &at);
    entry->entity_type = hydration_text_keep(event->entity_type, &at);
    entry->entity_id = hydration_text_keep(event->entity_id, &at);
    entry->subject = hydration_text_keep(subject, &at);
    entry->data = hydration_text_keep(data, &at);
    entry->source_module = hydration_text_keep(event->module, &at);
    map_add(&memory->entries, &entry->node, hash);
    TAILQ_INSERT_TAIL(&memory->by_age, entry, by_age);
    memory->bytes += bytes;
    make_room(memory, now_ns);
}

bool hydration_memory_store(struct hydration_memory *memory, const struct hydration_event *event,
                            const struct hydration_cover *cover, bool is_wanted, int64_t ttl_ms,
                            int64_t now_ns)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    struct hydration_memory_entry *at;
    struct map_node *node;
    bool is_held = false;

    make_room(memory, now_ns);
    for (node = map_first(&memory->entries, hash);
         (at = entry_of(node, event->tenant, event->entity_type, event->entity_id)) != NULL;
         node = map_match(at->node.next, hash)) {
        if (is_outdated(event, at, now_ns))
            return false;
        if (is_wider(at, event, cover, now_ns))
            return true;
        is_held |= at->known == HYDRATION_KNOWN_COPY && is_same_view(event, at) && is_current(at, now_ns);
    }
    for (node = map_first(&memory->entries, hash);
         (at = entry_of(node, event->tenant, event->entity_type, event->entity_id)) != NULL;) {
        node = map_match(at->node.next, hash);
        bool is_of_others = event->is_private && event->subject.len > 0 && at->version == event->version &&
                            !str_eq(at->subject, event->subject) &&
                            (at->is_private || event->kind == HYDRATION_EVENT_NOT_FOUND);
        if (!is_of_others)
            forget(memory, at);
    }
    bool is_updated = event->kind == HYDRATION_EVENT_UPDATED;
    bool is_kept = (is_wanted || (is_held && is_updated)) &&
                   (!event->is_private || event->subject.len) && /* else its caller is not named */
                   !(is_updated && event->data.len > memory->bytes_max / LARGE_PART);
    add_entry(memory, hash, event, cover,
              !is_kept     ? HYDRATION_KNOWN_NOT
              : is_updated ? HYDRATION_KNOWN_COPY
                           : HYDRATION_KNOWN_ABSENT,
              ttl_ms, now_ns);
    return true;
}
