/* The commands of main()'s table. Each takes its own arguments, argv[0] being its name, and returns the exit status of the
 * process: 0 done, 1 failed, 2 called wrongly, 3 a result of its own, which its --help explains. main() flushes standard
 * output and fails where that fails. */
#ifndef FRESHET_APP_COMMANDS_H
#define FRESHET_APP_COMMANDS_H

#include "app/options.h"
#include "kernel/kernel.h"

extern const struct module *const app_modules[]; /* NULL-terminated: modules.c */

struct command {
    const char *name, *summary; /* NULL ends a table */
    int (*run)(int argc, char **argv);
};
extern const struct command app_commands[]; /* main.c */
/* Gives the help of every command to `print`. */
void app_each_help(option_help_fn *print, void *context);

int app_token(int argc, char **argv);
int app_get(int argc, char **argv);
int app_put(int argc, char **argv);
int app_load(int argc, char **argv);
int app_watch(int argc, char **argv);
int app_tail(int argc, char **argv);
int app_status(int argc, char **argv);
int app_top(int argc, char **argv);
int app_updates(int argc, char **argv);
int app_outbox(int argc, char **argv);
int app_dlq(int argc, char **argv);
int app_doctor(int argc, char **argv);
int app_ping(int argc, char **argv);
int app_verify(int argc, char **argv);
int app_plan(int argc, char **argv);
int app_manual(int argc, char **argv);
int app_completion(int argc, char **argv);
/* `freshet config --connect`, of a file that has been checked. A database has `timeout_ms` to answer, and again for each template. */
int app_config_connect(struct config *config, int64_t timeout_ms);
void app_version_print(void); /* `freshet --version` */
/* The commit that the program was built from, "7a7955bd5d8e", with a + where files have changed since; and its date. Made by
 * tools/embed_commit.py. */
extern const char app_commit[], app_commit_date[];

/* --config, else $FRESHET_CONFIG, else APP_CONFIG_FILE where there is one, else APP_CONFIG_FILE_HERE. */
#define APP_CONFIG_FILE "/etc/freshet/freshet.yaml"
#define APP_CONFIG_FILE_HERE "config/freshet.yaml"
const char *app_config_path(const char *given);
/* That file, loaded and checked; NULL: its mistakes are printed. */
struct config *app_config_load(const char *given);
#define APP_CONFIG_ROW(config)                                                       \
    {                                                                                \
        "--config", "FILE",                                                          \
            "the configuration file (default $FRESHET_CONFIG, else " APP_CONFIG_FILE \
            ", else " APP_CONFIG_FILE_HERE ")",                                      \
            .into = &(config)                                                        \
    }

/* A development token, signed with the key in `key`, whose public half goes to `jwks`; NULL = those in
 * $FRESHET_VAR/keys, which are made when missing. */
enum status app_token_issue(const char *key, const char *jwks, const struct auth_token_request *request,
                            struct buf *token, struct error *error) MUST_CHECK;

#endif
