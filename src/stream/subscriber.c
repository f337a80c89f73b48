/* A topic's subscribers on one loop: each has its place on the chain; they are woken together, a bounded number in a tick. */
#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "stream/stream_inside.h"

/* In a tick, all topics of a loop together; a topic whose turn comes later in it wakes a few of its own. */
enum { WAKES_PER_TICK = 256, WAKES_OF_TOPIC_MIN = 16 };

static struct stream_local *local_of(const struct stream_subscriber *subscriber)
{
    return subscriber->topic->locals[loop_index(subscriber->ref.loop)];
}

static bool is_before_cut(const struct stream_subscriber *subscriber, const struct stream_local *local)
{
    return subscriber->at && subscriber->at->sequence < local->cut_sequence;
}

/* One of the topic's own lines. */
static void put_own_line(const struct stream_topic *topic, struct buf *out, const char *text,
                         int64_t position)
{
    stream_line_begin(out, topic->config.format, text == topic->config.heartbeat ? -1 : position);
    buf_printf(out, text, (long long)position);
    stream_line_end(out, topic->config.format);
}

/* The line that is being sent is finished from a copy, so that the topic keeps nothing more for this subscriber. The last line has the
 * position to continue from. A client that reads nothing never receives it; the server's write timeout ends that stream. False: the
 * topic has no such line, or there is no memory for it. */
static bool cut_off(struct stream_subscriber *subscriber)
{
    metric_add(subscriber->topic->config.cuts, 1);
    if (budget_is_full(BUDGET_STREAMS)) { /* no memory for the copy */
        budget_count_refusal(BUDGET_STREAMS);
        return false;
    }
    if (!subscriber->topic->config.cut_off)
        return false;
    const struct stream_segment *current = subscriber->opening ? subscriber->opening : subscriber->at;
    struct buf rest = {0};
    buf_put(&rest, current->bytes + subscriber->offset, current->len - subscriber->offset);
    put_own_line(subscriber->topic, &rest, subscriber->topic->config.cut_off, subscriber->at->to);
    struct stream_segment *last =
        stream_segment_create(&(struct stream_step){.lines = current->lines, .bytes = buf_str(&rest)});
    buf_deinit(&rest);
    stream_segment_unref(subscriber->opening);
    stream_segment_unref(subscriber->at);
    subscriber->opening = last;
    subscriber->at = NULL;
    subscriber->offset = 0;
    subscriber->is_ending = true;
    return true;
}

/* ---- waking ---- */

/* One that read all it was given is not slow: more was published at once than is kept. */
static bool can_be_led(const struct stream_subscriber *subscriber)
{
    return subscriber->is_paged && subscriber->offset == subscriber->at->len;
}

static void on_wake_message(struct loop *loop, struct loop_message *message);

/* Subscribers that join meanwhile stand before the pass and need no wake. */
static void wake_some(struct stream_local *local)
{
    static _Thread_local int64_t tick_ns;
    static _Thread_local unsigned woken; /* in that tick of this thread's loop */
    if (tick_ns != loop_now_ns(local->loop)) {
        tick_ns = loop_now_ns(local->loop);
        woken = 0;
    }
    for (unsigned i = 0; local->wake_next && (i < WAKES_OF_TOPIC_MIN || woken < WAKES_PER_TICK);
         i++, woken++) {
        struct stream_subscriber *subscriber = local->wake_next;
        local->wake_next = LIST_NEXT(subscriber, entry);
        bool may_stay = !is_before_cut(subscriber, local) ||
                        (can_be_led(subscriber) && http_stream_is_taken(subscriber->ref));
        if (may_stay || cut_off(subscriber))
            http_stream_wake(subscriber->ref);
        else
            http_stream_cut(subscriber->ref);
    }
    if (!local->wake_next && local->wake_again) {
        local->wake_next = LIST_FIRST(&local->subscribers);
        local->wake_again = false;
    }
    local->is_waking = local->wake_next != NULL;
    if (!local->is_waking)
        return;
    stream_topic_ref(local->topic);
    local->wake_message.on_message = on_wake_message;
    loop_post(local->loop, &local->wake_message);
}

static void on_wake_message(struct loop *loop, struct loop_message *message)
{
    struct stream_local *local = CONTAINER_OF(message, struct stream_local, wake_message);
    (void)loop;
    wake_some(local);
    stream_topic_unref(local->topic);
}

static void wake_all(struct stream_local *local)
{
    if (local->is_waking) { /* those after the pass are woken again, those before it once */
        local->wake_again = true;
        return;
    }
    local->wake_next = LIST_FIRST(&local->subscribers);
    wake_some(local);
}

static void start_heartbeat(struct stream_local *local);

static void on_heartbeat(struct loop_timer *timer)
{
    struct stream_local *local = CONTAINER_OF(timer, struct stream_local, heartbeat);
    local->beats++;
    start_heartbeat(local);
    wake_all(local);
}

static void start_heartbeat(struct stream_local *local)
{
    int64_t after_ms = atomic_load_explicit(&local->topic->heartbeat_ms, memory_order_relaxed);
    loop_timer_start(local->loop, &local->heartbeat, loop_now_ns(local->loop) + after_ms * CLOCK_NS_PER_MS,
                     on_heartbeat);
}

void stream_local_update(struct stream_local *local, uint64_t cut_sequence, bool closes)
{
    local->is_closed = closes;
    if (!closes)
        local->cut_sequence = cut_sequence;
    if (LIST_EMPTY(&local->subscribers))
        return;
    start_heartbeat(local); /* a segment just sent is as good as a heartbeat */
    wake_all(local);
}

/* ---- giving ---- */

/* The rest of the segment that it has begun. False: there was no room for all of it. */
static bool finish_current(struct stream_subscriber *subscriber, struct buf *out, size_t *room)
{
    struct stream_segment *current = subscriber->opening ? subscriber->opening : subscriber->at;
    if (!current || (subscriber->offset == current->len && !subscriber->opening))
        return true;
    size_t left = current->len - subscriber->offset, taken = left < *room ? left : *room;
    buf_put(out, current->bytes + subscriber->offset, taken);
    subscriber->offset += taken;
    *room -= taken;
    if (taken < left)
        return false;
    metric_add(subscriber->topic->config.lines, current->lines);
    if (subscriber->opening) {
        subscriber->opening = NULL;
        subscriber->offset =
            subscriber->at ? subscriber->at->len : 0; /* the segment before its place was not for it */
        stream_segment_unref(current);
    }
    return true;
}

/* Nothing is left to send: a line with its position, if the last one is long ago. A subscriber that is not on the chain asks for what
 * follows. */
static enum http_producer_state wait_for_more(struct stream_subscriber *subscriber,
                                              struct stream_local *local, struct buf *out, bool has_given)
{
    const struct stream_config *config = &subscriber->topic->config;
    const struct stream_segment *at = subscriber->at;
    bool asks = !at && !subscriber->is_with_owner;
    if (asks)
        subscriber->position = subscriber->after;
    int64_t position = at ? at->to : subscriber->position;
    if (local->is_closed || subscriber->is_ending)
        return HTTP_PRODUCER_END;
    if (subscriber->is_refused)
        return HTTP_PRODUCER_FAIL;
    if (at && subscriber->greets && (config->greets_all || !has_given))
        put_own_line(subscriber->topic, out, config->greeting, position);
    else if (subscriber->beats != local->beats && !has_given)
        put_own_line(subscriber->topic, out, config->heartbeat, position);
    subscriber->greets = subscriber->greets && !at;
    subscriber->beats = local->beats;
    if (asks) {
        subscriber->is_with_owner = true;
        subscriber->message.on_message = stream_subscriber_ask;
        loop_post(config->owner, &subscriber->message);
    }
    return HTTP_PRODUCER_WAIT;
}

/* Ends only between segments, so that the last line a reader gets is whole. */
static enum http_producer_state produce(void *context, struct buf *out, size_t room)
{
    struct stream_subscriber *subscriber = context;
    struct stream_local *local = local_of(subscriber);
    size_t room_before = room;
    bool has_expired = clock_unix_us() / 1000000 >= subscriber->expires_at_s;
    if (is_before_cut(subscriber, local)) {
        if (can_be_led(subscriber)) {                   /* off the chain: pages follow */
            if (subscriber->after < subscriber->at->to) /* else it joined the next segment in the middle */
                subscriber->after = subscriber->at->to;
            stream_segment_unref(subscriber->at);
            subscriber->at = NULL;
            subscriber->offset = 0;
        } else if (!cut_off(subscriber)) {
            return HTTP_PRODUCER_FAIL;
        }
    }
    for (;;) {
        if (!finish_current(subscriber, out, &room))
            return HTTP_PRODUCER_MORE;
        if (has_expired)
            return HTTP_PRODUCER_END;
        struct stream_segment *at = subscriber->at;
        struct stream_segment *next = at ? atomic_load_explicit(&at->next, memory_order_acquire) : NULL;
        if (!next)
            return wait_for_more(subscriber, local, out, room < room_before);
        stream_segment_ref(next);
        stream_segment_unref(at);
        subscriber->at = next;
        subscriber->offset = 0;
    }
}

/* While it waits: it has everything up to its position. */
static void put_last(void *context, struct buf *out)
{
    const struct stream_subscriber *subscriber = context;
    const char *line = subscriber->topic->config.stopping;
    if (line && !subscriber->is_ending)
        put_own_line(subscriber->topic, out, line,
                     subscriber->at ? subscriber->at->to : subscriber->position);
}

/* ---- coming and going ---- */

/* Back to the owner, which counts and frees it. */
static void leave(struct stream_subscriber *subscriber)
{
    stream_segment_unref(subscriber->opening);
    stream_segment_unref(subscriber->at);
    subscriber->message.on_message = stream_subscriber_left;
    loop_post(subscriber->topic->config.owner, &subscriber->message);
}

static void release(void *context)
{
    struct stream_subscriber *subscriber = context;
    struct stream_local *local = local_of(subscriber);
    if (local->wake_next == subscriber)
        local->wake_next = LIST_NEXT(subscriber, entry);
    LIST_REMOVE(subscriber, entry);
    if (LIST_EMPTY(&local->subscribers))
        loop_timer_stop(local->loop, &local->heartbeat);
    metric_change(subscriber->topic->config.subscribers, -1);
    if (!subscriber->is_with_owner) {
        leave(subscriber);
        return;
    }
    subscriber->is_released = true;
    subscriber->gone_message.on_message = stream_subscriber_gone;
    loop_post(subscriber->topic->config.owner, &subscriber->gone_message);
}

void stream_subscriber_resume(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct stream_subscriber *subscriber = (struct stream_subscriber *)message;
    subscriber->is_with_owner = false;
    subscriber->opening = subscriber->handed_opening;
    subscriber->at = subscriber->handed_at;
    subscriber->is_refused = subscriber->handed_refusal;
    subscriber->handed_opening = NULL;
    subscriber->handed_at = NULL;
    subscriber->offset = subscriber->opening ? 0 : subscriber->at ? subscriber->at->len : 0;
    if (subscriber->is_released)
        leave(subscriber);
    else
        http_stream_wake(subscriber->ref);
}

void stream_subscriber_arrive(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct stream_subscriber *subscriber = (struct stream_subscriber *)message;
    struct http_request *request = http_request_unpark(subscriber->ref);
    if (request)
        subscriber->topic->config.on_admitted(request, subscriber, subscriber->position);
    else
        leave(subscriber);
}

void stream_send(struct stream_subscriber *subscriber, struct http_request *request,
                 const struct http_response *response, int64_t expires_at_s)
{
    struct stream_local *local = local_of(subscriber);
    subscriber->expires_at_s = expires_at_s;
    subscriber->position = subscriber->after; /* that of a heartbeat before it is on the chain */
    subscriber->beats = local->beats;
    if (LIST_EMPTY(&local->subscribers))
        start_heartbeat(local);
    LIST_INSERT_HEAD(&local->subscribers, subscriber, entry);
    metric_change(subscriber->topic->config.subscribers, 1);
    http_send_stream(request, response,
                     &(struct http_producer){.produce = produce,
                                             .release = release,
                                             .context = subscriber,
                                             .content_length = -1,
                                             .put_last = put_last});
    struct loop_park_ref ref = http_stream_ref(request);
    if (ref.generation) /* else it was no stream after all, and has left */
        subscriber->ref = ref;
}
