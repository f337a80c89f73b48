/* Dead letters of notification as operators see them (kernel/dead_letters.h): messages that could not be handled, and notifications that
 * could not be delivered. */
#include "kernel/ops.h"
#include "kernel/dead_letters.h"
#include "modules/notification/dlq.h"

/* ---- filters: those that wait are in an index by their creation, the others in one by their decision ---- */

static const struct ops_choice states[] = {
    {"open", NULL}, {"requeued", NULL}, {"discarded", NULL}, {NULL, NULL}};
#define FILTERS(reason)                                                                                    \
    {                                                                                                      \
        {"state", OPS_TEXT, "true", .choices = states, .fallback = "open"},                                \
            {"reason", OPS_TEXT, .sql = "position($? in coalesce(" reason ", '')) > 0"},                   \
            {"from", OPS_TIME, .sql = "r.created_at >= $?"}, {"to", OPS_TIME, .sql = "r.created_at < $?"}, \
            {.name = NULL},                                                                                \
    }
static const struct ops_filter message_filters[] = FILTERS("r.reason"),
                               delivery_filters[] = FILTERS("r.last_error");
static const struct ops_filter message_id[] = {{"id", OPS_NUMBER, "r.dlq_id = $?", .is_path = true},
                                               {.name = NULL}},
                               delivery_id[] = {{"id", OPS_UUID, "r.notification_id = $?", .is_path = true},
                                                {.name = NULL}};

/* ---- columns ---- */

#define STATE "case r.status when 'DEAD' then 'open' when 'DISCARDED' then 'discarded' else 'requeued' end"
#define MESSAGE_COLUMNS                                                                                   \
    {"id", "r.dlq_id::text", .type = OPS_TEXT}, {"topic", "r.topic", .type = OPS_TEXT},                   \
        {"partition", "r.partition", .type = OPS_NUMBER}, {"offset", "r.stream_seq", .type = OPS_NUMBER}, \
        {"key", "encode(r.message_key, 'escape')", .type = OPS_TEXT},                                     \
        {"reason", "r.reason", .type = OPS_TEXT}, {"at", "r.created_at", .type = OPS_TIME},               \
        {"state", STATE, .type = OPS_TEXT}, {"event_id", "r.event_id", OPS_TEXT, true},                   \
        {"event_type", "r.event_type", OPS_TEXT, true}, {"tenant_id", "r.tenant_id", OPS_TEXT, true},     \
        {"decided_at", "r.decided_at", OPS_TIME, true},                                                   \
    {                                                                                                     \
        "bytes", "octet_length(r.payload)", .type = OPS_NUMBER                                            \
    }
#define DELIVERY_COLUMNS                                                                                   \
    {"id", "r.notification_id::text", .type = OPS_TEXT}, {"topic", "null::text", .type = OPS_TEXT},        \
        {"partition", "null::bigint", .type = OPS_NUMBER}, {"offset", "null::bigint", .type = OPS_NUMBER}, \
        {"key", "r.user_id", .type = OPS_TEXT}, {"reason", "r.last_error", .type = OPS_TEXT},              \
        {"at", "r.created_at", .type = OPS_TIME}, {"state", STATE, .type = OPS_TEXT},                      \
        {"event_id", "r.event_id::text", OPS_TEXT, true}, {"event_type", "r.event_type", OPS_TEXT, true},  \
        {"tenant_id", "r.tenant_id", OPS_TEXT, true}, {"decided_at", "r.decided_at", OPS_TIME, true},      \
    {                                                                                                      \
        "bytes", "octet_length(r.payload_json::text)", .type = OPS_NUMBER                                  \
    }

static const struct ops_column message_columns[] = {MESSAGE_COLUMNS, {.name = NULL}},
                               delivery_columns[] = {DELIVERY_COLUMNS, {.name = NULL}};
static const struct ops_column message_whole[] = {
    MESSAGE_COLUMNS,
    {"payload", "replace(encode(substr(r.payload, 1, 65536), 'base64'), E'\\n', '')", .type = OPS_TEXT},
    {"payload_encoding", "'base64'", .type = OPS_TEXT},
    {"payload_truncated", "case when octet_length(r.payload) > 65536 then true end", OPS_BOOL, true},
    {"headers", "r.headers", .type = OPS_JSON},
    {.name = NULL},
};
static const struct ops_column delivery_whole[] = {
    DELIVERY_COLUMNS,
    {"payload", "substr(r.payload_json::text, 1, 65536)", .type = OPS_TEXT},
    {"payload_truncated", "case when length(r.payload_json::text) > 65536 then true end", OPS_BOOL, true},
    {"headers", "'{}'::jsonb", .type = OPS_JSON},
    {.name = NULL},
};

/* ---- views ---- */

#define MESSAGES "notification.notification_nats_dlq"
#define DELIVERIES "notification.notification_dlq"
#define MESSAGE_LIST(state, is, at)                                                                         \
    {                                                                                                       \
        .name = "dead-letters/" MESSAGES "/" state, .place = OPS_STORE, .from = MESSAGES " r", .where = is, \
        .tenant = "r.tenant_id", .columns = message_columns, .filters = message_filters,                    \
        .keys = {{at, OPS_TIME}, {"r.dlq_id", OPS_NUMBER}}, .is_descending = true, .is_scanned = true       \
    }
#define DELIVERY_LIST(state, is, at)                                                                         \
    {                                                                                                        \
        .name = "dead-letters/" DELIVERIES "/" state, .place = OPS_STORE, .from = DELIVERIES " r",           \
        .where = is, .tenant = "r.tenant_id", .columns = delivery_columns, .filters = delivery_filters,      \
        .keys = {{at, OPS_TIME}, {"r.notification_id", OPS_UUID}}, .is_descending = true, .is_scanned = true \
    }
/* Conditions imply those of the partial indexes. */
#define DECIDED(word) "r.status = '" word "' and r.status in ('REQUEUED', 'DISCARDED')"
static const struct ops_view open_messages = MESSAGE_LIST("open", "r.status = 'DEAD'", "r.created_at"),
                             requeued_messages =
                                 MESSAGE_LIST("requeued", DECIDED("REQUEUED"), "r.decided_at"),
                             requeuing_messages = MESSAGE_LIST(
                                 "requeued", "r.status in ('REQUEUE', 'PUBLISHING')", "r.decided_at"),
                             discarded_messages =
                                 MESSAGE_LIST("discarded", DECIDED("DISCARDED"), "r.decided_at"),
                             open_deliveries = DELIVERY_LIST("open", "r.status = 'DEAD'", "r.created_at"),
                             requeued_deliveries =
                                 DELIVERY_LIST("requeued", DECIDED("REQUEUED"), "r.decided_at"),
                             discarded_deliveries =
                                 DELIVERY_LIST("discarded", DECIDED("DISCARDED"), "r.decided_at"),
                             one_message = {.name = "dead-letters/" MESSAGES "/{id}",
                                            .place = OPS_STORE,
                                            .from = MESSAGES " r",
                                            .tenant = "r.tenant_id",
                                            .columns = message_whole,
                                            .filters = message_id,
                                            .keys = {{"r.dlq_id", OPS_NUMBER}},
                                            .is_single = true},
                             one_delivery = {.name = "dead-letters/" DELIVERIES "/{id}",
                                             .place = OPS_STORE,
                                             .from = DELIVERIES " r",
                                             .tenant = "r.tenant_id",
                                             .columns = delivery_whole,
                                             .filters = delivery_id,
                                             .keys = {{"r.notification_id", OPS_UUID}},
                                             .is_single = true};

/* ---- changes ---- */

static enum status change_letters(const struct kernel_dead_table *table, struct db_conn *conn, bool requeues,
                                  bool is_dry_run, const struct dead_choice *choice, struct str who,
                                  struct str why, int64_t deadline_ns, int64_t *count, struct error *error)
{
    bool of_deliveries = table->is_uuid;
    const struct notification_dlq_selection selection = {.messages = of_deliveries ? STR_NONE : choice->ids,
                                                         .deliveries = of_deliveries ? choice->ids : STR_NONE,
                                                         .reason = choice->reason,
                                                         .tenant = choice->tenant,
                                                         .from = choice->from,
                                                         .to = choice->to,
                                                         .rows_max = choice->rows_max};
    if (is_dry_run)
        return notification_dlq_count(conn, of_deliveries, &selection, deadline_ns, count, error);
    return notification_dlq_change_in_tx(conn, requeues ? NOTIFICATION_DLQ_REQUEUE : NOTIFICATION_DLQ_DISCARD,
                                         of_deliveries, &selection, who, why, deadline_ns, count, error);
}

#define COUNT(table)                                                                               \
    DB_STATEMENT("SELECT count(*), (extract(epoch FROM min(created_at)) * 1000000)::bigint FROM (" \
                 "SELECT created_at FROM " table " WHERE status = 'DEAD'"                          \
                 " AND ($1::text IS NULL OR tenant_id = $1) ORDER BY created_at LIMIT $2) c")

const struct kernel_dead_table notification_dead_tables[] = {
    {.name = MESSAGES,
     .kind = "notification_message",
     .lists = {[DEAD_OPEN] = {&open_messages},
               [DEAD_REQUEUED] = {&requeued_messages, &requeuing_messages},
               [DEAD_DISCARDED] = {&discarded_messages}},
     .one = &one_message,
     .change = change_letters,
     .count = COUNT(MESSAGES)},
    {.name = DELIVERIES,
     .kind = "notification_delivery",
     .is_uuid = true,
     .lists = {[DEAD_OPEN] = {&open_deliveries},
               [DEAD_REQUEUED] = {&requeued_deliveries},
               [DEAD_DISCARDED] = {&discarded_deliveries}},
     .one = &one_delivery,
     .change = change_letters,
     .count = COUNT(DELIVERIES)},
    {.name = NULL},
};
