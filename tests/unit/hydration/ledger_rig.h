/* The ledger on a PostgreSQL of its own. Time passes because a test says so: it moves stored times into the past. */
#ifndef FRESHET_TESTS_HYDRATION_LEDGER_RIG_H
#define FRESHET_TESTS_HYDRATION_LEDGER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "hydration/inside.h"

#define PATIENCE_MS 20000
#define COPY_TTL_MS INT64_C(300000)

enum { THREADS = 24 };

#define EXISTENCE HYDRATION_EXISTENCE
#define PARTIAL HYDRATION_PARTIAL
#define FULL HYDRATION_FULL

extern struct db_pool *pool;
extern struct arena arena; /* of the test's findings */

const char *sql(const char *format, ...) PRINTF_LIKE(1, 2); /* the first value */
void windows_end(void);
void absences_expire(void);
void copies_expire(void);
struct hydration_policy policy_of(void);
struct hydration_need need_of(const char *id, const char *caller, enum hydration_mode mode,
                              const char *fields);
struct hydration_finding find_by(const struct hydration_need *need, const struct hydration_policy *policy,
                                 const char *correlation_id, struct arena *texts);
struct hydration_finding find(const char *caller, enum hydration_mode mode, const char *fields,
                              const char *correlation_id);
const char *finding_text(const struct hydration_finding *claim);
void expect_of(const char *caller, enum hydration_mode mode, const char *fields, const char *correlation_id,
               const char *wanted);
void expect_known(const char *caller, enum hydration_mode mode, const char *fields, const char *wanted);
bool retry(const char *caller, const char *correlation_id);
struct hydration_event updated(int64_t version, const char *data, const char *correlation_id);
struct hydration_event not_found(int64_t version, const char *correlation_id);
struct hydration_event private_of(struct hydration_event event, const char *caller);
struct hydration_event hidden(int64_t version, const char *correlation_id, const char *caller);
struct hydration_event covering(struct hydration_event event, enum hydration_mode mode,
                                const struct str *fields, unsigned count);
void store_all(const struct hydration_event *events, size_t count);
void store(struct hydration_event event);
int ledger_rig_start(void **state);
int ledger_rig_stop(void **state);
int ledger_rig_clear(void **state);

#define TEST(name) cmocka_unit_test_setup(name, ledger_rig_clear)
extern const struct CMUnitTest ledger_table_tests[]; /* of test_ledger_tables.c */
extern const size_t ledger_table_test_count;

#endif
