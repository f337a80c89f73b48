/* What is the same for all drivers: topics, partitions, checks of messages and subscriptions, metrics. */
#include <stdio.h>
#include <stdlib.h>

#include "base/backoff.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_inside.h"

#define TOPIC_NAME_BYTES_MAX 60 /* 64 with ".dlq" */
#define BATCH_DEFAULT 100
#define BATCH_BYTES_DEFAULT (8u << 20)
#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 30000
#define KEEP_DEAD_MS (INT64_C(30) * 24 * 3600 * 1000)

/* ---- metrics ---- */

enum { PUBLISHED, CONSUMED, LAG, BATCH_SECONDS, DEAD_LETTERS, FAMILIES };
static struct metric_family families[FAMILIES] = {
    [PUBLISHED] = {"bus_published_total", "Messages published, dead letters included.", METRIC_COUNTER,
                   .labels[0] = "topic"},
    [CONSUMED] = {"bus_consumed_total",
                  "Messages by the verdict that was committed; a retried message counts each time.",
                  METRIC_COUNTER, .labels = {"topic", "group", "verdict", "database"}},
    [LAG] = {"bus_lag",
             "Messages published and not yet handled by the group, or by this process where every process"
             " handles all.",
             METRIC_GAUGE, .labels = {"topic", "group", "database"}},
    [BATCH_SECONDS] = {"bus_batch_seconds", "Time of a handler for a batch.", METRIC_HISTOGRAM,
                       .labels = {"topic", "group"}},
    [DEAD_LETTERS] = {"bus_dead_letters_total", "Messages moved to the dead-letter topic.", METRIC_COUNTER,
                      .labels = {"topic", "group"}},
};

static const struct str verdict_names[] = {
    [BUS_ACK] = STR("ack"), [BUS_RETRY] = STR("retry"), [BUS_TERM] = STR("term")};

/* ---- partitions ---- */

/* 32-bit MurmurHash2 with the seed and the dropped sign bit of Kafka's Java client, so that its producers and ours agree. */
uint32_t bus_murmur2(struct str key)
{
    const uint32_t multiplier = 0x5bd1e995;
    const unsigned char *at = (const unsigned char *)key.ptr;
    uint32_t hash = 0x9747b28c ^ (uint32_t)key.len;
    size_t left = key.len;

    for (; left >= 4; at += 4, left -= 4) {
        uint32_t word =
            (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        word *= multiplier;
        word ^= word >> 24;
        hash = hash * multiplier ^ word * multiplier;
    }
    for (size_t i = left; i > 0; i--)
        hash ^= (uint32_t)at[i - 1] << 8 * (i - 1);
    if (left > 0)
        hash *= multiplier;
    hash ^= hash >> 13;
    hash *= multiplier;
    return hash ^ hash >> 15;
}

unsigned bus_partition_of(struct str key, unsigned partitions)
{
    return (bus_murmur2(key) & 0x7fffffff) % partitions;
}

/* ---- topics ---- */

struct bus_topic_state *bus_topic_find(const struct bus *bus, struct str name)
{
    for (size_t i = 0; i < bus->topic_count; i++)
        if (str_eq(bus->topics[i].name, name))
            return &bus->topics[i];
    return NULL;
}

const char *bus_engine(const struct bus *bus)
{
    return bus->driver->engine;
}

bool bus_has_topic(const struct bus *bus, struct str name)
{
    return bus_topic_find(bus, name) != NULL;
}

static struct bus_topic_state *add_topic(struct bus *bus, const char *name, const struct bus_topic *spec)
{
    struct bus_topic_state *topic = &bus->topics[bus->topic_count++];

    *topic = (struct bus_topic_state){.spec = *spec};
    topic->spec.name = str_dup(str_from(name));
    topic->spec.group = spec->group ? str_dup(str_from(spec->group)) : NULL;
    topic->name = str_from(topic->spec.name);
    topic->published = metric_series_get(&families[PUBLISHED], &topic->name);
    return topic;
}

enum status bus_init(struct bus *bus, const struct bus_driver *driver, const struct bus_topic *topics,
                     size_t topic_count, int64_t keep_dead_ms, struct error *error)
{
    for (int i = 0; i < FAMILIES; i++)
        metrics_register(&families[i]);
    bus->driver = driver;
    bus->database = "";
    bus->topics = memory_zalloc(2 * topic_count * sizeof bus->topics[0]);
    for (size_t i = 0; i < topic_count; i++) {
        struct str name = str_from(topics[i].name);
        unsigned partitions = topics[i].partitions;
        enum status status = STATUS_OK;
        if (!str_is_name(name) || name.len > TOPIC_NAME_BYTES_MAX)
            status = error_set(error, STATUS_CONFIG,
                               "a topic's name is 1 to %d characters of [A-Za-z0-9._-], not \"%.*s\"",
                               TOPIC_NAME_BYTES_MAX, STR_ARG(str_utf8_cut(name, 80)));
        else if (partitions > BUS_PARTITIONS_MAX || (partitions == 0 && !driver->foreign_topics))
            status = error_set(error, STATUS_CONFIG, "topic %s needs 1 to %d partitions, not %u",
                               topics[i].name, BUS_PARTITIONS_MAX, partitions);
        else if (bus_topic_find(bus, name))
            status = error_set(error, STATUS_CONFIG, "topic %s is defined twice", topics[i].name);
        if (status != STATUS_OK) {
            bus_deinit(bus);
            return status;
        }
        add_topic(bus, topics[i].name, &topics[i]);
    }
    for (size_t i = 0; i < topic_count; i++) {
        struct bus_topic_state *topic = &bus->topics[i];
        char name[sizeof BUS_DEAD_SUFFIX + TOPIC_NAME_BYTES_MAX];
        if (str_ends_with(topic->name, STR(BUS_DEAD_SUFFIX)))
            continue;
        snprintf(name, sizeof name, "%s" BUS_DEAD_SUFFIX, topic->spec.name);
        topic->dead = bus_topic_find(bus, str_from(name));
        if (!topic->dead) /* it is ours also where the topic is another program's */
            topic->dead = add_topic(bus, name,
                                    &(struct bus_topic){
                                        .partitions = topic->spec.partitions ? topic->spec.partitions : 1,
                                        .keep_ms = keep_dead_ms ? keep_dead_ms : KEEP_DEAD_MS,
                                    });
    }
    return STATUS_OK;
}

void bus_deinit(struct bus *bus)
{
    for (size_t i = 0; i < bus->topic_count; i++) {
        free((char *)bus->topics[i].name.ptr);
        free((char *)bus->topics[i].spec.group);
    }
    free(bus->topics);
    bus->topics = NULL;
    bus->topic_count = 0;
}

/* ---- publishing ---- */

enum status bus_check_messages(struct bus *bus, struct bus_message *messages, size_t count,
                               struct error *error)
{
    for (struct bus_message *message = messages; message < messages + count; message++) {
        const struct bus_topic_state *topic = bus_topic_find(bus, message->topic);
        size_t bytes = message->key.len + message->payload.len;
        if (!topic)
            return error_set(error, STATUS_BAD_REQUEST, "unknown topic %.*s",
                             STR_ARG(str_utf8_cut(message->topic, 64)));
        if (message->header_count > BUS_HEADERS_MAX)
            return error_set(error, STATUS_BAD_REQUEST, "a message has at most %d headers", BUS_HEADERS_MAX);
        for (unsigned i = 0; i < message->header_count; i++) {
            const struct bus_header *header = &message->headers[i];
            if (header->name.len == 0 || !str_is_text(header->name) || !str_is_text(header->value))
                return error_set(error, STATUS_BAD_REQUEST, "a message's headers are UTF-8 text without NUL");
            bytes += header->name.len + header->value.len;
        }
        if (bytes > bus->message_bytes_max)
            return error_set(error, STATUS_PAYLOAD_TOO_LARGE,
                             "a message of %zu bytes is over the limit of %zu", bytes,
                             bus->message_bytes_max);
        unsigned partitions = topic->spec.partitions ? topic->spec.partitions : BUS_PARTITIONS_UNKNOWN;
        message->partition = message->key.ptr ? bus_partition_of(message->key, partitions)
                                              : atomic_fetch_add(&bus->turn, 1) % partitions;
        message->offset = -1;
        message->created_us = 0;
    }
    return STATUS_OK;
}

enum status bus_publish(struct bus *bus, struct bus_message *messages, size_t count, int64_t deadline_ns,
                        struct error *error)
{
    enum status status = bus_check_messages(bus, messages, count, error);

    if (status != STATUS_OK || count == 0)
        return status;
    return bus->driver->publish(bus, messages, count, deadline_ns, error);
}

bool bus_is_relaxed(const struct bus *bus, struct str topic)
{
    const struct bus_topic_state *found = bus_topic_find(bus, topic);

    return found && bus->driver->can_relax && found->spec.relaxed;
}

void bus_wake(struct bus *bus, struct str topic)
{
    struct bus_topic_state *found = bus_topic_find(bus, topic);

    if (found && bus->driver->wake)
        bus->driver->wake(bus, found);
}

struct str bus_message_header(const struct bus_message *message, struct str name)
{
    for (unsigned i = 0; i < message->header_count; i++)
        if (str_eq(message->headers[i].name, name))
            return message->headers[i].value;
    return STR_NONE;
}

size_t bus_message_bytes_max(const struct bus *bus)
{
    return bus->message_bytes_max;
}

/* ---- subscriptions ---- */

static struct metric_series *lag_series(const struct bus *bus, struct str topic, struct str group)
{
    const struct str labels[] = {topic, group, str_from(bus->database)};
    return metric_series_get(&families[LAG], labels);
}

enum status bus_subscribe(struct bus *bus, const struct bus_subscription *subscription, struct error *error)
{
    const struct bus_driver *driver = bus->driver;
    struct bus_topic_state *topic = bus_topic_find(bus, str_from(subscription->topic));
    bool is_shared = subscription->mode == BUS_SHARED;

    if (is_shared ? driver->lacks_shared : driver->lacks_every)
        return error_set(error, STATUS_CONFIG, "%s cannot carry topic %s: it has %s", driver->name,
                         subscription->topic,
                         is_shared ? "no groups that share messages"
                                   : "groups that share messages, and no readers of everything");
    if (!subscription->handler)
        return error_set(error, STATUS_CONFIG, "a subscription needs a handler");
    if (!str_is_name(str_from(subscription->group)))
        return error_set(error, STATUS_CONFIG, "a group's name is 1 to 64 characters of [A-Za-z0-9._-]");
    if (!topic)
        return error_set(error, STATUS_CONFIG, "unknown topic %s", subscription->topic);
    struct bus_consumer consumer = {.spec = *subscription, .topic = topic};
    struct bus_subscription *spec = &consumer.spec;
    unsigned partitions = topic->spec.partitions ? topic->spec.partitions : BUS_PARTITIONS_MAX;
    spec->batch_max = spec->batch_max ? spec->batch_max : BATCH_DEFAULT;
    spec->batch_bytes_max = spec->batch_bytes_max ? spec->batch_bytes_max : BATCH_BYTES_DEFAULT;
    spec->backoff_min_ms = spec->backoff_min_ms ? spec->backoff_min_ms : BACKOFF_MIN_MS;
    spec->backoff_max_ms = spec->backoff_max_ms ? spec->backoff_max_ms : BACKOFF_MAX_MS;
    if (!is_shared)
        spec->parallel = 1;
    else if (spec->parallel == 0 || spec->parallel > partitions)
        spec->parallel = partitions;
    spec->topic = topic->spec.name;
    spec->group = str_dup(str_from(subscription->group));
    struct str labels[] = {topic->name, str_from(spec->group), STR_NONE, str_from(bus->database)};
    consumer.lag = lag_series(bus, topic->name, str_from(spec->group));
    consumer.batch_seconds = metric_series_get(&families[BATCH_SECONDS], labels);
    consumer.dead_letters = metric_series_get(&families[DEAD_LETTERS], labels);
    for (int kind = BUS_ACK; kind <= BUS_TERM; kind++) {
        labels[2] = verdict_names[kind];
        consumer.consumed[kind] = metric_series_get(&families[CONSUMED], labels);
    }
    bus_memory_join(&consumer);
    driver->subscribe(bus, &consumer);
    return STATUS_OK;
}

void bus_lag_set(const struct bus *bus, struct str topic, struct str group, int64_t messages)
{
    metric_set(lag_series(bus, topic, group), (double)messages);
}

void bus_consumer_deinit(struct bus_consumer *consumer)
{
    bus_memory_leave(consumer);
    free((char *)consumer->spec.group);
}

int64_t bus_backoff_ms(const struct bus_consumer *consumer, unsigned attempt)
{
    struct backoff backoff = {.min_ms = consumer->spec.backoff_min_ms,
                              .max_ms = consumer->spec.backoff_max_ms,
                              .failures = attempt - 1};

    return backoff_next_ms(&backoff);
}

void bus_consumer_ready(const struct bus_consumer *consumer)
{
    const struct bus_subscription *spec = &consumer->spec;

    log_debug("bus_reader_ready", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group));
    if (spec->on_ready)
        spec->on_ready(spec->context);
}

void bus_consumer_gap(const struct bus_consumer *consumer, unsigned partition, int64_t offset, int64_t next)
{
    const struct bus_subscription *spec = &consumer->spec;

    log_warn("bus_gap", LOG_CSTR("topic", spec->topic), LOG_CSTR("group", spec->group),
             LOG_INT("partition", partition), LOG_INT("offset", offset), LOG_INT("next", next));
    if (spec->on_gap)
        spec->on_gap(spec->context, partition, offset, next);
}

/* ---- life ---- */

void bus_start(struct bus *bus)
{
    bus->driver->start(bus);
}

void bus_stop(struct bus *bus, int64_t grace_ms)
{
    bus->driver->stop(bus, grace_ms);
}

void bus_interrupt(struct bus *bus)
{
    bus->driver->interrupt(bus);
}

void bus_destroy(struct bus *bus)
{
    if (bus)
        bus->driver->destroy(bus);
}

bool bus_is_up(const struct bus *bus)
{
    return atomic_load(&bus->is_up);
}
