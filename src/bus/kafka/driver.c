/* The Kafka driver: create, start, stop, destroy. A stop waits for handlers as long as it may, and hardly for brokers. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/kafka/inside.h"

#define MESSAGE_BYTES ((1u << 20) - KAFKA_RECORD_BYTES)

#define LOCK_SESSIONS 64 /* one for each reader; opened when needed */

enum { HANDLER_MS = 30000, SESSION_MS = 10000, RETRY_MIN_MS = 100, RETRY_MAX_MS = 1000 };

static void kafka_start(struct bus *bus)
{
    struct kafka *kafka = (struct kafka *)bus;

    kafka->is_started = pthread_create(&kafka->producer_thread, NULL, bus_kafka_producer_run, kafka) == 0;
    if (!kafka->is_started) {
        log_error("kafka_start_failed", LOG_CSTR("error", "no thread"));
        return;
    }
    kafka->upkeep_thread = worker_pool_create("kafka", 1, 1);
    struct task *upkeep = task_create(&(struct task_config){.name = "kafka-upkeep",
                                                            .loop = kafka->config.loop,
                                                            .pool = kafka->upkeep_thread,
                                                            .run = bus_kafka_upkeep_step,
                                                            .context = kafka,
                                                            .retry_min_ms = RETRY_MIN_MS,
                                                            .retry_max_ms = RETRY_MAX_MS});
    pthread_mutex_lock(&kafka->lock);
    kafka->upkeep = upkeep;
    pthread_mutex_unlock(&kafka->lock);
    task_start(upkeep, TASK_NOW);
    for (size_t i = 0; i < kafka->reader_count; i++)
        bus_kafka_reader_start(kafka->readers[i]);
}

/* ---- stop ---- */

static void kafka_interrupt(struct bus *bus)
{
    struct kafka *kafka = (struct kafka *)bus;

    atomic_store(&kafka->is_interrupted, true);
    if (kafka->pool)
        db_pool_interrupt(kafka->pool);
    if (kafka->lock_pool)
        db_pool_interrupt(kafka->lock_pool);
    pthread_mutex_lock(&kafka->lock);
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

static void set_phase(struct kafka *kafka, enum kafka_phase phase)
{
    pthread_mutex_lock(&kafka->lock);
    atomic_store(&kafka->phase, phase);
    pthread_cond_broadcast(&kafka->changed);
    pthread_mutex_unlock(&kafka->lock);
}

static void await_handlers(struct kafka *kafka, int64_t deadline_ns)
{
    for (size_t i = 0; i < kafka->reader_count; i++) {
        struct kafka_reader *reader = kafka->readers[i];
        pthread_mutex_lock(&reader->lock);
        while (reader->running > 0 && clock_cond_wait(&reader->idle, &reader->lock, deadline_ns))
            continue;
        pthread_mutex_unlock(&reader->lock);
    }
}

static void await_publishers(struct kafka *kafka, int64_t deadline_ns)
{
    pthread_mutex_lock(&kafka->lock);
    while (kafka->publishing > 0 && clock_cond_wait(&kafka->changed, &kafka->lock, deadline_ns))
        continue;
    pthread_mutex_unlock(&kafka->lock);
}

/* Readers commit the positions of handlers that ended; waiting publishers have the same grace. */
static void kafka_stop(struct bus *bus, int64_t grace_ms)
{
    struct kafka *kafka = (struct kafka *)bus;
    int64_t deadline_ns = clock_deadline_ms(grace_ms);

    set_phase(kafka, KAFKA_STOPPING);
    await_handlers(kafka, deadline_ns);
    await_publishers(kafka, deadline_ns);
    if (kafka->pool)
        db_pool_interrupt(kafka->pool);
    await_handlers(kafka, CLOCK_NEVER);
    if (kafka->is_started) {
        set_phase(kafka, KAFKA_CLOSING);
        if (kafka->lock_pool)
            db_pool_interrupt(kafka->lock_pool); /* a reader may wait for PostgreSQL */
        for (size_t i = 0; i < kafka->reader_count; i++) {
            struct kafka_reader *reader = kafka->readers[i];
            pthread_mutex_lock(&reader->lock);
            bus_kafka_reader_wake(reader);
            pthread_mutex_unlock(&reader->lock);
        }
        for (size_t i = 0; i < kafka->reader_count; i++)
            if (kafka->readers[i]->is_started)
                pthread_join(kafka->readers[i]->thread, NULL);
        task_stop(kafka->upkeep, TASK_FOREVER);
        pthread_join(kafka->producer_thread, NULL);
        kafka->is_started = false;
    }
    await_publishers(kafka, CLOCK_NEVER);
}

static void kafka_destroy(struct bus *bus)
{
    struct kafka *kafka = (struct kafka *)bus;

    task_destroy(kafka->upkeep);
    if (kafka->upkeep_thread)
        worker_pool_destroy(kafka->upkeep_thread);
    for (size_t i = 0; i < kafka->reader_count; i++)
        bus_kafka_reader_destroy(kafka->readers[i]);
    free(kafka->readers);
    db_pool_destroy(kafka->pool);
    db_pool_destroy(kafka->lock_pool);
    if (kafka->conf)
        rd_kafka_conf_destroy(kafka->conf);
    free((char *)kafka->config.brokers);
    free((char *)kafka->config.security.username);
    free((char *)kafka->config.security.password_file);
    free(kafka->topics);
    pthread_cond_destroy(&kafka->changed);
    pthread_mutex_destroy(&kafka->lock);
    bus_deinit(&kafka->bus);
    free(kafka);
}

static const struct bus_driver driver = {
    .engine = "kafka",
    .foreign_topics = true,
    .lacks_every = true,
    .publish = bus_kafka_publish,
    .subscribe = bus_kafka_reader_create,
    .start = kafka_start,
    .stop = kafka_stop,
    .interrupt = kafka_interrupt,
    .destroy = kafka_destroy,
};

/* ---- create ---- */

enum status bus_kafka_create(const struct bus_kafka_config *config, struct bus **out, struct error *error)
{
    struct kafka *kafka = memory_zalloc(sizeof *kafka);

    *out = NULL;
    pthread_mutex_init(&kafka->lock, NULL);
    pthread_cond_init(&kafka->changed, NULL);
    kafka->config = (struct bus_kafka_config){
        /* librdkafka has its own copies of the other texts */
        .loop = config->loop,
        .workers = config->workers,
        .brokers = str_dup(str_from(config->brokers)),
        .security.username = config->security.username ? str_dup(str_from(config->security.username)) : NULL,
        .security.password_file =
            config->security.password_file ? str_dup(str_from(config->security.password_file)) : NULL,
        .replication = config->replication,
        .handler_ms = config->handler_ms ? config->handler_ms : HANDLER_MS,
        .session_ms = config->session_ms ? config->session_ms : SESSION_MS,
    };
    kafka->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : MESSAGE_BYTES;
    enum status status =
        bus_init(&kafka->bus, &driver, config->topics, config->topic_count, config->keep_dead_ms, error);
    if (status == STATUS_OK)
        status = bus_kafka_conf_create(config, &kafka->conf, error);
    if (status == STATUS_OK)
        status = bus_delivery_pool(config->target, "kafka", &kafka->pool, error);
    if (status == STATUS_OK && config->target && config->by_locks) {
        /* of its own, so that no other user gets a connection with locks */
        struct db_target target = *config->target;
        target.server = NULL;
        target.connections_max = LOCK_SESSIONS;
        status = bus_delivery_pool(&target, "kafka-locks", &kafka->lock_pool, error);
    }
    if (status != STATUS_OK) {
        kafka_destroy(&kafka->bus);
        return status;
    }
    kafka->topics = memory_zalloc(kafka->bus.topic_count * sizeof kafka->topics[0]);
    *out = &kafka->bus;
    return STATUS_OK;
}
