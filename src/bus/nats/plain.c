/* Plain subjects: no stream, at most once. Headers go as they are in streams (headers.c). */
#include <stdlib.h>

#include "base/arena.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

#define ARENA_BYTES 1024

enum status bus_nats_send(struct bus *bus, const struct bus_nats_plain *message, struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    struct bus_message carried = {
        .payload = message->payload, .headers = message->headers, .header_count = message->header_count};
    char *subject = str_dup(message->subject);
    natsMsg *out = NULL;
    size_t bytes;

    pthread_mutex_lock(&nats->lock);
    bool possible = !nats->stopping && atomic_load(&nats->up);
    pthread_mutex_unlock(&nats->lock);
    natsStatus status = possible ? bus_nats_encode(&carried, subject, NULL, &out, &bytes) : NATS_NO_SERVER;
    if (status == NATS_OK)
        status = natsConnection_PublishMsg(nats->connection, out);
    natsMsg_Destroy(out);
    free(subject);
    if (status == NATS_OK)
        return STATUS_OK;
    if (status == NATS_MAX_PAYLOAD)
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the server's limit");
    if (status == NATS_INVALID_SUBJECT || status == NATS_INVALID_ARG)
        return error_set(error, STATUS_BAD_REQUEST, "NATS has no such subject");
    return error_set(error, STATUS_UNAVAILABLE, "NATS cannot be reached");
}

static void on_plain(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                     void *closure)
{
    const struct nats_listening *listening = closure;
    struct bus_message carried = {0};
    struct arena arena;

    (void)connection;
    (void)subscription;
    arena_init(&arena, ARENA_BYTES);
    bus_nats_decode_headers(message, &arena, &carried);
    listening->on_message(listening->context,
                          &(struct bus_nats_plain){.subject = str_from(natsMsg_GetSubject(message)),
                                                   .payload = str_of(natsMsg_GetData(message),
                                                                     (size_t)natsMsg_GetDataLength(message)),
                                                   .headers = carried.headers,
                                                   .header_count = carried.header_count,
                                                   .poison = carried.poison});
    arena_deinit(&arena);
    natsMsg_Destroy(message);
}

enum status bus_nats_listen(struct bus *bus, const char *subject, const char *queue,
                            void (*on_message)(void *context, const struct bus_nats_plain *message),
                            void *context, struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    struct nats_listening *listening;

    if (!subject || !subject[0] || strpbrk(subject, " \t\r\n"))
        return error_set(error, STATUS_CONFIG, "NATS has no such subject");
    listening = memory_zalloc(sizeof *listening);
    *listening = (struct nats_listening){.next = nats->listenings,
                                         .nats = nats,
                                         .subject = str_dup(str_from(subject)),
                                         .queue = queue ? str_dup(str_from(queue)) : NULL,
                                         .on_message = on_message,
                                         .context = context};
    nats->listenings = listening;
    return STATUS_OK;
}

/* Once there is a connection object; the client subscribes again by itself after it was cut. */
natsStatus bus_nats_plain_listen(struct nats *nats)
{
    natsStatus status = NATS_OK;

    for (struct nats_listening *at = nats->listenings; at && status == NATS_OK; at = at->next)
        if (!at->subscription)
            status = bus_nats_listen_to(nats, &at->subscription, at->subject, at->queue, on_plain, at);
    return status;
}

void bus_nats_plain_free(struct nats *nats)
{
    while (nats->listenings) {
        struct nats_listening *gone = nats->listenings;
        nats->listenings = gone->next;
        natsSubscription_Destroy(gone->subscription);
        free(gone->subject);
        free(gone->queue);
        free(gone);
    }
}
