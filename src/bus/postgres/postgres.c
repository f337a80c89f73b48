/* The PostgreSQL driver's life, and what wakes its readers: a publication in this process, at once; another process's notice; and
 * the poll, which covers lost notices. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define PUBLISH_CONNECTIONS 2

/* ---- wakes ---- */

void bus_postgres_wake_topic(struct postgres *postgres, struct str topic, int partition, struct str attached,
                             const struct bus_message *message)
{
    struct bus_topic_state *state = bus_topic_find(&postgres->bus, topic);

    if (state)
        atomic_fetch_add(&state->wakes, 1);
    pthread_mutex_lock(&postgres->lock);
    for (size_t i = 0; i < postgres->reader_count; i++) {
        struct reader *reader = postgres->readers[i];
        const struct bus_subscription *spec = &reader->consumer.spec;
        bool is_wanted = !message || !spec->wakes || spec->mode == BUS_EVERY;
        if (reader->consumer.topic == state && (is_wanted || spec->wakes(spec->context, message)))
            bus_postgres_reader_wake_with(reader, partition, attached, message);
    }
    pthread_mutex_unlock(&postgres->lock);
}

static void wake_reader(struct postgres *postgres, size_t index)
{
    pthread_mutex_lock(&postgres->lock);
    atomic_fetch_add(&postgres->readers[index]->consumer.topic->wakes, 1);
    bus_postgres_reader_wake(postgres->readers[index], POSTGRES_ANYWHERE);
    pthread_mutex_unlock(&postgres->lock);
}

static void wake_all(struct postgres *postgres)
{
    for (size_t i = 0; i < postgres->reader_count; i++)
        wake_reader(postgres, i);
}

struct str bus_postgres_notice(const struct postgres *postgres, const struct bus_topic_state *topic,
                               int partition, char text[POSTGRES_NOTICE_BYTES])
{
    int len = snprintf(text, POSTGRES_NOTICE_BYTES, "%s:%s", postgres->instance, topic->spec.name);

    if (partition != POSTGRES_ANYWHERE)
        len += snprintf(text + len, POSTGRES_NOTICE_BYTES - (size_t)len, ":%d", partition);
    return str_of(text, (size_t)len);
}

void bus_postgres_wake(struct postgres *postgres, const struct bus_topic_state *topic,
                       const struct bus_message *message)
{
    int partition = message ? (int)message->partition : POSTGRES_ANYWHERE;
    char text[POSTGRES_NOTICE_BYTES];

    bus_postgres_wake_topic(postgres, topic->name, partition, STR_NONE, message);
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
        bool is_known = str_to_i64(partition, &number) && number >= 0 && number < BUS_PARTITIONS_MAX;
        bus_postgres_wake_topic(postgres, topic, is_known ? (int)number : POSTGRES_ANYWHERE,
                                is_known ? payload : STR_NONE, NULL);
    }
}

static void on_listening(void *context)
{
    wake_all(context);
}

/* On the loop: wakes one reader after the other within the interval, since together they would need a connection each. A timer, not
 * a task: it does nothing but wake tasks. */
static void on_poll(struct loop_timer *timer)
{
    struct postgres *postgres = CONTAINER_OF(timer, struct postgres, poll);
    size_t count = postgres->reader_count;

    wake_reader(postgres, postgres->polled++ % count);
    loop_timer_start(postgres->config.loop, timer,
                     clock_mono_ns() + postgres->config.poll_ms * CLOCK_NS_PER_MS / (int64_t)count, on_poll);
}

static int64_t keep_up(struct task *task, void *context)
{
    struct postgres *postgres = context;

    (void)task;
    bus_postgres_upkeep(postgres);
    return TASK_MS(postgres->config.maintenance_ms);
}

/* ---- life ---- */

static void postgres_subscribe(struct bus *bus, const struct bus_consumer *consumer)
{
    bus_postgres_reader_create((struct postgres *)bus, consumer);
}

static void postgres_start(struct bus *bus)
{
    static const char *const channels[] = {POSTGRES_CHANNEL, NULL};
    struct postgres *postgres = (struct postgres *)bus;
    struct db_listener_config listener = {.loop = postgres->config.loop,
                                          .target = &postgres->target,
                                          .channels = channels,
                                          .on_notice = on_notice,
                                          .on_listening = on_listening,
                                          .context = postgres};

    postgres->notifier =
        db_notifier_create(postgres->config.loop, &postgres->target, postgres->config.notice_window_us);
    if (postgres->reader_count > 0)
        postgres->listener = db_listener_create(&listener);
    for (size_t i = 0; i < postgres->reader_count; i++)
        for (unsigned j = 0; j < postgres->readers[i]->consumer.spec.parallel; j++)
            task_start(postgres->readers[i]->workers[j].task, TASK_IDLE);
    if (postgres->reader_count > 0)
        loop_timer_start(postgres->config.loop, &postgres->poll, clock_mono_ns(), on_poll);
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

    bus_postgres_publisher_stop(&postgres->publisher);
    pthread_mutex_lock(&postgres->lock);
    postgres->is_stopping = true;
    while (postgres->handling > 0 && in_time)
        in_time = clock_cond_wait(&postgres->handled, &postgres->lock, deadline_ns);
    pthread_mutex_unlock(&postgres->lock);
    postgres_interrupt(bus);
    bus_postgres_publisher_wait_empty(&postgres->publisher);
    task_stop(postgres->upkeep, TASK_FOREVER);
    for (size_t i = 0; i < postgres->reader_count; i++)
        for (unsigned j = 0; j < postgres->readers[i]->consumer.spec.parallel; j++)
            task_stop(postgres->readers[i]->workers[j].task, TASK_FOREVER);
}

static void postgres_destroy(struct bus *bus)
{
    struct postgres *postgres = (struct postgres *)bus;

    task_destroy(postgres->upkeep);
    db_listener_destroy(postgres->listener);
    if (postgres->notifier) { /* it was started */
        loop_timer_stop(postgres->config.loop, &postgres->poll);
        db_notifier_destroy(postgres->notifier);
    }
    for (size_t i = 0; i < postgres->reader_count; i++)
        bus_postgres_reader_free(postgres->readers[i]);
    free(postgres->readers);
    db_pool_destroy(postgres->pool);
    db_pool_destroy(postgres->publish_pool);
    bus_postgres_publisher_deinit(&postgres->publisher);
    free((char *)postgres->target.url.ptr);
    free((char *)postgres->target.username.ptr);
    free((char *)postgres->target.password.ptr);
    free((char *)postgres->target.schema.ptr);
    free((char *)postgres->target.name);
    pthread_cond_destroy(&postgres->handled);
    pthread_mutex_destroy(&postgres->lock);
    bus_deinit(&postgres->bus);
    free(postgres);
}

static bool postgres_is_private(const struct bus *bus)
{
    return atomic_load(&((const struct postgres *)bus)->is_private);
}

static const struct bus_driver driver = {
    .name = "PostgreSQL",
    .can_relax = true,
    .is_private = postgres_is_private,
    .publish = bus_postgres_publish,
    .publish_in_tx = bus_postgres_publish_in_tx,
    .publish_and_commit = bus_postgres_publish_and_commit,
    .direct_ask = bus_postgres_direct_ask,
    .direct_commit = bus_postgres_direct_commit,
    .wake = postgres_wake,
    .subscribe = postgres_subscribe,
    .start = postgres_start,
    .stop = postgres_stop,
    .interrupt = postgres_interrupt,
    .destroy = postgres_destroy,
};

/* ---- creation ---- */

static struct str copy_text(struct str text)
{
    return text.ptr ? str_of(str_dup(text), text.len) : STR_NONE;
}

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

static void take_config(struct postgres *postgres, const struct bus_postgres_config *config)
{
    struct bus_postgres_config *copy = &postgres->config;
    char name[64];

    *copy = *config;
    copy->target = NULL;
    copy->topics = NULL;
    copy->poll_ms = or_default(config->poll_ms, 1000);
    copy->notice_window_us = or_default(config->notice_window_us, 1000);
    copy->handler_ms = or_default(config->handler_ms, 30000);
    copy->maintenance_ms = or_default(config->maintenance_ms, 5000);
    copy->retention_batch = config->retention_batch ? config->retention_batch : 1000;
    postgres->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : 4u << 20;
    postgres->target = *config->target;
    snprintf(name, sizeof name, "%s-bus", config->target->name);
    postgres->target.name =
        str_dup(str_from(name)); /* so that its metrics differ from those of the caller's pool */
    postgres->target.url = copy_text(config->target->url);
    postgres->target.username = copy_text(config->target->username);
    postgres->target.password = copy_text(config->target->password);
    postgres->target.schema = copy_text(config->target->schema);
}

static enum status create_pools(struct postgres *postgres, struct error *error)
{
    struct db_target target = postgres->target;
    unsigned total = target.connections_max;
    char name[64];

    snprintf(name, sizeof name, "%s-publish", target.name);
    target.name = name;
    target.connections_max = PUBLISH_CONNECTIONS;
    enum status status = db_pool_create(&target, &postgres->publish_pool, error);
    target.name = postgres->target.name;
    target.connections_max = total > PUBLISH_CONNECTIONS ? total - PUBLISH_CONNECTIONS : 1;
    if (status == STATUS_OK)
        status = db_pool_create(&target, &postgres->pool, error);
    return status;
}

static void init_sync(struct postgres *postgres)
{
    pthread_mutex_init(&postgres->lock, NULL);
    pthread_cond_init(&postgres->handled, NULL);
    bus_postgres_publisher_init(&postgres->publisher);
}

enum status bus_postgres_create(const struct bus_postgres_config *config, struct bus **out,
                                struct error *error)
{
    struct postgres *postgres = memory_zalloc(sizeof *postgres);
    int64_t keep_dead_ms = or_default(config->keep_dead_ms, INT64_C(30) * 24 * 3600 * 1000);

    *out = NULL;
    take_config(postgres, config);
    init_sync(postgres);
    snprintf(postgres->instance, sizeof postgres->instance, "%016llx", (unsigned long long)random_u64());
    enum status status =
        bus_init(&postgres->bus, &driver, config->topics, config->topic_count, keep_dead_ms, error);
    if (status == STATUS_OK)
        status = create_pools(postgres, error);
    if (status == STATUS_OK) {
        postgres->upkeep = task_create(&(struct task_config){.name = "bus-upkeep",
                                                             .loop = postgres->config.loop,
                                                             .pool = postgres->config.workers,
                                                             .run = keep_up,
                                                             .context = postgres});
        *out = &postgres->bus;
    } else {
        postgres_destroy(&postgres->bus);
    }
    return status;
}
