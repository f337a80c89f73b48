/* One pair, one pod: version, number of items and digest of both (R6), asked again while the pod may only be
 * behind.
 *
 *     pod = database          ok, or differs: the same version has one content
 *     pod < database          behind: wait a little, ask the pod again
 *     pod > database          ours is old by now: load again, at once, so that little can happen in between
 */
#include <stdio.h>
#include <time.h>

#include "app/verify.h"
#include "base/clock.h"
#include "base/json.h"
#include "kernel/kernel.h"

enum { ASK_AGAIN_MS = 100 };

struct side {
    int64_t version, item_count;
    char digest[HASH128_HEX_BYTES];
};

static bool is_equal(const struct side *a, const struct side *b)
{
    return a->version == b->version && a->item_count == b->item_count && strcmp(a->digest, b->digest) == 0;
}

static struct side database_side(const struct verify_pair *pair)
{
    const struct cache_info *info = cache_snapshot_info(pair->loaded.snapshot);
    struct side side = {.version = info->version, .item_count = (int64_t)info->item_count};
    hash128_hex(info->digest, side.digest);
    return side;
}

static enum status load(const struct verify *verify, struct verify_pair *pair, struct error *error)
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

static enum status read_version(struct str body, struct side *side, struct error *error)
{
    struct json_value answer, version, item_count, digest;
    bool fits = json_parse_stored(body, JSON_DEPTH_MAX, &answer, NULL) == STATUS_OK &&
                json_get(&answer, STR("version"), &version) && json_to_i64(&version, &side->version) &&
                json_get(&answer, STR("itemCount"), &item_count) &&
                json_to_i64(&item_count, &side->item_count) && json_get(&answer, STR("digest"), &digest) &&
                digest.type == JSON_STRING && digest.raw.len == sizeof side->digest + 1;
    if (!fits)
        return error_set(error, STATUS_BAD_REQUEST, "the answer is not one of freshet's");
    memcpy(side->digest, digest.raw.ptr + 1, sizeof side->digest - 1);
    side->digest[sizeof side->digest - 1] = '\0';
    return STATUS_OK;
}

static enum status ask(struct verify_pod *pod, const struct pod_call *call, struct side *side,
                       struct error *error)
{
    struct buf body;
    enum status status = pod_get(call, &body, error);
    pod->is_down = status == STATUS_IO || status == STATUS_TIMEOUT;
    pod->error = *error;
    if (status == STATUS_OK)
        status = read_version(buf_str(&body), side, error);
    buf_deinit(&body);
    return status;
}

/* OK = both sides are known, of one version if there was any hope of that. */
static enum status compare(const struct verify *verify, struct verify_pair *pair, struct verify_pod *pod,
                           const struct pod_call *call, struct side *side, struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(verify->patience_ms);
    for (;;) {
        enum status status = ask(pod, call, side, error);
        if (status == STATUS_OK && side->version > database_side(pair).version) {
            status = load(verify, pair, error);
            if (status != STATUS_OK)
                return status;
        }
        /* A pod that says 503 is loading, perhaps. */
        bool may_change =
            status == STATUS_OK ? side->version != database_side(pair).version : status == STATUS_UNAVAILABLE;
        if (!may_change || clock_mono_ns() >= deadline_ns)
            return status;
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * CLOCK_NS_PER_MS}, NULL);
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

static void print_equal(struct verify *verify, const struct verify_pair *pair, struct str url,
                        const struct side *side)
{
    print_name("ok", pair);
    if (verify->pod_count > 1)
        printf(" at %.*s:", STR_ARG(url));
    printf(" version %lld, %lld item%s\n", (long long)side->version, (long long)side->item_count,
           side->item_count == 1 ? "" : "s");
    verify->equal_count++;
}

static void print_differing(struct verify *verify, const struct verify_pair *pair, struct str url,
                            const struct side *pod, const struct side *database)
{
    const char *separator = ":";
    print_name("DIFFERS", pair);
    printf(" at %.*s", STR_ARG(url));
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
    verify->other_count++;
}

/* ---- one pair ---- */

static void run_pod(struct verify *verify, struct verify_pair *pair, struct verify_pod *pod)
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
    if (is_equal(&side, &database)) {
        print_equal(verify, pair, pod->url, &side);
        return;
    }
    print_differing(verify, pair, pod->url, &side, &database);
    if (verify->show_keys && strcmp(side.digest, database.digest) != 0 &&
        verify_keys_print(pair, &call, &error) != STATUS_OK)
        printf("    the keys could not be listed: %s\n", error.message);
}

/* What the pods' configuration asks of a token, a development token has. */
static enum status make_token(const struct verify *verify, const struct verify_pair *pair, struct buf *token,
                              struct error *error)
{
    const char *scope = atomic_load(&pair->dictionary->read_scope);
    const struct auth_settings *auth = config_section(verify->config, "auth");
    const struct auth_token_request request = {
        .tenant = pair->tenant,
        .scopes = scope ? str_from(scope) : STR_NONE,
        .issuer = auth->issuer,
        .audience = auth->audiences.count ? auth->audiences.items[0] : STR_NONE,
        .tenant_claim = verify->settings->tenant_claim,
    };
    return pod_token(verify->token, &request, token, error);
}

void verify_pair_run(struct verify *verify, struct str tenant, struct refdata_dictionary *dictionary,
                     bool is_named)
{
    struct verify_pair pair = {.tenant = tenant, .dictionary = dictionary};
    struct error error = {0};
    struct buf token;
    buf_init(&token);
    enum status status = make_token(verify, &pair, &token, &error);
    pair.token = buf_str(&token);
    if (status == STATUS_OK)
        status = load(verify, &pair, &error);
    if (status != STATUS_OK)
        print_failed(verify, &pair, STR_NONE, &error);
    bool is_written = status == STATUS_OK && (cache_snapshot_info(pair.loaded.snapshot)->version != 0 ||
                                              cache_snapshot_info(pair.loaded.snapshot)->item_count != 0);
    for (size_t i = 0; status == STATUS_OK && (is_named || is_written) && i < verify->pod_count; i++)
        run_pod(verify, &pair, &verify->pods[i]);
    if (pair.loaded.snapshot)
        cache_snapshot_unref(pair.loaded.snapshot);
    buf_deinit(&token);
}
