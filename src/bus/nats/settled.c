/* Has a group settled all messages of a topic? For books, by a connection of its own, so that it also works in a process that reads nothing. */
#include <time.h>

#include "base/clock.h"
#include "bus/nats/inside.h"

enum { ASK_AGAIN_MS = 100 };

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * CLOCK_NS_PER_MS}, NULL);
}

/* One look. `last`: the sequence up to which it should be. A stream that is gone, or is empty before the group has begun, has nothing. */
static natsStatus look_at_group(struct nats_reader *reader, uint64_t last, bool is_empty, bool *is_settled)
{
    char name[NATS_NAME_BYTES];

    *is_settled = true;
    for (unsigned i = 0; i < reader->partition_count && *is_settled; i++) {
        jsConsumerInfo *info = NULL;
        bus_nats_durable(name, reader, i);
        natsStatus status =
            js_GetConsumerInfo(&info, reader->nats->js, reader->topic->stream, name, NULL, NULL);
        if (status == NATS_OK)
            *is_settled =
                (info->NumPending == 0 && info->NumAckPending == 0) || info->AckFloor.Stream >= last;
        else if (status == NATS_NOT_FOUND)
            *is_settled = is_empty;
        else
            return status;
        jsConsumerInfo_Destroy(info);
    }
    return NATS_OK;
}

static natsStatus await_settled(struct nats *nats, const char *topic, const char *group, int64_t deadline_ns,
                                bool *is_settled)
{
    struct bus_topic_state *state = bus_topic_find(&nats->bus, str_from(topic));
    struct nats_reader reader = {.nats = nats,
                                 .topic = bus_nats_topic(nats, state),
                                 .partition_count = state->spec.partitions,
                                 .consumer = {.spec = {.group = group}}};
    jsStreamInfo *stream = NULL;

    natsStatus status = js_GetStreamInfo(&stream, nats->js, reader.topic->stream, NULL, NULL);
    *is_settled = status == NATS_NOT_FOUND;
    if (status == NATS_NOT_FOUND)
        return NATS_OK;
    for (bool is_first = true; status == NATS_OK && !*is_settled; is_first = false) {
        if (!is_first && clock_mono_ns() >= deadline_ns)
            break;
        if (!is_first)
            nap();
        status = look_at_group(&reader, stream->State.LastSeq, stream->State.Msgs == 0, is_settled);
    }
    jsStreamInfo_Destroy(stream);
    return status;
}

enum status bus_nats_is_settled(const struct bus_nats_config *config, const char *topic, const char *group,
                                int64_t deadline_ns, bool *is_settled, struct error *error)
{
    struct bus *bus = NULL;
    int64_t connect_ns = clock_deadline_ms(NATS_API_MS);

    *is_settled = false;
    enum status status = bus_nats_create(config, &bus, error);
    if (status != STATUS_OK)
        return status;
    struct nats *nats = (struct nats *)bus;
    while (!bus_nats_connect(nats) && clock_mono_ns() < connect_ns)
        nap();
    natsStatus found =
        bus_is_up(bus) ? await_settled(nats, topic, group, deadline_ns, is_settled) : NATS_NO_SERVER;
    bus_stop(bus, 0);
    bus_destroy(bus);
    return found == NATS_OK ? STATUS_OK
                            : error_set(error, STATUS_UNAVAILABLE, "nats: %s", natsStatus_GetText(found));
}
