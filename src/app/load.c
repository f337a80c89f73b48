/* `freshet load`: a file becomes the whole content of a dictionary, as a chunked snapshot. Nothing is sent before the
 * whole file has been read and checked; after an interruption the same command continues.
 *
 * Several chunks are on their way at once, a connection each: while one is being committed, the next are read, sent and parsed.
 * The first failure ends it; chunks under way still arrive, which does no harm. */
#include "app/load.h"

#include <pthread.h>

#include "app/commands.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "loop/worker.h"

enum { LANES = 4, GENERATIONS_MAX = 10000 };

struct load {
    struct client client;
    struct load_file file;
    struct load_plan plan;
    struct progress progress;
    const char *format;
    int64_t wait_ms, began_ns;
    uint64_t generation;
    bool is_resumed, again, yes;
};

/* ---- sending ---- */

struct lane {
    struct worker_job job;
    struct sender *sender;
    struct fetch_session *session;
    size_t index, item_count;
    struct buf json;
    bool is_busy; /* under the sender's mutex */
};

struct sender {
    struct load *load;
    uint64_t skipped_count; /* chunks that had arrived before; under the mutex */
    struct worker_pool *pool;
    struct lane lanes[LANES];
    pthread_mutex_t mutex;
    pthread_cond_t is_free;
    enum status status; /* the first failure, under the mutex; OK = none */
    struct error error;
};

/* ---- on a worker ---- */

/* Has this chunk arrived in an earlier run? */
static bool is_sent(struct lane *lane, const struct pod_call *call)
{
    const struct load *load = lane->sender->load;
    char event_id[UUID_TEXT_BYTES];
    struct update_state state;
    if (!load->is_resumed)
        return false;
    load_plan_event_id(&load->plan, lane->index, event_id);
    return updates_ask(call, event_id, &state, NULL, NULL) == STATUS_OK && state.status != UPDATE_FAILED;
}

static enum status send_chunk(struct lane *lane, bool *skipped, struct error *error)
{
    struct pod_call call = lane->sender->load->client.call;
    struct update_state state;
    call.session = lane->session;
    *skipped = is_sent(lane, &call);
    if (*skipped)
        return STATUS_OK;
    enum status status = updates_post(&call, "", buf_str(&lane->json), &state, error);
    if (status == STATUS_OK && state.status == UPDATE_FAILED)
        return error_set_field(error, STATUS_BAD_REQUEST, state.code, "%s: %s", state.code, state.message);
    return status;
}

static void run_lane(struct worker_job *job)
{
    struct lane *lane = (struct lane *)job; /* its first member */
    struct sender *sender = lane->sender;
    struct error error = {0};
    bool skipped = false;
    enum status status = send_chunk(lane, &skipped, &error);
    pthread_mutex_lock(&sender->mutex);
    if (status == STATUS_OK) {
        progress_count(&sender->load->progress, lane->item_count, buf_len(&lane->json));
        sender->skipped_count += skipped;
    } else if (sender->status == STATUS_OK) {
        sender->status = status;
        sender->error = error;
    }
    pthread_mutex_unlock(&sender->mutex);
}

static void on_lane_done(struct worker_job *job)
{
    struct lane *lane = (struct lane *)job;
    pthread_mutex_lock(&lane->sender->mutex);
    lane->is_busy = false;
    pthread_cond_signal(&lane->sender->is_free);
    pthread_mutex_unlock(&lane->sender->mutex);
}

/* ---- on the main thread ---- */

static struct lane *find_free_lane(struct sender *sender)
{
    for (unsigned i = 0; i < LANES; i++)
        if (!sender->lanes[i].is_busy)
            return &sender->lanes[i];
    return NULL;
}

/* Waits for a lane; NULL after a failure. */
static struct lane *take_lane(struct sender *sender)
{
    struct lane *lane = NULL;
    pthread_mutex_lock(&sender->mutex);
    while (sender->status == STATUS_OK && !(lane = find_free_lane(sender)))
        pthread_cond_wait(&sender->is_free, &sender->mutex);
    if (lane)
        lane->is_busy = true;
    pthread_mutex_unlock(&sender->mutex);
    return lane;
}

static bool on_chunk(void *context, const struct load_chunk *chunk)
{
    struct sender *sender = context;
    struct lane *lane = take_lane(sender);
    if (!lane)
        return false;
    lane->index = chunk->index;
    lane->item_count = chunk->item_count;
    buf_clear(&lane->json);
    load_chunk_put(&lane->json, &sender->load->plan, chunk);
    return worker_pool_submit(sender->pool, &lane->job); /* the queue has room for every lane */
}

static void sender_init(struct sender *sender, struct load *load)
{
    *sender = (struct sender){.load = load};
    pthread_mutex_init(&sender->mutex, NULL);
    pthread_cond_init(&sender->is_free, NULL);
    sender->pool = worker_pool_create("load", LANES, LANES);
    for (unsigned i = 0; i < LANES; i++)
        sender->lanes[i] = (struct lane){.job = {.run = run_lane, .done = on_lane_done},
                                         .sender = sender,
                                         .session = fetch_session_open()};
}

/* After all lanes are done. */
static void sender_deinit(struct sender *sender)
{
    pthread_mutex_lock(&sender->mutex);
    for (unsigned i = 0; i < LANES; i++)
        while (sender->lanes[i].is_busy)
            pthread_cond_wait(&sender->is_free, &sender->mutex);
    pthread_mutex_unlock(&sender->mutex);
    worker_pool_stop(sender->pool);
    worker_pool_destroy(sender->pool);
    for (unsigned i = 0; i < LANES; i++) {
        fetch_session_close(sender->lanes[i].session);
        buf_deinit(&sender->lanes[i].json);
    }
    pthread_cond_destroy(&sender->is_free);
    pthread_mutex_destroy(&sender->mutex);
}

/* Sends what is missing. An error's field is the answer's code. */
static enum status send_all(struct load *load, struct error *error)
{
    struct sender sender;
    progress_start_of(&load->progress, load->plan.item_count);
    sender_init(&sender, load);
    enum status status = load_plan_walk(&load->plan, &load->file, on_chunk, &sender, error);
    sender_deinit(&sender);
    if (sender.status != STATUS_OK) {
        status = sender.status;
        *error = sender.error;
    }
    progress_end(&load->progress);
    if (sender.skipped_count)
        (void)app_fail("load", "%llu of %zu chunks were sent by an earlier run",
                       (unsigned long long)sender.skipped_count, load->plan.chunk_count);
    return status;
}

/* ---- generations ---- */

/* Is the dictionary still at the version that this content made? Unknown, so false, where the pod lacks the query role. */
static bool is_current(struct load *load, int64_t version)
{
    char wanted[24];
    struct json_value answer, number;
    struct buf body;
    int64_t now = -1;
    struct pod_call call = load->client.call;
    snprintf(wanted, sizeof wanted, "%lld", (long long)version);
    call.patience_ms = 0;
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

/* The same content may be loaded several times, as generations with ids of their own. Finds the first that is not decided yet:
 * new, or interrupted in an earlier run. *version: the dictionary is still at the version that this content made; else 0. */
static enum status find_generation(struct load *load, int64_t *version, struct error *error)
{
    *version = 0;
    for (; load->generation < GENERATIONS_MAX; load->generation++) {
        char event_id[UUID_TEXT_BYTES];
        struct update_state state;
        int http_status = 0;
        struct pod_call call = load->client.call;
        call.http_status = &http_status;
        load_plan_identify(&load->plan, load->generation);
        load_plan_event_id(&load->plan, 0, event_id);
        enum status status = updates_ask(&call, event_id, &state, NULL, error);
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
    return error_set(error, STATUS_UNAVAILABLE,
                     "this file was loaded %d times already: change it to load it again", GENERATIONS_MAX);
}

/* ---- the command ---- */

static int print_result(const struct load *load, const struct update_state *state, const char *event_id)
{
    double seconds = (double)(clock_mono_ns() - load->began_ns) / (double)CLOCK_NS_PER_S;
    double items = (double)load->plan.item_count;
    switch (state->status) {
    case UPDATE_COMMITTED:
        printf("version %lld: %.0f items in %.1f s, %.0f items/s\n", (long long)state->version, items,
               seconds, items / (seconds > 0.001 ? seconds : 0.001));
        return 0;
    case UPDATE_FAILED: return app_fail("load", "%s: %s", state->code, state->message);
    case UPDATE_PENDING: break;
    }
    (void)app_fail(
        "load",
        "everything is sent, but not committed yet; `freshet status %.*s %s --wait 10m` prints the result",
        STR_ARG(load->plan.tenant), event_id);
    return UPDATE_EXIT_PENDING;
}

static int send_load(struct load *load)
{
    struct error error = {0};
    struct update_state state;
    char event_id[UUID_TEXT_BYTES];
    int64_t version;
    enum status status = find_generation(load, &version, &error);
    if (status == STATUS_OK && version) {
        printf("version %lld: holds this file already; --again loads it again\n", (long long)version);
        return 0;
    }
    if (status == STATUS_OK)
        status = send_all(load, &error);
    /* The pod gives up a snapshot whose chunks do not arrive in time; then this is a new one. */
    if (status == STATUS_BAD_REQUEST && str_eq(str_from(error.field), STR("SNAPSHOT_INCOMPLETE"))) {
        load->generation++;
        status = find_generation(load, &version, &error);
        if (status == STATUS_OK)
            status = send_all(load, &error);
    }
    load_plan_event_id(&load->plan, 0, event_id);
    if (status == STATUS_OK)
        status = updates_await(&load->client.call, event_id, load->wait_ms, &state, NULL, &error);
    if (status == STATUS_OK)
        return print_result(load, &state, event_id);
    (void)app_fail("load", "%s", error.message);
    if (status != STATUS_BAD_REQUEST)
        (void)app_fail("load", "run the same command again: it continues where this one ended");
    return 1;
}

static int run_load(struct client *client)
{
    struct load *load = CONTAINER_OF(client, struct load, client);
    struct error error = {0};
    int exit_status;
    load->began_ns = clock_mono_ns();
    enum status status = load_file_open(&load->file, client->words.items[2], &error);
    if (status == STATUS_OK)
        status = load_plan_make(&load->plan, &load->file, &error);
    if (status != STATUS_OK)
        exit_status = app_fail("load", "%s", error.message);
    else if (load->plan.item_count == 0 && !load->yes)
        exit_status = app_fail("load", "%s has no items: use --yes to clear the dictionary", load->file.name);
    else
        exit_status = send_load(load);
    load_plan_deinit(&load->plan);
    load_file_close(&load->file);
    return exit_status;
}

static const char *check_load(struct client *client)
{
    struct load *load = CONTAINER_OF(client, struct load, client);
    if (!str_is_name(client->tenant) || !str_is_name(client->code))
        return CLIENT_NAME_MISTAKE;
    load->plan.tenant = client->tenant;
    load->plan.code = client->code;
    if (!load->format)
        load->format = str_ends_with(str_from(client->words.items[2]), STR(".csv")) ? "csv" : "ndjson";
    load->file.format = strcmp(load->format, "csv") == 0 ? LOAD_CSV : LOAD_NDJSON;
    if (load->file.format == LOAD_NDJSON && strcmp(load->format, "ndjson") != 0)
        return "--format must be ndjson or csv";
    return load->file.key_column && load->file.format == LOAD_NDJSON ? "--key-column is for CSV only" : NULL;
}

int app_load(int argc, char **argv)
{
    struct load load = {.client.call.patience_ms = 60000,
                        .wait_ms = 600000,
                        .plan = {.chunk_items = 10000, .chunk_bytes = 4194304, .revision = INT64_MIN}};
    const struct option_row rows[] = {
        {"--format", "NAME", "ndjson or csv (default: by the name of the file)", .into = &load.format},
        {"--key-column", "NAME", "the CSV column that is the key (default: the first)",
         .into = &load.file.key_column},
        {"--yes", NULL, "clear the dictionary when the file has no items", .flag = &load.yes},
        {"--again", NULL, "also when the dictionary holds this file already", .flag = &load.again},
        {"--revision", "N", "the revision in the source system; one lower than the last is refused",
         .number = &load.plan.revision, .min = INT64_MIN},
        {"--chunk-items", "N", "items in a chunk (default 10000, the default limit of the pods)",
         .number = &load.plan.chunk_items, .min = 1, .max = 1000000},
        {"--chunk-bytes", "N", "bytes in a chunk, approximately (default 4194304)",
         .number = &load.plan.chunk_bytes, .min = 1, .max = INT64_C(1) << 30},
        {"--patience", "1m", "how long to retry while the pod does not answer (default 1m)",
         .duration_ms = &load.client.call.patience_ms},
        {"--wait", "10m", "how long to wait for the commit (default 10m)", .duration_ms = &load.wait_ms},
        CLIENT_ROWS(load.client),
    };
    return client_main(
        argc, argv, &load.client,
        &(struct client_command){
            .usage = "TENANT DICT FILE",
            .words_min = 3,
            .words_max = 3,
            .summary =
                "Replaces the content of a dictionary by a file: NDJSON lines {\"key\":…,\"payload\":…}, as `freshet get --all`\n"
                "prints them, or CSV with a header; - is standard input. Readers see the old content until all of the new\n"
                "one is committed. The file is checked first: a wrong line is named, and nothing is sent. After an\n"
                "interruption the same command continues. Exit status 0 when it is committed, 1 when not, 3 when that\n"
                "takes longer than --wait.\n\n"
                "  freshet load demo COUNTRY countries.ndjson\n"
                "  freshet load demo CURRENCY currencies.csv --key-column code\n"
                "  freshet get demo COUNTRY --all | freshet load other COUNTRY -",
            .rows = rows,
            .check = check_load,
            .run = run_load,
        });
}
