/* Accepting an update, the same for a POST (R1) and for a message of an external topic (R9): may its dictionary take it, is it
 * new, known or in conflict, and what became of it. */
#ifndef FRESHET_REFDATA_ACCEPTANCE_H
#define FRESHET_REFDATA_ACCEPTANCE_H

#include "db/db.h"
#include "modules/refdata/catalog.h"
#include "modules/refdata/update.h"

#define REFDATA_UPDATES_ROUTE "/v1/tenants/{tenantId}/updates"

/* ---- before the database: touches nothing but a catalog that stays ---- */

/* UNKNOWN_DICTIONARY, or DICTIONARY_UNAVAILABLE. The dictionary stays the catalog's. */
enum status refdata_acceptance_find(const struct refdata_catalog *catalog, struct str code,
                                    struct refdata_dictionary **dictionary, struct error *error) MUST_CHECK;
/* DICTIONARY_READ_ONLY where it has no SQL for what the update does. */
enum status refdata_acceptance_check(const struct refdata_dictionary *dictionary,
                                     const struct refdata_update *update, struct error *error) MUST_CHECK;
/* update_request.content_hash: the same event with another one is a conflict. */
struct str refdata_acceptance_hash(const struct refdata_update *update, struct arena *arena);
/* Was this command made of a request with this hash? A command has a time; its request may have had none. */
bool refdata_acceptance_is_of(const struct refdata_update *command, struct str hash, struct arena *arena);

/* ---- in the database: refdata.accept_updates() ---- */

enum refdata_acceptance_result { REFDATA_NEW, REFDATA_KNOWN, REFDATA_REFUSED };

struct refdata_acceptance {
    const struct refdata_update *update;
    struct str content_hash; /* refdata_acceptance_hash() */
    struct str subject;      /* update_request.requested_by, and the scope of the key; empty = not known */
    struct str key;          /* Idempotency-Key; ptr NULL = none */
    struct str body;         /* of a key: the same key with another body is a conflict */
    int64_t key_lock;        /* of a key: the advisory lock of (scope, key) */
    enum refdata_acceptance_result result; /* this and what follows is set by refdata_acceptance_take() */
    enum status refusal;                   /* of REFUSED */
    bool is_key_known;                     /* the key was used before, by this event or by another one */
    bool is_keys_event; /* `state` is that of the event that used the key before, not of the update's own */
    bool is_chunk_new;
    struct refdata_state state; /* PENDING where it is new */
};

/* Is there anything to apply? */
static inline bool refdata_acceptance_is_published(const struct refdata_acceptance *acceptance)
{
    return acceptance->result != REFDATA_REFUSED &&
           (acceptance->result == REFDATA_NEW || acceptance->is_chunk_new);
}

/* On a worker: adds the statement to the open pipeline of a transaction. All are of one source. `all_new`: a guess that all of
 * them are new. Where that is wrong the statement fails, with it the transaction, and nothing needs to be taken. */
void refdata_acceptance_add(struct db_conn *conn, struct refdata_acceptance *const *updates, size_t count,
                            int64_t key_keep_ms, bool all_new, struct arena *arena);
/* Sets the results by the statement's result, in its transaction. One with a refused update has to be rolled back, unless it wrote
 * no chunk and no key for it. DB_RETRY: run it again. */
enum status refdata_acceptance_take(struct db_conn *conn, const struct db_result *result,
                                    struct refdata_acceptance *const *updates, size_t count,
                                    int64_t deadline_ns, struct error *error) MUST_CHECK;
/* What the result of a new one is. */
void refdata_acceptance_take_new(struct refdata_acceptance *update);
void refdata_acceptance_error(const struct refdata_acceptance *update, struct error *error); /* of REFUSED */

/* ---- afterwards ---- */

struct refdata_state_row {
    size_t place; /* which of those asked for */
    struct refdata_state state;
    /* Of the result's memory; requested_by.ptr NULL = not known. */
    struct str dict_code, content_hash, requested_by;
    bool is_chunk;
    int64_t created_us, updated_us;
};

/* Rows of update_request for many events in one round trip. $1, $2: tenants and event ids as text[], of which those in the same
 * place are one event. Events that are not there have no row. */
extern const struct db_statement refdata_states_sql;
/* Its status, committed_version, error_code and error_message, which are four columns from `first` on. */
void refdata_state_read(const struct db_result *result, size_t row, unsigned first,
                        struct refdata_state *state);
void refdata_states_row(const struct db_result *result, size_t row, struct refdata_state_row *out);

#endif
