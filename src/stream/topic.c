/* A topic's owner: what is kept, where a subscriber may join, a message to every loop that has one, and the pages that lead a
 * subscriber up to the chain. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "stream/stream_inside.h"

/* ---- segments: lines written once, for all subscribers ---- */

struct stream_segment *stream_segment_create(const struct stream_step *step)
{
    struct stream_segment *segment = memory_alloc(sizeof *segment + step->bytes.len);
    *segment = (struct stream_segment){
        .lines = step->lines,
        .can_be_joined = step->can_be_joined,
        .from = step->from,
        .to = step->to,
        .len = step->bytes.len,
    };
    atomic_init(&segment->refs, 1);
    atomic_init(&segment->next, NULL);
    if (step->bytes.len)
        memcpy(segment->bytes, step->bytes.ptr, step->bytes.len);
    budget_add(BUDGET_STREAMS, sizeof *segment + segment->len);
    return segment;
}

void stream_segment_ref(struct stream_segment *segment)
{
    atomic_fetch_add_explicit(&segment->refs, 1, memory_order_relaxed);
}

/* The last reference to a segment releases the next one: a chain without readers is freed link by link. */
void stream_segment_unref(struct stream_segment *segment)
{
    while (segment && atomic_fetch_sub(&segment->refs, 1) == 1) {
        struct stream_segment *next = atomic_load(&segment->next);
        budget_release(BUDGET_STREAMS, sizeof *segment + segment->len);
        free(segment);
        segment = next;
    }
}

/* ---- the topic ---- */

static atomic_size_t topic_count; /* of this process */

struct stream_topic *stream_topic_create(const struct stream_config *config, int64_t position)
{
    unsigned loops = loop_group_count(config->loops);
    struct stream_topic *topic = memory_zalloc(sizeof *topic + loops * sizeof topic->locals[0]);
    atomic_init(&topic->refs, 1);
    topic->config = *config;
    atomic_init(&topic->heartbeat_ms, config->limits.heartbeat_ms);
    atomic_fetch_add(&topic_count, 1);
    topic->first = topic->newest =
        stream_segment_create(&(struct stream_step){position, position, .lines = 0});
    return topic;
}

void stream_topic_unref(struct stream_topic *topic)
{
    if (atomic_fetch_sub(&topic->refs, 1) > 1)
        return;
    atomic_fetch_sub(&topic_count, 1);
    stream_segment_unref(topic->first);
    for (unsigned i = 0; i < loop_group_count(topic->config.loops); i++)
        free(topic->locals[i]);
    free(topic->kept);
    free(topic);
}

void stream_topic_set_limits(struct stream_topic *topic, const struct stream_limits *limits)
{
    topic->config.limits = *limits;
    atomic_store_explicit(&topic->heartbeat_ms, limits->heartbeat_ms, memory_order_relaxed);
}

int64_t stream_topic_position(const struct stream_topic *topic)
{
    return topic->newest->to;
}

void stream_report_add(struct stream_report *report, const struct stream_topic *topic)
{
    if (!topic)
        return;
    report->readers += stream_topic_count(topic);
    report->bytes += topic->kept_bytes;
    report->position = stream_topic_position(topic);
}

void stream_report_put(const struct stream_report *report, struct buf *out)
{
    buf_put_str(out, out->data[out->end - 1] == '[' ? STR("{") : STR(",{"));
    json_put_member_str(out, "kind", report->kind);
    json_put_member_str(out, "tenant_id", report->tenant);
    json_put_member_str(out, "name", report->name);
    json_put_member_i64(out, "readers", (int64_t)report->readers);
    json_put_member_i64(out, "position", report->position);
    json_put_member_i64(out, "bytes", (int64_t)report->bytes);
    buf_put_char(out, '}');
}

size_t stream_topic_count(const struct stream_topic *topic)
{
    return topic->subscriber_count;
}

/* ---- to the loops ---- */

struct topic_message {
    struct loop_message message;
    struct stream_topic *topic; /* referenced */
    uint64_t cut_sequence;
    bool closes;
};

static void on_topic_message(struct loop *loop, struct loop_message *loop_message)
{
    struct topic_message *message = (struct topic_message *)loop_message;
    stream_local_update(message->topic->locals[loop_index(loop)], message->cut_sequence, message->closes);
    stream_topic_unref(message->topic);
    free(message);
}

static void post_to_loops(struct stream_topic *topic, bool closes)
{
    for (unsigned i = 0; i < loop_group_count(topic->config.loops); i++) {
        if (!topic->locals[i] || topic->locals[i]->members == 0)
            continue;
        struct topic_message *message = memory_alloc(sizeof *message);
        *message = (struct topic_message){
            .message.on_message = on_topic_message,
            .topic = topic,
            .cut_sequence = topic->cut_sequence,
            .closes = closes,
        };
        stream_topic_ref(topic);
        loop_post(topic->locals[i]->loop, &message->message);
    }
}

/* ---- what is kept ---- */

/* What comes before it is kept no longer than its readers need it. */
static void set_first(struct stream_topic *topic, struct stream_segment *segment)
{
    stream_segment_ref(segment);
    stream_segment_unref(topic->first);
    topic->first = segment;
}

/* Nothing was published for a while: subscribers are up to date, and new ones start with pages, so that a quiet topic keeps
 * nothing. A slow subscriber's references keep what it has not read, until the next quiet period. */
static void on_quiet(struct loop_timer *timer)
{
    struct stream_topic *topic = CONTAINER_OF(timer, struct stream_topic, quiet);
    if (topic->cut_sequence < topic->quiet_sequence)
        topic->cut_sequence = topic->quiet_sequence;
    topic->quiet_sequence = topic->newest->sequence;
    set_first(topic, topic->newest);
    free(topic->kept);
    topic->kept = NULL;
    topic->kept_start = topic->kept_end = topic->kept_capacity = topic->kept_bytes = 0;
}

/* ---- subscribers ---- */

/* The last segment that a subscriber with this position has, or NULL. */
static struct stream_segment *find_place(const struct stream_topic *topic, int64_t after)
{
    size_t low = topic->kept_start, high = topic->kept_end;
    if (after < topic->first->to || after > topic->newest->to)
        return NULL;
    while (low < high) { /* the first that leads past it */
        size_t middle = low + (high - low) / 2;
        if (topic->kept[middle]->to > after)
            high = middle;
        else
            low = middle + 1;
    }
    struct stream_segment *place = low > topic->kept_start ? topic->kept[low - 1] : topic->first;
    bool is_between = place->to < after;
    return is_between && !topic->kept[low]->can_be_joined ? NULL : place;
}

bool stream_topic_reaches(const struct stream_topic *topic, int64_t after)
{
    return find_place(topic, after) != NULL;
}

static struct stream_local *own_local(struct stream_topic *topic, struct loop *loop)
{
    struct stream_local **local = &topic->locals[loop_index(loop)];
    if (!*local) {
        *local = memory_zalloc(sizeof **local);
        (*local)->topic = topic;
        (*local)->loop = loop;
    }
    return *local;
}

void stream_topic_admit(struct stream_topic *topic, const struct stream_entry *entry)
{
    struct stream_segment *place = entry->is_paged ? NULL : find_place(topic, entry->after);
    struct stream_subscriber *subscriber = memory_zalloc(sizeof *subscriber);
    budget_add(BUDGET_STREAMS, sizeof *subscriber);
    assert(place || entry->is_paged);
    subscriber->message.on_message = stream_subscriber_arrive;
    subscriber->topic = topic;
    subscriber->ref = entry->ref;
    subscriber->at = place;
    subscriber->after = entry->after;
    subscriber->is_paged = entry->is_paged;
    subscriber->offset = entry->opening ? entry->opening_offset : place ? place->len : 0;
    subscriber->opening = entry->opening;
    subscriber->greets = topic->config.greets_all || (!entry->opening && place == topic->newest);
    subscriber->position = topic->newest->to;
    if (place)
        stream_segment_ref(place);
    if (entry->opening)
        stream_segment_ref(entry->opening);
    stream_topic_ref(topic);
    topic->subscriber_count++;
    own_local(topic, entry->ref.loop)->members++;
    loop_post(entry->ref.loop, &subscriber->message);
}

void stream_subscriber_left(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct stream_subscriber *subscriber = (struct stream_subscriber *)message;
    struct stream_topic *topic = subscriber->topic;
    topic->locals[loop_index(subscriber->ref.loop)]->members--;
    if (--topic->subscriber_count == 0 && topic->config.on_idle)
        topic->config.on_idle(topic->config.context);
    budget_release(BUDGET_STREAMS, sizeof *subscriber);
    free(subscriber);
    stream_topic_unref(topic);
}

void stream_topic_close(struct stream_topic *topic)
{
    topic->config.on_idle = NULL; /* whose context may go now */
    topic->config.read_page = NULL;
    loop_timer_stop(topic->config.owner, &topic->quiet);
    post_to_loops(topic, true);
    stream_topic_unref(topic);
}

/* ---- pages: a subscriber that stands before the chain is led up to it out of whatever keeps lines longer ----
 *
 *   loop     all that it had was given ─ ask ──▶ owner   its position is kept: it is on the chain
 *                                                        its position is yet to come: it waits
 *                                                        else a page is read; it is handed back with it
 *
 * The place on the chain is looked for only when the reader has taken all before it, so that nothing is kept for one that
 * is still reading old lines. */

static void hand_back(struct stream_subscriber *subscriber)
{
    subscriber->lead = STREAM_LEAD_NONE;
    subscriber->message.on_message = stream_subscriber_resume;
    loop_post(subscriber->ref.loop, &subscriber->message);
}

static void lead_on(struct stream_subscriber *subscriber)
{
    struct stream_topic *topic = subscriber->topic;
    struct stream_segment *place = find_place(topic, subscriber->after);
    if (place) {
        stream_segment_ref(place);
        subscriber->handed_at = place;
        hand_back(subscriber);
    } else if (!topic->config.read_page) { /* the topic was closed, which the loop knows or will */
        hand_back(subscriber);
    } else if (subscriber->after > topic->newest->to) {
        subscriber->lead = STREAM_LEAD_AHEAD;
        LIST_INSERT_HEAD(&topic->ahead, subscriber, ahead);
    } else {
        subscriber->lead = STREAM_LEAD_READING;
        topic->config.read_page(topic->config.context, subscriber, subscriber->after);
    }
}

/* More than the limits allow, or than this topic's part of the memory for streams when that is full. */
static bool keeps_too_much(const struct stream_topic *topic)
{
    const struct stream_limits *limits = &topic->config.limits;
    if (topic->newest->to - topic->first->to > limits->positions_max || topic->kept_bytes > limits->bytes_max)
        return true;
    return budget_is_full(BUDGET_STREAMS) &&
           topic->kept_bytes > budget_share(BUDGET_STREAMS) / atomic_load(&topic_count);
}

void stream_topic_publish(struct stream_topic *topic, struct stream_segment *segment)
{
    const struct stream_limits *limits = &topic->config.limits;
    struct loop *owner = topic->config.owner;
    assert(segment->from == topic->newest->to && segment->to >= segment->from);
    segment->sequence = topic->newest->sequence + 1;
    atomic_store_explicit(&topic->newest->next, segment,
                          memory_order_release); /* the chain's reference now */
    topic->newest = segment;
    if (topic->kept_end == topic->kept_capacity) {
        size_t count = topic->kept_end - topic->kept_start;
        if (count >= topic->kept_capacity / 2) {
            topic->kept_capacity = topic->kept_capacity ? 2 * topic->kept_capacity : 16;
            topic->kept =
                memory_realloc_array(topic->kept, topic->kept_capacity, sizeof(struct stream_segment *));
        }
        memmove(topic->kept, topic->kept + topic->kept_start, count * sizeof(struct stream_segment *));
        topic->kept_start = 0;
        topic->kept_end = count;
    }
    topic->kept[topic->kept_end++] = segment;
    topic->kept_bytes += segment->len;
    while (topic->kept_end - topic->kept_start > 1 && keeps_too_much(topic)) {
        set_first(topic, topic->kept[topic->kept_start++]);
        topic->cut_sequence = topic->first->sequence;
        topic->kept_bytes -= topic->first->len;
    }
    if (topic->config.read_page)
        loop_timer_start(owner, &topic->quiet, loop_now_ns(owner) + limits->heartbeat_ms * CLOCK_NS_PER_MS,
                         on_quiet);
    post_to_loops(topic, false);
    /* Collected first: lead_on() calls read_page(), and adds those that are still ahead to the list again. */
    LIST_HEAD(, stream_subscriber) all = LIST_HEAD_INITIALIZER(all);
    struct stream_subscriber *ahead;
    while ((ahead = LIST_FIRST(&topic->ahead)) != NULL) {
        LIST_REMOVE(ahead, ahead);
        LIST_INSERT_HEAD(&all, ahead, ahead);
    }
    while ((ahead = LIST_FIRST(&all)) != NULL) {
        LIST_REMOVE(ahead, ahead);
        lead_on(ahead);
    }
}

void stream_subscriber_ask(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    lead_on((struct stream_subscriber *)message);
}

void stream_page_give(struct stream_subscriber *subscriber, struct stream_segment *page)
{
    if (page && budget_is_full(BUDGET_STREAMS)) {
        budget_count_refusal(BUDGET_STREAMS);
        stream_segment_unref(page);
        page = NULL;
    }
    if (subscriber->is_gone) {
        stream_segment_unref(page);
        stream_subscriber_left(subscriber->topic->config.owner, &subscriber->message);
        return;
    }
    subscriber->handed_opening = page;
    subscriber->handed_refusal = !page;
    if (page)
        subscriber->after = page->to;
    hand_back(subscriber);
}

void stream_subscriber_gone(struct loop *loop, struct loop_message *message)
{
    struct stream_subscriber *subscriber = CONTAINER_OF(message, struct stream_subscriber, gone_message);
    if (subscriber->lead == STREAM_LEAD_READING)
        subscriber->is_gone = true;
    if (subscriber->lead != STREAM_LEAD_AHEAD)
        return; /* handed back: its loop sends it on */
    LIST_REMOVE(subscriber, ahead);
    stream_subscriber_left(loop, &subscriber->message);
}
