/* `freshet outbox`: events that wait to be published or failed, and what an operator does about them (O4). Every change has its row in
 * platform.ops_audit, and is logged on standard error. IDs are those of the list: where the call names no table, the one is changed that has
 * events of these IDs in a state that the change is for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/admin.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/uuid.h"
#include "kernel/store.h"
#include "outbox/outbox.h"

struct outbox_command {
    struct admin admin;
    const char *state_name, *table_name, *aggregate, *since, *first, *last;
    enum outbox_state state;
    const struct outbox_table *table; /* NULL = all; of changes: the one that has the IDs */
    struct outbox_selection selection;
    struct buf ids_text, mistake;
    char since_text[CLOCK_RFC3339_BYTES];
    size_t listed;
    /* of a change by IDs without a table: where they are */
    bool is_search;
    size_t found_tables;
    struct buf found_names;
    const struct admin_target *found_target;
    const struct outbox_table *found;
};

static struct outbox_command *command_of(struct admin *admin)
{
    return CONTAINER_OF(admin, struct outbox_command, admin);
}

/* ---- tables ---- */

/* Are the IDs given of that table's type? */
static bool ids_fit(const struct outbox_table *table, const struct option_words *ids)
{
    bool is_uuid = strcmp(table->id.type, "uuid") == 0;
    for (size_t i = 0; i < ids->count; i++) {
        struct uuid uuid;
        int64_t number;
        struct str id = str_from(ids->items[i]);
        if (is_uuid ? !uuid_parse(id, &uuid) : !str_to_i64(id, &number))
            return false;
    }
    return true;
}

/* The first in the order of the modules, by its name (NULL = any) and IDs (NULL = any). */
static const struct outbox_table *find_table(const char *name, const struct option_words *ids)
{
    for (const struct module *const *module = app_modules; *module; module++)
        for (const struct outbox_table *const *at = (*module)->outboxes; at && *at; at++)
            if ((!name || strcmp((*at)->name, name) == 0) && (!ids || ids_fit(*at, ids)))
                return *at;
    return NULL;
}

/* ---- one database ---- */

static void print_event(struct admin *admin, const struct outbox_table *table, const struct db_result *rows,
                        size_t row)
{
    enum { ID, AGGREGATE, SEQUENCE, TYPE, ATTEMPTS, CLAIMS, AGE, ERROR, STATE, LOCKED_BY, NEXT_RETRY };
    const char *last_error = admin_text(admin, rows, row, ERROR, ""),
               *locked_by = admin_text(admin, rows, row, LOCKED_BY, ""),
               *next_retry = admin_text(admin, rows, row, NEXT_RETRY, "");
    printf("%s %s id=%s of=%s seq=%s type=%s state=%s attempts=%s claims=%s age=%ss%s%s%s%s%s%s\n",
           admin->target->target.name, table->name, admin_text(admin, rows, row, ID, ""),
           admin_text(admin, rows, row, AGGREGATE, ""), admin_text(admin, rows, row, SEQUENCE, ""),
           admin_text(admin, rows, row, TYPE, ""), admin_text(admin, rows, row, STATE, ""),
           admin_text(admin, rows, row, ATTEMPTS, ""), admin_text(admin, rows, row, CLAIMS, ""),
           admin_text(admin, rows, row, AGE, ""), *locked_by ? " locked_by=" : "", locked_by,
           *next_retry ? " next_retry=" : "", next_retry, *last_error ? " error=" : "", last_error);
}

static enum status list_outboxes(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct outbox_command *command = command_of(admin);
    enum status status = STATUS_OK;
    for (const struct outbox_table *const *at = admin->target->module->outboxes; *at && status == STATUS_OK;
         at++) {
        struct db_result *rows = NULL;
        if (command->table ? command->table != *at : !ids_fit(*at, &admin->ids))
            continue;
        status =
            outbox_list(conn, *at, command->state, &command->selection, admin->deadline_ns, &rows, error);
        size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
        for (size_t i = 0; i < count; i++)
            print_event(admin, *at, rows, i);
        command->listed += count;
        if (status == STATUS_OK)
            admin_note_limit(admin, count);
        db_result_free(rows);
        /* A database that was not migrated for the module has no such table. */
        if (status == STATUS_DB_ERROR && !command->table && strcmp(db_sqlstate(conn), "42P01") == 0)
            status = STATUS_OK;
    }
    bool is_last = admin->target == admin->targets + admin->target_count - 1;
    if (status == STATUS_OK && is_last && command->listed == 0 && command->state == OUTBOX_STUCK)
        (void)app_fail(
            admin->name,
            "nothing is stuck: no event has failed, waits after a failure, or is in flight for too long");
    else if (status == STATUS_OK && is_last && command->listed == 0)
        (void)app_fail(admin->name, "there are no %s events", command->state_name);
    return status;
}

/* Which tables of this database have events of these IDs that can be changed so? */
static enum status search_outboxes(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct outbox_command *command = command_of(admin);
    enum status status = STATUS_OK;
    for (const struct outbox_table *const *at = admin->target->module->outboxes; *at && status == STATUS_OK;
         at++) {
        int64_t count = 0;
        if (!ids_fit(*at, &admin->ids))
            continue;
        status = outbox_change_count(conn, *at, (enum outbox_change)admin->action->change,
                                     &command->selection, admin->deadline_ns, &count, error);
        if (status == STATUS_DB_ERROR && strcmp(db_sqlstate(conn), "42P01") == 0)
            status = STATUS_OK;
        if (count == 0)
            continue;
        buf_printf(&command->found_names, "%s%s of %s", command->found_tables++ ? ", " : "", (*at)->name,
                   admin->target->target.name);
        command->found = *at;
        command->found_target = admin->target;
    }
    return status;
}

/* The change and its row of the audit; a dry run counts. */
static enum status run_change(struct outbox_command *command, struct db_conn *conn, int64_t *count,
                              struct error *error)
{
    struct admin *admin = &command->admin;
    enum outbox_change change = (enum outbox_change)admin->action->change;
    if (admin->is_dry_run)
        return outbox_change_count(conn, command->table, change, &command->selection, admin->deadline_ns,
                                   count, error);
    enum status status = db_begin(conn, DB_READ_COMMITTED, admin->deadline_ns, error);
    if (status == STATUS_OK)
        status = outbox_change(conn, command->table, change, &command->selection, admin->deadline_ns, count,
                               error);
    if (status == STATUS_OK && *count > 0) {
        const struct admin_filter filter[] = {{"aggregate", command->aggregate},
                                              {"since", command->since},
                                              {"from", command->first},
                                              {"to", command->last},
                                              {NULL, NULL}};
        char action[32];
        snprintf(action, sizeof action, "outbox.%s", admin->action->name);
        status = admin_audit(admin, conn, action, command->table->name, filter, *count, error);
    }
    if (status == STATUS_OK)
        return db_commit(conn, admin->deadline_ns, error);
    db_rollback(conn);
    return status;
}

static enum status change_outbox(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct outbox_command *command = command_of(admin);
    const char *user = getenv("USER");
    int64_t count = 0;
    if (command->is_search)
        return search_outboxes(admin, conn, error);
    enum status status = run_change(command, conn, &count, error);
    if (status != STATUS_OK)
        return admin_explain(conn, status, error);
    if (!admin->is_dry_run)
        log_info("outbox_changed_by_hand", LOG_CSTR("action", admin->action->name),
                 LOG_CSTR("database", admin->target->target.name), LOG_CSTR("table", command->table->name),
                 LOG_INT("events", count), LOG_CSTR("user", user ? user : ""), LOG_INT("uid", getuid()));
    printf("%s %s: %lld %s%s\n", admin->target->target.name, command->table->name, (long long)count,
           admin->is_dry_run ? "would be changed: " : "", admin->action->done);
    if (count < (int64_t)admin->ids.count)
        return error_set(
            error, STATUS_NOT_FOUND,
            "%lld of the events named do not exist, or are in another state: `freshet outbox list`"
            " shows it, `unlock` is for those in flight",
            (long long)admin->ids.count - (long long)count);
    return STATUS_OK;
}

/* Where the module has the table of the call, or any. */
static void add_module_target(const struct db_target *target, const struct module *module, void *arg)
{
    struct admin *admin = arg;
    const struct outbox_table *only = command_of(admin)->table;
    const struct outbox_table *const *table = module->outboxes;
    while (table && *table && only && only != *table)
        table++;
    if (table && *table)
        admin_add_target(admin, target, module);
}

static void find_outbox_targets(struct admin *admin, struct config *config)
{
    struct db_target store;
    bool has_store = kernel_store_find(config, app_modules, &store);
    kernel_each_database(config, app_modules, add_module_target, admin);
    for (const struct module *const *at = app_modules; *at && has_store; at++)
        if ((*at)->keeps_store)
            add_module_target(&store, *at, admin);
}

/* ---- IDs without a table ---- */

static bool searches_outboxes(struct admin *admin)
{
    return command_of(admin)->is_search;
}

/* After all databases were looked through. */
static int settle_search(struct admin *admin)
{
    struct outbox_command *command = command_of(admin);
    command->is_search = false;
    if (command->found_tables == 0)
        return app_fail(admin->name, "no event of these IDs exists in a state that can be changed so:"
                                     " `freshet outbox list` shows them, `unlock` is for those in flight");
    if (command->found_tables > 1)
        return app_misuse(admin->name, "events of these IDs are in %.*s: name one by --table and --database",
                          STR_ARG(buf_str(&command->found_names)));
    command->table = command->found;
    admin->targets[0] = *command->found_target;
    admin->target_count = 1;
    return 0;
}

/* ---- the call ---- */

/* Changes are about one table: that of the IDs, else refdata's own events unless another is named. */
static const char *take_table(struct outbox_command *command)
{
    bool changes = command->admin.action->done != NULL;
    command->is_search = changes && !command->table_name && command->admin.ids.count > 0;
    if (command->table_name || (changes && !command->is_search))
        command->table = find_table(command->table_name, NULL);
    if (!command->table_name || command->table)
        return NULL;
    buf_put_str(&command->mistake, STR("--table must be one of:"));
    for (const struct module *const *module = app_modules; *module; module++)
        for (const struct outbox_table *const *at = (*module)->outboxes; at && *at; at++)
            buf_printf(&command->mistake, " %s", (*at)->name);
    buf_put_char(&command->mistake, '\0');
    return buf_str(&command->mistake).ptr;
}

static const char *take_ids(struct outbox_command *command)
{
    const struct option_words *ids = &command->admin.ids;
    if (command->table && !ids_fit(command->table, ids))
        return strcmp(command->table->id.type, "uuid") == 0
                   ? "an ID of that table is a UUID: `freshet outbox list` shows them"
                   : "an ID of that table is a number: `freshet outbox list` shows them; --table names another table";
    if (!command->table && !find_table(NULL, ids))
        return "an ID is a number or a UUID: `freshet outbox list` shows them";
    for (size_t i = 0; i < ids->count; i++)
        db_array_put(&command->ids_text, str_from(ids->items[i]));
    if (ids->count > 0)
        command->selection.ids = db_array_end(&command->ids_text);
    return NULL;
}

static const char *check_outbox(struct admin *admin)
{
    struct outbox_command *command = command_of(admin);
    struct outbox_selection *selection = &command->selection;
    int64_t number;
    command->state = OUTBOX_PENDING;
    while (strcmp(command->state_name, outbox_state_name(command->state)) != 0)
        if (command->state++ == OUTBOX_STUCK)
            return "--state must be stuck, failed, pending, in_flight or published";
    const char *mistake = take_table(command);
    if (!mistake)
        mistake = take_ids(command);
    if (mistake)
        return mistake;
    if (command->since) { /* a time, or how long ago */
        int64_t unix_us;
        if (!options_moment(command->since, &unix_us))
            return "--since needs a time, 2026-01-31T12:00:00Z, or how long ago: 90s, 15m, 1h, 7d";
        clock_rfc3339(unix_us, command->since_text);
        selection->since = str_from(command->since_text);
    }
    selection->first = str_from(command->first);
    selection->last = str_from(command->last);
    if ((command->first && !str_to_i64(selection->first, &number)) ||
        (command->last && !str_to_i64(selection->last, &number)))
        return "--from and --to need numbers: seq in `freshet outbox list`";
    selection->aggregate = str_from(command->aggregate);
    selection->rows_max = admin->rows_max;
    admin->is_narrowed = admin->ids.count > 0 || command->first || command->last || command->aggregate;
    admin->all |= command->since && !admin->is_narrowed; /* all since then */
    return NULL;
}

int app_outbox(int argc, char **argv)
{
    struct outbox_command command = {.state_name = "stuck"};
    static const struct admin_action actions[] = {
        {.name = "list", .run = list_outboxes},
        {"retry", "will be tried again", change_outbox, OUTBOX_CHANGE_RETRY},
        {"discard", "discarded", change_outbox, OUTBOX_CHANGE_DISCARD},
        {"republish", "will be published again", change_outbox, OUTBOX_CHANGE_REPUBLISH},
        {"unlock", "freed from their lease", change_outbox, OUTBOX_CHANGE_UNLOCK},
        {.name = NULL},
    };
    const struct option_row rows[] = {
        {"--database", "NAME",
         "only this postgres block, or `store`; required for changes of a table in several",
         .into = &command.admin.only_database},
        {"--state", "STATE",
         "list: stuck (default: failed, waiting after a failure, or in flight for over " OUTBOX_LEASED_LONG_SQL
         "), failed, pending, in_flight or published",
         .into = &command.state_name, .choices = "stuck failed pending in_flight published"},
        {"--table", "NAME",
         "only this table, as in the list (default for changes: the one that has the IDs, else refdata.outbox_event)",
         .into = &command.table_name},
        {"--of", "AGGREGATE", "only events of this dictionary, entitlement …, as in the list",
         .into = &command.aggregate},
        {"--since", "TIME", "only events created since 2026-01-31T12:00:00Z, or in the last 90s, 15m, 7d",
         .into = &command.since},
        {"--from", "SEQ", "only from this sequence on", .into = &command.first},
        {"--to", "SEQ", "only up to this sequence", .into = &command.last},
        ADMIN_ROWS(command.admin),
    };
    int exit_status = admin_main(
        argc, argv, &command.admin,
        &(struct admin_command){
            .name = "outbox",
            .summary =
                "Lists committed events that have to be published, and changes them. `retry` tries failed events, and those that\n"
                "wait after a failure, again from the start, `discard` drops failed events, `republish` publishes published events once more, `unlock`\n"
                "ends the lease of events that a dead worker holds.",
            .actions = actions,
            .rows = rows,
            .choose = "IDs, --from and --to, --of, --since, or --all",
            .check = check_outbox,
            .find_targets = find_outbox_targets,
            .searches = searches_outboxes,
            .settle = settle_search,
        });
    buf_deinit(&command.ids_text);
    buf_deinit(&command.mistake);
    buf_deinit(&command.found_names);
    return exit_status;
}
