/* What each command does: mostly a call into the kernel. */
#include "app/commands.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/modules.h"
#include "app/options.h"
#include "base/buf.h"

const char *app_config_path(const char *given)
{
    const char *from_environment = getenv("FRESHET_CONFIG");
    if (given)
        return given;
    return from_environment && *from_environment ? from_environment : "config/freshet.yaml";
}

struct config *app_config_load(const char *given)
{
    return kernel_config_load_or_say(
        &(struct kernel_options){.config_path = app_config_path(given), .modules = app_modules});
}

int app_serve(int argc, char **argv)
{
    const char *config = NULL, *roles = NULL, *listen = NULL;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--roles", "A,B", "only these roles (default: all)", .into = &roles},
        {"--listen", "HOST:PORT", "listen here instead of where http.listen says", .into = &listen},
        {.name = NULL},
    };
    switch (
        options_read(argc, argv, "Serves every role in one process, or those named, until SIGTERM.", rows)) {
    case OPTIONS_HELPED: return 0;
    case OPTIONS_WRONG: return 2;
    case OPTIONS_RUN: break;
    }
    return kernel_serve(&(struct kernel_options){.config_path = app_config_path(config),
                                                 .modules = app_modules,
                                                 .roles = str_from(roles),
                                                 .listen = str_from(listen)});
}

/* The commands that take nothing but --config. */
static int with_config(int argc, char **argv, const char *summary,
                       int (*run)(const struct kernel_options *options))
{
    const char *config = NULL;
    const struct option_row rows[] = {APP_CONFIG_ROW(config), {.name = NULL}};
    enum options_outcome outcome = options_read(argc, argv, summary, rows);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    return run(&(struct kernel_options){.config_path = app_config_path(config), .modules = app_modules});
}

int app_migrate(int argc, char **argv)
{
    return with_config(argc, argv,
                       "Creates and migrates the schemas of every database the configuration names.\n"
                       "Safe to run twice, and side by side.",
                       kernel_migrate);
}

int app_routes(int argc, char **argv)
{
    return with_config(argc, argv, "Lists every HTTP route.", kernel_print_routes);
}

int app_config(int argc, char **argv)
{
    const char *config = NULL;
    bool describe = false, markdown = false;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--describe", NULL, "print every setting with its type, default and meaning", .flag = &describe},
        {"--markdown", NULL, "the same as docs/CONFIG.md", .flag = &markdown},
        {.name = NULL},
    };
    enum options_outcome outcome = options_read(
        argc, argv, "Checks the configuration and says what is wrong with it, or describes the settings.",
        rows);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    if (!describe && !markdown) {
        struct config *checked = app_config_load(config);
        if (!checked)
            return 1;
        printf("%s: ok\n", app_config_path(config));
        config_free(checked);
        return 0;
    }
    struct arena arena;
    struct buf text;
    arena_init(&arena, 4096);
    buf_init(&text);
    const struct config_section *sections = kernel_sections(app_modules, &arena);
    if (markdown)
        config_print_markdown(sections, &text);
    else
        config_print_help(sections, &text);
    fwrite(text.data + text.start, 1, buf_len(&text), stdout);
    buf_deinit(&text);
    arena_deinit(&arena);
    return 0;
}
