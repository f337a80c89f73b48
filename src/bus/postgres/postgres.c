/* The PostgreSQL driver's life: who is woken, by what, and how it ends.
 *
 * A reader is woken by a publication in this process (at once), by another process's notice, by the poll
 * timer (the net under both), and when a backoff is over. Only the timer lives on the loop; the jobs are in
 * jobs.c. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define PUBLISH_CONNECTIONS 2

/* ---- wakes ---- */

static bool concerns(const struct reader *reader, struct str topic, const struct bus_message *message)
{
    const struct bus_subscription *spec = &reader->consumer.spec;
    return str_eq(reader->consumer.topic->name, topic) &&
           (!message || !spec->wakes || spec->mode == BUS_EVERY || spec->wakes(spec->context, message));
}

void bus_postgres_wake_topic(struct postgres *postgres, struct str topic, int partition, struct str preview,
                             const struct bus_message *message)
{
    struct bus_topic_state *state = bus_topic_find(&postgres->bus, topic);

    if (state)
        atomic_fetch_add(&state->wakes, 1);
    pthread_mutex_lock(&postgres->lock);
    for (size_t i = 0; i < postgres->reader_count; i++) {
        struct reader *reader = postgres->readers[i];
        if (!concerns(reader, topic, message))
            continue;
        if (reader->consumer.spec.mode == BUS_EVERY)
            bus_postgres_jobs_hand(reader, partition, message);
        else if (preview.len && reader->consumer.spec.previews)
            bus_postgres_jobs_preview(reader, partition, preview);
        bus_postgres_jobs_wake(reader, partition);
    }
    pthread_mutex_unlock(&postgres->lock);
}

static void wake_all(struct postgres *postgres)
{
    pthread_mutex_lock(&postgres->lock);
    for (size_t i = 0; i < postgres->reader_count; i++) {
        atomic_fetch_add(&postgres->readers[i]->consumer.topic->wakes, 1);
        bus_postgres_jobs_wake(postgres->readers[i], POSTGRES_ANYWHERE);
    }
    pthread_mutex_unlock(&postgres->lock);
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

static int partition_of(struct str text)
{
    int64_t number;

    return str_to_i64(text, &number) && number >= 0 && number < BUS_PARTITIONS_MAX ? (int)number
                                                                                   : POSTGRES_ANYWHERE;
}

static void on_notice(void *context, struct str channel, struct str payload)
{
    struct postgres *postgres = context;
    struct str instance, topic, partition = STR_NONE;

    (void)channel;
    if (!str_split(&payload, ':', &instance) || !str_split(&payload, ':', &topic))
        wake_all(postgres); /* too many waited, and their texts were dropped */
    else if (!str_eq(instance, str_from(postgres->instance))) {
        (void)str_split(&payload, ':', &partition);
        int place = partition_of(partition);
        bus_postgres_wake_topic(postgres, topic, place, place == POSTGRES_ANYWHERE ? STR_NONE : payload,
                                NULL);
    }
}

static void on_listening(void *context)
{
    wake_all(context);
}

/* ---- the timer, on the loop ---- */

static void on_timer(struct loop_timer *timer);

static void arm(struct postgres *postgres)
{
    int64_t at_ns = postgres->poll_at_ns;

    pthread_mutex_lock(&postgres->lock);
    for (size_t i = 0; i < postgres->reader_count; i++)
        if (postgres->readers[i]->due_ns < at_ns)
            at_ns = postgres->readers[i]->due_ns;
    bool stopping = postgres->stopping;
    pthread_mutex_unlock(&postgres->lock);
    if (!stopping)
        loop_timer_start(postgres->config.loop, &postgres->timer, at_ns, on_timer);
}

static void wake_due(struct postgres *postgres, int64_t now_ns)
{
    pthread_mutex_lock(&postgres->lock);
    for (size_t i = 0; i < postgres->reader_count; i++)
        if (postgres->readers[i]->due_ns <= now_ns)
            bus_postgres_jobs_wake(postgres->readers[i], POSTGRES_ANYWHERE);
    if (now_ns >= postgres->upkeep_at_ns) {
        bus_postgres_jobs_upkeep(postgres);
        postgres->upkeep_at_ns = now_ns + postgres->config.maintenance_ms * CLOCK_NS_PER_MS;
    }
    pthread_mutex_unlock(&postgres->lock);
}

static void on_timer(struct loop_timer *timer)
{
    struct postgres *postgres = (struct postgres *)((char *)timer - offsetof(struct postgres, timer));
    int64_t now_ns = clock_mono_ns();

    if (now_ns >= postgres->poll_at_ns) {
        wake_all(postgres);
        postgres->poll_at_ns = now_ns + postgres->config.poll_ms * CLOCK_NS_PER_MS;
    }
    wake_due(postgres, now_ns);
    arm(postgres);
}

static void free_postgres(void *memory);

static void on_rearm(struct loop *loop, struct loop_message *message)
{
    struct postgres *postgres = (struct postgres *)((char *)message - offsetof(struct postgres, rearm));

    pthread_mutex_lock(&postgres->lock);
    postgres->rearm_posted = false;
    bool destroyed = postgres->destroyed;
    pthread_mutex_unlock(&postgres->lock);
    if (destroyed)
        loop_free_later(loop, postgres, free_postgres);
    else
        arm(postgres);
}

/* ---- life ---- */

static void postgres_subscribe(struct bus *bus, const struct bus_consumer *consumer)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct reader *reader = memory_zalloc(sizeof *reader);

    reader->consumer = *consumer;
    reader->postgres = postgres;
    reader->due_ns = CLOCK_NEVER;
    reader->jobs = memory_zalloc(consumer->spec.parallel * sizeof reader->jobs[0]);
    for (unsigned i = 0; i < consumer->spec.parallel; i++) {
        bus_postgres_jobs_init(&reader->jobs[i], reader);
    }
    postgres->readers =
        memory_realloc_array(postgres->readers, postgres->reader_count + 1, sizeof postgres->readers[0]);
    postgres->readers[postgres->reader_count++] = reader;
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

    pthread_mutex_lock(&postgres->lock);
    postgres->started = true;
    pthread_mutex_unlock(&postgres->lock);
    postgres->notifier =
        db_notifier_create(postgres->config.loop, &postgres->target, postgres->config.notice_window_us);
    if (postgres->reader_count > 0)
        postgres->listener = db_listener_create(&listener);
    postgres->poll_at_ns = clock_mono_ns();
    postgres->upkeep_at_ns = postgres->poll_at_ns;
    arm(postgres);
}

/* Jobs without messages in hand need no time: they may be waiting for a database that is dead. */
static void wait_handled(struct postgres *postgres, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / CLOCK_NS_PER_S, .tv_nsec = deadline_ns % CLOCK_NS_PER_S};
    int rc = 0;

    while (postgres->handling > 0 && rc == 0)
        rc = pthread_cond_timedwait(&postgres->idle, &postgres->lock, &until);
}

static void postgres_interrupt(struct bus *bus)
{
    struct postgres *postgres = (struct postgres *)bus;

    db_pool_interrupt(postgres->publish_pool);
    db_pool_interrupt(postgres->pool);
}

static void postgres_stop(struct bus *bus, int64_t grace_ms)
{
    struct postgres *postgres = (struct postgres *)bus;

    bus_postgres_publisher_stop(&postgres->publisher);
    pthread_mutex_lock(&postgres->lock);
    postgres->stopping = true;
    wait_handled(postgres, clock_deadline_ms(grace_ms));
    pthread_mutex_unlock(&postgres->lock);
    postgres_interrupt(bus);
    bus_postgres_publisher_wait_empty(&postgres->publisher);
    pthread_mutex_lock(&postgres->lock);
    while (postgres->busy > 0)
        pthread_cond_wait(&postgres->idle, &postgres->lock);
    pthread_mutex_unlock(&postgres->lock);
}

static void free_reader(struct reader *reader)
{
    bus_consumer_deinit(&reader->consumer);
    free(reader->jobs);
    free(reader->positions);
    free(reader->retry_ns);
    free(reader->attempts);
    free(reader->created_us);
    free(reader->suspect_until);
    free(reader->marked_until);
    bus_postgres_preview_free(reader->preview);
    free(reader);
}

static void free_postgres(void *memory)
{
    struct postgres *postgres = memory;

    for (size_t i = 0; i < postgres->reader_count; i++)
        free_reader(postgres->readers[i]);
    free(postgres->readers);
    db_pool_destroy(postgres->pool);
    db_pool_destroy(postgres->publish_pool);
    bus_postgres_publisher_deinit(&postgres->publisher);
    free((char *)postgres->target.url.ptr);
    free((char *)postgres->target.username.ptr);
    free((char *)postgres->target.password.ptr);
    free((char *)postgres->target.schema.ptr);
    free((char *)postgres->target.name);
    pthread_cond_destroy(&postgres->idle);
    pthread_mutex_destroy(&postgres->lock);
    bus_deinit(&postgres->bus);
    free(postgres);
}

static void postgres_destroy(struct bus *bus)
{
    struct postgres *postgres = (struct postgres *)bus;

    if (postgres->started)
        loop_timer_stop(postgres->config.loop, &postgres->timer);
    db_listener_destroy(postgres->listener);
    if (postgres->notifier)
        db_notifier_destroy(postgres->notifier);
    pthread_mutex_lock(&postgres->lock);
    postgres->destroyed = true;
    bool posted = postgres->rearm_posted; /* then on_rearm() frees it */
    pthread_mutex_unlock(&postgres->lock);
    if (!posted)
        loop_free_later(postgres->config.loop, postgres, free_postgres);
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
    .own_ask = bus_postgres_own_ask,
    .own_commit = bus_postgres_own_commit,
    .wake = postgres_wake,
    .subscribe = postgres_subscribe,
    .start = postgres_start,
    .stop = postgres_stop,
    .interrupt = postgres_interrupt,
    .destroy = postgres_destroy,
};

/* ---- creation ---- */

static struct str own(struct str text)
{
    return text.ptr ? str_of(str_dup(text), text.len) : STR_NONE;
}

static int64_t or_default(int64_t value, int64_t fallback)
{
    return value ? value : fallback;
}

static void take_config(struct postgres *postgres, const struct bus_postgres_config *config)
{
    struct bus_postgres_config *own_config = &postgres->config;
    char name[64];

    *own_config = *config;
    own_config->target = NULL;
    own_config->topics = NULL;
    own_config->poll_ms = or_default(config->poll_ms, 1000);
    own_config->notice_window_us = or_default(config->notice_window_us, 1000);
    own_config->handler_ms = or_default(config->handler_ms, 30000);
    own_config->maintenance_ms = or_default(config->maintenance_ms, 5000);
    own_config->retention_batch = config->retention_batch ? config->retention_batch : 1000;
    postgres->bus.message_bytes_max = config->message_bytes_max ? config->message_bytes_max : 4u << 20;
    postgres->target = *config->target;
    snprintf(name, sizeof name, "%s-bus", config->target->name);
    postgres->target.name = str_dup(str_from(name)); /* its metrics are not those of the caller's pool */
    postgres->target.url = own(config->target->url);
    postgres->target.username = own(config->target->username);
    postgres->target.password = own(config->target->password);
    postgres->target.schema = own(config->target->schema);
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
    pthread_condattr_t attributes;

    pthread_mutex_init(&postgres->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&postgres->idle, &attributes);
    pthread_condattr_destroy(&attributes);
    bus_postgres_publisher_init(&postgres->publisher);
    postgres->rearm.on_message = on_rearm;
    bus_postgres_jobs_init_upkeep(postgres);
}

enum status bus_postgres_create(const struct bus_postgres_config *config, struct bus **out,
                                struct error *error)
{
    struct postgres *postgres = memory_zalloc(sizeof *postgres);
    int64_t keep_dead_ms = or_default(config->keep_dead_ms, INT64_C(30) * 24 * 3600 * 1000);

    *out = NULL;
    init_sync(postgres);
    take_config(postgres, config);
    snprintf(postgres->instance, sizeof postgres->instance, "%016llx", (unsigned long long)random_u64());
    enum status status =
        bus_init(&postgres->bus, &driver, config->topics, config->topic_count, keep_dead_ms, error);
    if (status == STATUS_OK)
        status = create_pools(postgres, error);
    if (status == STATUS_OK)
        *out = &postgres->bus;
    else
        free_postgres(postgres);
    return status;
}
