/* Events: which of a batch's commands had their effect before, and the rows of those that nobody knows of yet.
 *
 * What a POST or the adapter accepted has its row of update_request. Others may publish commands too, by the contract alone:
 * theirs is made here, with the note that the event was processed, so that its status can be asked for (R2). */
#include "base/hash.h"
#include "base/log.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/apply/batch.h"

enum { EVENT_COLUMNS = 3, STRANGER_COLUMNS = 7 };

/* Sorted too: whoever has the same eventId waits instead of deadlocking. */
#define PROCESS(rows)                                                                              \
    "insert into refdata.processed_event (tenant_id, event_id, source)"                            \
    " select t, e::uuid, s from " rows " as u (t, e, s) order by t collate \"C\", e collate \"C\"" \
    " on conflict do nothing returning tenant_id, event_id"
static const struct refdata_rows_sql process_sql = {PROCESS("unnest($1, $2, $3)"),
                                                    PROCESS("(values ($1, $2, $3))")};
/* The same, and the rows. A command that is buried ($4 is null) leaves no trace of its event, or it could not be sent again
 * when whatever was wrong is put right; unless somebody was told that it was accepted. */
#define PROCESS_STRANGERS(rows)                                                             \
    "with asked as ("                                                                       \
    "   select t, e::uuid as e, s, d, hash, snapshot::uuid as snapshot, who, at"            \
    "   from " rows " as u (t, e, s, d, hash, snapshot, who, at)),"                         \
    " fresh as ("                                                                           \
    "   insert into refdata.processed_event (tenant_id, event_id, source)"                  \
    "   select t, e, s from asked where d is not null or exists ("                          \
    "     select from refdata.update_request r where r.tenant_id = t and r.event_id = e)"   \
    "   order by t collate \"C\", e on conflict do nothing returning tenant_id, event_id)," \
    " made as ("                                                                            \
    "   insert into refdata.update_request"                                                 \
    "    (tenant_id, event_id, dict_code, status, source, content_hash, snapshot_id,"       \
    "     requested_by)"                                                                    \
    "   select t, e, d, 'PENDING', s, hash, snapshot, who"                                  \
    "   from asked join fresh on tenant_id = t and event_id = e where d is not null"        \
    "   order by at on conflict do nothing)"                                                \
    " select tenant_id, event_id from fresh"
static const struct refdata_rows_sql process_strangers_sql = {
    PROCESS_STRANGERS("unnest($1, $2, $3, $4, $5, $6, $7) with ordinality"),
    PROCESS_STRANGERS("(values ($1, $2, $3, $4, $5, $6, $7, 1))")};
static const char outcomes_sql[] =
    "select u.at, r.status, r.committed_version, r.error_code, r.error_message, r.snapshot_id, r.content_hash"
    " from unnest($1, $2) with ordinality as u (t, e, at)"
    " join refdata.update_request r on r.tenant_id = u.t and r.event_id = u.e::uuid";

static const enum db_type text_arrays[] = {DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY,
                                           DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY};

static void put_stranger(const struct batch *batch, size_t at, struct refdata_columns *columns)
{
    const struct refdata_update *update = &batch->commands[at].update;
    bool chunked = refdata_update_is_chunk(update);
    refdata_columns_put(columns, 3, batch->entries[at].is_dead_letter ? STR_NONE : update->dict_code);
    refdata_columns_put(columns, 4, refdata_acceptance_hash(update, batch->arena));
    refdata_columns_put(columns, 5, chunked ? str_from(update->snapshot_id) : STR_NONE);
    refdata_columns_put(columns, 6,
                        arena_printf(batch->arena, "kafka:%s", batch->flow->buses.commands_topic));
}

enum status refdata_events_add(struct batch *batch, struct error *error)
{
    bool strangers = batch->flags & REFDATA_APPLY_STRANGERS;
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX];
    struct db_statement statement;
    refdata_columns_begin(&columns, strangers ? STRANGER_COLUMNS : EVENT_COLUMNS);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *update = &batch->commands[i].update;
        refdata_columns_put(&columns, 0, update->tenant);
        refdata_columns_put(&columns, 1, str_from(update->event_id));
        refdata_columns_put(&columns, 2, update->source == REFDATA_KAFKA ? STR("KAFKA") : STR("REST"));
        if (strangers)
            put_stranger(batch, i, &columns);
        columns.rows++;
    }
    refdata_columns_state(&columns, strangers ? &process_strangers_sql : &process_sql, &statement, params);
    enum status status = db_pipeline_add_checked(batch->conn, &statement, params, error);
    refdata_columns_free(&columns);
    return status;
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

/* An event that had its effect while this update waits was another update's: an eventId used twice. Nobody else would
 * ever decide it. */
static bool is_usurped(const struct db_result *rows, size_t row)
{
    return db_result_is_null(rows, row, 5);
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
    } else if (is_usurped(rows, row)) {
        refdata_command_fail(command, STATUS_EVENT_ID_CONFLICT, "another update had this eventId");
    }
}

/* Another update under an event's id has no effect. A POST is told so; whoever published it by himself finds it here. */
static void look_for_conflict(const struct batch *batch, const struct refdata_command *command,
                              const struct db_result *rows, size_t row)
{
    struct str hash = db_result_str(rows, row, 6);
    if (!hash.len || str_eq(hash, refdata_acceptance_hash(&command->update, batch->arena)))
        return;
    log_warn("event_id_conflict", LOG_STR("eventId", command->outcome.event_id),
             LOG_STR("tenantId", command->outcome.tenant), LOG_STR("dictCode", command->outcome.dict_code),
             LOG_CSTR("source", command->update.source == REFDATA_KAFKA ? "KAFKA" : "REST"));
}

/* A duplicate shows what became of the first one: its sender may still wait, if the commit was lost sight of. */
enum status refdata_events_read(struct batch *batch, struct error *error)
{
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX];
    struct db_statement statement;
    struct db_result *rows = NULL;
    enum status status = STATUS_OK;
    size_t *places = arena_alloc(batch->arena, batch->count * sizeof *places);
    refdata_columns_begin(&columns, 2);
    for (size_t i = 0; i < batch->count; i++) {
        if (!batch->entries[i].duplicate || batch->entries[i].first != i)
            continue;
        batch->commands[i].outcome.decision = REFDATA_PENDING;
        batch->commands[i].decided = false;
        refdata_columns_put(&columns, 0, batch->commands[i].outcome.tenant);
        refdata_columns_put(&columns, 1, batch->commands[i].outcome.event_id);
        places[columns.rows++] = i;
    }
    refdata_columns_end(&columns, params);
    db_statement_init(&statement, outcomes_sql, 2, text_arrays);
    if (columns.rows)
        status = db_query(batch->conn, &statement, params, batch->deadline_ns, &rows, error);
    for (size_t row = 0; rows && row < db_result_rows(rows); row++) {
        struct refdata_command *command = &batch->commands[places[db_result_i64(rows, row, 0) - 1]];
        look_for_conflict(batch, command, rows, row);
        take_outcome(command, rows, row);
    }
    refdata_columns_free(&columns);
    db_result_free(rows);
    return status;
}
