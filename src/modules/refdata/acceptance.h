/* May a dictionary take this update? The same questions for a POST (R1) and for a message of an external topic (R9). */
#ifndef FRESHET_REFDATA_ACCEPTANCE_H
#define FRESHET_REFDATA_ACCEPTANCE_H

#include "modules/refdata/catalog.h"
#include "modules/refdata/update.h"

/* UNKNOWN_DICTIONARY, or DICTIONARY_UNAVAILABLE. The dictionary stays the catalog's. */
enum status refdata_acceptance_find(const struct refdata_catalog *catalog, struct str code,
                                    struct refdata_dictionary **dictionary, struct error *error) MUST_CHECK;
/* DICTIONARY_READ_ONLY where it has no SQL for what the update does. */
enum status refdata_acceptance_check(const struct refdata_dictionary *dictionary,
                                     const struct refdata_update *update, struct error *error) MUST_CHECK;
/* update_request.content_hash: the same event with another one is a conflict. */
struct str refdata_acceptance_hash(const struct refdata_update *update, struct arena *arena);
/* As the catalog has them now. */
struct refdata_limits refdata_acceptance_limits(const struct refdata_catalog *catalog);

/* The route of updates, and idempotency_cleanup_count_total of its keys (I7). */
#define REFDATA_UPDATES_ROUTE "/v1/tenants/{tenantId}/updates"
void refdata_acceptance_keys_expired(int64_t count);

#endif
