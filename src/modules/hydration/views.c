/* What operators may list of hydration (kernel/ops.h): lookups, the negative cache, copies. All by the tables' primary keys, which begin with
 * the tenant; of all tenants they are scanned. */
#include "kernel/ops.h"

#define OF_ENTITY                                                                                       \
    {"tenant_id", "r.tenant_id", .type = OPS_TEXT}, {"entity_type", "r.entity_type", .type = OPS_TEXT}, \
        {"entity_id", "r.entity_id", .type = OPS_TEXT},                                                 \
    {                                                                                                   \
        "user_id", "nullif(r.subject, '')", .type = OPS_TEXT, .is_optional = true                       \
    }
#define AND_KIND(kind)                         \
    {                                          \
        "kind", "'" kind "'", .type = OPS_TEXT \
    }

static const struct ops_column flight_columns[] = {
    AND_KIND("flights"),
    OF_ENTITY,
    {"state",
     "case when r.answered then 'answered' when r.window_until <= clock_timestamp() then 'over' else 'asked' end",
     .type = OPS_TEXT},
    {"questions", "r.asked", .type = OPS_NUMBER},
    {"begun_at", "r.begun_at", .type = OPS_TIME},
    {"until", "r.window_until", .type = OPS_TIME},
    {.name = NULL},
};

static const struct ops_column absence_columns[] = {
    AND_KIND("absences"),
    OF_ENTITY,
    {"source_module", "r.source_module", .type = OPS_TEXT},
    {"version", "r.version", .type = OPS_NUMBER},
    {"reason", "case r.reason when 0 then 'deleted_or_never_existed' else 'inaccessible' end",
     .type = OPS_TEXT},
    {"heard_at", "r.heard_at", .type = OPS_TIME},
    {"until", "r.until", .type = OPS_TIME},
    {"state", "case when r.until > clock_timestamp() then 'serves' else 'over' end", .type = OPS_TEXT},
    {.name = NULL},
};

/* Never the entity itself. */
static const struct ops_column copy_columns[] = {
    AND_KIND("copies"),
    OF_ENTITY,
    {"source_module", "r.source_module", .type = OPS_TEXT},
    {"version", "r.version", .type = OPS_NUMBER},
    {"mode", "case r.mode when 0 then 'existence' when 1 then 'partial' else 'full' end", .type = OPS_TEXT},
    {"bytes", "length(r.data)", .type = OPS_NUMBER},
    {"heard_at", "r.heard_at", .type = OPS_TIME},
    {"until", "r.until", .type = OPS_TIME},
    {"state", "case when r.until > clock_timestamp() then 'serves' else 'over' end", .type = OPS_TEXT},
    {.name = NULL},
};

static const struct ops_filter filters[] = {
    {"entity_type", OPS_TEXT, "r.entity_type = $?", .is_indexed = true},
    {"entity_id", OPS_TEXT, "r.entity_id = $?", .is_indexed = true},
    {.name = NULL},
};

#define VIEW(kind, kind_columns)                                                                          \
    {                                                                                                     \
        .name = "hydration", .place = OPS_STORE, .from = "hydration." kind " r", .tenant = "r.tenant_id", \
        .columns = kind_columns, .filters = filters,                                                      \
        .keys = {{"r.tenant_id", OPS_TEXT},                                                               \
                 {"r.entity_type", OPS_TEXT},                                                             \
                 {"r.entity_id", OPS_TEXT},                                                               \
                 {"r.subject", OPS_TEXT}},                                                                \
        .is_scanned = true, .tenant_is_indexed = true, .by = "kind", .is = kind                           \
    }

extern const struct ops_view hydration_views[];
const struct ops_view hydration_views[] = {
    VIEW("flights", flight_columns),
    VIEW("absences", absence_columns),
    VIEW("copies", copy_columns),
    {.name = NULL},
};
