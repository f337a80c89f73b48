/* Pull requests to a consumer, and replies to its messages. A request is asynchronous: messages arrive at its inbox, on the
 * client's threads, until it is filled or its time is over. It is shorter than a lease, so that a redelivery does not go to a
 * holder that is frozen. */
#include <stdio.h>

#include "base/clock.h"
#include "bus/nats/inside.h"

enum { SLACK_MS = 2000 };

/* $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.consumer-sequence.time.pending[.token] */
bool bus_nats_origin_parse(natsMsg *message, struct nats_origin *origin)
{
    const char *reply = natsMsg_GetReply(message);
    struct str rest = str_from(reply ? reply : ""), tokens[16];
    size_t count = 0, at;

    if (!str_starts_with(rest, STR("$JS.ACK.")))
        return false;
    while (count < 16 && str_split(&rest, '.', &tokens[count]))
        count++;
    at = count >= 11 ? 4 : 2;
    origin->consumer = tokens[at + 1];
    return count >= 9 && str_to_u64(tokens[at + 2], &origin->delivered) &&
           str_to_u64(tokens[at + 3], &origin->sequence) &&
           str_to_u64(tokens[at + 4], &origin->consumer_sequence) &&
           str_to_u64(tokens[at + 5], &origin->time_ns);
}

/* One that gets lost is repeated: the server sends the message again. */
void bus_nats_reply(struct nats *nats, natsMsg *message, const char *text)
{
    if (natsMsg_GetReply(message))
        natsConnection_PublishString(nats->connection, natsMsg_GetReply(message), text);
}

void bus_nats_nak(struct nats *nats, natsMsg *message, int64_t delay_ms)
{
    char text[64];

    snprintf(text, sizeof text, "-NAK {\"delay\": %lld}", (long long)(delay_ms * 1000000));
    bus_nats_reply(nats, message, text);
}

void bus_nats_pull_set(struct nats_pull *pull, const char *stream, const char *consumer)
{
    snprintf(pull->stream, sizeof pull->stream, "%s", stream);
    snprintf(pull->consumer, sizeof pull->consumer, "%s", consumer);
}

natsStatus bus_nats_pull_open(struct nats_pull *pull, natsMsgHandler handler)
{
    natsInbox *name = NULL;
    natsStatus status;

    if (pull->inbox)
        return NATS_OK;
    status = natsInbox_Create(&name);
    if (status != NATS_OK)
        return status;
    snprintf(pull->inbox_subject, sizeof pull->inbox_subject, "%s", name);
    natsInbox_Destroy(name);
    return bus_nats_subscribe(pull->partition->reader->nats, &pull->inbox, pull->inbox_subject, NULL, handler,
                              pull);
}

void bus_nats_pull_request(struct nats_pull *pull, int64_t count, int64_t bytes_max)
{
    struct nats *nats = pull->partition->reader->nats;
    char subject[2 * NATS_LONG_NAME_BYTES], body[160], limit[48] = "";

    if (count == 0 || !pull->consumer[0] || nats->is_stopping ||
        (pull->requested > 0 && clock_mono_ns() < pull->until_ns))
        return;
    if (bytes_max > 0)
        snprintf(limit, sizeof limit, "\"max_bytes\":%lld,", (long long)bytes_max);
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", pull->stream, pull->consumer);
    snprintf(body, sizeof body, "{\"batch\":%lld,%s\"expires\":%lld}", (long long)count, limit,
             (long long)nats->config.ack_wait_ms * 1000000);
    natsStatus status =
        natsConnection_PublishRequestString(nats->connection, subject, pull->inbox_subject, body);
    pull->requested = status == NATS_OK ? count : 0;
    pull->until_ns = clock_deadline_ms(nats->config.ack_wait_ms + SLACK_MS);
}

natsStatus bus_nats_pull_info(const struct nats_pull *pull, jsConsumerInfo **info)
{
    struct nats *nats = pull->partition->reader->nats;

    pthread_mutex_unlock(&nats->lock);
    natsStatus status = js_GetConsumerInfo(info, nats->js, pull->stream, pull->consumer, NULL, NULL);
    pthread_mutex_lock(&nats->lock);
    return status;
}

void bus_nats_pull_end(struct nats_pull *pull, natsMsg *message)
{
    struct nats_reader *reader = pull->partition->reader;
    struct nats *nats = reader->nats;
    const char *code = "503";

    if (natsMsg_IsNoResponders(message) ||
        (natsMsgHeader_Get(message, "Status", &code) == NATS_OK && strcmp(code, "100") != 0)) {
        bool is_missing = strcmp(code, "503") == 0 || strcmp(code, "409") == 0;
        pthread_mutex_lock(&nats->lock);
        pull->requested = 0;
        reader->needs_check |= is_missing;
        nats->needs_check |= is_missing && pull != &pull->partition->pull; /* a stream of advisories */
        bus_nats_wake(nats);
        pthread_mutex_unlock(&nats->lock);
    }
    natsMsg_Destroy(message);
}
