/* The module: life and health. */
#include "modules/notification/notification.h"

#include <stdlib.h>

#include "base/memory.h"

static const char *text_or_none(struct str text)
{
    return text.len ? text.ptr : NULL;
}

/* As a reader: the owner is entitlement. */
static void each_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg)
{
    const struct notification_settings *settings = section;
    const struct kernel_topic topic = {
        .topic = {.name = NOTIFICATION_TOPIC, .group = settings->nats.durable.ptr},
        .stream = text_or_none(settings->nats.stream),
        .stream_field = "notification.nats.stream",
        .stream_place = settings->nats.stream_place,
        .advisory_stream = text_or_none(settings->nats.advisory_stream),
        .terminated_stream = text_or_none(settings->nats.terminated_stream),
        .ack_wait_ms = settings->nats.ack_wait_ms,
    };
    fn(&topic, arg);
}

static enum status start(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    struct notification *notification = memory_zalloc(sizeof *notification);
    notification->kernel = kernel;
    notification->settings = section;
    notification_titles_init(notification);
    enum status status = notification_delivery_create(notification, error);
    if (status == STATUS_OK)
        status = notification_requeue_create(notification, error);
    if (status != STATUS_OK) {
        free(notification);
        return status;
    }
    *state = notification;
    return STATUS_OK;
}

static enum status subscribe(void *state, struct bus *events, struct error *error)
{
    enum status status = notification_consumer_subscribe(state, events, error);
    return status == STATUS_OK ? notification_dead_letters_subscribe(state, events, error) : status;
}

static void on_store(void *state)
{
    struct notification *notification = state;
    notification_retention_start(notification);
    notification->gauges = notification_gauges_start(notification);
}

static void stop(void *state)
{
    struct notification *notification = state;
    notification_gauges_stop(notification->gauges);
}

static void destroy(void *state)
{
    struct notification *notification = state;
    notification_gauges_destroy(notification->gauges);
    free(notification);
}

static void health(void *state, struct health *health)
{
    const struct notification *notification = state;
    bool is_up = kernel_store_is_up(notification->kernel), hears = kernel_events_are_up(notification->kernel);
    health_role(health, "notification", is_up && hears,
                is_up && hears ? STR_NONE
                : is_up        ? STR("waiting for NATS")
                               : STR("waiting for PostgreSQL"));
}

const struct module notification_module = {
    .name = "notification",
    .roles = (const char *const[]){"notification", NULL},
    .section = &notification_section,
    .routes = (const struct module_routes[]){{"notification", notification_routes}, {.role = NULL}},
    .metrics = notification_metrics,
    .migrations = notification_migrations,
    .check = notification_settings_check,
    .start = start,
    .stop = stop,
    .destroy = destroy,
    .health = health,
    .keeps_store = true,
    .each_topic = each_topic,
    .subscribe = subscribe,
    .on_store = on_store,
};
