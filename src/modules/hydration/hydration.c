/* The module: settings, topics, retention and health of hydration. */
#include "modules/hydration/hydration.h"

#include <stdlib.h>

#include "base/memory.h"
#include "hydration/event.h"
#include "kernel/store.h"

enum { PARTITIONS = 4, KEEP_MS = 60 * 1000 };

const struct config_section hydration_section = {.name = "hydration",
                                                 .help =
                                                     "Entities that modules lack and ask their owners for.",
                                                 .rows = hydration_setting_rows,
                                                 .struct_bytes = sizeof(struct hydration_settings)};

/* A question is of no interest a moment later, handled or not. What sources tell waits for whoever writes it down for as long as
 * something it would take back may be believed. */
static int64_t keep_unhandled_ms(const struct hydration_settings *settings, enum hydration_kind kind)
{
    int64_t believed_ms = settings->copy_ttl_ms > settings->policy.negative_cache_ttl_ms
                              ? settings->copy_ttl_ms
                              : settings->policy.negative_cache_ttl_ms;
    return kind == HYDRATION_EVENT_UNKNOWN || believed_ms < KEEP_MS ? KEEP_MS : believed_ms;
}

static void each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg)
{
    static const char *const streams[HYDRATION_KINDS] = {
        [HYDRATION_EVENT_UPDATED] = "entity_updated", [HYDRATION_EVENT_NOT_FOUND] = "entity_not-found"};
    for (enum hydration_kind i = 0; i < HYDRATION_KINDS; i++)
        fn(&(struct kernel_topic){.topic = {.name = hydration_topics[i],
                                            .partitions = PARTITIONS,
                                            .keep_ms = KEEP_MS,
                                            .keep_ms_hard = keep_unhandled_ms(section, i),
                                            .relaxed = true}, /* what a crash takes is asked for again */
                                  .stream = streams[i],
                                  .subject = hydration_topics[i],
                                  .is_plain_in_nats = !streams[i]},
           arg);
}

/* ---- life ---- */

static enum status check_types(const struct config *config, const struct setting_strings *types,
                               struct setting_place place, const char *field, struct error *error)
{
    for (size_t i = 0; i < types->count; i++)
        if (!hydration_is_type(types->items[i]))
            return config_error_at(
                config, place, field, error,
                "an entity type is 1 to %d of a-z, 0-9 and _, the first a letter, not '%.*s'",
                HYDRATION_TYPE_BYTES_MAX, STR_ARG(str_utf8_cut(types->items[i], 80)));
    return STATUS_OK;
}

/* A slip in a name would otherwise show much later, as a type that nobody provides. */
static enum status check(const struct config *config, const void *section, struct error *error)
{
    const struct hydration_settings *settings = section;
    enum status status =
        check_types(config, &settings->required, settings->required_place, "hydration.required", error);
    if (status == STATUS_OK)
        status = check_types(config, &settings->outside, settings->outside_place, "hydration.outside", error);
    return status;
}

static enum status start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    (void)error;
    struct hydration_module *module = memory_zalloc(sizeof *module);
    module->kernel = kernel;
    module->settings = section;
    module->policy = module->settings->policy;
    module->policy.module = "hydration";
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
    .routes = (const struct module_routes[]){{"hydration", hydration_routes}, {.role = NULL}},
    .check = check,
    .start = start,
    .destroy = destroy,
    .health = health,
    .keeps_store = true,
    .each_topic = each_topic,
};
