/* Providers: where a dictionary's items come from (the seed's DictionaryProvider). A small table of functions; all are
 * called on a worker, inside the transaction the caller opened. */
#ifndef FRESHET_REFDATA_PROVIDER_H
#define FRESHET_REFDATA_PROVIDER_H

#include "cache/cache.h"
#include "modules/refdata/dictionary.h"

struct refdata_provider {
    const char *name;
    /* Does PostgreSQL agree with the templates? DB_ERROR = no, with the field and position in the message; anything
     * else = could not be asked. */
    enum status (*check)(struct refdata_dictionary *dictionary, struct db_conn *conn, int64_t deadline_ns,
                         struct error *error);
    /* Puts every item of the tenant into the builder. */
    enum status (*load_all)(const struct refdata_dictionary *dictionary, struct str tenant,
                            struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                            struct error *error);
    /* Puts those of the items `keys` (a text[]) into the builder that are there, and perhaps others. */
    enum status (*load_keys)(const struct refdata_dictionary *dictionary, struct str tenant, struct str keys,
                             struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                             struct error *error);
};

extern const struct refdata_provider refdata_provider_sql, refdata_provider_builtin;

/* Rows with columns k and v straight into a builder: what both providers' loads come down to. */
enum status refdata_provider_load(const struct db_statement *statement, const struct db_param *params,
                                  struct db_conn *conn, int64_t deadline_ns, struct cache_builder *builder,
                                  struct error *error) MUST_CHECK;

#endif
