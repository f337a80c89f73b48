/* `freshet put`: writes or deletes one item. The eventId is chosen before anything is sent, so that a call without an answer
 * is made again without a second effect. */
#include <stdio.h>

#include "app/commands.h"
#include "app/updates.h"
#include "base/json.h"
#include "base/memory.h"

#define PAYLOAD_BYTES_MAX ((size_t)256 << 20) /* the largest refdata.updates.payloadBytes */

struct put {
    struct client client;
    struct str key, payload;
    struct buf stdin_text;
    bool is_delete, is_async, waits;
    int64_t revision; /* INT64_MIN = none */
    const char *event_id_given;
    char event_id[UUID_TEXT_BYTES];
};

/* 0, or the exit status. */
static int read_payload(struct put *put, const char *word)
{
    struct json_value value;
    struct error error = {0};
    put->payload = str_from(word);
    if (strcmp(word, "-") == 0) {
        size_t len;
        do {
            len = fread(buf_reserve(&put->stdin_text, 65536), 1, 65536, stdin);
            buf_commit(&put->stdin_text, len);
        } while (len && buf_len(&put->stdin_text) <= PAYLOAD_BYTES_MAX);
        put->payload = buf_str(&put->stdin_text);
        if (ferror(stdin) || put->payload.len > PAYLOAD_BYTES_MAX)
            return app_fail("put", "standard input cannot be read, or has more than %zu bytes",
                            PAYLOAD_BYTES_MAX);
    }
    if (json_parse(put->payload, JSON_DEPTH_LIMIT, &value, &error) != STATUS_OK)
        return app_misuse("put", "PAYLOAD is not JSON: %s. A text needs quotes of its own: '\"text\"'",
                          error.message);
    put->payload = value.raw;
    return 0;
}

static int send_put(const struct put *put)
{
    struct update_state state;
    struct error error = {0};
    struct buf json = {0};
    buf_put_char(&json, '{');
    json_put_member_str(&json, "eventId", str_from(put->event_id));
    json_put_member_str(&json, "dictCode", put->client.code);
    json_put_member_str(&json, "eventType", STR("DELTA"));
    if (put->revision != INT64_MIN)
        json_put_member_i64(&json, "sourceRevision", put->revision);
    json_put_key(&json, STR("items"));
    buf_put_str(&json, STR("[{"));
    json_put_member_str(&json, "key", put->key);
    json_put_member_str(&json, "op", put->is_delete ? STR("DELETE") : STR("UPSERT"));
    if (!put->is_delete)
        json_put_member_raw(&json, "payload", put->payload);
    buf_put_str(&json, STR("}]}"));
    const char *query = put->is_async ? "" : "?consistencyMode=WAIT_COMMIT&timeoutMs=1000";
    enum status status = updates_post(&put->client.call, query, buf_str(&json), &state, &error);
    buf_deinit(&json);
    if (status != STATUS_OK) {
        (void)app_fail("put", "%s", error.message);
        if (status != STATUS_BAD_REQUEST) /* it may have arrived */
            (void)app_fail("put", "run the same command with --event-id %s: it has no second effect",
                           put->event_id);
        return 1;
    }
    if (state.status == UPDATE_FAILED)
        return app_fail("put", "%s: %s", state.code, state.message);
    if (state.status == UPDATE_COMMITTED) {
        printf("%lld\n", (long long)state.version);
        return 0;
    }
    printf("%s\n", put->event_id);
    (void)app_fail("put", "accepted%s; `freshet status %.*s %s --wait 10s` prints the result",
                   put->is_async ? "" : ", not committed yet", STR_ARG(put->client.tenant), put->event_id);
    return put->is_async ? 0 : UPDATE_EXIT_PENDING;
}

static int run_put(struct client *client)
{
    struct put *put = CONTAINER_OF(client, struct put, client);
    struct uuid id = uuid_random();
    put->key = str_from(client->words.items[2]);
    if (client->words.count != (put->is_delete ? 3u : 4u))
        return app_misuse("put", put->is_delete ? "--delete takes no PAYLOAD"
                                                : "PAYLOAD is missing: JSON, or - for standard input");
    if (!put->key.len || !str_is_utf8(put->key))
        return app_misuse("put", "KEY is empty or not UTF-8");
    if (put->is_async && put->waits)
        return app_misuse("put", "--wait and --async exclude each other");
    if (put->event_id_given && !uuid_parse(str_from(put->event_id_given), &id))
        return app_misuse("put", "--event-id needs a UUID");
    uuid_format(&id, put->event_id);
    if (!client_connect(client))
        return 1;
    int exit_status = put->is_delete ? 0 : read_payload(put, client->words.items[3]);
    if (exit_status == 0)
        exit_status = send_put(put);
    buf_deinit(&put->stdin_text);
    return exit_status;
}

int app_put(int argc, char **argv)
{
    struct put put = {.client.call.patience_ms = 10000, .revision = INT64_MIN};
    const struct option_row rows[] = {
        {"--delete", NULL, "delete the item; without PAYLOAD", .flag = &put.is_delete},
        {"--wait", NULL, "wait for the commit, up to a second (the default)", .flag = &put.waits},
        {"--async", NULL, "do not wait: print the eventId when it is accepted", .flag = &put.is_async},
        {"--revision", "N", "the revision in the source system; one lower than the last is refused",
         .number = &put.revision, .min = INT64_MIN},
        {"--event-id", "UUID", "use this eventId (default: a new one)", .into = &put.event_id_given},
        {"--patience", "10s", "how long to retry while the pod does not answer (default 10s)",
         .duration_ms = &put.client.call.patience_ms},
        CLIENT_ROWS(put.client),
    };
    return client_main(
        argc, argv, &put.client,
        &(struct client_command){
            .usage = "TENANT DICT KEY PAYLOAD",
            .words_min = 3,
            .words_max = 4,
            .names_dictionary = true,
            .summary =
                "Writes one item (PAYLOAD is JSON, - reads it from standard input) or deletes it, waits for the commit\n"
                "and prints the new version of the dictionary. A call without an answer is made again, with the same\n"
                "eventId. Exit status 0 when it is committed (--async: accepted), 1 when it is refused or the pod does\n"
                "not answer, 3 when it is not committed yet: then the eventId is printed instead.\n\n"
                "  freshet put demo FEATURE dark-mode '{\"enabled\": true}'\n"
                "  freshet put demo FEATURE dark-mode --delete\n"
                "  freshet put demo FEATURE dark-mode - < payload.json",
            .rows = rows,
            .run = run_put,
        });
}
