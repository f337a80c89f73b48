/* The commands behind main()'s table. Each takes its own arguments, argv[0] being its name, and returns the process's
 * exit status: 0 done, 1 failed, 2 called wrongly, 3 something of its own, which its --help names. */
#ifndef FRESHET_APP_COMMANDS_H
#define FRESHET_APP_COMMANDS_H

struct config;

int app_serve(int argc, char **argv);
int app_migrate(int argc, char **argv);
int app_token(int argc, char **argv);
int app_config(int argc, char **argv);
int app_routes(int argc, char **argv);
int app_get(int argc, char **argv);
int app_put(int argc, char **argv);
int app_load(int argc, char **argv);
int app_watch(int argc, char **argv);
int app_tail(int argc, char **argv);
int app_status(int argc, char **argv);
int app_outbox(int argc, char **argv);
int app_dlq(int argc, char **argv);
int app_verify(int argc, char **argv);

/* What --config says, else $FRESHET_CONFIG, else the default. */
const char *app_config_path(const char *given);
/* That file, loaded and checked; NULL: what is wrong has been said. */
struct config *app_config_load(const char *given);
#define APP_CONFIG_ROW(config)                                                                       \
    {                                                                                                \
        "--config", "FILE", "the configuration (default $FRESHET_CONFIG, else config/freshet.yaml)", \
            .into = &(config)                                                                        \
    }

#endif
