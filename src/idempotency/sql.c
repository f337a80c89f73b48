/* The statements around an effect, written for a module's table. Their texts are the same every time, so that each is
 * prepared once per connection; all of them find their row by the primary key.
 *
 * Time is the server's, at the start of each statement: behind the wait for the lock. */
#include "idempotency/idempotency_inside.h"

#define SCOPE_SQL "tenant_id = $1 AND subject = $2 AND method = $3 AND route = $4 AND idempotency_key = $5"

static const char *before(const struct idempotency_table *table)
{
    return table->expires_inclusive ? "<=" : "<";
}

void idempotency_look_sql(const struct idempotency_table *table, struct buf *out)
{
    buf_printf(out,
               "SELECT platform.idempotency_found((SELECT request_hash = $6 FROM %s WHERE " SCOPE_SQL
               " AND NOT expires_at %s statement_timestamp()))",
               table->name, before(table));
    buf_put_char(out, '\0');
}

/* What was found a moment ago, even if it has expired since. */
void idempotency_fetch_sql(const struct idempotency_table *table, struct buf *out)
{
    buf_printf(out, "SELECT response_status, response_body FROM %s WHERE " SCOPE_SQL " AND request_hash = $6",
               table->name);
    buf_put_char(out, '\0');
}

/* The effect is one statement; whatever it wrote and what is stored are one transaction. */
void idempotency_store_sql(const struct idempotency_table *table, const struct db_statement *effect,
                           bool with_failures, struct buf *out)
{
    unsigned at = effect->param_count;

    buf_printf(out,
               "WITH effect (status, body) AS MATERIALIZED (%.*s), stored AS ("
               "INSERT INTO %s AS k (tenant_id, subject, method, route, idempotency_key, request_hash,"
               " response_status, response_body, created_at, expires_at)"
               " SELECT $%u, $%u, $%u, $%u, $%u, $%u, status, body, statement_timestamp(),"
               " statement_timestamp() + $%u * interval '1 millisecond' FROM effect WHERE status < 400",
               STR_ARG(effect->text), table->name, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6, at + 7);
    if (with_failures)
        buf_put_str(out, STR(" OR (status < 500 AND status NOT IN (400, 401, 403))"));
    buf_printf(out,
               " ON CONFLICT (tenant_id, subject, method, route, idempotency_key) DO UPDATE SET"
               " request_hash = excluded.request_hash, response_status = excluded.response_status,"
               " response_body = excluded.response_body, created_at = excluded.created_at,"
               " expires_at = excluded.expires_at"
               " WHERE platform.idempotency_overwrite(k.expires_at %s statement_timestamp()))"
               " SELECT * FROM effect",
               before(table));
    buf_put_char(out, '\0');
}

/* Asked twice: a row that was used anew between being found and being deleted stays. */
void idempotency_cleanup_sql(const struct idempotency_table *table, struct buf *out)
{
    buf_printf(out,
               "WITH cleaned AS (DELETE FROM %s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %s"
               " WHERE expires_at %s statement_timestamp() - $1 * interval '1 millisecond'"
               " ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))"
               " AND expires_at %s statement_timestamp() - $1 * interval '1 millisecond' RETURNING route)"
               " SELECT route, count(*) FROM cleaned GROUP BY route",
               table->name, table->name, before(table), before(table));
    buf_put_char(out, '\0');
}
