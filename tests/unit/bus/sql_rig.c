#include "sql_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "conformance.h"

struct db_pool *sql_pool;

struct db_target sql_target(unsigned connections_max)
{
    struct db_target target = pg_fixture_target();

    target.connections_max = connections_max;
    return target;
}

void sql_rig_start(void)
{
    struct db_target target;
    struct error error = {0};

    pg_fixture_start();
    target = sql_target(4);
    if (db_pool_create(&target, &sql_pool, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    sql("CREATE TABLE public.effect (number int NOT NULL CHECK (number >= 0))");
    sql("CREATE INDEX ON public.effect (number)");
}

void sql_rig_stop(void)
{
    db_pool_destroy(sql_pool);
    pg_fixture_stop();
}

int64_t sql(const char *text)
{
    struct db_statement statement;
    struct db_result *result = NULL;
    struct db_conn *conn;
    int64_t value = -1;

    statement = db_statement_of(str_from(text));
    if (db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) == STATUS_OK &&
        db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &result, NULL) == STATUS_OK)
        value = db_result_rows(result) ? db_result_i64(result, 0, 0) : 0;
    db_result_free(result);
    db_release(conn);
    return value;
}

void await_sql(const char *text, int64_t wanted)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS), value;

    while ((value = sql(text)) != wanted && clock_mono_ns() < limit_ns)
        pause_ms(20);
    assert_int_equal(value, wanted);
}

bool sql_write_effect(struct db_conn *conn, int number, int64_t deadline_ns)
{
    static const struct db_statement insert_sql = DB_STATEMENT("INSERT INTO public.effect VALUES ($1)");

    return db_exec(conn, &insert_sql, DB_PARAMS(db_int(number)), deadline_ns, NULL, NULL) == STATUS_OK;
}

size_t sql_count_effects(int number)
{
    char text[96];

    snprintf(text, sizeof text, "SELECT count(*) FROM public.effect WHERE number = %d", number);
    return (size_t)sql(text);
}
