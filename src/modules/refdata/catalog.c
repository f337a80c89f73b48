/* Building catalogs. Lookups by code happen only for what is not in memory yet, so a sorted array is enough. */
#include "modules/refdata/catalog.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

static int compare_code(const void *code, const void *at)
{
    return str_compare(*(const struct str *)code, (*(struct refdata_dictionary *const *)at)->code);
}

static int compare_dictionaries(const void *a, const void *b)
{
    return compare_code(&(*(struct refdata_dictionary *const *)a)->code, b);
}

struct refdata_dictionary *refdata_catalog_find(const struct refdata_catalog *catalog, struct str code)
{
    struct refdata_dictionary **found = bsearch(&code, catalog->dictionaries, catalog->dictionary_count,
                                                sizeof(struct refdata_dictionary *), compare_code);
    return found ? *found : NULL;
}

bool refdata_catalog_names(const struct refdata_catalog *catalog, const struct refdata_database *database)
{
    for (size_t i = 0; catalog && i < catalog->database_count; i++)
        if (catalog->databases[i] == database)
            return true;
    return false;
}

/* ---- checks of the file alone ---- */

static enum status check_dictionary(const struct config *config, const struct refdata_settings *settings,
                                    size_t index, struct error *error)
{
    const struct refdata_dictionary_settings *own = refdata_settings_dictionary(settings, index);
    char field[64];
    snprintf(field, sizeof field, "refdata.dictionaries[%zu].code", index);
    for (size_t i = 0; i < index; i++)
        if (str_eq(own->code, refdata_settings_dictionary(settings, i)->code))
            return config_error_at(config, own->code_place, field, error,
                                   "two dictionaries have the code \"%.*s\"; the first stands at line %u",
                                   STR_ARG(own->code),
                                   refdata_settings_dictionary(settings, i)->code_place.line);
    snprintf(field, sizeof field, "refdata.dictionaries[%zu].postgres", index);
    if (refdata_settings_database(settings, own->postgres) < 0)
        return config_error_at(config, own->postgres_place, field, error,
                               "there is no postgres block called \"%.*s\"", STR_ARG(own->postgres));
    struct refdata_dictionary *dictionary = NULL;
    enum status status = refdata_dictionary_create(config, own, index, NULL, &dictionary, error);
    if (status == STATUS_OK)
        refdata_dictionary_unref(dictionary);
    return status;
}

enum status refdata_catalog_check(const struct config *config, const struct refdata_settings *settings,
                                  struct error *error)
{
    const struct kernel_postgres *blocks = settings->postgres.items;
    enum status status = STATUS_OK;
    if (settings->postgres.count == 0)
        return config_error_at(config, (struct setting_place){1, 1}, "refdata.postgres", error,
                               "is missing, and so is postgres.jdbcUrl: no database is named");
    for (size_t i = 0; i < settings->postgres.count; i++) {
        for (size_t j = 0; j < i; j++)
            if (str_eq(blocks[i].name, blocks[j].name))
                return config_error_at(config, settings->postgres.places[i], "refdata.postgres", error,
                                       "two postgres blocks are called \"%.*s\": give each a name of its own",
                                       STR_ARG(blocks[i].name));
        status = kernel_postgres_check(config, &blocks[i], "refdata.postgres", error);
        if (status != STATUS_OK)
            return status;
    }
    for (size_t i = 0; status == STATUS_OK && i < settings->dictionaries.count; i++)
        status = check_dictionary(config, settings, i, error);
    for (size_t i = 0; status == STATUS_OK && i < settings->cache.preload.count; i++) {
        struct str rest = settings->cache.preload.items[i], tenant;
        bool fits = str_split(&rest, '/', &tenant) && (str_is_name(tenant) || str_eq(tenant, STR("*"))) &&
                    str_is_name(rest);
        bool is_known = false;
        for (size_t k = 0; k < settings->dictionaries.count; k++)
            is_known |= str_eq(refdata_settings_dictionary(settings, k)->code, rest);
        if (!fits || !is_known)
            status = config_error_at(
                config, settings->cache.preload_place, "refdata.cache.preload", error,
                "\"%.*s\" is not TENANT/DICTIONARY with a dictionary of this file (TENANT may be *)",
                STR_ARG(settings->cache.preload.items[i]));
    }
    return status;
}

/* ---- building ---- */

enum status refdata_catalog_create(const struct refdata_settings *settings, struct kernel *kernel,
                                   const struct refdata_catalog *before, struct refdata_catalog **out,
                                   struct error *error)
{
    struct refdata_catalog *catalog = memory_zalloc(sizeof *catalog);
    atomic_init(&catalog->refs, 1);
    catalog->arena = ARENA(1024);
    catalog->cache = settings->cache;
    catalog->cache.preload.items =
        arena_alloc(&catalog->arena, (settings->cache.preload.count + 1) * sizeof(struct str));
    for (size_t i = 0; i < settings->cache.preload.count; i++)
        catalog->cache.preload.items[i] = arena_str(&catalog->arena, settings->cache.preload.items[i]);
    catalog->barrier = settings->barrier;
    catalog->updates = settings->updates;
    catalog->watch = settings->watch;
    catalog->outbox = settings->outbox;
    catalog->wait_commit_timeout_ms = settings->wait_commit_timeout_ms;
    catalog->databases =
        arena_zalloc(&catalog->arena, (settings->postgres.count + 1) * sizeof(struct refdata_database *));
    catalog->dictionaries = arena_zalloc(&catalog->arena, (settings->dictionaries.count + 1) *
                                                              sizeof(struct refdata_dictionary *));
    const struct kernel_postgres *blocks = settings->postgres.items;
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < settings->postgres.count; i++) {
        uint64_t fingerprint = refdata_database_fingerprint(&blocks[i]);
        struct refdata_database **slot = &catalog->databases[catalog->database_count];
        for (size_t k = 0; before && k < before->database_count && !*slot; k++)
            if (before->databases[k]->fingerprint == fingerprint)
                *slot = refdata_database_ref(before->databases[k]);
        if (!*slot)
            status = refdata_database_create(&blocks[i], kernel, slot, error);
        catalog->database_count += status == STATUS_OK;
    }
    for (size_t i = 0; status == STATUS_OK && i < settings->dictionaries.count; i++) {
        const struct refdata_dictionary_settings *own = refdata_settings_dictionary(settings, i);
        if (!own->enabled)
            continue;
        struct refdata_database *database =
            catalog->databases[refdata_settings_database(settings, own->postgres)];
        struct refdata_dictionary **slot = &catalog->dictionaries[catalog->dictionary_count];
        struct refdata_dictionary *same = before ? refdata_catalog_find(before, own->code) : NULL;
        if (same && same->fingerprint == refdata_dictionary_fingerprint(own, database->fingerprint))
            refdata_dictionary_set_scopes(*slot = refdata_dictionary_ref(same), own);
        else
            status = refdata_dictionary_create(NULL, own, i, database, slot, error);
        catalog->dictionary_count += status == STATUS_OK;
        catalog->has_write_scopes |= own->write_scope.len > 0;
    }
    if (status != STATUS_OK) {
        refdata_catalog_unref(catalog);
        return status;
    }
    qsort(catalog->dictionaries, catalog->dictionary_count, sizeof(struct refdata_dictionary *),
          compare_dictionaries);
    *out = catalog;
    return STATUS_OK;
}

void refdata_catalog_unref(struct refdata_catalog *catalog)
{
    if (atomic_fetch_sub(&catalog->refs, 1) != 1)
        return;
    for (size_t i = 0; i < catalog->dictionary_count; i++)
        refdata_dictionary_unref(catalog->dictionaries[i]);
    for (size_t i = 0; i < catalog->database_count; i++)
        refdata_database_unref(catalog->databases[i]);
    arena_deinit(&catalog->arena);
    free(catalog);
}
