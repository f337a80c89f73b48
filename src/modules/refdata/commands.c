/* Puts commands on the topic refdata.commands, in two ways. In PostgreSQL: the bus's own rows, in the same transaction. To Kafka:
 * rows of refdata.command_outbox, and an outbox engine in every process that writes them, woken by each commit. An id is taken
 * when its row is written, so of two updates of a pair the one that was answered before the other was sent goes first. */
#include "modules/refdata/commands.h"

#include "base/failpoint.h"
#include "bus/bus_postgres.h"
#include "modules/refdata/writer.h"
#include "outbox/outbox.h"

enum {
    PACE_MS = 1, /* a client may wait for the commit */
    HEADERS_MAX = 3,
    COLUMNS = 6
};
#define REST_BYTES \
    ((size_t)1024) /* of a command but for its items: names, ids, a time, key and headers, at their longest */
enum { EXTRA_EVENT_ID, EXTRA_TRACEPARENT, EXTRA_WAITED };

#define EVENT_TYPE "command"

const struct outbox_table refdata_command_table = {
    .name = "refdata.command_outbox",
    .role = "command",
    .event_type = "'" EVENT_TYPE "'",
    .logged = {{"eventId", "e.event_id", false},
               {"tenantId", "e.tenant_id", false},
               {"dictCode", "e.dict_code", false},
               OUTBOX_LOGGED_TRACE},
    .size = "octet_length(e.payload)",
    .extra =
        {[EXTRA_EVENT_ID] = "e.event_id", [EXTRA_TRACEPARENT] = "e.traceparent", [EXTRA_WAITED] = "e.waited"},
    REFDATA_OUTBOX_COLUMNS,
};

static const struct db_statement insert_sql = DB_STATEMENT(
    "insert into refdata.command_outbox (tenant_id, dict_code, event_id, payload, waited, traceparent)"
    " select t, d, e::uuid, p, w is not null, trace"
    " from unnest($1, $2, $3, $4, $5, $6) with ordinality as u (t, d, e, p, w, trace, at) order by at");

/* ---- out of the transaction that accepts them ---- */

void refdata_message_make(struct bus_message *message, struct str topic, struct str tenant, struct str code,
                          struct str event_id, struct str waited, struct str traceparent, struct arena *arena)
{
    struct bus_header *headers = arena_alloc(arena, HEADERS_MAX * sizeof *headers);
    unsigned count = 0;
    headers[count++] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), event_id};
    if (waited.ptr)
        headers[count++] = (struct bus_header){STR(REFDATA_HEADER_WAITED), waited};
    if (traceparent.len)
        headers[count++] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), traceparent};
    *message = (struct bus_message){
        .topic = topic,
        .key = arena_printf(arena, "%.*s:%.*s", STR_ARG(tenant), STR_ARG(code)),
        .headers = headers,
        .header_count = count,
    };
}

/* Its row of update_request is in the same database, and commits with it. */
static void make_own_message(struct bus_message *message, const struct refdata_accepted *accepted,
                             struct str payload, struct arena *arena)
{
    const struct refdata_update *update = accepted->update;
    refdata_message_make(message, STR(REFDATA_COMMANDS), update->tenant, update->dict_code,
                         str_from(update->event_id), accepted->waited ? STR("1") : STR("0"),
                         accepted->traceparent, arena);
    message->payload = payload;
}

enum status refdata_commands_check(const struct refdata_database *database,
                                   const struct refdata_update *update, struct error *error)
{
    size_t limit = bus_message_bytes_max(database->buses.commands);
    if (update->items.raw.len + REST_BYTES <= limit)
        return STATUS_OK;
    return error_set_field(error, STATUS_PAYLOAD_TOO_LARGE, "items", "items: at most %zu bytes are taken",
                           limit > REST_BYTES ? limit - REST_BYTES : 0);
}

enum status refdata_commands_put(struct refdata_database *database, struct db_conn *conn,
                                 const struct refdata_accepted *accepted, size_t count, int64_t deadline_ns,
                                 struct arena *arena, struct error *error)
{
    struct buf *payloads = arena_zalloc(arena, (count + 1) * sizeof *payloads);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count; i++)
        refdata_update_put(&payloads[i], accepted[i].update);
    if (count > 0 && !database->commands) {
        struct bus_message *messages = arena_alloc(arena, count * sizeof *messages);
        for (size_t i = 0; i < count; i++)
            make_own_message(&messages[i], &accepted[i], buf_str(&payloads[i]), arena);
        status = bus_publish_in_tx(database->buses.commands, conn, messages, count, deadline_ns, error);
    } else if (count > 0) {
        struct refdata_columns columns;
        struct db_param params[COLUMNS + 1] = {[COLUMNS] = DB_END};
        refdata_columns_begin(&columns, COLUMNS, arena);
        for (size_t i = 0; i < count; i++) {
            const struct refdata_update *update = accepted[i].update;
            struct str traceparent = accepted[i].traceparent;
            refdata_columns_add(&columns,
                                REFDATA_ROW(update->tenant, update->dict_code, str_from(update->event_id),
                                            buf_str(&payloads[i]), accepted[i].waited ? STR("1") : STR_NONE,
                                            traceparent.len ? traceparent : STR_NONE));
        }
        refdata_columns_bind_arrays(&columns, params);
        status = db_exec(conn, &insert_sql, params, deadline_ns, NULL, error);
        refdata_columns_free(&columns);
    }
    for (size_t i = 0; i < count; i++)
        buf_deinit(&payloads[i]);
    return status;
}

enum status refdata_commands_put_and_commit(struct refdata_database *database, struct db_conn *conn,
                                            const struct refdata_accepted *accepted, size_t count,
                                            int64_t deadline_ns, struct arena *arena, struct error *error)
{
    struct bus_message *messages = arena_alloc(arena, count * sizeof *messages);
    struct buf *payloads = arena_zalloc(arena, count * sizeof *payloads);
    for (size_t i = 0; i < count; i++) {
        refdata_update_put(&payloads[i], accepted[i].update);
        make_own_message(&messages[i], &accepted[i], buf_str(&payloads[i]), arena);
    }
    enum status status = bus_publish_and_commit(database->buses.commands, conn, messages, count,
                                                count == 1 && accepted->waited, deadline_ns, error);
    for (size_t i = 0; i < count; i++)
        buf_deinit(&payloads[i]);
    return status;
}

void refdata_commands_wake(struct refdata_database *database, size_t count)
{
    if (!database->commands) {
        bus_wake(database->buses.commands, STR(REFDATA_COMMANDS));
        return;
    }
    outbox_count_enqueued(&refdata_command_table, STR(EVENT_TYPE), count);
    outbox_wake(database->commands);
}

/* ---- out of the outbox, on a worker ---- */

static bool make_outbox_message(void *context, const struct outbox_event *event, struct bus_message *message,
                                struct arena *arena, const char **reason)
{
    const struct refdata_database *database = context;
    (void)reason;
    refdata_message_make(message, str_from(database->buses.commands_topic), event->aggregate[0],
                         event->aggregate[1], event->extra[EXTRA_EVENT_ID],
                         str_eq(event->extra[EXTRA_WAITED], STR("true")) ? STR("1") : STR_NONE,
                         event->extra[EXTRA_TRACEPARENT], arena);
    message->payload = event->payload;
    return true;
}

static void publish_from_outbox(void *context, struct outbox_batch *batch)
{
    struct refdata_database *database = context;
    FAILPOINT("commands.after_claim");
    outbox_messages_publish(database->buses.commands, batch, make_outbox_message, database);
    FAILPOINT("commands.after_publish");
}

static void *create_commands(void *owner, struct error *error)
{
    struct refdata_database *database = owner;
    if (!database->buses.shared) /* PostgreSQL carries them */
        return NULL;
    if (kernel_site_add_outbox(&database->site,
                               &(struct outbox_config){.table = &refdata_command_table,
                                                       .settings = &database->catalog->outbox,
                                                       .pace_ms = PACE_MS,
                                                       .context = database,
                                                       .publish = publish_from_outbox},
                               &database->commands, error) != STATUS_OK)
        (void)!error_context(error, "commands");
    return database;
}

const struct kernel_part refdata_commands_part = {.roles = {"command", "adapter"}, .create = create_commands};
