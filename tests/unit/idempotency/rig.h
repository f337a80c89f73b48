/* A module in small: a table of effects, one of keys, a function that does everything; and requests without a server. */
#ifndef FRESHET_TESTS_IDEMPOTENCY_RIG_H
#define FRESHET_TESTS_IDEMPOTENCY_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../db/pg_fixture.h"
#include "base/clock.h"
#include "idempotency/idempotency.h"

#define PATIENCE_MS 20000 /* long enough for a loaded machine; nothing waits for it to pass */
#define HOUR_MS INT64_C(3600000)

extern struct db_pool *rig_pool;
/* Its statement_timestamp() is clock.now's. */
extern struct db_pool *rig_clock_pool;
void rig_start(void);
void rig_stop(void);
void rig_clear(void); /* no effects, no keys, the clock as the server's */

/* Runs SQL without parameters on a connection of its own; the first field. */
const char *rig_sql(const char *format, ...) PRINTF_LIKE(1, 2);
void rig_expect(const char *sql, const char *value);

/* ---- one call ---- */
struct call {
    struct str tenant, subject, key, body; /* key.ptr NULL: none */
    struct http_route route;
    const char *effect; /* SQL of the effect, without parameters; NULL: shop.buy(wanted, note) */
    int wanted;         /* the status the effect answers */
    struct db_pool *pool;
    struct idempotency_table table;
    int64_t timeout_ms;
    /* what came of it */
    enum status status;
    struct error error;
    int answered;
    char text[256];
    bool replayed, has_effect;
};
struct call rig_call(const char *key); /* tenant t, subject u, POST /things, body {}, 201, an hour */
void rig_run(struct call *call);
struct call rig_again(const struct call *call); /* the same once more, run */
unsigned rig_counted(struct metric_family *family, const char *route);

/* The next pipeline that ends well, on any thread, loses its connection before the reply. */
void rig_lose_reply(void);

int run_duplicates_tests(void);
int run_groups_tests(void);
int run_model_tests(void);

#endif
