/* The first round trip of a batch: the pairs' locks, and all that has to be known under them.
 *
 * Every pair's dictionary_meta row is locked before anything else is read, in bytewise order, so that batches of other
 * partitions, processes and committers neither overtake nor deadlock. What is asked after the lock is asked by statements
 * of their own: one that had to wait for the lock would see the time before. */
#include "modules/refdata/apply/batch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/acceptance.h"

#define ENSURE(rows)                                                      \
    "insert into refdata.dictionary_meta (tenant_id, dict_code, version)" \
    " select t, d, 0 from " rows " as u (t, d, at) order by at on conflict do nothing"
static const struct refdata_rows_sql ensure_sql = REFDATA_ORDERED_SQL(ENSURE, "$1, $2");
/* Sorted before they are locked: the order of $1 and $2. */
#define LOCK(rows)                                                                                         \
    "select m.tenant_id, m.dict_code, m.version, m.last_source_revision,"                                  \
    "       coalesce(m.hydrated_until > clock_timestamp(), false)::text, m.last_event_id"                  \
    " from refdata.dictionary_meta m join " rows " as u (t, d) on m.tenant_id = u.t and m.dict_code = u.d" \
    " order by m.tenant_id collate \"C\", m.dict_code collate \"C\" for update of m"
static const struct refdata_rows_sql lock_sql = REFDATA_ROWS_SQL(LOCK, "$1, $2");
#define ASSEMBLING(rows)                                                                            \
    "select distinct s.tenant_id, s.dict_code"                                                      \
    " from refdata.snapshot s join " rows " as u (t, d) on s.tenant_id = u.t and s.dict_code = u.d" \
    " where s.status = 'PENDING'"
static const struct refdata_rows_sql assembling_sql = REFDATA_ROWS_SQL(ASSEMBLING, "$1, $2");
/* One row for each chunk whose snapshot is known, by its place in the arrays. The end of a snapshot that took too long
 * does not take the pair's lock, hence this one. */
static const struct db_statement chunks_sql = DB_STATEMENT(
    "select u.at, s.chunks_total, s.received, s.source_revision, s.floor_revision, s.begun_version,"
    "       s.occurred_ms, s.status, s.committed_version, s.error_code, s.error_message, c.content_hash"
    " from unnest($1, $2, $3, $4) with ordinality as u (t, d, id, part, at)"
    " join refdata.snapshot s on s.tenant_id = u.t and s.dict_code = u.d and s.snapshot_id = u.id::uuid"
    " left join refdata.snapshot_chunk c on c.tenant_id = s.tenant_id and c.dict_code = s.dict_code"
    "  and c.snapshot_id = s.snapshot_id and c.chunk_index = u.part::integer"
    " order by u.at for update of s");

/* Sorted too: another batch with the same eventId waits instead of deadlocking. */
#define PROCESS(rows)                                                                              \
    "insert into refdata.processed_event (tenant_id, event_id, source)"                            \
    " select t, e::uuid, s from " rows " as u (t, e, s) order by t collate \"C\", e collate \"C\"" \
    " on conflict do nothing returning tenant_id, event_id"
static const struct refdata_rows_sql process_sql = REFDATA_ROWS_SQL(PROCESS, "$1, $2, $3");
/* The same, and the rows; `is true` makes the list of fresh ones a hash table instead of a join, which would compare all with all.
 * A dead letter ($4 is null) leaves no trace of its event, so that it can be sent again when what was wrong
 * is put right; unless it was accepted. */
#define PROCESS_UNKNOWN(rows)                                                                      \
    "with asked as ("                                                                              \
    "   select t, e::uuid as e, s, d, hash, snapshot::uuid as snapshot, requester, at"             \
    "   from " rows " as u (t, e, s, d, hash, snapshot, requester, at)),"                          \
    " fresh as ("                                                                                  \
    "   insert into refdata.processed_event (tenant_id, event_id, source)"                         \
    "   select t, e, s from asked where d is not null or exists ("                                 \
    "     select from refdata.update_request r where r.tenant_id = t and r.event_id = e offset 0)" \
    "   order by t collate \"C\", e on conflict do nothing returning tenant_id, event_id),"        \
    " made as ("                                                                                   \
    "   insert into refdata.update_request"                                                        \
    "    (tenant_id, event_id, dict_code, status, source, content_hash, snapshot_id,"              \
    "     requested_by)"                                                                           \
    "   select t, e, d, 'PENDING', s, hash, snapshot, requester"                                   \
    "   from asked where d is not null"                                                            \
    "    and ((t, e) in (select tenant_id, event_id from fresh)) is true"                          \
    "   order by at on conflict do nothing)"                                                       \
    " select tenant_id, event_id from fresh"
static const struct refdata_rows_sql process_unknown_sql =
    REFDATA_ORDERED_SQL(PROCESS_UNKNOWN, "$1, $2, $3, $4, $5, $6, $7");

/* ---- small things ---- */

void refdata_command_fail(struct refdata_command *command, enum status failure, const char *format, ...)
{
    char text[2 * REFDATA_REASON_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct refdata_state *state = &command->outcome.state;
    str_copy(state->code, sizeof state->code, str_from(status_code(failure)));
    str_copy(state->reason, sizeof state->reason, str_from(text));
    state->decision = REFDATA_FAILED;
    command->decided = true;
}

bool refdata_revision_is_stale(struct revision revision, struct revision than)
{
    return revision.given && than.given && revision.value < than.value;
}

struct revision refdata_revision_at(const struct db_result *rows, size_t row, unsigned column)
{
    return (struct revision){!db_result_is_null(rows, row, column), db_result_i64(rows, row, column)};
}

struct db_param refdata_revision_param(struct revision revision)
{
    return revision.given ? db_i64(revision.value) : db_null(DB_BIGINT);
}

void refdata_revision_raise(struct revision *revision, struct revision by)
{
    if (by.given && (!revision->given || by.value > revision->value))
        *revision = by;
}

/* ---- pairs ---- */

static struct pair *pair_of(struct batch *batch, struct map *known, struct str tenant,
                            const struct refdata_dictionary *dictionary)
{
    struct map_node *node;
    uint64_t hash = map_hash_pair(tenant, dictionary->code);
    MAP_MATCH(node, known, hash) {
        struct pair *pair = CONTAINER_OF(node, struct pair, node);
        if (pair->dictionary == dictionary && str_eq(pair->tenant, tenant))
            return pair;
    }
    struct pair *pair = arena_zalloc(batch->arena, sizeof *pair);
    *pair = (struct pair){.tenant = tenant, .code = dictionary->code, .dictionary = dictionary};
    map_add(known, &pair->node, hash);
    return batch->pairs[batch->pair_count++] = pair;
}

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = *(struct pair *const *)a, *y = *(struct pair *const *)b;
    int order = str_compare(x->tenant, y->tenant);
    return order ? order : str_compare(x->code, y->code);
}

void refdata_batch_open(struct batch *batch)
{
    struct map known = {0};
    batch->entries = arena_zalloc(batch->arena, batch->count * sizeof *batch->entries);
    batch->pairs = arena_alloc(batch->arena, batch->count * sizeof(struct pair *));
    batch->assemblies = arena_alloc(batch->arena, batch->count * sizeof(struct assembly *));
    batch->deltas = arena_alloc(batch->arena, batch->count * sizeof *batch->deltas);
    for (size_t i = 0; i < batch->count; i++) {
        struct refdata_command *command = &batch->commands[i];
        const struct refdata_update *update = &command->update;
        struct refdata_outcome *outcome = &command->outcome;
        command->decided = outcome->state.decision == REFDATA_FAILED;
        command->others = NULL;
        command->other_count = 0;
        outcome->tenant = update->tenant;
        outcome->dict_code = update->dict_code;
        memcpy(outcome->state.event_id, update->event_id, UUID_TEXT_BYTES);
        outcome->makes_version = outcome->is_published = false;
        if (command->decided)
            continue;
        outcome->state.decision = REFDATA_PENDING;
        const struct refdata_dictionary *dictionary = refdata_catalog_find(batch->catalog, update->dict_code);
        enum status refusal = STATUS_OK;
        struct error refused;
        if (!dictionary || dictionary->database != batch->database)
            refusal = STATUS_UNKNOWN_DICTIONARY;
        else if (refdata_acceptance_check(dictionary, update, &refused) != STATUS_OK)
            refusal = STATUS_DICTIONARY_READ_ONLY;
        if (refusal == STATUS_OK)
            batch->entries[i].pair = pair_of(batch, &known, update->tenant, dictionary);
        else
            refdata_command_fail(command, refusal, "%s", status_message(refusal));
    }
    map_deinit(&known);
    qsort(batch->pairs, batch->pair_count, sizeof(struct pair *), compare_pairs);
}

/* ---- events ---- */

/* What a POST or the adapter accepted has its row of update_request. Others may publish commands too, by the contract alone:
 * theirs is inserted here, together with the row of processed_event, so that its status can be read (R2). */
static void add_events(struct batch *batch)
{
    bool has_unknown = batch->flags & REFDATA_APPLY_UNKNOWN;
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX + 1];
    refdata_columns_begin(&columns, has_unknown ? 7 : 3, batch->arena);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *update = &batch->commands[i].update;
        struct str row[7] = {update->tenant, str_from(update->event_id), refdata_source_name(update->source)};
        if (has_unknown) {
            row[3] = batch->commands[i].is_dead_letter ? STR_NONE : update->dict_code;
            row[4] = refdata_acceptance_hash(update, batch->arena);
            row[5] = refdata_update_is_chunk(update) ? str_from(update->snapshot_id) : STR_NONE;
            row[6] = arena_printf(batch->arena, "kafka:%s", batch->database->buses.commands_topic);
        }
        refdata_columns_add(&columns, row);
    }
    const struct db_statement *statement =
        refdata_columns_bind(&columns, has_unknown ? &process_unknown_sql : &process_sql, params);
    db_pipeline_add(batch->conn, statement, params);
    refdata_columns_free(&columns);
}

static struct entry *find_event(const struct batch *batch, const struct map *known, struct str tenant,
                                struct str event_id)
{
    struct map_node *node;
    MAP_MATCH(node, known, hash_seeded(event_id)) {
        struct entry *entry = CONTAINER_OF(node, struct entry, node);
        const struct refdata_outcome *outcome = &batch->commands[entry - batch->entries].outcome;
        if (str_eq(str_from(outcome->state.event_id), event_id) && str_eq(outcome->tenant, tenant))
            return entry;
    }
    return NULL;
}

/* Which of them stand earlier in this batch, and which are not among the new ones that PostgreSQL answered. */
static void find_duplicates(struct batch *batch, const struct db_result *fresh)
{
    struct map known = {0};
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *own = &batch->commands[i].update;
        struct str event_id = str_from(own->event_id);
        struct entry *entry = &batch->entries[i], *first = find_event(batch, &known, own->tenant, event_id);
        if (!first)
            map_add(&known, &entry->node, hash_seeded(event_id));
        entry->first = first ? (size_t)(first - batch->entries) : i;
        entry->duplicate = true;
    }
    for (size_t row = 0; row < db_result_rows(fresh); row++) {
        struct entry *entry =
            find_event(batch, &known, db_result_str(fresh, row, 0), db_result_str(fresh, row, 1));
        if (entry)
            entry->duplicate = false;
    }
    map_deinit(&known);
    for (size_t i = 0; i < batch->count;
         i++) /* a chunk is known by its place in its snapshot, not by its event */
        batch->entries[i].duplicate &= !refdata_batch_is_chunk(batch, i);
}

/* A duplicate gets the outcome of the first one: its sender may still wait, if the reply to the commit was lost. */
static enum status read_outcomes(struct batch *batch, struct error *error)
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
        batch->commands[i].outcome.state.decision = REFDATA_PENDING;
        batch->commands[i].decided = false;
        places[columns.rows] = i;
        refdata_columns_add(&columns, REFDATA_ROW(batch->commands[i].update.tenant,
                                                  str_from(batch->commands[i].update.event_id)));
    }
    refdata_columns_bind_arrays(&columns, params);
    if (columns.rows)
        status = db_query(batch->conn, &refdata_states_sql, params, batch->deadline_ns, &rows, error);
    for (size_t row = 0; rows && row < db_result_rows(rows); row++) {
        struct refdata_state_row found;
        refdata_states_row(rows, row, &found);
        struct refdata_command *command = &batch->commands[places[found.place]];
        struct refdata_outcome *outcome = &command->outcome;
        /* Another update under an event's id has no effect. A POST is refused; for a command of others this is logged. */
        if (found.content_hash.len &&
            !refdata_acceptance_is_of(&command->update, found.content_hash, batch->arena))
            log_warn("event_id_conflict", LOG_CSTR("eventId", command->update.event_id),
                     LOG_TRACE(command->traceparent), LOG_STR("tenantId", outcome->tenant),
                     LOG_STR("dictCode", outcome->dict_code),
                     LOG_STR("source", refdata_source_name(command->update.source)));
        *outcome = (struct refdata_outcome){outcome->tenant, outcome->dict_code, .state = found.state};
        /* An event that was processed while this update is pending was another update's. Nothing else would decide it. */
        if (found.state.decision == REFDATA_PENDING && !found.is_chunk)
            refdata_command_fail(command, STATUS_EVENT_ID_CONFLICT, "another update had this eventId");
    }
    refdata_columns_free(&columns);
    db_result_free(rows);
    return status;
}

/* ---- the round trip ---- */

enum question { LOCK, ASSEMBLING, PROCESS, CHUNKS, QUESTIONS };

/* The questions about pairs; first their rows are made, where some pair is written for the first time. */
static void add_pairs(struct batch *batch, bool ensures)
{
    static const struct refdata_rows_sql *const sql[] = {&ensure_sql, &lock_sql, &assembling_sql};
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX + 1];
    refdata_columns_begin(&columns, 2, batch->arena);
    for (size_t i = 0; i < batch->pair_count; i++)
        refdata_columns_add(&columns, REFDATA_ROW(batch->pairs[i]->tenant, batch->pairs[i]->code));
    for (size_t i = ensures ? 0 : 1; i < 3 && batch->pair_count; i++) {
        const struct db_statement *statement = refdata_columns_bind(&columns, sql[i], params);
        db_pipeline_add(batch->conn, statement, params);
    }
    refdata_columns_free(&columns);
}

/* `places`: which command a row's number means. Returns how many chunks there are; without one nothing is asked. */
static size_t add_chunks(struct batch *batch, size_t *places)
{
    struct refdata_columns columns;
    struct db_param params[5] = {[4] = DB_END};
    refdata_columns_begin(&columns, 4, batch->arena);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *update = &batch->commands[i].update;
        if (!refdata_batch_is_chunk(batch, i))
            continue;
        places[columns.rows] = i;
        refdata_columns_add(&columns,
                            REFDATA_ROW(update->tenant, update->dict_code, str_from(update->snapshot_id),
                                        REFDATA_I64(batch->arena, update->chunk_index)));
    }
    refdata_columns_bind_arrays(&columns, params);
    if (columns.rows)
        db_pipeline_add(batch->conn, &chunks_sql, params);
    refdata_columns_free(&columns);
    return columns.rows;
}

static enum status take_pairs(struct batch *batch, const struct db_result *locked,
                              const struct db_result *assembling, struct error *error)
{
    if (db_result_rows(locked) != batch->pair_count)
        return error_set(error, STATUS_DB_RETRY, "a row of dictionary_meta went away");
    for (size_t i = 0; i < batch->pair_count; i++) {
        struct pair *pair = batch->pairs[i];
        pair->version = pair->locked_version = db_result_i64(locked, i, 2);
        pair->revision = pair->locked_revision = refdata_revision_at(locked, i, 3);
        pair->is_hydrated = str_eq(db_result_str(locked, i, 4), STR("true"));
        pair->event = pair->locked_event = arena_str(batch->arena, db_result_str(locked, i, 5));
    }
    for (size_t row = 0; row < db_result_rows(assembling); row++) {
        const struct pair wanted = {.tenant = db_result_str(assembling, row, 0),
                                    .code = db_result_str(assembling, row, 1)};
        const struct pair *key = &wanted;
        struct pair **found =
            bsearch(&key, batch->pairs, batch->pair_count, sizeof(struct pair *), compare_pairs);
        if (found)
            (*found)->assembling = true;
    }
    return STATUS_OK;
}

enum status refdata_batch_read(struct batch *batch, struct error *error)
{
    struct db_result *results[QUESTIONS] = {NULL};
    size_t *places = arena_alloc(batch->arena, batch->count * sizeof *places);
    size_t first = batch->pair_count ? LOCK : PROCESS;
    db_pipeline_begin(batch->conn);
    add_pairs(batch, false);
    add_events(batch);
    bool has_chunks = add_chunks(batch, places) > 0;
    enum status status = db_pipeline_end(batch->conn, batch->deadline_ns, results + first,
                                         QUESTIONS - first - !has_chunks, NULL, error);
    if (status == STATUS_OK && batch->pair_count && db_result_rows(results[LOCK]) != batch->pair_count) {
        struct db_result *again[3] = {NULL};
        db_pipeline_begin(batch->conn);
        add_pairs(batch, true);
        status = db_pipeline_end(batch->conn, batch->deadline_ns, again, 3, NULL, error);
        db_result_free(again[0]);
        for (size_t i = LOCK; i <= ASSEMBLING; i++) {
            db_result_free(results[i]);
            results[i] = again[i + 1];
        }
    }
    if (status == STATUS_OK && batch->pair_count)
        status = take_pairs(batch, results[LOCK], results[ASSEMBLING], error);
    if (status == STATUS_OK)
        find_duplicates(batch, results[PROCESS]);
    for (size_t row = 0; status == STATUS_OK && has_chunks && row < db_result_rows(results[CHUNKS]); row++)
        refdata_assembly_found(batch, places[db_result_i64(results[CHUNKS], row, 0) - 1], results[CHUNKS],
                               row);
    for (size_t i = 0; i < QUESTIONS; i++)
        db_result_free(results[i]);
    return status == STATUS_OK ? read_outcomes(batch, error) : status;
}
