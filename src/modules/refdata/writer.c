/* Statements in pipelines that end before they grow too long. */
#include "modules/refdata/writer.h"

#include <stdio.h>

#include "base/clock.h"
#include "modules/refdata/update.h"

#define PENDING_MAX 2000
#define BYTES_MAX (16u << 20)
#define KEY_BYTES_SHOWN 100

static const char allow_sql[] = "select set_config('statement_timeout', $1, true)";

void refdata_writer_name_items(struct refdata_writer *writer, const struct refdata_item *items, size_t count)
{
    writer->items = items;
    writer->item_count = count;
    writer->items_from = writer->added;
}

/* PostgreSQL refused the statement with this number: which item was it about? */
static void name_item(const struct refdata_writer *writer, size_t number, struct error *error)
{
    if (number < writer->items_from || number - writer->items_from >= writer->item_count)
        return;
    struct str key = str_utf8_cut(writer->items[number - writer->items_from].key, KEY_BYTES_SHOWN);
    error_context(error, "item \"%.*s\"", STR_ARG(key));
}

static void fail(struct refdata_writer *writer, enum status status, const struct error *error)
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
    if (status == STATUS_DB_ERROR)
        name_item(writer, writer->begun + failed_at, &error);
    if (status == STATUS_CANCELLED)
        writer->status = STATUS_OK; /* this failure counts */
    if (status != STATUS_OK)
        fail(writer, status, &error);
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

void refdata_writer_add_sql(struct refdata_writer *writer, const char *sql, unsigned count,
                            const enum db_type *types, const struct db_param *params)
{
    struct db_statement statement;
    db_statement_init(&statement, sql, count, types);
    refdata_writer_add(writer, &statement, params);
}

struct db_result *refdata_writer_query(struct refdata_writer *writer, const char *sql, unsigned count,
                                       const enum db_type *types, const struct db_param *params)
{
    struct db_statement statement;
    struct db_result *result = NULL;
    struct error error = {0};
    end_pipeline(writer);
    if (writer->status != STATUS_OK)
        return NULL;
    db_statement_init(&statement, sql, count, types);
    enum status status = db_query(writer->conn, &statement, params, writer->deadline_ns, &result, &error);
    if (status != STATUS_OK)
        fail(writer, status, &error);
    return result;
}

void refdata_writer_plan_freely(struct refdata_writer *writer)
{
    if (!writer->plans_freely)
        refdata_writer_add_sql(writer, DB_PLAN_FREELY_SQL, 0, NULL, NULL);
    writer->plans_freely = true;
}

void refdata_writer_allow(struct refdata_writer *writer, int64_t timeout_ms)
{
    char text[REFDATA_NUMBER_BYTES];
    int64_t deadline_ns = clock_deadline_ms(timeout_ms);
    if (deadline_ns > writer->deadline_ns)
        writer->deadline_ns = deadline_ns;
    refdata_writer_plan_freely(writer);
    refdata_writer_add_sql(writer, allow_sql, 1, (const enum db_type[]){DB_TEXT},
                           &(struct db_param){refdata_number(text, timeout_ms)});
}

struct str refdata_number(char out[REFDATA_NUMBER_BYTES], int64_t value)
{
    return str_of(out, (size_t)snprintf(out, REFDATA_NUMBER_BYTES, "%lld", (long long)value));
}

/* ---- columns ---- */

static const enum db_type texts[REFDATA_COLUMNS_MAX] = {DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT,
                                                        DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT};
static const enum db_type arrays[REFDATA_COLUMNS_MAX] = {
    DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY,
    DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY};

void refdata_columns_begin(struct refdata_columns *columns, unsigned count)
{
    columns->count = count;
    columns->rows = 0;
    columns->ended = false;
    for (unsigned i = 0; i < count; i++) {
        buf_init(&columns->at[i]);
        buf_init(&columns->first[i]);
        db_array_begin(&columns->at[i]);
        columns->firsts[i].is_there = false;
    }
}

static void keep_first(struct refdata_columns *columns, unsigned column, struct str value)
{
    if (columns->firsts[column].is_there)
        return;
    columns->firsts[column].is_there = true;
    columns->firsts[column].is_null = !value.ptr;
    buf_put_str(&columns->first[column], value.ptr ? value : STR(""));
}

void refdata_columns_put(struct refdata_columns *columns, unsigned column, struct str value)
{
    keep_first(columns, column, value);
    if (value.ptr)
        db_array_put(&columns->at[column], value);
    else
        db_array_put_null(&columns->at[column]);
}

void refdata_columns_put_i64(struct refdata_columns *columns, unsigned column, int64_t value)
{
    char text[REFDATA_NUMBER_BYTES];
    refdata_columns_put(columns, column, refdata_number(text, value));
}

void refdata_columns_put_null(struct refdata_columns *columns, unsigned column)
{
    refdata_columns_put(columns, column, STR_NONE);
}

void refdata_columns_end(struct refdata_columns *columns, struct db_param params[REFDATA_COLUMNS_MAX])
{
    for (unsigned i = 0; i < columns->count; i++) {
        if (!columns->ended)
            db_array_end(&columns->at[i]);
        params[i].value = buf_str(&columns->at[i]);
    }
    columns->ended = true;
}

void refdata_columns_free(struct refdata_columns *columns)
{
    for (unsigned i = 0; i < columns->count; i++) {
        buf_deinit(&columns->at[i]);
        buf_deinit(&columns->first[i]);
    }
}

static void give_firsts(struct refdata_columns *columns, struct db_param params[REFDATA_COLUMNS_MAX])
{
    for (unsigned i = 0; i < columns->count; i++) {
        struct str value = buf_str(&columns->first[i]);
        params[i].value = columns->firsts[i].is_null ? STR_NONE : value.ptr ? value : STR("");
    }
}

void refdata_columns_state(struct refdata_columns *columns, const struct refdata_rows_sql *sql,
                           struct db_statement *statement, struct db_param params[REFDATA_COLUMNS_MAX])
{
    bool one = columns->rows == 1;
    if (one)
        give_firsts(columns, params);
    else
        refdata_columns_end(columns, params);
    db_statement_init(statement, one ? sql->one : sql->many, columns->count, one ? texts : arrays);
}

void refdata_columns_write(struct refdata_columns *columns, const struct refdata_rows_sql *sql,
                           struct refdata_writer *writer)
{
    struct db_param params[REFDATA_COLUMNS_MAX];
    struct db_statement statement;
    refdata_columns_state(columns, sql, &statement, params);
    if (columns->rows)
        refdata_writer_add(writer, &statement, params);
    refdata_columns_free(columns);
}
