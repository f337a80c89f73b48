/* `freshet verify`: do the pods hold the content of the database? Each dictionary is loaded as a pod loads it, with the same
 * configuration and code, one pair of tenant and dictionary at a time: version, number of items and digest of both sides (R6), asked
 * again while they may become equal.
 *
 *     pod = database          ok, or differs: the same version has one content
 *     pod < database          the pod is late: wait a little, ask it again
 *     pod > database          our snapshot is old: load it again */
#include <stdio.h>
#include <stdlib.h>

#include "app/client.h"
#include "app/commands.h"
#include "app/verify.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "modules/refdata/query/query.h"

enum { ASK_AGAIN_MS = 100, LIST_TIMEOUT_MS = 30000, EXIT_DIFFERENT = 3 };

struct verify_pod {
    struct str url;
    bool is_down; /* did not answer: it is not called for the other pairs */
    struct error error;
};

struct verify {
    int64_t patience_ms;
    bool show_keys;
    struct str token;     /* client_token_given() */
    struct fetch_tls tls; /* as given */
    struct config *config;
    const struct refdata_settings *settings;
    struct refdata_catalog *catalog;
    struct verify_pod pods[OPTION_LIST_MAX];
    size_t pod_count;
    uint64_t equal_count, different_count, failed_count; /* lines printed: ok, DIFFERS, FAILED */
};

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
    cache_snapshot_unref(pair->loaded.snapshot);
    pair->loaded = loaded;
    return STATUS_OK;
}

static enum status ask_version(struct verify_pod *pod, const struct pod_call *call, struct side *side,
                               struct error *error)
{
    struct json_value answer, digest;
    struct buf body;
    enum status status = pod_get(call, &body, error);
    pod->is_down = status == STATUS_IO || status == STATUS_TIMEOUT;
    pod->error = *error;
    if (status == STATUS_OK &&
        (json_parse_stored(buf_str(&body), JSON_DEPTH_MAX, &answer, NULL) != STATUS_OK ||
         !json_get_i64(&answer, STR("version"), &side->version) ||
         !json_get_i64(&answer, STR("itemCount"), &side->item_count) ||
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
        struct pod_call ask = *call;
        ask.patience_ms = clock_ms_left(deadline_ns);
        enum status status = ask_version(pod, &ask, side, error);
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

static void print_name(const char *word, const struct verify_pair *pair)
{
    printf("%s %.*s/%.*s", word, STR_ARG(pair->tenant), STR_ARG(pair->dictionary->code));
}

static void print_failed(struct verify *verify, const struct verify_pair *pair, struct str url,
                         const struct error *error)
{
    print_name("FAILED", pair);
    if (url.len)
        printf(" at %.*s", STR_ARG(url));
    printf(": %s\n", error->message);
    verify->failed_count++;
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

/* ---- one pair ---- */

static void verify_pod_run(struct verify *verify, struct verify_pair *pair, struct verify_pod *pod)
{
    struct pod_call call = {.url = pod->url,
                            .token = pair->token,
                            .tenant = pair->tenant,
                            .code = pair->dictionary->code,
                            .rest = STR("/version"),
                            .patience_ms = verify->patience_ms,
                            .single = true,
                            .tls = client_tls(&verify->tls)};
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
    verify->different_count++;
    if (verify->show_keys && strcmp(side.digest, database.digest) != 0 &&
        verify_keys_print(pair->loaded.snapshot, &call, &error) != STATUS_OK)
        printf("    the keys could not be listed: %s\n", error.message);
}

/* Compares one pair with every pod and prints a line for each; nothing where it was never written and is not named. */
static void verify_pair_run(struct verify *verify, struct str tenant, struct refdata_dictionary *dictionary,
                            bool is_named)
{
    struct verify_pair pair = {.tenant = tenant, .dictionary = dictionary};
    struct error error = {0};
    struct buf token = {0};
    const struct auth_settings *auth = config_section(verify->config, "auth");
    const struct auth_token_request request = {
        /* a development token has what the configuration requires */
        .tenant = tenant,
        .scopes = str_from(atomic_load(&dictionary->read_scope)),
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
    if (pair.loaded.snapshot) {
        struct side loaded = database_side(&pair);
        for (size_t i = 0; (is_named || loaded.version || loaded.item_count) && i < verify->pod_count; i++)
            verify_pod_run(verify, &pair, &verify->pods[i]);
        cache_snapshot_unref(pair.loaded.snapshot);
    }
    buf_deinit(&token);
}

/* ---- which pairs ---- */

/* Those with a version, and those with items in the built-in table, found by stepping through its primary key. */
static const struct db_statement tenants_sql = DB_STATEMENT(
    "with recursive t (tenant_id) as ("
    " (select tenant_id from refdata.dictionary_item order by tenant_id limit 1) union all"
    " select (select i.tenant_id from refdata.dictionary_item i where i.tenant_id > t.tenant_id"
    "          order by i.tenant_id limit 1)"
    "   from t where t.tenant_id is not null)"
    " select tenant_id from t where tenant_id is not null union select tenant_id from refdata.dictionary_meta");

struct tenants {
    struct arena arena;
    struct str *names;
    size_t count;
};

static int by_code(const void *a, const void *b)
{
    return str_compare((*(struct refdata_dictionary *const *)a)->code,
                       (*(struct refdata_dictionary *const *)b)->code);
}

static void add_tenant(struct tenants *tenants, struct str name)
{
    if (!str_is_name(name))
        return;
    tenants->names = memory_realloc_array(tenants->names, tenants->count + 1, sizeof *tenants->names);
    tenants->names[tenants->count++] = arena_str(&tenants->arena, name);
}

/* Every configured dictionary for every known tenant, since a change by SQL that raised no version has no row in
 * dictionary_meta. Pairs that were never written are left out. */
static void run_all(struct verify *verify)
{
    const struct refdata_catalog *catalog = verify->catalog;
    const struct setting_strings *preload = &verify->settings->cache.preload;
    struct tenants tenants = {.names = NULL};
    bool *listed = memory_zalloc((catalog->database_count + 1) * sizeof *listed);
    struct refdata_dictionary **sorted = memory_alloc((catalog->dictionary_count + 1) * sizeof(void *));
    tenants.arena = ARENA(4096);
    for (size_t i = 0; i < catalog->database_count; i++) {
        const struct refdata_database *database = catalog->databases[i];
        int64_t deadline_ns = clock_deadline_ms(LIST_TIMEOUT_MS);
        struct db_result *found = NULL;
        struct db_conn *conn = NULL;
        struct error error = {0};
        enum status status = db_acquire(database->site.pool, deadline_ns, &conn, &error);
        if (status == STATUS_OK)
            status = db_query(conn, &tenants_sql, DB_NO_PARAMS, deadline_ns, &found, &error);
        db_release(conn);
        listed[i] = status == STATUS_OK;
        for (size_t row = 0; listed[i] && row < db_result_rows(found); row++)
            add_tenant(&tenants, db_result_str(found, row, 0));
        db_result_free(found);
        if (listed[i])
            continue;
        printf("FAILED database %.*s at %s: %s\n", STR_ARG(database->name),
               db_pool_address(database->site.pool), error.message);
        verify->failed_count++;
    }
    for (size_t i = 0; i < preload->count; i++) {
        struct str code = preload->items[i], tenant;
        str_split(&code, '/', &tenant);
        add_tenant(&tenants, tenant); /* a star is not a name */
    }
    tenants.count = str_sort(tenants.names, tenants.count);
    memcpy(sorted, catalog->dictionaries, catalog->dictionary_count * sizeof(void *));
    qsort(sorted, catalog->dictionary_count, sizeof(void *), by_code);
    for (size_t d = 0; d < catalog->database_count; d++)
        for (size_t i = 0; listed[d] && i < tenants.count; i++)
            for (size_t j = 0; j < catalog->dictionary_count; j++)
                if (sorted[j]->database == catalog->databases[d])
                    verify_pair_run(verify, tenants.names[i], sorted[j], false);
    free(sorted);
    free(listed);
    free(tenants.names);
    arena_deinit(&tenants.arena);
}

static bool split_pair(const char *word, struct str *tenant, struct str *code)
{
    *code = str_from(word);
    return str_split(code, '/', tenant) && str_is_name(*tenant) && str_is_name(*code);
}

/* Each word is TENANT/DICT and, once the configuration is loaded, names a dictionary of it. */
static bool check_words(const struct verify *verify, const struct option_words *words)
{
    for (size_t i = 0; i < words->count; i++) {
        struct str tenant, code;
        if (!split_pair(words->items[i], &tenant, &code)) {
            (void)app_misuse("verify", "\"%s\" is not TENANT/DICT", words->items[i]);
            return false;
        }
        if (verify->catalog && !refdata_catalog_find(verify->catalog, code)) {
            (void)app_misuse("verify", "there is no dictionary \"%.*s\" in %s", STR_ARG(code),
                             config_path(verify->config));
            return false;
        }
    }
    return true;
}

/* ---- the command ---- */

/* Only what was compared counts as a difference. */
static int conclude(const struct verify *verify)
{
    uint64_t count = verify->equal_count + verify->different_count + verify->failed_count;
    if (count == 0)
        (void)app_fail("verify", "nothing to compare: no tenant has written anything yet");
    if (verify->different_count)
        (void)app_fail("verify", "%llu of %llu are not equal", (unsigned long long)verify->different_count,
                       (unsigned long long)count);
    if (verify->failed_count)
        (void)app_fail("verify", "%llu of %llu could not be compared",
                       (unsigned long long)verify->failed_count, (unsigned long long)count);
    return verify->different_count ? EXIT_DIFFERENT : verify->failed_count ? 1 : 0;
}

static int run_verify(struct verify *verify, const char *config_path_given, const struct option_words *words)
{
    struct error error = {0};
    int exit_status = 2;
    verify->config = app_config_load(config_path_given);
    if (!verify->config)
        return 1;
    verify->settings = config_section(verify->config, refdata_section.name);
    if (refdata_catalog_create(verify->settings, NULL, NULL, &verify->catalog, &error) != STATUS_OK) {
        config_free(verify->config);
        return app_fail("verify", "%s", error.message);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (check_words(verify, words)) {
        for (size_t i = 0; i < words->count; i++) {
            struct str tenant, code;
            (void)split_pair(words->items[i], &tenant, &code);
            verify_pair_run(verify, tenant, refdata_catalog_find(verify->catalog, code), true);
        }
        if (words->count == 0)
            run_all(verify);
        exit_status = conclude(verify);
    }
    refdata_catalog_unref(verify->catalog);
    config_free(verify->config);
    cache_drain();
    return exit_status;
}

int app_verify(int argc, char **argv)
{
    const char *config = NULL, *token = NULL;
    struct option_list urls = {0};
    struct option_words words;
    struct verify verify = {.patience_ms = 3000};
    bool books = false, is_json = false;
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--url", "URL", CLIENT_URL_HELP "; may be given several times", .list = &urls},
        {"--token", "TOKEN", CLIENT_TOKEN_HELP, .into = &token},
        CLIENT_TLS_ROWS(verify.tls),
        {"--patience", "3s",
         "how long to wait for a pod's answer and version, or for consumers of Kafka and NATS (default 3s)",
         .duration_ms = &verify.patience_ms},
        {"--show-keys", NULL, "list keys that differ, up to 20 a pair", .flag = &verify.show_keys},
        {"--books", NULL, "check that everything accepted is decided or carried; needs no pod",
         .flag = &books},
        {"--json", NULL, "with --books: one JSON object a line", .flag = &is_json},
        {.name = NULL},
    };
    int outcome = options_read_words(
        argc, argv, "[TENANT/DICT…]",
        "Compares the content of pods with the database: version, number of items and digest of the dictionaries\n"
        "named, or of every configured dictionary and known tenant. Exit status 0 when all are equal, 3 when some\n"
        "differ, 1 when some could not be compared and none differs.\n\n"
        "  freshet verify demo/COUNTRY --show-keys\n"
        "  freshet verify --url http://pod-1:8080 --url http://pod-2:8080\n\n"
        "With --books it compares what was accepted with what was decided, in all databases of the configuration, and\n"
        "lists what is lost: neither decided nor carried by a message, an outbox or an engine. Exit status 3 then, 1 when\n"
        "a database or an engine does not answer.",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (books ? words.count || urls.count || token || verify.show_keys : is_json)
        return app_misuse("verify", books ? "with --books give only --config, --patience and --json"
                                          : "--json is for --books");
    if (books)
        return app_books(config, verify.patience_ms, is_json);
    if (!check_words(&verify, &words) || !client_token_given("verify", token, &verify.token))
        return OPTIONS_WRONG;
    struct buf url_buffer = {0};
    int exit_status = OPTIONS_RUN;
    verify.pod_count = urls.count ? urls.count : 1;
    for (size_t i = 0; i < verify.pod_count && exit_status == OPTIONS_RUN; i++) {
        verify.pods[i].url = client_url("verify", urls.count ? urls.items[i] : NULL, &url_buffer);
        if (!verify.pods[i].url.len || !client_tls_given("verify", &verify.tls))
            exit_status = 2;
    }
    if (exit_status == OPTIONS_RUN)
        exit_status = run_verify(&verify, config, &words);
    buf_deinit(&url_buffer);
    return exit_status;
}
