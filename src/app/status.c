/* `freshet status`: what became of an update. */
#include <stdio.h>

#include "app/commands.h"
#include "app/options.h"
#include "app/updates.h"

#define PATIENCE_MAX_MS (INT64_C(24) * 3600 * 1000)
enum { EXIT_PENDING = 3 };

static int run(const struct pod_call *call, const char *event_id, int64_t patience_ms)
{
    struct update_state state;
    struct error error = {0};
    struct buf body;
    enum status status = updates_await(call, event_id, patience_ms, &state, &body, &error);
    if (status == STATUS_OK)
        printf("%.*s\n", STR_ARG(buf_str(&body)));
    else
        fprintf(stderr, "freshet status: %s\n", error.message);
    buf_deinit(&body);
    if (status != STATUS_OK || fflush(stdout) != 0)
        return 1;
    return state.status == UPDATE_COMMITTED ? 0 : state.status == UPDATE_FAILED ? 1 : EXIT_PENDING;
}

/* TENANT EVENT, or the statusUrl of an answer: /v1/tenants/TENANT/updates/EVENT. */
static bool read_words(const struct option_words *words, struct str *tenant, struct str *event)
{
    struct str rest, part;
    if (words->count == 2) {
        *tenant = str_from(words->items[0]);
        *event = str_from(words->items[1]);
        return true;
    }
    if (words->count != 1 || !str_starts_with(str_from(words->items[0]), STR("/v1/tenants/")))
        return false;
    rest = str_from(words->items[0] + strlen("/v1/tenants/"));
    return str_split(&rest, '/', tenant) && str_split(&rest, '/', &part) && str_eq(part, STR("updates")) &&
           str_split(&rest, '/', event);
}

static int wrong(const char *what)
{
    fprintf(stderr, "freshet status: %s; `freshet status --help` says more\n", what);
    return 2;
}

int app_status(int argc, char **argv)
{
    const char *url = NULL, *token = NULL, *wait = "0";
    struct option_words words;
    const struct option_row rows[] = {
        {"--wait", "10s", "how long to wait for it to be decided (default: not at all)", .into = &wait},
        {"--url", "URL", POD_URL_HELP, .into = &url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &token},
        {.name = NULL},
    };
    enum options_outcome outcome = options_read_words(
        argc, argv, "TENANT EVENT",
        "Prints what became of an update, by its eventId; the statusUrl of an answer stands for both words.\n"
        "Exit status 0 when it is COMMITTED, 1 when it FAILED or the pod refuses, 3 while it is PENDING.\n\n"
        "  freshet status demo 3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77 --wait 10s\n"
        "  freshet status /v1/tenants/demo/updates/3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    struct pod_session session;
    struct str tenant, event;
    struct uuid id;
    char event_id[UUID_TEXT_BYTES];
    int64_t patience_ms;
    if (!read_words(&words, &tenant, &event) || !str_is_name(tenant))
        return wrong("TENANT and EVENT, or a statusUrl");
    if (!uuid_parse(event, &id))
        return wrong("EVENT is a UUID");
    if (!options_duration(wait, PATIENCE_MAX_MS, &patience_ms))
        return wrong("--wait takes a duration like 500ms, 10s or 1m");
    uuid_format(&id, event_id);
    int exit_status = pod_session_open(&session, "status", url, token, tenant);
    if (exit_status == 0)
        exit_status = run(&session.call, event_id, patience_ms);
    pod_session_close(&session);
    return exit_status;
}
