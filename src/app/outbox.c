/* `freshet outbox`: what waits to be published, what failed for good, and what an operator does about it
 * (O4). Works on the tables of the configured databases themselves, whether or not anything serves. What is
 * changed is said on standard error as a log line: who, what, how many. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/by_hand.h"
#include "app/commands.h"
#include "app/modules.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/uuid.h"
#include "kernel/store.h"
#include "outbox/outbox.h"

#define SINCE_MAX_MS (INT64_C(3650) * 24 * 3600 * 1000)

typedef enum status change_fn(struct db_conn *conn, const struct outbox_table *table,
                              const struct outbox_selection *selection, int64_t deadline_ns, int64_t *count,
                              struct error *error);

enum { LIST, RETRY, DISCARD, REPUBLISH, UNLOCK, ACTIONS };
static const struct by_hand_action actions[] = {
    [LIST] = {"list", NULL},
    [RETRY] = {"retry", "will be tried again"},
    [DISCARD] = {"discard", "given up for good"},
    [REPUBLISH] = {"republish", "will be published again"},
    [UNLOCK] = {"unlock", "freed from their lease"},
    [ACTIONS] = {.name = NULL},
};
static change_fn *const changes[ACTIONS] = {[RETRY] = outbox_retry,
                                            [DISCARD] = outbox_discard,
                                            [REPUBLISH] = outbox_republish,
                                            [UNLOCK] = outbox_unlock};

struct outbox_command {
    size_t action;
    const char *config, *state, *database, *table_name, *of, *since, *from, *to, *limit;
    bool all;
    struct option_words ids;
    enum outbox_state state_wanted;
    const struct outbox_table *table; /* NULL = all; of changes never */
    struct outbox_selection selection;
    struct buf ids_text;
    char since_text[CLOCK_RFC3339_BYTES];
};

/* ---- the tables there are ---- */

/* Calls fn for each, in the modules' order, until it says true; the one it stopped at. */
static const struct outbox_table *find_table(bool (*fn)(const struct outbox_table *table, const void *arg),
                                             const void *arg)
{
    for (const struct module *const *module = app_modules; *module; module++)
        for (const struct outbox_table *const *at = (*module)->outboxes; at && *at; at++)
            if (fn(*at, arg))
                return *at;
    return NULL;
}

static bool is_any(const struct outbox_table *table, const void *arg)
{
    (void)table, (void)arg;
    return true;
}

static bool is_called(const struct outbox_table *table, const void *name)
{
    return strcmp(table->name, name) == 0;
}

static bool say_name(const struct outbox_table *table, const void *arg)
{
    (void)arg;
    fprintf(stderr, " %s", table->name);
    return false;
}

static bool is_number(struct str text)
{
    int64_t number;
    return str_to_i64(text, &number);
}

static bool is_uuid(struct str text)
{
    struct uuid uuid;
    return uuid_parse(text, &uuid);
}

/* Whether the IDs given can be of that table. */
static bool ids_fit(const struct outbox_table *table, const void *arg)
{
    const struct option_words *ids = arg;
    bool (*fits)(struct str text) = strcmp(table->id.type, "uuid") == 0 ? is_uuid : is_number;
    for (size_t i = 0; i < ids->count; i++)
        if (!fits(str_from(ids->items[i])))
            return false;
    return true;
}

/* ---- one database ---- */

static const char *text_of(const struct db_result *rows, size_t row, unsigned column)
{
    return db_result_is_null(rows, row, column) ? "" : db_result_str(rows, row, column).ptr;
}

static void print_rows(const char *database, const struct outbox_table *table,
                       const struct outbox_command *command, const struct db_result *rows)
{
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        struct str error = db_result_is_null(rows, i, 7) ? STR("") : db_result_str(rows, i, 7);
        printf("%s %s id=%s of=%s seq=%s type=%s state=%s attempts=%s claims=%s age=%ss%s%.*s\n", database,
               table->name, db_result_str(rows, i, 0).ptr, text_of(rows, i, 1), text_of(rows, i, 2),
               text_of(rows, i, 3), outbox_state_name(command->state_wanted), text_of(rows, i, 4),
               text_of(rows, i, 5), text_of(rows, i, 6), error.len ? " error=" : "", STR_ARG(error));
    }
}

static enum status list(struct db_conn *conn, const char *database, const struct outbox_table *table,
                        const struct outbox_command *command, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = outbox_list(conn, table, command->state_wanted, &command->selection,
                                     clock_deadline_ms(BY_HAND_MS), &rows, error);
    if (status == STATUS_OK) {
        print_rows(database, table, command, rows);
        if ((int64_t)db_result_rows(rows) == command->selection.rows_max)
            fprintf(stderr, "freshet outbox list: these are the first %lld; --limit shows more\n",
                    (long long)command->selection.rows_max);
    }
    db_result_free(rows);
    return status;
}

/* A table of a module that this database was never migrated for has nothing to show. */
static bool is_missing(struct db_conn *conn, const struct outbox_command *command, enum status status)
{
    return status == STATUS_DB_ERROR && !command->table && strcmp(db_sqlstate(conn), "42P01") == 0;
}

static enum status list_tables(struct db_conn *conn, const char *database, const struct module *module,
                               const struct outbox_command *command, struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct outbox_table *const *at = module->outboxes; *at && status == STATUS_OK; at++) {
        if (command->table ? command->table != *at : !ids_fit(*at, &command->ids))
            continue;
        status = list(conn, database, *at, command, error);
        if (is_missing(conn, command, status))
            status = STATUS_OK;
    }
    return status;
}

static enum status change(struct db_conn *conn, const char *database, const struct outbox_command *command,
                          struct error *error)
{
    int64_t count = 0;
    enum status status = changes[command->action](conn, command->table, &command->selection,
                                                  clock_deadline_ms(BY_HAND_MS), &count, error);
    if (status != STATUS_OK)
        return status;
    const char *user = getenv("USER");
    log_info("outbox_changed_by_hand", LOG_CSTR("action", actions[command->action].name),
             LOG_CSTR("database", database), LOG_CSTR("table", command->table->name),
             LOG_INT("events", count), LOG_CSTR("user", user ? user : ""), LOG_INT("uid", getuid()));
    printf("%s %s: %lld %s\n", database, command->table->name, (long long)count,
           actions[command->action].done);
    if (count < (int64_t)command->ids.count)
        return error_set(error, STATUS_NOT_FOUND,
                         "%lld of the events named are not there, or in another state",
                         (long long)command->ids.count - (long long)count);
    return STATUS_OK;
}

/* ---- every database of every module that is asked about ---- */

struct outbox_run {
    const struct outbox_command *command;
    const struct module *module;
    size_t database_count;
    bool found, failed;
};

static void run_database(const struct db_target *target, void *arg)
{
    struct outbox_run *run = arg;
    const struct outbox_command *command = run->command;
    struct error error = {0};
    struct db_pool *pool = NULL;
    struct db_conn *conn = NULL;
    if (command->database && strcmp(target->name, command->database) != 0)
        return;
    run->found = true;
    enum status status = db_pool_create(target, &pool, &error);
    if (status == STATUS_OK)
        status = db_acquire(pool, clock_deadline_ms(BY_HAND_MS), &conn, &error);
    if (status == STATUS_OK)
        status = command->action != LIST ? change(conn, target->name, command, &error)
                                         : list_tables(conn, target->name, run->module, command, &error);
    if (status != STATUS_OK)
        fprintf(stderr, "freshet outbox %s: database %s%s%s: %s\n", actions[command->action].name,
                target->name, pool ? " at " : "", pool ? db_pool_address(pool) : "", error.message);
    run->failed |= status != STATUS_OK;
    if (conn)
        db_release(conn);
    if (pool)
        db_pool_destroy(pool);
}

static void count_database(const struct db_target *target, void *arg)
{
    (void)target;
    ((struct outbox_run *)arg)->database_count++;
}

static void each_database(struct config *config, struct outbox_run *run,
                          void (*fn)(const struct db_target *target, void *arg))
{
    struct db_target store;
    if (!run->module->keeps_store)
        run->module->each_database(config, config_section(config, run->module->section->name), fn, run);
    else if (kernel_store_find(config, app_modules, &store))
        fn(&store, run);
}

static bool is_about(const struct outbox_command *command, const struct module *module)
{
    for (const struct outbox_table *const *at = module->outboxes; at && *at; at++)
        if (!command->table || command->table == *at)
            return true;
    return false;
}

/* 0 done, 1 a database failed, 2 no such database, or several. */
static int run_modules(struct config *config, const struct outbox_command *command)
{
    struct outbox_run run = {.command = command};
    for (const struct module *const *at = app_modules; *at; at++) {
        run.module = *at;
        if (!is_about(command, *at))
            continue;
        each_database(config, &run, count_database);
        if (command->action != LIST && run.database_count > 1 && !command->database) {
            fprintf(stderr, "freshet outbox %s: there are several databases; say which by --database\n",
                    actions[command->action].name);
            return 2;
        }
        each_database(config, &run, run_database);
    }
    if (!run.found)
        fprintf(stderr, "freshet outbox %s: there is no database \"%s\"\n", actions[command->action].name,
                command->database ? command->database : "");
    return !run.found ? 2 : run.failed ? 1 : 0;
}

static int run(const struct outbox_command *command)
{
    struct config *config = app_config_load(command->config);
    if (!config)
        return 1;
    int exit_status = run_modules(config, command);
    config_free(config);
    return by_hand_end("outbox", exit_status);
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

/* Changes are about one table: refdata's own events unless another is named. */
static bool take_table(struct outbox_command *command)
{
    if (command->table_name)
        command->table = find_table(is_called, command->table_name);
    else if (command->action != LIST)
        command->table = find_table(is_any, NULL);
    return !command->table_name || command->table;
}

static bool take_ids(struct outbox_command *command)
{
    const struct option_words *ids = &command->ids;
    if (command->table ? !ids_fit(command->table, ids) : !find_table(ids_fit, ids))
        return false;
    db_array_begin(&command->ids_text);
    for (size_t i = 0; i < ids->count; i++)
        db_array_put(&command->ids_text, str_from(ids->items[i]));
    db_array_end(&command->ids_text);
    if (ids->count > 0)
        command->selection.ids = buf_str(&command->ids_text);
    return true;
}

/* A moment, or how long ago. */
static bool take_since(struct outbox_command *command)
{
    int64_t unix_us = 0, ago_ms = 0;
    if (!command->since)
        return true;
    if (options_duration(command->since, SINCE_MAX_MS, &ago_ms))
        unix_us = clock_unix_us() - ago_ms * 1000;
    else if (!clock_rfc3339_parse(str_from(command->since), &unix_us))
        return false;
    clock_rfc3339(unix_us, command->since_text);
    command->selection.since = str_from(command->since_text);
    return true;
}

/* The first thing that is wrong with the call; NULL = nothing. */
static const char *find_mistake(struct outbox_command *command)
{
    struct outbox_selection *selection = &command->selection;
    bool narrowed = command->ids.count > 0 || command->from || command->to || command->of;
    if (!take_state(command))
        return "--state is failed, pending, in_flight or published";
    if (!take_table(command))
        return "--table is one of:"; /* app_outbox() goes on with them */
    if (!take_ids(command))
        return command->table && strcmp(command->table->id.type, "uuid") == 0
                   ? "an ID of that table is a UUID: `freshet outbox list` shows them"
                   : "an ID is a number: `freshet outbox list` shows them; other tables' are for --table";
    if (!take_since(command))
        return "--since takes a moment, 2026-01-31T12:00:00Z, or how long ago: 90s, 15m, 1h, 7d";
    if (!take_number(command->from, &selection->first) || !take_number(command->to, &selection->last))
        return "--from and --to take numbers: seq of `freshet outbox list`";
    if (!by_hand_limit(command->limit, command->action != LIST, &selection->rows_max))
        return BY_HAND_LIMIT_MISTAKE;
    selection->aggregate = str_from(command->of);
    if (command->action != LIST && !narrowed && !command->since && !command->all)
        return "name IDs, or --from and --to, or --of, or --since, or --all";
    if (narrowed && command->all)
        return "either --all, or what to choose";
    return NULL;
}

int app_outbox(int argc, char **argv)
{
    struct outbox_command command = {.state = "failed"};
    const struct option_row rows[] = {
        APP_CONFIG_ROW(command.config),
        {"--database", "NAME",
         "only this postgres block, or `store`; needed for changes where a table is in several",
         .into = &command.database},
        {"--state", "STATE", "list: failed (default), pending, in_flight or published",
         .into = &command.state},
        {"--table", "NAME",
         "only this one, as the list shows it; without it changes are about refdata.outbox_event",
         .into = &command.table_name},
        {"--of", "AGGREGATE", "only events of this dictionary, entitlement …: as the list shows it",
         .into = &command.of},
        {"--since", "TIME", "only those made since then: 2026-01-31T12:00:00Z, or how long ago: 90s, 15m, 7d",
         .into = &command.since},
        {"--from", "SEQ", "only from this one on", .into = &command.from},
        {"--to", "SEQ", "only up to this one", .into = &command.to},
        BY_HAND_LIMIT_ROW(command.limit),
        {"--all", NULL, "change all in that state", .flag = &command.all},
        {.name = NULL},
    };
    enum options_outcome outcome = by_hand_read(
        argc, argv, actions,
        "Events that were committed and have to be published. `retry` and `discard` take failed ones: the first\n"
        "tries them again from the start, the second gives them up. `republish` takes published ones once more.\n"
        "`unlock` frees those a dead worker holds before their lease ends.",
        rows, &command.action, &command.ids);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    buf_init(&command.ids_text);
    const char *mistake = find_mistake(&command);
    if (mistake) {
        fprintf(stderr, "freshet outbox %s: %s", actions[command.action].name, mistake);
        if (command.table_name && !command.table)
            find_table(say_name, NULL);
        fputs("\n", stderr);
    }
    int exit_status = mistake ? 2 : run(&command);
    buf_deinit(&command.ids_text);
    return exit_status;
}
