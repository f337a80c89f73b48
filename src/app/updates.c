/* The two routes of updates, and `freshet status`. */
#include "app/updates.h"

#include <stdio.h>

#include "app/commands.h"
#include "base/backoff.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"

enum { ASK_MS = 10000 }; /* of `freshet status` without --wait */

/* /updates and `rest`, posted where there is something to post. */
static enum status call_updates(const struct pod_call *call, const char *separator, const char *rest,
                                struct str json, struct update_state *state, struct buf *body,
                                struct error *error)
{
    static const char *const names[] = {"PENDING", "COMMITTED", "FAILED"};
    struct json_value answer, word, version;
    struct pod_call updates = *call;
    struct arena arena = ARENA(512);
    struct buf text;
    *state = (struct update_state){0};
    updates.code = STR_NONE;
    updates.rest = arena_printf(&arena, "/updates%s%s", separator, rest);
    enum status status = pod_post(&updates, json, &text, error);
    if (status == STATUS_OK &&
        (json_parse_stored(buf_str(&text), JSON_DEPTH_MAX, &answer, NULL) != STATUS_OK ||
         !json_get_string(&answer, STR("status"), &word)))
        status = error_set(error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
    if (status == STATUS_OK) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (json_str_eq(word.raw, str_from(names[i])))
                state->status = (enum update_status)i;
        str_copy(state->code, sizeof state->code, json_get_text(&answer, STR("errorCode"), &arena));
        str_copy(state->message, sizeof state->message, json_get_text(&answer, STR("errorMessage"), &arena));
        if (json_get(&answer, STR("committedVersion"), &version) && !json_to_i64(&version, &state->version))
            status =
                error_set(error, STATUS_BAD_REQUEST, "the committedVersion of the answer is not a number");
    }
    arena_deinit(&arena);
    if (body)
        *body = text;
    else
        buf_deinit(&text);
    return status;
}

enum status updates_post(const struct pod_call *call, const char *query, struct str json,
                         struct update_state *state, struct error *error)
{
    return call_updates(call, "", query, json, state, NULL, error);
}

enum status updates_ask(const struct pod_call *call, const char *event_id, struct update_state *state,
                        struct buf *body, struct error *error)
{
    return call_updates(call, "/", event_id, STR_NONE, state, body, error);
}

enum status updates_await(const struct pod_call *call, const char *event_id, int64_t wait_ms,
                          struct update_state *state, struct buf *body, struct error *error)
{
    struct backoff backoff = {.min_ms = 10, .max_ms = 500};
    int64_t deadline_ns = clock_deadline_ms(wait_ms);
    for (;;) {
        struct pod_call ask = *call;
        ask.patience_ms = clock_ms_left(deadline_ns);
        ask.single = false;
        enum status status = updates_ask(&ask, event_id, state, body, error);
        if (status != STATUS_OK || state->status != UPDATE_PENDING || ask.patience_ms == 0)
            return status;
        if (body)
            buf_deinit(body);
        int64_t pause_ms = backoff_next_ms(&backoff);
        pod_pause(pause_ms < ask.patience_ms ? pause_ms : ask.patience_ms);
    }
}

/* ---- freshet status ---- */

struct status_command {
    struct client client;
    int64_t wait_ms;
};

/* TENANT EVENT, or the statusUrl of an answer: /v1/tenants/TENANT/updates/EVENT. */
static int run_status(struct client *client)
{
    const struct status_command *command = CONTAINER_OF(client, struct status_command, client);
    struct str event = client->code, rest = client->tenant, prefix = STR("/v1/tenants/"), part;
    char event_id[UUID_TEXT_BYTES];
    struct uuid id;
    struct update_state state;
    struct error error = {0};
    struct buf body;
    if (client->words.count == 1) {
        bool is_url = str_starts_with(rest, prefix);
        if (is_url)
            rest = str_of(rest.ptr + prefix.len, rest.len - prefix.len);
        if (!is_url || !str_split(&rest, '/', &client->tenant) || !str_split(&rest, '/', &part) ||
            !str_eq(part, STR("updates")) || !str_split(&rest, '/', &event))
            return app_misuse("status",
                              "give TENANT and EVENT, or a statusUrl: /v1/tenants/TENANT/updates/EVENT");
    }
    if (!str_is_name(client->tenant))
        return app_misuse("status", CLIENT_NAME_MISTAKE);
    if (!uuid_parse(event, &id))
        return app_misuse("status", "EVENT is not a UUID");
    uuid_format(&id, event_id);
    if (!client_connect(client))
        return 1;
    client->call.patience_ms = ASK_MS;
    client->call.single = true;
    enum status status = command->wait_ms
                             ? updates_await(&client->call, event_id, command->wait_ms, &state, &body, &error)
                             : updates_ask(&client->call, event_id, &state, &body, &error);
    if (status == STATUS_OK)
        printf("%.*s\n", STR_ARG(buf_str(&body)));
    buf_deinit(&body);
    if (status != STATUS_OK)
        return app_fail("status", "%s", error.message);
    return state.status == UPDATE_COMMITTED ? 0 : state.status == UPDATE_FAILED ? 1 : UPDATE_EXIT_PENDING;
}

int app_status(int argc, char **argv)
{
    struct status_command command = {0};
    const struct option_row rows[] = {
        {"--wait", "10s", "how long to wait until it is decided (default: not at all)",
         .duration_ms = &command.wait_ms},
        CLIENT_ROWS(command.client),
    };
    return client_main(
        argc, argv, &command.client,
        &(struct client_command){
            .usage = "TENANT EVENT",
            .words_min = 1,
            .words_max = 2,
            .summary =
                "Prints the status of an update, by its eventId or by the statusUrl of an answer.\n"
                "Exit status 0 when it is COMMITTED, 1 when it FAILED or the pod refuses, 3 while it is PENDING.\n\n"
                "  freshet status demo 3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77 --wait 10s\n"
                "  freshet status /v1/tenants/demo/updates/3f0c8f0e-6c52-4f9f-9d0c-0d5b2a3c1e77",
            .rows = rows,
            .run = run_status,
        });
}
