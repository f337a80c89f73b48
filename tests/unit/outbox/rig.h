/* A PostgreSQL with an outbox table of each form, with flags, with words, without order, and with turns; and stations: an engine with
 * a loop thread and workers of its own, as in a process. What is published is recorded; what a publisher does is the
 * test's to say.
 *
 * cmocka's assertions jump, so threads other than the test's own record what they see and the test looks at
 * it. */
#ifndef FRESHET_TESTS_OUTBOX_RIG_H
#define FRESHET_TESTS_OUTBOX_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "outbox/outbox.h"

#define PATIENCE_MS 60000 /* long enough for a loaded machine; nothing waits for it to pass */

extern const struct outbox_table rig_flags, rig_words, rig_deliveries, rig_turns;

/* A table's form, for tests that hold for all of them: what says in SQL that a row is live, published, failed. */
struct rig_form {
    const struct outbox_table *table;
    const char *name, *live, *published, *failed;
};
enum { RIG_FORMS = 4 };
extern const struct rig_form rig_forms[RIG_FORMS];
extern const struct rig_form rig_keys_form; /* a further one, whose aggregate begins with the tenant */

/* Every event handed to a publisher and not held back, in the order of all stations. */
struct publication {
    int aggregate, number;
    enum outbox_result_kind kind;
    size_t batch_count;
};
struct journal {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct publication *items;
    size_t count, capacity;
    int step;        /* for `judge` and the test, under the lock */
    bool is_relaxed; /* a crash of the server may lose what is published */
    /* Says what becomes of an event; NULL = done. Called without the lock. */
    enum outbox_result_kind (*judge)(struct journal *journal, const struct outbox_event *event, int aggregate,
                                     int number);
};

struct station {
    struct loop *loop;
    struct worker_pool *workers;
    struct outbox *engine;
    struct db_notifier *notifier;
    pthread_t thread;
};

void rig_start(void);
void rig_stop(void);
struct outbox_settings rig_settings(void); /* patient: polls hourly; fast backoff */

int64_t rig_sql(const char *format, ...) PRINTF_LIKE(1, 2); /* the first field as a number; -1: it failed */
bool rig_await(int64_t value, const char *sql);             /* until the statement gives it */
int64_t rig_count(const struct rig_form *form, const char *where); /* rows */
bool rig_await_live(const struct rig_form *form, int64_t count);
/* Runs a statement in which @table, @live, @published, @failed, @attempts, @leased, @retry, @a and @n (of the payload) are
 * the form's. */
int64_t rig_form_sql(const struct rig_form *form, const char *sql);
void rig_insert(const struct outbox_table *table, int aggregate, int first, int last);
/* Of a further tenant: 1, 2, … */
void rig_insert_of(const struct outbox_table *table, int tenant, int aggregate, int first, int last);
void rig_clear(void); /* all tables */
struct db_conn *rig_conn(void);

void journal_init(struct journal *journal);
void journal_deinit(struct journal *journal);
bool journal_await(struct journal *journal, size_t count); /* publications */
void journal_step(struct journal *journal, int step);
bool journal_await_step(struct journal *journal, int step); /* at least */
size_t journal_times(struct journal *journal, int aggregate, int number, enum outbox_result_kind kind);

void station_open(struct station *station, struct journal *journal, const struct outbox_table *table,
                  const struct outbox_settings *settings);
void station_close(struct station *station);

/* ---- for the suite's files ---- */
int run_engine_tests(void);
int run_fault_tests(void);
int run_operator_tests(void);
int run_model_tests(void);
int run_claim_tests(void);
int run_turn_tests(void);

#endif
