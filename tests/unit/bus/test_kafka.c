/* The Kafka driver: the conformance suite on a real broker (kafka_fixture.h), and what is its own: topics of other
 * programs, partitions that differ, gaps, a producer that is broken, brokers that are not there, kcat. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../db/pg_fixture.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bus/bus_kafka.h"
#include "bus/kafka_inside.h"
#include "conformance.h"
#include "kafka_fixture.h"

static struct db_pool *pool; /* the tests' own */

/* Runs SQL without parameters; the first field as a number. -1: it failed. Any thread. */
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

static void make_topics(const struct bus_topic *topics, size_t count)
{
    char dead[80];

    for (size_t i = 0; i < count; i++) {
        kafka_fixture_make_topic(topics[i].name, topics[i].partitions);
        snprintf(dead, sizeof dead, "%s.dlq", topics[i].name);
        kafka_fixture_make_topic(dead, topics[i].partitions ? topics[i].partitions : 1);
    }
}

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count)
{
    struct db_target where = pg_fixture_target();
    struct bus *bus;
    struct bus_kafka_config config = {.loop = loop,
                                      .workers = workers,
                                      .brokers = kafka_fixture_brokers(),
                                      .target = &where,
                                      .topics = topics,
                                      .topic_count = topic_count,
                                      .session_ms = 2000,
                                      .message_bytes_max = 4u << 20};
    struct error error = {0};

    make_topics(topics, topic_count);
    if (bus_kafka_create(&config, &bus, &error) != STATUS_OK)
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

static struct conformance_driver kafka = {
    .name = "kafka",
    .create = create,
    .cut = kafka_fixture_cut,
    .halt = kafka_fixture_halt,
    .resume = kafka_fixture_resume,
    .restarts = 1,
    .freeze = kafka_fixture_freeze,
    .thaw = kafka_fixture_thaw,
    .repeats = true,
    .write_effect = write_effect,
    .count_effects = count_effects,
};

int main(void)
{
    struct db_target where;
    struct error error = {0};

    log_set_level(getenv("KAFKA_LOG") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    pg_fixture_start();
    kafka_fixture_start();
    where = pg_fixture_target();
    if (db_pool_create(&where, &pool, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    sql("CREATE TABLE public.effect (number int NOT NULL CHECK (number >= 0))");
    sql("CREATE INDEX ON public.effect (number)");
    if (!kafka_fixture_is_real())
        kafka.halt = kafka.resume = kafka.freeze = kafka.thaw = NULL;
    int failed = conformance_run(&kafka);
    db_pool_destroy(pool);
    kafka_fixture_stop();
    pg_fixture_stop();
    return failed ? 1 : 0;
}
