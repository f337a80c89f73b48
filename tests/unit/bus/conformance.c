/* The suite's tools: processes, recorders, publishing. The tests are in conformance_*.c. */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"

/* Until conformance_run() sets it: a driver with both modes. Programs that use only the suite's tools never set it. */
static const struct conformance_driver no_suite;
const struct conformance_driver *driver = &no_suite;

/* One topic for each test, so that none sees another's messages. */
static const struct bus_topic topics[] = {
    {.name = "order", .partitions = 4},   {.name = "commit-order", .partitions = 1},
    {.name = "share", .partitions = 4},   {.name = "every", .partitions = 4},
    {.name = "tx", .partitions = 2},      {.name = "large", .partitions = 1},
    {.name = "text", .partitions = 3},    {.name = "start", .partitions = 2},
    {.name = "retry", .partitions = 1},   {.name = "term", .partitions = 2},
    {.name = "give-up", .partitions = 1}, {.name = "rollback", .partitions = 1},
    {.name = "slow", .partitions = 2},    {.name = "cut", .partitions = 4},
    {.name = "restart", .partitions = 4}, {.name = "resume", .partitions = 4},
    {.name = "stop", .partitions = 2},    {.name = "bytes", .partitions = 1},
    {.name = "die", .partitions = 1},     {.name = "refused", .partitions = 1},
    {.name = "down", .partitions = 2},    {.name = "half-open", .partitions = 2},
    {.name = "backlog", .partitions = 1},
};

unsigned partitions_of(const char *topic)
{
    unsigned partitions = 1;

    for (size_t i = 0; i < sizeof topics / sizeof topics[0]; i++)
        if (strcmp(topics[i].name, topic) == 0)
            partitions = topics[i].partitions;
    return driver->partitions_max && partitions > driver->partitions_max ? driver->partitions_max
                                                                         : partitions;
}

enum bus_mode either_mode(void)
{
    return driver->lacks_shared ? BUS_EVERY : BUS_SHARED;
}

/* ---- processes ---- */

static void *run_loop(void *loop)
{
    loop_run(loop);
    return NULL;
}

void process_open(struct process *process)
{
    struct bus_topic own[sizeof topics / sizeof topics[0]];

    memcpy(own, topics, sizeof own);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        own[i].partitions = partitions_of(own[i].name);
    process->loop = loop_create(0, 0);
    process->workers = worker_pool_create("bus", 6, 1000);
    process->bus = driver->create(process->loop, process->workers, own, sizeof own / sizeof own[0]);
    assert_non_null(process->bus);
}

void process_start(struct process *process)
{
    bus_start(process->bus);
    assert_int_equal(pthread_create(&process->thread, NULL, run_loop, process->loop), 0);
}

void process_close(struct process *process)
{
    bus_stop(process->bus, 5000);
    loop_stop(process->loop);
    pthread_join(process->thread, NULL);
    bus_destroy(process->bus);
    worker_pool_destroy(process->workers);
    loop_destroy(process->loop);
}

/* ---- recorders ---- */

void recorder_init(struct recorder *recorder)
{
    *recorder = (struct recorder){0};
    pthread_mutex_init(&recorder->lock, NULL);
    pthread_cond_init(&recorder->changed, NULL);
}

void recorder_deinit(struct recorder *recorder)
{
    free(recorder->seen);
    pthread_cond_destroy(&recorder->changed);
    pthread_mutex_destroy(&recorder->lock);
}

/* A payload need not end in NUL. */
int number_in(const struct bus_message *message)
{
    char text[16];

    snprintf(text, sizeof text, "%.*s", STR_ARG(message->payload));
    return atoi(text);
}

static void add_one(struct recorder *recorder, const struct bus_message *message, unsigned attempt)
{
    if (recorder->count == recorder->capacity) {
        recorder->capacity = recorder->capacity ? 2 * recorder->capacity : 256;
        recorder->seen = memory_realloc_array(recorder->seen, recorder->capacity, sizeof recorder->seen[0]);
    }
    struct seen *seen = &recorder->seen[recorder->count++];
    *seen = (struct seen){.number = number_in(message),
                          .partition = message->partition,
                          .offset = message->offset,
                          .attempt = attempt};
    snprintf(seen->key, sizeof seen->key, "%.*s", STR_ARG(message->key));
}

void recorder_add(struct recorder *recorder, const struct bus_batch *batch, size_t count)
{
    pthread_mutex_lock(&recorder->lock);
    for (size_t i = 0; i < count; i++)
        add_one(recorder, &batch->messages[i], i == 0 ? batch->attempt : 0);
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

bool recorder_await_number(struct recorder *recorder, int number)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);

    while (recorder_times(recorder, number) == 0 && clock_mono_ns() < limit_ns)
        pause_ms(10);
    return recorder_times(recorder, number) > 0;
}

bool recorder_await_gap(struct recorder *recorder)
{
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);
    bool told = false;

    while (!told && clock_mono_ns() < limit_ns) {
        pause_ms(10);
        pthread_mutex_lock(&recorder->lock);
        told = recorder->gaps > 0;
        pthread_mutex_unlock(&recorder->lock);
    }
    return told;
}

void record_and_hold(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    recorder_await_step(recorder, 1);
}

void recorder_step(struct recorder *recorder, int step)
{
    pthread_mutex_lock(&recorder->lock);
    recorder->step = step;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

bool recorder_await_step(struct recorder *recorder, int step)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);

    pthread_mutex_lock(&recorder->lock);
    while (recorder->step < step && clock_cond_wait(&recorder->changed, &recorder->lock, deadline_ns))
        continue;
    bool there = recorder->step >= step;
    pthread_mutex_unlock(&recorder->lock);
    return there;
}

static bool await_at_least(struct recorder *recorder, const size_t *value, size_t wanted)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);

    if (recorder->absent)
        return true;
    pthread_mutex_lock(&recorder->lock);
    while (*value < wanted && clock_cond_wait(&recorder->changed, &recorder->lock, deadline_ns))
        continue;
    bool there = *value >= wanted;
    pthread_mutex_unlock(&recorder->lock);
    return there;
}

bool recorder_await(struct recorder *recorder, size_t count)
{
    return await_at_least(recorder, &recorder->count, count);
}

bool recorder_await_committed(struct recorder *recorder, size_t count)
{
    return await_at_least(recorder, &recorder->committed, count);
}

size_t recorder_times(struct recorder *recorder, int number)
{
    size_t times = 0;

    pthread_mutex_lock(&recorder->lock);
    for (size_t i = 0; i < recorder->count; i++)
        times += recorder->seen[i].number == number;
    pthread_mutex_unlock(&recorder->lock);
    return times;
}

/* ---- the handler ---- */

static void handle(void *context, struct bus_batch *batch)
{
    struct recorder *recorder = context;

    if (recorder->behave) {
        recorder->behave(recorder, batch);
        return;
    }
    if (recorder->effects && batch->conn)
        for (size_t i = 0; i < batch->count; i++)
            if (!driver->write_effect(batch->conn, number_in(&batch->messages[i]), batch->deadline_ns))
                break; /* the connection is gone, and the commit will say so */
    recorder_add(recorder, batch, batch->count);
}

static void on_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    struct recorder *recorder = context;

    (void)batch;
    pthread_mutex_lock(&recorder->lock);
    recorder->committed += settled;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

static void on_gap(void *context, unsigned partition, int64_t offset, int64_t next)
{
    struct recorder *recorder = context;

    (void)partition;
    (void)offset;
    (void)next;
    pthread_mutex_lock(&recorder->lock);
    recorder->gaps++;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

static void on_ready(void *context)
{
    struct recorder *recorder = context;

    pthread_mutex_lock(&recorder->lock);
    recorder->ready = true;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

void subscribe(struct process *process, struct recorder *recorder, struct bus_subscription subscription)
{
    struct error error = {0};

    subscription.group = subscription.group ? subscription.group : "group";
    subscription.context = recorder;
    subscription.handler = handle;
    subscription.on_committed = on_committed;
    subscription.on_gap = on_gap;
    subscription.on_ready = on_ready;
    recorder->absent = subscription.mode == BUS_SHARED ? driver->lacks_shared : driver->lacks_every;
    enum status status = bus_subscribe(process->bus, &subscription, &error);
    if (status != (recorder->absent ? STATUS_CONFIG : STATUS_OK))
        fail_msg("subscribe: %s %s", status_name(status), error.message);
}

void await_ready(struct recorder *recorder)
{
    int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);

    pthread_mutex_lock(&recorder->lock);
    while (!recorder->ready && !recorder->absent &&
           clock_cond_wait(&recorder->changed, &recorder->lock, deadline_ns))
        continue;
    bool ready = recorder->ready || recorder->absent;
    pthread_mutex_unlock(&recorder->lock);
    assert_true(ready);
}

/* ---- publishing ---- */

enum status try_publish(struct process *process, const char *topic, const char *key, int number)
{
    char text[16];

    snprintf(text, sizeof text, "%d", number);
    struct bus_message message = {.topic = str_from(topic), .key = str_from(key), .payload = str_from(text)};
    return bus_publish(process->bus, &message, 1, clock_deadline_ms(PATIENCE_MS), NULL);
}

void publish(struct process *process, const char *topic, const char *key, int number)
{
    enum status status = try_publish(process, topic, key, number);

    if (status != STATUS_OK)
        fail_msg("publish %s %d: %s", topic, number, status_name(status));
}

/* At least once: after a failure it is not known whether it was published. */
void publish_until_accepted(struct process *process, const char *topic, const char *key, int number)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    int64_t limit_ns = clock_deadline_ms(PATIENCE_MS);

    while (try_publish(process, topic, key, number) != STATUS_OK && clock_mono_ns() < limit_ns)
        nanosleep(&pause, NULL);
}

const char *key_of_partition(unsigned partition, unsigned partitions)
{
    static char keys[16][8];
    char *key = keys[partition];

    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof keys[0], "k%d", i);
        if (bus_partition_of(str_from(key), partitions) == partition)
            return key;
    }
    return NULL;
}

void pause_ms(int ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&pause, NULL);
}

bool is_once(size_t times)
{
    return driver->repeats ? times >= 1 : times == 1;
}

int conformance_run(const struct conformance_driver *under_test)
{
    driver = under_test;
    return conformance_run_order() + conformance_run_verdicts() + conformance_run_faults();
}
