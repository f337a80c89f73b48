/* The rig of the tests of effects and answers. */
#include "rig.h"

#include "base/log.h"
#include "bus/bus_postgres.h"

struct db_pool *rig_pool, *rig_clock_pool;

static const char *const schema_sql[] = {
    "CREATE SCHEMA shop",
    "SELECT platform.idempotency_table_make('shop')",
    "CREATE TABLE shop.bought (id bigserial PRIMARY KEY, note text NOT NULL)",
    "CREATE SEQUENCE shop.calls",
    /* As a module's: everything in one function; a failure writes nothing. */
    "CREATE FUNCTION shop.buy(wanted int, note text, OUT status int, OUT body text, OUT id bigint) LANGUAGE plpgsql AS $$"
    "BEGIN status := wanted;"
    " IF wanted < 400 THEN INSERT INTO shop.bought (note) VALUES (buy.note) RETURNING bought.id INTO id; END IF;"
    " body := format('{\"id\": %s,  \"é\":1.50}', coalesce(id, 0)); END $$",
    /* The server's clock, unless a test set it. */
    "CREATE SCHEMA clock",
    "CREATE TABLE clock.now (at timestamptz)",
    ("CREATE FUNCTION clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS"
     " 'SELECT coalesce((SELECT at FROM clock.now), pg_catalog.statement_timestamp())'"),
};

static struct db_pool *make_pool(struct str schema)
{
    struct db_target target = pg_fixture_target();
    struct db_pool *pool;

    target.connections_max = 20;
    target.schema = schema;
    target.fixed_plans = true;
    target.statement_timeout_ms = PATIENCE_MS;
    assert_int_equal(db_pool_create(&target, &pool, NULL), STATUS_OK);
    return pool;
}

void rig_start(void)
{
    struct error error = {0};

    log_set_level(LOG_LEVEL_ERROR);
    pg_fixture_start();
    rig_pool = make_pool(STR_NONE);
    if (db_migrate(rig_pool, "platform", platform_migrations, clock_deadline_ms(PATIENCE_MS), NULL, &error) !=
        STATUS_OK) {
        fprintf(stderr, "migrations: %s\n", error.message);
        exit(1);
    }
    for (size_t i = 0; i < sizeof schema_sql / sizeof schema_sql[0]; i++)
        rig_sql("%s", schema_sql[i]);
    rig_clock_pool = make_pool(STR("clock, pg_catalog"));
}

void rig_stop(void)
{
    db_pool_destroy(rig_pool);
    db_pool_destroy(rig_clock_pool);
    pg_fixture_stop();
}

void rig_clear(void)
{
    rig_sql("TRUNCATE shop.idempotency_keys, shop.bought, clock.now RESTART IDENTITY");
    rig_sql("ALTER SEQUENCE shop.calls RESTART");
}

const char *rig_sql(const char *format, ...)
{
    static _Thread_local char text[1024];
    char sql[2048];
    struct db_statement statement;
    struct db_result *result;
    struct db_conn *conn;
    struct error error = {0};
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    statement = db_statement_of(str_from(sql));
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    if (db_acquire(rig_pool, deadline_ns, &conn, &error) != STATUS_OK ||
        db_query(conn, &statement, NULL, deadline_ns, &result, &error) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", sql, error.message);
        abort();
    }
    snprintf(text, sizeof text, "%s", db_result_rows(result) ? db_result_str(result, 0, 0).ptr : "");
    db_result_free(result);
    db_release(conn);
    return text;
}

void rig_expect(const char *sql, const char *value)
{
    const char *found = rig_sql("%s", sql);
    if (strcmp(found, value) != 0)
        fail_msg("%s: %s, not %s", sql, found, value);
}

struct call rig_call(const char *key)
{
    return (struct call){
        .tenant = STR("t"),
        .subject = STR("u"),
        .key = key ? str_from(key) : STR_NONE,
        .body = STR("{}"),
        .route = {.method = HTTP_POST, .path = "/things", .idempotency = HTTP_KEY_REJECT},
        .wanted = 201,
        .pool = rig_pool,
        .table = {.name = "shop.idempotency_keys", .ttl_ms = HOUR_MS},
        .timeout_ms = PATIENCE_MS,
    };
}

void rig_run(struct call *call)
{
    struct arena arena = ARENA(1024);
    struct db_statement statement;
    struct idempotency_outcome outcome;

    if (call->effect)
        statement = db_statement_of(str_from(call->effect));
    else
        statement = db_statement_of(STR("SELECT status, body, id FROM shop.buy($1, $2)"));
    struct http_request request = {.method = HTTP_POST,
                                   .route = &call->route,
                                   .body = call->body,
                                   .idempotency_key = call->key,
                                   .arena = &arena};
    const struct db_param *params = DB_PARAMS(db_int(call->wanted), db_text(STR("note")));
    idempotency_run(&(struct idempotency_call){.pool = call->pool,
                                               .table = &call->table,
                                               .request = &request,
                                               .tenant = call->tenant,
                                               .subject = call->subject,
                                               .statement = &statement,
                                               .params = call->effect ? NULL : params,
                                               .deadline_ns = clock_deadline_ms(call->timeout_ms)},
                    &outcome);
    call->error = outcome.error;
    call->status = outcome.error.status;
    call->answered = outcome.status;
    call->replayed = outcome.replayed;
    call->has_effect = outcome.has_effect;
    snprintf(call->text, sizeof call->text, "%.*s", STR_ARG(outcome.body));
    db_result_free(outcome.rows);
    arena_deinit(&arena);
}

struct call rig_again(const struct call *call)
{
    struct call again = *call;
    rig_run(&again);
    return again;
}

unsigned rig_counted(struct metric_family *family, const char *route)
{
    struct str label = str_from(route);
    metrics_register(family);
    return (unsigned)metric_value(metric_series_get(family, &label));
}
