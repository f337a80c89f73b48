/* Publishing: the messages of a call for one stream are one transaction of Redis (MULTI … EXEC), so that all of them are added
 * or none, in their order. Calls of several threads share a write. A caller whose time is over returns; the last reply frees
 * its publication. */
#include "bus/redis/inside.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/memory.h"

#define ARGUMENTS_MAX (10 + 2 * (BUS_HEADERS_MAX + 2))

/* The messages for one stream. */
struct part {
    struct loop_message message; /* first: the way to the loop */
    struct redis_request request;
    struct publication *publication;
    struct redis_topic *topic;
    size_t *at; /* of the caller's messages */
    size_t count;
};

struct publication {
    struct redis *redis;
    struct bus_message *messages; /* NULL: the caller has returned */
    struct part *parts;
    size_t part_count;
    size_t left; /* parts without an answer; under redis->lock, as the following */
    enum status status;
    struct error error;
};

static void publication_free(struct publication *publication)
{
    for (size_t i = 0; i < publication->part_count; i++) {
        redis_request_deinit(&publication->parts[i].request);
        free(publication->parts[i].at);
    }
    free(publication->parts);
    free(publication);
}

/* ---- commands ---- */

static void add_xadd(struct redis_request *request, const struct redis_topic *topic,
                     const struct bus_message *message)
{
    struct str arguments[ARGUMENTS_MAX];
    struct redis_number limit;
    size_t count = 0;

    arguments[count++] = STR("XADD");
    arguments[count++] = str_from(topic->stream);
    if (topic->state->spec.keep_messages_hard > 0) {
        arguments[count++] = STR("MAXLEN");
        arguments[count++] = STR("~");
        arguments[count++] = redis_number_str(&limit, topic->state->spec.keep_messages_hard);
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
    redis_request_add(request, arguments, count);
}

/* The first publication of a process trims nothing: the server's clock is not known yet. */
static void add_trim(struct redis_request *request, const struct redis_topic *topic)
{
    struct redis_number oldest;
    int64_t ahead_ms = atomic_load(&topic->clock_ahead_ms), keep_ms = topic->state->spec.keep_ms;
    int64_t oldest_ms = clock_mono_ns() / CLOCK_NS_PER_MS + ahead_ms - keep_ms;

    if (keep_ms > 0 && ahead_ms != 0 && oldest_ms > 0)
        REDIS_ADD(request, STR("XTRIM"), str_from(topic->stream), STR("MINID"), STR("~"),
                  redis_number_str(&oldest, oldest_ms));
}

static void part_add_commands(struct part *part)
{
    const struct bus_message *messages = part->publication->messages;
    struct redis_request *request = &part->request;

    redis_request_begin(request, &part->topic->route);
    REDIS_ADD(request, STR("MULTI"));
    for (size_t i = 0; i < part->count; i++)
        add_xadd(request, part->topic, &messages[part->at[i]]);
    add_trim(request, part->topic);
    for (size_t i = 0; i < part->count; i++)
        REDIS_ADD(request, STR("PUBLISH"), str_from(part->topic->channel), messages[part->at[i]].payload);
    REDIS_ADD(request, STR("EXEC"));
}

/* ---- replies, on the loop ---- */

/* The first items of EXEC's reply are the ids. */
static enum status part_take_ids(struct part *part, struct bus_message *messages, struct error *error)
{
    const struct redis_reply *reply = part->request.reply;
    struct redis_id id;

    for (size_t i = 0; i < part->count; i++) {
        const struct redis_reply *item = reply->kind == REDIS_ERROR ? reply : redis_reply_at(reply, i);
        if (item->kind != REDIS_TEXT || !redis_id_parse(item->text, &id)) {
            struct str text = item->text.ptr ? item->text : STR("the reply to EXEC has no id");
            return error_set(error, STATUS_DB_ERROR, "%.*s", STR_ARG(str_utf8_cut(text, 200)));
        }
        if (messages)
            messages[part->at[i]].offset = redis_id_offset(id);
    }
    atomic_store(&part->topic->clock_ahead_ms, (int64_t)id.ms - clock_mono_ns() / CLOCK_NS_PER_MS);
    return STATUS_OK;
}

static void on_published(struct redis_request *request, enum status status, const struct error *error)
{
    struct part *part = CONTAINER_OF(request, struct part, request);
    struct publication *publication = part->publication;
    struct redis *redis = publication->redis;
    struct error own;

    FAILPOINT("redis.after_publish");
    pthread_mutex_lock(&redis->lock);
    if (status == STATUS_OK) {
        status = part_take_ids(part, publication->messages, &own);
        error = &own;
    }
    if (status != STATUS_OK && publication->status == STATUS_OK) {
        publication->status = status == STATUS_IO ? STATUS_DB_DOWN : status;
        publication->error = *error;
        publication->error.status = publication->status;
    }
    bool is_last = --publication->left == 0, is_abandoned = !publication->messages;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
    if (is_last && is_abandoned)
        publication_free(publication);
}

static void on_part_posted(struct loop *loop, struct loop_message *message)
{
    struct part *part = (struct part *)message;

    (void)loop;
    redis_cluster_send(&part->publication->redis->cluster, &part->request);
}

/* ---- the caller ---- */

static struct part *part_of(struct publication *publication, struct redis_topic *topic, size_t count)
{
    for (size_t i = 0; i < publication->part_count; i++)
        if (publication->parts[i].topic == topic)
            return &publication->parts[i];
    struct part *part = &publication->parts[publication->part_count++];
    part->publication = publication;
    part->topic = topic;
    part->message.on_message = on_part_posted;
    part->at = memory_alloc(count * sizeof part->at[0]);
    redis_request_init(&part->request, on_published);
    return part;
}

static struct publication *publication_create(struct redis *redis, struct bus_message *messages, size_t count)
{
    struct publication *publication = memory_zalloc(sizeof *publication);

    publication->redis = redis;
    publication->messages = messages;
    publication->parts = memory_zalloc((count < redis->bus.topic_count ? count : redis->bus.topic_count) *
                                       sizeof publication->parts[0]);
    for (size_t i = 0; i < count; i++) {
        struct bus_topic_state *state = bus_topic_find(&redis->bus, messages[i].topic);
        struct part *part = part_of(publication, redis_topic_of(redis, state), count);
        part->at[part->count++] = i;
    }
    for (size_t i = 0; i < publication->part_count; i++)
        part_add_commands(&publication->parts[i]);
    publication->left = publication->part_count;
    return publication;
}

enum status bus_redis_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error)
{
    struct redis *redis = (struct redis *)bus;
    bool in_time = true;

    pthread_mutex_lock(&redis->lock);
    bool is_open = !redis->is_stopping;
    redis->publishers += is_open;
    pthread_mutex_unlock(&redis->lock);
    if (!is_open)
        return error_set(error, STATUS_CANCELLED, "the bus is stopping");
    struct publication *publication = publication_create(redis, messages, count);
    FAILPOINT("redis.before_publish");
    for (size_t i = 0; i < publication->part_count; i++)
        loop_post(redis->loop, &publication->parts[i].message);

    pthread_mutex_lock(&redis->lock);
    while (publication->left > 0 && !redis->is_interrupted && in_time)
        in_time = clock_cond_wait(&redis->changed, &redis->lock, deadline_ns);
    bool is_answered = publication->left == 0;
    enum status status = publication->status;
    if (is_answered && status != STATUS_OK && error)
        *error = publication->error;
    if (!is_answered) {
        publication->messages = NULL;
        status = redis->is_interrupted ? error_set(error, STATUS_CANCELLED, "the bus is stopping")
                                       : error_set(error, STATUS_TIMEOUT, "Redis did not answer in time");
    }
    redis->publishers--;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
    if (is_answered)
        publication_free(publication);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        metric_add(bus_topic_find(bus, messages[i].topic)->published, 1);
    return status;
}
