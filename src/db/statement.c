/* Statements on their way to the server: their identity, their parameters as libpq wants them, and which of
 * them a connection has prepared. Nothing here talks to the server. */
#include "db/db.h"

#include <stdio.h>

#include "base/hash.h"
#include "db/db_inside.h"

#define SCRATCH_KEEP_BYTES (256 * 1024)

#define OID_BYTEA 17

static const Oid type_oids[] = {
    [DB_TEXT] = 25,   [DB_JSONB] = DB_OID_JSONB, [DB_BIGINT] = 20,
    [DB_INT] = 23,    [DB_TEXT_ARRAY] = 1009,    [DB_BOOL] = 16,
    [DB_UUID] = 2950, [DB_BYTEA] = OID_BYTEA,    [DB_BYTEA_ARRAY] = 1001,
};

static uint64_t never_zero(uint64_t hash)
{
    return hash ? hash : 1;
}

static uint64_t hash_with_types(uint64_t text_hash, const enum db_type *types, unsigned count)
{
    return never_zero(text_hash ^ hash_content(str_of((const char *)types, count * sizeof *types)) * 31);
}

void db_statement_seal(struct db_statement *statement)
{
    statement->has_types = true;
    statement->id = hash_with_types(hash_content(statement->text), statement->types, statement->param_count);
}

struct db_statement db_statement_of(struct str sql)
{
    return (struct db_statement){.text = sql, .id = never_zero(hash_content(sql))};
}

void db_type_oids(const enum db_type *types, unsigned count, Oid oids[DB_PARAMS_MAX])
{
    for (unsigned i = 0; i < count; i++)
        oids[i] = type_oids[types[i]];
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

unsigned db_param_count(const struct db_statement *statement, const struct db_param *params)
{
    unsigned count = 0;

    if (statement->has_types)
        return statement->param_count;
    while (params && params[count].type != DB_NO_TYPE)
        count++;
    return count;
}

enum status db_bound_set(struct db_bound *bound, const struct db_statement *statement,
                         const struct db_param *params, struct error *error)
{
    bool in_scratch[DB_PARAMS_MAX];

    bound->count = db_param_count(statement, params);
    bound->bytes = 0;
    if (bound->count > DB_PARAMS_MAX)
        return error_set(error, STATUS_INTERNAL, "a statement has more than %d parameters", DB_PARAMS_MAX);
    if (bound->scratch.capacity > SCRATCH_KEEP_BYTES)
        buf_deinit(&bound->scratch);
    buf_clear(&bound->scratch);
    for (unsigned i = 0; i < bound->count; i++) {
        const struct db_param *param = &params[i];
        enum db_type type = statement->has_types ? statement->types[i] : param->type;
        bool is_number = !statement->has_types && param->is_number;
        if (param->value.len > INT32_MAX)
            return error_set(error, STATUS_DB_ERROR, "parameter $%u is over 2 GiB", i + 1);
        if (param->value.len > 0 && !is_bytes(type) && memchr(param->value.ptr, '\0', param->value.len))
            return error_set(error, STATUS_DB_ERROR, "parameter $%u holds a NUL byte", i + 1);
        size_t before = buf_len(&bound->scratch);
        bound->types[i] = type;
        bound->formats[i] = is_sent_in_place(type);
        in_scratch[i] = is_number || (param->value.ptr && !is_sent_in_place(type));
        if (is_number && param->number < 0)
            buf_put_char(&bound->scratch, '-');
        if (is_number)
            buf_put_u64(&bound->scratch,
                        param->number < 0 ? -(uint64_t)param->number : (uint64_t)param->number);
        else if (in_scratch[i])
            buf_put_str(&bound->scratch, param->value);
        if (in_scratch[i])
            buf_put_char(&bound->scratch, '\0');
        bound->values[i] = param->value.ptr;
        bound->lengths[i] =
            in_scratch[i] ? (int)(buf_len(&bound->scratch) - before - 1) : (int)param->value.len;
        bound->bytes += (size_t)bound->lengths[i];
    }
    /* The scratch has stopped moving: point into it. */
    const char *at = bound->scratch.data;
    for (unsigned i = 0; i < bound->count; i++) {
        if (!in_scratch[i])
            continue;
        bound->values[i] = at;
        at += bound->lengths[i] + 1;
    }
    /* What the connection knows it by. The types belong to it: the same text with others is another statement. */
    uint64_t key = statement->id ? statement->id : (uint64_t)(uintptr_t)statement->text.ptr;
    for (unsigned i = 0; i < bound->count && !statement->has_types; i++)
        key = (key ^ bound->types[i]) * UINT64_C(0x9e3779b97f4a7c15);
    bound->key = statement->has_types ? key : never_zero(key ^ key >> 32);
    return STATUS_OK;
}

static unsigned slot_of(const struct db_prepared *prepared, uint64_t key)
{
    unsigned slot = (unsigned)(key % (2 * DB_PREPARED_MAX));

    while (prepared->slots[slot].key != 0 && prepared->slots[slot].key != key)
        slot = (slot + 1) % (2 * DB_PREPARED_MAX);
    return slot;
}

static uint64_t find_prepared(const struct db_prepared *prepared, uint64_t key)
{
    return prepared->slots[slot_of(prepared, key)].name;
}

bool db_bound_is_prepared(const struct db_bound *bound, struct db_prepared *prepared,
                          const struct db_statement *statement, uint64_t *hash,
                          char name[DB_PREPARED_NAME_BYTES])
{
    *hash = find_prepared(prepared, bound->key);
    bool is_prepared = *hash != 0;
    if (!is_prepared) {
        *hash = statement->has_types
                    ? statement->id
                    : hash_with_types(statement->id ? statement->id : hash_content(statement->text),
                                      bound->types, bound->count);
        is_prepared = find_prepared(prepared, *hash) != 0; /* the same text stands elsewhere too */
        if (is_prepared)
            db_prepared_add(prepared, bound->key, *hash);
    }
    snprintf(name, DB_PREPARED_NAME_BYTES, "f%016llx", (unsigned long long)*hash);
    return is_prepared;
}

/* ---- text[] literals ---- */

static void begin_element(struct buf *out)
{
    if (buf_len(out) == 0)
        buf_put_char(out, '{');
    else if (out->data[out->end - 1] != '{')
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

void db_array_put_i64(struct buf *out, int64_t number)
{
    begin_element(out);
    buf_printf(out, "%lld", (long long)number);
}

struct str db_array_end(struct buf *out)
{
    buf_put_str(out, buf_len(out) == 0 ? STR("{}") : STR("}"));
    return buf_str(out);
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

static void put_slot(struct db_prepared *prepared, uint64_t key, uint64_t name)
{
    unsigned slot = slot_of(prepared, key);

    prepared->count += prepared->slots[slot].key == 0;
    prepared->slots[slot] = (struct db_prepared_slot){key, name};
}

void db_prepared_add(struct db_prepared *prepared, uint64_t key, uint64_t name)
{
    put_slot(prepared, name, name);
    put_slot(prepared, key, name);
    if (prepared->count >= DB_PREPARED_MAX - 1)
        prepared->stale = true;
}

void db_prepared_remove(struct db_prepared *prepared, uint64_t name)
{
    struct db_prepared old = *prepared;

    *prepared = (struct db_prepared){.stale = old.stale};
    for (unsigned i = 0; i < 2 * DB_PREPARED_MAX; i++)
        if (old.slots[i].key != 0 && old.slots[i].name != name)
            put_slot(prepared, old.slots[i].key, old.slots[i].name);
}

void db_prepared_clear(struct db_prepared *prepared)
{
    *prepared = (struct db_prepared){0};
}
