/* The catalog: all dictionaries and databases of one configuration. Immutable; replaced whole on reload, with
 * whatever did not change carried over. Read on every loop through one atomic pointer, and valid there until the callback
 * returns; elsewhere while it is held by a reference: refdata_catalog_hold(). */
#ifndef FRESHET_REFDATA_CATALOG_H
#define FRESHET_REFDATA_CATALOG_H

#include "modules/refdata/dictionary.h"

struct refdata_catalog {
    atomic_uint refs;
    struct arena arena; /* of its arrays, and of the strings of its settings */
    struct refdata_cache_settings cache;
    struct refdata_barrier_settings barrier;
    struct refdata_update_settings updates;
    struct refdata_watch_settings watch;
    struct outbox_settings outbox;
    int64_t wait_commit_timeout_ms;
    struct refdata_database **databases;
    size_t database_count;
    struct refdata_dictionary **dictionaries;
    size_t dictionary_count;
    bool has_write_scopes; /* some dictionary has one */
};

/* Checks what needs no server: templates, unique codes and block names, references. */
enum status refdata_catalog_check(const struct config *config, const struct refdata_settings *settings,
                                  struct error *error) MUST_CHECK;
/* `before` (may be NULL) gives what did not change; `kernel` as with refdata_database_create(). */
enum status refdata_catalog_create(const struct refdata_settings *settings, struct kernel *kernel,
                                   const struct refdata_catalog *before, struct refdata_catalog **catalog,
                                   struct error *error) MUST_CHECK;
void refdata_catalog_unref(struct refdata_catalog *catalog);
struct refdata_dictionary *refdata_catalog_find(const struct refdata_catalog *catalog,
                                                struct str code); /* NULL = unknown */
/* Is it one of the catalog's databases? A NULL catalog has none. */
bool refdata_catalog_names(const struct refdata_catalog *catalog, const struct refdata_database *database);

#endif
