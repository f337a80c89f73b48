/* The groups of tests that share one PostgreSQL, and what they all need. */
#ifndef FRESHET_TESTS_SERVER_TESTS_H
#define FRESHET_TESTS_SERVER_TESTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "db/db.h"
#include "pg_fixture.h"

int run_pool_tests(void);
int run_query_tests(void);
int run_transaction_tests(void);
int run_pipeline_tests(void);
int run_migrate_tests(void);
int run_listener_tests(void);
int run_poll_tests(void);
int run_outage_tests(void);

#define PATIENCE_MS 20000 /* long enough for a loaded machine; nothing waits for it to pass */

int64_t soon(void); /* a deadline, PATIENCE_MS from now */
struct db_pool *test_pool(unsigned connections_max);
struct db_conn *test_acquire(struct db_pool *pool);
/* Runs SQL without parameters; text of the first field ("" when there is none). Fails the test on an
 * error. */
const char *test_sql(struct db_conn *conn, const char *sql);
/* The same, answering the status. */
enum status test_try(struct db_conn *conn, const char *sql, int64_t timeout_ms, struct error *error);

#define assert_ok(expression)                                             \
    do {                                                                  \
        enum status assert_status_ = (expression);                        \
        if (assert_status_ != STATUS_OK)                                  \
            fail_msg("%s: %s", #expression, status_name(assert_status_)); \
    } while (0)

#endif
