/* The module: settings, the outbox of events, life. An outbox engine over intake.event_outbox runs in every process of the role. */
#include "modules/intake/intake.h"

#include <stdlib.h>

#include "base/failpoint.h"
#include "base/json.h"
#include "base/memory.h"
#include "bus/bus.h"
#include "kernel/retention.h"
#include "kernel/store.h"
#include "outbox/messages.h"

enum { PARTITIONS = 4 };

#define ROW(member) .offset = offsetof(struct intake_settings, member)

static const struct setting_row section_rows[] = {
    {"idempotency", SETTING_OBJECT, ROW(idempotency), "Idempotency-Key of POST /api/v1/items.", "",
     .rows = idempotency_setting_rows},
    {"outbox", SETTING_OBJECT, ROW(outbox), "How events of items are published.", "",
     .rows = outbox_setting_rows},
    {.name = NULL},
};

static const struct config_section intake_section = {.name = "intake",
                                                     .help = "Items created by POST.",
                                                     .rows = section_rows,
                                                     .struct_bytes = sizeof(struct intake_settings)};

static void each_intake_topic(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                              void *arg)
{
    (void)section;
    /* Relaxed: PostgreSQL loses a message in a crash together with the outbox's mark, and it is published again. */
    fn(&(struct kernel_topic){.topic = {.name = INTAKE_EVENTS, .partitions = PARTITIONS, .relaxed = true}},
       arg);
}

/* ---- events ---- */

enum { EXTRA_TENANT, EXTRA_SKU, EXTRA_OCCURRED_AT, EXTRA_TRACEPARENT };

const struct outbox_table intake_outbox_table = {
    .module = "intake",
    .name = "intake.event_outbox",
    .id = {"event_id", "uuid"},
    .aggregate = {{"tenant_id", "text"}, {"sku", "text"}},
    .sequence = "sequence",
    .event_type = "e.event_type",
    .payload = "e.payload",
    .extra = {[EXTRA_TENANT] = "e.tenant_id",
              [EXTRA_SKU] = "e.sku",
              [EXTRA_OCCURRED_AT] = "platform.rfc3339(e.created_at)",
              [EXTRA_TRACEPARENT] = "e.traceparent"},
    .logged = {{"eventId", "e.event_id", false}, {"tenantId", "e.tenant_id", false}},
    .words = {"status", "PENDING", "IN_FLIGHT", "PUBLISHED", "FAILED"},
    .published_at = "published_at",
    .attempts = "attempt_count",
    .outages = "outage_count",
    OUTBOX_LEASE_COLUMNS,
};

static bool write_event(void *context, const struct outbox_event *event, struct bus_message *message,
                        struct arena *arena, const char **reason)
{
    struct json_value body, member;
    (void)context;
    *reason = "the payload is no event";
    if (json_parse_stored(event->payload, JSON_DEPTH_LIMIT, &body, NULL) != STATUS_OK ||
        body.type != JSON_OBJECT || !json_get(&body, STR("event_id"), &member) ||
        member.type != JSON_STRING || !json_get(&body, STR("item"), &member) || member.type != JSON_OBJECT)
        return false;
    const struct outbox_message fields = {
        .topic = STR(INTAKE_EVENTS),
        .key = outbox_key((struct str[]){event->extra[EXTRA_TENANT], event->extra[EXTRA_SKU]}, 2, arena),
        .payload = event->payload,
        .tenant = event->extra[EXTRA_TENANT],
        .occurred_at = event->extra[EXTRA_OCCURRED_AT],
        .traceparent = event->extra[EXTRA_TRACEPARENT],
    };
    outbox_message_write(&fields, event, message, arena);
    return true;
}

static void publish_events(void *context, struct outbox_batch *batch)
{
    struct intake *intake = context;
    FAILPOINT("intake.after_claim");
    outbox_messages_publish(kernel_events(intake->kernel), batch, write_event, NULL);
    FAILPOINT("intake.after_publish");
}

/* ---- life ---- */

static enum status start_intake(struct kernel *kernel, const void *section, void **state, struct error *error)
{
    (void)error;
    struct intake *intake = memory_zalloc(sizeof *intake);
    intake->kernel = kernel;
    intake->settings = section;
    intake->keys = (struct idempotency_table){.name = "intake.idempotency_keys",
                                              .ttl_ms = intake->settings->idempotency.ttl_ms,
                                              .expires_inclusive = false};
    intake->publisher =
        kernel_outbox_create(kernel, &intake_outbox_table, &intake->settings->outbox, publish_events, intake);
    kernel_retention_add_keys(kernel, &intake->keys, intake->settings->idempotency.cleanup_ms);
    intake_owner_provide(intake);
    *state = intake;
    return STATUS_OK;
}

const struct module intake_module = {
    .name = "intake",
    .roles = (const char *const[]){"intake", NULL},
    .section = &intake_section,
    .routes = (const struct module_routes[]){{"intake", intake_routes}, {.role = NULL}},
    .metrics = (struct metric_family *const[]){&intake_items_family, NULL},
    .migrations = intake_migrations,
    .start = start_intake,
    .destroy = free,
    .keeps_store = true,
    .provides = (const char *const[]){"item", NULL},
    .each_topic = each_intake_topic,
    .outboxes = (const struct outbox_table *const[]){&intake_outbox_table, NULL},
};
