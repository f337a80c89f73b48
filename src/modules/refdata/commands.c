/* Two ways onto the topic. In PostgreSQL: the bus's own rows, in the same transaction. To Kafka: rows of
 * refdata.command_outbox, and an outbox engine in every process that writes them, woken by each commit. An id is taken
 * when its row is written, so of two updates of a pair the one that was answered before the other was sent goes first. */
#include "modules/refdata/commands.h"

#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/writer.h"
#include "outbox/messages.h"

enum {
    PACE_MS = 1, /* somebody may wait for the commit */
    HEADERS_MAX = 3,
    COLUMNS = 6
};
#define REST_BYTES \
    ((size_t)1024) /* of a command but for its items: names, ids, a time, key and headers, at their longest */
enum { EXTRA_EVENT_ID, EXTRA_TRACEPARENT, EXTRA_WAITED };

struct refdata_commands {
    struct refdata_flow *flow;
    struct outbox *engine;
};

const struct outbox_table refdata_command_table = {
    .module = "refdata",
    .name = "refdata.command_outbox",
    .id = {"id", "bigint"},
    .aggregate = {{"tenant_id", "text"}, {"dict_code", "text"}},
    .sequence = "id",
    .event_type = "'command'",
    .payload = "e.payload",
    .logged = {{"eventId", "e.event_id", false},
               {"tenantId", "e.tenant_id", false},
               {"dictCode", "e.dict_code", false}},
    .extra =
        {[EXTRA_EVENT_ID] = "e.event_id", [EXTRA_TRACEPARENT] = "e.traceparent", [EXTRA_WAITED] = "e.waited"},
    .published = "published",
    .failed_at = "failed_at",
    .published_at = "published_at",
    .created_at = "created_at",
    .attempts = "attempt_count",
    .claims = "claim_count",
    .outages = "outage_count",
    .claim_id = "claim_id",
    .locked_by = "locked_by",
    .locked_until = "locked_until",
    .next_attempt_at = "next_attempt_at",
    .last_error = "last_error",
};

static const char insert_sql[] =
    "insert into refdata.command_outbox (tenant_id, dict_code, event_id, payload, waited, traceparent)"
    " select t, d, e::uuid, p, w is not null, trace"
    " from unnest($1, $2, $3, $4, $5, $6) with ordinality as u (t, d, e, p, w, trace, at) order by at";

/* ---- into the table ---- */

static void put_row(struct refdata_columns *columns, const struct bus_message *message)
{
    struct str code = message->key, tenant;
    str_split(&code, ':', &tenant); /* no name has a colon in it */
    refdata_columns_put(columns, 0, tenant);
    refdata_columns_put(columns, 1, code);
    refdata_columns_put(columns, 2, bus_message_header(message, STR(BUS_HEADER_EVENT_ID)));
    refdata_columns_put(columns, 3, message->payload);
    refdata_columns_put(columns, 4, bus_message_header(message, STR(REFDATA_HEADER_WAITED)));
    refdata_columns_put(columns, 5, bus_message_header(message, STR(BUS_HEADER_TRACEPARENT)));
    columns->rows++;
}

static enum status insert(struct db_conn *conn, const struct bus_message *messages, size_t count,
                          int64_t deadline_ns, struct error *error)
{
    static const enum db_type types[COLUMNS] = {DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY,
                                                DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY};
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX];
    struct db_statement statement;
    enum status status = STATUS_OK;
    refdata_columns_begin(&columns, COLUMNS);
    for (size_t i = 0; i < count; i++)
        put_row(&columns, &messages[i]);
    refdata_columns_end(&columns, params);
    db_statement_init(&statement, insert_sql, COLUMNS, types);
    if (columns.rows)
        status = db_exec(conn, &statement, params, deadline_ns, NULL, error);
    refdata_columns_free(&columns);
    return status;
}

enum status refdata_commands_check(const struct refdata_flow *flow, const struct refdata_update *update,
                                   struct error *error)
{
    size_t limit = bus_message_bytes_max(flow->buses.commands);
    if (update->items.raw.len + REST_BYTES <= limit)
        return STATUS_OK;
    return error_set_field(error, STATUS_PAYLOAD_TOO_LARGE, "items", "items: at most %zu bytes are taken",
                           limit > REST_BYTES ? limit - REST_BYTES : 0);
}

enum status refdata_commands_put(struct refdata_flow *flow, struct db_conn *conn,
                                 struct bus_message *messages, size_t count, int64_t deadline_ns,
                                 struct error *error)
{
    if (!flow->commands)
        return bus_publish_in_tx(flow->buses.commands, conn, messages, count, deadline_ns, error);
    return insert(conn, messages, count, deadline_ns, error);
}

void refdata_commands_wake(struct refdata_flow *flow)
{
    if (!flow->commands)
        bus_wake(flow->buses.commands, STR(REFDATA_COMMANDS));
    else if (flow->commands->engine)
        outbox_wake(flow->commands->engine);
}

/* ---- out of it, on a worker ---- */

static bool write_letter(void *context, const struct outbox_event *event, struct bus_message *message,
                         struct arena *arena, const char **reason)
{
    const struct refdata_commands *commands = context;
    struct bus_header *headers = arena_alloc(arena, HEADERS_MAX * sizeof *headers);
    unsigned count = 0;
    (void)reason;
    headers[count++] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), event->extra[EXTRA_EVENT_ID]};
    if (str_eq(event->extra[EXTRA_WAITED], STR("true")))
        headers[count++] = (struct bus_header){STR(REFDATA_HEADER_WAITED), STR("1")};
    if (event->extra[EXTRA_TRACEPARENT].len)
        headers[count++] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), event->extra[EXTRA_TRACEPARENT]};
    *message = (struct bus_message){
        .topic = str_from(commands->flow->buses.commands_topic),
        .key = arena_printf(arena, "%.*s:%.*s", STR_ARG(event->aggregate[0]), STR_ARG(event->aggregate[1])),
        .payload = event->payload,
        .headers = headers,
        .header_count = count,
    };
    return true;
}

static void publish(void *context, struct outbox_batch *batch)
{
    struct refdata_commands *commands = context;
    FAILPOINT("commands.after_claim");
    outbox_messages_publish(commands->flow->buses.commands, batch, write_letter, commands);
    FAILPOINT("commands.after_publish");
}

static void on_settled(void *context, size_t count)
{
    (void)context;
    (void)count;
    FAILPOINT("commands.after_finalize");
}

/* ---- life ---- */

struct refdata_commands *refdata_commands_create(struct refdata_flow *flow)
{
    struct refdata_commands *commands = memory_zalloc(sizeof *commands);
    struct error error = {0};
    commands->flow = flow;
    enum status status = outbox_create(&(struct outbox_config){.table = &refdata_command_table,
                                                               .settings = &flow->catalog->outbox,
                                                               .loop = flow->refdata->home,
                                                               .workers = flow->workers,
                                                               .target = &flow->database->target,
                                                               .pace_ms = PACE_MS,
                                                               .context = commands,
                                                               .publish = publish,
                                                               .on_settled = on_settled},
                                       &commands->engine, &error);
    if (status != STATUS_OK) /* its target was understood before: cannot happen */
        log_error("commands_not_started", LOG_STR("database", flow->database->name),
                  LOG_ERROR_FIELDS(&error));
    return commands;
}

void refdata_commands_start(struct refdata_commands *commands)
{
    if (commands->engine)
        outbox_start(commands->engine);
}

void refdata_commands_stop(struct refdata_commands *commands)
{
    if (commands->engine)
        outbox_stop(commands->engine, OUTBOX_STOP_MS);
}

void refdata_commands_interrupt(struct refdata_commands *commands)
{
    if (commands->engine)
        outbox_interrupt(commands->engine);
}

void refdata_commands_destroy(struct refdata_commands *commands)
{
    outbox_destroy(commands->engine);
    free(commands);
}
