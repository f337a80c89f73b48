/* /v1/ops/outboxes: the tables of all modules, their events by state, and what an operator does about them. */
#include "base/json.h"
#include "base/uuid.h"
#include "kernel/outbox_views.h"
#include "modules/ops/ops.h"

enum { CHANGE_MAX = 100000 };

/* ---- tables ---- */

struct tables {
    struct str tenant;
    const struct module *const *modules;
};

/* One database's part. */
struct tables_part {
    struct arena arena;
    struct buf items;
};

static void put_counts(struct buf *out, const struct ops_site *site, const struct outbox_table *table,
                       const struct kernel_outbox_counts *counts)
{
    json_put_open(out, NULL, '{');
    json_put_member_str(out, "table", str_from(table->name));
    json_put_member_str(out, "module", str_from(table->module));
    json_put_member_str(out, "database", str_from(site->name));
    json_put_member_i64(out, "pending", counts->pending);
    json_put_member_i64(out, "in_flight", counts->in_flight);
    json_put_member_i64(out, "failed", counts->failed);
    json_put_member_bool(out, "more", counts->has_more);
    ops_put_oldest_age(out, counts->oldest_pending_age_s);
    json_put_member_str_or_null(out, "last_error", counts->last_error);
    buf_put_char(out, '}');
}

static enum status count_tables(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    const struct tables *tables = ask->context;
    struct tables_part *part = ask->own;
    enum status status = STATUS_OK;
    for (const struct module *const *module = tables->modules; *module && status == STATUS_OK; module++) {
        const struct outbox_table *const *at = (*module)->outboxes;
        if (!at || (*module)->keeps_store != ask->site->is_store)
            continue;
        for (; *at && status == STATUS_OK; at++) {
            struct kernel_outbox_counts counts;
            status = kernel_outbox_count(conn, *at, tables->tenant, &part->arena, ask->deadline_ns, &counts,
                                         error);
            if (status == STATUS_OK)
                put_counts(&part->items, ask->site, *at, &counts);
        }
    }
    return status;
}

void ops_get_outboxes(struct http_request *request)
{
    struct ops *ops = request->context;
    struct tables tables = {.modules = ops->modules};
    struct buf items = {0}, no_cursor = {0};
    if (!ops_tenant_only(request, &tables.tenant))
        return;
    struct ops_sites *sites = ops_sites_hold(ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct tables_part *parts = arena_zalloc(request->arena, (sites->count + 1) * sizeof *parts);
    for (size_t i = 0; i < sites->count; i++) {
        asks[i] = (struct ops_ask){.site = &sites->items[i], .own = &parts[i]};
        parts[i].arena = ARENA(4096);
    }
    ops_ask_all(ops, asks, sites->count, count_tables, &tables);
    for (size_t i = 0; i < sites->count; i++) {
        ops_add_items(&items, buf_str(&parts[i].items));
        buf_deinit(&parts[i].items);
        arena_deinit(&parts[i].arena);
    }
    ops_send_items(request, &items, &no_cursor, asks, sites->count);
    buf_deinit(&items);
    ops_sites_unref(sites);
}

/* ---- events ---- */

/* NULL: it is answered. */
static const struct outbox_table *find_table(struct http_request *request, const struct module **module)
{
    struct ops *ops = request->context;
    struct str name;
    struct error error = {0};
    const struct outbox_table *table = NULL;
    if (http_request_param(request, "table", &name, &error) == STATUS_OK) {
        table = kernel_outbox_find(ops->modules, name, module);
        if (!table)
            (void)!error_set(&error, STATUS_NOT_FOUND, "there is no outbox of this name");
    }
    if (!table)
        http_send_error(request, &error);
    return table;
}

void ops_get_outbox_events(struct http_request *request)
{
    const struct module *module;
    const struct outbox_table *table = find_table(request, &module);
    enum outbox_state state = OUTBOX_STUCK;
    struct str named;
    bool found = false;
    struct error error = {0};
    if (!table)
        return;
    if (http_request_query(request, STR("state"), &found, &named, &error) == STATUS_OK && found)
        for (int at = 0; at < OUTBOX_STATES; at++)
            if (str_eq(named, str_from(outbox_state_name((enum outbox_state)at))))
                state = (enum outbox_state)at; /* another is refused as the view's */
    const struct ops_view *views[KERNEL_OUTBOX_VIEWS];
    ops_send_walk(request, views, kernel_outbox_events(table, state, request->arena, views));
}

void ops_get_outbox_event(struct http_request *request)
{
    const struct module *module;
    const struct outbox_table *table = find_table(request, &module);
    if (table)
        ops_send_view(request, kernel_outbox_event(table, request->arena));
}

/* ---- changes ---- */

/* The last word of the route's path. A filter's state must be one that the action changes. */
static const struct outbox_action {
    const char *name;
    enum outbox_change change;
    const char *states[2];
} actions[] = {{"retry", OUTBOX_CHANGE_RETRY, {"failed", "stuck"}},
               {"discard", OUTBOX_CHANGE_DISCARD, {"failed", "stuck"}},
               {"republish", OUTBOX_CHANGE_REPUBLISH, {"published", ""}},
               {"unlock", OUTBOX_CHANGE_UNLOCK, {"in_flight", "stuck"}}};

struct outbox_work {
    const struct outbox_table *table;
    const struct outbox_action *action;
    struct outbox_selection selection;
    struct buf ids;
};

static enum status read_ids(struct outbox_work *work, const struct json_value *ids, struct arena *arena,
                            struct error *error)
{
    bool is_uuid = strcmp(work->table->id.type, "uuid") == 0;
    struct json_iter it;
    struct json_value id;
    json_iter_init(&it, ids);
    while (json_iter_next(&it, NULL, &id)) {
        struct str text = id.type == JSON_STRING ? json_str_decode(id.raw, arena) : id.raw;
        struct uuid uuid;
        int64_t number;
        if (is_uuid ? !uuid_parse(text, &uuid) : !str_to_i64(text, &number))
            return error_set_field(error, STATUS_BAD_REQUEST, "ids", "ids of this table are %s",
                                   is_uuid ? "UUIDs" : "numbers");
        db_array_put(&work->ids, text);
    }
    work->selection.ids = db_array_end(&work->ids);
    return STATUS_OK;
}

static enum status read_filter(struct outbox_work *work, const struct json_value *filter, struct arena *arena,
                               struct error *error)
{
    struct ops_question question = {.limit = 0};
    const struct ops_view *views[KERNEL_OUTBOX_VIEWS];
    const char *const *fitting = work->action->states;
    (void)kernel_outbox_events(work->table, OUTBOX_FAILED, arena, views);
    enum status status = ops_filter_read(views[0], filter, arena, &question, error);
    struct str state = question.values[0];
    if (status == STATUS_OK && state.ptr && !str_eq(state, str_from(fitting[0])) &&
        !str_eq(state, str_from(fitting[1])))
        status = error_set_field(error, STATUS_BAD_REQUEST, "state",
                                 "state is one that this action does not change");
    work->selection.is_narrow =
        str_eq(state, work->action->change == OUTBOX_CHANGE_UNLOCK ? STR("stuck") : STR("failed"));
    work->selection.event_type = question.values[1];
    work->selection.aggregate = question.values[2];
    work->selection.since = question.values[3];
    work->selection.until = question.values[4];
    return status;
}

static enum status run_work(struct ops_change *change, struct db_conn *conn, int64_t deadline_ns,
                            struct error *error)
{
    struct outbox_work *work = change->context;
    enum status status = (change->is_dry_run ? outbox_change_count : outbox_change)(
        conn, work->table, work->action->change, &work->selection, deadline_ns, &change->matched, error);
    change->changed = change->matched;
    change->has_more = change->matched >= CHANGE_MAX;
    return status;
}

void ops_change_outbox(struct http_request *request)
{
    const struct module *module;
    struct outbox_work work = {.table = find_table(request, &module), .action = actions};
    struct ops_change change = {.context = &work, .run = run_work};
    struct error error = {0};
    if (!work.table)
        return;
    while (strcmp(strrchr(request->route->path, '/') + 1, work.action->name) != 0)
        work.action++;
    change.action = arena_printf(request->arena, "outbox.%s", work.action->name).ptr;
    enum status status = ops_change_read(request, &change, &error);
    if (status == STATUS_OK)
        status = change.has_ids ? read_ids(&work, &change.ids, request->arena, &error)
                                : read_filter(&work, &change.filter, request->arena, &error);
    work.selection.tenant = change.tenant;
    work.selection.rows_max = CHANGE_MAX;
    change.target = str_from(work.table->name);
    if (status == STATUS_OK)
        ops_send_change(request, &change, module->keeps_store ? OPS_STORE : OPS_DATABASES);
    else
        http_send_error(request, &error);
    buf_deinit(&work.ids);
}
