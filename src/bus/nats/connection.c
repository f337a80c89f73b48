/* The connection: how it is made, what is heard of it, how it ends. nats.c reconnects by itself, for ever; each time it
 * has, the epoch moves on and everybody who waits looks again at what may be lost. Nothing is buffered while there is no
 * connection: a publication then fails at once instead of going out when its caller has long given up. */
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/nats/inside.h"

enum {
    CONNECT_MS = 2000,
    PING_MS = 2000,
    PINGS_OUT_MAX = 2, /* so a peer that is silent is given up after 6 s */
    WRITE_MS = 2000,
    RECONNECT_MIN_MS = 50,
    RECONNECT_MAX_MS = 2000,
    CLOSE_MS = 5000,
};

void bus_nats_kick(struct nats *nats)
{
    nats->kicked = true;
    pthread_cond_broadcast(&nats->changed);
}

void bus_nats_wait(struct nats *nats, int64_t until_ns)
{
    int64_t latest_ns = clock_deadline_ms(60000);
    int64_t at_ns = until_ns < latest_ns ? until_ns : latest_ns;
    struct timespec until = {.tv_sec = at_ns / CLOCK_NS_PER_S, .tv_nsec = at_ns % CLOCK_NS_PER_S};

    pthread_cond_timedwait(&nats->changed, &nats->lock, &until);
}

/* An address may have a password in it. */
static const char *shown(const struct nats *nats)
{
    return strchr(nats->config.servers, '@') ? "" : nats->config.servers;
}

/* ---- what the client tells, on a thread of its own ---- */

static void set_up(struct nats *nats, bool up)
{
    pthread_mutex_lock(&nats->lock);
    bool quiet = nats->stopping || atomic_load(&nats->up) == up;
    atomic_store(&nats->up, up);
    if (up) {
        nats->epoch++;
        nats->doubt = true;
    }
    bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
    if (up)
        atomic_store(&nats->complained, false);
    if (!quiet && up)
        log_info("nats_connected", LOG_CSTR("servers", shown(nats)));
    else if (!quiet)
        log_warn("nats_disconnected", LOG_CSTR("servers", shown(nats)));
}

static void on_connected(natsConnection *connection, void *closure)
{
    (void)connection;
    set_up(closure, true);
}

static void on_reconnected(natsConnection *connection, void *closure)
{
    struct nats *nats = closure;

    (void)connection;
    metric_add(nats->reconnects, 1);
    set_up(nats, true);
}

static void on_disconnected(natsConnection *connection, void *closure)
{
    (void)connection;
    set_up(closure, false);
}

static void on_closed(natsConnection *connection, void *closure)
{
    struct nats *nats = closure;

    (void)connection;
    pthread_mutex_lock(&nats->lock);
    nats->closed = true;
    atomic_store(&nats->up, false);
    bus_nats_kick(nats);
    pthread_mutex_unlock(&nats->lock);
}

/* The library would print errors to standard error; what matters is seen where it matters. */
static void on_error(natsConnection *connection, natsSubscription *subscription, natsStatus status,
                     void *closure)
{
    (void)connection;
    (void)subscription;
    (void)closure;
    log_debug("nats_error", LOG_CSTR("error", natsStatus_GetText(status)));
}

static int64_t reconnect_delay(natsConnection *connection, int attempts, void *closure)
{
    int64_t wait_ms = RECONNECT_MIN_MS;

    (void)connection;
    (void)closure;
    for (int i = 1; i < attempts && wait_ms < RECONNECT_MAX_MS; i++)
        wait_ms *= 2;
    return wait_ms / 2 + (int64_t)(random_u64() % (uint64_t)(wait_ms / 2 + 1));
}

/* ---- options ---- */

static natsStatus set_servers(natsOptions *options, const char *servers)
{
    struct str rest = str_from(servers), part;
    char urls[16][256];
    const char *list[16];
    int count = 0;

    while (str_split(&rest, ',', &part)) {
        part = str_trim(part);
        if (part.len == 0 || part.len >= sizeof urls[0] || count == 16)
            return NATS_INVALID_ARG;
        snprintf(urls[count], sizeof urls[0], "%.*s", STR_ARG(part));
        list[count] = urls[count];
        count++;
    }
    return count ? natsOptions_SetServers(options, list, count) : NATS_INVALID_ARG;
}

/* nats.c pastes them into JSON as they are. */
static bool can_be_sent(const char *text)
{
    return !text || !strpbrk(text, "\"\\\r\n");
}

static natsStatus set_security(natsOptions *options, const struct bus_nats_security *security)
{
    natsStatus status = NATS_OK;

    if (security->tls)
        status = natsOptions_SetSecure(options, true);
    if (status == NATS_OK && security->ca_file)
        status = natsOptions_LoadCATrustedCertificates(options, security->ca_file);
    if (status == NATS_OK && security->certificate_file)
        status = natsOptions_LoadCertificatesChain(options, security->certificate_file, security->key_file);
    if (status == NATS_OK && security->username)
        status = natsOptions_SetUserInfo(options, security->username,
                                         security->password ? security->password : "");
    if (status == NATS_OK && security->credentials_file)
        status = natsOptions_SetUserCredentialsFromFiles(options, security->credentials_file, NULL);
    return status;
}

static natsStatus set_manners(struct nats *nats)
{
    natsOptions *options = nats->options;
    natsStatus status = natsOptions_SetTimeout(options, CONNECT_MS);

#define ALSO(call) status = status == NATS_OK ? (call) : status
    ALSO(natsOptions_SetPingInterval(options, PING_MS));
    ALSO(natsOptions_SetMaxPingsOut(options, PINGS_OUT_MAX));
    ALSO(natsOptions_SetWriteDeadline(options, WRITE_MS));
    ALSO(natsOptions_SetSendAsap(options, true)); /* or everything waits a millisecond for company */
    ALSO(natsOptions_SetMaxReconnect(options, -1));
    ALSO(natsOptions_SetReconnectBufSize(options, 1));
    ALSO(natsOptions_SetFailRequestsOnDisconnect(options, true));
    ALSO(natsOptions_SetCustomReconnectDelay(options, reconnect_delay, nats));
    ALSO(natsOptions_SetRetryOnFailedConnect(options, true, on_connected, nats));
    ALSO(natsOptions_SetReconnectedCB(options, on_reconnected, nats));
    ALSO(natsOptions_SetDisconnectedCB(options, on_disconnected, nats));
    ALSO(natsOptions_SetClosedCB(options, on_closed, nats));
    ALSO(natsOptions_SetErrorHandler(options, on_error, nats));
    ALSO(natsOptions_UseGlobalMessageDelivery(options, true)); /* no thread for each subscription */
    if (nats->config.client_name)
        ALSO(natsOptions_SetName(options, nats->config.client_name));
#undef ALSO
    return status;
}

enum status bus_nats_options(struct nats *nats, struct error *error)
{
    natsStatus status = natsOptions_Create(&nats->options);

    if (status == NATS_OK && set_servers(nats->options, nats->config.servers) != NATS_OK)
        return error_set(error, STATUS_CONFIG, "nats.servers: 1 to 16 of nats://HOST:PORT");
    if (!can_be_sent(nats->config.security.username) || !can_be_sent(nats->config.security.password) ||
        !can_be_sent(nats->config.client_name))
        return error_set(error, STATUS_CONFIG,
                         "nats: a user, a password and a client's name have neither quotes nor backslashes");
    if (status == NATS_OK)
        status = set_security(nats->options, &nats->config.security);
    if (status != NATS_OK)
        return error_set(error, STATUS_CONFIG, "nats: its security settings: %s", nats_GetLastError(NULL));
    if (set_manners(nats) != NATS_OK)
        return error_set(error, STATUS_INTERNAL, "nats: %s", nats_GetLastError(NULL));
    return STATUS_OK;
}

/* ---- life ---- */

static void ignore(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                   void *closure)
{
    (void)connection;
    (void)subscription;
    (void)closure;
    natsMsg_Destroy(message);
}

/* Acknowledgements come by a subscription of the library's own, whose end it does not tell. This one ends behind it, on
 * the same thread. */
static natsStatus open_guard(struct nats *nats)
{
    natsInbox *inbox = NULL;
    natsStatus status = natsInbox_Create(&inbox);

    if (status == NATS_OK)
        status = bus_nats_listen_to(nats, &nats->guard, inbox, NULL, ignore, nats);
    natsInbox_Destroy(inbox);
    return status;
}

static natsStatus open_jetstream(struct nats *nats, natsConnection *connection, jsCtx **js)
{
    jsOptions options;

    jsOptions_Init(&options);
    options.Wait = NATS_API_MS;
    options.PublishAsync.AckHandler = bus_nats_on_ack;
    options.PublishAsync.AckHandlerClosure = nats;
    return natsConnection_JetStream(js, connection, &options);
}

void bus_nats_inbox_close(natsSubscription **inbox)
{
    natsSubscription_Destroy(*inbox);
    *inbox = NULL;
}

/* Others may still hold the old connection for a call that fails: it is freed with the bus. */
static void replace(struct nats *nats, natsConnection *connection, jsCtx *js)
{
    struct nats_grave *grave = memory_zalloc(sizeof *grave);

    *grave = (struct nats_grave){nats->graves, nats->connection, nats->js};
    nats->graves = grave;
    bus_nats_inbox_close(&nats->guard);
    for (struct nats_listening *at = nats->listenings; at; at = at->next)
        bus_nats_inbox_close(&at->subscription);
    for (size_t i = 0; i < nats->reader_count; i++) {
        struct nats_reader *reader = nats->readers[i];
        bus_nats_inbox_close(&reader->members_inbox);
        for (unsigned at = 0; at < reader->consumer.topic->spec.partitions; at++) {
            bus_nats_inbox_close(&reader->slots[at].inbox);
            for (int kind = 0; kind < FATE_KINDS; kind++)
                bus_nats_inbox_close(&reader->slots[at].watches[kind].inbox);
        }
    }
    nats->connection = connection;
    nats->js = js;
}

/* Once for each time it fails, not for each try. */
static bool complain(struct nats *nats, const char *error)
{
    if (!atomic_exchange(&nats->complained, true))
        log_warn("nats_unreachable", LOG_CSTR("servers", shown(nats)), LOG_CSTR("error", error));
    return false;
}

static bool open_connection(struct nats *nats)
{
    natsConnection *connection = NULL;
    jsCtx *js = NULL;
    natsStatus status, opened;

    pthread_mutex_lock(&nats->lock);
    nats->closed = false;
    pthread_mutex_unlock(&nats->lock);
    opened = natsConnection_Connect(&connection, nats->options);
    if (opened != NATS_OK && opened != NATS_NOT_YET_CONNECTED)
        return complain(nats, natsStatus_GetText(opened));
    status = open_jetstream(nats, connection, &js);
    replace(nats, connection, js);
    if (status == NATS_OK)
        status = open_guard(nats);
    if (status == NATS_OK)
        status = bus_nats_plain_listen(nats);
    if (status != NATS_OK)
        return complain(nats, natsStatus_GetText(status));
    if (opened != NATS_OK)
        return complain(nats, "it is tried again");
    set_up(nats, true);
    return true;
}

/* The client gives up only when it is refused (a password that is not taken twice): then there is another connection, as
 * the refusal may end some day. */
bool bus_nats_connect(struct nats *nats)
{
    pthread_mutex_lock(&nats->lock);
    bool needed = !nats->connection || nats->closed;
    pthread_mutex_unlock(&nats->lock);
    if (needed && clock_mono_ns() < nats->connect_ns)
        return false;
    nats->connect_ns = needed ? clock_deadline_ms(RECONNECT_MAX_MS) : nats->connect_ns;
    return needed ? open_connection(nats) : atomic_load(&nats->up);
}

static void on_complete(void *closure)
{
    struct nats *nats = closure;

    pthread_mutex_lock(&nats->lock);
    nats->subscriptions--;
    pthread_cond_broadcast(&nats->changed);
    pthread_mutex_unlock(&nats->lock);
}

natsStatus bus_nats_listen_to(struct nats *nats, natsSubscription **subscription, const char *subject,
                              const char *queue, natsMsgHandler handler, void *closure)
{
    natsStatus status =
        queue
            ? natsConnection_QueueSubscribe(subscription, nats->connection, subject, queue, handler, closure)
            : natsConnection_Subscribe(subscription, nats->connection, subject, handler, closure);

    if (status != NATS_OK)
        return status;
    natsSubscription_SetPendingLimits(*subscription, -1, -1); /* pull requests are the limit */
    pthread_mutex_lock(&nats->lock);
    nats->subscriptions++;
    pthread_mutex_unlock(&nats->lock);
    return natsSubscription_SetOnCompleteCB(*subscription, on_complete, nats);
}

natsStatus bus_nats_inbox_open(struct nats *nats, natsSubscription **inbox, char subject[NATS_NAME_BYTES],
                               natsMsgHandler handler, void *closure)
{
    natsInbox *name = NULL;
    natsStatus status;

    if (*inbox)
        return NATS_OK;
    status = natsInbox_Create(&name);
    if (status != NATS_OK)
        return status;
    snprintf(subject, NATS_NAME_BYTES, "%s", name);
    natsInbox_Destroy(name);
    return bus_nats_listen_to(nats, inbox, subject, NULL, handler, closure);
}

/* Nothing of the client's calls us any more when this returns. */
void bus_nats_disconnect(struct nats *nats)
{
    int64_t limit_ns = clock_deadline_ms(CLOSE_MS);

    if (!nats->connection)
        return;
    natsConnection_Close(nats->connection);
    pthread_mutex_lock(&nats->lock);
    while ((!nats->closed || nats->subscriptions > 0) && clock_mono_ns() < limit_ns)
        bus_nats_wait(nats, limit_ns);
    atomic_store(&nats->up, false);
    pthread_mutex_unlock(&nats->lock);
}
