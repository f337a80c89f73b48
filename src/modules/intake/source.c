/* Items for whoever lacks one (H6): entity type `item`, id = the sku, as it is. Whoever is of the tenant may see them, as by
 * the route, and gets the same object. An item is made once and never changes: its version is 1. */
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "kernel/store.h"
#include "modules/intake/intake.h"
#include "outbox/messages.h"

#define ENTITY_TYPE "item"

enum { VERSION = 1 };

static enum status look(void *context, const struct hydration_question *question, int64_t deadline_ns,
                        struct hydration_entity *entity, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status =
        intake_item_find(context, question->tenant, question->entity_id, deadline_ns, &rows, error);
    if (status == STATUS_OK && db_result_rows(rows)) {
        entity->found = HYDRATION_IS;
        entity->version = VERSION;
        buf_put_str(entity->data, db_result_str(rows, 0, 0));
    } else {
        entity->found = HYDRATION_IS_NOT;
    }
    db_result_free(rows);
    return status;
}

void intake_source_provide(struct intake *intake)
{
    hydration_provide(kernel_hydration(intake->kernel),
                      &(struct hydration_owner){
                          .entity_type = ENTITY_TYPE, .module = "intake", .look = look, .context = intake});
}

/* ---- following its own events ---- */

/* "tenant/sku", each percent-encoded: see aggregate_key() of events.c. */
bool intake_source_read_key(struct str key, struct arena *arena, struct str *sku)
{
    struct str tenant;
    struct error error;
    return str_split(&key, '/', &tenant) &&
           http_percent_decode(key, false, arena, "aggregate_key", sku, &error) == STATUS_OK && sku->len;
}

static bool read_event(void *context, const void *bus_message, struct arena *arena, struct hydration_ref *ref)
{
    (void)context;
    const struct bus_message *message = bus_message;
    ref->tenant = bus_message_header(message, STR(OUTBOX_HEADER_TENANT));
    return intake_source_read_key(bus_message_header(message, STR(OUTBOX_HEADER_AGGREGATE)), arena,
                                  &ref->entity_id);
}

enum status intake_source_follow(struct intake *intake, struct bus *events, struct error *error)
{
    return hydration_follow(kernel_hydration(intake->kernel), events, INTAKE_EVENTS, ENTITY_TYPE, read_event,
                            intake, error);
}
