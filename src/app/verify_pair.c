/* One pair, one pod: version, number of items and digest of both (R6), asked again while they may become equal.
 *
 *     pod = database          ok, or differs: the same version has one content
 *     pod < database          the pod is late: wait a little, ask it again
 *     pod > database          our snapshot is old: load it again
 *
 * The keys that differ: the pod's stream beside the database's snapshot. Both are in bytewise key order, so they are walked in
 * step and only the current line of the stream is kept. */
#include <stdio.h>

#include "app/verify.h"
#include "base/clock.h"
#include "base/json.h"
#include "kernel/kernel.h"

enum { ASK_AGAIN_MS = 100, KEYS_SHOWN_MAX = 20 };

struct verify_pair {
    struct str tenant;
    struct refdata_dictionary *dictionary;
    struct str token;
    struct refdata_loaded loaded; /* the database's side */
};

struct side {
    int64_t version, item_count;
    char digest[HASH128_HEX_BYTES];
};

static struct side database_side(const struct verify_pair *pair)
{
    const struct cache_info *info = cache_snapshot_info(pair->loaded.snapshot);
    struct side side = {.version = info->version, .item_count = (int64_t)info->item_count};
    hash128_hex(info->digest, side.digest);
    return side;
}

static enum status load_pair(const struct verify *verify, struct verify_pair *pair, struct error *error)
{
    struct refdata_loaded loaded;
    const struct refdata_load wanted = {
        .dictionary = pair->dictionary,
        .tenant = pair->tenant,
        .timeout_ms = verify->settings->cache.load_timeout_ms,
        .memory_max = (uint64_t)verify->settings->cache.memory_bytes_max,
        .payload_bytes_max = SIZE_MAX, /* a row that is too large for pods shows as a difference */
    };
    refdata_loader_load(&wanted, &loaded);
    if (loaded.status != STATUS_OK) {
        *error = loaded.error;
        return error_context(error, "the database %.*s", STR_ARG(pair->dictionary->database->name));
    }
    if (pair->loaded.snapshot)
        cache_snapshot_unref(pair->loaded.snapshot);
    pair->loaded = loaded;
    return STATUS_OK;
}

static enum status ask_version(struct verify_pod *pod, const struct pod_call *call, struct side *side,
                               struct error *error)
{
    struct json_value answer, version, item_count, digest;
    struct buf body;
    enum status status = pod_get(call, &body, error);
    pod->is_down = status == STATUS_IO || status == STATUS_TIMEOUT;
    pod->error = *error;
    if (status == STATUS_OK &&
        (json_parse_stored(buf_str(&body), JSON_DEPTH_MAX, &answer, NULL) != STATUS_OK ||
         !json_get(&answer, STR("version"), &version) || !json_to_i64(&version, &side->version) ||
         !json_get(&answer, STR("itemCount"), &item_count) || !json_to_i64(&item_count, &side->item_count) ||
         !json_get_string(&answer, STR("digest"), &digest) || digest.raw.len != sizeof side->digest + 1))
        status = error_set(error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
    if (status == STATUS_OK)
        snprintf(side->digest, sizeof side->digest, "%.*s", (int)digest.raw.len - 2, digest.raw.ptr + 1);
    buf_deinit(&body);
    return status;
}

/* OK = both sides are known, of the same version where that could be waited for. */
static enum status compare(const struct verify *verify, struct verify_pair *pair, struct verify_pod *pod,
                           const struct pod_call *call, struct side *side, struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(verify->patience_ms);
    for (;;) {
        enum status status = ask_version(pod, call, side, error);
        if (status == STATUS_OK && side->version > database_side(pair).version) {
            status = load_pair(verify, pair, error);
            if (status != STATUS_OK)
                return status;
        }
        /* A pod that answers 503 may be loading. */
        bool may_change =
            status == STATUS_OK ? side->version != database_side(pair).version : status == STATUS_UNAVAILABLE;
        if (!may_change || clock_mono_ns() >= deadline_ns)
            return status;
        pod_pause(ASK_AGAIN_MS);
    }
}

/* ---- a line each ---- */

static void print_name(const char *verdict, const struct verify_pair *pair)
{
    printf("%s %.*s/%.*s", verdict, STR_ARG(pair->tenant), STR_ARG(pair->dictionary->code));
}

static void print_failed(struct verify *verify, const struct verify_pair *pair, struct str url,
                         const struct error *error)
{
    print_name("FAILED", pair);
    if (url.len)
        printf(" at %.*s", STR_ARG(url));
    printf(": %s\n", error->message);
    verify->other_count++;
}

static void print_differing(const struct side *pod, const struct side *database)
{
    const char *separator = ":";
    if (pod->version != database->version) {
        printf("%s version %lld (database %lld)", separator, (long long)pod->version,
               (long long)database->version);
        separator = ",";
    }
    if (pod->item_count != database->item_count) {
        printf("%s items %lld (database %lld)", separator, (long long)pod->item_count,
               (long long)database->item_count);
        separator = ",";
    }
    if (strcmp(pod->digest, database->digest) != 0)
        printf("%s digest %s (database %s)", separator, pod->digest, database->digest);
    printf("\n");
}

/* ---- keys ---- */

struct key_walk {
    struct cache_cursor cursor;
    const struct cache_record *record; /* the database's next; NULL = no more */
    struct arena arena;
    uint64_t differing_count;
    bool is_strange; /* a line was not an item */
};

static void report_key(struct key_walk *walk, struct str key, const char *what)
{
    if (walk->differing_count++ >= KEYS_SHOWN_MAX)
        return;
    struct buf text = {0};
    json_put_string(&text, key);
    printf("    %.*s %s\n", STR_ARG(buf_str(&text)), what);
    buf_deinit(&text);
}

static void report_only_in_database(struct key_walk *walk)
{
    report_key(walk, cache_record_key(walk->record), "is only in the database");
    walk->record = cache_cursor_next(&walk->cursor);
}

static bool compare_line(void *context, struct str line)
{
    struct key_walk *walk = context;
    struct json_value item, key;
    if (walk->record && str_eq(line, cache_record_body(walk->record))) {
        walk->record = cache_cursor_next(&walk->cursor);
        return true;
    }
    if (json_parse_stored(line, JSON_DEPTH_LIMIT, &item, NULL) != STATUS_OK ||
        !json_get_string(&item, STR("key"), &key)) {
        walk->is_strange = true;
        return false;
    }
    struct str name = json_str_decode(key.raw, &walk->arena);
    while (walk->record && str_compare(cache_record_key(walk->record), name) < 0)
        report_only_in_database(walk);
    if (walk->record && str_eq(cache_record_key(walk->record), name)) {
        report_key(walk, name, "has another payload");
        walk->record = cache_cursor_next(&walk->cursor);
    } else {
        report_key(walk, name, "is only in the pod");
    }
    arena_reset(&walk->arena);
    return true;
}

static enum status print_keys(const struct verify_pair *pair, const struct pod_call *call,
                              struct error *error)
{
    struct key_walk walk = {0};
    struct pod_lines lines = {.take_line = compare_line, .context = &walk};
    struct buf body;
    struct pod_call all = *call;
    cache_cursor_init(&walk.cursor, pair->loaded.snapshot, STR_NONE);
    walk.record = cache_cursor_next(&walk.cursor);
    walk.arena = ARENA(2048);
    all.rest = STR("/all");
    all.accept = "application/x-ndjson";
    all.on_body = pod_take_lines;
    all.context = &lines;
    enum status status = pod_get(&all, &body, error);
    if (walk.is_strange)
        error_set(error, STATUS_BAD_REQUEST, CLIENT_STRANGE_ANSWER);
    while (status == STATUS_OK && walk.record)
        report_only_in_database(&walk);
    if (status == STATUS_OK && walk.differing_count > KEYS_SHOWN_MAX)
        printf("    and %llu more\n", (unsigned long long)walk.differing_count - KEYS_SHOWN_MAX);
    else if (status == STATUS_OK && walk.differing_count == 0)
        printf("    no key differs any more\n");
    buf_deinit(&body);
    buf_deinit(&lines.line);
    arena_deinit(&walk.arena);
    return status;
}

/* ---- one pair ---- */

static void verify_pod_run(struct verify *verify, struct verify_pair *pair, struct verify_pod *pod)
{
    struct pod_call call = {
        .url = pod->url,
        .token = pair->token,
        .tenant = pair->tenant,
        .code = pair->dictionary->code,
        .rest = STR("/version"),
    };
    struct side side;
    struct error error = pod->error;
    if (pod->is_down || compare(verify, pair, pod, &call, &side, &error) != STATUS_OK) {
        print_failed(verify, pair, pod->url, &error);
        return;
    }
    struct side database = database_side(pair);
    if (side.version == database.version && side.item_count == database.item_count &&
        strcmp(side.digest, database.digest) == 0) {
        print_name("ok", pair);
        if (verify->pod_count > 1)
            printf(" at %.*s:", STR_ARG(pod->url));
        printf(" version %lld, %lld item%s\n", (long long)side.version, (long long)side.item_count,
               side.item_count == 1 ? "" : "s");
        verify->equal_count++;
        return;
    }
    print_name("DIFFERS", pair);
    printf(" at %.*s", STR_ARG(pod->url));
    print_differing(&side, &database);
    verify->other_count++;
    if (verify->show_keys && strcmp(side.digest, database.digest) != 0 &&
        print_keys(pair, &call, &error) != STATUS_OK)
        printf("    the keys could not be listed: %s\n", error.message);
}

void verify_pair_run(struct verify *verify, struct str tenant, struct refdata_dictionary *dictionary,
                     bool is_named)
{
    struct verify_pair pair = {.tenant = tenant, .dictionary = dictionary};
    struct error error = {0};
    struct buf token = {0};
    const char *scope = atomic_load(&dictionary->read_scope);
    const struct auth_settings *auth = config_section(verify->config, "auth");
    const struct auth_token_request request = {
        /* a development token has what the configuration requires */
        .tenant = tenant,
        .scopes = str_from(scope),
        .issuer = auth->issuer,
        .audience = auth->audiences.count ? auth->audiences.items[0] : STR_NONE,
        .tenant_claim = verify->settings->tenant_claim,
    };
    enum status status = client_token(verify->token, &request, &token, &error);
    pair.token = buf_str(&token);
    if (status == STATUS_OK)
        status = load_pair(verify, &pair, &error);
    if (status != STATUS_OK)
        print_failed(verify, &pair, STR_NONE, &error);
    bool is_written = status == STATUS_OK && (cache_snapshot_info(pair.loaded.snapshot)->version != 0 ||
                                              cache_snapshot_info(pair.loaded.snapshot)->item_count != 0);
    for (size_t i = 0; status == STATUS_OK && (is_named || is_written) && i < verify->pod_count; i++)
        verify_pod_run(verify, &pair, &verify->pods[i]);
    if (pair.loaded.snapshot)
        cache_snapshot_unref(pair.loaded.snapshot);
    buf_deinit(&token);
}
