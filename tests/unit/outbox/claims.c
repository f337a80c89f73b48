/* Claims against the rows themselves (O2, O3): workers claim, publish, settle, die, lose their replies and their leases, in random
 * order. What an exchange may have changed is derived from the rows before it; no event is claimed by two, none is published before an
 * earlier one of its aggregate, and a claim that finds nothing leaves nothing that could be claimed. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"
#include "outbox/outbox_inside.h"
#include "rig.h"

enum { WORKERS = 3, AGGREGATES = 6, TENANTS = 3, EVENTS_MAX = 16, LEASE_MS = 3600000 };

enum state { NONE, LIVE, PUBLISHED, FAILED };

struct row {
    enum state state;
    int64_t attempts;
    bool is_leased, is_waiting;
    char claim[UUID_TEXT_BYTES];
};

static const struct rig_form *form;
static struct outbox workers[WORKERS];
static bool has_published[WORKERS]; /* its batch: the results are known */
static struct db_conn *conns[WORKERS];
static struct row before[AGGREGATES][EVENTS_MAX + 1], rows[AGGREGATES][EVENTS_MAX + 1];
static bool has_ended[AGGREGATES][EVENTS_MAX + 1]; /* published once, or failed */
static int inserted[AGGREGATES];
static bool loses_reply;

/* The exchange has its effect, and the worker does not know it. */
enum status __real_db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                                   size_t count, size_t *failed_at, struct error *error);
enum status __wrap_db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                                   size_t count, size_t *failed_at, struct error *error);
enum status __wrap_db_pipeline_end(struct db_conn *conn, int64_t deadline_ns, struct db_result **results,
                                   size_t count, size_t *failed_at, struct error *error)
{
    enum status status = __real_db_pipeline_end(conn, deadline_ns, results, count, failed_at, error);
    if (status != STATUS_OK || !loses_reply)
        return status;
    for (size_t i = 0; i < count; i++) {
        db_result_free(results[i]);
        results[i] = NULL;
    }
    return error_set(error, STATUS_DB_DOWN, "the reply is lost");
}

/* ---- rows ---- */

static void read_rows(void)
{
    const struct outbox_table *table = form->table;
    struct db_conn *conn = rig_conn();
    struct db_result *result = NULL;
    struct error error = {0};
    char text[1024];
    snprintf(
        text, sizeof text,
        "SELECT (payload->>'a')::int, (payload->>'n')::int, CASE WHEN %s THEN 1 WHEN %s THEN 2 ELSE 3 END,"
        " %s, coalesce(%s > now(), false)::int, coalesce(%s > now(), false)::int, coalesce(%s::text, '') FROM %s",
        form->live, form->published, table->attempts, table->locked_until, table->next_attempt_at,
        table->claim_id, table->name);
    struct db_statement statement = db_statement_of(str_from(text));
    MODEL_CHECK(db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &result, &error) ==
                    STATUS_OK,
                "%s: %s", text, error.message);
    memcpy(before, rows, sizeof rows);
    memset(rows, 0, sizeof rows);
    for (size_t i = 0; i < db_result_rows(result); i++) {
        struct row *row = &rows[db_result_i64(result, i, 0)][db_result_i64(result, i, 1)];
        *row = (struct row){.state = (enum state)db_result_i64(result, i, 2),
                            .attempts = db_result_i64(result, i, 3),
                            .is_leased = db_result_i64(result, i, 4) > 0,
                            .is_waiting = db_result_i64(result, i, 5) > 0};
        str_copy(row->claim, sizeof row->claim, db_result_str(result, i, 6));
    }
    db_result_free(result);
    db_release(conn);
    for (int a = 0; a < AGGREGATES; a++)
        for (int n = 1; n <= EVENTS_MAX; n++)
            has_ended[a][n] |= rows[a][n].state == FAILED;
}

static void place_of(const struct outbox_event *event, int *aggregate, int *number)
{
    char text[96];
    str_copy(text, sizeof text, event->payload);
    MODEL_CHECK(sscanf(text, "{\"a\": %d, \"n\": %d}", aggregate, number) == 2, "%s", text);
}

/* ---- the workers ---- */

static void insert(void)
{
    int aggregate = (int)model_below(AGGREGATES), last = inserted[aggregate] + 1 + (int)model_below(4);
    last = last < EVENTS_MAX ? last : EVENTS_MAX;
    if (inserted[aggregate] == last)
        return;
    rig_insert_of(form->table, aggregate / (AGGREGATES / TENANTS), aggregate, inserted[aggregate] + 1, last);
    model_note("%d to %d of %d", inserted[aggregate] + 1, last, aggregate);
    inserted[aggregate] = last;
    read_rows();
}

/* Whether an event is poison is decided by the event, as it is for a publisher. */
static void publish(size_t number)
{
    struct outbox *outbox = &workers[number];
    struct outbox_claim *claim = &outbox->claim;
    struct outbox_batch batch = {.events = claim->events, .count = claim->count, .results = claim->results};
    bool gives_back = model_one_in(6);
    for (size_t i = 0; i < claim->count; i++) {
        int a, n;
        place_of(&claim->events[i], &a, &n);
        enum outbox_result_kind kind = gives_back        ? OUTBOX_RELEASE
                                       : n % 7 == 3      ? OUTBOX_POISON
                                       : model_one_in(6) ? (model_one_in(2) ? OUTBOX_RETRY : OUTBOX_OUTAGE)
                                                         : OUTBOX_DONE;
        if (!outbox_batch_is_held(&batch, i) && kind == OUTBOX_DONE) {
            for (int earlier = 1; earlier < n; earlier++)
                MODEL_CHECK(has_ended[a][earlier] || earlier % 7 == 3, "%d of %d is published before %d", n,
                            a, earlier);
            has_ended[a][n] = true;
        }
        outbox_batch_set(&batch, i, kind, "%s", "because");
        model_note("%d of %d: %d", n, a, kind);
    }
    outbox_results_conclude(outbox);
    has_published[number] = true;
}

/* What the settlement of a batch does to one of its rows, if its claim is still valid. */
static void settle_row(struct row *row, enum outbox_result_kind kind)
{
    row->claim[0] = '\0';
    row->is_leased = false;
    row->is_waiting = kind == OUTBOX_RETRY || kind == OUTBOX_OUTAGE;
    row->attempts += kind == OUTBOX_RETRY || kind == OUTBOX_POISON || kind == OUTBOX_OUTAGE;
    row->state = kind == OUTBOX_DONE ? PUBLISHED : kind == OUTBOX_POISON ? FAILED : LIVE;
}

static void release_rows(const char *claim)
{
    for (int a = 0; a < AGGREGATES; a++)
        for (int n = 1; n <= EVENTS_MAX && claim[0]; n++)
            if (strcmp(rows[a][n].claim, claim) == 0) {
                rows[a][n].claim[0] = '\0';
                rows[a][n].is_leased = false;
            }
}

/* `claim`: of the rows that may have been claimed since. */
static void check_rows(const char *claim)
{
    for (int a = 0; a < AGGREGATES; a++) {
        bool is_blocked = false;
        for (int n = 1; n <= EVENTS_MAX; n++) {
            const struct row *was = &before[a][n], *is = &rows[a][n];
            bool is_claimed = is->state == LIVE && claim[0] && strcmp(is->claim, claim) == 0;
            MODEL_CHECK(is->state == was->state && is->attempts == was->attempts &&
                            is->is_waiting == was->is_waiting,
                        "%d of %d: state %d, attempts %d, not %d, %d", n, a, is->state, (int)is->attempts,
                        was->state, (int)was->attempts);
            if (is_claimed)
                MODEL_CHECK(!was->is_leased && !was->is_waiting && !is_blocked && is->is_leased,
                            "%d of %d is claimed: leased %d, waiting %d, blocked %d", n, a, was->is_leased,
                            was->is_waiting, is_blocked);
            else
                MODEL_CHECK(is->is_leased == was->is_leased && strcmp(is->claim, was->claim) == 0,
                            "%d of %d has another claim", n, a);
            is_blocked |= is->state == LIVE && !is_claimed;
        }
    }
}

static void check_nothing_is_due(void)
{
    for (int a = 0; a < AGGREGATES; a++) {
        int n = 1;
        while (n <= EVENTS_MAX && rows[a][n].state != LIVE)
            n++;
        MODEL_CHECK(n > EVENTS_MAX || rows[a][n].is_leased || rows[a][n].is_waiting,
                    "%d of %d is not claimed", n, a);
    }
}

/* A round of claims that found nothing may have begun before rows became due; a second one, with nothing between, has not. Both end. */
static void claim_until_nothing_is_found(size_t number)
{
    enum { CLAIMS_MAX = 10 * AGGREGATES * EVENTS_MAX };
    struct outbox_claim *claim = &workers[number].claim;
    struct error error = {0};
    int rounds = !claim->more, claims = 0;
    while (claim->count == 0 && rounds < 2) {
        MODEL_CHECK(claims++ < CLAIMS_MAX, "the claims of worker %zu find nothing and do not end", number);
        MODEL_CHECK(outbox_claim_exchange(&workers[number], conns[number], true,
                                          clock_deadline_ms(PATIENCE_MS), &error) == STATUS_OK,
                    "%s", error.message);
        read_rows();
        check_rows(claim->id);
        rounds += !claim->more;
    }
    if (claim->count == 0)
        check_nothing_is_due();
}

static void exchange(void)
{
    size_t number = model_below(WORKERS), valid = 0;
    struct outbox_claim *claim = &workers[number].claim;
    struct error error = {0};
    bool claims = !model_one_in(5);
    char doubtful[UUID_TEXT_BYTES];
    if (claim->count > 0 && !has_published[number])
        publish(number);
    str_copy(doubtful, sizeof doubtful, str_from(claim->doubtful));
    release_rows(doubtful);
    for (size_t i = 0; i < claim->count; i++) {
        int a, n;
        place_of(&claim->events[i], &a, &n);
        if (strcmp(rows[a][n].claim, claim->id) == 0 && rows[a][n].state == LIVE) {
            settle_row(&rows[a][n], claim->results[i].kind);
            valid++;
        }
    }
    loses_reply = model_one_in(8) && (claim->count > 0 || claims);
    model_note("worker %zu%s%s", number, claims ? " claims" : "", loses_reply ? ", its reply is lost" : "");
    enum status status = outbox_claim_exchange(&workers[number], conns[number], claims,
                                               clock_deadline_ms(PATIENCE_MS), &error);
    MODEL_CHECK((status == STATUS_OK) == !loses_reply, "%s", error.message);
    loses_reply = false;
    read_rows();
    if (status != STATUS_OK) {
        check_rows(claims ? claim->doubtful : "");
        return;
    }
    MODEL_CHECK(claim->settled == valid, "%zu are settled, not %zu", claim->settled, valid);
    check_rows(claims ? claim->id : "");
    has_published[number] = false;
    if (claims && claim->count == 0)
        claim_until_nothing_is_found(number);
}

static void publish_now(void)
{
    size_t number = model_below(WORKERS);
    if (workers[number].claim.count > 0 && !has_published[number])
        publish(number);
}

/* Its leases end later; the next worker in its place knows nothing of them. */
static void forget_worker(size_t number)
{
    struct outbox_claim *claim = &workers[number].claim;
    db_result_free(claim->rows);
    arena_deinit(&claim->arena);
    buf_deinit(&claim->places);
    outbox_walk_deinit(&workers[number].walk);
    *claim = (struct outbox_claim){.arena = ARENA(4096), .outage_pause_ms = LEASE_MS};
    has_published[number] = false;
}

static void die(void)
{
    size_t number = model_below(WORKERS);
    model_note("worker %zu", number);
    forget_worker(number);
}

/* Time passes for half of the rows. The UPDATE moves them, as the extension of a lease does, of which a worker knows. */
static void note_moved(void)
{
    for (size_t i = 0; i < WORKERS; i++)
        workers[i].claim.is_moved = true;
    read_rows();
}

static void end_leases(void)
{
    rig_sql("UPDATE %s SET %s = now() WHERE (payload->>'n')::int %% 2 = %d", form->table->name,
            form->table->locked_until, (int)model_below(2));
    note_moved();
}

static void end_pauses(void)
{
    rig_sql("UPDATE %s SET %s = now() WHERE (payload->>'a')::int %% 2 = %d", form->table->name,
            form->table->next_attempt_at, (int)model_below(2));
    note_moved();
}

/* ---- life ---- */

static void begin_worker(size_t number, int64_t batch)
{
    struct outbox *outbox = &workers[number];
    *outbox =
        (struct outbox){.config = {.table = form->table}, .settings = rig_settings(), .arena = ARENA(4096)};
    outbox->settings.batch = batch;
    outbox->settings.lease_ms = LEASE_MS;
    outbox->settings.attempts_max = 3;
    outbox->settings.backoff_base_ms = outbox->settings.backoff_max_ms = LEASE_MS;
    snprintf(outbox->worker, sizeof outbox->worker, "worker %zu", number);
    outbox_sql_init(&outbox->sql, form->table, &outbox->arena);
    forget_worker(number);
    outbox->walk.rows_max = 1 + (int64_t)model_below(6); /* at least `batch` */
    conns[number] = rig_conn();
}

static void begin(void)
{
    size_t which = model_below(3);
    form = which < 2 ? &rig_forms[which] : &rig_keys_form;
    rig_sql(model_one_in(20) ? "TRUNCATE %s" : "DELETE FROM %s",
            form->table->name); /* a new file means new plans */
    memset(rows, 0, sizeof rows);
    memset(has_ended, 0, sizeof has_ended);
    memset(inserted, 0, sizeof inserted);
    outbox_metrics_init();
    for (size_t i = 0; i < WORKERS; i++)
        begin_worker(i, 1 + (int64_t)model_below(6));
}

static void check(void)
{
}

static void end_worker(size_t number)
{
    forget_worker(number);
    arena_deinit(&workers[number].claim.arena);
    arena_deinit(&workers[number].arena);
    db_release(conns[number]);
}

static void end(void)
{
    for (size_t i = 0; i < WORKERS; i++)
        end_worker(i);
}

static void test_o3_claims_match_the_model(void **state)
{
    static const struct model_operation operations[] = {
        {"insert", 20, insert}, {"exchange", 50, exchange},    {"publish", 15, publish_now},
        {"die", 5, die},        {"end leases", 6, end_leases}, {"end pauses", 6, end_pauses}};
    (void)state;
    model_run_here(&(struct model){.name = "outbox claims",
                                   .seeds = 500, /* a step is two or three exchanges with the server */
                                   .steps = 40,
                                   .begin = begin,
                                   .check = check,
                                   .end = end,
                                   MODEL_OPERATIONS(operations)});
}

/* The events of two aggregates in the next batch of worker 0. */
static void assert_claimed(size_t of_first, size_t of_second)
{
    const struct outbox_claim *claim = &workers[0].claim;
    struct error error = {0};
    size_t counts[2] = {0};
    if (outbox_claim_exchange(&workers[0], conns[0], true, clock_deadline_ms(PATIENCE_MS), &error) !=
        STATUS_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < claim->count; i++) {
        int aggregate, number;
        place_of(&claim->events[i], &aggregate, &number);
        counts[aggregate]++;
    }
    assert_int_equal(counts[0], of_first);
    assert_int_equal(counts[1], of_second);
}

static void test_o3_a_row_that_is_locked_holds_back_its_own_aggregate_alone(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct error error = {0};
        char text[256];
        form = &rig_forms[i];
        rig_clear();
        rig_insert(form->table, 0, 1, 3);
        rig_insert(form->table, 1, 1, 2);
        begin_worker(0, 50);
        struct db_conn *holder = rig_conn();
        snprintf(text, sizeof text,
                 "SELECT 1 FROM %s WHERE payload->>'a' = '0' AND payload->>'n' = '2' FOR UPDATE",
                 form->table->name);
        struct db_statement statement = db_statement_of(str_from(text));
        int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
        assert_int_equal(db_begin(holder, DB_READ_COMMITTED, deadline_ns, &error), STATUS_OK);
        assert_int_equal(db_exec(holder, &statement, NULL, deadline_ns, NULL, &error), STATUS_OK);
        assert_claimed(1, 2);
        db_rollback(holder);
        db_release(holder);
        assert_claimed(2, 0);
        end_worker(0);
    }
}

/* Its rows lie after those of the other aggregate in the table, as they do where that one is always busy. */
static void test_o3_a_suspect_goes_before_an_aggregate_that_is_always_busy(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        form = &rig_forms[i];
        rig_clear();
        rig_insert(form->table, 0, 1, 3);
        rig_insert(form->table, 1, 1, 1);
        rig_sql("UPDATE %s SET %s = 2 WHERE payload->>'a' = '1'", form->table->name, form->table->claims);
        begin_worker(0, 50);
        assert_claimed(0, 1);
        end_worker(0);
    }
}

static void settle_as_done(size_t number)
{
    struct outbox_claim *claim = &workers[number].claim;
    for (size_t i = 0; i < claim->count; i++)
        claim->results[i].kind = OUTBOX_DONE;
}

static void test_o2_rows_that_were_moved_by_hand_are_settled(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        form = &rig_forms[i];
        rig_clear();
        rig_insert(form->table, 0, 1, 3);
        begin_worker(0, 50);
        assert_claimed(3, 0);
        rig_sql("VACUUM FULL %s", form->table->name);
        settle_as_done(0);
        assert_claimed(0, 0);
        assert_int_equal(workers[0].claim.settled, 3);
        assert_int_equal(rig_count(form, form->published), 3);
        end_worker(0);
    }
}

enum { DRAINERS = 3, DRAINED = 2000 }; /* of each aggregate */
static struct error drain_errors[DRAINERS];

static void *drain(void *context)
{
    size_t number = (size_t)(uintptr_t)context;
    struct error *error = &drain_errors[number];
    enum status status = STATUS_OK;
    bool has_more = true;
    while (status == STATUS_OK && has_more) {
        settle_as_done(number);
        status = outbox_claim_exchange(&workers[number], conns[number], true, clock_deadline_ms(PATIENCE_MS),
                                       error);
        has_more = workers[number].claim.count > 0 || workers[number].claim.more;
    }
    error->status = status;
    return NULL;
}

/* A row that another engine claims or settles between the snapshot of a claim and its lock is left out, and the claim goes on. */
static void test_o3_engines_that_claim_at_the_same_moment_do_not_disturb_each_other(void **state)
{
    pthread_t threads[DRAINERS];
    (void)state;
    form = &rig_forms[0];
    rig_clear();
    for (int a = 0; a < AGGREGATES; a++)
        rig_insert(form->table, a, 1, DRAINED);
    for (size_t i = 0; i < DRAINERS; i++) {
        begin_worker(i, 20);
        drain_errors[i] = (struct error){0};
    }
    for (size_t i = 0; i < DRAINERS; i++)
        pthread_create(&threads[i], NULL, drain, (void *)(uintptr_t)i);
    for (size_t i = 0; i < DRAINERS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < DRAINERS; i++) {
        if (drain_errors[i].status != STATUS_OK)
            fail_msg("%s", drain_errors[i].message);
        end_worker(i);
    }
    assert_int_equal(rig_count(form, form->published), AGGREGATES * DRAINED);
}

int run_claim_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_o3_claims_match_the_model),
        cmocka_unit_test(test_o3_a_row_that_is_locked_holds_back_its_own_aggregate_alone),
        cmocka_unit_test(test_o3_a_suspect_goes_before_an_aggregate_that_is_always_busy),
        cmocka_unit_test(test_o2_rows_that_were_moved_by_hand_are_settled),
        cmocka_unit_test(test_o3_engines_that_claim_at_the_same_moment_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests_name("claims", tests, NULL, NULL);
}
