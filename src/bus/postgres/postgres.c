/* The PostgreSQL driver's life, and what wakes its readers: a publication in this process, at once; another process's notice; and
 * the poll, which covers lost notices. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define PUBLISH_CONNECTIONS 2
#define POLL_MS 10000

/* ---- wakes ---- */

void bus_postgres_wake_topic(struct postgres *postgres, struct bus_topic_state *topic, int partition,
                             struct str attached, const struct bus_message *message)
{
    atomic_fetch_add(&topic->wakes, 1);
    pthread_mutex_lock(&postgres->lock);
    for (size_t i = 0; i < postgres->reader_count; i++) {
        struct reader *reader = postgres->readers[i];
        const struct bus_subscription *spec = &reader->consumer.spec;
        bool is_wanted = !message || !spec->wakes || spec->mode == BUS_EVERY;
        if (reader->consumer.topic == topic && (is_wanted || spec->wakes(spec->context, message)))
            bus_postgres_reader_wake(reader, partition, attached, message);
    }
    pthread_mutex_unlock(&postgres->lock);
}

static void wake_reader(struct reader *reader)
{
    pthread_mutex_lock(&reader->postgres->lock);
    atomic_fetch_add(&reader->consumer.topic->wakes, 1);
    bus_postgres_reader_wake(reader, POSTGRES_ANYWHERE, STR_NONE, NULL);
    pthread_mutex_unlock(&reader->postgres->lock);
}

static void wake_all(void *context)
{
    struct postgres *postgres = context;

    for (size_t i = 0; i < postgres->reader_count; i++)
        wake_reader(postgres->readers[i]);
}

struct str bus_postgres_notice(const struct postgres *postgres, const struct bus_topic_state *topic,
                               int partition, char text[POSTGRES_NOTICE_BYTES])
{
    int len = snprintf(text, POSTGRES_NOTICE_BYTES, "%s:%s", postgres->instance, topic->spec.name);

    if (partition != POSTGRES_ANYWHERE)
        len += snprintf(text + len, POSTGRES_NOTICE_BYTES - (size_t)len, ":%d", partition);
    return str_of(text, (size_t)len);
}

void bus_postgres_wake(struct postgres *postgres, struct bus_topic_state *topic,
                       const struct bus_message *message)
{
    int partition = message ? (int)message->partition : POSTGRES_ANYWHERE;
    char text[POSTGRES_NOTICE_BYTES];

    bus_postgres_wake_topic(postgres, topic, partition, STR_NONE, message);
    if (postgres->notifier)
        db_notify(postgres->notifier, STR(POSTGRES_CHANNEL),
                  bus_postgres_notice(postgres, topic, partition, text));
}

static void postgres_wake(struct bus *bus, struct bus_topic_state *topic)
{
    bus_postgres_wake((struct postgres *)bus, topic, NULL);
}

static void on_notice(void *context, struct str channel, struct str payload)
{
    struct postgres *postgres = context;
    struct str instance, topic, partition = STR_NONE;
    int64_t number;

    (void)channel;
    if (!str_split(&payload, ':', &instance) || !str_split(&payload, ':', &topic)) {
        wake_all(postgres); /* the notifier dropped the texts of too many notices */
    } else if (!str_eq(instance, str_from(postgres->instance))) {
        (void)str_split(&payload, ':', &partition);
        struct bus_topic_state *state = bus_topic_find(&postgres->bus, topic);
        if (!state)
            return;
        /* every role that can connect can send a notice */
        bool is_known = str_to_i64(partition, &number) && number >= 0 && number < state->spec.partitions;
        bus_postgres_wake_topic(postgres, state, is_known ? (int)number : POSTGRES_ANYWHERE,
                                is_known ? payload : STR_NONE, NULL);
    }
}

/* $1 groups: those that have messages. $2 topics: the sums of their offsets. */
static const struct db_statement poll_sql =
    DB_STATEMENT("SELECT c.group_name, c.topic, 0::bigint"
                 " FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
                 " WHERE c.group_name = ANY ($1) AND c.position < p.next_offset GROUP BY 1, 2"
                 " UNION ALL SELECT '', topic, sum(next_offset)::bigint"
                 " FROM platform.bus_partition WHERE topic = ANY ($2) GROUP BY topic");

/* Twice the sum of all offsets, and one more while any group has messages to handle. */
static const char changes_sql[] =
    "2 * coalesce((SELECT sum(next_offset) FROM platform.bus_partition), 0)"
    " + EXISTS (SELECT FROM platform.bus_cursor c JOIN platform.bus_partition p USING (topic, partition)"
    "           WHERE c.position < p.next_offset)::int";

static void on_changes(void *context, int64_t value)
{
    struct postgres *postgres = context;

    if (value == DB_POLL_UNKNOWN || value % 2 == 1 || value != postgres->changes_seen)
        task_wake(postgres->poll);
    postgres->changes_seen = value;
}

/* One statement for all readers: only those that have something are woken, as all are while it fails. It runs again when something
 * changed, or after the interval while that is not known or a reader is not ready. */
static int64_t poll_readers(struct task *task, void *context)
{
    struct postgres *postgres = context;
    struct db_result *rows = NULL;
    struct buf groups = {0}, topics = {0};

    bool is_unsure = !db_poll_is_up(postgres->changes);

    (void)task;
    for (size_t i = 0; i < postgres->reader_count; i++) {
        const struct bus_consumer *consumer = &postgres->readers[i]->consumer;
        bool is_shared = consumer->spec.mode == BUS_SHARED;
        db_array_put(is_shared ? &groups : &topics,
                     is_shared ? str_from(consumer->spec.group) : consumer->topic->name);
    }
    enum status status =
        db_pool_query(postgres->pool, &poll_sql,
                      DB_PARAMS(db_text_array(db_array_end(&groups)), db_text_array(db_array_end(&topics))),
                      clock_deadline_ms(POLL_MS), &rows, NULL);
    for (size_t i = 0; i < postgres->reader_count; i++) {
        struct reader *reader = postgres->readers[i];
        const struct bus_consumer *consumer = &reader->consumer;
        bool is_shared = consumer->spec.mode == BUS_SHARED;
        bool wakes = status != STATUS_OK || !atomic_load(&reader->is_ready);
        for (size_t row = 0; status == STATUS_OK && row < db_result_rows(rows); row++) {
            if (!str_eq(db_result_str(rows, row, 0), is_shared ? str_from(consumer->spec.group) : STR("")) ||
                !str_eq(db_result_str(rows, row, 1), consumer->topic->name))
                continue;
            wakes |= is_shared || db_result_i64(rows, row, 2) != reader->polled_sum;
            reader->polled_sum = db_result_i64(rows, row, 2);
        }
        is_unsure |= status != STATUS_OK || !atomic_load(&reader->is_ready);
        if (wakes)
            wake_reader(reader);
    }
    db_result_free(rows);
    buf_deinit(&groups);
    buf_deinit(&topics);
    return is_unsure ? TASK_MS(postgres->config.poll_ms) : TASK_IDLE;
}

/* ---- life ---- */

static void postgres_start(struct bus *bus)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct db_listener_config listener = {.loop = postgres->config.loop,
                                          .target = &postgres->target,
                                          .channels = {POSTGRES_CHANNEL},
                                          .on_notice = on_notice,
                                          .on_listening = wake_all,
                                          .context = postgres};

    postgres->notifier =
        db_notifier_create(postgres->config.loop, &postgres->target, postgres->config.notice_window_us);
    if (postgres->reader_count > 0)
        postgres->listener = db_listener_create(&listener);
    for (size_t i = 0; i < postgres->reader_count; i++)
        for (unsigned j = 0; j < postgres->readers[i]->consumer.spec.parallel; j++)
            task_start(postgres->readers[i]->workers[j].task, TASK_IDLE);
    if (postgres->reader_count > 0) {
        postgres->changes = db_poll_create(&(struct db_poll_config){.loop = postgres->config.loop,
                                                                    .target = &postgres->target,
                                                                    .sql = changes_sql,
                                                                    .every_ms = postgres->config.poll_ms,
                                                                    .on_value = on_changes,
                                                                    .context = postgres});
        task_start(postgres->poll, TASK_NOW);
    }
    task_start(postgres->upkeep, TASK_NOW);
}

static void postgres_interrupt(struct bus *bus)
{
    struct postgres *postgres = (struct postgres *)bus;

    db_pool_interrupt(postgres->publish_pool);
    db_pool_interrupt(postgres->pool);
}

/* The grace is for handlers that have messages; other runs may be waiting for a database that is dead. */
static void postgres_stop(struct bus *bus, int64_t grace_ms)
{
    struct postgres *postgres = (struct postgres *)bus;
    int64_t deadline_ns = clock_deadline_ms(grace_ms);
    bool in_time = true;

    pthread_mutex_lock(&postgres->lock);
    postgres->is_stopping = true;
    while (postgres->handling > 0 && in_time)
        in_time = clock_cond_wait(&postgres->handled, &postgres->lock, deadline_ns);
    pthread_mutex_unlock(&postgres->lock);
    postgres_interrupt(bus);
    pthread_mutex_lock(&postgres->lock);
    while (postgres->publishing > 0)
        pthread_cond_wait(&postgres->handled, &postgres->lock);
    pthread_mutex_unlock(&postgres->lock);
    task_stop(postgres->upkeep, TASK_FOREVER);
    task_stop(postgres->poll, TASK_FOREVER);
    for (size_t i = 0; i < postgres->reader_count; i++)
        for (unsigned j = 0; j < postgres->readers[i]->consumer.spec.parallel; j++)
            task_stop(postgres->readers[i]->workers[j].task, TASK_FOREVER);
}

static void postgres_destroy(struct bus *bus)
{
    struct postgres *postgres = (struct postgres *)bus;

    task_destroy(postgres->upkeep);
    task_destroy(postgres->poll);
    db_listener_destroy(postgres->listener);
    db_poll_destroy(postgres->changes);
    db_notifier_destroy(postgres->notifier);
    for (size_t i = 0; i < postgres->reader_count; i++)
        bus_postgres_reader_free(postgres->readers[i]);
    free(postgres->readers);
    db_pool_destroy(postgres->pool);
    db_pool_destroy(postgres->publish_pool);
    arena_deinit(&postgres->arena);
    pthread_cond_destroy(&postgres->handled);
    pthread_mutex_destroy(&postgres->lock);
    bus_deinit(&postgres->bus);
    free(postgres);
}

static const struct bus_driver driver = {
    .name = "PostgreSQL",
    .engine = "postgres",
    .can_relax = true,
    .publish = bus_postgres_publish,
    .wake = postgres_wake,
    .subscribe = bus_postgres_reader_create,
    .start = postgres_start,
    .stop = postgres_stop,
    .interrupt = postgres_interrupt,
    .destroy = postgres_destroy,
};

struct postgres *bus_postgres_of(struct bus *bus, struct error *error)
{
    if (bus->driver == &driver)
        return (struct postgres *)bus;
    error_set(error, STATUS_NOT_IMPLEMENTED, "only the bus on PostgreSQL shares transactions");
    return NULL;
}

bool bus_shares_commits(const struct bus *bus, struct str topic)
{
    const struct bus_topic_state *found = bus_topic_find(bus, topic);

    return found && bus->driver == &driver && atomic_load(&found->known);
}

bool bus_trusts_notices(const struct bus *bus)
{
    return bus && bus->driver == &driver && atomic_load(&((const struct postgres *)bus)->is_trusted);
}

/* ---- creation ---- */

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

static struct task *create_task(struct postgres *postgres, const char *name, task_run_fn *run)
{
    return task_create(&(struct task_config){.name = name,
                                             .loop = postgres->config.loop,
                                             .pool = postgres->config.workers,
                                             .run = run,
                                             .context = postgres});
}

enum status bus_postgres_create(const struct bus_postgres_config *config, struct bus **out,
                                struct error *error)
{
    struct postgres *postgres = memory_zalloc(sizeof *postgres);
    struct bus_postgres_config *copy = &postgres->config;

    *out = NULL;
    *copy = *config;
    copy->target = NULL;
    copy->topics = NULL;
    copy->poll_ms = or_default(config->poll_ms, 1000);
    copy->notice_window_us = or_default(config->notice_window_us, 1000);
    copy->handler_ms = or_default(config->handler_ms, 30000);
    copy->maintenance_ms = or_default(config->maintenance_ms, 5000);
    copy->retention_batch = config->retention_batch ? config->retention_batch : 1000;
    postgres->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : 4u << 20;
    postgres->arena = ARENA(1024);
    /* The name differs from that of the caller's pool, so that metrics do. */
    postgres->target = db_target_copy(config->target, "bus", &postgres->arena);
    pthread_mutex_init(&postgres->lock, NULL);
    pthread_cond_init(&postgres->handled, NULL);
    STAILQ_INIT(&postgres->publish_queue);
    snprintf(postgres->instance, sizeof postgres->instance, "%016llx", (unsigned long long)random_u64());
    enum status status =
        bus_init(&postgres->bus, &driver, config->topics, config->topic_count, config->keep_dead_ms, error);
    struct db_target target = postgres->target;
    target.name = arena_printf(&postgres->arena, "%s-publish", target.name).ptr;
    target.connections_max = PUBLISH_CONNECTIONS;
    if (status == STATUS_OK)
        status = db_pool_create(&target, &postgres->publish_pool, error);
    unsigned total = config->target->connections_max;
    target.name = postgres->target.name;
    target.connections_max = total > PUBLISH_CONNECTIONS ? total - PUBLISH_CONNECTIONS : 1;
    if (status == STATUS_OK)
        status = db_pool_create(&target, &postgres->pool, error);
    /* Not the target's name: buses of one database measure the same groups. */
    if (status == STATUS_OK)
        postgres->bus.database = db_pool_address(postgres->pool);
    if (status != STATUS_OK) {
        postgres_destroy(&postgres->bus);
        return status;
    }
    postgres->upkeep = create_task(postgres, "bus-upkeep", bus_postgres_upkeep);
    postgres->poll = create_task(postgres, "bus-poll", poll_readers);
    *out = &postgres->bus;
    return STATUS_OK;
}
