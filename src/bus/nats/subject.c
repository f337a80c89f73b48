/* Plain subjects: no stream, at most once. Headers are encoded as in streams (message.c). */
#include <stdlib.h>

#include "base/arena.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum { ARENA_BYTES = 1024 };

enum status bus_nats_send(struct bus *bus, const struct bus_message *message, struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    struct bus_message carried = *message;
    char *subject = str_dup(message->topic);
    natsStatus status = NATS_NO_SERVER;
    natsMsg *out = NULL;
    size_t bytes;

    carried.key = STR_NONE;
    pthread_mutex_lock(&nats->lock);
    bool is_possible = !nats->is_stopping && atomic_load(&nats->is_up);
    pthread_mutex_unlock(&nats->lock);
    if (is_possible)
        status = bus_nats_encode(&carried, subject, NULL, &out, &bytes);
    if (status == NATS_OK)
        status = natsConnection_PublishMsg(nats->connection, out);
    natsMsg_Destroy(out);
    free(subject);
    switch (status) {
    case NATS_OK: return STATUS_OK;
    case NATS_MAX_PAYLOAD:
        return error_set(error, STATUS_PAYLOAD_TOO_LARGE, "a message is over the server's limit");
    case NATS_INVALID_SUBJECT:
    case NATS_INVALID_ARG: return error_set(error, STATUS_BAD_REQUEST, "not a subject of NATS");
    default: return error_set(error, STATUS_UNAVAILABLE, "NATS cannot be reached");
    }
}

static void on_plain(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                     void *closure)
{
    const struct nats_listener *listener = closure;
    struct bus_message carried = {0};
    struct arena arena = ARENA(ARENA_BYTES);

    (void)connection;
    (void)subscription;
    bus_nats_decode(message, &arena, &carried);
    carried.topic = str_from(natsMsg_GetSubject(message));
    listener->on_message(listener->context, &carried);
    arena_deinit(&arena);
    natsMsg_Destroy(message);
}

enum status bus_nats_listen(struct bus *bus, const char *subject, const char *queue,
                            void (*on_message)(void *context, const struct bus_message *message),
                            void *context, struct error *error)
{
    struct nats *nats = (struct nats *)bus;
    struct nats_listener *listener;

    if (!subject || !subject[0] || strpbrk(subject, " \t\r\n"))
        return error_set(error, STATUS_CONFIG, "not a subject of NATS");
    listener = memory_zalloc(sizeof *listener);
    listener->subject = str_dup(str_from(subject));
    listener->queue = queue ? str_dup(str_from(queue)) : NULL;
    listener->on_message = on_message;
    listener->context = context;
    LIST_INSERT_HEAD(&nats->listeners, listener, link);
    return STATUS_OK;
}

/* On a new connection; the client subscribes again by itself after a reconnect. */
natsStatus bus_nats_listeners_subscribe(struct nats *nats)
{
    struct nats_listener *listener;
    natsStatus status = NATS_OK;

    LIST_FOREACH(listener, &nats->listeners, link)
        if (status == NATS_OK && !listener->subscription)
            status = bus_nats_subscribe(nats, &listener->subscription, listener->subject, listener->queue,
                                        on_plain, listener);
    return status;
}

void bus_nats_listeners_free(struct nats *nats)
{
    struct nats_listener *listener, *next;

    LIST_FOREACH_SAFE(listener, &nats->listeners, link, next) {
        natsSubscription_Destroy(listener->subscription);
        free(listener->subject);
        free(listener->queue);
        free(listener);
    }
}
