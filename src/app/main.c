/* The command line: one table of commands, each with its own --help. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/commands.h"

static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", "run the roles of this process until SIGTERM", app_serve},
    {"migrate", "create and migrate the database schemas", app_migrate},
    {"token", "print a development token", app_token},
    {"config", "check the configuration, or describe every setting", app_config},
    {"routes", "list the HTTP routes", app_routes},
    {"get", "print items of a dictionary, or all of it, from a pod", app_get},
    {"put", "write or delete one item of a dictionary", app_put},
    {"load", "make a file the whole content of a dictionary", app_load},
    {"watch", "print the changes of a dictionary as they are committed", app_watch},
    {"tail", "follow a chat, or a dictionary, in the terminal", app_tail},
    {"status", "print what became of an update", app_status},
    {"outbox", "list events that failed, and try, drop or publish them again", app_outbox},
    {"dlq", "list what could not be handled or delivered, and send it again or give it up", app_dlq},
    {"verify", "compare what pods hold with what the database holds", app_verify},
};

static void print_help(FILE *out)
{
    fprintf(out,
            "freshet %s: reference data and events, fresh everywhere\n\nusage: freshet COMMAND [OPTIONS]\n\n",
            FRESHET_VERSION);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(
        out,
        "\n`freshet COMMAND --help` says more. The configuration is --config FILE, else $FRESHET_CONFIG, else\n"
        "config/freshet.yaml.\n");
}

/* Started without stderr, the next descriptor opened would be 2, and the log would go down that socket. */
static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            abort();
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("freshet %s\n", FRESHET_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "freshet: there is no command \"%s\"; `freshet --help` lists them\n", argv[1]);
    return 2;
}
