/* The carriers of one update, as refdata.undecided() counts those of all (sql/refdata/015_audit.sql). */
#include "modules/refdata/carrier.h"

#include "kernel/engines.h"
#include "modules/refdata/refdata.h"

/* $1 tenant, $2 event, $3 topic, $4 group. Messages from the group's position on, rows of the outbox of the pair that are not published or
 * were published since the update was accepted, and the snapshot that it is a chunk of: each by its index. */
static const struct db_statement carriers_sql = DB_STATEMENT(
    "with r as materialized (select * from refdata.update_request where tenant_id = $1 and event_id = $2)"
    " select 'message' as kind, true as is_alive,"
    "        'message ' || m.message_offset || ' of ' || m.topic || '/' || m.partition as place,"
    "        'the group ' || $4 || ' has ' || (m.message_offset - coalesce(c.position, 0)) || ' messages to handle before it'"
    "        || case when c.position = m.message_offset and c.attempts > 0"
    "                then '; ' || c.attempts || ' attempts, the next at ' || coalesce(platform.rfc3339(c.retry_at), 'any moment')"
    "                else '' end as state,"
    "        case when c.position = m.message_offset then c.last_error end as error, 1 as place_in_list"
    "   from r join platform.bus_partition p on p.topic = $3"
    "   left join platform.bus_cursor c on c.group_name = $4 and c.topic = p.topic and c.partition = p.partition"
    "   cross join lateral (select * from platform.bus_message b where b.topic = p.topic and b.partition = p.partition"
    "    and b.message_offset >= coalesce(c.position, 0) offset 0) m"
    "  where m.key = convert_to(r.tenant_id || ':' || r.dict_code, 'UTF8')"
    "    and m.headers[array_position(m.headers, 'event-id') + 1] = r.event_id::text"
    " union all"
    " select 'outbox', not o.published and o.failed_at is null, 'row ' || o.id || ' of refdata.command_outbox',"
    "        case when o.failed_at is not null then 'given up after ' || o.attempt_count || ' attempts'"
    "             when o.published then 'published at ' || platform.rfc3339(o.published_at)"
    "             when o.locked_until > clock_timestamp() then 'being published by ' || coalesce(o.locked_by, '?')"
    "             when o.next_attempt_at > clock_timestamp()"
    "                  then o.attempt_count || ' attempts, the next at ' || platform.rfc3339(o.next_attempt_at)"
    "             else 'waits to be published' end, o.last_error, 2"
    "   from r join refdata.command_outbox o"
    "     on o.tenant_id = r.tenant_id and o.dict_code = r.dict_code and o.event_id = r.event_id"
    "    and ((not o.published and o.failed_at is null) or o.failed_at is not null"
    "         or (o.published and o.published_at >= r.created_at))"
    " union all"
    " select 'snapshot', s.status = 'PENDING', 'snapshot ' || s.snapshot_id,"
    "        s.received || ' of ' || s.chunks_total || ' chunks have arrived, the last at ' || platform.rfc3339(s.updated_at),"
    "        null, 3"
    "   from r join refdata.snapshot s on s.tenant_id = r.tenant_id and s.dict_code = r.dict_code and s.snapshot_id = r.snapshot_id"
    "  where s.status = 'PENDING'"
    "  order by 2 desc, 6, 3");

/* From where the auditor has found the first of them: one scan of the index by age. */
const struct db_statement refdata_pending_sql = DB_STATEMENT(
    "with p as materialized (select r.tenant_id, r.event_id, r.dict_code, r.created_at from refdata.update_request r"
    "  where r.status = 'PENDING' and r.created_at < clock_timestamp() - $1 * interval '1 s'"
    "    and r.created_at >= (select least(position, coalesce(oldest, position)) from refdata.audit)"
    "  order by r.created_at limit 1000)"
    " select count(*) over (), tenant_id, event_id, dict_code, extract(epoch from clock_timestamp() - created_at)::bigint"
    "   from p order by created_at limit 1");

struct refdata_route refdata_route_of(const struct config *config, const char *database, struct arena *arena)
{
    const struct refdata_settings *settings = config_section(config, refdata_section.name);
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    struct refdata_route route = {.is_on_kafka = bus->commands == KERNEL_KAFKA};
    char *group = arena_alloc(arena, REFDATA_GROUP_BYTES);
    refdata_buses_name_group(settings, str_from(database),
                             route.is_on_kafka ? settings->kafka.group : STR(REFDATA_APPLY_GROUP),
                             bus->commands, group);
    route.group = group;
    route.topic = route.is_on_kafka ? settings->kafka.commands_topic.ptr : REFDATA_COMMANDS;
    return route;
}

enum status refdata_carriers_list(struct db_conn *conn, const struct refdata_route *route, struct str tenant,
                                  struct str event_id, int64_t deadline_ns, struct db_result **rows,
                                  struct error *error)
{
    return db_query(
        conn, &carriers_sql,
        DB_PARAMS(db_text(tenant), db_uuid(event_id), db_cstr(route->topic), db_cstr(route->group)),
        deadline_ns, rows, error);
}

enum status refdata_apply_is_run(struct db_conn *conn, int64_t deadline_ns, bool *is_run, struct error *error)
{
    static const struct db_statement sql = DB_STATEMENT("select " REFDATA_APPLY_IS_RUN);
    struct db_result *rows = NULL;
    enum status status = db_query(conn, &sql, DB_NO_PARAMS, deadline_ns, &rows, error);
    if (status == STATUS_OK)
        *is_run = str_eq(db_result_str(rows, 0, 0), STR("t"));
    db_result_free(rows);
    return status;
}

enum status refdata_carrier_lag(const struct config *config, const struct refdata_route *route,
                                struct str tenant, struct str code, int64_t deadline_ns, unsigned *partition,
                                int64_t *lag, struct error *error)
{
    struct arena arena = ARENA(4096);
    struct bus_kafka_config kafka = {.brokers = NULL};
    struct bus_kafka_position positions[BUS_PARTITIONS_MAX];
    unsigned count = 0;
    kernel_engine_kafka(config_section(config, "kafka"), &arena, &kafka);
    enum status status =
        bus_kafka_positions(&kafka, route->topic, route->group, deadline_ns, positions, &count, error);
    if (status == STATUS_OK && count == 0)
        status = error_set(error, STATUS_NOT_FOUND, "Kafka has no topic %s", route->topic);
    if (status == STATUS_OK) {
        *partition =
            bus_partition_of(arena_printf(&arena, "%.*s:%.*s", STR_ARG(tenant), STR_ARG(code)), count);
        const struct bus_kafka_position *at = &positions[*partition];
        *lag = at->end - (at->committed < 0 ? 0 : at->committed);
    }
    arena_deinit(&arena);
    return status;
}
