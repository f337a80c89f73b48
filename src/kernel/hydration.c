/* Hydration's place in a process: one engine beside the store, for every module that looks entities up or owns them. Modules
 * register the types they look up in start(); before the loops run, a type without an owner is logged. */
#include "hydration/hydration.h"

#include "base/log.h"
#include "kernel/kernel_inside.h"
#include "kernel/retention.h"
#include "kernel/store_inside.h"

enum { CLEANUP_MS = 5000 };

struct hydration *kernel_hydration(struct kernel *kernel)
{
    return kernel->store ? kernel->store->hydration : NULL;
}

static const struct hydration_settings *settings_of(const struct kernel_store *store)
{
    return config_section(store->kernel->first, "hydration");
}

/* ---- life ---- */

void kernel_hydration_create(struct kernel_store *store)
{
    if (!settings_of(store)) /* a program without that module */
        return;
    store->hydration = hydration_create(&(struct hydration_config){
        .loops = store->kernel->loops,
        .workers = store->site.workers,
        .pool = store->site.pool,
        .settings = settings_of(store),
        .is_plain = kernel_bus(store->kernel)->events == KERNEL_NATS,
    });
}

static void *open_hydration(void *owner, struct error *error)
{
    struct kernel_store *store = owner;
    if (!store->hydration)
        return NULL;
    if (hydration_open(store->hydration, store->site.buses[0], store->consumes, error) != STATUS_OK)
        (void)!error_context(error, "hydration");
    return store;
}

/* Every few seconds something is over: no news. */
static void say_nothing(void *context, int64_t count)
{
    (void)context;
    (void)count;
}

static void start_hydration(void *part)
{
    struct kernel_store *store = part;
    const struct hydration_settings *settings = settings_of(store);
    const struct retention_rule rules[] = {
        {"hydration.absences", hydration_absences_cleanup_sql, settings->negative_rows_max, CLEANUP_MS,
         say_nothing, NULL, NULL, NULL},
        {"hydration.copies", hydration_copies_cleanup_sql, settings->copy_rows_max, CLEANUP_MS, say_nothing,
         NULL, NULL, NULL},
        {"hydration.flights", hydration_flights_cleanup_sql, settings->flight_rows_max, CLEANUP_MS,
         say_nothing, NULL, NULL, NULL},
    };
    for (size_t i = 0; store->consumes && i < sizeof rules / sizeof *rules; i++)
        kernel_retention_add(store->kernel, &rules[i]);
}

const struct kernel_part kernel_hydration_part = {.create = open_hydration, .start = start_hydration};

/* ---- the types that modules look up ---- */

static bool is_consumed(const struct kernel_store *store, struct str type)
{
    for (size_t i = 0; i < store->consumed_count; i++)
        if (str_eq(str_from(store->consumed[i]), type))
            return true;
    return false;
}

void kernel_hydration_consumes(struct kernel *kernel, const char *entity_type)
{
    struct kernel_store *store = kernel->store;
    if (!store)
        return;
    store->consumes = true;
    if (entity_type && store->consumed_count < KERNEL_CONSUMED_MAX &&
        !is_consumed(store, str_from(entity_type)))
        store->consumed[store->consumed_count++] = entity_type;
}

static void warn_of(const struct kernel_store *store, struct str type)
{
    const struct setting_strings *outside = &settings_of(store)->outside;
    bool is_outside = false, is_provided = false;
    for (size_t i = 0; i < outside->count; i++)
        is_outside |= str_eq(outside->items[i], type);
    /* by any module, whether its role runs here or in another process */
    for (const struct module *const *at = store->kernel->options.modules; *at; at++)
        for (const char *const *own = (*at)->provides; own && *own; own++)
            is_provided |= str_eq(str_from(*own), type);
    if (is_provided || (is_outside && kernel_bus(store->kernel)->events == KERNEL_NATS))
        return;
    const char *advice =
        is_outside
            ? "it is listed in hydration.outside, but modules outside answer over NATS: set bus.events to nats"
            : "no module provides it, so that asking for it can only time out: take it out of the configuration,"
              " or have a module outside answer entity.unknown over NATS and list it in hydration.outside";
    log_warn("hydration_type_without_owner", LOG_STR("entity_type", type), LOG_CSTR("advice", advice));
}

void kernel_hydration_warn(const struct kernel_store *store)
{
    const struct hydration_settings *settings = settings_of(store);
    if (!settings)
        return;
    for (size_t i = 0; i < store->consumed_count; i++)
        warn_of(store, str_from(store->consumed[i]));
    for (size_t i = 0; i < settings->required.count && store->consumes; i++)
        if (!is_consumed(store, settings->required.items[i]))
            warn_of(store, settings->required.items[i]);
}
