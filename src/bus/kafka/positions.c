/* Where the partitions of a topic end, and how far a group has committed: for audits, by a client of its own, so that it also works in a
 * process that has no bus. */
#include "base/clock.h"
#include "bus/kafka/inside.h"

typedef rd_kafka_topic_partition_list_t kafka_list;

static int ask_ms(int64_t deadline_ns)
{
    int64_t left_ms = clock_ms_left(deadline_ns);
    return left_ms > 0 ? (int)left_ms : 1;
}

rd_kafka_resp_err_t bus_kafka_partitions_count(rd_kafka_t *rk, const char *name, int64_t deadline_ns,
                                               unsigned *count)
{
    const struct rd_kafka_metadata *metadata;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    rd_kafka_resp_err_t error = rd_kafka_metadata(rk, 0, topic, &metadata, ask_ms(deadline_ns));
    rd_kafka_topic_destroy(topic);
    if (error)
        return error;
    const struct rd_kafka_metadata_topic *found = metadata->topics;
    bool is_there = metadata->topic_cnt == 1 && !found->err && found->partition_cnt <= BUS_PARTITIONS_MAX;
    *count = is_there ? (unsigned)found->partition_cnt : 0;
    rd_kafka_metadata_destroy(metadata);
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t ask_positions(rd_kafka_t *rk, const char *topic, int64_t deadline_ns,
                                         struct bus_kafka_position *positions, unsigned count)
{
    kafka_list *list = rd_kafka_topic_partition_list_new((int)count);
    for (unsigned i = 0; i < count; i++)
        rd_kafka_topic_partition_list_add(list, topic, (int32_t)i)->offset = RD_KAFKA_OFFSET_INVALID;
    rd_kafka_resp_err_t error = rd_kafka_committed(rk, list, ask_ms(deadline_ns));
    for (unsigned i = 0; i < count && !error; i++) {
        int64_t low;
        error = list->elems[i].err;
        positions[i].committed = list->elems[i].offset >= 0 ? list->elems[i].offset : -1;
        if (!error)
            error = rd_kafka_query_watermark_offsets(rk, topic, (int32_t)i, &low, &positions[i].end,
                                                     ask_ms(deadline_ns));
    }
    rd_kafka_topic_partition_list_destroy(list);
    return error;
}

enum status bus_kafka_positions(const struct bus_kafka_config *config, const char *topic, const char *group,
                                int64_t deadline_ns, struct bus_kafka_position *positions, unsigned *count,
                                struct error *error)
{
    char why[256] = "";
    rd_kafka_conf_t *conf;
    *count = 0;
    enum status status = bus_kafka_conf_create(config, &conf, error);
    if (status != STATUS_OK)
        return status;
    rd_kafka_conf_set(conf, "group.id", group, why, sizeof why);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, sizeof why);
    if (!rk) {
        rd_kafka_conf_destroy(conf);
        return error_set(error, STATUS_CONFIG, "kafka: %s", why);
    }
    rd_kafka_resp_err_t refusal = bus_kafka_partitions_count(rk, topic, deadline_ns, count);
    if (!refusal)
        refusal = ask_positions(rk, topic, deadline_ns, positions, *count);
    bus_kafka_client_close(rk);
    return refusal ? error_set(error, STATUS_UNAVAILABLE, "kafka: %s", rd_kafka_err2str(refusal)) : STATUS_OK;
}
