/* The module: settings, life and health of intake. */
#include "modules/intake/intake.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernel/retention.h"
#include "kernel/store.h"

enum { PARTITIONS = 4 };

#define ROW(member) .offset = offsetof(struct intake_settings, member)
#define MINUTE_MS INT64_C(60000)
#define DAY_MS (24 * 60 * MINUTE_MS)

static const struct setting_row idempotency_rows[] = {
    {"ttl", SETTING_DURATION_MS, ROW(idempotency.ttl_ms),
     "How long the answer to an Idempotency-Key is kept; replays do not prolong it.", "1h", 1, 365 * DAY_MS},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(idempotency.cleanup_ms),
     "How often older ones are deleted.", "10m", 10, DAY_MS},
    {.name = NULL},
};

static const struct setting_row section_rows[] = {
    {"idempotency", SETTING_OBJECT, .help = "Idempotency-Key of POST /api/v1/items.",
     .rows = idempotency_rows, .fallback = ""},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events of items are published.", "",
     .rows = outbox_setting_rows},
    {.name = NULL},
};

const struct config_section intake_section = {.name = "intake",
                                              .help = "Items that come in by POST.",
                                              .rows = section_rows,
                                              .struct_bytes = sizeof(struct intake_settings)};

static void each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg)
{
    (void)section;
    /* What its server loses in a crash, the outbox loses the mark of: it is published again. */
    fn(&(struct kernel_topic){.topic = {.name = INTAKE_EVENTS, .partitions = PARTITIONS, .relaxed = true}},
       arg);
}

/* ---- life ---- */

static enum status start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    struct intake *intake = memory_zalloc(sizeof *intake);
    intake->kernel = kernel;
    intake->settings = section;
    intake->keys = (struct idempotency_table){.name = "intake.idempotency_keys",
                                              .ttl_ms = intake->settings->idempotency.ttl_ms,
                                              .expires_inclusive = false};
    enum status status = intake_publisher_create(intake, error);
    if (status != STATUS_OK) {
        free(intake);
        return status;
    }
    intake_source_provide(intake);
    *state = intake;
    return STATUS_OK;
}

static enum status subscribe(void *state, struct bus *events, struct error *error)
{
    return intake_source_follow(state, events, error);
}

static void on_store(void *state)
{
    struct intake *intake = state;
    kernel_retention_add_keys(intake->kernel, &intake->keys, intake->settings->idempotency.cleanup_ms);
}

static struct metric_family *const metrics[] = {&intake_items_family, NULL};

const struct module intake_module = {
    .name = "intake",
    .roles = (const char *const[]){"intake", NULL},
    .section = &intake_section,
    .routes = (const struct module_routes[]){{"intake", intake_routes}, {.role = NULL}},
    .metrics = metrics,
    .migrations = intake_migrations,
    .start = start,
    .destroy = free,
    .keeps_store = true,
    .provides = (const char *const[]){"item", NULL},
    .each_topic = each_topic,
    .subscribe = subscribe,
    .on_store = on_store,
    .outboxes = (const struct outbox_table *const[]){&intake_outbox_table, NULL},
};
