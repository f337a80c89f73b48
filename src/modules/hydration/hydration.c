/* The module: settings, topics, retention and health of hydration. */
#include "modules/hydration/hydration.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernel/store.h"

/* Who asks waits a second or so: what is older interests nobody, handled or not. */
enum { PARTITIONS = 4, KEEP_MS = 60 * 1000 };

const struct config_section hydration_section = {.name = "hydration",
                                                 .help =
                                                     "Entities that modules lack and ask their owners for.",
                                                 .rows = hydration_setting_rows,
                                                 .struct_bytes = sizeof(struct hydration_settings)};

static void each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg)
{
    (void)section;
    static const struct kernel_topic topics[] = {
        {.topic = {.name = "entity.unknown"}, .is_plain_in_nats = true},
        {.topic = {.name = "entity.updated"}, .stream = "entity_updated", .subject = "entity.updated"},
        {.topic = {.name = "entity.not-found"}, .stream = "entity_not-found", .subject = "entity.not-found"},
    };
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
        struct kernel_topic topic = topics[i];
        topic.topic.partitions = PARTITIONS;
        topic.topic.keep_ms = topic.topic.keep_ms_hard = KEEP_MS;
        topic.topic.relaxed = true; /* what a crash takes is asked for again */
        fn(&topic, arg);
    }
}

/* ---- life ---- */

static enum status start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    (void)error;
    struct hydration_module *module = memory_zalloc(sizeof *module);
    module->kernel = kernel;
    module->settings = section;
    kernel_hydration_consumes(kernel, NULL);
    *state = module;
    return STATUS_OK;
}

static void destroy(void *state)
{
    free(state);
}

static void health(void *state, struct health *health)
{
    const struct hydration_module *module = state;
    bool is_up = kernel_store_is_up(module->kernel), hears = kernel_events_are_up(module->kernel);
    health_role(health, "hydration", is_up && hears,
                is_up && hears ? STR_NONE
                : is_up        ? STR("waiting for NATS")
                               : STR("waiting for PostgreSQL"));
}

const struct module hydration_module = {
    .name = "hydration",
    .roles = (const char *const[]){"hydration", NULL},
    .section = &hydration_section,
    .migrations = hydration_migrations,
    .start = start,
    .destroy = destroy,
    .health = health,
    .keeps_store = true,
    .each_topic = each_topic,
};
