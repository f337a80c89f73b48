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

static struct assembly *find_assembly(const struct batch *batch, const struct pair *pair, struct str id)
{
    for (size_t i = 0; i < batch->assembly_count; i++)
        if (batch->assemblies[i]->pair == pair && str_eq(batch->assemblies[i]->id, id))
            return batch->assemblies[i];
    return NULL;
}

static struct assembly *add_assembly(struct batch *batch, struct pair *pair, struct str id)
{
    struct assembly *assembly = arena_zalloc(batch->arena, sizeof *assembly);
    assembly->pair = pair;
    assembly->id = id;
    batch->assemblies[batch->assembly_count++] = assembly;
    return assembly;
}

static struct revision revision_at(const struct db_result *rows, size_t row, unsigned column)
{
    return (struct revision){!db_result_is_null(rows, row, column), db_result_i64(rows, row, column)};
}

static void read_assembly(struct assembly *assembly, const struct db_result *rows, size_t row,
                          struct arena *arena)
{
    struct str status = db_result_str(rows, row, 1);
    assembly->decision = str_eq(status, STR("PENDING"))     ? REFDATA_PENDING
                         : str_eq(status, STR("COMMITTED")) ? REFDATA_COMMITTED
                                                            : REFDATA_FAILED;
    assembly->chunks_total = (int32_t)db_result_i64(rows, row, 2);
    assembly->received = (int32_t)db_result_i64(rows, row, 3);
    assembly->revision = revision_at(rows, row, 4);
    assembly->floor = revision_at(rows, row, 5);
    assembly->begun_version = db_result_i64(rows, row, 6);
    assembly->occurred_ms = db_result_i64(rows, row, 7);
    assembly->version = db_result_i64(rows, row, 8);
    if (assembly->decision == REFDATA_FAILED) {
        assembly->failure = refdata_status_of_code(db_result_str(rows, row, 9));
        assembly->reason = arena_str(arena, db_result_str(rows, row, 10));
    }
}

void refdata_assembly_found(struct batch *batch, size_t at, const struct db_result *rows, size_t row)
{
    struct entry *entry = &batch->entries[at];
    struct str id = str_from(batch->commands[at].update.snapshot_id);
    entry->assembly = find_assembly(batch, entry->pair, id);
    if (!entry->assembly) {
        entry->assembly = add_assembly(batch, entry->pair, id);
        read_assembly(entry->assembly, rows, row, batch->arena);
    }
    if (!db_result_is_null(rows, row, 11))
        entry->chunk_hash = arena_str(batch->arena, db_result_str(rows, row, 11));
}

/* ---- statements ---- */

static struct db_param revision_param(struct revision revision)
{
    return revision.given ? db_i64(revision.value) : db_null(DB_BIGINT);
}

static void insert_assembly(struct batch *batch, const struct assembly *assembly)
{
    refdata_writer_add(&batch->writer, &begin_sql,
                       DB_PARAMS(db_text(assembly->pair->tenant), db_text(assembly->pair->code),
                                 db_uuid(assembly->id), db_int(assembly->chunks_total),
                                 revision_param(assembly->floor), db_i64(assembly->begun_version),
                                 db_i64(assembly->occurred_ms)));
}

/* Keys and payloads of items as two arrays; a deletion has no payload. */
static void bind_items(struct refdata_columns *columns, const struct refdata_item *items, size_t count,
                       struct arena *arena, struct db_param *params)
{
    refdata_columns_begin(columns, 2, arena);
    for (size_t i = 0; i < count; i++) {
        refdata_columns_put(columns, 0, items[i].key);
        refdata_columns_put(columns, 1, items[i].is_delete ? STR_NONE : items[i].payload);
        refdata_columns_next(columns);
    }
    refdata_columns_bind_arrays(columns, params);
}

static void stage_chunk(struct batch *batch, size_t at)
{
    const struct refdata_update *update = &batch->commands[at].update;
    const struct entry *entry = &batch->entries[at];
    char hash[HASH128_HEX_BYTES];
    struct refdata_columns columns;
    hash128_hex(update->content, hash);
    struct db_param params[9] = {db_text(update->tenant),
                                 db_text(update->dict_code),
                                 db_uuid(entry->assembly->id),
                                 db_int(update->chunk_index),
                                 db_uuid(str_from(update->event_id)),
                                 db_cstr(hash),
                                 [8] = DB_END};
    bind_items(&columns, entry->items, entry->item_count, batch->arena, params + 6);
    refdata_writer_add(&batch->writer, &stage_sql, params);
    refdata_columns_free(&columns);
}

void refdata_assembly_record_delta(struct batch *batch, const struct refdata_write *change)
{
    struct refdata_columns columns;
    struct db_param params[7] = {db_text(change->tenant), db_text(change->dictionary->code),
                                 db_i64(change->version), db_i64(change->epoch_ms), [6] = DB_END};
    bind_items(&columns, change->items, change->item_count, batch->arena, params + 4);
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

/* The chunk with the same place that came earlier: in this batch, or before it. No ptr = none. */
static struct str hash_before(const struct batch *batch, size_t at)
{
    for (size_t i = at; i-- > 0;) {
        const struct refdata_update *earlier = &batch->commands[i].update;
        if (batch->entries[i].staged && batch->entries[i].assembly == batch->entries[at].assembly &&
            earlier->chunk_index == batch->commands[at].update.chunk_index) {
            char *hash = arena_alloc(batch->arena, HASH128_HEX_BYTES);
            hash128_hex(earlier->content, hash);
            return str_from(hash);
        }
    }
    return batch->entries[at].chunk_hash;
}

static bool is_same(struct str hash, const struct refdata_update *update)
{
    char own[HASH128_HEX_BYTES];
    hash128_hex(update->content, own);
    return str_eq(hash, str_from(own));
}

/* An event that brought good chunks of this very snapshot shows the snapshot's status, not this chunk's. */
static void refuse_chunk(struct batch *batch, size_t at, const char *why)
{
    struct refdata_command *command = &batch->commands[at];
    const struct refdata_update *update = &command->update;
    struct db_result *rows = refdata_writer_query(
        &batch->writer, &is_part_sql,
        DB_PARAMS(db_text(update->tenant), db_text(update->dict_code), db_uuid(str_from(update->snapshot_id)),
                  db_uuid(str_from(update->event_id))));
    if (rows && db_result_rows(rows) == 0)
        refdata_command_fail(command, STATUS_CHUNK_CONFLICT, "%s", why);
    db_result_free(rows);
}

static void end_assembly(struct assembly *assembly, struct refdata_command *command,
                         enum refdata_decision decision)
{
    assembly->decision = decision;
    assembly->ending = command;
}

static void show_decision(const struct assembly *assembly, struct refdata_command *command)
{
    if (assembly->decision == REFDATA_FAILED) {
        refdata_command_fail(command, assembly->failure, "%.*s", STR_ARG(assembly->reason));
        return;
    }
    command->outcome.decision = assembly->decision;
    command->outcome.version = assembly->version;
    command->decided = assembly->decision != REFDATA_PENDING;
}

/* All chunks are there. */
static void complete_snapshot(struct batch *batch, size_t at)
{
    struct entry *entry = &batch->entries[at];
    struct assembly *assembly = entry->assembly;
    struct pair *pair = entry->pair;
    refdata_batch_write_deltas(batch);
    refdata_writer_allow(&batch->writer, SNAPSHOT_TIMEOUT_MS);
    FAILPOINT("apply.before_finalize");
    assembly->version = refdata_batch_next_version(batch, entry);
    const struct refdata_write change = {.dictionary = pair->dictionary,
                                         .tenant = pair->tenant,
                                         .snapshot_id = assembly->id,
                                         .version = assembly->version,
                                         .epoch_ms = assembly->occurred_ms,
                                         .begun_version = assembly->begun_version};
    end_assembly(assembly, &batch->commands[at], REFDATA_COMMITTED);
    refdata_revision_raise(&pair->revision, assembly->revision);
    pair->dictionary->provider->write_staged(&change, &batch->writer);
    refdata_assembly_raise_floors(batch, pair, assembly->revision);
}

static void take_chunk(struct batch *batch, size_t at)
{
    const struct refdata_update *update = &batch->commands[at].update;
    struct assembly *assembly = batch->entries[at].assembly;
    const struct revision revision = {update->has_revision, update->source_revision};
    int64_t occurred_ms = update->occurred_at_us / 1000;
    if (refdata_revision_is_stale(revision, assembly->floor)) {
        assembly->failure = STATUS_STALE_SOURCE_REVISION;
        assembly->reason = str_from(status_message(STATUS_STALE_SOURCE_REVISION));
        end_assembly(assembly, &batch->commands[at], REFDATA_FAILED);
        return;
    }
    refdata_revision_raise(&assembly->revision, revision);
    if (occurred_ms > assembly->occurred_ms)
        assembly->occurred_ms = occurred_ms;
    assembly->received++;
    batch->entries[at].staged = true;
    stage_chunk(batch, at);
    if (assembly->received == assembly->chunks_total)
        complete_snapshot(batch, at);
}

static struct assembly *find_or_begin(struct batch *batch, size_t at)
{
    const struct refdata_update *update = &batch->commands[at].update;
    struct pair *pair = batch->entries[at].pair;
    struct str id = str_from(update->snapshot_id);
    struct assembly *assembly = find_assembly(batch, pair, id);
    if (assembly)
        return assembly;
    assembly = add_assembly(batch, pair, id);
    assembly->chunks_total = update->chunks_total;
    assembly->floor = pair->revision;
    assembly->begun_version = pair->version;
    assembly->occurred_ms = update->occurred_at_us / 1000;
    pair->assembling = true;
    insert_assembly(batch, assembly);
    return assembly;
}

void refdata_assembly_decide(struct batch *batch, size_t at)
{
    struct refdata_command *command = &batch->commands[at];
    struct entry *entry = &batch->entries[at];
    if (!entry->assembly)
        entry->assembly = find_or_begin(batch, at);
    struct assembly *assembly = entry->assembly;
    struct str before = hash_before(batch, at);
    if (command->update.chunks_total != assembly->chunks_total) {
        refuse_chunk(batch, at, "chunksTotal is not that of the snapshot's other chunks");
        return;
    }
    if (before.ptr && !is_same(before, &command->update)) {
        refuse_chunk(batch, at, status_message(STATUS_CHUNK_CONFLICT));
        return;
    }
    if (assembly->decision == REFDATA_PENDING) {
        assembly->touched = true;
        if (!before.ptr)
            take_chunk(batch, at);
    }
    show_decision(assembly, command);
}

/* ---- writing ---- */

static void touch_snapshot(struct batch *batch, const struct assembly *assembly)
{
    refdata_writer_add(&batch->writer, &touch_sql,
                       DB_PARAMS(db_text(assembly->pair->tenant), db_text(assembly->pair->code),
                                 db_uuid(assembly->id), db_int(assembly->received),
                                 revision_param(assembly->revision), db_i64(assembly->occurred_ms)));
}

void refdata_assembly_end(const struct ending *ending, struct refdata_writer *writer,
                          struct refdata_outcome **outcomes, size_t *count)
{
    bool is_failed = ending->decision == REFDATA_FAILED;
    const struct db_param params[] = {
        db_text(ending->tenant),
        db_text(ending->code),
        db_uuid(ending->id),
        db_cstr(refdata_decision_name(ending->decision)),
        is_failed ? db_null(DB_BIGINT) : db_i64(ending->version),
        is_failed ? db_cstr(status_code(ending->failure)) : db_null(DB_TEXT),
        is_failed ? db_text(ending->reason) : db_null(DB_TEXT),
        DB_END,
    };
    refdata_writer_add(writer, &end_sql, params);
    refdata_writer_add(writer, &drop_deltas_sql, DB_PARAMS(params[0], params[1]));
    /* The chunks of one that was not completed in time are deleted afterwards, a few at a time (upkeep.c). */
    if (ending->failure != STATUS_SNAPSHOT_INCOMPLETE)
        refdata_writer_add(writer, &drop_data_sql, DB_PARAMS(params[0], params[1], params[2]));
    struct db_result *rows = refdata_writer_query(writer, &end_updates_sql, params);
    *count = rows ? db_result_rows(rows) : 0;
    *outcomes = arena_zalloc(writer->arena, (*count + 1) * sizeof **outcomes);
    for (size_t i = 0; i < *count; i++) {
        struct refdata_outcome *outcome = &(*outcomes)[i];
        *outcome = (struct refdata_outcome){.tenant = ending->tenant,
                                            .dict_code = ending->code,
                                            .event_id = arena_str(writer->arena, db_result_str(rows, i, 0)),
                                            .decision = ending->decision,
                                            .version = ending->version,
                                            .failure = ending->failure};
        struct str reason = str_utf8_cut(ending->reason, sizeof outcome->reason - 1);
        if (reason.len)
            memcpy(outcome->reason, reason.ptr, reason.len);
    }
    db_result_free(rows);
}

void refdata_assembly_write(struct batch *batch)
{
    for (size_t i = 0; i < batch->assembly_count; i++) {
        const struct assembly *assembly = batch->assemblies[i];
        struct refdata_command *command = assembly->ending;
        if (assembly->touched)
            touch_snapshot(batch, assembly);
        if (!command)
            continue;
        const struct ending ending = {.tenant = assembly->pair->tenant,
                                      .code = assembly->pair->code,
                                      .id = assembly->id,
                                      .decision = assembly->decision,
                                      .version = assembly->version,
                                      .failure = assembly->failure,
                                      .reason = assembly->reason};
        refdata_assembly_end(&ending, &batch->writer, &command->others, &command->other_count);
    }
}
