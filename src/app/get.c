/* `freshet get`: items, a whole dictionary or its version, from a pod to standard output. A good answer is
 * written as it comes, in memory that does not grow with it; only a list of keys is kept until it is whole. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/options.h"
#include "app/pod.h"
#include "app/progress.h"
#include "base/json.h"

/* What one request may ask for: R4's keys, and a target that fits the default limit of C6. */
enum { KEYS_MAX = 1000, KEYS_BYTES_MAX = 60000 };

struct get {
    struct pod_call call;
    struct option_words keys;
    bool all, version;
};

static int failed(const struct error *error)
{
    fprintf(stderr, "freshet get: %s\n", error->message);
    return 1;
}

/* Standard output may be a full disk. */
static int finish(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    perror("freshet get: standard output");
    return 1;
}

/* ---- answers that are written as they come ---- */

static bool write_body(void *context, struct str bytes)
{
    progress_add(context, bytes);
    return fwrite(bytes.ptr, 1, bytes.len, stdout) == bytes.len;
}

static int stream(struct get *get, struct str rest, const char *end)
{
    struct progress progress;
    struct buf body;
    struct error error = {0};
    progress_start(&progress, get->all);
    get->call.rest = rest;
    get->call.on_body = write_body;
    get->call.context = &progress;
    enum status status = pod_get(&get->call, &body, &error);
    progress_end(&progress);
    buf_deinit(&body);
    if (status == STATUS_CANCELLED)
        return finish(); /* it could not be written */
    if (status != STATUS_OK) {
        fflush(stdout);
        return failed(&error);
    }
    fputs(end, stdout);
    return finish();
}

static int get_one(struct get *get)
{
    struct buf rest;
    buf_init(&rest);
    buf_put_str(&rest, STR("/items/"));
    pod_put_encoded(&rest, str_from(get->keys.items[0]));
    int exit_status = stream(get, buf_str(&rest), "\n");
    buf_deinit(&rest);
    return exit_status;
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
        pod_put_encoded(rest, str_from(keys->items[at]));
        if (buf_len(rest) > KEYS_BYTES_MAX && at > first) {
            rest->end = rest->start + before;
            break;
        }
        at++;
    }
    return at;
}

/* {"version","items","missing"}: the items to standard output, a line each. */
static enum status print_items(struct str body, size_t *missing_count, struct error *error)
{
    struct json_value answer, items, missing, one;
    struct json_iter it;
    enum status status = json_parse_stored(body, JSON_DEPTH_LIMIT, &answer, error);
    if (status != STATUS_OK)
        return status;
    if (!json_get(&answer, STR("items"), &items) || !json_get(&answer, STR("missing"), &missing))
        return error_set(error, STATUS_BAD_REQUEST, "the answer is not one of freshet's");
    json_iter_init(&it, &items);
    while (json_iter_next(&it, NULL, &one))
        printf("%.*s\n", STR_ARG(one.raw));
    fflush(stdout); /* where both are one terminal, items come first */
    json_iter_init(&it, &missing);
    for (; json_iter_next(&it, NULL, &one); ++*missing_count)
        fprintf(stderr, "freshet get: there is no item with the key %.*s\n", STR_ARG(one.raw));
    return STATUS_OK;
}

static int get_several(struct get *get)
{
    size_t missing_count = 0;
    enum status status = STATUS_OK;
    struct error error = {0};
    for (size_t at = 0; at < get->keys.count && status == STATUS_OK;) {
        struct buf rest, body;
        buf_init(&rest);
        at = put_keys(&rest, &get->keys, at);
        get->call.rest = buf_str(&rest);
        status = pod_get(&get->call, &body, &error);
        if (status == STATUS_OK)
            status = print_items(buf_str(&body), &missing_count, &error);
        buf_deinit(&body), buf_deinit(&rest);
    }
    int exit_status = finish();
    if (status != STATUS_OK)
        return failed(&error);
    return missing_count ? 1 : exit_status;
}

/* ---- the command ---- */

static int run(struct get *get)
{
    if (get->version)
        return stream(get, STR("/version"), "\n");
    if (get->all) {
        get->call.accept = "application/x-ndjson";
        return stream(get, STR("/all"), "");
    }
    return get->keys.count == 1 ? get_one(get) : get_several(get);
}

/* The first thing that is wrong with the call; NULL = nothing. */
static const char *find_mistake(const struct get *get, const struct option_words *words)
{
    uint64_t version;
    if (words->count < 2)
        return words->count ? "DICT is missing" : "TENANT and DICT are missing";
    if (!str_is_name(get->call.tenant) || !str_is_name(get->call.code))
        return "TENANT and DICT are 1 to 64 of A-Z a-z 0-9 . _ -";
    if (get->keys.count + get->all + get->version == 0)
        return "name a KEY, or several, or --all, or --version";
    if ((get->keys.count > 0) + get->all + get->version > 1)
        return "either KEYs, or --all, or --version";
    for (size_t i = 0; i < get->keys.count; i++)
        if (!*get->keys.items[i])
            return "a KEY is not empty";
    if (get->call.min_version.ptr && (!str_to_u64(get->call.min_version, &version) || version > INT64_MAX))
        return "--min-version takes a number";
    return NULL;
}

static int run_with(struct get *get, const char *url, const char *token)
{
    struct buf url_buffer, token_buffer;
    struct error error = {0};
    int exit_status = 2;
    buf_init(&url_buffer), buf_init(&token_buffer);
    get->call.url = pod_url("get", url, &url_buffer);
    if (get->call.url.len) {
        enum status status =
            pod_token(token, &(struct auth_token_request){.tenant = get->call.tenant}, &token_buffer, &error);
        get->call.token = buf_str(&token_buffer);
        exit_status = status == STATUS_OK ? run(get) : failed(&error);
    }
    buf_deinit(&url_buffer), buf_deinit(&token_buffer);
    return exit_status;
}

int app_get(int argc, char **argv)
{
    const char *url = NULL, *token = NULL, *min_version = NULL;
    struct option_words words;
    struct get get = {0};
    const struct option_row rows[] = {
        {"--all", NULL, "the whole dictionary, an item a line, all of one version", .flag = &get.all},
        {"--version", NULL, "version, number of items and digest", .flag = &get.version},
        {"--min-version", "N", "version N or later, or an error if N is not committed", .into = &min_version},
        {"--url", "URL", POD_URL_HELP, .into = &url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &token},
        {.name = NULL},
    };
    enum options_outcome outcome = options_read_words(
        argc, argv, "TENANT DICT [KEY…]",
        "Prints an item, or several a line each, or what --all or --version say, from a pod.\n"
        "Exit status 1 when an item is missing or the pod refuses.",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    get.call.tenant = str_from(words.count > 0 ? words.items[0] : NULL);
    get.call.code = str_from(words.count > 1 ? words.items[1] : NULL);
    get.call.min_version = str_from(min_version);
    if (words.count > 2)
        get.keys = (struct option_words){words.count - 2, words.items + 2};
    const char *mistake = find_mistake(&get, &words);
    if (mistake) {
        fprintf(stderr, "freshet get%s%s: %s; `freshet get --help` says more\n", words.count ? " " : "",
                words.count ? words.items[0] : "", mistake);
        return 2;
    }
    return run_with(&get, url, token);
}
