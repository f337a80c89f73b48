/* A reader's membership in its group: which partitions it has, where it begins in each, and the offsets that it commits.
 *
 * A new group has no position. It gets one in every partition before it reports to be ready, by a commit of the member that has
 * partition 0: there is one such member. So messages that are published from then on reach the group, also when every member
 * crashes before the first one. A partition that is added later is read from its beginning. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "bus/kafka/inside.h"

enum {
    AGAIN_MS = 50,
    COMMIT_AGAIN_MS = 200,
    COMMIT_ALL_MS = 10000,  /* unchanged ones too: see begin_commit() */
    LEAVE_COMMIT_MS = 2000, /* for the last commit before a partition is given up */
};

typedef rd_kafka_topic_partition_list_t kafka_list;

static const char *topic_of(const struct kafka_reader *reader)
{
    return reader->consumer.spec.topic;
}

static bool is_owned(const struct kafka_reader *reader, int32_t number)
{
    const struct kafka_partition *partition = bus_kafka_partition_find(reader, number);

    return partition && partition->is_owned;
}

static void list_add(const struct kafka_reader *reader, kafka_list *list, unsigned number, int64_t offset)
{
    rd_kafka_topic_partition_list_add(list, topic_of(reader), (int32_t)number)->offset = offset;
}

static rd_kafka_resp_err_t list_error(const kafka_list *list)
{
    for (int i = 0; list && i < list->cnt; i++)
        if (list->elems[i].err)
            return list->elems[i].err;
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static bool ask_ends(struct kafka_reader *reader, int32_t partition, int64_t *low, int64_t *high)
{
    return rd_kafka_query_watermark_offsets(reader->rk, topic_of(reader), partition, low, high,
                                            KAFKA_ASK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* ---- commits ---- */

static rd_kafka_resp_err_t commit_error(rd_kafka_event_t *event)
{
    rd_kafka_resp_err_t error = rd_kafka_event_error(event);

    return error ? error : list_error(rd_kafka_event_topic_partition_list(event));
}

static void poll_commit(struct kafka_reader *reader, int wait_ms)
{
    rd_kafka_event_t *event = reader->is_committing ? rd_kafka_queue_poll(reader->commits, wait_ms) : NULL;

    if (!event)
        return;
    kafka_list *list = rd_kafka_event_topic_partition_list(event);
    reader->is_committing = false;
    /* Another generation, or no coordinator: it is tried again if the partition is still ours. */
    if (commit_error(event))
        reader->commit_at_ns = clock_deadline_ms(COMMIT_AGAIN_MS);
    else
        for (int i = 0; list && i < list->cnt; i++) {
            struct kafka_partition *partition = bus_kafka_partition_find(reader, list->elems[i].partition);
            if (partition)
                partition->committed = partition->committing;
        }
    rd_kafka_event_destroy(event);
}

/* Offsets that have not changed are committed again from time to time. Kafka deletes those that were not for days. And librdkafka
 * (2.0) keeps a commit whose broker died, and sends it when one is back, however late: without a generation Kafka takes it from a
 * member that has no partition any more, and the group's offset goes back behind the one that its holder has committed since. */
static void begin_commit(struct kafka_reader *reader)
{
    kafka_list *list = rd_kafka_topic_partition_list_new(4);
    bool is_all = clock_mono_ns() >= reader->commit_all_at_ns;

    if (is_all)
        reader->commit_all_at_ns = clock_deadline_ms(COMMIT_ALL_MS);
    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct kafka_partition *partition = reader->partitions[i];
        if (!partition || !partition->is_owned || partition->position < 0 ||
            (partition->position == partition->committed && !is_all))
            continue;
        partition->committing = partition->position;
        list_add(reader, list, i, partition->position);
    }
    pthread_mutex_unlock(&reader->lock);
    FAILPOINT("kafka.before_offsets");
    if (list->cnt > 0) {
        reader->is_committing = !rd_kafka_commit_queue(reader->rk, list, reader->commits, NULL, NULL);
        if (!reader->is_committing)
            reader->commit_at_ns = clock_deadline_ms(COMMIT_AGAIN_MS);
    }
    rd_kafka_topic_partition_list_destroy(list);
}

/* One at a time, so that none overtakes another. */
void bus_kafka_group_commit(struct kafka_reader *reader)
{
    poll_commit(reader, 0);
    int64_t now_ns = clock_mono_ns();
    if (reader->state == READER_POSITIONED && !reader->is_committing && now_ns >= reader->commit_at_ns &&
        now_ns < atomic_load(&reader->held_until_ns))
        begin_commit(reader);
}

static void await_commit(struct kafka_reader *reader, int64_t deadline_ns)
{
    while (reader->is_committing && clock_ms_left(deadline_ns) > 0 &&
           !atomic_load(&reader->kafka->is_interrupted))
        poll_commit(reader, 20);
}

/* ---- positions ---- */

/* A group that has a position in some partitions is not new: the others were added to the topic since, and each member creates those
 * of its own. */
static bool create_positions(struct kafka_reader *reader, kafka_list *list, bool is_new)
{
    bool is_from_now = is_new && reader->consumer.spec.from == BUS_FROM_NOW, is_good = true;
    kafka_list *created = rd_kafka_topic_partition_list_new(list->cnt);

    for (int i = 0; i < list->cnt && is_good; i++) {
        rd_kafka_topic_partition_t *place = &list->elems[i];
        int64_t low, high;
        if (place->offset >= 0 || !(is_new || is_owned(reader, place->partition)))
            continue;
        is_good = ask_ends(reader, place->partition, &low, &high);
        if (!is_good)
            break;
        place->offset = is_from_now ? high : low;
        list_add(reader, created, (unsigned)place->partition, place->offset);
    }
    rd_kafka_queue_t *queue = rd_kafka_queue_new(reader->rk);
    rd_kafka_event_t *event = NULL;
    if (is_good && !rd_kafka_commit_queue(reader->rk, created, queue, NULL, NULL))
        event = rd_kafka_queue_poll(queue, KAFKA_ASK_MS);
    is_good = event && !commit_error(event);
    if (event)
        rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(queue);
    FAILPOINT("kafka.after_positions");
    rd_kafka_topic_partition_list_destroy(created);
    return is_good;
}

static bool find_positions(struct kafka_reader *reader)
{
    kafka_list *list = rd_kafka_topic_partition_list_new((int)reader->topic_partitions);
    int missing = 0, missing_here = 0;

    for (unsigned i = 0; i < reader->topic_partitions; i++)
        list_add(reader, list, i, RD_KAFKA_OFFSET_INVALID);
    bool is_good = !rd_kafka_committed(reader->rk, list, KAFKA_ASK_MS) && !list_error(list);
    for (int i = 0; i < list->cnt; i++) {
        bool is_missing = list->elems[i].offset < 0;
        missing += is_missing;
        missing_here += is_missing && is_owned(reader, list->elems[i].partition);
    }
    bool is_new = missing == list->cnt;
    if (is_good && (is_new || missing_here > 0))
        is_good = (!is_new || is_owned(reader, 0)) && create_positions(reader, list, is_new);
    pthread_mutex_lock(&reader->lock);
    for (int i = 0; i < list->cnt && is_good; i++) {
        struct kafka_partition *partition = bus_kafka_partition_find(reader, list->elems[i].partition);
        if (!partition || !partition->is_owned || partition->position >= 0)
            continue;
        partition->position = partition->fetch_at = partition->committed = list->elems[i].offset;
        partition->due_ns = 0;
    }
    pthread_mutex_unlock(&reader->lock);
    rd_kafka_topic_partition_list_destroy(list);
    return is_good;
}

/* Returns when the partitions that were fetched before have stopped. librdkafka (2.0 to 2.15, its issue 5573) asks a partition that is
 * still stopping to stop once more when it is removed again, and ends the process when the second answer comes. A stop is two
 * messages in the queue of its main thread, the request and the answer; each question is answered after what is in that queue.
 *
 * Not while the consumer is being closed. Once its last rebalance is answered, librdkafka ends the group and drops what is in that queue,
 * without an answer: a question would wait for ever, and the stop of the process with it. Nothing is assigned any more, either. */
static rd_kafka_resp_err_t assign_and_settle(struct kafka_reader *reader, const kafka_list *list)
{
    rd_kafka_t *rk = reader->rk;
    rd_kafka_resp_err_t error = rd_kafka_assign(rk, list);

    for (int question = 0; question < 3 && !reader->is_closing; question++) {
        kafka_list *answer = NULL;
        if (!rd_kafka_assignment(rk, &answer))
            rd_kafka_topic_partition_list_destroy(answer);
    }
    return error;
}

/* Reads on in every partition that has a position, from the end of its queue. */
bool bus_kafka_group_assign(struct kafka_reader *reader)
{
    kafka_list *list = rd_kafka_topic_partition_list_new(4), *paused = rd_kafka_topic_partition_list_new(4);

    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct kafka_partition *partition = reader->partitions[i];
        if (!partition || !partition->is_owned || partition->position < 0)
            continue;
        if (partition->is_paused)
            list_add(reader, paused, i, RD_KAFKA_OFFSET_INVALID);
        partition->is_paused = false;
        list_add(reader, list, i, partition->fetch_at);
    }
    pthread_mutex_unlock(&reader->lock);
    if (paused->cnt > 0)
        rd_kafka_resume_partitions(reader->rk, paused);
    rd_kafka_resp_err_t error = assign_and_settle(reader, list);
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_topic_partition_list_destroy(paused);
    return !error;
}

void bus_kafka_group_position(struct kafka_reader *reader)
{
    const struct rd_kafka_metadata *metadata;

    if (clock_mono_ns() < reader->position_at_ns)
        return;
    reader->position_at_ns = clock_deadline_ms(AGAIN_MS);
    if (reader->consumer.topic->spec.partitions == 0 &&
        !reader->uses_locks) { /* the topic of another program, which decides how many partitions it has */
        rd_kafka_topic_t *topic = rd_kafka_topic_new(reader->rk, topic_of(reader), NULL);
        rd_kafka_resp_err_t error = rd_kafka_metadata(reader->rk, 0, topic, &metadata, KAFKA_ASK_MS);
        rd_kafka_topic_destroy(topic);
        if (error)
            return;
        const struct rd_kafka_metadata_topic *found = metadata->topics;
        int count = metadata->topic_cnt == 1 && !found->err ? found->partition_cnt : 0;
        rd_kafka_metadata_destroy(metadata);
        if (count == 0)
            return;
        reader->topic_partitions = (unsigned)count;
    }
    if (!find_positions(reader) || !bus_kafka_group_assign(reader))
        return;
    bus_kafka_reader_move(reader, READER_POSITIONED);
    if (!reader->was_ready)
        bus_consumer_ready(&reader->consumer);
    reader->was_ready = true;
}

/* Retention was faster than the group, or the broker lost its tail, or the topic was created again: on at the oldest message, so
 * that none is left out. */
void bus_kafka_group_reposition(struct kafka_reader *reader)
{
    bool is_any = false;

    if (clock_mono_ns() < reader->position_at_ns)
        return;
    for (unsigned i = 0; i < reader->partition_count; i++) {
        struct kafka_partition *partition = reader->partitions[i];
        int64_t low, high;
        if (!partition || !partition->is_owned || !partition->is_out_of_range)
            continue;
        reader->position_at_ns = clock_deadline_ms(AGAIN_MS);
        if (!ask_ends(reader, (int32_t)i, &low, &high))
            break; /* the broker does not answer for the others either */
        partition->is_out_of_range = false;
        is_any = true;
        pthread_mutex_lock(&reader->lock);
        if (partition->fetch_at < low || partition->fetch_at > high)
            bus_kafka_partition_gap(partition, low);
        pthread_mutex_unlock(&reader->lock);
    }
    if (is_any)
        bus_kafka_group_assign(reader);
}

/* ---- rebalances: on the reader's thread, inside a poll ---- */

void bus_kafka_group_leave(struct kafka_reader *reader, bool is_lost)
{
    int64_t deadline_ns = clock_deadline_ms(reader->kafka->config.handler_ms);

    is_lost |= clock_mono_ns() >= atomic_load(&reader->held_until_ns);
    pthread_mutex_lock(&reader->lock);
    reader->is_halted = true;
    while (!is_lost && reader->running > 0 && clock_cond_wait(&reader->idle, &reader->lock, deadline_ns))
        continue;
    pthread_mutex_unlock(&reader->lock);
    FAILPOINT("kafka.before_leave");
    if (!is_lost && reader->state == READER_POSITIONED && atomic_load(&reader->kafka->bus.is_up)) {
        int64_t commit_by_ns = clock_deadline_ms(LEAVE_COMMIT_MS);
        await_commit(reader, commit_by_ns); /* the one under way, then the last one */
        if (!reader->is_committing)
            begin_commit(reader);
        await_commit(reader, commit_by_ns);
    }
    pthread_mutex_lock(&reader->lock);
    for (unsigned i = 0; i < reader->partition_count; i++)
        if (reader->partitions[i] && reader->partitions[i]->is_owned)
            bus_kafka_partition_give_up(reader->partitions[i]);
    reader->is_halted = false;
    pthread_mutex_unlock(&reader->lock);
    bus_kafka_reader_move(reader, READER_JOINING);
}

void bus_kafka_on_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t what, kafka_list *partitions, void *opaque)
{
    struct kafka_reader *reader = opaque;
    kafka_list *none = rd_kafka_topic_partition_list_new(0);

    if (what == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        pthread_mutex_lock(&reader->lock);
        for (int i = 0; i < partitions->cnt; i++) {
            struct kafka_partition *partition =
                bus_kafka_partition_get(reader, (unsigned)partitions->elems[i].partition);
            bus_kafka_partition_own(partition);
        }
        pthread_mutex_unlock(&reader->lock);
        bus_kafka_reader_move(reader, READER_ASSIGNED);
        reader->position_at_ns = 0;
    } else {
        bus_kafka_group_leave(reader, rd_kafka_assignment_lost(rk));
    }
    assign_and_settle(reader, what == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS ? none : NULL);
    rd_kafka_topic_partition_list_destroy(none);
}

/* ---- lag ---- */

/* The broker sends the end of a partition with its messages; for paused partitions it has to be asked. All in one request for
 * times, which has a timeout: one for watermarks waits for a broker that is frozen, for each partition, and a stop waits for it. */
void bus_kafka_group_measure_lag(struct kafka_reader *reader)
{
    if (reader->state != READER_POSITIONED || !atomic_load(&reader->kafka->bus.is_up))
        return;
    kafka_list *asked = rd_kafka_topic_partition_list_new(4);
    int64_t lag = 0;
    for (unsigned i = 0; i < reader->partition_count; i++)
        if (is_owned(reader, (int32_t)i) && reader->partitions[i]->is_paused)
            list_add(reader, asked, i, RD_KAFKA_OFFSET_END);
    bool is_answered =
        asked->cnt > 0 && !rd_kafka_offsets_for_times(reader->rk, asked, KAFKA_ASK_MS) && !list_error(asked);
    for (unsigned i = 0; i < reader->partition_count; i++) {
        int64_t low, end = -1;
        if (!is_owned(reader, (int32_t)i))
            continue;
        const rd_kafka_topic_partition_t *found =
            is_answered ? rd_kafka_topic_partition_list_find(asked, topic_of(reader), (int32_t)i) : NULL;
        if (found)
            end = found->offset;
        else if (rd_kafka_get_watermark_offsets(reader->rk, topic_of(reader), (int32_t)i, &low, &end))
            end = -1;
        pthread_mutex_lock(&reader->lock);
        int64_t position = reader->partitions[i]->position;
        pthread_mutex_unlock(&reader->lock);
        lag += position >= 0 && end > position ? end - position : 0;
    }
    rd_kafka_topic_partition_list_destroy(asked);
    metric_set(reader->kafka_lag, (double)lag);
}
