/* `freshet put`: one item written or deleted. The eventId is made here, before anything is sent, so that a pod
 * that does not answer is asked again without a second effect. */
#include <stdio.h>
#include <stdlib.h>

#include "app/commands.h"
#include "app/options.h"
#include "app/updates.h"
#include "base/json.h"

#define PATIENCE_MAX_MS (INT64_C(24) * 3600 * 1000)
#define PAYLOAD_BYTES_MAX ((size_t)256 << 20) /* as far as refdata.updates.payloadBytes goes */
enum { EXIT_PENDING = 3 };

struct put {
    struct str tenant, code, key, payload;
    bool is_delete, is_async, waits;
    const char *revision; /* a number; NULL = none */
    char event_id[UUID_TEXT_BYTES];
    int64_t patience_ms;
};

static int failed(const char *message)
{
    fprintf(stderr, "freshet put: %s\n", message);
    return 1;
}

/* ---- what is sent ---- */

static void put_body(struct buf *out, const struct put *put)
{
    buf_put_char(out, '{');
    json_put_member_str(out, "eventId", str_from(put->event_id));
    json_put_member_str(out, "dictCode", put->code);
    json_put_member_str(out, "eventType", STR("DELTA"));
    if (put->revision)
        json_put_member_raw(out, "sourceRevision", str_from(put->revision));
    json_put_key(out, STR("items"));
    buf_put_str(out, STR("[{"));
    json_put_member_str(out, "key", put->key);
    json_put_member_str(out, "op", put->is_delete ? STR("DELETE") : STR("UPSERT"));
    if (!put->is_delete)
        json_put_member_raw(out, "payload", put->payload);
    buf_put_str(out, STR("}]}"));
}

/* ---- what came of it ---- */

static int conclude(const struct put *put, const struct update_state *state)
{
    if (state->status == UPDATE_COMMITTED) {
        printf("%lld\n", (long long)state->version);
        return fflush(stdout) == 0 ? 0 : failed("standard output cannot be written");
    }
    if (state->status == UPDATE_FAILED) {
        fprintf(stderr, "freshet put: %s: %s\n", state->code, state->message);
        return 1;
    }
    printf("%s\n", state->event_id[0] ? state->event_id : put->event_id);
    fprintf(stderr, "freshet put: accepted%s; `freshet status %.*s %s --wait 10s` tells what becomes of it\n",
            put->is_async ? "" : ", not committed yet", STR_ARG(put->tenant), put->event_id);
    return put->is_async ? 0 : EXIT_PENDING;
}

static int run(const struct pod_call *call, const struct put *put)
{
    struct update_state state;
    struct error error = {0};
    struct buf json;
    buf_init(&json);
    put_body(&json, put);
    const char *query = put->is_async ? "" : "?consistencyMode=WAIT_COMMIT&timeoutMs=1000";
    enum status status = updates_post(call, query, buf_str(&json), put->patience_ms, &state, &error);
    buf_deinit(&json);
    if (status == STATUS_OK)
        return conclude(put, &state);
    failed(error.message);
    if (status != STATUS_BAD_REQUEST) /* nobody knows whether it arrived */
        fprintf(stderr, "freshet put: the same again with --event-id %s has no second effect\n",
                put->event_id);
    return 1;
}

/* ---- the call ---- */

/* False when standard input has more than fits. */
static bool read_stdin(struct buf *text)
{
    size_t len;
    do {
        len = fread(buf_reserve(text, 65536), 1, 65536, stdin);
        buf_commit(text, len);
    } while (len && buf_len(text) <= PAYLOAD_BYTES_MAX);
    return !ferror(stdin) && buf_len(text) <= PAYLOAD_BYTES_MAX;
}

/* The exit status of a payload that is none; 0 = it is one. */
static int read_payload(struct put *put, const char *word, struct buf *text)
{
    struct json_value value;
    struct error error = {0};
    put->payload = str_from(word);
    if (strcmp(word, "-") == 0) {
        if (!read_stdin(text))
            return failed("standard input cannot be read, or is too long");
        put->payload = buf_str(text);
    }
    if (json_parse(put->payload, JSON_DEPTH_LIMIT, &value, &error) == STATUS_OK) {
        put->payload = value.raw;
        return 0;
    }
    fprintf(stderr, "freshet put: PAYLOAD is not JSON: %s. A text needs quotes of its own: '\"text\"'\n",
            error.message);
    return 2;
}

/* The first thing that is wrong with the call; NULL = nothing. */
static const char *find_mistake(struct put *put, const struct option_words *words, const char *event_id,
                                const char *patience)
{
    struct uuid id = uuid_random();
    int64_t revision;
    if (words->count != (put->is_delete ? 3u : 4u))
        return put->is_delete ? "TENANT, DICT and KEY are needed with --delete, nothing else"
                              : "TENANT, DICT, KEY and PAYLOAD are needed";
    if (!str_is_name(put->tenant) || !str_is_name(put->code))
        return "TENANT and DICT are 1 to 64 of A-Z a-z 0-9 . _ -";
    if (!put->key.len || !str_is_utf8(put->key))
        return "KEY is UTF-8, and not empty";
    if (put->is_async && put->waits)
        return "either --wait or --async";
    if (put->revision && !str_to_i64(str_from(put->revision), &revision))
        return "--revision takes a whole number";
    if (event_id && !uuid_parse(str_from(event_id), &id))
        return "--event-id takes a UUID";
    if (!options_duration(patience, PATIENCE_MAX_MS, &put->patience_ms))
        return "--patience takes a duration like 500ms, 3s or 1m";
    uuid_format(&id, put->event_id);
    return NULL;
}

static int run_with(struct put *put, const struct option_words *words, const char *url, const char *token)
{
    struct pod_session session;
    struct buf text;
    buf_init(&text);
    int exit_status = put->is_delete ? 0 : read_payload(put, words->items[3], &text);
    if (exit_status == 0) {
        exit_status = pod_session_open(&session, "put", url, token, put->tenant);
        if (exit_status == 0)
            exit_status = run(&session.call, put);
        pod_session_close(&session);
    }
    buf_deinit(&text);
    return exit_status;
}

static const char summary[] =
    "Writes one item (PAYLOAD is JSON, - reads it from standard input) or deletes it, waits for the commit\n"
    "and prints the version it made. A pod that does not answer is asked again, under the same eventId.\n"
    "Exit status 0 when it is committed (--async: accepted), 1 when it was refused or nobody answered,\n"
    "3 when the commit is still to come: then the eventId is printed instead.\n\n"
    "  freshet put demo FEATURE dark-mode '{\"enabled\": true}'\n"
    "  freshet put demo FEATURE dark-mode --delete\n"
    "  freshet put demo FEATURE dark-mode - < payload.json";

int app_put(int argc, char **argv)
{
    const char *url = NULL, *token = NULL, *event_id = NULL, *patience = "10s";
    struct option_words words;
    struct put put = {0};
    const struct option_row rows[] = {
        {"--delete", NULL, "delete the item; without PAYLOAD", .flag = &put.is_delete},
        {"--wait", NULL, "wait for the commit, up to a second (the default)", .flag = &put.waits},
        {"--async", NULL, "do not wait: print the eventId once it is accepted", .flag = &put.is_async},
        {"--revision", "N", "the source's revision; one lower than the last is refused",
         .into = &put.revision},
        {"--event-id", "UUID", "under this eventId (default: a new one)", .into = &event_id},
        {"--patience", "10s", "how long to ask a pod that does not answer (default 10s)", .into = &patience},
        {"--url", "URL", POD_URL_HELP, .into = &url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &token},
        {.name = NULL},
    };
    enum options_outcome outcome =
        options_read_words(argc, argv, "TENANT DICT KEY PAYLOAD", summary, rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    put.tenant = str_from(words.count > 0 ? words.items[0] : NULL);
    put.code = str_from(words.count > 1 ? words.items[1] : NULL);
    put.key = str_from(words.count > 2 ? words.items[2] : NULL);
    const char *mistake = find_mistake(&put, &words, event_id, patience);
    if (mistake) {
        fprintf(stderr, "freshet put: %s; `freshet put --help` says more\n", mistake);
        return 2;
    }
    return run_with(&put, &words, url, token);
}
