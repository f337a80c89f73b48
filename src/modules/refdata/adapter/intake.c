/* What a transaction of the adapter claims before it publishes: chunks, then the rows of update_request, which make an
 * event happen once. In the same order as the committer of POSTs and sorted like its own, so that the two do not
 * deadlock. Of several that name the same event the first is it, and the others are compared with its row. */
#include <stdlib.h>

#include "modules/refdata/adapter/adapter.h"
#include "modules/refdata/command/states.h"
#include "modules/refdata/writer.h"

enum { CHUNK_COLUMNS = 6, CHUNK_KEY = 4, REQUEST_COLUMNS = 6, REQUEST_KEY = 2, KEY_MAX = 4 };

/* Rows come back in the order of the arrays, those that were there already left out. */
static const char chunk_insert_sql[] =
    "INSERT INTO refdata.chunk_request (tenant_id, dict_code, snapshot_id, chunk_index, content_hash, event_id)"
    " SELECT tenant_id, dict_code, snapshot_id::uuid, chunk_index::integer, content_hash, event_id::uuid"
    " FROM unnest($1, $2, $3, $4, $5, $6)"
    "      AS asked (tenant_id, dict_code, snapshot_id, chunk_index, content_hash, event_id)"
    " ON CONFLICT DO NOTHING RETURNING tenant_id, dict_code, snapshot_id, chunk_index";
static const char chunk_select_sql[] =
    "SELECT asked.at - 1, c.content_hash"
    " FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS asked (tenant_id, dict_code, snapshot_id, chunk_index, at)"
    " JOIN refdata.chunk_request c ON c.tenant_id = asked.tenant_id AND c.dict_code = asked.dict_code"
    "  AND c.snapshot_id = asked.snapshot_id::uuid AND c.chunk_index = asked.chunk_index::integer";
static const char chunk_delete_sql[] =
    "DELETE FROM refdata.chunk_request"
    " WHERE tenant_id = $1 AND dict_code = $2 AND snapshot_id = $3 AND chunk_index = $4";

static const char request_sql[] =
    "INSERT INTO refdata.update_request (tenant_id, event_id, dict_code, status, source, content_hash, snapshot_id,"
    "  requested_by)"
    " SELECT tenant_id, event_id::uuid, dict_code, 'PENDING', 'KAFKA', content_hash, snapshot_id::uuid, requested_by"
    " FROM unnest($1, $2, $3, $4, $5, $6)"
    "      AS asked (tenant_id, event_id, dict_code, content_hash, snapshot_id, requested_by)"
    " ON CONFLICT DO NOTHING RETURNING tenant_id, event_id";

static const enum db_type text_arrays[CHUNK_COLUMNS] = {DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY,
                                                        DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY};

/* Where the intakes go: what every statement needs. */
struct claim {
    struct db_conn *conn;
    int64_t deadline_ns;
    struct arena *arena;
    struct error *error;
};

static void refuse(struct refdata_intake *intake, enum status status, const char *why)
{
    intake->result = REFDATA_INTAKE_REFUSED;
    error_set(&intake->error, status, "%s", why);
}

/* ---- chunks ---- */

static struct str chunk_hash(const struct refdata_intake *intake, struct arena *arena)
{
    char hex[HASH128_HEX_BYTES];
    hash128_hex(intake->update.content, hex);
    return arena_str(arena, str_from(hex));
}

static void chunk_row(const struct refdata_intake *intake, struct arena *arena, struct str row[CHUNK_COLUMNS])
{
    const struct refdata_update *update = &intake->update;
    row[0] = update->tenant;
    row[1] = update->dict_code;
    row[2] = str_from(update->snapshot_id);
    row[3] = arena_printf(arena, "%d", (int)update->chunk_index);
    row[4] = chunk_hash(intake, arena);
    row[5] = str_from(update->event_id);
}

static int compare_chunks(const void *left, const void *right)
{
    const struct refdata_intake *a = *(struct refdata_intake *const *)left;
    const struct refdata_intake *b = *(struct refdata_intake *const *)right;
    int order = str_compare(a->update.tenant, b->update.tenant);
    order = order ? order : str_compare(a->update.dict_code, b->update.dict_code);
    order = order ? order : strcmp(a->update.snapshot_id, b->update.snapshot_id);
    order = order ? order
                  : (a->update.chunk_index > b->update.chunk_index) -
                        (a->update.chunk_index < b->update.chunk_index);
    return order ? order : (a->at > b->at) - (a->at < b->at);
}

/* ---- requests ---- */

static void request_row(const struct refdata_intake *intake, struct arena *arena,
                        struct str row[CHUNK_COLUMNS])
{
    const struct refdata_update *update = &intake->update;
    (void)arena;
    row[0] = update->tenant;
    row[1] = str_from(update->event_id);
    row[2] = update->dict_code;
    row[3] = intake->hash;
    row[4] = refdata_update_is_chunk(update) ? str_from(update->snapshot_id) : STR_NONE;
    row[5] = intake->requested_by;
}

static int compare_requests(const void *left, const void *right)
{
    const struct refdata_intake *a = *(struct refdata_intake *const *)left;
    const struct refdata_intake *b = *(struct refdata_intake *const *)right;
    int order = str_compare(a->update.tenant, b->update.tenant);
    order = order ? order : strcmp(a->update.event_id, b->update.event_id);
    return order ? order : (a->at > b->at) - (a->at < b->at);
}

/* ---- both: rows that are written where they are not there ---- */

struct table {
    void (*row)(const struct refdata_intake *intake, struct arena *arena, struct str row[CHUNK_COLUMNS]);
    int (*compare)(const void *left, const void *right);
    const char *insert_sql;
    unsigned columns, key; /* the first ones are its key */
};
static const struct table chunks = {chunk_row, compare_chunks, chunk_insert_sql, CHUNK_COLUMNS, CHUNK_KEY};
static const struct table requests = {request_row, compare_requests, request_sql, REQUEST_COLUMNS,
                                      REQUEST_KEY};

static enum status query(const struct claim *claim, const struct table *table, const char *sql,
                         unsigned columns, struct refdata_intake *const *asked, size_t count,
                         struct db_result **result)
{
    struct refdata_columns arrays;
    struct db_param params[REFDATA_COLUMNS_MAX];
    struct db_statement statement;
    refdata_columns_begin(&arrays, columns);
    for (size_t i = 0; i < count; i++) {
        struct str row[CHUNK_COLUMNS];
        table->row(asked[i], claim->arena, row);
        for (unsigned c = 0; c < columns; c++)
            refdata_columns_put(&arrays, c, row[c]);
        arrays.rows++;
    }
    refdata_columns_end(&arrays, params);
    db_statement_init(&statement, sql, columns, text_arrays);
    enum status status = db_query(claim->conn, &statement, params, claim->deadline_ns, result, claim->error);
    refdata_columns_free(&arrays);
    return status;
}

static bool is_row_of(const struct claim *claim, const struct table *table, const struct db_result *result,
                      size_t at, const struct refdata_intake *intake)
{
    struct str row[CHUNK_COLUMNS];
    table->row(intake, claim->arena, row);
    for (unsigned c = 0; c < table->key; c++)
        if (!str_eq(db_result_str(result, at, c), row[c]))
            return false;
    return true;
}

/* Those that were there before are left in known[0 .. *known_count). */
static enum status insert(const struct claim *claim, const struct table *table, struct refdata_intake **asked,
                          size_t count, struct refdata_intake **known, size_t *known_count)
{
    struct db_result *result = NULL;
    size_t row = 0;
    *known_count = 0;
    if (count == 0)
        return STATUS_OK;
    qsort(asked, count, sizeof *asked, table->compare);
    enum status status = query(claim, table, table->insert_sql, table->columns, asked, count, &result);
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        bool inserted = row < db_result_rows(result) && is_row_of(claim, table, result, row, asked[i]);
        row += inserted;
        if (!inserted)
            known[(*known_count)++] = asked[i];
        else if (table == &chunks)
            asked[i]->is_chunk_new = true;
        else
            asked[i]->is_new = true;
    }
    db_result_free(result);
    return status;
}

static enum status compare_known_chunks(const struct claim *claim, struct refdata_intake **known,
                                        size_t count)
{
    struct db_result *result = NULL;
    if (count == 0)
        return STATUS_OK;
    enum status status = query(claim, &chunks, chunk_select_sql, CHUNK_KEY, known, count, &result);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++) {
        struct refdata_intake *intake = known[db_result_i64(result, row, 0)];
        if (!str_eq(db_result_str(result, row, 1), chunk_hash(intake, claim->arena)))
            refuse(intake, STATUS_CHUNK_CONFLICT,
                   "this chunk of the snapshot came before with other content");
    }
    db_result_free(result);
    return status;
}

static void compare_known(struct refdata_intake *intake, const struct refdata_states_row *row)
{
    intake->result = REFDATA_INTAKE_REPLAYED;
    if (!str_eq(row->content_hash, intake->hash) || !str_eq(row->dict_code, intake->update.dict_code))
        refuse(intake, STATUS_EVENT_ID_CONFLICT, "this eventId belongs to another update");
}

static enum status compare_known_requests(const struct claim *claim, struct refdata_intake **known,
                                          size_t count)
{
    struct buf tenants = {0}, event_ids = {0};
    struct db_result *result = NULL;
    if (count == 0)
        return STATUS_OK;
    db_array_begin(&tenants);
    db_array_begin(&event_ids);
    for (size_t i = 0; i < count; i++) {
        db_array_put(&tenants, known[i]->update.tenant);
        db_array_put(&event_ids, str_from(known[i]->update.event_id));
    }
    db_array_end(&tenants);
    db_array_end(&event_ids);
    enum status status = refdata_states_query(claim->conn, buf_str(&tenants), buf_str(&event_ids),
                                              claim->deadline_ns, &result, claim->error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++) {
        struct refdata_states_row found;
        refdata_states_row(result, row, &found);
        compare_known(known[found.asked], &found);
    }
    if (status == STATUS_OK && db_result_rows(result) != count) /* their time was over this very moment */
        status = error_set(claim->error, STATUS_DB_RETRY, "updates went away while they were looked for");
    db_result_free(result);
    buf_deinit(&tenants);
    buf_deinit(&event_ids);
    return status;
}

/* Its chunk was never accepted: whoever brings it under an event of its own must find it free. */
static enum status free_chunk(const struct claim *claim, const struct refdata_intake *intake)
{
    static const enum db_type types[CHUNK_KEY] = {DB_TEXT, DB_TEXT, DB_UUID, DB_INT};
    struct str row[CHUNK_COLUMNS];
    struct db_param params[CHUNK_KEY];
    struct db_statement statement;
    chunk_row(intake, claim->arena, row);
    for (unsigned c = 0; c < CHUNK_KEY; c++)
        params[c].value = row[c];
    db_statement_init(&statement, chunk_delete_sql, CHUNK_KEY, types);
    return db_exec(claim->conn, &statement, params, claim->deadline_ns, NULL, claim->error);
}

/* Others of the batch may have taken the chunk for known: then each is to come by itself. */
static enum status free_refused(const struct claim *claim, const struct refdata_intake *intakes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (intakes[i].result != REFDATA_INTAKE_REFUSED || !intakes[i].is_chunk_new)
            continue;
        if (count > 1)
            return error_set(claim->error, STATUS_DB_RETRY, "a chunk of a refused update");
        return free_chunk(claim, &intakes[i]);
    }
    return STATUS_OK;
}

static size_t select_chunks(struct refdata_intake *intakes, size_t count, struct refdata_intake **asked)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (refdata_update_is_chunk(&intakes[i].update))
            asked[kept++] = &intakes[i];
    return kept;
}

static size_t select_accepted(struct refdata_intake *intakes, size_t count, struct refdata_intake **asked)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (intakes[i].result != REFDATA_INTAKE_REFUSED)
            asked[kept++] = &intakes[i];
    return kept;
}

enum status refdata_intakes_write(struct db_conn *conn, struct refdata_intake *intakes, size_t count,
                                  int64_t deadline_ns, struct arena *arena, struct error *error)
{
    const struct claim claim = {.conn = conn, .deadline_ns = deadline_ns, .arena = arena, .error = error};
    struct refdata_intake **asked = arena_alloc(arena, count * sizeof *asked);
    struct refdata_intake **known = arena_alloc(arena, count * sizeof *known);
    size_t known_count = 0;
    size_t chunk_count = select_chunks(intakes, count, asked);
    enum status status = insert(&claim, &chunks, asked, chunk_count, known, &known_count);
    if (status == STATUS_OK)
        status = compare_known_chunks(&claim, known, known_count);
    size_t accepted = select_accepted(intakes, count, asked);
    if (status == STATUS_OK)
        status = insert(&claim, &requests, asked, accepted, known, &known_count);
    if (status == STATUS_OK)
        status = compare_known_requests(&claim, known, known_count);
    return status == STATUS_OK ? free_refused(&claim, intakes, count) : status;
}
