/* `freshet outbox`: what waits to be published, what failed for good, and what an operator does about it
 * (O4). Works on the tables of the configured databases themselves, whether or not anything serves. What is
 * changed is said on standard error as a log line: who, what, how many. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/modules.h"
#include "app/options.h"
#include "base/clock.h"
#include "base/log.h"
#include "modules/refdata/catalog.h"
#include "modules/refdata/commands.h"
#include "modules/refdata/relay/relay.h"

enum { TIMEOUT_MS = 60000, LIST_MAX = 100, CHANGE_MAX = 100000, ROWS_LIMIT = 10000000 };

typedef enum status change_fn(struct db_conn *conn, const struct outbox_table *table,
                              const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                              struct error *error);

static const struct action {
    const char *name, *done;
    change_fn *change; /* NULL = list */
} actions[] = {
    {"list", NULL, NULL},
    {"retry", "will be tried again", outbox_retry},
    {"discard", "given up for good", outbox_discard},
    {"republish", "will be published again", outbox_republish},
    {"unlock", "freed from their lease", outbox_unlock},
};

/* The first is the one that changes are about unless --table says otherwise. */
static const struct outbox_table *const tables[] = {&refdata_outbox_table, &refdata_command_table};

struct outbox_command {
    const struct action *action;
    const char *config, *state, *database, *table_name, *of, *from, *to, *limit;
    bool all;
    struct option_words ids;
    enum outbox_state state_wanted;
    const struct outbox_table *table; /* NULL = all */
    struct outbox_selection selection;
    struct buf ids_text;
};

/* ---- one database ---- */

static void print_rows(struct str database, const struct outbox_table *table,
                       const struct outbox_command *command, const struct db_result *rows)
{
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        struct str error = db_result_is_null(rows, i, 7) ? STR("") : db_result_str(rows, i, 7);
        printf("%.*s %s id=%s of=%s seq=%s type=%s state=%s attempts=%s claims=%s age=%ss%s%.*s\n",
               STR_ARG(database), table->name, db_result_str(rows, i, 0).ptr, db_result_str(rows, i, 1).ptr,
               db_result_str(rows, i, 2).ptr, db_result_str(rows, i, 3).ptr,
               outbox_state_name(command->state_wanted), db_result_str(rows, i, 4).ptr,
               db_result_str(rows, i, 5).ptr, db_result_str(rows, i, 6).ptr, error.len ? " error=" : "",
               STR_ARG(error));
    }
}

static enum status list(struct db_conn *conn, struct str database, const struct outbox_table *table,
                        const struct outbox_command *command, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = outbox_list(conn, table, command->state_wanted, &command->selection,
                                     clock_deadline_ms(TIMEOUT_MS), &rows, error);
    if (status == STATUS_OK) {
        print_rows(database, table, command, rows);
        if ((int64_t)db_result_rows(rows) == command->selection.rows_max)
            fprintf(stderr, "freshet outbox list: these are the first %lld; --limit shows more\n",
                    (long long)command->selection.rows_max);
    }
    db_result_free(rows);
    return status;
}

static enum status list_tables(struct db_conn *conn, struct str database,
                               const struct outbox_command *command, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof tables / sizeof *tables && status == STATUS_OK; i++)
        if (!command->table || command->table == tables[i])
            status = list(conn, database, tables[i], command, error);
    return status;
}

static enum status change(struct db_conn *conn, struct str database, const struct outbox_command *command,
                          struct error *error)
{
    const struct outbox_table *table = command->table ? command->table : tables[0];
    int64_t count = 0;
    enum status status = command->action->change(conn, table, &command->selection,
                                                 clock_deadline_ms(TIMEOUT_MS), &count, error);
    if (status != STATUS_OK)
        return status;
    const char *user = getenv("USER");
    log_info("outbox_changed_by_hand", LOG_CSTR("action", command->action->name),
             LOG_STR("database", database), LOG_CSTR("table", table->name), LOG_INT("events", count),
             LOG_CSTR("user", user ? user : ""), LOG_INT("uid", getuid()));
    printf("%.*s %s: %lld %s\n", STR_ARG(database), table->name, (long long)count, command->action->done);
    return STATUS_OK;
}

static bool run_database(const struct refdata_database *database, const struct outbox_command *command)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    enum status status = db_acquire(database->pool, clock_deadline_ms(TIMEOUT_MS), &conn, &error);
    if (status == STATUS_OK)
        status = command->action->change ? change(conn, database->name, command, &error)
                                         : list_tables(conn, database->name, command, &error);
    db_release(conn);
    if (status != STATUS_OK)
        fprintf(stderr, "freshet outbox %s: database %.*s at %s: %s\n", command->action->name,
                STR_ARG(database->name), db_pool_address(database->pool), error.message);
    return status == STATUS_OK;
}

/* ---- the command ---- */

/* 0 done, 1 a database failed, 2 no such database. */
static int run_catalog(const struct refdata_catalog *catalog, const struct outbox_command *command)
{
    bool found = false, fine = true;
    if (command->action->change && catalog->database_count > 1 && !command->database) {
        fprintf(stderr, "freshet outbox %s: there are several databases; say which by --database\n",
                command->action->name);
        return 2;
    }
    for (size_t i = 0; i < catalog->database_count; i++) {
        const struct refdata_database *database = catalog->databases[i];
        if (command->database && !str_eq(database->name, str_from(command->database)))
            continue;
        found = true;
        fine &= run_database(database, command);
    }
    if (!found)
        fprintf(stderr, "freshet outbox %s: there is no database \"%s\"\n", command->action->name,
                command->database ? command->database : "");
    return !found ? 2 : fine ? 0 : 1;
}

static int run(const struct outbox_command *command)
{
    struct refdata_catalog *catalog = NULL;
    struct error error = {0};
    struct config *config = kernel_config_load_or_say(
        &(struct kernel_options){.config_path = app_config_path(command->config), .modules = app_modules});
    if (!config)
        return 1;
    int exit_status = 1;
    if (refdata_catalog_create(config_section(config, refdata_section.name), false, NULL, &catalog, &error) !=
        STATUS_OK) {
        fprintf(stderr, "freshet outbox %s: %s\n", command->action->name, error.message);
    } else {
        exit_status = run_catalog(catalog, command);
        refdata_catalog_unref(catalog);
    }
    config_free(config);
    if (exit_status == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        perror("freshet outbox: standard output");
        exit_status = 1;
    }
    return exit_status;
}

/* ---- its arguments ---- */

static bool take_number(const char *text, struct str *into)
{
    int64_t number;
    *into = str_from(text);
    return !text || str_to_i64(*into, &number);
}

static bool take_state(struct outbox_command *command)
{
    for (enum outbox_state state = OUTBOX_PENDING; state <= OUTBOX_FAILED; state++)
        if (strcmp(command->state, outbox_state_name(state)) == 0) {
            command->state_wanted = state;
            return true;
        }
    return false;
}

static bool take_table(struct outbox_command *command)
{
    for (size_t i = 0; command->table_name && i < sizeof tables / sizeof *tables; i++)
        if (strcmp(command->table_name, tables[i]->name) == 0)
            command->table = tables[i];
    return !command->table_name || command->table;
}

static bool take_ids(struct outbox_command *command)
{
    struct str id;
    db_array_begin(&command->ids_text);
    for (size_t i = 0; i < command->ids.count; i++) {
        if (!take_number(command->ids.items[i], &id))
            return false;
        db_array_put(&command->ids_text, id);
    }
    db_array_end(&command->ids_text);
    if (command->ids.count > 0)
        command->selection.ids = buf_str(&command->ids_text);
    return true;
}

/* The first thing that is wrong with the call; NULL = nothing. */
static const char *find_mistake(struct outbox_command *command)
{
    struct outbox_selection *selection = &command->selection;
    bool narrowed = command->ids.count > 0 || command->from || command->to || command->of;
    struct str limit;
    if (!take_state(command))
        return "--state is failed, pending, in_flight or published";
    if (!take_table(command))
        return "--table is refdata.outbox_event or refdata.command_outbox";
    if (!take_ids(command))
        return "an ID is a number: `freshet outbox list` shows them";
    if (!take_number(command->from, &selection->first) || !take_number(command->to, &selection->last))
        return "--from and --to take numbers: seq of `freshet outbox list`";
    if (!take_number(command->limit, &limit))
        return "--limit takes a number";
    selection->rows_max = command->action->change ? CHANGE_MAX : LIST_MAX;
    if (command->limit && (!str_to_i64(limit, &selection->rows_max) || selection->rows_max < 1 ||
                           selection->rows_max > ROWS_LIMIT))
        return "--limit is 1 to 10000000";
    selection->aggregate = str_from(command->of);
    if (command->action->change && !narrowed && !command->all)
        return "name IDs, or --from and --to, or --of, or --all";
    if (narrowed && command->all)
        return "either --all, or what to choose";
    return NULL;
}

static const struct action *find_action(const char *name)
{
    for (size_t i = 0; name && i < sizeof actions / sizeof *actions; i++)
        if (strcmp(actions[i].name, name) == 0)
            return &actions[i];
    return NULL;
}

int app_outbox(int argc, char **argv)
{
    struct outbox_command command = {.state = "failed"};
    const struct option_row rows[] = {
        APP_CONFIG_ROW(command.config),
        {"--database", "NAME", "only this postgres block; needed for changes where there are several",
         .into = &command.database},
        {"--state", "STATE", "list: failed (default), pending, in_flight or published",
         .into = &command.state},
        {"--table", "NAME",
         "only this one: refdata.outbox_event (what changes are about without it) or refdata.command_outbox",
         .into = &command.table_name},
        {"--of", "TENANT/DICT", "only events of this dictionary", .into = &command.of},
        {"--from", "SEQ", "only from this one on", .into = &command.from},
        {"--to", "SEQ", "only up to this one", .into = &command.to},
        {"--limit", "N", "at most so many, oldest first (default 100, changes 100000)",
         .into = &command.limit},
        {"--all", NULL, "change all in that state", .flag = &command.all},
        {.name = NULL},
    };
    struct option_words words;
    enum options_outcome outcome = options_read_words(
        argc, argv, "list|retry|discard|republish|unlock [ID…]",
        "Events that were committed and have to be published. `retry` and `discard` take failed ones: the first\n"
        "tries them again from the start, the second gives them up. `republish` takes published ones once more.\n"
        "`unlock` frees those a dead worker holds before their lease ends.",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    command.action = find_action(words.count ? words.items[0] : NULL);
    if (!command.action) {
        fprintf(stderr, "freshet outbox: list, retry, discard, republish or unlock? --help says more\n");
        return 2;
    }
    command.ids = (struct option_words){words.count - 1, words.items + 1};
    buf_init(&command.ids_text);
    const char *mistake = find_mistake(&command);
    if (mistake)
        fprintf(stderr, "freshet outbox %s: %s\n", command.action->name, mistake);
    int exit_status = mistake ? 2 : run(&command);
    buf_deinit(&command.ids_text);
    return exit_status;
}
