/* The auditor of updates: an accepted update that nothing carries any more (sql/refdata/015_audit.sql) is decided or published again.
 *
 *     embedded bus   its message is gone: FAILED COMMAND_LOST
 *     Kafka          command_outbox has its command: published again; apply recognises it by its event, so that a second one has no effect
 *                    a later update of its dictionary was applied or is on its way: FAILED, since it would undo that one
 *                    its row was given up, discarded or deleted: FAILED
 *                    its dictionary has moved to another database, which has decided it: the decision is copied
 *
 * Whether Kafka still has a message is found without reading it. The ends of all partitions are a fence: when the group has committed all
 * of them, what was published before the fence was taken and is still undecided is not in the topic.
 *
 *     ends asked ─ fence ─────────── group commits past the fence ─ the updates published before it are looked at again
 */
#include "base/arena.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bus/bus_kafka.h"
#include "kernel/engines.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/apply/batch.h"
#include "modules/refdata/commands.h"
#include "modules/refdata/writer.h"
#include "outbox/outbox.h"

enum { STEP_MS = 30000, ASK_MS = 10000, INTERVAL_MIN_MS = 50, INTERVAL_MAX_MS = 60000 };

enum audit_result { AUDIT_FAILED, AUDIT_REPUBLISHED, AUDIT_COPIED, AUDIT_RESULTS };
static const char *const result_names[] = {
    [AUDIT_FAILED] = "failed", [AUDIT_REPUBLISHED] = "republished", [AUDIT_COPIED] = "copied"};
static struct metric_family total_family = {
    .name = "refdata_audit_total",
    .help =
        "Updates without a carrier, by result: failed, republished, copied (decided in another database).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
static struct metric_series *totals[AUDIT_RESULTS];

/* $1 topic, $2 group, $3 age in ms, $4 pause in ms. */
static const struct db_statement lost_sql =
    DB_STATEMENT("select tenant_id, event_id, dict_code, outbox_id, is_given_up::int, last_error,"
                 "  (extract(epoch from coalesce(published_at, created_at)) * 1000000)::bigint,"
                 "  (extract(epoch from clock_timestamp()) * 1000000)::bigint"
                 " from refdata.audit_updates($1, $2, $3, $4)");
enum { TENANT, EVENT_ID, DICT_CODE, OUTBOX_ID, IS_PUBLISH_FAILED, LAST_ERROR, AT_US, NOW_US };

static const struct db_statement fail_sql =
    DB_STATEMENT("select tenant_id, event_id, dict_code, reason"
                 " from refdata.fail_updates($1, $2::uuid[], 'COMMAND_LOST', $3)");

/* $1 tenants, $2 events, $3 their rows in command_outbox. Of these, later ones do not matter: they are published again in their order. */
static const struct db_statement overtaken_sql = DB_STATEMENT(
    "with lost as materialized ("
    "   select r.tenant_id, r.event_id, r.dict_code, r.created_at, u.row"
    "   from unnest($1, $2::uuid[], $3) as u (t, e, row)"
    "   join refdata.update_request r on r.tenant_id = u.t and r.event_id = u.e),"
    " later as materialized ("
    "   select r.tenant_id, r.dict_code, max(r.created_at) as at from refdata.update_request r"
    "   where r.created_at > (select min(l.created_at) from lost l) and r.status <> 'FAILED'"
    "     and not exists (select from lost l where l.tenant_id = r.tenant_id and l.event_id = r.event_id)"
    "   group by 1, 2)"
    " select l.tenant_id, l.event_id, l.dict_code, l.row, coalesce(n.at > l.created_at, false)::int from lost l"
    " left join later n on n.tenant_id = l.tenant_id and n.dict_code = l.dict_code");
enum { IS_OVERTAKEN = OUTBOX_ID + 1 };

static const struct db_statement copy_sql =
    DB_STATEMENT("update refdata.update_request set status = $3, committed_version = $4, error_code = $5,"
                 "  error_message = $6, updated_at = clock_timestamp()"
                 " where tenant_id = $1 and event_id = $2 and status = 'PENDING'");

struct fence {
    const struct refdata_database *database; /* whose group has to pass it */
    int64_t at_us;                           /* by the auditor's database's clock; 0 = none */
    unsigned partitions;
    int64_t ends[BUS_PARTITIONS_MAX];
};

struct refdata_audit {
    struct refdata_database *database;
    bool is_failing;           /* logged once */
    struct fence fence, moved; /* on Kafka; of the database that dictionaries have moved to */
};

void refdata_audit_metrics_register(void)
{
    metrics_register(&total_family);
    for (size_t i = 0; i < AUDIT_RESULTS; i++)
        totals[i] = metric_series_get(&total_family, (struct str[]){str_from(result_names[i])});
}

static void report_lost(enum audit_result result, struct str tenant, struct str event_id, struct str code)
{
    metric_add(totals[result], 1);
    log_warn("update_lost", LOG_STR("eventId", event_id), LOG_STR("tenantId", tenant),
             LOG_STR("dictCode", code), LOG_CSTR("result", result_names[result]));
}

/* ---- decide or publish again ---- */

struct lost {
    struct refdata_audit *audit;
    struct refdata_catalog *catalog;
    struct db_conn *conn;
    const struct db_result *rows;
    struct arena *arena;
    struct refdata_columns failed;        /* tenant, event, reason */
    struct refdata_columns published;     /* on Kafka: tenant, event, row of command_outbox */
    struct buf republished;               /* text[] of ids */
    const struct refdata_database *asked; /* its fence was asked for in this step: */
    int64_t asked_us;
};

static enum status fail_lost(struct lost *lost, struct error *error)
{
    struct refdata_database *database = lost->audit->database;
    struct db_param params[4] = {[3] = DB_END};
    struct db_result *rows = NULL;
    if (lost->failed.rows == 0)
        return STATUS_OK;
    refdata_columns_bind_arrays(&lost->failed, params);
    enum status status = db_query(lost->conn, &fail_sql, params, clock_deadline_ms(STEP_MS), &rows, error);
    size_t count = status == STATUS_OK ? db_result_rows(rows) : 0;
    struct refdata_outcome *outcomes = arena_zalloc(lost->arena, (count + 1) * sizeof *outcomes);
    bool *waited = arena_zalloc(lost->arena, count + 1);
    for (size_t i = 0; i < count; i++) {
        struct refdata_state *state = &outcomes[i].state;
        outcomes[i].tenant = db_result_str(rows, i, TENANT);
        outcomes[i].dict_code = db_result_str(rows, i, DICT_CODE);
        state->decision = REFDATA_FAILED;
        str_copy(state->event_id, sizeof state->event_id, db_result_str(rows, i, EVENT_ID));
        str_copy(state->code, sizeof state->code, str_from(status_code(STATUS_COMMAND_LOST)));
        str_copy(state->reason, sizeof state->reason, db_result_str(rows, i, DICT_CODE + 1));
        waited[i] = true;
        report_lost(AUDIT_FAILED, outcomes[i].tenant, str_from(state->event_id), outcomes[i].dict_code);
    }
    if (count)
        refdata_database_decided(database, outcomes, waited, count);
    db_result_free(rows);
    return status;
}

/* Those in Kafka no more are published again, unless that would undo a later update: then they fail. */
static enum status part_published(struct lost *lost, struct error *error)
{
    struct db_param params[4] = {[3] = DB_END};
    struct db_result *rows = NULL;
    enum status status = STATUS_OK;
    refdata_columns_bind_arrays(&lost->published, params);
    if (lost->published.rows)
        status = db_query(lost->conn, &overtaken_sql, params, clock_deadline_ms(STEP_MS), &rows, error);
    for (size_t i = 0; rows && i < db_result_rows(rows); i++) {
        struct str tenant = db_result_str(rows, i, TENANT), event_id = db_result_str(rows, i, EVENT_ID);
        if (db_result_i64(rows, i, IS_OVERTAKEN)) {
            refdata_columns_add(
                &lost->failed,
                REFDATA_ROW(
                    arena_str(lost->arena, tenant), arena_str(lost->arena, event_id),
                    STR("its command was lost, and a later update of the dictionary precedes it now")));
            continue;
        }
        db_array_put(&lost->republished, db_result_str(rows, i, OUTBOX_ID));
        report_lost(AUDIT_REPUBLISHED, tenant, event_id, db_result_str(rows, i, DICT_CODE));
    }
    db_result_free(rows);
    return status;
}

static enum status republish_lost(struct lost *lost, struct error *error)
{
    struct refdata_database *database = lost->audit->database;
    int64_t count = 0;
    if (buf_str(&lost->republished).len == 0)
        return STATUS_OK;
    enum status status =
        outbox_change(lost->conn, &refdata_command_table, OUTBOX_CHANGE_REPUBLISH,
                      &(struct outbox_selection){.ids = db_array_end(&lost->republished),
                                                 .rows_max = (int64_t)db_result_rows(lost->rows)},
                      clock_deadline_ms(STEP_MS), &count, error);
    if (status == STATUS_OK && database->commands)
        outbox_wake(database->commands); /* elsewhere the poll finds them */
    return status;
}

/* For an update whose dictionary is in another database now: copies the decision made there. False: there is none. */
static bool copy_decision(struct lost *lost, size_t row, struct refdata_database *other, struct error *error)
{
    struct str tenant = db_result_str(lost->rows, row, TENANT),
               event_id = db_result_str(lost->rows, row, EVENT_ID);
    struct buf tenants = {0}, events = {0};
    struct db_result *rows = NULL;
    struct refdata_state_row found;
    int64_t count = 0;
    db_array_put(&tenants, tenant);
    db_array_put(&events, event_id);
    bool is_copied =
        atomic_load(&other->site.is_ready) &&
        db_pool_query(other->site.pool, &refdata_states_sql,
                      DB_PARAMS(db_text_array(db_array_end(&tenants)), db_text_array(db_array_end(&events))),
                      clock_deadline_ms(ASK_MS), &rows, error) == STATUS_OK &&
        db_result_rows(rows) == 1;
    if (is_copied)
        refdata_states_row(rows, 0, &found);
    is_copied = is_copied && found.state.decision != REFDATA_PENDING;
    if (is_copied) {
        bool is_failed = found.state.decision == REFDATA_FAILED;
        const struct db_param params[] = {db_text(tenant),
                                          db_uuid(event_id),
                                          db_cstr(refdata_decision_name(found.state.decision)),
                                          is_failed ? db_null(DB_BIGINT) : db_i64(found.state.version),
                                          is_failed ? db_cstr(found.state.code) : db_null(DB_TEXT),
                                          is_failed ? db_cstr(found.state.reason) : db_null(DB_TEXT),
                                          DB_END};
        is_copied =
            db_exec(lost->conn, &copy_sql, params, clock_deadline_ms(STEP_MS), &count, error) == STATUS_OK;
    }
    if (count)
        report_lost(AUDIT_COPIED, tenant, event_id, db_result_str(lost->rows, row, DICT_CODE));
    db_result_free(rows);
    buf_deinit(&tenants);
    buf_deinit(&events);
    return is_copied;
}

/* ---- Kafka's fence ---- */

/* Sets *passed_us: messages published before then are not in the topic any more. 0: that is not known. */
static enum status ask_fence(struct fence *fence, const struct refdata_database *database, int64_t now_us,
                             struct arena *arena, int64_t *passed_us, struct error *error)
{
    struct bus_kafka_position *positions = arena_zalloc(arena, BUS_PARTITIONS_MAX * sizeof *positions);
    struct bus_kafka_config config = {.brokers = NULL};
    unsigned count = 0;
    *passed_us = 0;
    kernel_engine_kafka(kernel_section(database->refdata->kernel, "kafka"), arena, &config);
    enum status status =
        bus_kafka_positions(&config, database->buses.commands_topic, database->buses.apply_group,
                            clock_deadline_ms(ASK_MS), positions, &count, error);
    if (status != STATUS_OK || count == 0)
        return status;
    bool is_taken = fence->at_us && fence->database == database && fence->partitions == count;
    bool is_passed = is_taken;
    for (unsigned i = 0; i < count && is_passed; i++)
        is_passed = positions[i].committed >= fence->ends[i];
    if (is_passed)
        *passed_us = fence->at_us;
    else if (is_taken)
        return STATUS_OK; /* it stands until it is passed */
    for (unsigned i = 0; i < count; i++)
        fence->ends[i] = positions[i].end;
    fence->partitions = count;
    fence->database = database;
    fence->at_us = now_us;
    return STATUS_OK;
}

/* ---- one step ---- */

/* The same for the group of a database that dictionaries have moved to: one of them in a step. */
static int64_t ask_there(struct lost *lost, const struct refdata_database *other, struct error *error)
{
    if (!lost->asked && ask_fence(&lost->audit->moved, other, db_result_i64(lost->rows, 0, NOW_US),
                                  lost->arena, &lost->asked_us, error) != STATUS_OK)
        lost->asked_us = 0;
    lost->asked = lost->asked ? lost->asked : other;
    return lost->asked == other ? lost->asked_us : 0;
}

static void settle_row(struct lost *lost, size_t row, int64_t passed_us, struct error *error)
{
    struct refdata_database *database = lost->audit->database;
    struct str tenant = db_result_str(lost->rows, row, TENANT),
               event_id = db_result_str(lost->rows, row, EVENT_ID),
               code = db_result_str(lost->rows, row, DICT_CODE);
    const struct refdata_dictionary *dictionary = refdata_catalog_find(lost->catalog, code);
    bool is_publish_failed = db_result_i64(lost->rows, row, IS_PUBLISH_FAILED) == 1;
    struct str reason = str_from(status_message(STATUS_COMMAND_LOST));
    if (database->buses.shared && !is_publish_failed && db_result_i64(lost->rows, row, AT_US) >= passed_us)
        return;
    bool is_moved = database->buses.shared && dictionary && dictionary->database != database;
    if (is_moved && (copy_decision(lost, row, dictionary->database, error) ||
                     (!is_publish_failed &&
                      db_result_i64(lost->rows, row, AT_US) >= ask_there(lost, dictionary->database, error))))
        return;
    /* On the embedded bus no process publishes from command_outbox: the row is left from before bus.commands was changed. */
    bool is_kept =
        database->buses.shared && !is_publish_failed && !db_result_is_null(lost->rows, row, OUTBOX_ID);
    if (is_kept && is_moved) { /* what would have overtaken it there is not known here */
        db_array_put(&lost->republished, db_result_str(lost->rows, row, OUTBOX_ID));
        report_lost(AUDIT_REPUBLISHED, tenant, event_id, code);
        return;
    }
    if (is_kept) {
        refdata_columns_add(&lost->published,
                            REFDATA_ROW(tenant, event_id, db_result_str(lost->rows, row, OUTBOX_ID)));
        return;
    }
    if (is_publish_failed && !db_result_is_null(lost->rows, row, LAST_ERROR))
        reason = arena_printf(lost->arena, "its command could not be published: %.*s",
                              STR_ARG(db_result_str(lost->rows, row, LAST_ERROR)));
    refdata_columns_add(&lost->failed, REFDATA_ROW(tenant, event_id, reason));
}

static enum status settle_lost(struct lost *lost, struct error *error)
{
    struct refdata_audit *audit = lost->audit;
    size_t count = db_result_rows(lost->rows);
    int64_t passed_us = 0;
    enum status status = STATUS_OK;
    if (count > 0 && audit->database->buses.shared)
        status = ask_fence(&audit->fence, audit->database, db_result_i64(lost->rows, 0, NOW_US), lost->arena,
                           &passed_us, error);
    else
        audit->fence.at_us = audit->moved.at_us = 0;
    refdata_columns_begin(&lost->failed, 3, lost->arena);
    refdata_columns_begin(&lost->published, 3, lost->arena);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        settle_row(lost, i, passed_us, error);
    if (status == STATUS_OK)
        status = fail_lost(lost, error); /* first: what has failed overtakes nothing */
    refdata_columns_free(&lost->failed);
    refdata_columns_begin(&lost->failed, 3, lost->arena);
    if (status == STATUS_OK)
        status = part_published(lost, error);
    if (status == STATUS_OK)
        status = fail_lost(lost, error);
    if (status == STATUS_OK)
        status = republish_lost(lost, error);
    refdata_columns_free(&lost->failed);
    refdata_columns_free(&lost->published);
    buf_deinit(&lost->republished);
    return status;
}

static int64_t audit_interval_ms(const struct refdata_catalog *catalog)
{
    int64_t interval_ms = catalog->updates.audit_ms / 2;
    return interval_ms < INTERVAL_MIN_MS   ? INTERVAL_MIN_MS
           : interval_ms > INTERVAL_MAX_MS ? INTERVAL_MAX_MS
                                           : interval_ms;
}

static int64_t audit_step(struct task *task, void *context)
{
    struct refdata_audit *audit = context;
    struct refdata_database *database = audit->database;
    struct refdata_catalog *catalog = refdata_database_catalog(database);
    int64_t interval_ms = audit_interval_ms(catalog), deadline_ns = clock_deadline_ms(STEP_MS);
    struct arena arena = ARENA(4096);
    struct db_conn *conn = NULL;
    struct db_result *rows = NULL;
    struct error error = {0};
    (void)task;
    enum status status = db_acquire(database->site.pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status =
            db_query(conn, &lost_sql,
                     DB_PARAMS(db_cstr(database->buses.commands_topic), db_cstr(database->buses.apply_group),
                               db_i64(catalog->updates.audit_ms), db_i64(interval_ms)),
                     deadline_ns, &rows, &error);
    if (status == STATUS_OK)
        status = settle_lost(
            &(struct lost){.audit = audit, .catalog = catalog, .conn = conn, .rows = rows, .arena = &arena},
            &error);
    db_result_free(rows);
    db_release(conn);
    arena_deinit(&arena);
    refdata_catalog_unref(catalog);
    bool is_failing = status != STATUS_OK && status != STATUS_CANCELLED;
    if (is_failing && !audit->is_failing)
        log_warn("audit_failed", LOG_STR("database", database->name), LOG_ERROR_FIELDS(&error));
    audit->is_failing = is_failing;
    return TASK_MS(interval_ms);
}

void refdata_audit_add(struct refdata_database *database)
{
    struct refdata_audit *audit = arena_zalloc(&database->site.arena, sizeof *audit);
    audit->database = database;
    kernel_site_add_task(&database->site, "audit", audit_step, audit,
                         TASK_MS(audit_interval_ms(database->catalog)));
}
