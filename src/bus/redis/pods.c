/* Removes the consumer groups of dead pods: groups of the same subscription (GROUP:POD) that no consumer has read for pod_dead_ms. A
 * live pod reads its own pending entries several times in this period, because Redis does not record a read that found nothing new. A
 * node that has just become the master, or has restarted, may report old times. So groups are removed only by a reader that has read from the
 * same node for pod_dead_ms without a failure, on the same connection, which does not outlive a restart. */
#include "bus/redis/inside.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"

/* When a consumer of the group last read: ms of the server's clock. 0: it has no consumer. */
static int64_t last_read_ms(const struct redis_reply *group)
{
    const struct redis_reply *consumers = redis_reply_field(group, STR("consumers"));
    int64_t last_ms = 0;

    for (size_t i = 0; i < consumers->count; i++) {
        int64_t seen_ms = redis_reply_field(&consumers->items[i], STR("seen-time"))->integer;
        last_ms = seen_ms > last_ms ? seen_ms : last_ms;
    }
    return last_ms;
}

void redis_pods_answered(struct redis_request *request, const struct error *error)
{
    struct redis_reader *reader = CONTAINER_OF(request, struct redis_reader, pods_request);
    int64_t dead_ms = reader->redis->config.pod_dead_ms, now_ms = 0;
    struct str prefix = str_of(reader->group, strlen(reader->consumer.spec.group) + 1);

    if (error || request->reply->kind != REDIS_ARRAY) /* a failure, or the reply to a removal */
        return;
    const struct redis_reply *groups = redis_reply_field(redis_reply_at(request->reply, 1), STR("groups"));
    if (reader->topic->node != reader->node ||
        clock_mono_ns() - reader->steady_ns < dead_ms * CLOCK_NS_PER_MS)
        return;
    for (size_t i = 0; i < groups->count; i++)
        if (str_eq(redis_reply_field(&groups->items[i], STR("name"))->text, str_from(reader->group)))
            now_ms = last_read_ms(&groups->items[i]);
    redis_request_begin(request, reader->topic);
    for (size_t i = 0; i < groups->count; i++) {
        struct str name = redis_reply_field(&groups->items[i], STR("name"))->text;
        if (!name.ptr || !str_starts_with(name, prefix) || now_ms - last_read_ms(&groups->items[i]) < dead_ms)
            continue;
        log_info("redis_dead_pod_removed", LOG_STR("group", name), LOG_CSTR("stream", reader->topic->stream));
        redis_request_add_list(
            request, (struct str[]){STR("XGROUP"), STR("DESTROY"), str_from(reader->topic->stream), name}, 4);
    }
    if (request->reply_count > 0)
        redis_cluster_send(&reader->redis->cluster, request);
}

/* Every pod checks the groups of all others, so each checks rarely, and pods that start together check at different times. */
void redis_pods_check(struct redis_reader *reader)
{
    struct redis_request *request = &reader->pods_request;
    int64_t now_ns = clock_mono_ns(), every_ns = reader->redis->config.pod_dead_ms * CLOCK_NS_PER_MS / 4;
    bool is_first = reader->pods_at_ns == 0;

    if (reader->topic->node != reader->node || reader->node->opened_ns > reader->steady_ns)
        reader->steady_ns = now_ns;
    reader->node = reader->topic->node;
    if (request->is_busy || now_ns < reader->pods_at_ns)
        return;
    reader->pods_at_ns = now_ns + (is_first ? (int64_t)(random_u64() % (uint64_t)(every_ns + 1)) : every_ns);
    if (is_first)
        return;
    redis_request_begin(request, reader->topic);
    redis_request_add(request, "MULTI");
    redis_request_add(request, "XREADGROUP GROUP %s %s COUNT 1 STREAMS %s 0", reader->group,
                      reader->redis->pod, reader->topic->stream);
    redis_request_add(request, "XINFO STREAM %s FULL COUNT 1", reader->topic->stream);
    redis_request_add(request, "EXEC");
    redis_cluster_send(&reader->redis->cluster, request);
}
