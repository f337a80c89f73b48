/* Settings: the seed's names and defaults (§10.1), and what keeps the tables and the memory small. */
#include <stddef.h>

#include "hydration/hydration.h"

#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define ROW(member) .offset = offsetof(struct hydration_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct hydration_settings, member)

const struct hydration_policy hydration_policy_default = {
    .module = "hydration",
    .wait_timeout_ms = 500,
    .negative_cache_ttl_ms = 300000,
    .in_flight_window_ms = 5000,
    .max_retries = 1,
    .retry_backoff_ms = 200,
};

/* The policy comes first in every struct that has one, so that its rows stand in any table. */
_Static_assert(offsetof(struct hydration_settings, policy) == 0, "the rows below count on it");

#define POLICY(member) .offset = offsetof(struct hydration_policy, member)

#define POLICY_ROWS                                                                                          \
    {"wait_timeout_ms",                                                                                      \
     SETTING_DURATION_MS,                                                                                    \
     POLICY(wait_timeout_ms),                                                                                \
     "How long a caller waits for the owner's answer, the retry included.",                                  \
     "500",                                                                                                  \
     1,                                                                                                      \
     60000},                                                                                                 \
        {"negative_cache_ttl_ms",                                                                            \
         SETTING_DURATION_MS,                                                                                \
         POLICY(negative_cache_ttl_ms),                                                                      \
         "How long an entity that its owner does not have is taken for absent.",                             \
         "300000",                                                                                           \
         1,                                                                                                  \
         DAY_MS},                                                                                            \
        {"in_flight_window_ms",                                                                              \
         SETTING_DURATION_MS,                                                                                \
         POLICY(in_flight_window_ms),                                                                        \
         "How long an owner that was asked is not asked the same again.",                                    \
         "5000",                                                                                             \
         1,                                                                                                  \
         600000},                                                                                            \
        {"max_retries",                                                                                      \
         SETTING_INT,                                                                                        \
         POLICY(max_retries),                                                                                \
         "How often within that window an owner that does not answer is asked once more.",                   \
         "1",                                                                                                \
         0,                                                                                                  \
         10},                                                                                                \
    {                                                                                                        \
        "retry_backoff_ms", SETTING_DURATION_MS, POLICY(retry_backoff_ms), "How long after asking that is.", \
            "200", 1, 60000                                                                                  \
    }

_Static_assert(offsetof(struct hydration_use, policy) == 0, "the rows below count on it");

#define ENABLED_ROW(on)                                                             \
    {                                                                               \
        "enabled", SETTING_BOOL, .offset = offsetof(struct hydration_use, enabled), \
                                 .help = "Whether it asks at all.", .fallback = on  \
    }

const struct setting_row hydration_use_rows_on[] = {ENABLED_ROW("true"), POLICY_ROWS, {.name = NULL}};
const struct setting_row hydration_use_rows_off[] = {ENABLED_ROW("false"), POLICY_ROWS, {.name = NULL}};

const struct setting_row hydration_setting_rows[] = {
    POLICY_ROWS,
    {"copy_ttl_ms", SETTING_DURATION_MS, ROW(copy_ttl_ms),
     "How long a copy serves that its owner has told nothing about; then the owner is asked anew.", "300000",
     1, 30 * DAY_MS},
    {"memory_entries", SETTING_INT, ROW(memory_entries),
     "Entities remembered in the memory of a process, the oldest go first.", "65536", 16, 10000000},
    {"memory_bytes", SETTING_SIZE, ROW(memory_bytes), "What they may take together.", "64MiB", 65536,
     INT64_C(64) << 30},
    {"negative_rows_max", SETTING_INT, ROW(negative_rows_max),
     "Absent entities remembered in PostgreSQL; beyond that those that expire first go.", "100000", 1,
     100000000},
    {"copy_rows_max", SETTING_INT, ROW(copy_rows_max),
     "Copies kept in PostgreSQL; beyond that those heard of longest ago go.", "1000000", 1, 100000000},
    {"flight_rows_max", SETTING_INT, ROW(flight_rows_max),
     "Questions under way kept in PostgreSQL; beyond that the oldest go.", "100000", 1, 100000000},
    {"required", SETTING_STRING_LIST, ROW(required),
     "Entity types that clients of GET /v1/hydration need. One that nobody provides is warned about at the start.",
     "", PLACE(required_place)},
    {"outside", SETTING_STRING_LIST, ROW(outside),
     "Entity types that modules outside of freshet provide, over NATS.", "", PLACE(outside_place)},
    {.name = NULL},
};
