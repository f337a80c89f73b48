/* A dictionary's definition: its templates compiled, its database, and whether PostgreSQL agrees with them (R15).
 *
 * Immutable but for its state, and counted: the catalog, what is held in memory and loads under way each hold it, so
 * that a configuration reload never pulls it away from under them. */
#ifndef FRESHET_REFDATA_DICTIONARY_H
#define FRESHET_REFDATA_DICTIONARY_H

#include <stdatomic.h>

#include "modules/refdata/database.h"
#include "modules/refdata/settings.h"

enum refdata_dictionary_state {
    REFDATA_UNCHECKED, /* PostgreSQL has not been asked yet */
    REFDATA_READY,
    REFDATA_DISABLED, /* a template does not prepare or lacks k or v: 503 until it does */
};

enum refdata_field {
    REFDATA_LOAD,
    REFDATA_LOAD_KEYS,
    REFDATA_DRIFT_CHECK,
    REFDATA_UPSERT,
    REFDATA_DELETE,
    REFDATA_SNAPSHOT_REPLACE,
    REFDATA_SNAPSHOT_STAGE,
    REFDATA_SNAPSHOT_FINALIZE,
    REFDATA_FIELDS
};

/* One field's SQL, ready to be prepared. */
struct refdata_sql {
    bool given;
    struct str text; /* as in the file */
    struct db_statement statement;
};

struct refdata_dictionary {
    atomic_uint refs;
    _Atomic(enum refdata_dictionary_state) state;
    _Atomic(const char *) read_scope, write_scope; /* NULL = none; kept until the process ends */
    struct arena arena;
    struct str code;
    uint64_t fingerprint; /* of the definition and its database */
    struct refdata_database *database;
    bool is_builtin; /* without loadSql: the table refdata.dictionary_item */
    struct refdata_sql sql[REFDATA_FIELDS];
    struct db_statement
        lookup;      /* some keys out of loadSql: loadKeysSql, or loadSql with a condition around it */
    bool can_lookup; /* PostgreSQL takes that; set by the check, before state becomes READY */
    bool delta;      /* reloadOnEvent */
    atomic_bool drift_refused; /* PostgreSQL does not take driftCheckSql */
    int64_t checked_at_ns;     /* the sweep's */
};

/* The named parameters of templates, in the order struct db_statement.names refers to. */
enum refdata_parameter {
    REFDATA_TENANT_ID,
    REFDATA_KEY,
    REFDATA_SNAPSHOT_ID,
    REFDATA_PAYLOAD,
    REFDATA_SNAPSHOT_JSON,
    REFDATA_EVENT_EPOCH,
    REFDATA_EVENT_VERSION,
    REFDATA_CHUNK_INDEX,
    REFDATA_KEYS,
    REFDATA_PARAMETERS
};

const char *refdata_field_name(enum refdata_field field); /* "apply.upsertSql" */
const struct refdata_template *refdata_field_template(const struct refdata_dictionary_settings *settings,
                                                      enum refdata_field field);

/* Compiles one definition. Errors carry file, line, column and field of the template's very character. `config` may be
 * NULL when the settings were checked before. */
enum status refdata_dictionary_create(const struct config *config,
                                      const struct refdata_dictionary_settings *settings, size_t index,
                                      struct refdata_database *database,
                                      struct refdata_dictionary **dictionary, struct error *error) MUST_CHECK;
uint64_t refdata_dictionary_fingerprint(const struct refdata_dictionary_settings *settings,
                                        uint64_t database);
/* A reload may change the scopes of a dictionary that stays what it is: nothing is loaded again for it. */
void refdata_dictionary_set_scopes(struct refdata_dictionary *dictionary,
                                   const struct refdata_dictionary_settings *settings);
struct refdata_dictionary *refdata_dictionary_ref(struct refdata_dictionary *dictionary);
void refdata_dictionary_unref(struct refdata_dictionary *dictionary);

/* Fills the statement's parameters from values[enum refdata_parameter]. */
void refdata_dictionary_bind(const struct db_statement *statement,
                             const struct str values[REFDATA_PARAMETERS],
                             struct db_param params[DB_PARAMS_MAX]);

#endif
