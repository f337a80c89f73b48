/* The relay (R12): publishes what apply has committed to the invalidations topic, but for what apply published in its commit
 * (ADR 16). An outbox engine
 * over refdata.outbox_event where this process has the role; else a notifier that wakes one elsewhere. Any
 * number of relays may run side by side. */
#include "base/failpoint.h"
#include "base/json.h"
#include "base/log.h"
#include "bus/bus_postgres.h"
#include "modules/refdata/commands.h"
#include "outbox/outbox.h"

enum { PAYLOAD_DEPTH_MAX = 4 };
enum { EXTRA_EVENT_ID, EXTRA_TRACEPARENT };
#define EVENT_TYPE "invalidation"

const struct outbox_table refdata_outbox_table = {
    .name = "refdata.outbox_event",
    .role = "relay",
    .event_type = "'" EVENT_TYPE "'",
    .logged = {{"eventId", "e.event_id", false},
               {"tenantId", "e.tenant_id", false},
               {"dictCode", "e.dict_code", false},
               {"version", "e.version", .is_number = true},
               OUTBOX_LOGGED_TRACE},
    .size = "pg_column_size(e.payload)",
    .extra = {[EXTRA_EVENT_ID] = "e.event_id", [EXTRA_TRACEPARENT] = "e.traceparent"},
    REFDATA_OUTBOX_COLUMNS,
};

/* ---- publishing, on a worker ---- */

static bool make_invalidation(void *context, const struct outbox_event *event, struct bus_message *message,
                              struct arena *arena, const char **reason)
{
    /* Seed §8.2: receivers need all five members. */
    static const char *const texts[] = {"eventId", "tenantId", "dictCode", "committedAt"};
    struct json_value body, member;
    struct error error;
    (void)context;
    *reason = "the payload is not an invalidation";
    if (json_parse(event->payload, PAYLOAD_DEPTH_MAX, &body, &error) != STATUS_OK ||
        body.type != JSON_OBJECT || !json_get(&body, STR("version"), &member) || member.type != JSON_NUMBER)
        return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!json_get_string(&body, str_from(texts[i]), &member))
            return false;
    refdata_message_make(message, STR(REFDATA_INVALIDATIONS), event->aggregate[0], event->aggregate[1],
                         event->extra[EXTRA_EVENT_ID], STR_NONE, event->extra[EXTRA_TRACEPARENT], arena);
    message->payload = event->payload;
    return true;
}

static void publish_invalidations(void *context, struct outbox_batch *batch)
{
    const struct refdata_database *database = context;
    FAILPOINT("relay.after_claim");
    outbox_messages_publish(database->buses.invalidations, batch, make_invalidation, NULL);
    FAILPOINT("relay.after_publish");
}

/* ---- life ---- */

static void *create_relay(void *owner, struct error *error)
{
    struct refdata_database *database = owner;
    struct kernel_site *site = &database->site;
    if (!kernel_has_role(database->refdata->kernel, "relay"))
        database->relay_notifier = db_notifier_create(site->home, &site->target, OUTBOX_NOTICE_WINDOW_US);
    else if (kernel_site_add_outbox(site,
                                    &(struct outbox_config){.table = &refdata_outbox_table,
                                                            .settings = &database->catalog->outbox,
                                                            .context = database,
                                                            .publish = publish_invalidations},
                                    &database->relay, error) != STATUS_OK)
        (void)!error_context(error, "relay");
    return database;
}

static void destroy_relay(void *part)
{
    db_notifier_destroy(((struct refdata_database *)part)->relay_notifier);
}

/* apply has one to wake, here or elsewhere. */
const struct kernel_part refdata_relay_part = {
    .roles = {"relay", "apply"}, .create = create_relay, .destroy = destroy_relay};

/* A process can die between claim and settle only if there are any. */
bool refdata_relay_publishes_in_commits(const struct refdata_database *database)
{
    return database->relay && bus_shares_commits(database->buses.invalidations, STR(REFDATA_INVALIDATIONS)) &&
           !FAILPOINT_IS_ARMED("relay.after_claim") && !FAILPOINT_IS_ARMED("relay.after_publish");
}

void refdata_relay_published(struct refdata_database *database, size_t count)
{
    outbox_count_published(&refdata_outbox_table, STR(EVENT_TYPE), count);
    bus_appended(database->buses.invalidations, STR(REFDATA_INVALIDATIONS), count);
}

void refdata_relay_enqueued(size_t count)
{
    outbox_count_enqueued(&refdata_outbox_table, STR(EVENT_TYPE), count);
}

void refdata_relay_wake(struct refdata_database *database)
{
    if (!database->relay && !database->relay_notifier)
        return;
    log_debug("outbox_event_enqueued", LOG_CSTR("module", refdata_outbox_table.module));
    if (database->relay)
        outbox_wake(database->relay);
    else
        outbox_notify(&refdata_outbox_table, database->relay_notifier);
}
