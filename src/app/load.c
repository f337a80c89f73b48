/* `freshet load`: a file becomes the whole content of a dictionary, as a chunked snapshot. It is read twice:
 *
 *     file ─ items ─ chunks ─ first pass: counted and hashed, nothing is sent before all of it is checked
 *                           ─ second pass: the same chunks, with ids made of those hashes
 *
 * Snapshot and events have ids made of their content: the same command, run again after an interruption, sends the same chunks, and
 * those that have arrived have no second effect. Several are on their way at once, a connection each: while one is being
 * committed, the next are read, sent and parsed. The first failure ends it; chunks under way still arrive, which does no harm. */
#include "app/load.h"

#include <pthread.h>
#include <stdlib.h>

#include "app/commands.h"
#include "app/updates.h"
#include "auth/digest.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/memory.h"

enum { LANES = 4, GENERATIONS_MAX = 10000 };

struct plan { /* the result of the first pass */
    struct str tenant, code;
    int64_t revision; /* INT64_MIN = none */
    int64_t chunk_items, chunk_bytes;
    uint64_t item_count;
    struct hash128 content;
    struct hash128 *hashes; /* of each chunk's items */
    size_t chunk_count;
    struct uuid snapshot_id;
};

struct chunk {
    size_t index;     /* from 0 */
    struct str items; /* {…},{…} */
    size_t item_count;
};

struct load {
    struct client client;
    struct load_file file;
    struct plan plan;
    struct progress progress;
    const char *format;
    int64_t wait_ms, began_ns;
    uint64_t generation;
    bool is_resumed, again, yes;
};

/* ---- chunks ---- */

struct cutter {
    const struct plan *plan;
    struct load_file *file;
    struct buf items;
    size_t count; /* chunks so far */
    bool is_at_end;
};

/* The next chunk, valid until the next call; *has_chunk is false at the end. The same file is always cut at the same places. An
 * empty file is one empty chunk. */
static enum status cut_chunk(struct cutter *cutter, struct chunk *chunk, bool *has_chunk, struct error *error)
{
    const struct plan *plan = cutter->plan;
    enum status status = cutter->count == 0 ? load_file_rewind(cutter->file, error) : STATUS_OK;
    *chunk = (struct chunk){.index = cutter->count};
    buf_clear(&cutter->items);
    while (status == STATUS_OK && !cutter->is_at_end && (int64_t)chunk->item_count < plan->chunk_items &&
           (int64_t)buf_len(&cutter->items) < plan->chunk_bytes) {
        bool has_item;
        size_t before = buf_len(&cutter->items);
        if (chunk->item_count)
            buf_put_char(&cutter->items, ',');
        status = load_file_next(cutter->file, &cutter->items, &has_item, error);
        cutter->is_at_end = !has_item;
        chunk->item_count += has_item;
        if (!has_item) /* without the comma before nothing */
            cutter->items.end = cutter->items.start + before;
    }
    chunk->items = buf_str(&cutter->items);
    *has_chunk = status == STATUS_OK && (chunk->item_count || chunk->index == 0);
    cutter->count += *has_chunk;
    return status;
}

static struct hash128 hash_chunk(const struct chunk *chunk)
{
    return hash_item(STR("chunk"), chunk->items);
}

/* The first pass. */
static enum status make_plan(struct load *load, struct error *error)
{
    struct plan *plan = &load->plan;
    struct cutter cutter = {.plan = plan, .file = &load->file};
    struct chunk chunk;
    bool has_chunk = true;
    enum status status = STATUS_OK;
    while ((status = cut_chunk(&cutter, &chunk, &has_chunk, error)) == STATUS_OK && has_chunk) {
        char before[HASH128_HEX_BYTES];
        plan->hashes = memory_realloc_array(plan->hashes, plan->chunk_count + 1, sizeof *plan->hashes);
        plan->hashes[plan->chunk_count++] = hash_chunk(&chunk);
        plan->item_count += chunk.item_count;
        hash128_hex(plan->content, before);
        plan->content = hash_item(str_from(before), chunk.items); /* with all before it */
    }
    buf_deinit(&cutter.items);
    return status;
}

/* ---- ids ---- */

/* The ids of the `generation`th time that this very content is loaded. */
static void plan_identify(struct plan *plan, uint64_t generation)
{
    static const struct uuid space = {.bytes = "freshet load ids"}; /* 16 bytes */
    char content[HASH128_HEX_BYTES], revision[24] = "-";
    struct buf text = {0};
    hash128_hex(plan->content, content);
    if (plan->revision != INT64_MIN)
        snprintf(revision, sizeof revision, "%lld", (long long)plan->revision);
    buf_printf(&text, "%s %.*s %.*s %s %zu %llu", content, STR_ARG(plan->tenant), STR_ARG(plan->code),
               revision, plan->chunk_count, (unsigned long long)generation);
    plan->snapshot_id = auth_uuid_named(&space, buf_str(&text));
    buf_deinit(&text);
}

static void plan_event_id(const struct plan *plan, size_t index, char out[UUID_TEXT_BYTES])
{
    char number[24];
    snprintf(number, sizeof number, "%zu", index);
    struct uuid id = auth_uuid_named(&plan->snapshot_id, str_from(number));
    uuid_format(&id, out);
}

/* ---- sending: the second pass ---- */

struct sender {
    struct load *load;
    pthread_mutex_t mutex; /* of all that follows */
    struct cutter cutter;
    uint64_t skipped_count; /* chunks that had arrived before */
    enum status status;     /* the first failure; OK = none */
    struct error error;
};

/* Takes the next chunk into `json`, compared with the first pass. False at the end, or after a failure. The mutex is held. */
static bool take_chunk(struct sender *sender, struct chunk *chunk, char event_id[UUID_TEXT_BYTES],
                       struct buf *json)
{
    const struct plan *plan = &sender->load->plan;
    char snapshot_id[UUID_TEXT_BYTES];
    bool has_chunk = false;
    if (sender->status != STATUS_OK)
        return false;
    sender->status = cut_chunk(&sender->cutter, chunk, &has_chunk, &sender->error);
    struct hash128 hash = hash_chunk(chunk);
    bool is_known = has_chunk
                        ? chunk->index < plan->chunk_count && hash.low == plan->hashes[chunk->index].low &&
                              hash.high == plan->hashes[chunk->index].high
                        : sender->cutter.count == plan->chunk_count;
    if (sender->status == STATUS_OK && !is_known)
        sender->status = error_set(&sender->error, STATUS_BAD_REQUEST,
                                   "the file changed while it was read: run the command again");
    if (sender->status != STATUS_OK || !has_chunk)
        return false;
    plan_event_id(plan, chunk->index, event_id);
    uuid_format(&plan->snapshot_id, snapshot_id);
    buf_clear(json);
    buf_put_char(json, '{');
    json_put_member_str(json, "eventId", str_from(event_id));
    json_put_member_str(json, "dictCode", plan->code);
    json_put_member_str(json, "eventType", STR("SNAPSHOT"));
    json_put_member_str(json, "snapshotId", str_from(snapshot_id));
    json_put_member_i64(json, "chunkIndex", (int64_t)chunk->index + 1);
    json_put_member_i64(json, "chunksTotal", (int64_t)plan->chunk_count);
    if (plan->revision != INT64_MIN)
        json_put_member_i64(json, "sourceRevision", plan->revision);
    json_put_open(json, "items", '[');
    buf_put_str(json, chunk->items);
    buf_put_str(json, STR("]}"));
    return true;
}

/* A lane: one chunk after the other over a connection of its own. */
static void *run_lane(void *context)
{
    struct sender *sender = context;
    struct pod_call call = sender->load->client.call;
    struct chunk chunk;
    char event_id[UUID_TEXT_BYTES];
    struct buf json = {0};
    call.session = fetch_session_open();
    pthread_mutex_lock(&sender->mutex);
    while (take_chunk(sender, &chunk, event_id, &json)) {
        struct update_state state;
        struct error error = {0};
        enum status status = STATUS_OK;
        pthread_mutex_unlock(&sender->mutex);
        if (sender->load->is_resumed)
            status = updates_ask(&call, event_id, &state, NULL, &error);
        bool skipped = sender->load->is_resumed && status == STATUS_OK &&
                       state.status != UPDATE_FAILED; /* it arrived in an earlier run */
        if (!skipped && !pod_is_away(status))
            status = updates_post(&call, "", buf_str(&json), &state, &error);
        if (status == STATUS_OK && state.status == UPDATE_FAILED)
            status =
                error_set_field(&error, STATUS_BAD_REQUEST, state.code, "%s: %s", state.code, state.message);
        pthread_mutex_lock(&sender->mutex);
        if (status == STATUS_OK) {
            progress_count(&sender->load->progress, chunk.item_count, buf_len(&json));
            sender->skipped_count += skipped;
        } else if (sender->status == STATUS_OK) {
            sender->status = status;
            sender->error = error;
        }
    }
    pthread_mutex_unlock(&sender->mutex);
    fetch_session_close(call.session);
    buf_deinit(&json);
    return NULL;
}

/* Sends what is missing. An error's field is the answer's code. */
static enum status send_all(struct load *load, struct error *error)
{
    struct sender sender = {.load = load, .cutter = {.plan = &load->plan, .file = &load->file}};
    pthread_t lanes[LANES - 1]; /* and this thread */
    unsigned count = 0;
    progress_start(&load->progress, load->plan.item_count > 0, load->plan.item_count);
    pthread_mutex_init(&sender.mutex, NULL);
    while (count < LANES - 1 && pthread_create(&lanes[count], NULL, run_lane, &sender) == 0)
        count++;
    run_lane(&sender);
    while (count > 0)
        pthread_join(lanes[--count], NULL);
    pthread_mutex_destroy(&sender.mutex);
    buf_deinit(&sender.cutter.items);
    progress_end(&load->progress);
    if (sender.skipped_count)
        (void)app_fail("load", "%llu of %zu chunks were sent by an earlier run",
                       (unsigned long long)sender.skipped_count, load->plan.chunk_count);
    if (sender.status != STATUS_OK)
        *error = sender.error;
    return sender.status;
}

/* ---- generations ---- */

/* Is the dictionary still at the version that this content made? Unknown, so false, where the pod lacks the query role. */
static bool is_current(struct load *load, int64_t version)
{
    char wanted[24];
    struct json_value answer;
    struct buf body;
    int64_t now;
    struct pod_call call = load->client.call;
    snprintf(wanted, sizeof wanted, "%lld", (long long)version);
    call.single = true;
    call.code = load->plan.code;
    call.rest = STR("/version");
    call.min_version = str_from(wanted);
    bool is_known = pod_get(&call, &body, NULL) == STATUS_OK &&
                    json_parse(buf_str(&body), JSON_DEPTH_MAX, &answer, NULL) == STATUS_OK &&
                    json_get_i64(&answer, STR("version"), &now);
    buf_deinit(&body);
    return is_known && now == version;
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
        plan_identify(&load->plan, load->generation);
        plan_event_id(&load->plan, 0, event_id);
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
    plan_event_id(&load->plan, 0, event_id);
    if (status == STATUS_OK)
        status = updates_await(&load->client.call, event_id, load->wait_ms, &state, NULL, &error);
    if (status != STATUS_OK) {
        (void)app_fail("load", "%s", error.message);
        if (status != STATUS_BAD_REQUEST)
            (void)app_fail("load", "run the same command again: it continues where this one ended");
        return 1;
    }
    if (state.status == UPDATE_FAILED)
        return app_fail("load", "%s: %s", state.code, state.message);
    if (state.status == UPDATE_COMMITTED) {
        double seconds = (double)(clock_mono_ns() - load->began_ns) / (double)CLOCK_NS_PER_S;
        double items = (double)load->plan.item_count;
        printf("version %lld: %.0f items in %.1f s, %.0f items/s\n", (long long)state.version, items, seconds,
               items / (seconds > 0.001 ? seconds : 0.001));
        return 0;
    }
    (void)app_fail(
        "load",
        "everything is sent, but not committed yet; `freshet status %.*s %s --wait 10m` prints the result",
        STR_ARG(load->plan.tenant), event_id);
    return UPDATE_EXIT_PENDING;
}

static int run_load(struct client *client)
{
    struct load *load = CONTAINER_OF(client, struct load, client);
    struct error error = {0};
    int exit_status;
    load->plan.tenant = client->tenant;
    load->plan.code = client->code;
    if (!load->format)
        load->format = str_ends_with(str_from(client->words.items[2]), STR(".csv")) ? "csv" : "ndjson";
    load->file.format = strcmp(load->format, "csv") == 0 ? LOAD_CSV : LOAD_NDJSON;
    if (load->file.format == LOAD_NDJSON && strcmp(load->format, "ndjson") != 0)
        return app_misuse("load", "--format must be ndjson or csv");
    if (load->file.key_column && load->file.format == LOAD_NDJSON)
        return app_misuse("load", "--key-column is for CSV only");
    if (!client_connect(client))
        return 1;
    load->began_ns = clock_mono_ns();
    enum status status = load_file_open(&load->file, client->words.items[2], &error);
    if (status == STATUS_OK)
        status = make_plan(load, &error);
    if (status != STATUS_OK)
        exit_status = app_fail("load", "%s", error.message);
    else if (load->plan.item_count == 0 && !load->yes)
        exit_status = app_fail("load", "%s has no items: use --yes to clear the dictionary", load->file.name);
    else
        exit_status = send_load(load);
    free(load->plan.hashes);
    load_file_close(&load->file);
    return exit_status;
}

int app_load(int argc, char **argv)
{
    struct load load = {.client.call.patience_ms = 60000,
                        .wait_ms = 600000,
                        .plan = {.chunk_items = 10000, .chunk_bytes = 4194304, .revision = INT64_MIN}};
    const struct option_row rows[] = {
        {"--format", "NAME", "ndjson or csv (default: by the name of the file)", .into = &load.format,
         .choices = "ndjson csv"},
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
            .names_dictionary = true,
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
            .run = run_load,
        });
}
