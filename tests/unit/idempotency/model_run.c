/* Calls with keys against what is stored and what was bought (I2–I6): connections are lost before a transaction or after its commit,
 * answers expire, keys are held by others, bodies differ. However often a call is tried, it has one effect and one answer. */
#include <stdatomic.h>
#include <time.h>

#include "model.h"
#include "rig.h"

enum { KEYS = 3, BODIES = 2 };

struct stored {
    bool is_stored;
    size_t body;
    int status;
    char text[256];
};

enum fault { NO_FAULT, LOST_BEFORE, LOST_AFTER };

static struct stored stored[KEYS];
static unsigned bought;
static enum fault fault; /* of the next exchanges: so many */
static unsigned fault_count, effects;
static atomic_bool loses_reply; /* of the next exchange that ends well, on any thread */

/* ---- connections are lost ---- */

/* pg_terminate_backend() with a time to wait looks every 100 ms only. */
static void end_connections(void)
{
    static const char others[] =
        "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    rig_sql("SELECT count(pg_terminate_backend(pid)) %s", others);
    while (atoi(rig_sql("SELECT count(*) %s", others)) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

enum status __real_db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                                   size_t count, size_t *failed_at, struct error *error);

void rig_lose_reply(void)
{
    atomic_store(&loses_reply, true);
}

static enum status lose_connection(struct db_conn *conn, struct db_result **results, size_t count,
                                   struct error *error)
{
    static const struct db_statement end_sql = DB_STATEMENT("SELECT pg_terminate_backend(pg_backend_pid())");
    for (size_t i = 0; i < count; i++) {
        db_result_free(results[i]);
        results[i] = NULL;
    }
    return db_exec(conn, &end_sql, NULL, clock_deadline_ms(PATIENCE_MS), NULL, error);
}

enum status __wrap_db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                                   size_t count, size_t *failed_at, struct error *error);
enum status __wrap_db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                                   size_t count, size_t *failed_at, struct error *error)
{
    bool is_lost = fault_count > 0;
    if (is_lost) /* not written by the threads of other tests */
        fault_count--;
    if (is_lost && fault == LOST_BEFORE)
        end_connections();
    bool loses = atomic_exchange(&loses_reply, false);
    enum status status = __real_db_pipeline_end(conn, deadline_ns, results, count, failed_at, error);
    if (loses && status == STATUS_OK)
        return lose_connection(conn, results, count, error);
    if (!is_lost || fault != LOST_AFTER || status != STATUS_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        db_result_free(results[i]);
        results[i] = NULL;
    }
    effects++;
    end_connections();
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
    return __real_db_pipeline_end(conn, deadline_ns, NULL, 1, failed_at, error);
}

/* ---- calls ---- */

static bool is_kept(const struct call *call)
{
    return call->wanted < 400 || (call->route.key_stores_failures && call->wanted < 500 &&
                                  call->wanted != 400 && call->wanted != 401 && call->wanted != 403);
}

/* An effect took place, of this call: now, or in a commit whose reply was lost. */
static void note_effect(const struct call *call, struct stored *row, size_t body)
{
    bought += call->wanted < 400;
    *row = (struct stored){.is_stored = is_kept(call), .body = body, .status = call->wanted};
}

static void check_call(const struct call *call, struct stored *row, size_t body, bool was_lost)
{
    bool is_known = row->is_stored;
    if (is_known && row->body != body) {
        MODEL_CHECK(call->status == STATUS_IDEMPOTENCY_KEY_CONFLICT || was_lost, "status %d, not a conflict",
                    (int)call->status);
        return;
    }
    if (call->status == STATUS_DB_DOWN && was_lost) { /* the next one finds out */
        if (effects > 0 && !is_known)
            note_effect(call, row, body);
        return;
    }
    MODEL_CHECK(call->status == STATUS_OK, "%s", call->error.message);
    if (!is_known)
        note_effect(call, row, body);
    MODEL_CHECK(call->answered == row->status, "%d, not %d", call->answered, row->status);
    MODEL_CHECK(call->replayed == (is_known || (effects > 0 && is_kept(call))), "replayed: %d",
                call->replayed);
    if (is_known && row->text[0])
        MODEL_CHECK(strcmp(call->text, row->text) == 0, "%s, not %s", call->text, row->text);
    if (!is_known && call->wanted < 400)
        MODEL_CHECK(call->has_effect, "an effect that wakes nobody");
    if (row->is_stored)
        snprintf(row->text, sizeof row->text, "%s", call->text);
}

static void call_with(enum fault with, unsigned count)
{
    static const int statuses[] = {201, 201, 200, 400, 409, 422, 503};
    static const char *const keys[KEYS] = {"one", "two", "three"}, *const bodies[BODIES] = {"{}",
                                                                                            "{\"n\":1}"};
    size_t key = model_below(KEYS), body = model_one_in(4);
    struct call call = rig_call(keys[key]);
    call.body = str_from(bodies[body]);
    call.wanted = statuses[model_below(7)];
    call.route.key_stores_failures = model_one_in(2);
    model_note("key %s, body %zu, wants %d, fault %d of %u", keys[key], body, call.wanted, with, count);
    fault = with;
    fault_count = count;
    effects = 0;
    rig_run(&call);
    bool was_lost = fault_count < count;
    fault_count = 0;
    check_call(&call, &stored[key], body, was_lost);
}

static void call_well(void)
{
    call_with(NO_FAULT, 0);
}

static void call_and_lose(void)
{
    call_with(model_one_in(2) ? LOST_BEFORE : LOST_AFTER, model_one_in(4) ? 5 : 1);
}

static void call_without_key(void)
{
    struct call call = rig_call(NULL);
    rig_run(&call);
    MODEL_CHECK(call.status == STATUS_OK && !call.replayed, "%s", call.error.message);
    bought++;
}

static void expire(void)
{
    static const char *const keys[KEYS] = {"one", "two", "three"};
    size_t key = model_below(KEYS);
    rig_sql(
        "UPDATE shop.idempotency_keys SET expires_at = now() - interval '1 s' WHERE idempotency_key = '%s'",
        keys[key]);
    stored[key].is_stored = false;
}

/* ---- life ---- */

static void begin(void)
{
    rig_sql("DELETE FROM shop.idempotency_keys");
    rig_sql("DELETE FROM shop.bought");
    memset(stored, 0, sizeof stored);
    bought = 0;
}

static void check(void)
{
    unsigned found = (unsigned)atoi(rig_sql("SELECT count(*) FROM shop.bought"));
    MODEL_CHECK(found == bought, "%u effects, not %u", found, bought);
}

static void end(void)
{
}

static void test_i5_calls_match_the_model(void **state)
{
    static const struct model_operation operations[] = {{"call", 60, call_well},
                                                        {"call and lose", 3, call_and_lose},
                                                        {"call without key", 5, call_without_key},
                                                        {"expire", 8, expire}};
    (void)state;
    model_run_here(&(struct model){.name = "idempotency run",
                                   .seeds = 250, /* a lost connection costs the server a new process */
                                   .steps = 30,
                                   .begin = begin,
                                   .check = check,
                                   .end = end,
                                   MODEL_OPERATIONS(operations)});
}

int run_model_tests(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_i5_calls_match_the_model)};
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
