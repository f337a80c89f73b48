/* Which partitions a reader has, where it begins in each, and what it tells the broker.
 *
 * A group that is new has no place anywhere. It gets one in every partition before anybody says it is ready, by a commit of
 * whoever has partition 0: there is one such member in a generation, and Kafka refuses commits of those that are over. So
 * what is published from then on reaches the group, also if everyone dies before the first message. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "bus/kafka/inside.h"

enum {
    AGAIN_MS = 50,
    COMMIT_AGAIN_MS = 200,
    LEAVE_COMMIT_MS = 2000, /* for the last commit before a partition goes */
};

static const char *topic_of(const struct kafka_reader *reader)
{
    return reader->consumer.spec.topic;
}

static struct kafka_lane *lane_at(const struct kafka_reader *reader, int32_t partition)
{
    return partition >= 0 && (unsigned)partition < reader->lane_count ? reader->lanes[partition] : NULL;
}

static bool owns(const struct kafka_reader *reader, int32_t partition)
{
    const struct kafka_lane *lane = lane_at(reader, partition);

    return lane && lane->owned;
}

static rd_kafka_topic_partition_list_t *list_all(const struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)reader->partitions);

    for (unsigned i = 0; i < reader->partitions; i++)
        rd_kafka_topic_partition_list_add(list, topic_of(reader), (int32_t)i)->offset =
            RD_KAFKA_OFFSET_INVALID;
    return list;
}

/* ---- what the topic is like ---- */

/* Somebody else's topic has as many partitions as it has. */
static bool count_partitions(struct kafka_reader *reader)
{
    const struct rd_kafka_metadata *metadata;
    bool found = false;

    if (reader->consumer.topic->spec.partitions > 0)
        return true;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(reader->rk, topic_of(reader), NULL);
    rd_kafka_resp_err_t error = rd_kafka_metadata(reader->rk, 0, topic, &metadata, KAFKA_ASK_MS);
    rd_kafka_topic_destroy(topic);
    if (error)
        return false;
    if (metadata->topic_cnt == 1 && !metadata->topics[0].err && metadata->topics[0].partition_cnt > 0) {
        reader->partitions = (unsigned)metadata->topics[0].partition_cnt;
        found = true;
    }
    rd_kafka_metadata_destroy(metadata);
    return found;
}

static bool ask_ends(struct kafka_reader *reader, int32_t partition, int64_t *low, int64_t *high)
{
    return rd_kafka_query_watermark_offsets(reader->rk, topic_of(reader), partition, low, high,
                                            KAFKA_ASK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* ---- commits ---- */

static void take_answer(struct kafka_reader *reader, rd_kafka_event_t *event)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(event);
    rd_kafka_resp_err_t error = rd_kafka_event_error(event);

    reader->committing = false;
    for (int i = 0; list && i < list->cnt; i++) {
        struct kafka_lane *lane = lane_at(reader, list->elems[i].partition);
        if (!error)
            error = list->elems[i].err;
        if (lane && !error)
            lane->committed = lane->offered;
    }
    if (error) /* the group has moved on, or its coordinator is away: the place is offered again, if it is ours then */
        reader->commit_at_ns = clock_deadline_ms(COMMIT_AGAIN_MS);
    rd_kafka_event_destroy(event);
}

static bool poll_answer(struct kafka_reader *reader, int wait_ms)
{
    rd_kafka_event_t *event = reader->committing ? rd_kafka_queue_poll(reader->commits, wait_ms) : NULL;

    if (!event)
        return false;
    take_answer(reader, event);
    return true;
}

static void begin_commit(struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(4);

    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->lane_count; i++) {
        struct kafka_lane *lane = reader->lanes[i];
        if (!lane || !lane->owned || lane->position < 0 || lane->position == lane->committed)
            continue;
        lane->offered = lane->position;
        rd_kafka_topic_partition_list_add(list, topic_of(reader), (int32_t)i)->offset = lane->position;
    }
    pthread_mutex_unlock(&reader->lock);
    FAILPOINT("kafka.before_offsets");
    if (list->cnt > 0)
        reader->committing = !rd_kafka_commit_queue(reader->rk, list, reader->commits, NULL, NULL);
    if (list->cnt > 0 && !reader->committing)
        reader->commit_at_ns = clock_deadline_ms(COMMIT_AGAIN_MS);
    rd_kafka_topic_partition_list_destroy(list);
}

/* One at a time, so that none overtakes another; what is settled meanwhile goes with the next. */
void bus_kafka_group_commit(struct kafka_reader *reader)
{
    if (!bus_kafka_reader_is_shared(reader))
        return;
    poll_answer(reader, 0);
    if (reader->positioned && !reader->committing && clock_mono_ns() >= reader->commit_at_ns)
        begin_commit(reader);
}

void bus_kafka_group_commit_now(struct kafka_reader *reader, int64_t deadline_ns)
{
    if (!bus_kafka_reader_is_shared(reader) || !atomic_load(&reader->kafka->up))
        return;
    while (reader->committing && clock_ms_left(deadline_ns) > 0 && !atomic_load(&reader->kafka->interrupted))
        poll_answer(reader, 20);
    if (reader->committing)
        return;
    begin_commit(reader);
    while (reader->committing && clock_ms_left(deadline_ns) > 0 && !atomic_load(&reader->kafka->interrupted))
        poll_answer(reader, 20);
}

/* ---- where to begin ---- */

/* Under no lock: nothing is dispatched before a lane has its place. */
static void place(struct kafka_reader *reader, unsigned partition, int64_t offset, bool committed)
{
    pthread_mutex_lock(&reader->lock);
    struct kafka_lane *lane = bus_kafka_lane_get(reader, partition);
    bus_kafka_lane_place(lane, offset);
    lane->committed = committed ? offset : -1;
    pthread_mutex_unlock(&reader->lock);
}

static unsigned count_missing(const rd_kafka_topic_partition_list_t *list)
{
    unsigned missing = 0;

    for (int i = 0; i < list->cnt; i++)
        missing += list->elems[i].offset < 0;
    return missing;
}

static bool commit_places(struct kafka_reader *reader, const rd_kafka_topic_partition_list_t *list)
{
    rd_kafka_queue_t *queue = rd_kafka_queue_new(reader->rk);
    rd_kafka_event_t *event = NULL;
    bool good = false;

    if (!rd_kafka_commit_queue(reader->rk, list, queue, NULL, NULL))
        event = rd_kafka_queue_poll(queue, KAFKA_ASK_MS);
    if (event) {
        rd_kafka_topic_partition_list_t *answer = rd_kafka_event_topic_partition_list(event);
        good = !rd_kafka_event_error(event);
        for (int i = 0; answer && i < answer->cnt; i++)
            good &= !answer->elems[i].err;
        rd_kafka_event_destroy(event);
    }
    rd_kafka_queue_destroy(queue);
    return good;
}

/* A group that has a place in some partitions is not new: the others were added to the topic since. */
static bool give_places(struct kafka_reader *reader, rd_kafka_topic_partition_list_t *list, unsigned missing)
{
    bool from_now = missing == (unsigned)list->cnt && reader->consumer.spec.from == BUS_FROM_NOW;
    rd_kafka_topic_partition_list_t *given = rd_kafka_topic_partition_list_new((int)missing);
    bool good = true;

    for (int i = 0; i < list->cnt && good; i++) {
        int64_t low, high;
        if (list->elems[i].offset >= 0)
            continue;
        good = ask_ends(reader, list->elems[i].partition, &low, &high);
        if (good)
            rd_kafka_topic_partition_list_add(given, topic_of(reader), list->elems[i].partition)->offset =
                list->elems[i].offset = from_now ? high : low;
    }
    good = good && commit_places(reader, given);
    FAILPOINT("kafka.after_places");
    rd_kafka_topic_partition_list_destroy(given);
    return good;
}

static bool position_group(struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *list = list_all(reader);
    bool good = !rd_kafka_committed(reader->rk, list, KAFKA_ASK_MS);

    for (int i = 0; i < list->cnt && good; i++)
        good = !list->elems[i].err;
    unsigned missing = count_missing(list);
    if (good && missing > 0)
        good = owns(reader, 0) && give_places(reader, list, missing);
    for (int i = 0; i < list->cnt && good; i++)
        if (owns(reader, list->elems[i].partition))
            place(reader, (unsigned)list->elems[i].partition, list->elems[i].offset, true);
    rd_kafka_topic_partition_list_destroy(list);
    return good;
}

/* Partitions that are added later are read from their beginning. */
static bool position_every(struct kafka_reader *reader)
{
    const struct bus_subscription *spec = &reader->consumer.spec;

    for (unsigned i = 0; i < reader->partitions; i++) {
        int64_t low, high;
        if (owns(reader, (int32_t)i))
            continue;
        if (!ask_ends(reader, (int32_t)i, &low, &high))
            return false;
        bool from_start = spec->from == BUS_FROM_START || reader->ready;
        place(reader, i, from_start ? low : high, false);
        pthread_mutex_lock(&reader->lock);
        reader->lanes[i]->owned = true;
        pthread_mutex_unlock(&reader->lock);
    }
    return true;
}

/* Reads on in every partition from where its lane ends. */
static bool apply(struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(4), *paused;

    paused = rd_kafka_topic_partition_list_new(4);
    for (unsigned i = 0; i < reader->lane_count; i++) {
        struct kafka_lane *lane = reader->lanes[i];
        if (!lane || !lane->owned)
            continue;
        if (lane->paused)
            rd_kafka_topic_partition_list_add(paused, topic_of(reader), (int32_t)i);
        lane->paused = false;
        rd_kafka_topic_partition_list_add(list, topic_of(reader), (int32_t)i)->offset = lane->fetch_at;
    }
    if (paused->cnt > 0)
        rd_kafka_resume_partitions(reader->rk, paused);
    rd_kafka_resp_err_t error = rd_kafka_assign(reader->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_topic_partition_list_destroy(paused);
    return !error;
}

void bus_kafka_group_position(struct kafka_reader *reader)
{
    const struct bus_subscription *spec = &reader->consumer.spec;

    if (clock_mono_ns() < reader->position_at_ns)
        return;
    reader->position_at_ns = clock_deadline_ms(AGAIN_MS);
    if (!count_partitions(reader) ||
        !(bus_kafka_reader_is_shared(reader) ? position_group(reader) : position_every(reader)) ||
        !apply(reader))
        return;
    reader->positioned = true;
    if (reader->ready)
        return;
    reader->ready = true;
    if (spec->on_ready)
        spec->on_ready(spec->context);
}

/* ---- a place that is gone ---- */

/* Retention was faster than we were: on at the oldest. The end is before us: the broker lost its tail, or the topic was
 * made anew; a group then takes all there is rather than leave something out, while who reads everything looks at
 * the truth when it is told of a gap. */
static int64_t go_on_at(const struct kafka_reader *reader, int64_t fetch_at, int64_t low, int64_t high)
{
    if (fetch_at < low || bus_kafka_reader_is_shared(reader))
        return low;
    return high;
}

void bus_kafka_group_lost(struct kafka_reader *reader)
{
    bool any = false;

    if (clock_mono_ns() < reader->position_at_ns)
        return;
    for (unsigned i = 0; i < reader->lane_count; i++) {
        struct kafka_lane *lane = reader->lanes[i];
        int64_t low, high;
        if (!lane || !lane->owned || !lane->lost)
            continue;
        reader->position_at_ns = clock_deadline_ms(AGAIN_MS);
        if (!ask_ends(reader, (int32_t)i, &low, &high))
            break; /* nobody else's would be answered now */
        lane->lost = false;
        any = true;
        pthread_mutex_lock(&reader->lock);
        if (lane->fetch_at < low || lane->fetch_at > high)
            bus_kafka_lane_gap(lane, go_on_at(reader, lane->fetch_at, low, high));
        pthread_mutex_unlock(&reader->lock);
    }
    if (any)
        apply(reader);
}

/* ---- rebalances: the pump's, inside a poll ---- */

static void await_idle(struct kafka_reader *reader, int64_t wait_ms)
{
    int64_t deadline_ns = clock_deadline_ms(wait_ms);

    while (reader->running > 0 && clock_ms_left(deadline_ns) > 0)
        bus_kafka_wait_ms(&reader->idle, &reader->lock, clock_ms_left(deadline_ns));
}

void bus_kafka_group_leave(struct kafka_reader *reader, int64_t wait_ms)
{
    bool lost = rd_kafka_assignment_lost(reader->rk);

    pthread_mutex_lock(&reader->lock);
    reader->halted = true;
    if (!lost)
        await_idle(reader, wait_ms);
    pthread_mutex_unlock(&reader->lock);
    FAILPOINT("kafka.before_leave");
    if (!lost && reader->positioned)
        bus_kafka_group_commit_now(reader, clock_deadline_ms(LEAVE_COMMIT_MS));
    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->lane_count; i++)
        if (reader->lanes[i] && reader->lanes[i]->owned) {
            bus_kafka_lane_leave(reader->lanes[i]);
            reader->lanes[i]->paused = reader->lanes[i]->lost = false;
        }
    reader->halted = false;
    pthread_mutex_unlock(&reader->lock);
    reader->assigned = reader->positioned = false;
}

static void join(struct kafka_reader *reader, const rd_kafka_topic_partition_list_t *partitions)
{
    rd_kafka_topic_partition_list_t *none = rd_kafka_topic_partition_list_new(0);

    pthread_mutex_lock(&reader->lock);
    for (int i = 0; i < partitions->cnt; i++) {
        struct kafka_lane *lane = bus_kafka_lane_get(reader, (unsigned)partitions->elems[i].partition);
        lane->owned = true;
        lane->fetch_at = INT64_MAX; /* until it has its place */
    }
    pthread_mutex_unlock(&reader->lock);
    reader->assigned = true;
    reader->position_at_ns = 0;
    rd_kafka_assign(reader->rk, none);
    rd_kafka_topic_partition_list_destroy(none);
}

static void on_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t what,
                         rd_kafka_topic_partition_list_t *partitions, void *opaque)
{
    struct kafka_reader *reader = opaque;

    if (what == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        join(reader, partitions);
        return;
    }
    bus_kafka_group_leave(reader, reader->kafka->config.handler_ms);
    rd_kafka_assign(rk, NULL);
}

void bus_kafka_group_callbacks(rd_kafka_conf_t *conf)
{
    rd_kafka_conf_set_rebalance_cb(conf, on_rebalance);
}

/* ---- now and then ---- */

/* The broker told where the end is with the messages themselves; of partitions that are not read now it has to be asked. All
 * at once and by a question about times, which is over when its time is: the one about watermarks waits for a broker that
 * is frozen, partition by partition, and a stop with it. */
static rd_kafka_topic_partition_list_t *ask_paused(struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(4);
    bool good = true;

    for (unsigned i = 0; i < reader->lane_count; i++)
        if (reader->lanes[i] && reader->lanes[i]->owned && reader->lanes[i]->paused)
            rd_kafka_topic_partition_list_add(list, topic_of(reader), (int32_t)i)->offset =
                RD_KAFKA_OFFSET_END;
    if (list->cnt > 0)
        good = !rd_kafka_offsets_for_times(reader->rk, list, KAFKA_ASK_MS);
    for (int i = 0; i < list->cnt && good; i++)
        good = !list->elems[i].err;
    if (list->cnt > 0 && good)
        return list;
    rd_kafka_topic_partition_list_destroy(list);
    return NULL;
}

static int64_t end_of(struct kafka_reader *reader, int32_t partition,
                      const rd_kafka_topic_partition_list_t *asked)
{
    const rd_kafka_topic_partition_t *found =
        asked ? rd_kafka_topic_partition_list_find(asked, topic_of(reader), partition) : NULL;
    int64_t low, high;

    if (found)
        return found->offset;
    return rd_kafka_get_watermark_offsets(reader->rk, topic_of(reader), partition, &low, &high) ? -1 : high;
}

static void show_lag(struct kafka_reader *reader)
{
    rd_kafka_topic_partition_list_t *asked = ask_paused(reader);
    int64_t lag = 0;

    for (unsigned i = 0; i < reader->lane_count; i++) {
        const struct kafka_lane *lane = reader->lanes[i];
        if (!lane || !lane->owned)
            continue;
        int64_t end = end_of(reader, (int32_t)i, asked);
        pthread_mutex_lock(&reader->lock);
        lag += end > lane->position && lane->position >= 0 ? end - lane->position : 0;
        pthread_mutex_unlock(&reader->lock);
    }
    if (asked)
        rd_kafka_topic_partition_list_destroy(asked);
    metric_set(reader->consumer.lag, (double)lag);
    metric_set(reader->kafka_lag, (double)lag);
}

void bus_kafka_group_look(struct kafka_reader *reader)
{
    unsigned before = reader->partitions;

    if (reader->positioned && atomic_load(&reader->kafka->up))
        show_lag(reader);
    if (reader->positioned && !bus_kafka_reader_is_shared(reader) && count_partitions(reader) &&
        reader->partitions > before)
        reader->positioned = false; /* the pump gives the new ones their places */
}
