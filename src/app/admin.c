/* The frame of an operator's commands: action, rows, databases, messages, exit status. */
#include "app/admin.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/terminal.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "kernel/ops.h"

enum { LIST_MAX = 100, CHANGE_MAX = 100000, STATEMENT_MS = 60000 };

const char *admin_text(struct admin *admin, const struct db_result *rows, size_t row, unsigned column,
                       const char *missing)
{
    return db_result_is_null(rows, row, column)
               ? missing
               : terminal_text(db_result_str(rows, row, column), &admin->texts);
}

const char *admin_user(struct admin *admin)
{
    char memory[4096], host[128] = "";
    struct passwd entry, *found = NULL;
    (void)!gethostname(host, sizeof host - 1);
    if (getpwuid_r(getuid(), &entry, memory, sizeof memory, &found) == 0 && found)
        return arena_printf(&admin->texts, "%s@%s", found->pw_name, host).ptr;
    return arena_printf(&admin->texts, "uid %u@%s", (unsigned)getuid(), host).ptr;
}

enum status admin_audit(struct admin *admin, struct db_conn *conn, const char *action, const char *target,
                        const struct admin_filter *filter, int64_t count, struct error *error)
{
    struct buf ids = {0}, values = {0};
    buf_put_char(&values, '{');
    for (; filter->name; filter++)
        if (filter->value)
            json_put_member_str(&values, filter->name, str_from(filter->value));
    buf_put_char(&values, '}');
    buf_put_char(&ids, '[');
    for (size_t i = 0; i < admin->ids.count; i++) {
        if (i)
            buf_put_char(&ids, ',');
        json_put_string(&ids, str_from(admin->ids.items[i]));
    }
    buf_put_char(&ids, ']');
    const struct ops_audit audit = {
        .who = arena_printf(&admin->texts, "cli:%s", admin_user(admin)),
        .action = str_from(action),
        .target = str_from(target),
        .ids = admin->ids.count ? buf_str(&ids) : STR_NONE,
        .filter = admin->ids.count ? STR_NONE : buf_str(&values),
        .matched = count,
        .changed = count,
        .reason = admin->note && *admin->note ? str_from(admin->note) : STR("no note was given"),
    };
    enum status status = kernel_ops_audit_write(conn, &audit, admin->deadline_ns, error);
    buf_deinit(&ids);
    buf_deinit(&values);
    return status;
}

enum status admin_explain(struct db_conn *conn, enum status status, struct error *error)
{
    if (status == STATUS_DB_ERROR && strcmp(db_sqlstate(conn), "42P01") == 0)
        return error_set(error, STATUS_CONFIG, "tables of this program are missing: run `freshet migrate`");
    return status;
}

void admin_note_limit(const struct admin *admin, size_t count)
{
    if ((int64_t)count == admin->rows_max)
        (void)app_fail(admin->name, "these are the first %zu; --limit shows more", count);
}

/* "list|retry|discard", with what separates the last two. */
static void put_names(struct buf *out, const struct admin_action *actions, const char *between,
                      const char *before_last)
{
    for (const struct admin_action *at = actions; at->name; at++)
        buf_printf(out, "%s%s", at == actions ? "" : at[1].name ? between : before_last, at->name);
}

static int read_call(int argc, char **argv, struct admin *admin)
{
    const struct admin_command *command = admin->command;
    struct option_words words;
    struct buf text = {0};
    put_names(&text, command->actions, "|", "|");
    buf_put_str(&text, STR(" [ID…]"));
    buf_put_char(&text, '\0');
    int outcome = options_read_words(argc, argv, buf_str(&text).ptr, command->summary, command->rows, &words);
    buf_clear(&text);
    admin->action = command->actions;
    while (words.count && admin->action->name && strcmp(admin->action->name, words.items[0]) != 0)
        admin->action++;
    if (outcome == OPTIONS_RUN && (!words.count || !admin->action->name)) {
        put_names(&text, command->actions, ", ", " or ");
        outcome = app_misuse(command->name, "the first word must be %.*s", STR_ARG(buf_str(&text)));
    }
    buf_deinit(&text);
    if (outcome != OPTIONS_RUN)
        return outcome;
    bool changes = admin->action->done != NULL;
    admin->ids = (struct option_words){words.count - 1, words.items + 1};
    snprintf(admin->name, sizeof admin->name, "%s %s", command->name, admin->action->name);
    if (!admin->rows_max)
        admin->rows_max = changes ? CHANGE_MAX : LIST_MAX;
    const char *mistake = command->check(admin);
    if (mistake)
        return app_misuse(admin->name, "%s", mistake);
    if (changes && !admin->is_narrowed && !admin->all)
        return app_misuse(admin->name, "choose rows by %s", command->choose);
    if (admin->is_narrowed && admin->all)
        return app_misuse(admin->name, "--all and a choice of rows exclude each other");
    return OPTIONS_RUN;
}

void admin_add_target(struct admin *admin, const struct db_target *target, const struct module *module)
{
    if (admin->only_database && strcmp(target->name, admin->only_database) != 0)
        return;
    admin->targets = memory_realloc_array(admin->targets, admin->target_count + 1, sizeof *admin->targets);
    admin->targets[admin->target_count++] = (struct admin_target){*target, module};
}

static int run_target(struct admin *admin, const struct admin_target *target)
{
    struct error error = {0};
    struct db_pool *pool = NULL;
    struct db_conn *conn = NULL;
    int exit_status = 0;
    admin->target = target;
    admin->deadline_ns = clock_deadline_ms(STATEMENT_MS);
    enum status status = db_pool_create(&target->target, &pool, &error);
    if (status == STATUS_OK)
        status = db_acquire(pool, admin->deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = admin->action->run(admin, conn, &error);
    if (status != STATUS_OK)
        exit_status = app_fail(admin->name, "database %s%s%s: %s", target->target.name, pool ? " at " : "",
                               pool ? db_pool_address(pool) : "", error.message);
    db_release(conn);
    db_pool_destroy(pool);
    return exit_status;
}

static int run_targets(struct admin *admin)
{
    int exit_status = 0;
    bool searches = admin->command->searches && admin->command->searches(admin);
    if (admin->target_count == 0)
        return app_misuse(admin->name, "there is no database \"%s\" with these rows in %s",
                          admin->only_database ? admin->only_database : "store",
                          app_config_path(admin->config_path));
    if (admin->target_count > 1 && admin->action->done && !searches)
        return app_misuse(admin->name, "the table is in several databases: name one by --database");
    for (size_t i = 0; i < admin->target_count; i++)
        exit_status |= run_target(admin, &admin->targets[i]);
    if (exit_status == 0 && searches) {
        exit_status = admin->command->settle(admin);
        if (exit_status == 0)
            exit_status = run_target(admin, &admin->targets[0]);
    }
    return exit_status;
}

int admin_main(int argc, char **argv, struct admin *admin, const struct admin_command *command)
{
    admin->command = command;
    admin->texts = ARENA(4096);
    int exit_status = read_call(argc, argv, admin);
    if (exit_status != OPTIONS_RUN)
        return exit_status;
    struct config *config = app_config_load(admin->config_path);
    if (!config)
        return 1;
    command->find_targets(admin, config);
    exit_status = run_targets(admin);
    free(admin->targets);
    arena_deinit(&admin->texts);
    config_free(config);
    return exit_status;
}
