/* Hydration's settings, and its life: create, open, stop, destroy. */
#include "hydration/hydration.h"

#include <stdlib.h>

#include "base/memory.h"
#include "hydration/inside.h"

/* ---- settings: names and defaults of the specification (H3), and limits of tables and memory ---- */

#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define ROW(member) .offset = offsetof(struct hydration_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct hydration_settings, member)

/* The policy is the first member of every struct that has one, so that its rows fit into any table. */
_Static_assert(offsetof(struct hydration_settings, policy) == 0, "POLICY_ROWS relies on it");

#define POLICY_ROW(member, kind, fallback, min, max, help)                                           \
    {                                                                                                \
#member, kind, .offset = offsetof(struct hydration_policy, member), help, fallback, min, max \
    }
/* clang-format off */
#define POLICY_ROWS \
    POLICY_ROW(wait_timeout_ms, SETTING_DURATION_MS, "500", 1, 60000, \
               "How long a caller waits for the owner's answer, including the retry."), \
    POLICY_ROW(negative_cache_ttl_ms, SETTING_DURATION_MS, "300000", 1, DAY_MS, \
               "How long an entity that its owner does not have is taken for absent."), \
    POLICY_ROW(in_flight_window_ms, SETTING_DURATION_MS, "5000", 1, 600000, \
               "For how long the same question is not asked again by other callers."), \
    POLICY_ROW(max_retries, SETTING_INT, "1", 0, 10, \
               "How often a question without an answer is retried within that window."), \
    POLICY_ROW(retry_backoff_ms, SETTING_DURATION_MS, "200", 1, 60000, "Delay before a retry.")
/* clang-format on */

_Static_assert(offsetof(struct hydration_use, policy) == 0, "POLICY_ROWS relies on it");

#define ENABLED_ROW(on)                                                                    \
    {                                                                                      \
        "enabled", SETTING_BOOL, .offset = offsetof(struct hydration_use, enabled),        \
                                 .help = "Whether entities are looked up.", .fallback = on \
    }

const struct setting_row hydration_use_rows_on[] = {ENABLED_ROW("true"), POLICY_ROWS, {.name = NULL}};
const struct setting_row hydration_use_rows_off[] = {ENABLED_ROW("false"), POLICY_ROWS, {.name = NULL}};

const struct setting_row hydration_setting_rows[] = {
    POLICY_ROWS,
    {"copy_ttl_ms", SETTING_DURATION_MS, ROW(copy_ttl_ms),
     "How long a copy serves after the last event about it; then the owner is asked again.", "300000", 1,
     30 * DAY_MS},
    {"memory_entries", SETTING_INT, ROW(memory_entries),
     "Entities kept in the memory of a process; the oldest are removed first.", "65536", 16, 10000000},
    {"memory_bytes", SETTING_SIZE, ROW(memory_bytes), "Memory of these entities.", "64MiB", 65536,
     INT64_C(64) << 30},
    {"negative_rows_max", SETTING_INT, ROW(negative_rows_max),
     "Absent entities kept in PostgreSQL; those that expire first are removed first.", "100000", 1,
     100000000},
    {"copy_rows_max", SETTING_INT, ROW(copy_rows_max),
     "Copies kept in PostgreSQL; those that expire first are removed first.", "1000000", 1, 100000000},
    {"flight_rows_max", SETTING_INT, ROW(flight_rows_max),
     "Questions under way kept in PostgreSQL; the oldest are removed first.", "100000", 1, 100000000},
    {"required", SETTING_STRING_LIST, ROW(required),
     "Entity types that clients of GET /v1/hydration need. The start logs a warning for each type without an owner.",
     "", PLACE(required_place)},
    {"outside", SETTING_STRING_LIST, ROW(outside),
     "Entity types that modules outside of freshet provide over NATS.", "", PLACE(outside_place)},
    {.name = NULL},
};

/* ---- life ---- */

struct hydration *hydration_create(const struct hydration_config *config)
{
    struct hydration *hydration = memory_zalloc(sizeof *hydration);
    unsigned count = loop_group_count(config->loops);
    hydration->config = *config;
    hydration->shards = memory_zalloc(count * sizeof hydration->shards[0]);
    for (unsigned i = 0; i < count; i++)
        hydration->shards[i] = hydration_shard_create(hydration, loop_group_loop(config->loops, i));
    return hydration;
}

enum status hydration_open(struct hydration *hydration, struct bus *events, bool consumes,
                           struct error *error)
{
    enum status status = hydration_wire_subscribe(hydration, events, consumes, error);
    for (size_t i = 0; i < hydration->owner_count && status == STATUS_OK; i++)
        status = hydration_owner_follow(&hydration->owners[i], events, error);
    if (status == STATUS_OK)
        atomic_store(&hydration->bus, events);
    return status;
}

static void stop_shard(struct loop *loop, void *arg)
{
    struct hydration *hydration = arg;
    hydration_shard_stop(hydration->shards[loop_index(loop)]);
}

void hydration_stop(struct hydration *hydration)
{
    atomic_store(&hydration->stopping, true);
    if (loop_group_is_running(hydration->config.loops))
        loop_group_broadcast(hydration->config.loops, stop_shard, hydration);
    else
        for (unsigned i = 0; i < loop_group_count(hydration->config.loops); i++)
            hydration_shard_stop(hydration->shards[i]);
}

void hydration_destroy(struct hydration *hydration)
{
    if (!hydration)
        return;
    for (size_t i = 0; i < hydration->owner_count; i++)
        hydration_owner_close(&hydration->owners[i]);
    for (unsigned i = 0; i < loop_group_count(hydration->config.loops); i++)
        hydration_shard_destroy(hydration->shards[i]);
    free(hydration->shards);
    free(hydration);
}
