/* The first round trip of a batch: the pairs' locks, and all that has to be known under them.
 *
 * Every pair's dictionary_meta row is locked before anything else is read, in bytewise order, so that batches of other
 * partitions, processes and committers neither overtake nor deadlock. What is asked after the lock is asked by statements
 * of their own: one that had to wait for the lock would see the time before. */
#include "modules/refdata/apply/batch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"

#define ENSURE(rows)                                                      \
    "insert into refdata.dictionary_meta (tenant_id, dict_code, version)" \
    " select t, d, 0 from " rows " as u (t, d, at) order by at on conflict do nothing"
static const struct refdata_rows_sql ensure_sql = {DB_STATEMENT(ENSURE("unnest($1, $2) with ordinality")),
                                                   DB_STATEMENT(ENSURE("(values ($1, $2, 1))"))};
/* Sorted before they are locked: the order of $1 and $2. */
#define LOCK(rows)                                                                                         \
    "select m.tenant_id, m.dict_code, m.version, m.last_source_revision,"                                  \
    "       coalesce(m.hydrated_until > clock_timestamp(), false)::text, m.last_event_id"                  \
    " from refdata.dictionary_meta m join " rows " as u (t, d) on m.tenant_id = u.t and m.dict_code = u.d" \
    " order by m.tenant_id collate \"C\", m.dict_code collate \"C\" for update of m"
static const struct refdata_rows_sql lock_sql = {DB_STATEMENT(LOCK("unnest($1, $2)")),
                                                 DB_STATEMENT(LOCK("(values ($1, $2))"))};
#define ASSEMBLING(rows)                                                                            \
    "select distinct s.tenant_id, s.dict_code"                                                      \
    " from refdata.snapshot s join " rows " as u (t, d) on s.tenant_id = u.t and s.dict_code = u.d" \
    " where s.status = 'PENDING'"
static const struct refdata_rows_sql assembling_sql = {DB_STATEMENT(ASSEMBLING("unnest($1, $2)")),
                                                       DB_STATEMENT(ASSEMBLING("(values ($1, $2))"))};
/* One row for each chunk whose snapshot is known, by its place in the arrays. The end of a snapshot that took too long
 * does not take the pair's lock, hence this one. */
static const struct db_statement chunks_sql = DB_STATEMENT(
    "select u.at, s.status, s.chunks_total, s.received, s.source_revision, s.floor_revision, s.begun_version,"
    "       s.occurred_ms, s.committed_version, s.error_code, s.error_message, c.content_hash"
    " from unnest($1, $2, $3, $4) with ordinality as u (t, d, id, part, at)"
    " join refdata.snapshot s on s.tenant_id = u.t and s.dict_code = u.d and s.snapshot_id = u.id::uuid"
    " left join refdata.snapshot_chunk c on c.tenant_id = s.tenant_id and c.dict_code = s.dict_code"
    "  and c.snapshot_id = s.snapshot_id and c.chunk_index = u.part::integer"
    " order by u.at for update of s");

/* ---- small things ---- */

void refdata_command_fail(struct refdata_command *command, enum status failure, const char *format, ...)
{
    char text[2 * REFDATA_REASON_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct str cut = str_utf8_cut(str_from(text), sizeof command->outcome.reason - 1);
    snprintf(command->outcome.reason, sizeof command->outcome.reason, "%.*s", STR_ARG(cut));
    command->outcome.decision = REFDATA_FAILED;
    command->outcome.failure = failure;
    command->decided = true;
}

bool refdata_revision_is_stale(struct revision revision, struct revision than)
{
    return revision.given && than.given && revision.value < than.value;
}

void refdata_revision_raise(struct revision *revision, struct revision by)
{
    if (by.given && (!revision->given || by.value > revision->value))
        *revision = by;
}

/* ---- pairs ---- */

static struct pair *find_pair(struct batch *batch, uint32_t *slots, size_t mask, struct str tenant,
                              const struct refdata_dictionary *dictionary)
{
    size_t slot = (size_t)(hash_seeded(tenant) ^ hash_seeded(dictionary->code) * 3) & mask;
    for (; slots[slot]; slot = (slot + 1) & mask) {
        struct pair *there = batch->pairs[slots[slot] - 1];
        if (there->dictionary == dictionary && str_eq(there->tenant, tenant))
            return there;
    }
    struct pair *pair = arena_zalloc(batch->arena, sizeof *pair);
    *pair = (struct pair){.tenant = tenant, .code = dictionary->code, .dictionary = dictionary};
    batch->pairs[batch->pair_count++] = pair;
    slots[slot] = (uint32_t)batch->pair_count;
    return pair;
}

static const struct refdata_dictionary *find_dictionary(struct batch *batch, struct refdata_command *command)
{
    const struct refdata_update *update = &command->update;
    struct refdata_dictionary *dictionary = refdata_catalog_find(batch->catalog, update->dict_code);
    if (!dictionary || dictionary->database != batch->flow->database) {
        refdata_command_fail(command, STATUS_UNKNOWN_DICTIONARY, "%s",
                             status_message(STATUS_UNKNOWN_DICTIONARY));
        return NULL;
    }
    if (!dictionary->provider->takes(dictionary, update)) {
        refdata_command_fail(command, STATUS_DICTIONARY_READ_ONLY, "%s",
                             status_message(STATUS_DICTIONARY_READ_ONLY));
        return NULL;
    }
    return dictionary;
}

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = *(struct pair *const *)a, *y = *(struct pair *const *)b;
    int order = str_compare(x->tenant, y->tenant);
    return order ? order : str_compare(x->code, y->code);
}

/* A power of two with room for twice as many. */
size_t refdata_slots_for(size_t count)
{
    size_t slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    return slots;
}

static void name_outcome(struct refdata_command *command)
{
    struct refdata_outcome *outcome = &command->outcome;
    bool refused = outcome->decision == REFDATA_FAILED;
    outcome->tenant = command->update.tenant;
    outcome->dict_code = command->update.dict_code;
    outcome->event_id = str_from(command->update.event_id);
    outcome->decision = refused ? REFDATA_FAILED : REFDATA_PENDING;
    outcome->makes_version = false;
    command->decided = refused;
    command->others = NULL;
    command->other_count = 0;
}

void refdata_batch_open(struct batch *batch)
{
    size_t slot_count = refdata_slots_for(batch->count);
    uint32_t *slots = arena_zalloc(batch->arena, slot_count * sizeof *slots);
    batch->entries = arena_zalloc(batch->arena, batch->count * sizeof *batch->entries);
    batch->pairs = arena_alloc(batch->arena, batch->count * sizeof(struct pair *));
    batch->assemblies = arena_alloc(batch->arena, batch->count * sizeof(struct assembly *));
    batch->deltas = arena_alloc(batch->arena, batch->count * sizeof *batch->deltas);
    for (size_t i = 0; i < batch->count; i++) {
        struct refdata_command *command = &batch->commands[i];
        name_outcome(command);
        batch->entries[i].is_dead_letter = command->is_dead_letter;
        const struct refdata_dictionary *dictionary =
            command->decided ? NULL : find_dictionary(batch, command);
        if (dictionary)
            batch->entries[i].pair =
                find_pair(batch, slots, slot_count - 1, command->update.tenant, dictionary);
    }
    qsort(batch->pairs, batch->pair_count, sizeof(struct pair *), compare_pairs);
}

/* ---- the round trip ---- */

enum question { LOCK, ASSEMBLING, PROCESS, CHUNKS, QUESTIONS };

/* `sql` are questions about the pairs. */
static void add_pairs(struct batch *batch, const struct refdata_rows_sql *const *sql, size_t count)
{
    struct refdata_columns columns;
    struct db_param params[REFDATA_COLUMNS_MAX + 1];
    refdata_columns_begin(&columns, 2, batch->arena);
    for (size_t i = 0; i < batch->pair_count; i++) {
        refdata_columns_put(&columns, 0, batch->pairs[i]->tenant);
        refdata_columns_put(&columns, 1, batch->pairs[i]->code);
        refdata_columns_next(&columns);
    }
    for (size_t i = 0; i < count; i++) {
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
        refdata_columns_put(&columns, 0, update->tenant);
        refdata_columns_put(&columns, 1, update->dict_code);
        refdata_columns_put(&columns, 2, str_from(update->snapshot_id));
        refdata_columns_put_i64(&columns, 3, update->chunk_index);
        places[columns.rows] = i;
        refdata_columns_next(&columns);
    }
    refdata_columns_bind_arrays(&columns, params);
    if (columns.rows)
        db_pipeline_add(batch->conn, &chunks_sql, params);
    refdata_columns_free(&columns);
    return columns.rows;
}

static enum status take_locks(struct batch *batch, const struct db_result *rows, struct error *error)
{
    if (db_result_rows(rows) != batch->pair_count)
        return error_set(error, STATUS_DB_RETRY, "a row of dictionary_meta went away");
    for (size_t i = 0; i < batch->pair_count; i++) {
        struct pair *pair = batch->pairs[i];
        pair->version = pair->locked_version = db_result_i64(rows, i, 2);
        pair->revision = (struct revision){!db_result_is_null(rows, i, 3), db_result_i64(rows, i, 3)};
        pair->locked_revision = pair->revision;
        pair->is_hydrated = str_eq(db_result_str(rows, i, 4), STR("true"));
        pair->event = arena_str(batch->arena, db_result_str(rows, i, 5));
    }
    return STATUS_OK;
}

static void take_assembling(struct batch *batch, const struct db_result *rows)
{
    for (size_t row = 0; row < db_result_rows(rows); row++) {
        const struct pair wanted = {.tenant = db_result_str(rows, row, 0),
                                    .code = db_result_str(rows, row, 1)};
        const struct pair *key = &wanted;
        struct pair **found =
            bsearch(&key, batch->pairs, batch->pair_count, sizeof(struct pair *), compare_pairs);
        if (found)
            (*found)->assembling = true;
    }
}

static enum status ask(struct batch *batch, size_t *chunk_places, struct db_result *results[QUESTIONS],
                       struct error *error)
{
    static const struct refdata_rows_sql *const of_pairs[] = {&lock_sql, &assembling_sql};
    struct db_result *got[QUESTIONS] = {NULL};
    size_t first = batch->pair_count ? LOCK : PROCESS;
    db_pipeline_begin(batch->conn);
    if (batch->pair_count)
        add_pairs(batch, of_pairs, 2);
    refdata_events_add(batch);
    bool has_chunks = add_chunks(batch, chunk_places) > 0;
    enum status status =
        db_pipeline_end(batch->conn, batch->deadline_ns, got, QUESTIONS - first - !has_chunks, NULL, error);
    for (size_t i = first; i < QUESTIONS; i++)
        results[i] = got[i - first];
    return status;
}

/* Some pair is written for the first time: its row is made, and the questions about pairs are asked again. */
static enum status ask_again(struct batch *batch, struct db_result *results[QUESTIONS], struct error *error)
{
    static const struct refdata_rows_sql *const of_pairs[] = {&ensure_sql, &lock_sql, &assembling_sql};
    struct db_result *got[3] = {NULL};
    db_pipeline_begin(batch->conn);
    add_pairs(batch, of_pairs, 3);
    enum status status = db_pipeline_end(batch->conn, batch->deadline_ns, got, 3, NULL, error);
    db_result_free(got[0]);
    for (size_t i = LOCK; i <= ASSEMBLING; i++) {
        db_result_free(results[i]);
        results[i] = got[i + 1];
    }
    return status;
}

enum status refdata_batch_read(struct batch *batch, struct error *error)
{
    struct db_result *results[QUESTIONS] = {NULL};
    size_t *chunk_places = arena_alloc(batch->arena, batch->count * sizeof *chunk_places);
    enum status status = ask(batch, chunk_places, results, error);
    if (status == STATUS_OK && batch->pair_count && db_result_rows(results[LOCK]) != batch->pair_count)
        status = ask_again(batch, results, error);
    if (status == STATUS_OK && batch->pair_count)
        status = take_locks(batch, results[LOCK], error);
    if (status == STATUS_OK && batch->pair_count)
        take_assembling(batch, results[ASSEMBLING]);
    if (status == STATUS_OK)
        refdata_events_mark(batch, results[PROCESS]);
    for (size_t row = 0; status == STATUS_OK && results[CHUNKS] && row < db_result_rows(results[CHUNKS]);
         row++) {
        size_t at = chunk_places[db_result_i64(results[CHUNKS], row, 0) - 1];
        refdata_assembly_found(batch, at, results[CHUNKS], row);
    }
    for (size_t i = 0; i < QUESTIONS; i++)
        db_result_free(results[i]);
    return status == STATUS_OK ? refdata_events_read(batch, error) : status;
}
