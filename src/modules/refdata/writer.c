/* Statements in pipelines that end by themselves before they grow too long. */
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

enum status refdata_writer_wait(struct refdata_writer *writer, struct error *error)
{
    size_t failed_at = 0;
    if (!writer->open)
        return STATUS_OK;
    writer->open = false;
    writer->pending = writer->bytes = 0;
    enum status status = db_pipeline_end(writer->conn, writer->deadline_ns, NULL, 0, &failed_at, error);
    if (status == STATUS_DB_ERROR)
        name_item(writer, writer->begun + failed_at, error);
    return status;
}

void refdata_writer_leave(struct refdata_writer *writer)
{
    if (writer->open)
        db_pipeline_leave(writer->conn, NULL, 0);
    writer->open = false;
}

/* What could not be sent leaves a pipeline that has to end all the same. */
static enum status give_up(struct refdata_writer *writer, enum status status)
{
    struct error later = {0};
    return refdata_writer_wait(writer, &later) == STATUS_CANCELLED ? STATUS_CANCELLED : status;
}

enum status refdata_writer_add(struct refdata_writer *writer, const struct db_statement *statement,
                               const struct db_param *params, struct error *error)
{
    enum status status = STATUS_OK;
    if (writer->pending >= PENDING_MAX || writer->bytes >= BYTES_MAX)
        status = refdata_writer_wait(writer, error);
    if (status == STATUS_OK && !writer->open) {
        status = db_pipeline_begin_checked(writer->conn, error);
        writer->open = status == STATUS_OK;
        writer->begun = writer->added;
    }
    if (status != STATUS_OK)
        return status;
    status = db_pipeline_add_checked(writer->conn, statement, params, error);
    writer->pending++;
    writer->added++;
    for (unsigned i = 0; i < db_param_count(statement, params); i++)
        writer->bytes += params[i].value.len;
    return status == STATUS_OK ? status : give_up(writer, status);
}

enum status refdata_writer_query(struct refdata_writer *writer, const struct db_statement *statement,
                                 const struct db_param *params, struct db_result **result,
                                 struct error *error)
{
    enum status status = refdata_writer_wait(writer, error);
    return status == STATUS_OK ? db_query(writer->conn, statement, params, writer->deadline_ns, result, error)
                               : status;
}

enum status refdata_writer_plan_freely(struct refdata_writer *writer, struct error *error)
{
    struct db_statement statement;
    if (writer->plans_freely)
        return STATUS_OK;
    writer->plans_freely = true;
    db_statement_init(&statement, DB_PLAN_FREELY_SQL, 0, NULL);
    return refdata_writer_add(writer, &statement, NULL, error);
}

enum status refdata_writer_allow(struct refdata_writer *writer, int64_t timeout_ms, struct error *error)
{
    char text[REFDATA_NUMBER_BYTES];
    struct db_statement statement;
    int64_t deadline_ns = clock_deadline_ms(timeout_ms);
    db_statement_init(&statement, allow_sql, 1, (const enum db_type[]){DB_TEXT});
    if (deadline_ns > writer->deadline_ns)
        writer->deadline_ns = deadline_ns;
    enum status status = refdata_writer_plan_freely(writer, error);
    if (status != STATUS_OK)
        return status;
    return refdata_writer_add(writer, &statement, &(struct db_param){refdata_number(text, timeout_ms)},
                              error);
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

enum status refdata_columns_write(struct refdata_columns *columns, const struct refdata_rows_sql *sql,
                                  struct refdata_writer *writer, struct error *error)
{
    struct db_param params[REFDATA_COLUMNS_MAX];
    struct db_statement statement;
    enum status status = STATUS_OK;
    refdata_columns_state(columns, sql, &statement, params);
    if (columns->rows)
        status = refdata_writer_add(writer, &statement, params, error);
    refdata_columns_free(columns);
    return status;
}
