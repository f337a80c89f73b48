/* Statements on their way to the server: their identity, their parameters as libpq wants them, and which of
 * them a connection has prepared. Nothing here talks to the server. */
#include "db/db.h"

#include <stdio.h>

#include "base/hash.h"
#include "db/db_inside.h"

#define SCRATCH_KEEP_BYTES (256 * 1024)

#define OID_BYTEA 17

static const Oid type_oids[] = {
    [DB_TEXT] = 25,          [DB_JSONB] = DB_OID_JSONB, [DB_BIGINT] = 20,
    [DB_INT] = 23,           [DB_TEXT_ARRAY] = 1009,    [DB_BOOL] = 16,
    [DB_UUID] = 2950,        [DB_TIMESTAMPTZ] = 1184,   [DB_BYTEA] = OID_BYTEA,
    [DB_BYTEA_ARRAY] = 1001,
};

void db_statement_seal(struct db_statement *statement)
{
    struct str types =
        str_of((const char *)statement->types, statement->param_count * sizeof statement->types[0]);

    statement->id = hash_content(statement->text) ^ (hash_content(types) * 31);
    if (statement->id == 0)
        statement->id = 1;
}

void db_statement_init(struct db_statement *statement, const char *sql, unsigned param_count,
                       const enum db_type *types)
{
    *statement = (struct db_statement){.text = str_from(sql), .param_count = param_count};
    for (unsigned i = 0; i < param_count; i++) {
        statement->types[i] = types[i];
        statement->names[i] = i;
    }
    db_statement_seal(statement);
}

void db_statement_oids(const struct db_statement *statement, Oid oids[DB_PARAMS_MAX])
{
    for (unsigned i = 0; i < statement->param_count; i++)
        oids[i] = type_oids[statement->types[i]];
}

/* ---- parameters ---- */

/* Their binary form is what we have; that of text is the text. */
static bool is_bytes(enum db_type type)
{
    return type == DB_BYTEA || type == DB_BYTEA_ARRAY;
}

static bool is_sent_in_place(enum db_type type)
{
    return type == DB_TEXT || is_bytes(type);
}

static enum status check_param(enum db_type type, struct str value, unsigned at, struct error *error)
{
    if (value.len > INT32_MAX)
        return error_set(error, STATUS_DB_ERROR, "parameter $%u is over 2 GiB", at + 1);
    if (value.len > 0 && !is_bytes(type) && memchr(value.ptr, '\0', value.len))
        return error_set(error, STATUS_DB_ERROR, "parameter $%u holds a NUL byte", at + 1);
    return STATUS_OK;
}

enum status db_bound_set(struct db_bound *bound, const struct db_statement *statement,
                         const struct db_param *params, struct error *error)
{
    unsigned count = statement->param_count;

    if (bound->scratch.capacity > SCRATCH_KEEP_BYTES)
        buf_deinit(&bound->scratch);
    buf_clear(&bound->scratch);
    for (unsigned i = 0; i < count; i++) {
        struct str value = params[i].value;
        enum status status = check_param(statement->types[i], value, i, error);
        if (status != STATUS_OK)
            return status;
        bound->values[i] = value.ptr;
        bound->lengths[i] = (int)value.len;
        bound->formats[i] = is_sent_in_place(statement->types[i]);
        if (!value.ptr || is_sent_in_place(statement->types[i]))
            continue;
        buf_put_str(&bound->scratch, value);
        buf_put_char(&bound->scratch, '\0');
    }
    /* The scratch has stopped moving: point into it. */
    const char *at = bound->scratch.data;
    for (unsigned i = 0; i < count; i++) {
        if (!params[i].value.ptr || is_sent_in_place(statement->types[i]))
            continue;
        bound->values[i] = at;
        at += params[i].value.len + 1;
    }
    return STATUS_OK;
}

/* ---- text[] literals ---- */

void db_array_begin(struct buf *out)
{
    buf_put_char(out, '{');
}

static void begin_element(struct buf *out)
{
    if (out->data[out->end - 1] != '{')
        buf_put_char(out, ',');
}

void db_array_put(struct buf *out, struct str element)
{
    size_t from = 0; /* what is before it has been put */

    begin_element(out);
    buf_put_char(out, '"');
    for (size_t i = 0; i < element.len; i++) {
        if (element.ptr[i] != '"' && element.ptr[i] != '\\')
            continue;
        buf_put(out, element.ptr + from, i - from);
        buf_put_char(out, '\\');
        from = i;
    }
    if (from < element.len)
        buf_put(out, element.ptr + from, element.len - from);
    buf_put_char(out, '"');
}

void db_array_put_null(struct buf *out)
{
    begin_element(out);
    buf_put(out, "NULL", 4);
}

void db_array_end(struct buf *out)
{
    buf_put_char(out, '}');
}

/* ---- bytea[] ---- */

static void put_u32(struct buf *out, uint32_t number)
{
    uint32_t big_endian = htonl(number);

    buf_put(out, (const char *)&big_endian, sizeof big_endian);
}

void db_bytes_array_begin(struct buf *out, size_t count)
{
    put_u32(out, count > 0); /* dimensions */
    put_u32(out, 1);         /* there may be NULLs */
    put_u32(out, OID_BYTEA);
    if (count == 0)
        return;
    put_u32(out, (uint32_t)count);
    put_u32(out, 1); /* the first one's index */
}

void db_bytes_array_put(struct buf *out, struct str element)
{
    put_u32(out, element.ptr ? (uint32_t)element.len : UINT32_MAX);
    if (element.len > 0)
        buf_put(out, element.ptr, element.len);
}

/* ---- what a connection has prepared ---- */

static unsigned slot_of(const struct db_prepared *prepared, uint64_t id)
{
    unsigned slot = (unsigned)(id % (2 * DB_PREPARED_MAX));

    while (prepared->slots[slot] != 0 && prepared->slots[slot] != id)
        slot = (slot + 1) % (2 * DB_PREPARED_MAX);
    return slot;
}

bool db_prepared_has(const struct db_prepared *prepared, uint64_t id)
{
    return prepared->slots[slot_of(prepared, id)] == id;
}

void db_prepared_add(struct db_prepared *prepared, uint64_t id)
{
    unsigned slot = slot_of(prepared, id);

    if (prepared->slots[slot] == 0) {
        prepared->slots[slot] = id;
        prepared->count++;
    }
    if (prepared->count >= DB_PREPARED_MAX)
        prepared->stale = true;
}

/* What was put further on because this place was taken moves up: a search ends at the first free place. */
void db_prepared_remove(struct db_prepared *prepared, uint64_t id)
{
    const unsigned slots = 2 * DB_PREPARED_MAX;
    unsigned hole = slot_of(prepared, id);

    if (prepared->slots[hole] == 0)
        return;
    prepared->count--;
    for (unsigned at = (hole + 1) % slots; prepared->slots[at] != 0; at = (at + 1) % slots) {
        unsigned home = (unsigned)(prepared->slots[at] % slots);
        if ((at + slots - home) % slots < (at + slots - hole) % slots)
            continue; /* its home is behind the hole */
        prepared->slots[hole] = prepared->slots[at];
        hole = at;
    }
    prepared->slots[hole] = 0;
}

void db_prepared_clear(struct db_prepared *prepared)
{
    *prepared = (struct db_prepared){0};
}

void db_prepared_name(uint64_t id, char out[DB_PREPARED_NAME_BYTES])
{
    snprintf(out, DB_PREPARED_NAME_BYTES, "f%016llx", (unsigned long long)id);
}
