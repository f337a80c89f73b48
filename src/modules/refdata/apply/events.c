/* Events: which of a batch's commands had their effect before, and the rows of unknown ones.
 *
 * What a POST or the adapter accepted has its row of update_request. Others may publish commands too, by the contract alone:
 * theirs is inserted here, together with the row of processed_event, so that its status can be read (R2). */
#include "base/hash.h"
#include "base/log.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/apply/batch.h"

/* Sorted too: another batch with the same eventId waits instead of deadlocking. */
#define PROCESS(rows)                                                                              \
    "insert into refdata.processed_event (tenant_id, event_id, source)"                            \
    " select t, e::uuid, s from " rows " as u (t, e, s) order by t collate \"C\", e collate \"C\"" \
    " on conflict do nothing returning tenant_id, event_id"
static const struct refdata_rows_sql process_sql = {DB_STATEMENT(PROCESS("unnest($1, $2, $3)")),
                                                    DB_STATEMENT(PROCESS("(values ($1, $2, $3))"))};
/* The same, and the rows. A dead letter ($4 is null) leaves no trace of its event, so that it can be sent again when what was wrong
 * is put right; unless it was accepted. */
#define PROCESS_UNKNOWN(rows)                                                               \
    "with asked as ("                                                                       \
    "   select t, e::uuid as e, s, d, hash, snapshot::uuid as snapshot, requester, at"      \
    "   from " rows " as u (t, e, s, d, hash, snapshot, requester, at)),"                   \
    " fresh as ("                                                                           \
    "   insert into refdata.processed_event (tenant_id, event_id, source)"                  \
    "   select t, e, s from asked where d is not null or exists ("                          \
    "     select from refdata.update_request r where r.tenant_id = t and r.event_id = e)"   \
    "   order by t collate \"C\", e on conflict do nothing returning tenant_id, event_id)," \
    " made as ("                                                                            \
    "   insert into refdata.update_request"                                                 \
    "    (tenant_id, event_id, dict_code, status, source, content_hash, snapshot_id,"       \
    "     requested_by)"                                                                    \
    "   select t, e, d, 'PENDING', s, hash, snapshot, requester"                            \
    "   from asked join fresh on tenant_id = t and event_id = e where d is not null"        \
    "   order by at on conflict do nothing)"                                                \
    " select tenant_id, event_id from fresh"
static const struct refdata_rows_sql process_unknown_sql = {
    DB_STATEMENT(PROCESS_UNKNOWN("unnest($1, $2, $3, $4, $5, $6, $7) with ordinality")),
    DB_STATEMENT(PROCESS_UNKNOWN("(values ($1, $2, $3, $4, $5, $6, $7, 1))"))};
static const struct db_statement outcomes_sql = DB_STATEMENT(
    "select u.at, r.status, r.committed_version, r.error_code, r.error_message, r.snapshot_id, r.content_hash"
    " from unnest($1, $2) with ordinality as u (t, e, at)"
    " join refdata.update_request r on r.tenant_id = u.t and r.event_id = u.e::uuid");

static void put_unknown(const struct batch *batch, size_t at, struct refdata_columns *columns)
{
    const struct refdata_update *update = &batch->commands[at].update;
    bool chunked = refdata_update_is_chunk(update);
    refdata_columns_put(columns, 3, batch->entries[at].is_dead_letter ? STR_NONE : update->dict_code);
    refdata_columns_put(columns, 4, refdata_acceptance_hash(update, batch->arena));
    refdata_columns_put(columns, 5, chunked ? str_from(update->snapshot_id) : STR_NONE);
    refdata_columns_put(columns, 6,
                        arena_printf(batch->arena, "kafka:%s", batch->flow->buses.commands_topic));
}

void refdata_events_add(struct batch *batch)
{
    bool has_unknown = batch->flags & REFDATA_APPLY_UNKNOWN;
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX + 1];
    refdata_columns_begin(&columns, has_unknown ? 7 : 3, batch->arena);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *update = &batch->commands[i].update;
        refdata_columns_put(&columns, 0, update->tenant);
        refdata_columns_put(&columns, 1, str_from(update->event_id));
        refdata_columns_put(&columns, 2, refdata_source_name(update->source));
        if (has_unknown)
            put_unknown(batch, i, &columns);
        refdata_columns_next(&columns);
    }
    const struct db_statement *statement =
        refdata_columns_bind(&columns, has_unknown ? &process_unknown_sql : &process_sql, params);
    db_pipeline_add(batch->conn, statement, params);
    refdata_columns_free(&columns);
}

static uint32_t *find_event(const struct batch *batch, uint32_t *slots, size_t mask, struct str tenant,
                            struct str event_id)
{
    size_t slot = (size_t)hash_seeded(event_id) & mask;
    for (; slots[slot]; slot = (slot + 1) & mask) {
        const struct refdata_outcome *there = &batch->commands[slots[slot] - 1].outcome;
        if (str_eq(there->event_id, event_id) && str_eq(there->tenant, tenant))
            break;
    }
    return &slots[slot];
}

/* Which of them stand earlier in this batch, and which are not among the new ones that PostgreSQL answered. */
void refdata_events_mark(struct batch *batch, const struct db_result *fresh)
{
    size_t slot_count = refdata_slots_for(batch->count), mask = slot_count - 1;
    uint32_t *slots = arena_zalloc(batch->arena, slot_count * sizeof *slots);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_outcome *own = &batch->commands[i].outcome;
        uint32_t *slot = find_event(batch, slots, mask, own->tenant, own->event_id);
        if (!*slot)
            *slot = (uint32_t)i + 1;
        batch->entries[i].first = *slot - 1;
        batch->entries[i].duplicate = true;
    }
    for (size_t row = 0; row < db_result_rows(fresh); row++) {
        uint32_t *slot =
            find_event(batch, slots, mask, db_result_str(fresh, row, 0), db_result_str(fresh, row, 1));
        if (*slot)
            batch->entries[*slot - 1].duplicate = false;
    }
    for (size_t i = 0; i < batch->count;
         i++) /* a chunk is known by its place in its snapshot, not by its event */
        batch->entries[i].duplicate &= !refdata_batch_is_chunk(batch, i);
}

static void take_outcome(struct refdata_command *command, const struct db_result *rows, size_t row)
{
    struct refdata_outcome *outcome = &command->outcome;
    struct str status = db_result_str(rows, row, 1);
    *outcome = (struct refdata_outcome){
        .tenant = outcome->tenant, .dict_code = outcome->dict_code, .event_id = outcome->event_id};
    if (str_eq(status, STR("COMMITTED"))) {
        outcome->decision = REFDATA_COMMITTED;
        outcome->version = db_result_i64(rows, row, 2);
    } else if (str_eq(status, STR("FAILED"))) {
        struct str reason = db_result_str(rows, row, 4);
        refdata_command_fail(command, refdata_status_of_code(db_result_str(rows, row, 3)), "%.*s",
                             STR_ARG(reason));
        command->decided = false;
    } else if (db_result_is_null(rows, row, 5)) { /* no chunk */
        /* An event that was processed while this update is pending was another update's. Nothing else would decide it. */
        refdata_command_fail(command, STATUS_EVENT_ID_CONFLICT, "another update had this eventId");
    }
}

/* Another update under an event's id has no effect. A POST is refused; for a command of others this is logged. */
static void log_conflict(const struct batch *batch, const struct refdata_command *command,
                         const struct db_result *rows, size_t row)
{
    struct str hash = db_result_str(rows, row, 6);
    if (!hash.len || str_eq(hash, refdata_acceptance_hash(&command->update, batch->arena)))
        return;
    log_warn("event_id_conflict", LOG_STR("eventId", command->outcome.event_id),
             LOG_STR("tenantId", command->outcome.tenant), LOG_STR("dictCode", command->outcome.dict_code),
             LOG_STR("source", refdata_source_name(command->update.source)));
}

/* A duplicate gets the outcome of the first one: its sender may still wait, if the reply to the commit was lost. */
enum status refdata_events_read(struct batch *batch, struct error *error)
{
    struct refdata_columns columns;
    struct db_param params[3] = {[2] = DB_END};
    struct db_result *rows = NULL;
    enum status status = STATUS_OK;
    size_t *places = arena_alloc(batch->arena, batch->count * sizeof *places);
    refdata_columns_begin(&columns, 2, batch->arena);
    for (size_t i = 0; i < batch->count; i++) {
        if (!batch->entries[i].duplicate || batch->entries[i].first != i)
            continue;
        batch->commands[i].outcome.decision = REFDATA_PENDING;
        batch->commands[i].decided = false;
        refdata_columns_put(&columns, 0, batch->commands[i].outcome.tenant);
        refdata_columns_put(&columns, 1, batch->commands[i].outcome.event_id);
        places[columns.rows] = i;
        refdata_columns_next(&columns);
    }
    refdata_columns_bind_arrays(&columns, params);
    if (columns.rows)
        status = db_query(batch->conn, &outcomes_sql, params, batch->deadline_ns, &rows, error);
    for (size_t row = 0; rows && row < db_result_rows(rows); row++) {
        struct refdata_command *command = &batch->commands[places[db_result_i64(rows, row, 0) - 1]];
        log_conflict(batch, command, rows, row);
        take_outcome(command, rows, row);
    }
    refdata_columns_free(&columns);
    db_result_free(rows);
    return status;
}
