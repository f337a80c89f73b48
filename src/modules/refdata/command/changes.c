/* Publishes changed items for hydration (H4). Apply writes a row of refdata.item_change for each update of a dictionary that
 * some consumer hydrates; here those rows are claimed, and what consumers hold of their items is published: once for each
 * item, with its content at that moment, so that several updates of an item cost one message.
 *
 * Rows are claimed for a while by one process of all and deleted when the bus of events has the messages. A change that can
 * never be published is logged and left out: copies of it expire. Runs when it is woken and, since a notice can be lost,
 * every few seconds. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "hydration/event.h"
#include "hydration/hydration.h"
#include "kernel/store.h"
#include "modules/refdata/command/source.h"

enum {
    ROWS_MAX = 20,
    ROUNDS_MAX = 50,  /* of one run of the job */
    PACE_MS = 5,      /* after a wake: the writer is answered first, and changes gather */
    POLL_MS = 5000,   /* in case a notice was lost */
    BACKOFF_MS = 500, /* after a failure */
    RUN_MS = 10000,   /* less than a claim lasts */
};

/* A claim that was not finished ends after that interval. The table is as small as what waits. Sorted: of a pair, rows that
 * mean all of its items come first, then each key. */
static const char claim_sql[] =
    "with claimed as ("
    "    update refdata.item_change c set claimed_until = clock_timestamp() + interval '15 s'"
    "    from (select id from refdata.item_change"
    "          where claimed_until is null or claimed_until < clock_timestamp()"
    "          order by id limit $1 for update skip locked) due"
    "    where c.id = due.id returning c.*)"
    " select c.id, c.tenant_id, c.dict_code, k.key, c.keys is null"
    " from claimed c left join lateral unnest(c.keys) as k (key) on true"
    " order by c.tenant_id, c.dict_code, c.keys is null desc, k.key";
enum { ID, TENANT, CODE, KEY, IS_ALL };
static const char finish_sql[] = "delete from refdata.item_change where id = any($1::bigint[])";
static const char release_sql[] =
    "update refdata.item_change set claimed_until = null where id = any($1::bigint[])";

struct refdata_changes {
    struct worker_job job;
    struct loop_message wake;
    atomic_bool is_posted; /* the message is on its way */
    struct refdata_flow *flow;
    struct hydration *hydration;
    struct loop_timer timer;
    bool running, woken, stopped; /* the home loop's */
    bool is_failing;              /* the last run: logged once */
};

/* Rows that this process has claimed, on a worker. */
struct claim {
    struct refdata_changes *changes;
    struct db_result *rows;
    struct arena arena;
    int64_t deadline_ns;
};

/* ---- publishing ---- */

/* Of a dictionary that lives in this flow's database and can be read. */
static bool is_ours(const struct claim *claim, struct str code)
{
    const struct refdata_flow *flow = claim->changes->flow;
    struct refdata_catalog *catalog = refdata_flow_catalog(flow);
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    bool is_ours = dictionary && dictionary->database == flow->database &&
                   atomic_load(&dictionary->state) != REFDATA_DISABLED;
    refdata_catalog_unref(catalog);
    return is_ours;
}

static bool is_same_pair(const struct db_result *rows, size_t a, size_t b)
{
    return str_eq(db_result_str(rows, a, TENANT), db_result_str(rows, b, TENANT)) &&
           str_eq(db_result_str(rows, a, CODE), db_result_str(rows, b, CODE));
}

/* The items of rows [first, end), each once. */
static size_t list_items(struct claim *claim, size_t first, size_t end, struct hydration_subject *items)
{
    struct str last = STR_NONE;
    size_t count = 0;
    for (size_t i = first; i < end; i++) {
        struct str key = db_result_str(claim->rows, i, KEY);
        if (db_result_is_null(claim->rows, i, KEY) || (last.ptr && str_eq(last, key)))
            continue;
        last = key;
        struct str id = arena_printf(&claim->arena, "%.*s/%.*s", STR_ARG(db_result_str(claim->rows, i, CODE)),
                                     STR_ARG(key));
        if (hydration_is_text(id, HYDRATION_ID_BYTES_MAX)) /* else no consumer can ask for it */
            items[count++] = (struct hydration_subject){db_result_str(claim->rows, i, TENANT), id};
    }
    return count;
}

/* The changes of one pair. An item is held for a while after its change, so the dictionary stays hydrated. */
static enum status publish_pair(struct claim *claim, size_t first, size_t end, struct error *error)
{
    struct hydration *hydration = claim->changes->hydration;
    struct str tenant = db_result_str(claim->rows, first, TENANT);
    struct str code = db_result_str(claim->rows, first, CODE);
    size_t held = 0;
    enum status status;
    if (!is_ours(claim, code))
        return STATUS_OK;
    if (str_eq(db_result_str(claim->rows, first, IS_ALL), STR("t"))) {
        struct str prefix = arena_printf(&claim->arena, "%.*s/", STR_ARG(code));
        status = hydration_tell_held(hydration, REFDATA_ENTITY_TYPE, tenant, prefix, claim->deadline_ns,
                                     &held, error);
    } else {
        struct hydration_subject *items = arena_alloc(&claim->arena, (end - first) * sizeof *items);
        size_t count = list_items(claim, first, end, items);
        status = hydration_tell_changed(hydration, REFDATA_ENTITY_TYPE, items, count, claim->deadline_ns,
                                        &held, error);
    }
    if (status == STATUS_OK && held)
        status = refdata_source_mark(claim->changes->flow->database, hydration, tenant, code,
                                     claim->deadline_ns, error);
    if (status == STATUS_OK || status_retryable(status))
        return status;
    log_warn("hydration_change_not_published", LOG_STR("tenantId", tenant), LOG_STR("dictCode", code),
             LOG_ERROR_FIELDS(error));
    return STATUS_OK; /* it would fail for ever */
}

static enum status publish_rows(struct claim *claim, struct error *error)
{
    enum status status = STATUS_OK;
    size_t count = db_result_rows(claim->rows), end;
    for (size_t first = 0; first < count && status == STATUS_OK; first = end) {
        for (end = first + 1; end < count && is_same_pair(claim->rows, first, end);)
            end++;
        status = publish_pair(claim, first, end, error);
    }
    return status;
}

/* ---- the table ---- */

static struct db_pool *pool_of(const struct claim *claim)
{
    return claim->changes->flow->database->pool;
}

static enum status take_rows(struct claim *claim, struct error *error)
{
    struct db_statement statement;
    struct db_conn *conn = NULL;
    struct str limit = arena_printf(&claim->arena, "%d", ROWS_MAX);
    db_statement_init(&statement, claim_sql, 1, (const enum db_type[]){DB_BIGINT});
    enum status status = db_acquire(pool_of(claim), claim->deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status =
            db_query(conn, &statement, &(struct db_param){limit}, claim->deadline_ns, &claim->rows, error);
    db_release(conn);
    return status;
}

/* Deletes the claimed rows, or gives them back. */
static enum status settle_rows(struct claim *claim, const char *sql, int64_t deadline_ns, struct error *error)
{
    struct db_statement statement;
    struct db_conn *conn = NULL;
    struct buf ids;
    buf_init(&ids);
    db_array_begin(&ids);
    for (size_t i = 0; i < db_result_rows(claim->rows); i++)
        db_array_put(&ids, db_result_str(claim->rows, i, ID));
    db_array_end(&ids);
    db_statement_init(&statement, sql, 1, (const enum db_type[]){DB_TEXT_ARRAY});
    enum status status = db_acquire(pool_of(claim), deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status = db_exec(conn, &statement, &(struct db_param){buf_str(&ids)}, deadline_ns, NULL, error);
    db_release(conn);
    buf_deinit(&ids);
    return status;
}

/* False in *found: no row waits. */
static enum status run_once(struct refdata_changes *changes, bool *found, struct error *error)
{
    struct claim claim = {.changes = changes, .deadline_ns = clock_deadline_ms(RUN_MS)};
    struct error later = {0};
    arena_init(&claim.arena, 4096);
    enum status status = take_rows(&claim, error);
    *found = status == STATUS_OK && db_result_rows(claim.rows) > 0;
    FAILPOINT("command.before_publish_changes");
    if (*found) {
        status = publish_rows(&claim, error);
        if (status == STATUS_OK)
            status = settle_rows(&claim, finish_sql, clock_deadline_ms(RUN_MS), error);
        else if (settle_rows(&claim, release_sql, clock_deadline_ms(RUN_MS), &later) != STATUS_OK)
            log_debug("hydration_changes_stay_claimed",
                      LOG_ERROR_FIELDS(&later)); /* their claim ends by itself */
    }
    db_result_free(claim.rows);
    arena_deinit(&claim.arena);
    return status;
}

/* ---- the job ---- */

static void run_changes(struct worker_job *job)
{
    struct refdata_changes *changes = (struct refdata_changes *)job;
    struct error error = {0};
    enum status status = STATUS_OK;
    bool found = true;
    for (unsigned round = 0; round < ROUNDS_MAX && found && status == STATUS_OK; round++)
        status = run_once(changes, &found, &error);
    bool is_failing = status != STATUS_OK && status != STATUS_CANCELLED;
    if (is_failing && !changes->is_failing)
        log_warn("hydration_changes_wait", LOG_STR("database", changes->flow->database->name),
                 LOG_ERROR_FIELDS(&error));
    changes->is_failing = is_failing;
}

static void on_timer(struct loop_timer *timer)
{
    struct refdata_changes *changes =
        (struct refdata_changes *)((char *)timer - offsetof(struct refdata_changes, timer));
    changes->woken = false;
    changes->running = worker_pool_submit(changes->flow->workers, &changes->job);
}

static void arm(struct refdata_changes *changes, int64_t delay_ms)
{
    loop_timer_start(changes->flow->refdata->home, &changes->timer, clock_deadline_ms(delay_ms), on_timer);
}

static void changes_done(struct worker_job *job)
{
    struct refdata_changes *changes = (struct refdata_changes *)job;
    changes->running = false;
    if (!changes->stopped && !job->cancelled)
        arm(changes, changes->is_failing ? BACKOFF_MS : changes->woken ? PACE_MS : POLL_MS);
}

static void on_wake(struct loop *loop, struct loop_message *message)
{
    struct refdata_changes *changes =
        (struct refdata_changes *)((char *)message - offsetof(struct refdata_changes, wake));
    (void)loop;
    atomic_store(&changes->is_posted, false);
    if (changes->stopped || changes->woken)
        return;
    changes->woken = true;
    if (!changes->running && !changes->is_failing)
        arm(changes, PACE_MS);
}

void refdata_changes_wake(struct refdata_changes *changes)
{
    if (!atomic_exchange(&changes->is_posted, true))
        loop_post(changes->flow->refdata->home, &changes->wake);
}

/* ---- life ---- */

struct refdata_changes *refdata_changes_create(struct refdata_flow *flow)
{
    struct hydration *hydration = kernel_hydration(flow->refdata->kernel);
    if (!hydration) /* no store: no consumer either */
        return NULL;
    struct refdata_changes *changes = memory_zalloc(sizeof *changes);
    changes->flow = flow;
    changes->hydration = hydration;
    changes->job = (struct worker_job){.loop = flow->refdata->home, .run = run_changes, .done = changes_done};
    changes->wake.on_message = on_wake;
    return changes;
}

void refdata_changes_start(struct refdata_changes *changes)
{
    arm(changes, PACE_MS); /* rows of an earlier process */
}

static void stop_on_home(struct refdata *refdata, void *arg)
{
    struct refdata_changes *changes = arg;
    changes->stopped = true;
    loop_timer_stop(refdata->home, &changes->timer);
}

void refdata_changes_stop(struct refdata_changes *changes)
{
    refdata_home_call(changes->flow->refdata, stop_on_home, changes);
}

void refdata_changes_destroy(struct refdata_changes *changes)
{
    free(changes);
}
