/* The rows of `<module>.outbox`, the same for every module (O2). */
#include "outbox/outbox.h"

#define ROW(member) .offset = offsetof(struct outbox_settings, member)
#define HOUR_MS INT64_C(3600000)

const struct setting_row outbox_setting_rows[] = {
    {"poll-interval", SETTING_DURATION_MS, ROW(poll_ms),
     "How often the table is looked at although nobody told of an event: the safety net behind notices.",
     "1s", 10, HOUR_MS},
    {"batch-size", SETTING_INT, ROW(batch), "Most events claimed and published together.", "50", 1, 1000},
    {"lease", SETTING_DURATION_MS, ROW(lease_ms),
     "How long a claim stands without a word from its worker; a batch that takes longer renews it.", "30s",
     100, HOUR_MS},
    {"max-attempt", SETTING_INT, ROW(attempts_max),
     "The failure with this number is an event's last, and so is a claim nobody came back from: then it is FAILED.",
     "10", 1, 1000},
    {"backoff-base", SETTING_DURATION_MS, ROW(backoff_base_ms),
     "Pause after the first failure; doubled each time.", "1s", 1, HOUR_MS},
    {"backoff-max", SETTING_DURATION_MS, ROW(backoff_max_ms), "Longest pause, before the jitter.", "60s", 1,
     24 * HOUR_MS},
    {"backoff-min", SETTING_DURATION_MS, ROW(backoff_min_ms), "Shortest pause, after the jitter.", "0", 0,
     HOUR_MS},
    {"backoff-jitter-min", SETTING_DECIMAL, ROW(jitter_min),
     "A pause is multiplied by a random number from this …", "0.5", 0, 10000},
    {"backoff-jitter-max", SETTING_DECIMAL, ROW(jitter_max), "… to this.", "1.5", 0, 10000},
    {"retention", SETTING_DURATION_MS, ROW(keep_ms),
     "How long published events are kept. Others are kept for ever.", "24h", 1, 3650 * 24 * HOUR_MS},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(cleanup_ms), "How often older ones are deleted.", "1h", 10,
     24 * HOUR_MS},
    {.name = NULL},
};
