/* Statements in pipelines that end before they grow too long. */
#include "modules/refdata/writer.h"

#include "base/clock.h"
#include "modules/refdata/update.h"

#define PENDING_MAX 2000
#define BYTES_MAX (1u << 20) /* libpq buffers them until the server has read them */
#define KEY_BYTES_SHOWN 100

static const struct db_statement allow_sql = DB_STATEMENT("select set_config('statement_timeout', $1, true)");
static const struct db_statement plan_freely_sql = DB_STATEMENT(DB_PLAN_FREELY_SQL);

void refdata_writer_name_items(struct refdata_writer *writer, const struct refdata_item *items, size_t count)
{
    writer->items = items;
    writer->item_count = count;
    writer->items_from = writer->added;
}

static void keep_failure(struct refdata_writer *writer, enum status status, const struct error *error)
{
    if (writer->status != STATUS_OK)
        return;
    writer->status = status;
    writer->error = *error;
}

/* A pipeline has to end also after something could not be sent. */
static void end_pipeline(struct refdata_writer *writer)
{
    struct error error = {0};
    size_t failed_at = 0;
    if (!writer->open)
        return;
    writer->open = false;
    writer->pending = writer->bytes = 0;
    enum status status = db_pipeline_end(writer->conn, writer->deadline_ns, NULL, 0, &failed_at, &error);
    size_t item = writer->begun + failed_at - writer->items_from; /* that the refused statement is about */
    if (status == STATUS_DB_ERROR && writer->begun + failed_at >= writer->items_from &&
        item < writer->item_count)
        error_context(&error, "item \"%.*s\"",
                      STR_ARG(str_utf8_cut(writer->items[item].key, KEY_BYTES_SHOWN)));
    if (status == STATUS_CANCELLED)
        writer->status = STATUS_OK; /* this failure counts */
    if (status != STATUS_OK)
        keep_failure(writer, status, &error);
}

enum status refdata_writer_wait(struct refdata_writer *writer, struct error *error)
{
    end_pipeline(writer);
    if (writer->status != STATUS_OK && error)
        *error = writer->error;
    return writer->status;
}

enum status refdata_writer_leave(struct refdata_writer *writer, struct error *error)
{
    if (writer->status != STATUS_OK)
        return refdata_writer_wait(writer, error);
    if (writer->open)
        db_pipeline_leave(writer->conn, NULL, 0);
    writer->open = false;
    return STATUS_OK;
}

void refdata_writer_add(struct refdata_writer *writer, const struct db_statement *statement,
                        const struct db_param *params)
{
    if (writer->pending >= PENDING_MAX || writer->bytes >= BYTES_MAX)
        end_pipeline(writer);
    if (writer->status != STATUS_OK)
        return;
    if (!writer->open) {
        db_pipeline_begin(writer->conn);
        writer->open = true;
        writer->begun = writer->added;
    }
    db_pipeline_add(writer->conn, statement, params);
    writer->pending++;
    writer->added++;
    for (unsigned i = 0; i < db_param_count(statement, params); i++)
        writer->bytes += params[i].value.len;
}

struct db_result *refdata_writer_query(struct refdata_writer *writer, const struct db_statement *statement,
                                       const struct db_param *params)
{
    struct db_result *result = NULL;
    struct error error = {0};
    end_pipeline(writer);
    if (writer->status != STATUS_OK)
        return NULL;
    enum status status = db_query(writer->conn, statement, params, writer->deadline_ns, &result, &error);
    if (status != STATUS_OK)
        keep_failure(writer, status, &error);
    return result;
}

void refdata_writer_plan_freely(struct refdata_writer *writer)
{
    if (!writer->plans_freely)
        refdata_writer_add(writer, &plan_freely_sql, DB_NO_PARAMS);
    writer->plans_freely = true;
}

void refdata_writer_allow(struct refdata_writer *writer, int64_t timeout_ms)
{
    int64_t deadline_ns = clock_deadline_ms(timeout_ms);
    if (deadline_ns > writer->deadline_ns)
        writer->deadline_ns = deadline_ns;
    refdata_writer_plan_freely(writer);
    refdata_writer_add(writer, &allow_sql, DB_PARAMS(db_text(REFDATA_I64(writer->arena, timeout_ms))));
}

/* ---- columns ---- */

void refdata_columns_begin(struct refdata_columns *columns, unsigned count, struct arena *arena)
{
    *columns = (struct refdata_columns){.arena = arena, .count = count};
}

void refdata_columns_add(struct refdata_columns *columns, const struct str *row)
{
    size_t row_bytes = columns->count * sizeof *columns->cells;
    if (columns->rows == columns->capacity) {
        size_t capacity = columns->capacity ? 4 * columns->capacity : 1;
        struct str *cells = arena_alloc(columns->arena, capacity * row_bytes);
        if (columns->rows)
            memcpy(cells, columns->cells, columns->rows * row_bytes);
        columns->cells = cells;
        columns->capacity = capacity;
    }
    memcpy(&columns->cells[columns->rows++ * columns->count], row, row_bytes);
}

void refdata_columns_bind_arrays(struct refdata_columns *columns, struct db_param *params)
{
    size_t ends[REFDATA_COLUMNS_MAX];
    for (unsigned column = 0; column < columns->count; column++) {
        buf_put_char(&columns->arrays, '{');
        for (size_t row = 0; row < columns->rows; row++) {
            struct str value = columns->cells[row * columns->count + column];
            if (value.ptr)
                db_array_put(&columns->arrays, value);
            else
                db_array_put_null(&columns->arrays);
        }
        db_array_end(&columns->arrays);
        ends[column] = columns->arrays.end;
    }
    for (unsigned column = 0; column < columns->count; column++) { /* now that they stay where they are */
        size_t start = column ? ends[column - 1] : 0;
        params[column] = db_text_array(str_of(columns->arrays.data + start, ends[column] - start));
    }
}

void refdata_columns_bind_items(struct refdata_columns *columns, const struct refdata_item *items,
                                size_t count, struct arena *arena, struct db_param *params)
{
    refdata_columns_begin(columns, 2, arena);
    for (size_t i = 0; i < count; i++)
        refdata_columns_add(columns, REFDATA_ROW(items[i].key, items[i].payload));
    refdata_columns_bind_arrays(columns, params);
}

const struct db_statement *refdata_columns_bind(struct refdata_columns *columns,
                                                const struct refdata_rows_sql *sql,
                                                struct db_param params[REFDATA_COLUMNS_MAX + 1])
{
    params[columns->count] = DB_END;
    if (columns->rows != 1) {
        buf_clear(&columns->arrays);
        refdata_columns_bind_arrays(columns, params);
        return &sql->many;
    }
    for (unsigned column = 0; column < columns->count; column++)
        params[column] = db_text(columns->cells[column]);
    return &sql->one;
}

void refdata_columns_write(struct refdata_columns *columns, const struct refdata_rows_sql *sql,
                           struct refdata_writer *writer)
{
    struct db_param params[REFDATA_COLUMNS_MAX + 1];
    if (columns->rows)
        refdata_writer_add(writer, refdata_columns_bind(columns, sql, params), params);
    refdata_columns_free(columns);
}

void refdata_columns_free(struct refdata_columns *columns)
{
    buf_deinit(&columns->arrays);
}
