/* What the files of this folder share. */
#ifndef FRESHET_IDEMPOTENCY_IDEMPOTENCY_INSIDE_H
#define FRESHET_IDEMPOTENCY_IDEMPOTENCY_INSIDE_H

#include "auth/digest.h"
#include "idempotency/idempotency.h"

/* ---- key.c ---- */
/* Who, where and which key, as one number that nobody can make collide. */
struct idempotency_id {
    uint8_t bytes[AUTH_SHA256_BYTES];
};
struct idempotency_id idempotency_id_of(const struct http_request *request, struct str tenant,
                                        struct str subject, struct str key);
int64_t idempotency_id_lock(const struct idempotency_id *id);

/* ---- metrics.c ---- */
void idempotency_metrics_register(void);

/* ---- sql.c: the statements around an effect; `$1` … are tenant, subject, method, route, key, hash ---- */
enum { IDEMPOTENCY_SCOPE_PARAMS = 5, IDEMPOTENCY_LOOK_PARAMS = 6, IDEMPOTENCY_STORE_PARAMS = 7 };
void idempotency_look_sql(const struct idempotency_table *table, struct buf *out);
void idempotency_fetch_sql(const struct idempotency_table *table, struct buf *out);
/* The effect's own parameters first, then those above and the time to live in milliseconds. */
void idempotency_store_sql(const struct idempotency_table *table, const struct db_statement *effect,
                           bool with_failures, struct buf *out);

#endif
