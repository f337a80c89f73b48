/* The NATS driver: the conformance suite, and what is its own: names, gaps, advisories, plain subjects, a store that is
 * gone, members that die. */
#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../db/pg_fixture.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bus/bus_nats.h"
#include "conformance.h"
#include "nats_fixture.h"

static struct db_pool *pool; /* the tests' own */

static int64_t sql(const char *text)
{
    struct db_statement statement;
    struct db_result *result = NULL;
    struct db_conn *conn;
    int64_t value = -1;

    db_statement_init(&statement, text, 0, NULL);
    if (db_acquire(pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL) == STATUS_OK &&
        db_query(conn, &statement, NULL, clock_deadline_ms(PATIENCE_MS), &result, NULL) == STATUS_OK)
        value = db_result_rows(result) ? db_result_i64(result, 0, 0) : 0;
    db_result_free(result);
    db_release(conn);
    return value;
}

/* ---- the driver's table ---- */

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count)
{
    struct db_target where = pg_fixture_target();
    struct bus *bus;
    struct bus_nats_config config = {.loop = loop,
                                     .workers = workers,
                                     .servers = nats_fixture_url(),
                                     .client_name = "freshet-test",
                                     .target = &where,
                                     .topics = topics,
                                     .topic_count = topic_count,
                                     .ack_wait_ms = 1000};
    struct error error = {0};

    where.connections_max = 6;
    if (bus_nats_create(&config, &bus, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

static bool write_effect(struct db_conn *conn, int number, int64_t deadline_ns)
{
    struct db_statement statement;
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    struct db_param params[] = {{str_from(text)}};
    db_statement_init(&statement, "INSERT INTO public.effect VALUES ($1)", 1, (enum db_type[]){DB_INT});
    return db_exec(conn, &statement, params, deadline_ns, NULL, NULL) == STATUS_OK;
}

static size_t count_effects(int number)
{
    char text[96];

    snprintf(text, sizeof text, "SELECT count(*) FROM public.effect WHERE number = %d", number);
    return (size_t)sql(text);
}

static const struct conformance_driver nats = {
    .name = "nats",
    .create = create,
    .cut = nats_fixture_cut,
    .halt = nats_fixture_halt,
    .resume = nats_fixture_resume,
    .freeze = nats_fixture_freeze,
    .thaw = nats_fixture_thaw,
    .repeats = true,
    .write_effect = write_effect,
    .count_effects = count_effects,
};

int main(void)
{
    struct db_target where;
    struct error error = {0};

    if (getenv("T"))
        cmocka_set_test_filter(getenv("T"));
    log_set_level(getenv("NATS_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    nats_fixture_start("");
    pg_fixture_start();
    where = pg_fixture_target();
    if (db_pool_create(&where, &pool, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    sql("CREATE TABLE public.effect (number int NOT NULL CHECK (number >= 0))");
    sql("CREATE INDEX ON public.effect (number)");
    int failed = conformance_run(&nats);
    db_pool_destroy(pool);
    pg_fixture_stop();
    nats_fixture_stop();
    return failed ? 1 : 0;
}
