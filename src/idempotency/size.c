/* How large a table of keys is. By the server's statistics, since counting millions of rows would be a load of its own: the number
 * is an estimate, which a crash of the server sets to 0 until the table is analysed or vacuumed. */
#include "db/db.h"
#include "idempotency/idempotency_inside.h"

static struct metric_family keys_family = {
    .name = "idempotency_keys",
    .help =
        "Idempotency keys that are stored, by PostgreSQL's statistics. Every process shows all: take the maximum.",
    .type = METRIC_GAUGE,
    .labels = {"table"},
};
static struct metric_family bytes_family = {
    .name = "idempotency_table_bytes",
    .help =
        "Disk space of the table of keys with its indexes, in bytes. Every process shows all: take the maximum.",
    .type = METRIC_GAUGE,
    .labels = {"table"},
};

/* $1 the table. */
static const struct db_statement size_sql =
    DB_STATEMENT("select pg_catalog.pg_stat_get_live_tuples(t.oid), pg_catalog.pg_total_relation_size(t.oid)"
                 " from (select pg_catalog.to_regclass($1)::oid as oid) t where t.oid is not null");

enum status idempotency_measure(struct db_conn *conn, struct str table, int64_t deadline_ns,
                                struct error *error)
{
    struct db_result *size = NULL;
    enum status status = db_query(conn, &size_sql, DB_PARAMS(db_text(table)), deadline_ns, &size, error);
    metrics_register(&keys_family);
    metrics_register(&bytes_family);
    if (status == STATUS_OK && db_result_rows(size) == 1) {
        metric_set(metric_series_get(&keys_family, &table), (double)db_result_i64(size, 0, 0));
        metric_set(metric_series_get(&bytes_family, &table), (double)db_result_i64(size, 0, 1));
    }
    db_result_free(size);
    return status;
}
