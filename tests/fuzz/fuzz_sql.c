/* The SQL compiler under arbitrary bytes: it must stop inside its input, and what it accepts must hold: the
 * text is the template with its parameters replaced, and every position of it maps back into the template. */
#include <stdlib.h>

#include "db/db.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct db_name names[] = {
    {"tenantId", DB_TEXT},  {"key", DB_TEXT},        {"payload", DB_JSONB}, {"eventVersion", DB_BIGINT},
    {"chunkIndex", DB_INT}, {"keys", DB_TEXT_ARRAY}, {"a", DB_TEXT},        {NULL, DB_TEXT},
};

static void check(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str sql = str_of((const char *)data, size);
    struct db_statement statement;
    struct arena arena = ARENA(4096);
    size_t offset;

    if (db_sql_compile(sql, names, &arena, &statement, &offset, NULL) == STATUS_OK) {
        check(statement.param_count <= 7 && statement.id != 0);
        check(strlen(statement.text.ptr) == statement.text.len);
        check(statement.param_count > 0 || str_eq(statement.text, sql));
        size_t last = 0;
        for (size_t position = 0; position <= statement.text.len + 1; position += 1 + position / 64) {
            size_t at = db_statement_offset(&statement, sql, position);
            check(at <= sql.len && at >= last);
            last = at;
        }
    } else {
        check(offset <= size);
    }
    arena_deinit(&arena);
    return 0;
}
