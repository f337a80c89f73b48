/* Snapshots that come in chunks (R8): staged as they come, in any order, and written when the last one is there.
 *
 * A chunk is kept as two arrays, keys and raw payloads, that no statement looks into before the end: staging costs little
 * more than storing bytes, and the payloads are parsed once. The row of a decided snapshot stays, so that a chunk that
 * comes late, or again, gets its status instead of beginning another one. */
#include "modules/refdata/apply/batch.h"

#include "base/failpoint.h"

static const struct db_statement begin_sql = DB_STATEMENT(
    "insert into refdata.snapshot (tenant_id, dict_code, snapshot_id, status, chunks_total, received,"
    "  floor_revision, begun_version, occurred_ms) values ($1, $2, $3, 'PENDING', $4, 0, $5, $6, $7)");
static const struct db_statement stage_sql =
    DB_STATEMENT("insert into refdata.snapshot_chunk"
                 " (tenant_id, dict_code, snapshot_id, chunk_index, event_id, content_hash, keys, payloads)"
                 " values ($1, $2, $3, $4, $5, $6, $7, $8)");
static const struct db_statement touch_sql = DB_STATEMENT(
    "update refdata.snapshot set received = $4, source_revision = $5, occurred_ms = $6,"
    "  updated_at = clock_timestamp() where tenant_id = $1 and dict_code = $2 and snapshot_id = $3");
static const struct db_statement floors_sql =
    DB_STATEMENT("update refdata.snapshot set floor_revision = greatest(floor_revision, $3)"
                 " where tenant_id = $1 and dict_code = $2 and status = 'PENDING'");
static const struct db_statement delta_sql = DB_STATEMENT(
    "insert into refdata.snapshot_delta (tenant_id, dict_code, version, occurred_ms, keys, payloads)"
    " values ($1, $2, $3, $4, $5, $6)");
static const struct db_statement is_part_sql =
    DB_STATEMENT("select from refdata.snapshot_chunk"
                 " where tenant_id = $1 and dict_code = $2 and snapshot_id = $3 and event_id = $4 limit 1");

static const struct db_statement end_sql = DB_STATEMENT(
    "update refdata.snapshot set status = $4, committed_version = $5, error_code = $6, error_message = $7,"
    "  updated_at = clock_timestamp() where tenant_id = $1 and dict_code = $2 and snapshot_id = $3");
static const struct db_statement drop_data_sql =
    DB_STATEMENT("update refdata.snapshot_chunk set keys = null, payloads = null"
                 " where tenant_id = $1 and dict_code = $2 and snapshot_id = $3");
/* Deltas are kept while any snapshot of the pair may need them. */
static const struct db_statement drop_deltas_sql = DB_STATEMENT(
    "delete from refdata.snapshot_delta where tenant_id = $1 and dict_code = $2 and not exists"
    " (select from refdata.snapshot where tenant_id = $1 and dict_code = $2 and status = 'PENDING')");
static const struct db_statement end_updates_sql = DB_STATEMENT(
    "update refdata.update_request set status = $4, committed_version = $5, error_code = $6,"
    "  error_message = $7, updated_at = clock_timestamp()"
    " where tenant_id = $1 and dict_code = $2 and snapshot_id = $3 and status = 'PENDING' returning event_id");

/* ---- what is known ---- */

static struct assembly *assembly_of(struct batch *batch, struct pair *pair, struct str id, bool *is_new)
{
    *is_new = false;
    for (size_t i = 0; i < batch->assembly_count; i++)
        if (batch->assemblies[i]->pair == pair && str_eq(batch->assemblies[i]->id, id))
            return batch->assemblies[i];
    struct assembly *assembly = arena_zalloc(batch->arena, sizeof *assembly);
    assembly->pair = pair;
    assembly->id = id;
    *is_new = true;
    return batch->assemblies[batch->assembly_count++] = assembly;
}

void refdata_assembly_found(struct batch *batch, size_t at, const struct db_result *rows, size_t row)
{
    struct entry *entry = &batch->entries[at];
    bool is_new;
    struct assembly *assembly = entry->assembly =
        assembly_of(batch, entry->pair, str_from(batch->commands[at].update.snapshot_id), &is_new);
    if (!db_result_is_null(rows, row, 11))
        entry->chunk_hash = arena_str(batch->arena, db_result_str(rows, row, 11));
    if (!is_new)
        return;
    assembly->chunks_total = (int32_t)db_result_i64(rows, row, 1);
    assembly->received = (int32_t)db_result_i64(rows, row, 2);
    assembly->revision = refdata_revision_at(rows, row, 3);
    assembly->floor = refdata_revision_at(rows, row, 4);
    assembly->begun_version = db_result_i64(rows, row, 5);
    assembly->occurred_ms = db_result_i64(rows, row, 6);
    refdata_state_read(rows, row, 7, &assembly->state);
}

/* ---- statements ---- */

static struct db_param revision_param(struct revision revision)
{
    return revision.given ? db_i64(revision.value) : db_null(DB_BIGINT);
}

void refdata_assembly_record_delta(struct batch *batch, const struct refdata_write *change)
{
    struct refdata_columns columns;
    struct db_param params[7] = {db_text(change->tenant), db_text(change->dictionary->code),
                                 db_i64(change->version), db_i64(change->epoch_ms), [6] = DB_END};
    refdata_columns_bind_items(&columns, change->items, change->item_count, batch->arena, params + 4);
    refdata_writer_add(&batch->writer, &delta_sql, params);
    refdata_columns_free(&columns);
}

void refdata_assembly_raise_floors(struct batch *batch, const struct pair *pair, struct revision revision)
{
    if (!pair->assembling || !revision.given)
        return;
    for (size_t i = 0; i < batch->assembly_count; i++)
        if (batch->assemblies[i]->pair == pair)
            refdata_revision_raise(&batch->assemblies[i]->floor, revision);
    refdata_writer_add(&batch->writer, &floors_sql,
                       DB_PARAMS(db_text(pair->tenant), db_text(pair->code), db_i64(revision.value)));
}

/* ---- deciding ---- */

enum chunk { CHUNK_NEW, CHUNK_KNOWN, CHUNK_DIFFERS };

/* Is there a chunk in its place already, in this batch or before it? */
static enum chunk compare_chunk(const struct batch *batch, size_t at)
{
    const struct refdata_update *update = &batch->commands[at].update;
    char own[HASH128_HEX_BYTES];
    for (size_t i = at; i-- > 0;) {
        const struct refdata_update *earlier = &batch->commands[i].update;
        if (batch->entries[i].staged && batch->entries[i].assembly == batch->entries[at].assembly &&
            earlier->chunk_index == update->chunk_index)
            return memcmp(&earlier->content, &update->content, sizeof update->content) ? CHUNK_DIFFERS
                                                                                       : CHUNK_KNOWN;
    }
    if (!batch->entries[at].chunk_hash.ptr)
        return CHUNK_NEW;
    hash128_hex(update->content, own);
    return str_eq(batch->entries[at].chunk_hash, str_from(own)) ? CHUNK_KNOWN : CHUNK_DIFFERS;
}

/* All chunks are there. */
static void complete_snapshot(struct batch *batch, size_t at)
{
    struct entry *entry = &batch->entries[at];
    struct assembly *assembly = entry->assembly;
    struct pair *pair = entry->pair;
    refdata_batch_before_snapshot(batch);
    FAILPOINT("apply.before_finalize");
    refdata_batch_next_version(batch, entry);
    const struct refdata_write change = {.dictionary = pair->dictionary,
                                         .tenant = pair->tenant,
                                         .snapshot_id = assembly->id,
                                         .version = entry->version,
                                         .epoch_ms = assembly->occurred_ms,
                                         .begun_version = assembly->begun_version};
    assembly->ending = &batch->commands[at];
    assembly->state = assembly->ending->outcome.state;
    refdata_revision_raise(&pair->revision, assembly->revision);
    refdata_write_staged(&change, &batch->writer);
    refdata_assembly_raise_floors(batch, pair, assembly->revision);
}

static void take_chunk(struct batch *batch, size_t at)
{
    struct refdata_command *command = &batch->commands[at];
    const struct refdata_update *update = &command->update;
    struct entry *entry = &batch->entries[at];
    struct assembly *assembly = entry->assembly;
    const struct revision revision = {update->has_revision, update->source_revision};
    int64_t occurred_ms = update->occurred_at_us / 1000;
    if (refdata_revision_is_stale(revision, assembly->floor)) {
        refdata_command_fail(command, STATUS_STALE_SOURCE_REVISION, "%s",
                             status_message(STATUS_STALE_SOURCE_REVISION));
        assembly->state = command->outcome.state;
        assembly->ending = command;
        return;
    }
    refdata_revision_raise(&assembly->revision, revision);
    if (occurred_ms > assembly->occurred_ms)
        assembly->occurred_ms = occurred_ms;
    assembly->received++;
    entry->staged = true;
    char hash[HASH128_HEX_BYTES];
    struct refdata_columns columns;
    hash128_hex(update->content, hash);
    struct db_param params[9] = {db_text(update->tenant),
                                 db_text(update->dict_code),
                                 db_uuid(assembly->id),
                                 db_int(update->chunk_index),
                                 db_uuid(str_from(update->event_id)),
                                 db_cstr(hash),
                                 [8] = DB_END};
    refdata_columns_bind_items(&columns, entry->items, entry->item_count, batch->arena, params + 6);
    refdata_writer_add(&batch->writer, &stage_sql, params);
    refdata_columns_free(&columns);
    if (assembly->received == assembly->chunks_total)
        complete_snapshot(batch, at);
}

void refdata_assembly_decide(struct batch *batch, size_t at)
{
    struct refdata_command *command = &batch->commands[at];
    const struct refdata_update *update = &command->update;
    struct entry *entry = &batch->entries[at];
    bool is_new = false;
    if (!entry->assembly)
        entry->assembly = assembly_of(batch, entry->pair, str_from(update->snapshot_id), &is_new);
    struct assembly *assembly = entry->assembly;
    if (is_new) {
        struct pair *pair = entry->pair;
        assembly->chunks_total = update->chunks_total;
        assembly->floor = pair->revision;
        assembly->begun_version = pair->version;
        assembly->occurred_ms = update->occurred_at_us / 1000;
        pair->assembling = true;
        refdata_writer_add(&batch->writer, &begin_sql,
                           DB_PARAMS(db_text(pair->tenant), db_text(pair->code), db_uuid(assembly->id),
                                     db_int(assembly->chunks_total), revision_param(assembly->floor),
                                     db_i64(assembly->begun_version), db_i64(assembly->occurred_ms)));
    }
    enum chunk chunk = compare_chunk(batch, at);
    const char *conflict = update->chunks_total != assembly->chunks_total
                               ? "chunksTotal is not that of the snapshot's other chunks"
                           : chunk == CHUNK_DIFFERS ? status_message(STATUS_CHUNK_CONFLICT)
                                                    : NULL;
    if (conflict) {
        /* An event that brought good chunks of this very snapshot shows the snapshot's status, not this chunk's. */
        struct db_result *rows =
            refdata_writer_query(&batch->writer, &is_part_sql,
                                 DB_PARAMS(db_text(update->tenant), db_text(update->dict_code),
                                           db_uuid(assembly->id), db_uuid(str_from(update->event_id))));
        if (rows && db_result_rows(rows) == 0)
            refdata_command_fail(command, STATUS_CHUNK_CONFLICT, "%s", conflict);
        db_result_free(rows);
        return;
    }
    if (assembly->state.decision == REFDATA_PENDING) {
        assembly->touched = true;
        if (chunk == CHUNK_NEW)
            take_chunk(batch, at);
    }
    command->outcome.state = assembly->state;
    memcpy(command->outcome.state.event_id, update->event_id, UUID_TEXT_BYTES);
    command->decided = assembly->state.decision != REFDATA_PENDING;
}

/* ---- writing ---- */

void refdata_assembly_end(const struct assembly *assembly, struct refdata_writer *writer,
                          struct refdata_outcome **outcomes, size_t *count)
{
    const struct refdata_state *state = &assembly->state;
    bool is_failed = state->decision == REFDATA_FAILED;
    const struct db_param params[] = {
        db_text(assembly->pair->tenant),
        db_text(assembly->pair->code),
        db_uuid(assembly->id),
        db_cstr(refdata_decision_name(state->decision)),
        is_failed ? db_null(DB_BIGINT) : db_i64(state->version),
        is_failed ? db_cstr(state->code) : db_null(DB_TEXT),
        is_failed ? db_cstr(state->reason) : db_null(DB_TEXT),
        DB_END,
    };
    refdata_writer_add(writer, &end_sql, params);
    refdata_writer_add(writer, &drop_deltas_sql, DB_PARAMS(params[0], params[1]));
    /* The chunks of one that was not completed in time are deleted afterwards, a few at a time (upkeep.c). */
    if (strcmp(state->code, status_code(STATUS_SNAPSHOT_INCOMPLETE)) != 0)
        refdata_writer_add(writer, &drop_data_sql, DB_PARAMS(params[0], params[1], params[2]));
    struct db_result *rows = refdata_writer_query(writer, &end_updates_sql, params);
    *count = rows ? db_result_rows(rows) : 0;
    *outcomes = arena_zalloc(writer->arena, (*count + 1) * sizeof **outcomes);
    for (size_t i = 0; i < *count; i++) {
        struct refdata_outcome *outcome = &(*outcomes)[i];
        *outcome = (struct refdata_outcome){assembly->pair->tenant, assembly->pair->code, .state = *state};
        str_copy(outcome->state.event_id, UUID_TEXT_BYTES, db_result_str(rows, i, 0));
    }
    db_result_free(rows);
}

void refdata_assembly_write(struct batch *batch)
{
    for (size_t i = 0; i < batch->assembly_count; i++) {
        const struct assembly *assembly = batch->assemblies[i];
        if (assembly->touched)
            refdata_writer_add(&batch->writer, &touch_sql,
                               DB_PARAMS(db_text(assembly->pair->tenant), db_text(assembly->pair->code),
                                         db_uuid(assembly->id), db_int(assembly->received),
                                         revision_param(assembly->revision), db_i64(assembly->occurred_ms)));
        if (assembly->ending)
            refdata_assembly_end(assembly, &batch->writer, &assembly->ending->others,
                                 &assembly->ending->other_count);
    }
}
