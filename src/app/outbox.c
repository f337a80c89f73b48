/* `freshet outbox`: events that wait to be published or failed, and what an operator does about them (O4). Every change is
 * logged on standard error: user, action, number of events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/admin.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/uuid.h"
#include "kernel/store.h"
#include "outbox/outbox.h"

struct outbox_command {
    struct admin admin;
    const char *state_name, *table_name, *aggregate, *since, *first, *last;
    enum outbox_state state;
    const struct outbox_table *table; /* NULL = all; for changes never */
    struct outbox_selection selection;
    struct buf ids_text, mistake;
    char since_text[CLOCK_RFC3339_BYTES];
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
        for (size_t i = 0; i < count; i++) {
            const char *last_error = admin_text(admin, rows, i, 7, "");
            printf("%s %s id=%s of=%s seq=%s type=%s state=%s attempts=%s claims=%s age=%ss%s%s\n",
                   admin->target->target.name, (*at)->name, admin_text(admin, rows, i, 0, ""),
                   admin_text(admin, rows, i, 1, ""), admin_text(admin, rows, i, 2, ""),
                   admin_text(admin, rows, i, 3, ""), command->state_name, admin_text(admin, rows, i, 4, ""),
                   admin_text(admin, rows, i, 5, ""), admin_text(admin, rows, i, 6, ""),
                   *last_error ? " error=" : "", last_error);
        }
        if (status == STATUS_OK)
            admin_note_limit(admin, count);
        db_result_free(rows);
        /* A database that was not migrated for the module has no such table. */
        if (status == STATUS_DB_ERROR && !command->table && strcmp(db_sqlstate(conn), "42P01") == 0)
            status = STATUS_OK;
    }
    return status;
}

static enum status change_outbox(struct admin *admin, struct db_conn *conn, struct error *error)
{
    struct outbox_command *command = command_of(admin);
    const char *user = getenv("USER");
    int64_t count = 0;
    enum status status = outbox_change(conn, command->table, (enum outbox_change)admin->action->change,
                                       &command->selection, admin->deadline_ns, &count, error);
    if (status != STATUS_OK)
        return status;
    log_info("outbox_changed_by_hand", LOG_CSTR("action", admin->action->name),
             LOG_CSTR("database", admin->target->target.name), LOG_CSTR("table", command->table->name),
             LOG_INT("events", count), LOG_CSTR("user", user ? user : ""), LOG_INT("uid", getuid()));
    printf("%s %s: %lld %s\n", admin->target->target.name, command->table->name, (long long)count,
           admin->action->done);
    if (count < (int64_t)admin->ids.count)
        return error_set(error, STATUS_NOT_FOUND,
                         "%lld of the events named do not exist, or are in another state",
                         (long long)admin->ids.count - (long long)count);
    return STATUS_OK;
}

struct target_walk {
    struct admin *admin;
    const struct module *module;
};

static void add_module_target(const struct db_target *target, void *arg)
{
    const struct target_walk *walk = arg;
    admin_add_target(walk->admin, target, walk->module);
}

static void find_outbox_targets(struct admin *admin, struct config *config)
{
    const struct outbox_table *only = command_of(admin)->table;
    struct db_target store;
    for (const struct module *const *at = app_modules; *at; at++) {
        const struct outbox_table *const *table = (*at)->outboxes;
        while (table && *table && only && only != *table)
            table++;
        if (!table || !*table)
            continue;
        if (!(*at)->keeps_store)
            (*at)->each_database(config, config_section(config, (*at)->section->name), add_module_target,
                                 &(struct target_walk){admin, *at});
        else if (kernel_store_find(config, app_modules, &store))
            admin_add_target(admin, &store, *at);
    }
}

/* ---- the call ---- */

/* Changes are about one table: refdata's own events unless another is named. */
static const char *take_table(struct outbox_command *command)
{
    bool changes = command->admin.action->done != NULL;
    if (command->table_name || changes)
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
        if (command->state++ == OUTBOX_FAILED)
            return "--state must be failed, pending, in_flight or published";
    const char *mistake = take_table(command);
    if (!mistake)
        mistake = take_ids(command);
    if (mistake)
        return mistake;
    if (command->since) { /* a time, or how long ago */
        int64_t unix_us = 0, ago_ms = 0;
        if (options_duration(command->since, 3650 * OPTION_DAY_MS, &ago_ms))
            unix_us = clock_unix_us() - ago_ms * 1000;
        else if (!clock_rfc3339_parse(str_from(command->since), &unix_us))
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
    struct outbox_command command = {.state_name = "failed"};
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
        {"--state", "STATE", "list: failed (default), pending, in_flight or published",
         .into = &command.state_name, .choices = "failed pending in_flight published"},
        {"--table", "NAME", "only this table, as in the list (default for changes: refdata.outbox_event)",
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
                "Lists committed events that have to be published, and changes them. `retry` tries failed events again\n"
                "from the start, `discard` drops failed events, `republish` publishes published events once more, `unlock`\n"
                "ends the lease of events that a dead worker holds.",
            .actions = actions,
            .rows = rows,
            .choose = "IDs, --from and --to, --of, --since, or --all",
            .check = check_outbox,
            .find_targets = find_outbox_targets,
        });
    buf_deinit(&command.ids_text);
    buf_deinit(&command.mistake);
    return exit_status;
}
