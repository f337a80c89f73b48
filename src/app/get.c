/* `freshet get`: prints items, a whole dictionary or its version. A good answer is written as it arrives, in memory that
 * does not grow with it; only a list of keys is kept until it is complete. */
#include <stdio.h>

#include "app/client.h"
#include "app/commands.h"
#include "base/json.h"
#include "base/memory.h"
#include "http/http.h"

/* What one request may ask for: R4's keys, and a target that fits the default limit of C6. */
enum { KEYS_MAX = 1000, KEYS_BYTES_MAX = 60000 };

struct get {
    struct client client;
    struct option_words keys;
    bool all, version;
    int64_t min_version; /* -1 = none */
    char min_version_text[24];
};

/* ---- answers that are written as they arrive ---- */

static bool write_body(void *progress, struct str bytes)
{
    uint64_t lines = 0;
    for (const char *at = bytes.ptr, *end = bytes.ptr + bytes.len;
         (at = memchr(at, '\n', (size_t)(end - at))) != NULL; at++)
        lines++;
    progress_count(progress, lines, bytes.len);
    return fwrite(bytes.ptr, 1, bytes.len, stdout) == bytes.len;
}

static int print_body(const struct get *get, const char *accept, struct str rest, const char *end)
{
    struct pod_call call = get->client.call;
    struct progress progress;
    struct buf body;
    struct error error = {0};
    progress_start(&progress, get->all, 0);
    call.accept = accept;
    call.rest = rest;
    call.on_body = write_body;
    call.context = &progress;
    enum status status = pod_get(&call, &body, &error);
    progress_end(&progress);
    buf_deinit(&body);
    if (status == STATUS_CANCELLED)
        return 0; /* standard output failed, which main() reports */
    if (status != STATUS_OK) {
        fflush(stdout);
        return app_fail("get", "%s", error.message);
    }
    fputs(end, stdout);
    return 0;
}

/* ---- several keys ---- */

/* As many of the keys from `first` on as one request takes; returns the first that is left. */
static size_t put_keys(struct buf *rest, const struct option_words *keys, size_t first)
{
    size_t at = first;
    buf_put_str(rest, STR("/items?keys="));
    while (at < keys->count && at - first < KEYS_MAX) {
        size_t before = buf_len(rest);
        if (at > first)
            buf_put_char(rest, ',');
        http_percent_encode(rest, str_from(keys->items[at]));
        if (buf_len(rest) > KEYS_BYTES_MAX && at > first) {
            rest->end = rest->start + before;
            break;
        }
        at++;
    }
    return at;
}

/* Answers are {"version","items","missing"}: the items to standard output, a line each. */
static int print_several(struct get *get)
{
    struct pod_call call = get->client.call;
    struct json_value answer, items, missing, one;
    struct json_iter it;
    size_t missing_count = 0;
    enum status status = STATUS_OK;
    struct error error = {0};
    for (size_t at = 0; at < get->keys.count && status == STATUS_OK;) {
        struct buf rest = {0}, body;
        at = put_keys(&rest, &get->keys, at);
        call.rest = buf_str(&rest);
        status = pod_get(&call, &body, &error);
        if (status == STATUS_OK)
            status = json_parse_stored(buf_str(&body), JSON_DEPTH_LIMIT, &answer, &error);
        if (status == STATUS_OK &&
            (!json_get(&answer, STR("items"), &items) || !json_get(&answer, STR("missing"), &missing)))
            status = error_set(&error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
        if (status == STATUS_OK) {
            json_iter_init(&it, &items);
            while (json_iter_next(&it, NULL, &one))
                printf("%.*s\n", STR_ARG(one.raw));
            fflush(stdout); /* where both are one terminal, items are first */
            json_iter_init(&it, &missing);
            for (; json_iter_next(&it, NULL, &one); missing_count++)
                (void)app_fail("get", "there is no item with the key %.*s", STR_ARG(one.raw));
        }
        buf_deinit(&body);
        buf_deinit(&rest);
    }
    if (status != STATUS_OK)
        return app_fail("get", "%s", error.message);
    return missing_count ? 1 : 0;
}

/* ---- the command ---- */

static int run_get(struct client *client)
{
    struct get *get = CONTAINER_OF(client, struct get, client);
    get->keys = (struct option_words){client->words.count - 2, client->words.items + 2};
    if ((get->keys.count > 0) + get->all + get->version != 1)
        return app_misuse("get", "give one or more KEYs, or --all, or --version");
    for (size_t i = 0; i < get->keys.count; i++)
        if (!*get->keys.items[i])
            return app_misuse("get", "a KEY is empty");
    if (!client_connect(client))
        return 1;
    client->call.code = client->code;
    if (get->min_version >= 0) {
        snprintf(get->min_version_text, sizeof get->min_version_text, "%lld", (long long)get->min_version);
        client->call.min_version = str_from(get->min_version_text);
    }
    if (get->version)
        return print_body(get, NULL, STR("/version"), "\n");
    if (get->all)
        return print_body(get, "application/x-ndjson", STR("/all"), "");
    if (get->keys.count > 1)
        return print_several(get);
    struct buf rest = {0};
    buf_put_str(&rest, STR("/items/"));
    http_percent_encode(&rest, str_from(get->keys.items[0]));
    int exit_status = print_body(get, NULL, buf_str(&rest), "\n");
    buf_deinit(&rest);
    return exit_status;
}

int app_get(int argc, char **argv)
{
    struct get get = {.min_version = -1, .client.call = {.patience_ms = POD_ANSWER_MS, .single = true}};
    const struct option_row rows[] = {
        {"--all", NULL, "the whole dictionary, an item a line, all of one version", .flag = &get.all},
        {"--version", NULL, "version, number of items and digest", .flag = &get.version},
        {"--min-version", "N", "version N or later; an error if N is not committed",
         .number = &get.min_version},
        {"--timeout", "1m", "how long the pod may take to answer, or a stream may be silent (default 1m)",
         .duration_ms = &get.client.call.patience_ms},
        CLIENT_ROWS(get.client),
    };
    return client_main(
        argc, argv, &get.client,
        &(struct client_command){
            .usage = "TENANT DICT [KEY…]",
            .words_min = 2,
            .names_dictionary = true,
            .summary = "Prints one item, several items (a line each), a whole dictionary or its version.\n"
                       "Exit status 1 when an item is missing, the pod refuses or does not answer.\n\n"
                       "  freshet get demo COUNTRY DE\n"
                       "  freshet get demo COUNTRY DE FR --min-version 17\n"
                       "  freshet get demo COUNTRY --all > countries.ndjson",
            .rows = rows,
            .run = run_get,
        });
}
