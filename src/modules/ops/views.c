/* Lists that belong to no single module: processes, the audit, lag, streams and stored answers of all modules. */
#include "modules/ops/ops.h"

#define IS_UP "p.stopped_at is null and p.seen_at > clock_timestamp() - interval '15 s'"

/* ---- processes: a row in each of their databases, of which the newest counts ---- */

static const struct ops_column pod_columns[] = {
    {"pod_id", "p.pod_id", .type = OPS_TEXT},
    {"host", "p.host", .type = OPS_TEXT},
    {"pid", "p.pid", .type = OPS_NUMBER},
    {"address", "p.address", .type = OPS_TEXT},
    {"roles", "to_jsonb(p.roles)", .type = OPS_JSON},
    {"version", "p.version", .type = OPS_TEXT},
    {"commit", "p.commit", .type = OPS_TEXT},
    {"started_at", "p.started_at", .type = OPS_TIME},
    {"seen_at", "p.seen_at", .type = OPS_TIME},
    {"stopped_at", "p.stopped_at", OPS_TIME, .is_optional = true},
    {"state", "case when p.stopped_at is not null then 'stopped' when " IS_UP " then 'up' else 'gone' end",
     .type = OPS_TEXT},
    {"ready", "p.ready and " IS_UP, .type = OPS_BOOL},
    {"health", "p.report -> 'health'", .type = OPS_JSON},
    {"reads_per_second", "p.report -> 'reads_per_second'", .type = OPS_JSON},
    {"writes_per_second", "p.report -> 'writes_per_second'", .type = OPS_JSON},
    {"memory_used_bytes", "p.report -> 'memory_used_bytes'", .type = OPS_JSON},
    {"memory_limit_bytes", "p.report -> 'memory_limit_bytes'", .type = OPS_JSON},
    {"connections", "p.report -> 'connections'", .type = OPS_JSON},
    {"streams",
     "coalesce((select sum(s::bigint) from jsonb_path_query(p.report, '$.*.streams_open') s), 0)::bigint",
     .type = OPS_NUMBER},
    {.name = NULL},
};

static const struct ops_choice pod_states[] = {
    {"up", IS_UP},
    {"gone", "p.stopped_at is null and p.seen_at <= clock_timestamp() - interval '15 s'"},
    {"stopped", "p.stopped_at is not null"},
    {NULL, NULL},
};

static const struct ops_filter pod_filters[] = {
    {"state", OPS_TEXT, NULL, .choices = pod_states},
    {.name = NULL},
};

/* ---- the audit ---- */

static const struct ops_column audit_columns[] = {
    {"at", "a.at", .type = OPS_TIME},
    {"tenant_id", "a.tenant_id", .type = OPS_TEXT},
    {"who", "a.who", .type = OPS_TEXT},
    {"action", "a.action", .type = OPS_TEXT},
    {"target", "a.target", .type = OPS_TEXT},
    {"ids", "a.ids", OPS_JSON, .is_optional = true},
    {"filter", "a.filter", OPS_JSON, .is_optional = true},
    {"matched", "a.matched", .type = OPS_NUMBER},
    {"changed", "a.changed", .type = OPS_NUMBER},
    {"reason", "a.reason", .type = OPS_TEXT},
    {.name = NULL},
};

/* ---- lag: of what PostgreSQL carries from its tables, of engines as the processes measured it ---- */

#define LAG_FROM                                                                                                 \
    "(select p.topic, c.group_name, p.partition, 'postgres' as engine, p.next_offset - c.position as lag,"       \
    "        c.position, p.next_offset, clock_timestamp() as at, c.last_error"                                   \
    "   from platform.bus_partition p"                                                                           \
    "   join platform.bus_cursor c on c.topic = p.topic and c.partition = p.partition"                           \
    " union all (select distinct on (1, 2, 4) (l ->> 'topic') collate \"C\", (l ->> 'group') collate \"C\", -1," \
    "        l ->> 'engine', (l ->> 'lag')::bigint, null, null, p.seen_at, null"                                 \
    "   from platform.pod p, jsonb_path_query(p.report, '$.lag[*]') l where " IS_UP                              \
    "  order by 1, 2, 4, p.seen_at desc)) g"

static const struct ops_column lag_columns[] = {
    {"topic", "g.topic", .type = OPS_TEXT},
    {"group", "g.group_name", .type = OPS_TEXT},
    {"partition", "nullif(g.partition, -1)", OPS_NUMBER, .is_optional = true},
    {"engine", "g.engine", .type = OPS_TEXT},
    {"lag", "g.lag", .type = OPS_NUMBER},
    {"position", "g.position", .type = OPS_NUMBER},
    {"end", "g.next_offset", .type = OPS_NUMBER},
    {"at", "g.at", .type = OPS_TIME},
    {"last_error", "g.last_error", OPS_TEXT, .is_optional = true},
    {.name = NULL},
};

static const struct ops_filter lag_filters[] = {
    {"topic", OPS_TEXT, .sql = "g.topic = $?"},
    {"group", OPS_TEXT, .sql = "g.group_name = $?"},
    {.name = NULL},
};

/* ---- streams, as the processes reported them ---- */

static const struct ops_column stream_columns[] = {
    {"pod_id", "p.pod_id", .type = OPS_TEXT},
    {"kind", "s ->> 'kind'", .type = OPS_TEXT},
    {"tenant_id", "s ->> 'tenant_id'", .type = OPS_TEXT},
    {"name", "s ->> 'name'", .type = OPS_TEXT},
    {"readers", "s -> 'readers'", .type = OPS_JSON},
    {"position", "s -> 'position'", .type = OPS_JSON},
    {"bytes", "s -> 'bytes'", .type = OPS_JSON},
    {"at", "p.seen_at", .type = OPS_TIME},
    {.name = NULL},
};

static const struct ops_choice stream_kinds[] = {{"chat", NULL}, {"watch", NULL}, {NULL, NULL}};

static const struct ops_filter stream_filters[] = {
    {"kind", OPS_TEXT, "s ->> 'kind' = $?", .choices = stream_kinds},
    {.name = NULL},
};

/* ---- stored answers by Idempotency-Key: scanned by the primary keys, which begin with the tenant and the user ---- */

#define KEYS_OF(module)                                                                               \
    "select '" module                                                                                 \
    "' collate \"C\" as module, tenant_id, subject, method, route, idempotency_key, response_status," \
    " created_at, expires_at from " module ".idempotency_keys"

static const struct ops_column key_columns[] = {
    {"module", "r.module", .type = OPS_TEXT},
    {"tenant_id", "r.tenant_id", .type = OPS_TEXT},
    {"key", "r.idempotency_key", .type = OPS_TEXT},
    {"route", "r.method || ' ' || r.route", .type = OPS_TEXT},
    {"user_id", "r.subject", .type = OPS_TEXT},
    {"status", "case when r.expires_at <= clock_timestamp() then 'expired' else 'stored' end",
     .type = OPS_TEXT},
    {"created_at", "r.created_at", .type = OPS_TIME},
    {"expires_at", "r.expires_at", .type = OPS_TIME},
    {"response_status", "r.response_status", .type = OPS_NUMBER},
    {.name = NULL},
};

static const struct ops_choice key_modules[] = {
    {"chat", NULL}, {"entitlement", NULL}, {"intake", NULL}, {NULL, NULL}};

static const struct ops_filter key_filters[] = {
    {"module", OPS_TEXT, "r.module = $?", .choices = key_modules},
    {"route", OPS_TEXT, .sql = "r.route = $?"},
    {"key", OPS_TEXT, .sql = "r.idempotency_key = $?"},
    {"user", OPS_TEXT, "r.subject = $?", .is_indexed = true},
    {.name = NULL},
};

/* Those of POST …/updates stand for an update, whose status is the answer: scanned by update_key_age. */
static const struct ops_column update_key_columns[] = {
    {"module", "'refdata'", .type = OPS_TEXT},
    {"tenant_id", "r.tenant_id", .type = OPS_TEXT},
    {"key", "r.idempotency_key", .type = OPS_TEXT},
    {"route", "'POST /v1/tenants/{tenantId}/updates'", .type = OPS_TEXT},
    {"user_id", "r.subject", .type = OPS_TEXT},
    {"status", "'stored'", .type = OPS_TEXT},
    {"created_at", "r.created_at", .type = OPS_TIME},
    {"expires_at", "null::timestamptz", .type = OPS_TIME},
    {"response_status", "null", .type = OPS_NUMBER},
    {"event_id", "r.event_id", .type = OPS_UUID},
    {.name = NULL},
};

static const struct ops_filter update_key_filters[] = {
    {"key", OPS_TEXT, .sql = "r.idempotency_key = $?"},
    {"user", OPS_TEXT, .sql = "r.subject = $?"},
    {.name = NULL},
};

const struct ops_view ops_views[] = {
    {
        .name = "pods",
        .place = OPS_ANYWHERE,
        .from = "platform.pod p",
        .columns = pod_columns,
        .filters = pod_filters,
        .keys = {{"p.pod_id", OPS_TEXT}},
        .merged_by = "seen_at",
    },
    {
        .name = "audit",
        .place = OPS_ANYWHERE,
        .from = "platform.ops_audit a",
        .tenant = "a.tenant_id",
        .columns = audit_columns,
        .keys = {{"a.at", OPS_TIME}, {"a.id", OPS_NUMBER}},
        .is_descending = true,
    },
    {
        .name = "lag",
        .place = OPS_ANYWHERE,
        .from = LAG_FROM,
        .columns = lag_columns,
        .filters = lag_filters,
        .keys = {{"g.topic", OPS_TEXT},
                 {"g.group_name", OPS_TEXT},
                 {"g.partition", OPS_NUMBER},
                 {"g.engine collate \"C\"", OPS_TEXT}},
    },
    {
        .name = "streams",
        .place = OPS_ANYWHERE,
        .from = "platform.pod p, jsonb_path_query(p.report, '$.*.streams[*]') s",
        .where = IS_UP,
        .tenant = "s ->> 'tenant_id'",
        .columns = stream_columns,
        .filters = stream_filters,
        .keys = {{"p.pod_id", OPS_TEXT},
                 {"(s ->> 'kind') collate \"C\"", OPS_TEXT},
                 {"(s ->> 'tenant_id') collate \"C\"", OPS_TEXT},
                 {"(s ->> 'name') collate \"C\"", OPS_TEXT}},
        .merged_by = "at",
    },
    {
        .name = "idempotency-keys",
        .place = OPS_STORE,
        .from =
            "(" KEYS_OF("chat") " union all " KEYS_OF("entitlement") " union all " KEYS_OF("intake") ") r",
        .tenant = "r.tenant_id",
        .columns = key_columns,
        .filters = key_filters,
        .keys = {{"r.tenant_id", OPS_TEXT},
                 {"r.subject", OPS_TEXT},
                 {"r.method", OPS_TEXT},
                 {"r.route", OPS_TEXT},
                 {"r.idempotency_key", OPS_TEXT},
                 {"r.module", OPS_TEXT}},
        .is_scanned = true,
        .tenant_is_indexed = true,
        .by = "module",
    },
    {
        .name = "idempotency-keys",
        .place = OPS_DATABASES,
        .from = "refdata.update_key r",
        .tenant = "r.tenant_id",
        .columns = update_key_columns,
        .filters = update_key_filters,
        .keys = {{"r.created_at", OPS_TIME},
                 {"r.tenant_id collate \"C\"", OPS_TEXT},
                 {"r.subject collate \"C\"", OPS_TEXT},
                 {"r.idempotency_key collate \"C\"", OPS_TEXT}},
        .is_descending = true,
        .is_scanned = true,
        .by = "module",
        .is = "refdata",
    },
    {.name = NULL},
};
