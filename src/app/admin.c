/* The frame of an operator's commands: action, rows, databases, messages, exit status. */
#include "app/admin.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

enum { LIST_MAX = 100, CHANGE_MAX = 100000, STATEMENT_MS = 60000 };

const char *admin_text(struct admin *admin, const struct db_result *rows, size_t row, unsigned column,
                       const char *missing)
{
    if (db_result_is_null(rows, row, column))
        return missing;
    struct str found = db_result_str(rows, row, column);
    char *text = arena_alloc(&admin->texts, found.len + 1), *end = text;
    for (size_t i = 0; i < found.len; i++) {
        unsigned char c = (unsigned char)found.ptr[i];
        bool is_c1 = c == 0xc2 && i + 1 < found.len && (unsigned char)found.ptr[i + 1] < 0xa0; /* two bytes */
        *end++ = iscntrl(c) || is_c1 ? ' ' : (char)c;
        i += is_c1;
    }
    *end = '\0';
    return text;
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
    exit_status = 0;
    if (admin->target_count == 0)
        exit_status = app_misuse(admin->name, "there is no database \"%s\" with these rows in %s",
                                 admin->only_database ? admin->only_database : "store",
                                 app_config_path(admin->config_path));
    else if (admin->target_count > 1 && admin->action->done)
        exit_status = app_misuse(admin->name, "the table is in several databases: name one by --database");
    for (size_t i = 0; i < admin->target_count && exit_status != OPTIONS_WRONG; i++) {
        struct error error = {0};
        struct db_pool *pool = NULL;
        struct db_conn *conn = NULL;
        admin->target = &admin->targets[i];
        admin->deadline_ns = clock_deadline_ms(STATEMENT_MS);
        enum status status = db_pool_create(&admin->target->target, &pool, &error);
        if (status == STATUS_OK)
            status = db_acquire(pool, admin->deadline_ns, &conn, &error);
        if (status == STATUS_OK)
            status = admin->action->run(admin, conn, &error);
        if (status != STATUS_OK)
            exit_status = app_fail(admin->name, "database %s%s%s: %s", admin->target->target.name,
                                   pool ? " at " : "", pool ? db_pool_address(pool) : "", error.message);
        db_release(conn);
        db_pool_destroy(pool);
    }
    free(admin->targets);
    arena_deinit(&admin->texts);
    config_free(config);
    return exit_status;
}
