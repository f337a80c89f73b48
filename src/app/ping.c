/* `freshet ping`: asks the process of this configuration, on its own machine, whether it lives. For the health check of a
 * container, which knows neither the port nor whether it speaks TLS. */
#include <stdio.h>

#include "app/client.h"
#include "app/commands.h"

enum { ANSWER_BYTES = 64 << 10, EXIT_UNKNOWN = 3 };

static int ping(const char *url, const struct fetch_tls *tls, int64_t timeout_ms)
{
    struct error error = {0};
    struct fetch_answer answer;
    enum status status = fetch_run(&(struct fetch_request){.url = str_from(url),
                                                           .connect_timeout_ms = timeout_ms,
                                                           .timeout_ms = timeout_ms,
                                                           .answer_bytes_max = ANSWER_BYTES,
                                                           .tls = *tls},
                                   &answer, &error);
    buf_deinit(&answer.body);
    if (status != STATUS_OK)
        return app_fail("ping", "%s: %s", url, error.message);
    if (answer.status != 200)
        return app_fail("ping", "%s: the answer is %d", url, answer.status);
    printf("%s: 200\n", url);
    return 0;
}

int app_ping(int argc, char **argv)
{
    const char *config_path = NULL;
    int64_t timeout_ms = 2000;
    struct fetch_tls given = {0};
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config_path),
        {"--timeout", "2s", "how long the process may take to answer (default 2s)",
         .duration_ms = &timeout_ms},
        CLIENT_CERTIFICATE_ROWS(given),
        {.name = NULL},
    };
    int outcome = options_read(
        argc, argv,
        "Asks the process of this configuration, on this machine, for its liveness, at the first address of http.listen.\n"
        "The certificate of http.tls is not verified; a process that requires one of its clients needs --cert. Exit status\n"
        "0 when it answers 200, 1 when it does not, 3 when the configuration has mistakes: a process that runs keeps the\n"
        "one that it has read.",
        rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (timeout_ms == 0)
        return app_misuse("ping", "--timeout needs a duration above 0");
    if (!client_tls_given("ping", &given))
        return OPTIONS_WRONG;
    struct config *config = app_config_load(config_path);
    if (!config)
        return EXIT_UNKNOWN;
    struct arena arena = ARENA(512);
    struct fetch_tls tls = client_tls(&given);
    tls.is_unverified = true; /* the answer is not a secret, and a process on this machine gives it */
    const char *base = kernel_http_url(config, kernel_http_address(config), STR_NONE, &arena).ptr;
    int exit_status = ping(arena_printf(&arena, "%s/actuator/health/liveness", base).ptr, &tls, timeout_ms);
    arena_deinit(&arena);
    config_free(config);
    return exit_status;
}
