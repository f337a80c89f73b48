/* `freshet load`: a file becomes the whole of a dictionary, as a chunked snapshot. Nothing is sent before the
 * whole file has been read and found good; cut off, the same command goes on where it was. */
#include "app/load.h"

#include <stdlib.h>

#include "app/commands.h"
#include "app/options.h"
#include "base/clock.h"
#include "base/json.h"

#define PATIENCE_MAX_MS (INT64_C(24) * 3600 * 1000)
enum { EXIT_PENDING = 3, GENERATIONS_MAX = 10000 };

struct load {
    struct pod_session session;
    struct load_file file;
    struct load_plan plan;
    struct progress progress;
    int64_t patience_ms, wait_ms, began_ns;
    uint64_t generation;
    bool is_resumed, again, yes;
};

static int failed(const struct error *error)
{
    fprintf(stderr, "freshet load: %s\n", error->message);
    return 1;
}

/* ---- which time is it that this very content is loaded? ---- */

/* Does the dictionary still have the version that this content made? A pod without the query role can't say. */
static bool is_current(struct load *load, int64_t version)
{
    char wanted[24];
    struct json_value answer, number;
    struct buf body;
    int64_t now = -1;
    struct pod_call call = load->session.call;
    snprintf(wanted, sizeof wanted, "%lld", (long long)version);
    call.code = load->plan.code;
    call.rest = STR("/version");
    call.min_version = str_from(wanted);
    if (pod_get(&call, &body, NULL) == STATUS_OK &&
        json_parse(buf_str(&body), JSON_DEPTH_MAX, &answer, NULL) == STATUS_OK &&
        json_get(&answer, STR("version"), &number) && !json_to_i64(&number, &now))
        now = -1;
    buf_deinit(&body);
    return now == version;
}

/* Looks for a name under which this content is not decided yet: new, or cut off on an earlier run. *version is the one
 * it made already where the dictionary still is at it, else 0. */
static enum status find_generation(struct load *load, int64_t *version, struct error *error)
{
    *version = 0;
    for (; load->generation < GENERATIONS_MAX; load->generation++) {
        char event_id[UUID_TEXT_BYTES];
        struct update_state state;
        int http_status = 0;
        struct pod_call call = load->session.call;
        call.http_status = &http_status;
        load_plan_identify(&load->plan, load->generation);
        load_plan_event_id(&load->plan, 0, event_id);
        enum status status = updates_ask(&call, event_id, load->patience_ms, &state, NULL, error);
        load->is_resumed = status == STATUS_OK && state.status == UPDATE_PENDING;
        if (http_status == 404 && str_eq(str_from(error->field), STR("UNKNOWN_UPDATE")))
            return STATUS_OK;
        if (status != STATUS_OK || load->is_resumed)
            return status;
        if (state.status == UPDATE_COMMITTED && !load->again && is_current(load, state.version)) {
            *version = state.version;
            return STATUS_OK;
        }
    }
    return error_set(error, STATUS_UNAVAILABLE, "this file was loaded too often to be told apart");
}

/* ---- sending ---- */

static enum status send_all(struct load *load, struct error *error)
{
    struct load_sending sending = {.call = &load->session.call,
                                   .plan = &load->plan,
                                   .file = &load->file,
                                   .patience_ms = load->patience_ms,
                                   .is_resumed = load->is_resumed,
                                   .progress = &load->progress};
    progress_start_of(&load->progress, load->plan.item_count);
    enum status status = load_send(&sending, error);
    progress_end(&load->progress);
    if (sending.skipped_count)
        fprintf(stderr, "freshet load: %llu of %zu chunks were there from an earlier run\n",
                (unsigned long long)sending.skipped_count, load->plan.chunk_count);
    return status;
}

static int conclude(const struct load *load, const struct update_state *state, const char *event_id)
{
    double seconds = (double)(clock_mono_ns() - load->began_ns) / (double)CLOCK_NS_PER_S;
    double items = (double)load->plan.item_count;
    switch (state->status) {
    case UPDATE_COMMITTED:
        printf("version %lld: %.0f items in %.1f s, %.0f items/s\n", (long long)state->version, items,
               seconds, items / (seconds > 0.001 ? seconds : 0.001));
        return fflush(stdout) == 0 ? 0 : 1;
    case UPDATE_FAILED: fprintf(stderr, "freshet load: %s: %s\n", state->code, state->message); return 1;
    case UPDATE_PENDING: break;
    }
    fprintf(
        stderr,
        "freshet load: everything is sent, but not committed yet; `freshet status %.*s %s --wait 10m` tells\n",
        STR_ARG(load->plan.tenant), event_id);
    return EXIT_PENDING;
}

/* A snapshot that waited too long for its missing chunks is given up by the pod; then this is a new one. */
static bool has_expired(enum status status, const struct error *error)
{
    return status == STATUS_BAD_REQUEST && str_eq(str_from(error->field), STR("SNAPSHOT_INCOMPLETE"));
}

static int run(struct load *load)
{
    struct error error = {0};
    struct update_state state;
    char event_id[UUID_TEXT_BYTES];
    int64_t version;
    enum status status = find_generation(load, &version, &error);
    if (status == STATUS_OK && version) {
        printf("version %lld: holds this file already; --again loads it anew\n", (long long)version);
        return 0;
    }
    if (status == STATUS_OK)
        status = send_all(load, &error);
    if (has_expired(status, &error)) {
        load->generation++;
        status = find_generation(load, &version, &error);
        if (status == STATUS_OK)
            status = send_all(load, &error);
    }
    load_plan_event_id(&load->plan, 0, event_id);
    if (status == STATUS_OK)
        status = updates_await(&load->session.call, event_id, load->wait_ms, &state, NULL, &error);
    if (status == STATUS_OK)
        return conclude(load, &state, event_id);
    failed(&error);
    if (status != STATUS_BAD_REQUEST)
        fprintf(stderr, "freshet load: the same command again goes on where this one ended\n");
    return 1;
}

/* ---- the call ---- */

static int run_with(struct load *load, const char *path, const char *url, const char *token)
{
    struct error error = {0};
    load->began_ns = clock_mono_ns();
    enum status status = load_file_open(&load->file, path, &error);
    if (status == STATUS_OK)
        status = load_plan_make(&load->plan, &load->file, &error);
    if (status != STATUS_OK)
        return failed(&error);
    if (load->plan.item_count == 0 && !load->yes) {
        fprintf(stderr, "freshet load: %s holds no item, which would clear the dictionary: --yes does so\n",
                load->file.name);
        return 1;
    }
    int exit_status = pod_session_open(&load->session, "load", url, token, load->plan.tenant);
    return exit_status ? exit_status : run(load);
}

static const char *read_format(struct load *load, const char *format, const char *path)
{
    if (!format)
        format = str_ends_with(str_from(path), STR(".csv")) ? "csv" : "ndjson";
    load->file.format = strcmp(format, "csv") == 0 ? LOAD_CSV : LOAD_NDJSON;
    if (load->file.format == LOAD_NDJSON && strcmp(format, "ndjson") != 0)
        return "--format is ndjson or csv";
    return load->file.key_column && load->file.format == LOAD_NDJSON ? "--key-column is for CSV" : NULL;
}

static bool read_count(const char *text, uint64_t max, size_t *count)
{
    uint64_t number;
    if (!str_to_u64(str_from(text), &number) || number < 1 || number > max)
        return false;
    *count = number;
    return true;
}

static const char *find_mistake(struct load *load, const struct option_words *words,
                                const char *const texts[4])
{
    int64_t revision;
    if (words->count != 3)
        return "TENANT, DICT and FILE are needed";
    if (!str_is_name(load->plan.tenant) || !str_is_name(load->plan.code))
        return "TENANT and DICT are 1 to 64 of A-Z a-z 0-9 . _ -";
    if (!read_count(texts[0], 1000000, &load->plan.chunk_items) ||
        !read_count(texts[1], UINT64_C(1) << 30, &load->plan.chunk_bytes))
        return "--chunk-items and --chunk-bytes take a number";
    if (load->plan.revision && !str_to_i64(str_from(load->plan.revision), &revision))
        return "--revision takes a whole number";
    if (!options_duration(texts[2], PATIENCE_MAX_MS, &load->patience_ms) ||
        !options_duration(texts[3], PATIENCE_MAX_MS, &load->wait_ms))
        return "--patience and --wait take a duration like 500ms, 3s or 1m";
    return NULL;
}

static const char summary[] =
    "Makes a file the whole content of a dictionary: NDJSON lines {\"key\":…,\"payload\":…}, as `freshet get\n"
    "--all` prints them, or CSV with a header; - is standard input. Readers see the old content until all of it is\n"
    "committed. The file is checked first: a bad line is named, and nothing is sent. Cut off, the same command\n"
    "goes on where it was. Exit status 0 when it is committed, 1 when not, 3 when that takes longer than --wait.\n\n"
    "  freshet load demo COUNTRY countries.ndjson\n"
    "  freshet load demo CURRENCY currencies.csv --key-column code\n"
    "  freshet get demo COUNTRY --all | freshet load other COUNTRY -";

int app_load(int argc, char **argv)
{
    const char *url = NULL, *token = NULL, *format = NULL;
    const char *texts[] = {"10000", "4194304", "1m", "10m"};
    struct option_words words;
    struct load load = {0};
    const struct option_row rows[] = {
        {"--format", "NAME", "ndjson or csv (default: by the file's name)", .into = &format},
        {"--key-column", "NAME", "the CSV column that is the key (default: the first)",
         .into = &load.file.key_column},
        {"--yes", NULL, "clear the dictionary when the file holds no item", .flag = &load.yes},
        {"--again", NULL, "also when the dictionary holds this very file already", .flag = &load.again},
        {"--revision", "N", "the source's revision; one lower than the last is refused",
         .into = &load.plan.revision},
        {"--chunk-items", "N", "items in a chunk (default 10000, as the pods' own limit)", .into = &texts[0]},
        {"--chunk-bytes", "N", "bytes of a chunk, about (default 4194304)", .into = &texts[1]},
        {"--patience", "1m", "how long to ask a pod that does not answer (default 1m)", .into = &texts[2]},
        {"--wait", "10m", "how long to wait for the commit (default 10m)", .into = &texts[3]},
        {"--url", "URL", POD_URL_HELP, .into = &url},
        {"--token", "TOKEN", POD_TOKEN_HELP, .into = &token},
        {.name = NULL},
    };
    enum options_outcome outcome = options_read_words(argc, argv, "TENANT DICT FILE", summary, rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome == OPTIONS_HELPED ? 0 : 2;
    load.plan.tenant = str_from(words.count > 0 ? words.items[0] : NULL);
    load.plan.code = str_from(words.count > 1 ? words.items[1] : NULL);
    const char *mistake = find_mistake(&load, &words, texts);
    if (!mistake)
        mistake = read_format(&load, format, words.items[2]);
    if (mistake) {
        fprintf(stderr, "freshet load: %s; `freshet load --help` says more\n", mistake);
        return 2;
    }
    int exit_status = run_with(&load, words.items[2], url, token);
    pod_session_close(&load.session);
    load_plan_deinit(&load.plan);
    load_file_close(&load.file);
    return exit_status;
}
