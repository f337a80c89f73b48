/* What operators may list of reference data (kernel/ops.h). */
#include "kernel/ops.h"

#include "modules/refdata/carrier.h"
#include "modules/refdata/refdata.h"

/* ---- updates: scanned by update_request_age. An index by status would cost every decision of a queued update: it changes its row in place
 * because no index has what it changes (migration 016) ---- */

static const struct ops_choice statuses[] = {
    {"PENDING", NULL}, {"COMMITTED", NULL}, {"FAILED", NULL}, {NULL, NULL}};

/* An event's id is looked for in each tenant, which are found by one step through the primary key each. */
#define TENANTS                                                                                          \
    "(with recursive t(id) as (select min(tenant_id) from refdata.update_request"                        \
    " union all select (select min(u.tenant_id) from refdata.update_request u where u.tenant_id > t.id)" \
    " from t where t.id is not null) select id from t)"

static const struct ops_filter update_filters[] = {
    {"status", OPS_TEXT, "r.status = $?", .choices = statuses},
    {"dict", OPS_TEXT, .sql = "r.dict_code = $?"},
    {"error_code", OPS_TEXT, .sql = "r.error_code = $?"},
    {"from", OPS_TIME, "r.created_at >= $?", .is_indexed = true},
    {"to", OPS_TIME, "r.created_at < $?", .is_indexed = true},
    {"event_id", OPS_UUID, "r.event_id = $? and r.tenant_id in " TENANTS, .is_indexed = true},
    {.name = NULL},
};

#define UPDATE_COLUMNS                                                                                      \
    {"tenant_id", "r.tenant_id", .type = OPS_TEXT}, {"event_id", "r.event_id", .type = OPS_UUID},           \
        {"dict_code", "r.dict_code", .type = OPS_TEXT},                                                     \
        {"event_type",                                                                                      \
         "case when r.snapshot_id is not null or (o.id is not null and o.keys is null) then 'SNAPSHOT'"     \
         " when o.id is not null then 'DELTA' end",                                                         \
         .type = OPS_TEXT},                                                                                 \
        {"status", "r.status", .type = OPS_TEXT},                                                           \
        {"committed_version", "r.committed_version", .type = OPS_NUMBER},                                   \
        {"requested_by", "r.requested_by", .type = OPS_TEXT}, {"source", "r.source", .type = OPS_TEXT},     \
        {"error_code", "r.error_code", .type = OPS_TEXT},                                                   \
        {"error_message", "r.error_message", .type = OPS_TEXT},                                             \
        {"created_at", "r.created_at", .type = OPS_TIME}, {"updated_at", "r.updated_at", .type = OPS_TIME}, \
    {                                                                                                       \
        "age_seconds", "extract(epoch from clock_timestamp() - r.created_at)::bigint", .type = OPS_NUMBER   \
    }

static const struct ops_column update_columns[] = {UPDATE_COLUMNS, {.name = NULL}};

/* Planned on an empty table, a plain join would read all events of the tenant for each update. */
#define MADE_VERSION                                                                            \
    "left join lateral (select e.* from refdata.outbox_event e where e.tenant_id = r.tenant_id" \
    " and e.dict_code = r.dict_code and e.version = r.committed_version and e.event_id = r.event_id offset 0) o on true"

/* ---- one update: its way, and what will decide it ---- */

/* What the pods that are up reported of their pairs: evaluated once for a page. */
#define PODS_UP                                                                                                 \
    "(select coalesce(jsonb_agg(jsonb_build_object('pod_id', p.pod_id, 'pairs', p.report #> '{refdata,pairs}')" \
    " order by p.pod_id), '[]') from platform.pod p"                                                            \
    " where p.stopped_at is null and p.seen_at > clock_timestamp() - interval '15 s')"
/* Each with `pair`, the report of r's pair: [version,loaded at,items,bytes,digest,freshness,error,read at] */
#define PODS_OF_PAIR                                                                                    \
    "(select pod ->> 'pod_id' as pod_id, pod -> 'pairs' -> (r.tenant_id || '/' || r.dict_code) as pair" \
    " from jsonb_array_elements(" PODS_UP ") pod) h"
#define LOADED_AT "to_timestamp((h.pair ->> 1)::bigint / 1000000.0)"

/* The commands' outbox is looked through around the time of the update; where PostgreSQL carries commands it is empty. */
#define COMMAND                                                                                                        \
    "left join lateral (select c.id, c.published_at, c.attempt_count, c.last_error"                                    \
    " from refdata.command_outbox c where c.published and c.published_at >= r.created_at"                              \
    " and c.published_at < r.created_at + interval '10 min' and c.tenant_id = r.tenant_id and c.event_id = r.event_id" \
    " order by c.published_at limit 1) c on true"

#define TIMELINE                                                                                                                          \
    "(select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('step', t.step, 'at', platform.rfc3339(t.at),"                                \
    " 'after_ms', round(extract(epoch from t.at - r.created_at) * 1000, 3), 'pod_id', t.pod_id)) order by t.at, t.place)"                 \
    " from (select 1 as place, 'accepted' as step, r.created_at as at, null as pod_id"                                                    \
    " union all select 2, 'queued', c.published_at, null"                                                                                 \
    " union all select 3, case when r.status = 'FAILED' then 'failed' else 'applied' end, r.updated_at, null where r.status <> 'PENDING'" \
    " union all select 4, 'published', greatest(o.published_at, o.created_at), null where o.published"                                    \
    " union all select 5, 'loaded', " LOADED_AT ", h.pod_id from " PODS_OF_PAIR                                                           \
    " where (h.pair ->> 0)::bigint = o.version) t where t.at is not null)"

/* On the embedded bus: a message that the group has not passed. */
#define MESSAGE                                                                                                      \
    "select jsonb_build_object('kind', 'message', 'engine', 'postgres', 'topic', m.topic, 'partition', m.partition," \
    " 'offset', m.message_offset, 'ahead', m.message_offset - k.position, 'attempts', k.attempts,"                   \
    " 'last_error', k.last_error)"                                                                                   \
    " from platform.bus_cursor k cross join lateral (select * from platform.bus_message b where b.topic = k.topic"   \
    " and b.partition = k.partition and b.message_offset >= k.position offset 0) m"                                  \
    " where k.topic = '" REFDATA_COMMANDS                                                                            \
    "' and m.key = convert_to(r.tenant_id || ':' || r.dict_code, 'UTF8')"                                            \
    " and m.headers[array_position(m.headers, 'event-id') + 1] = r.event_id::text limit 1"
#define CARRIER                                                                                                       \
    "case when r.status = 'PENDING' then jsonb_build_object('apply_is_run', " REFDATA_APPLY_IS_RUN                    \
    ") || coalesce("                                                                                                  \
    "(select jsonb_build_object('kind', 'outbox', 'table', 'refdata.command_outbox', 'id', w.id,"                     \
    " 'attempts', w.attempt_count, 'next_retry_at', platform.rfc3339(w.next_attempt_at), 'last_error', w.last_error)" \
    " from refdata.command_outbox w where w.tenant_id = r.tenant_id and w.dict_code = r.dict_code"                    \
    " and not w.published and w.failed_at is null and w.event_id = r.event_id limit 1),"                              \
    "(" MESSAGE "),"                                                                                                  \
    "(select jsonb_build_object('kind', 'snapshot', 'snapshot_id', s.snapshot_id, 'received', s.received,"            \
    " 'chunks_total', s.chunks_total) from refdata.snapshot s where s.tenant_id = r.tenant_id"                        \
    " and s.dict_code = r.dict_code and s.snapshot_id = r.snapshot_id and s.status = 'PENDING'),"                     \
    "case when c.id is not null then jsonb_build_object('kind', 'message', 'engine', 'kafka',"                        \
    " 'published_at', platform.rfc3339(c.published_at)) end) end"

static const struct ops_column one_update_columns[] = {
    UPDATE_COLUMNS,
    {"snapshot_id", "r.snapshot_id", OPS_UUID, .is_optional = true},
    {"timeline", TIMELINE, .type = OPS_JSON},
    {"carrier", CARRIER, .type = OPS_JSON},
    {.name = NULL},
};

static const struct ops_filter one_update_filters[] = {
    {"event_id", OPS_UUID, "r.event_id = $?", .is_path = true},
    {.name = NULL},
};

/* ---- dictionaries: by dictionary_meta_names ---- */

static const struct ops_filter dictionary_filters[] = {
    {"dict", OPS_TEXT, .sql = "r.dict_code = $?"},
    {.name = NULL},
};

#define REPORTED                                                                                            \
    "left join lateral (select jsonb_agg(jsonb_build_object('pod_id', h.pod_id, 'version', h.pair -> 0,"    \
    " 'loaded_at', platform.rfc3339(" LOADED_AT "), 'last_error', h.pair -> 6) order by h.pod_id) as pods," \
    " (array_agg(h.pair order by (h.pair ->> 0)::bigint desc, (h.pair ->> 1)::bigint desc))[1] as best,"    \
    " max(h.pair ->> 6) as last_error, max((h.pair ->> 7)::bigint) as read_at_s"                            \
    " from " PODS_OF_PAIR " where h.pair is not null) x on true"

static const struct ops_column dictionary_columns[] = {
    {"tenant_id", "r.tenant_id", .type = OPS_TEXT},
    {"dict_code", "r.dict_code", .type = OPS_TEXT},
    {"version", "r.version", .type = OPS_NUMBER},
    {"event_id", "r.last_event_id", OPS_UUID, .is_optional = true},
    {"updated_at", "r.updated_at", .type = OPS_TIME},
    {"items", "x.best -> 2", .type = OPS_JSON},
    {"bytes", "x.best -> 3", .type = OPS_JSON},
    {"digest", "x.best -> 4", .type = OPS_JSON},
    {"loaded_at", "to_timestamp((x.best ->> 1)::bigint / 1000000.0)", .type = OPS_TIME},
    {"freshness_ms", "x.best -> 5", .type = OPS_JSON},
    {"last_error", "x.last_error", .type = OPS_TEXT},
    {"last_read_at", "to_timestamp(x.read_at_s)", .type = OPS_TIME},
    {"held", "x.pods is not null", .type = OPS_BOOL},
    {"pods", "coalesce(x.pods, '[]')", .type = OPS_JSON},
    {.name = NULL},
};

/* ---- the history of an item: scanned by outbox_event_version; as far as events are kept ---- */

static const struct ops_column history_columns[] = {
    {"version", "r.version", .type = OPS_NUMBER},
    {"op", "case when r.keys is null then 'SNAPSHOT' else 'DELTA' end", .type = OPS_TEXT},
    {"event_id", "r.event_id", .type = OPS_UUID},
    {"at", "r.created_at", .type = OPS_TIME},
    {"published_at", "r.published_at", .type = OPS_TIME},
    {.name = NULL},
};

static const struct ops_filter history_filters[] = {
    {"dict_code", OPS_TEXT, "r.dict_code = $?", .is_path = true, .is_indexed = true},
    {"key", OPS_TEXT, "r.keys is null or $? = any(r.keys)", .is_path = true},
    {.name = NULL},
};

/* ---- keys of the built-in table: by its primary key ---- */

static const struct ops_column key_columns[] = {
    {"key", "r.item_key", .type = OPS_TEXT},
    {"bytes", "length(r.payload::text)", .type = OPS_NUMBER},
    {.name = NULL},
};

static const struct ops_filter key_filters[] = {
    {"dict_code", OPS_TEXT, "r.dict_code = $?", .is_path = true},
    {"prefix", OPS_TEXT, .sql = "r.item_key >= $? and r.item_key < $? || chr(1114111)"},
    {.name = NULL},
};

const struct ops_view refdata_views[] = {
    {
        .name = "updates",
        .place = OPS_DATABASES,
        .from = "refdata.update_request r",
        .join = MADE_VERSION,
        .tenant = "r.tenant_id",
        .columns = update_columns,
        .filters = update_filters,
        .keys = {{"r.created_at", OPS_TIME},
                 {"r.event_id", OPS_UUID},
                 {"r.tenant_id collate \"C\"", OPS_TEXT}},
        .is_descending = true,
        .is_scanned = true,
    },
    {
        .name = "updates/{tenant_id}/{event_id}",
        .place = OPS_DATABASES,
        .from = "refdata.update_request r",
        .join = MADE_VERSION " " COMMAND,
        .tenant = "r.tenant_id",
        .columns = one_update_columns,
        .filters = one_update_filters,
        .keys = {{"r.event_id", OPS_UUID}},
        .is_single = true,
        .missing = STATUS_UNKNOWN_UPDATE,
    },
    {
        .name = "dictionaries",
        .place = OPS_DATABASES,
        .from = "refdata.dictionary_meta r",
        .join = REPORTED,
        .tenant = "r.tenant_id collate \"C\"",
        .columns = dictionary_columns,
        .filters = dictionary_filters,
        .keys = {{"r.tenant_id collate \"C\"", OPS_TEXT}, {"r.dict_code collate \"C\"", OPS_TEXT}},
        .is_scanned = true,
        .tenant_is_indexed = true,
    },
    {
        .name = "dictionaries/{tenant_id}/{dict_code}/keys",
        .place = OPS_DATABASES,
        .from = "refdata.dictionary_item r",
        .where = "not r.deleted",
        .tenant = "r.tenant_id",
        .columns = key_columns,
        .filters = key_filters,
        .keys = {{"r.item_key", OPS_TEXT}},
    },
    {
        .name = "dictionaries/{tenant_id}/{dict_code}/items/{key}/history",
        .place = OPS_DATABASES,
        .from = "refdata.outbox_event r",
        .tenant = "r.tenant_id",
        .columns = history_columns,
        .filters = history_filters,
        .keys = {{"r.version", OPS_NUMBER}},
        .is_descending = true,
        .is_scanned = true,
        .tenant_is_indexed = true,
    },
    {.name = NULL},
};
