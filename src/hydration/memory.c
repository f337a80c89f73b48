/* The copies and absences in the memory of one loop: a map by the entity, and a list in the order of arrival, so that the oldest
 * entries are removed first.
 *
 *     map    ─▶ item 7 for every caller: copy, version 3 ─▶ session 9 for ann: copy, version 5 ─▶ session 9 for bob: hidden, 5
 *     oldest ─▶ … ─▶ newest
 *
 * An entry never changes: an event replaces it. It serves for HYDRATION_MEMORY_MS at most, and its version is remembered for
 * VERSION_MS, as long as the bus keeps an answer, so that a late answer is recognized. Versions are those of the entity: an event
 * for one caller makes the older entries of all callers obsolete. An answer to a question that began after all entries were received is
 * not late: it replaces them whatever its version, since the owner may have lost commits. */
#include <stdlib.h>

#include "base/budget.h"
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
    bool is_kept;                 /* false: only its version */
    struct hydration_event event; /* caller empty: for every caller */
    int64_t received_ns, until_ns;
    struct str block[]; /* the event's fields, then its texts */
};

void hydration_memory_init(struct hydration_memory *memory, size_t entries_max, size_t bytes_max)
{
    *memory = (struct hydration_memory){.entries_max = entries_max, .bytes_max = bytes_max};
    TAILQ_INIT(&memory->by_age);
    map_reserve(&memory->entries, entries_max);
}

static void forget_entry(struct hydration_memory *memory, struct hydration_memory_entry *entry)
{
    map_remove(&memory->entries, &entry->node);
    TAILQ_REMOVE(&memory->by_age, entry, by_age);
    memory->bytes -= entry->bytes;
    budget_release(BUDGET_HYDRATION, entry->bytes);
    free(entry);
}

void hydration_memory_deinit(struct hydration_memory *memory)
{
    while (!TAILQ_EMPTY(&memory->by_age))
        forget_entry(memory, TAILQ_FIRST(&memory->by_age));
    map_deinit(&memory->entries);
}

/* ---- finding ---- */

/* The next entry of an entity, from `node` on. */
static struct hydration_memory_entry *entry_of(struct map_node *node, struct str tenant,
                                               struct str entity_type, struct str entity_id)
{
    for (; node; node = map_match(node->next, node->hash)) {
        struct hydration_memory_entry *entry = CONTAINER_OF(node, struct hydration_memory_entry, node);
        const struct hydration_event *event = &entry->event;
        if (str_eq(event->entity_id, entity_id) && str_eq(event->entity_type, entity_type) &&
            str_eq(event->tenant, tenant))
            return entry;
    }
    return NULL;
}

static bool is_current_copy(const struct hydration_memory_entry *entry, int64_t now_ns)
{
    return entry->is_kept && entry->event.kind == HYDRATION_EVENT_UPDATED && entry->until_ns > now_ns;
}

/* Of the entries that a caller may see the newest counts, and of the same version the caller's own. */
struct hydration_known_entity hydration_memory_find(const struct hydration_memory *memory,
                                                    const struct hydration_need *need, int64_t now_ns)
{
    struct hydration_known_entity result = {0};
    uint64_t hash = hydration_entity_hash(need->tenant, need->entity_type, need->entity_id);
    const struct hydration_memory_entry *found = NULL, *entry;

    for (struct map_node *node = map_first(&memory->entries, hash);
         (entry = entry_of(node, need->tenant, need->entity_type, need->entity_id)) != NULL;
         node = map_match(entry->node.next, hash)) {
        const struct hydration_event *event = &entry->event;
        result.is_private |= event->is_private;
        result.was_received |= !entry->is_kept;
        if (!entry->is_kept || !str_eq(event->caller, event->is_private ? need->caller : STR_NONE))
            continue;
        if (!found || event->version > found->event.version ||
            (event->version == found->event.version && !found->event.caller.len))
            found = entry;
    }
    if (!found)
        return result;
    const struct hydration_event *event = &found->event;
    bool is_copy = event->kind == HYDRATION_EVENT_UPDATED;
    result.outcome = (struct hydration_outcome){.result = is_copy ? HYDRATION_UPDATED : HYDRATION_NOT_FOUND,
                                                .reason = event->reason,
                                                .way = HYDRATION_BY_MEMORY,
                                                .is_negative_hit = !is_copy,
                                                .source_module = event->module,
                                                .version = event->version,
                                                .data = event->data};
    result.serves = found->until_ns > now_ns && (!is_copy || hydration_event_includes(event, &need->cover));
    return result;
}

/* ---- storing ---- */

/* An older version is outdated. Of the same version a copy counts more than a not-found, unless they are for different callers;
 * if both versions are 0, while the copy is valid. */
static bool is_outdated(const struct hydration_event *event, const struct hydration_memory_entry *entry,
                        int64_t now_ns)
{
    if (event->version != entry->event.version)
        return event->version < entry->event.version;
    if (event->kind == HYDRATION_EVENT_UPDATED || !entry->is_kept ||
        entry->event.kind != HYDRATION_EVENT_UPDATED)
        return false;
    if (event->is_private && !str_eq(event->caller, entry->event.caller))
        return false;
    return event->version > 0 || is_current_copy(entry, now_ns);
}

static bool is_same_view(const struct hydration_event *event, const struct hydration_memory_entry *entry)
{
    return entry->event.is_private == event->is_private &&
           str_eq(entry->event.caller, event->is_private ? event->caller : STR_NONE);
}

/* Does the entry have the same version with a wider cover? Then it is kept instead of the event. */
static bool is_wider(const struct hydration_memory_entry *entry, const struct hydration_event *event,
                     int64_t now_ns)
{
    const struct hydration_event *held = &entry->event;
    return event->kind == HYDRATION_EVENT_UPDATED && is_current_copy(entry, now_ns) && event->version > 0 &&
           held->version == event->version && is_same_view(event, entry) && held->has_cover &&
           (event->has_cover ? hydration_cover_includes(&held->cover, &event->cover) &&
                                   !hydration_cover_includes(&event->cover, &held->cover)
                             : held->cover.mode == HYDRATION_FULL);
}

static void make_room(struct hydration_memory *memory, int64_t now_ns)
{
    struct hydration_memory_entry *oldest;
    while ((oldest = TAILQ_FIRST(&memory->by_age)) != NULL) {
        bool is_over = memory->entries.count > memory->entries_max || memory->bytes > memory->bytes_max ||
                       oldest->received_ns + VERSION_MS * CLOCK_NS_PER_MS <= now_ns;
        if (!is_over && !budget_is_full(BUDGET_HYDRATION))
            break;
        if (!is_over)
            budget_count_refusal(BUDGET_HYDRATION);
        forget_entry(memory, oldest);
    }
}

static void add_entry(struct hydration_memory *memory, uint64_t hash, struct hydration_event event,
                      bool is_kept, int64_t ttl_ms, int64_t now_ns)
{
    int64_t serves_ms = ttl_ms < HYDRATION_MEMORY_MS ? ttl_ms : HYDRATION_MEMORY_MS;

    event.correlation_id = event.traceparent = STR_NONE;
    if (!event.is_private)
        event.caller = STR_NONE;
    if (!is_kept || event.kind != HYDRATION_EVENT_UPDATED)
        event.data = STR_NONE;
    if (!event.data.ptr || !event.has_cover) {
        event.cover = (struct hydration_cover){0};
        event.has_cover = false;
    }
    size_t bytes = sizeof(struct hydration_memory_entry) + hydration_event_bytes(&event);
    struct hydration_memory_entry *entry = memory_alloc(bytes);
    hydration_event_keep(&event, (char *)entry->block);
    *entry = (struct hydration_memory_entry){.bytes = bytes,
                                             .is_kept = is_kept,
                                             .event = event,
                                             .received_ns = now_ns,
                                             .until_ns = now_ns + serves_ms * CLOCK_NS_PER_MS};
    map_add(&memory->entries, &entry->node, hash);
    TAILQ_INSERT_TAIL(&memory->by_age, entry, by_age);
    memory->bytes += bytes;
    budget_add(BUDGET_HYDRATION, bytes);
    make_room(memory, now_ns);
}

/* The owner read the entity after it had published everything that is stored here. If its answer has a lower version, the owner has
 * lost commits. */
static bool is_asked_after_all(const struct hydration_memory *memory, uint64_t hash,
                               const struct hydration_event *event, int64_t asked_ns)
{
    const struct hydration_memory_entry *at;
    for (struct map_node *node = map_first(&memory->entries, hash);
         (at = entry_of(node, event->tenant, event->entity_type, event->entity_id)) != NULL;
         node = map_match(at->node.next, hash))
        if (at->received_ns >= asked_ns)
            return false;
    return true;
}

bool hydration_memory_store(struct hydration_memory *memory, const struct hydration_event *event,
                            bool is_wanted, int64_t ttl_ms, int64_t asked_ns, int64_t now_ns)
{
    uint64_t hash = hydration_entity_hash(event->tenant, event->entity_type, event->entity_id);
    struct hydration_memory_entry *at;
    struct map_node *node;
    bool is_held = false;

    make_room(memory, now_ns);
    bool is_newest = is_asked_after_all(memory, hash, event, asked_ns);
    for (node = map_first(&memory->entries, hash);
         (at = entry_of(node, event->tenant, event->entity_type, event->entity_id)) != NULL;
         node = map_match(at->node.next, hash)) {
        if (!is_newest && is_outdated(event, at, now_ns))
            return false;
        if (is_wider(at, event, now_ns))
            return true;
        is_held |= is_same_view(event, at) && is_current_copy(at, now_ns);
    }
    for (node = map_first(&memory->entries, hash);
         (at = entry_of(node, event->tenant, event->entity_type, event->entity_id)) != NULL;) {
        node = map_match(at->node.next, hash);
        /* Entries of other callers with the same version are kept. */
        bool is_of_others = event->is_private && event->caller.len > 0 &&
                            at->event.version == event->version && !str_eq(at->event.caller, event->caller) &&
                            (at->event.is_private || event->kind == HYDRATION_EVENT_NOT_FOUND);
        if (!is_of_others)
            forget_entry(memory, at);
    }
    bool is_updated = event->kind == HYDRATION_EVENT_UPDATED;
    bool is_kept = (is_wanted || (is_held && is_updated)) &&
                   (!event->is_private || event->caller.len) && /* else its caller is not named */
                   !(is_updated && event->data.len > memory->bytes_max / LARGE_PART);
    add_entry(memory, hash, *event, is_kept, ttl_ms, now_ns);
    return true;
}
