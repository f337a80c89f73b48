/* Invalidations (R14): versions that other processes committed, from the topic of invalidations and from this very process.
 *
 * Both are gathered, one entry per pair, and handed to the home loop by one message however many come. Nothing here is
 * needed for correctness: the sweep alone finds every version, only later. So whatever is not understood is counted and
 * forgotten, and where something may have been missed the sweep is asked to look now. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/span.h"
#include "modules/refdata/query/query.h"
#include "modules/refdata/refdata.h"

enum { PAIRS_MAX = 4096 }; /* waiting at once; past that every version is compared instead */

struct pair {
    struct map_node node;
    struct refdata_invalidation last;
    bool is_event_known; /* otherwise it is not compared */
    struct trace trace;  /* of the newest message that has one; none = none has */
    int64_t traced_version;
};

struct gathered {
    struct loop_message message;
    struct refdata_invalidations *invalidations;
    struct arena arena; /* of the pairs */
    struct map pairs;   /* by tenant and code */
    bool missed;        /* there was more */
};

struct refdata_invalidations {
    struct refdata_database *database;
    pthread_mutex_t lock;
    struct gathered *pending; /* posted; batches that arrive before it is taken join it */
};

/* ---- on the home loop ---- */

static void on_gathered(struct loop *loop, struct loop_message *message)
{
    struct gathered *gathered = CONTAINER_OF(message, struct gathered, message);
    struct refdata_invalidations *invalidations = gathered->invalidations;
    struct refdata_database *database = invalidations->database;
    struct map_node *node;
    (void)loop;
    pthread_mutex_lock(&invalidations->lock);
    invalidations->pending = NULL;
    pthread_mutex_unlock(&invalidations->lock);
    MAP_EACH(node, &gathered->pairs) {
        const struct pair *pair = CONTAINER_OF(node, struct pair, node);
        const struct refdata_invalidation *last = &pair->last;
        struct refdata_holding *holding =
            refdata_table_find(database->refdata->own, last->tenant, last->code);
        /* Where nothing is held there is nothing to refresh: the first read loads the current version. */
        if (!holding || holding->dictionary->database != database || database->refdata->stopping)
            continue;
        if (!trace_is_none(&pair->trace))
            refdata_load_span_caused(holding, &pair->trace, pair->traced_version);
        const struct cache_snapshot *snapshot = cache_slot_read(&holding->slot);
        const struct cache_info *info = snapshot ? cache_snapshot_info(snapshot) : NULL;
        if (info ? info->version < last->version : refdata_holding_is_loading(holding))
            refdata_schedule_behind(holding, last->version, 0);
        else if (info && info->version == last->version && pair->is_event_known &&
                 !uuid_eq(&info->event, &last->event))
            refdata_schedule_compare(holding, 0); /* or a late message of a lost history: the load decides */
    }
    if (gathered->missed && !database->refdata->stopping)
        refdata_sweep_now(database);
    map_deinit(&gathered->pairs);
    arena_deinit(&gathered->arena);
    free(gathered);
}

/* ---- any thread ---- */

/* Under the lock: what the home loop will take next. */
static struct gathered *pending_of(struct refdata_invalidations *invalidations)
{
    if (!invalidations->pending) {
        struct gathered *gathered = memory_zalloc(sizeof *gathered);
        gathered->message.on_message = on_gathered;
        gathered->invalidations = invalidations;
        gathered->arena = ARENA(1024);
        invalidations->pending = gathered;
        loop_post(invalidations->database->refdata->home, &gathered->message);
    }
    return invalidations->pending;
}

void refdata_invalidations_hint(struct refdata_invalidations *invalidations, struct str tenant,
                                struct str code, int64_t version, const struct uuid *event,
                                struct str traceparent)
{
    uint64_t hash = map_hash_pair(tenant, code);
    struct map_node *node;
    struct pair *pair = NULL;
    pthread_mutex_lock(&invalidations->lock);
    struct gathered *gathered = pending_of(invalidations);
    MAP_MATCH(node, &gathered->pairs, hash) {
        struct pair *there = CONTAINER_OF(node, struct pair, node);
        if (str_eq(there->last.code, code) && str_eq(there->last.tenant, tenant))
            pair = there;
    }
    if (!pair && gathered->pairs.count < PAIRS_MAX) {
        pair = arena_zalloc(&gathered->arena, sizeof *pair);
        pair->last.tenant = arena_str(&gathered->arena, tenant);
        pair->last.code = arena_str(&gathered->arena, code);
        map_add(&gathered->pairs, &pair->node, hash);
    }
    gathered->missed |= !pair;
    if (pair && version >= pair->last.version) {
        pair->last.version = version;
        pair->is_event_known = event;
        pair->last.event = event ? *event : pair->last.event;
    }
    if (pair && span_is_on() && traceparent.len > 0 && version >= pair->traced_version &&
        trace_parse(traceparent, &pair->trace))
        pair->traced_version = version;
    pthread_mutex_unlock(&invalidations->lock);
}

static void look_everywhere(void *context)
{
    struct refdata_invalidations *invalidations = context;
    pthread_mutex_lock(&invalidations->lock);
    pending_of(invalidations)->missed = true;
    pthread_mutex_unlock(&invalidations->lock);
}

/* ---- the topic ---- */

static bool read_name(const struct json_value *body, struct str member, struct arena *arena, struct str *name)
{
    struct json_value value;
    if (!json_get_string(body, member, &value))
        return false;
    *name = json_str_decode(value.raw, arena);
    return str_is_name(*name);
}

bool refdata_invalidation_read(struct str text, struct arena *arena, struct refdata_invalidation *out)
{
    struct json_value body, value;
    int64_t committed_at_us;
    if (json_parse(text, JSON_DEPTH_MAX, &body, NULL) != STATUS_OK || body.type != JSON_OBJECT ||
        json_has_duplicates(&body, arena))
        return false;
    if (!json_get_string(&body, STR("eventId"), &value) ||
        !uuid_parse(json_str_decode(value.raw, arena), &out->event))
        return false;
    if (!json_get_string(&body, STR("committedAt"), &value) ||
        !clock_rfc3339_parse(json_str_decode(value.raw, arena), &committed_at_us))
        return false;
    return read_name(&body, STR("tenantId"), arena, &out->tenant) &&
           read_name(&body, STR("dictCode"), arena, &out->code) && json_get(&body, STR("version"), &value) &&
           json_to_i64(&value, &out->version) && out->version > 0;
}

static void on_batch(void *context, struct bus_batch *batch)
{
    struct refdata_invalidations *invalidations = context;
    struct str database = invalidations->database->name;
    struct arena arena = ARENA(4096);
    for (size_t i = 0; i < batch->count; i++) {
        const struct bus_message *message = &batch->messages[i];
        struct refdata_invalidation read;
        arena_reset(&arena);
        if (refdata_invalidation_read(message->payload, &arena, &read)) {
            refdata_invalidations_hint(invalidations, read.tenant, read.code, read.version, &read.event,
                                       bus_message_header(message, STR(BUS_HEADER_TRACEPARENT)));
            continue;
        }
        if (message->offset < 0)
            continue; /* a hint: it is counted when it comes from the stream */
        refdata_metrics_count(REFDATA_UNREADABLE, database);
        log_warn("invalidation_unreadable", LOG_STR("database", database),
                 LOG_INT("partition", message->partition), LOG_INT("offset", message->offset),
                 LOG_TRACE(bus_message_header(message, STR(BUS_HEADER_TRACEPARENT))));
    }
    arena_deinit(&arena);
}

static void on_gap(void *context, unsigned partition, int64_t offset, int64_t next)
{
    (void)partition, (void)offset, (void)next;
    look_everywhere(context);
}

/* ---- life ---- */

static void *create_invalidations(void *owner, struct error *failure)
{
    struct refdata_database *database = owner;
    struct refdata_invalidations *invalidations = database->invalidations =
        memory_zalloc(sizeof *invalidations);
    const struct bus_subscription subscription = {
        .topic = REFDATA_INVALIDATIONS,
        .group = database->buses.pods_group,
        .mode = BUS_EVERY,
        .from = BUS_FROM_NOW,
        .batch_max = 1000,
        .hints = true,
        .context = invalidations,
        .handler = on_batch,
        .on_gap = on_gap,
        .on_ready = look_everywhere, /* versions committed before this moment are not delivered */
    };
    struct error error = {0};
    (void)failure; /* the sweep is left */
    invalidations->database = database;
    pthread_mutex_init(&invalidations->lock, NULL);
    if (bus_subscribe(database->buses.invalidations, &subscription, &error) != STATUS_OK)
        log_error("invalidations_not_subscribed", LOG_STR("database", database->name),
                  LOG_ERROR_FIELDS(&error));
    return invalidations;
}

static void destroy_invalidations(void *part)
{
    struct refdata_invalidations *invalidations = part;
    pthread_mutex_destroy(&invalidations->lock);
    free(invalidations);
}

const struct kernel_part refdata_invalidations_part = {
    .roles = {"query"}, .create = create_invalidations, .destroy = destroy_invalidations};
