/* The command line: one table of commands, each with its own --help. Those that only call the kernel are here. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/options.h"
#include "base/log.h"
#include "http/http.h"

enum { CONNECT_TIMEOUT_MS = 5000 };

const char *app_config_path(const char *given)
{
    const char *from_environment = getenv("FRESHET_CONFIG");
    if (given)
        return given;
    if (from_environment && *from_environment)
        return from_environment;
    return access(APP_CONFIG_FILE, F_OK) == 0 ? APP_CONFIG_FILE : APP_CONFIG_FILE_HERE;
}

struct config *app_config_load(const char *given)
{
    return kernel_config_load_or_print(
        &(struct kernel_options){.config_path = app_config_path(given), .modules = app_modules});
}

/* All roles, separated by spaces. */
static const char *role_names(void)
{
    static char names[1024];
    size_t len = 0;
    for (const struct module *const *module = app_modules; *module; module++)
        for (const char *const *role = (*module)->roles; *role && len < sizeof names; role++)
            len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", len ? " " : "", *role);
    return names;
}

static int app_serve(int argc, char **argv)
{
    const char *config = NULL, *roles = NULL, *listen = NULL;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--roles", "A,B", "run only these roles (default: all)", .into = &roles, .choices = role_names()},
        {"--listen", "HOST:PORT", "listen here instead of at http.listen", .into = &listen},
        {.name = NULL},
    };
    int outcome =
        options_read(argc, argv, "Runs all roles, or those named, in this process until SIGTERM.", rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    struct error error = {0};
    if (listen && http_address_check(str_from(listen), &error) != STATUS_OK)
        return app_misuse("serve", "--listen: %s", error.message);
    return kernel_serve(&(struct kernel_options){.config_path = app_config_path(config),
                                                 .commit = app_commit,
                                                 .modules = app_modules,
                                                 .roles = str_from(roles),
                                                 .listen = str_from(listen)});
}

static int app_migrate(int argc, char **argv)
{
    const char *config = NULL, *role = NULL;
    bool is_dry = false, is_status = false;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--dry-run", NULL, "print the SQL that would run, as a script for psql, and change nothing",
         .flag = &is_dry},
        {"--status", NULL, "print the last migration of each schema; exit status 3 if some are missing",
         .flag = &is_status},
        {"--grants", "ROLE",
         "print the grants that ROLE needs to run `serve` with bus.migrate: never; connects to no database",
         .into = &role},
        {.name = NULL},
    };
    int outcome = options_read(
        argc, argv,
        "Creates and migrates the schemas of every database in the configuration. It may run several times, also at the\n"
        "same time. Exit status 1 where a database is not reached, or is too new for this program.",
        rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (is_dry + is_status + (role != NULL) > 1)
        return app_misuse("migrate", "give only one of --dry-run, --status and --grants");
    if (role && !*role)
        return app_misuse("migrate", "--grants: the name of a role is missing");
    return kernel_migrate(
        &(struct kernel_options){.config_path = app_config_path(config), .modules = app_modules},
        &(struct kernel_migration){.action = is_dry      ? KERNEL_MIGRATE_PLAN
                                             : is_status ? KERNEL_MIGRATE_STATE
                                             : role      ? KERNEL_MIGRATE_GRANTS
                                                         : KERNEL_MIGRATE_APPLY,
                                   .role = role});
}

static int app_routes(int argc, char **argv)
{
    const char *config = NULL;
    const struct option_row rows[] = {APP_CONFIG_ROW(config), {.name = NULL}};
    int outcome = options_read(
        argc, argv,
        "Lists every HTTP route with its method, its path and what it needs: `public` (no token), `token` (any valid\n"
        "token), `user` (a token with `sub`) or a scope of the token. Scopes of dictionaries are in the configuration.",
        rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    return kernel_print_routes(
        &(struct kernel_options){.config_path = app_config_path(config), .modules = app_modules});
}

static void describe_settings(bool as_markdown)
{
    struct arena arena = ARENA(4096);
    struct buf text = {0};
    const struct config_section *sections = kernel_sections(app_modules, &arena);
    if (as_markdown)
        config_print_markdown(sections, &text);
    else
        config_print_help(sections, &text);
    fwrite(text.data + text.start, 1, buf_len(&text), stdout);
    buf_deinit(&text);
    arena_deinit(&arena);
}

static int app_config(int argc, char **argv)
{
    const char *config = NULL;
    bool describe = false, markdown = false, connect = false;
    int64_t timeout_ms = -1; /* not given */
    int exit_status = 0;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--describe", NULL, "print every setting with its type, default and meaning", .flag = &describe},
        {"--markdown", NULL, "the same as a page: docs/CONFIG.md", .flag = &markdown},
        {"--connect", NULL, "also try every SQL template at its database, without running it",
         .flag = &connect},
        {"--timeout", "5s",
         "with --connect: how long to wait for a database, and for each template (default 5s)",
         .duration_ms = &timeout_ms},
        {.name = NULL},
    };
    int outcome = options_read(
        argc, argv,
        "Checks the configuration and prints its mistakes, or describes all settings. With --connect, every database of the\n"
        "configuration parses and plans its SQL templates and checks the privileges that they need; nothing is written. Exit\n"
        "status 1 where there are mistakes, or where a database does not answer.",
        rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (describe + markdown + connect > 1)
        return app_misuse("config", "give only one of --describe, --markdown and --connect");
    if (timeout_ms >= 0 && !connect)
        return app_misuse("config", "--timeout is for --connect");
    if (timeout_ms == 0)
        return app_misuse("config", "--timeout needs a duration above 0");
    if (describe || markdown) {
        describe_settings(markdown);
        return 0;
    }
    struct config *checked = app_config_load(config);
    if (!checked)
        return 1;
    if (connect)
        exit_status = app_config_connect(checked, timeout_ms > 0 ? timeout_ms : CONNECT_TIMEOUT_MS);
    else
        printf("%s: ok\n", app_config_path(config));
    config_free(checked);
    return exit_status;
}

const struct command app_commands[] = {
    {"serve", "run the roles of this process until SIGTERM", app_serve},
    {"migrate", "create and migrate the database schemas, or print what it would do", app_migrate},
    {"token", "print a development token", app_token},
    {"config", "check the configuration, or describe every setting", app_config},
    {"routes", "list the HTTP routes and the scopes they need", app_routes},
    {"get", "print items of a dictionary, or all of it", app_get},
    {"put", "write or delete one item of a dictionary", app_put},
    {"load", "replace the content of a dictionary by a file", app_load},
    {"watch", "print the changes of a dictionary as they are committed", app_watch},
    {"tail", "follow a chat, or a dictionary, in the terminal", app_tail},
    {"status", "print the status of an update", app_status},
    {"doctor", "print everything that is wrong now, with the command that helps", app_doctor},
    {"ping", "ask the process of this configuration whether it lives", app_ping},
    {"top", "show pods, rates, freshness, lag and dictionaries on a live screen", app_top},
    {"updates", "list updates, and show what will decide one that is PENDING", app_updates},
    {"outbox", "list events that are stuck, and retry, drop, unlock or publish them again", app_outbox},
    {"dlq", "list dead letters of every topic and table, and send them again or drop them", app_dlq},
    {"verify", "compare the content of pods with the database", app_verify},
    {"plan", "compute pods, processors and memory for a number of reads a second", app_plan},
    {"manual", "print the manual page of the program or of its configuration", app_manual},
    {"completion", "print a script that completes commands and options in bash or zsh", app_completion},
    {.name = NULL},
};

void app_each_help(option_help_fn *print, void *context)
{
    options_help_to(print, context);
    for (const struct command *command = app_commands; command->name; command++) {
        char help[] = "--help", *name = str_dup(str_from(command->name));
        (void)command->run(2, (char *[]){name, help, NULL});
        free(name);
    }
    options_help_to(NULL, NULL);
}

static void print_help(FILE *out)
{
    fprintf(out,
            "freshet %s: reference data and events from PostgreSQL\n\nusage: freshet COMMAND [OPTIONS]\n\n",
            FRESHET_VERSION);
    for (const struct command *command = app_commands; command->name; command++)
        fprintf(out, "  %-10s %s\n", command->name, command->summary);
    fprintf(out, "\n`freshet COMMAND --help` explains a command. The configuration is --config FILE, else "
                 "$FRESHET_CONFIG,\nelse " APP_CONFIG_FILE ", else " APP_CONFIG_FILE_HERE ".\n");
}

/* Commands print messages for people, so that they log nothing unless $FRESHET_LOG asks for it; a server logs as its configuration
 * says. False: it is not a level, which is printed. */
static bool set_log(const char *command)
{
    static const char *const names[] = {"debug", "info", "warn", "error", "off"};
    const char *wanted = getenv("FRESHET_LOG");
    enum log_level level = LOG_LEVEL_DEBUG;
    if (strcmp(command, "serve") == 0)
        return true;
    if (!wanted || !*wanted)
        wanted = "off";
    while (level <= LOG_LEVEL_OFF && strcmp(names[level], wanted) != 0)
        level++;
    if (level > LOG_LEVEL_OFF) {
        (void)app_misuse(command, "$FRESHET_LOG must be debug, info, warn, error or off");
        return false;
    }
    log_set_level(level);
    return true;
}

int main(int argc, char **argv)
{
    /* A process started without stderr would open its first socket as descriptor 2, and write its log there. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            abort();
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    char help_option[] = "--help", *help_of[] = {argv[0], argc == 3 ? argv[2] : NULL, help_option, NULL};
    if (argc == 3 && strcmp(argv[1], "help") == 0) /* help COMMAND is COMMAND --help */
        argv = help_of;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        app_version_print();
        return 0;
    }
    for (const struct command *command = app_commands; command->name; command++) {
        if (strcmp(argv[1], command->name) != 0)
            continue;
        if (!set_log(command->name))
            return OPTIONS_WRONG;
        int exit_status = command->run(argc - 1, argv + 1);
        if (exit_status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
            return app_fail(argv[1], "standard output cannot be written: %s", strerror(errno));
        return exit_status;
    }
    fprintf(stderr, "freshet: unknown command \"%s\"; `freshet --help` lists the commands\n", argv[1]);
    return 2;
}
