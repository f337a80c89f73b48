/* Publishing: the messages of a call that go to one stream are one transaction of Redis (MULTI … EXEC), so that they are
 * there all or not at all and in their order, whatever redirects come. Calls of several threads share a write.
 *
 * A caller that runs out of time leaves; what it had asked for is answered to nobody. */
#include "bus/redis/inside.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/memory.h"

#define FIELDS_MAX (10 + 2 * (BUS_HEADERS_MAX + 2))

/* What goes to one stream. */
struct part {
    struct loop_message message; /* first: the way to the loop */
    struct redis_request request;
    struct publication *publication;
    struct redis_names *names;
    size_t *at; /* of the caller's messages */
    size_t count;
};

struct publication {
    struct redis *redis;
    struct bus_message *messages; /* NULL: the caller has left */
    struct part *parts;
    size_t part_count;
    size_t left; /* parts not answered; under redis->lock, as the following */
    enum status status;
    struct error error;
};

static void free_publication(struct publication *publication)
{
    for (size_t i = 0; i < publication->part_count; i++) {
        redis_request_deinit(&publication->parts[i].request);
        free(publication->parts[i].at);
    }
    free(publication->parts);
    free(publication);
}

/* ---- commands ---- */

static void put_xadd(struct buf *out, const struct redis_names *names, const struct bus_topic *topic,
                     const struct bus_message *message)
{
    struct str arguments[FIELDS_MAX];
    struct redis_number limit;
    size_t count = 0;

    arguments[count++] = STR("XADD");
    arguments[count++] = str_from(names->stream);
    if (topic->keep_messages_hard > 0) {
        arguments[count++] = STR("MAXLEN");
        arguments[count++] = STR("~");
        arguments[count++] = redis_number_str(&limit, topic->keep_messages_hard);
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
    redis_command_put(out, arguments, count);
}

/* A process's first publication trims nothing: the server's clock is not known yet. */
static size_t put_trim(struct buf *out, struct redis_names *names, const struct bus_topic *topic)
{
    struct redis_number oldest;
    int64_t ahead_ms = atomic_load(&names->ahead_ms);
    int64_t oldest_ms = clock_mono_ns() / CLOCK_NS_PER_MS + ahead_ms - topic->keep_ms;

    if (topic->keep_ms <= 0 || ahead_ms == 0 || oldest_ms <= 0)
        return 0;
    REDIS_COMMAND(out, STR("XTRIM"), str_from(names->stream), STR("MINID"), STR("~"),
                  redis_number_str(&oldest, oldest_ms));
    return 1;
}

static void put_commands(struct part *part, const struct redis_topic *topic)
{
    struct redis_names *names = part->names;
    const struct bus_message *messages = part->publication->messages;
    struct buf *out = &part->request.commands;

    redis_request_begin(&part->request, names->slot, 0);
    REDIS_COMMAND(out, STR("MULTI"));
    for (size_t i = 0; i < part->count; i++)
        put_xadd(out, names, &topic->state->spec, &messages[part->at[i]]);
    size_t trims = put_trim(out, names, &topic->state->spec);
    for (size_t i = 0; i < part->count; i++)
        REDIS_COMMAND(out, STR("PUBLISH"), str_from(names->channel), messages[part->at[i]].payload);
    REDIS_COMMAND(out, STR("EXEC"));
    part->request.reply_count = 2 + 2 * part->count + trims;
    part->request.last_count = 2; /* why it was refused, and what EXEC says */
}

/* ---- answers, on the loop ---- */

static enum status refused(const struct redis_reply *reply, struct error *error)
{
    return error_set(
        error, STATUS_DB_ERROR, "%.*s",
        STR_ARG(str_utf8_cut(reply->text.ptr ? reply->text : STR("not what EXEC answers"), 200)));
}

/* The ids are EXEC's first answers. */
static enum status take_ids(struct part *part, struct bus_message *messages, struct error *error)
{
    const struct redis_reply *why = part->request.replies[0], *exec = part->request.replies[1];
    struct redis_id id;

    if (exec->kind != REDIS_ARRAY)
        return refused(why->kind == REDIS_ERROR ? why : exec, error);
    for (size_t i = 0; i < part->count; i++) {
        const struct redis_reply *reply = redis_reply_at(exec, i);
        if (reply->kind != REDIS_TEXT || !redis_id_parse(reply->text, &id))
            return refused(reply, error);
        if (messages)
            messages[part->at[i]].offset = redis_id_offset(id);
    }
    if (part->count > 0)
        atomic_store(&part->names->ahead_ms, (int64_t)id.ms - clock_mono_ns() / CLOCK_NS_PER_MS);
    return STATUS_OK;
}

static void on_published(struct redis_request *request, enum status status, const struct error *error)
{
    struct part *part = (struct part *)((char *)request - offsetof(struct part, request));
    struct publication *publication = part->publication;
    struct redis *redis = publication->redis;
    struct error own;

    FAILPOINT("redis.after_publish");
    pthread_mutex_lock(&redis->lock);
    if (status == STATUS_OK) {
        status = take_ids(part, publication->messages, &own);
        error = &own;
    }
    if (status != STATUS_OK && publication->status == STATUS_OK) {
        publication->status = status == STATUS_IO ? STATUS_DB_DOWN : status;
        publication->error = *error;
        publication->error.status = publication->status;
    }
    bool last = --publication->left == 0, left = !publication->messages;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
    if (last && left)
        free_publication(publication);
}

static void on_posted(struct loop *loop, struct loop_message *message)
{
    struct part *part = (struct part *)message;

    (void)loop;
    redis_cluster_ask(&part->publication->redis->cluster, &part->request);
}

/* ---- the caller's side ---- */

static struct part *add_part(struct publication *publication)
{
    struct part *part = &publication->parts[publication->part_count++];
    part->publication = publication;
    part->message.on_message = on_posted;
    redis_request_init(&part->request, on_published);
    return part;
}

static struct publication *publication_create(struct redis *redis, struct bus_message *messages, size_t count)
{
    struct publication *publication = memory_zalloc(sizeof *publication);
    struct redis_names **places = memory_alloc(count * sizeof places[0]);

    publication->redis = redis;
    publication->messages = messages;
    publication->parts = memory_zalloc(count * sizeof publication->parts[0]);
    for (size_t i = 0; i < count; i++) {
        const struct redis_topic *topic =
            redis_topic_of(redis, bus_topic_find(&redis->bus, messages[i].topic));
        places[i] = &topic->partitions[messages[i].partition];
    }
    for (size_t i = 0; i < count; i++) {
        if (!places[i])
            continue; /* it went with an earlier one */
        const struct redis_topic *topic =
            redis_topic_of(redis, bus_topic_find(&redis->bus, messages[i].topic));
        struct redis_names *names = places[i];
        struct part *part = add_part(publication);
        part->names = names;
        part->at = memory_alloc((count - i) * sizeof part->at[0]);
        for (size_t j = i; j < count; j++)
            if (places[j] == names) {
                part->at[part->count++] = j;
                places[j] = NULL;
            }
        put_commands(part, topic);
    }
    free(places);
    publication->left = publication->part_count;
    return publication;
}

/* Waits till all is answered, it is too late, or the bus stops. Under the lock. */
static void wait_answers(struct redis *redis, struct publication *publication, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / CLOCK_NS_PER_S, .tv_nsec = deadline_ns % CLOCK_NS_PER_S};
    int rc = 0;

    while (publication->left > 0 && !redis->interrupted && rc == 0)
        rc = pthread_cond_timedwait(&redis->changed, &redis->lock, &until);
}

static enum status leave(struct redis *redis, struct publication *publication, struct error *error)
{
    bool answered = publication->left == 0;
    enum status status = publication->status;

    if (answered) {
        if (status != STATUS_OK && error)
            *error = publication->error;
    } else {
        publication->messages = NULL; /* whoever answers last frees it */
        status = redis->interrupted ? error_set(error, STATUS_CANCELLED, "the bus is stopping")
                                    : error_set(error, STATUS_TIMEOUT, "Redis did not answer in time");
    }
    redis->publishers--;
    pthread_cond_broadcast(&redis->changed);
    pthread_mutex_unlock(&redis->lock);
    if (answered)
        free_publication(publication);
    return status;
}

static bool enter(struct redis *redis)
{
    pthread_mutex_lock(&redis->lock);
    bool open = !redis->stopping;
    redis->publishers += open;
    pthread_mutex_unlock(&redis->lock);
    return open;
}

enum status bus_redis_publish(struct bus *bus, struct bus_message *messages, size_t count,
                              int64_t deadline_ns, struct error *error)
{
    struct redis *redis = (struct redis *)bus;

    if (!enter(redis))
        return error_set(error, STATUS_CANCELLED, "the bus is stopping");
    struct publication *publication = publication_create(redis, messages, count);
    size_t parts = publication->part_count;
    FAILPOINT("redis.before_publish");
    for (size_t i = 0; i < parts; i++)
        loop_post(redis->loop, &publication->parts[i].message);
    pthread_mutex_lock(&redis->lock);
    wait_answers(redis, publication, deadline_ns);
    enum status status = leave(redis, publication, error);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        metric_add(bus_topic_find(bus, messages[i].topic)->published, 1);
    return status;
}
