#include "postgres_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "sql_rig.h"

struct postgres_next postgres_next = {.poll_ms = 200, .maintenance_ms = 100};

void postgres_migrate(void)
{
    struct error error = {0};

    if (db_migrate(sql_pool, "platform", platform_migrations, clock_deadline_ms(PATIENCE_MS), NULL, &error) !=
        STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

struct bus *postgres_create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                            size_t topic_count)
{
    struct db_target where = sql_target(6);
    struct bus *bus;
    struct bus_postgres_config config = {.loop = loop,
                                         .workers = workers,
                                         .target = &where,
                                         .topics = topics,
                                         .topic_count = topic_count,
                                         .poll_ms = postgres_next.poll_ms,
                                         .handler_ms = postgres_next.handler_ms,
                                         .maintenance_ms = postgres_next.maintenance_ms};
    struct error error = {0};

    if (bus_postgres_create(&config, &bus, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

void postgres_open(struct process *process, const struct bus_topic *topics, size_t count)
{
    process->loop = loop_create(0, 0);
    process->workers = worker_pool_create("bus", 4, 100);
    process->bus = postgres_create(process->loop, process->workers, topics, count);
}

void postgres_cut(void)
{
    sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
}

enum status postgres_publish_attached(struct process *process, const char *topic, const char *key, int number)
{
    char text[16];
    struct db_conn *conn;
    const struct bus_header header = {STR("h"), STR("v:1,")};
    struct bus_message message = {
        .topic = str_from(topic), .key = str_from(key), .headers = &header, .header_count = 1};

    snprintf(text, sizeof text, "%d", number);
    message.payload = str_from(text);
    enum status status = db_acquire(sql_pool, clock_deadline_ms(PATIENCE_MS), &conn, NULL);
    if (status == STATUS_OK) {
        db_pipeline_begin(conn);
        db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
        db_pipeline_leave(conn, NULL, 0);
        status = bus_publish_and_commit(process->bus, conn, &message, 1, true, clock_deadline_ms(PATIENCE_MS),
                                        NULL);
    }
    db_release(conn);
    return status;
}
