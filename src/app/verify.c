/* `freshet verify`: do the pods hold the content of the database? Each dictionary is loaded as a pod loads it, with the same
 * configuration and code, one pair of tenant and dictionary at a time. */
#include "app/verify.h"

#include <stdio.h>
#include <stdlib.h>

#include "app/commands.h"
#include "app/modules.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

enum { LIST_TIMEOUT_MS = 30000 };

/* Those with a version, and those with items in the built-in table, found by stepping through its primary key. */
static const struct db_statement tenants_sql = DB_STATEMENT(
    "with recursive t (tenant_id) as ("
    " (select tenant_id from refdata.dictionary_item order by tenant_id limit 1) union all"
    " select (select i.tenant_id from refdata.dictionary_item i where i.tenant_id > t.tenant_id"
    "          order by i.tenant_id limit 1)"
    "   from t where t.tenant_id is not null)"
    " select tenant_id from t where tenant_id is not null union select tenant_id from refdata.dictionary_meta");

/* ---- which pairs ---- */

struct tenants {
    struct arena arena;
    struct str *names;
    size_t count, capacity;
};

static int by_name(const void *a, const void *b)
{
    return str_compare(*(const struct str *)a, *(const struct str *)b);
}

static int by_code(const void *a, const void *b)
{
    return str_compare((*(struct refdata_dictionary *const *)a)->code,
                       (*(struct refdata_dictionary *const *)b)->code);
}

static void add_tenant(struct tenants *tenants, struct str name)
{
    if (!str_is_name(name))
        return;
    if (tenants->count == tenants->capacity) {
        tenants->capacity = tenants->capacity ? 2 * tenants->capacity : 64;
        tenants->names = memory_realloc_array(tenants->names, tenants->capacity, sizeof *tenants->names);
    }
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
        verify->other_count++;
    }
    for (size_t i = 0; i < preload->count; i++) {
        struct str code = preload->items[i], tenant;
        str_split(&code, '/', &tenant);
        add_tenant(&tenants, tenant); /* a star is not a name */
    }
    if (tenants.count)
        qsort(tenants.names, tenants.count, sizeof *tenants.names, by_name);
    memcpy(sorted, catalog->dictionaries, catalog->dictionary_count * sizeof(void *));
    qsort(sorted, catalog->dictionary_count, sizeof(void *), by_code);
    for (size_t d = 0; d < catalog->database_count; d++)
        for (size_t i = 0; listed[d] && i < tenants.count; i++)
            for (size_t j = 0; j < catalog->dictionary_count; j++)
                if (sorted[j]->database == catalog->databases[d] &&
                    (i == 0 || !str_eq(tenants.names[i - 1], tenants.names[i])))
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

static int run_verify(struct verify *verify, const char *config_path_given, const struct option_words *words)
{
    struct error error = {0};
    int exit_status = 2;
    log_set_level(LOG_LEVEL_ERROR); /* failures are printed as lines of the result */
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
        uint64_t count = verify->equal_count + verify->other_count;
        if (count == 0)
            (void)app_fail("verify", "nothing to compare: no tenant has written anything yet");
        else if (verify->other_count)
            (void)app_fail("verify", "%llu of %llu are not equal", (unsigned long long)verify->other_count,
                           (unsigned long long)count);
        exit_status = verify->other_count ? 1 : 0;
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
    const struct option_row rows[] = {
        APP_CONFIG_ROW(config),
        {"--url", "URL", CLIENT_URL_HELP "; may be given several times", .list = &urls},
        {"--token", "TOKEN", CLIENT_TOKEN_HELP, .into = &token},
        {"--patience", "3s", "how long to wait for a pod with an older version (default 3s)",
         .duration_ms = &verify.patience_ms},
        {"--show-keys", NULL, "list keys that differ, up to 20 a pair", .flag = &verify.show_keys},
        {.name = NULL},
    };
    int outcome = options_read_words(
        argc, argv, "[TENANT/DICT…]",
        "Compares the content of pods with the database: version, number of items and digest of the dictionaries\n"
        "named, or of every configured dictionary and known tenant. Exit status 0 when all are equal, 1 when not.\n\n"
        "  freshet verify demo/COUNTRY --show-keys\n"
        "  freshet verify --url http://pod-1:8080 --url http://pod-2:8080",
        rows, &words);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (!check_words(&verify, &words) || !client_token_given("verify", token, &verify.token))
        return OPTIONS_WRONG;
    struct buf url_buffer = {0};
    int exit_status = OPTIONS_RUN;
    verify.pod_count = urls.count ? urls.count : 1;
    for (size_t i = 0; i < verify.pod_count && exit_status == OPTIONS_RUN; i++) {
        verify.pods[i].url = client_url("verify", urls.count ? urls.items[i] : NULL, &url_buffer);
        if (!verify.pods[i].url.len)
            exit_status = 2;
    }
    if (exit_status == OPTIONS_RUN)
        exit_status = run_verify(&verify, config, &words);
    buf_deinit(&url_buffer);
    return exit_status;
}
