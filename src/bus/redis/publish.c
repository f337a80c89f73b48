/* Publishing: the messages of a call for one stream are one transaction of Redis (MULTI … EXEC), so that all of them are added
 * or none, in their order; streams are written one after the other. Calls of several threads share a write. A caller whose deadline
 * passes returns; the reply frees its publication. */
#include "bus/redis/inside.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/memory.h"

#define ARGUMENTS_MAX (10 + 2 * (BUS_HEADERS_MAX + 2))

/* The messages of a call for one stream. */
struct publication {
    struct loop_message message; /* first: the way to the loop */
    struct redis_request request;
    struct redis *redis;
    struct redis_topic *topic;
    size_t count;
    /* under redis->lock: */
    bool is_answered, is_abandoned; /* abandoned: the caller has returned */
    struct error error;
    int64_t offsets[];
};

static void publication_free(struct publication *publication)
{
    redis_request_deinit(&publication->request);
    free(publication);
}

/* ---- commands ---- */

static void add_xadd(struct publication *publication, const struct bus_message *message)
{
    const struct redis_topic *topic = publication->topic;
    struct str arguments[ARGUMENTS_MAX] = {STR("XADD"), str_from(topic->stream)};
    char limit[24];
    size_t count = 2;

    if (topic->state->spec.keep_messages_hard > 0) {
        snprintf(limit, sizeof limit, "%lld", (long long)topic->state->spec.keep_messages_hard);
        arguments[count++] = STR("MAXLEN");
        arguments[count++] = STR("~");
        arguments[count++] = str_from(limit);
    }
    arguments[count++] = STR("*");
    arguments[count++] = STR("event");
    arguments[count++] = message->payload;
    if (message->key.ptr) {
        arguments[count++] = STR("key");
        arguments[count++] = message->key;
    }
    for (unsigned i = 0; i < message->header_count; i++) {
        arguments[count++] = message->headers[i].name;
        arguments[count++] = message->headers[i].value;
    }
    redis_request_add_list(&publication->request, arguments, count);
    publication->count++;
}

/* The first publication of a process does not trim, because the server's clock is known only after the first reply. */
static void add_commands(struct publication *publication, const struct bus_message *messages, size_t count)
{
    const struct redis_topic *topic = publication->topic;
    struct redis_request *request = &publication->request;
    int64_t ahead_ms = atomic_load(&topic->clock_ahead_ms), keep_ms = topic->state->spec.keep_ms;
    int64_t oldest_ms = clock_mono_ns() / CLOCK_NS_PER_MS + ahead_ms - keep_ms;

    redis_request_begin(request, publication->topic);
    redis_request_add(request, "MULTI");
    for (size_t i = 0; i < count; i++)
        if (str_eq(messages[i].topic, topic->state->name))
            add_xadd(publication, &messages[i]);
    if (keep_ms > 0 && ahead_ms != 0 && oldest_ms > 0)
        redis_request_add(request, "XTRIM %s MINID ~ %lld", topic->stream, (long long)oldest_ms);
    for (size_t i = 0; i < count; i++)
        if (str_eq(messages[i].topic, topic->state->name))
            redis_request_add_list(
                request, (struct str[]){STR("PUBLISH"), str_from(topic->channel), messages[i].payload}, 3);
    redis_request_add(request, "EXEC");
}

/* ---- the reply, on the loop ---- */

static void on_published(struct redis_request *request, const struct error *error)
{
    struct publication *publication = CONTAINER_OF(request, struct publication, request);
    struct redis *redis = publication->redis;
    enum status status = error ? error->status : STATUS_OK;
    struct redis_id id = {0};

    FAILPOINT("redis.after_publish");
    pthread_mutex_lock(&redis->lock);
    if (error)
        publication->error = *error;
    for (size_t i = 0; i < publication->count && status == STATUS_OK; i++) {
        /* the first items of EXEC's reply are the ids */
        const struct redis_reply *item = redis_reply_at(request->reply, i);
        if (item->kind != REDIS_TEXT || !redis_id_parse(item->text, &id)) {
            struct str text = item->text.ptr ? item->text : STR("the reply to EXEC has no id");
            status =
                error_set(&publication->error, STATUS_DB_ERROR, "%.*s", STR_ARG(str_utf8_cut(text, 200)));
        }
        publication->offsets[i] = redis_id_offset(id);
    }
    if (status == STATUS_OK)
        atomic_store(&publication->topic->clock_ahead_ms, (int64_t)id.ms - clock_mono_ns() / CLOCK_NS_PER_MS);
    publication->error.status = status == STATUS_IO ? STATUS_DB_DOWN : status;
    publication->is_answered = true;
    bool is_abandoned = publication->is_abandoned;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
    if (is_abandoned)
        publication_free(publication);
}

static void on_publication_posted(struct loop *loop, struct loop_message *message)
{
    struct publication *publication = (struct publication *)message;

    (void)loop;
    redis_cluster_send(&publication->redis->cluster, &publication->request);
}

/* ---- the caller ---- */

/* All messages of the call for one topic. Under redis->lock. */
static enum status publish_to(struct redis *redis, struct redis_topic *topic, struct bus_message *messages,
                              size_t count, int64_t deadline_ns, struct error *error)
{
    struct publication *publication =
        memory_zalloc(sizeof *publication + count * sizeof publication->offsets[0]);
    bool is_in_time = true;

    publication->message.on_message = on_publication_posted;
    publication->redis = redis;
    publication->topic = topic;
    redis_request_init(&publication->request, on_published);
    add_commands(publication, messages, count);
    FAILPOINT("redis.before_publish");
    loop_post(redis->loop, &publication->message);
    while (!publication->is_answered && !redis->is_interrupted && is_in_time)
        is_in_time = clock_cond_wait(&redis->changed, &redis->lock, deadline_ns);
    publication->is_abandoned = !publication->is_answered;
    if (publication->is_abandoned)
        return redis->is_interrupted ? error_set(error, STATUS_CANCELLED, "the bus is stopping")
                                     : error_set(error, STATUS_TIMEOUT, "Redis did not answer in time");
    enum status status = publication->error.status;
    if (status != STATUS_OK && error)
        *error = publication->error;
    for (size_t i = 0, at = 0; i < count && status == STATUS_OK; i++)
        if (str_eq(messages[i].topic, topic->state->name)) {
            messages[i].offset = publication->offsets[at++];
            metric_add(topic->state->published, 1);
        }
    publication_free(publication);
    return status;
}

enum status bus_redis_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error)
{
    struct redis *redis = (struct redis *)bus;
    enum status status = STATUS_OK;

    pthread_mutex_lock(&redis->lock);
    redis->publishers++;
    if (redis->is_stopping)
        status = error_set(error, STATUS_CANCELLED, "the bus is stopping");
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        bool is_first = true;
        for (size_t before = 0; before < i && is_first; before++)
            is_first = !str_eq(messages[before].topic, messages[i].topic);
        if (is_first)
            status = publish_to(redis, redis_topic_of(redis, bus_topic_find(bus, messages[i].topic)),
                                messages, count, deadline_ns, error);
    }
    redis->publishers--;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
    return status;
}
