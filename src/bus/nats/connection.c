/* The connection: options, connect, reconnect, subscriptions, close, pull requests. nats.c reconnects by itself, for ever; after each reconnect
 * the epoch is another one, and all that wait check what may be lost. Nothing is buffered while there is no connection: a
 * publication then fails at once and is not sent later, when its caller has given up. */
#include <stdio.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/secret.h"
#include "bus/nats/inside.h"

enum {
    CONNECT_MS = 2000,
    PING_MS = 2000,
    PINGS_OUT_MAX = 2, /* so a server that does not answer is given up after 6 s */
    WRITE_MS = 2000,
    RECONNECT_MIN_MS = 50,
    RECONNECT_MAX_MS = 2000,
    CLOSE_MS = 5000,
    PULL_SLACK_MS = 2000,
};

void bus_nats_wake(struct nats *nats)
{
    pthread_cond_broadcast(&nats->changed);
    if (nats->upkeep)
        task_wake(nats->upkeep);
}

/* An address may contain a password. */
static const char *shown_servers(const struct nats *nats)
{
    return strchr(nats->config.servers, '@') ? "" : nats->config.servers;
}

/* ---- callbacks, on a thread of the client ---- */

static void set_up(struct nats *nats, bool is_up)
{
    pthread_mutex_lock(&nats->lock);
    bool is_logged = !nats->is_stopping && atomic_load(&nats->bus.is_up) != is_up;
    atomic_store(&nats->bus.is_up, is_up);
    if (is_up) {
        metric_add(nats->reconnects, nats->epoch++ > 0);
        nats->needs_check = true;
        atomic_store(&nats->is_failure_logged, false);
    }
    bus_nats_wake(nats);
    pthread_mutex_unlock(&nats->lock);
    if (is_logged && is_up)
        log_info("nats_connected", LOG_CSTR("servers", shown_servers(nats)));
    else if (is_logged)
        log_warn("nats_disconnected", LOG_CSTR("servers", shown_servers(nats)));
}

static void on_connected(natsConnection *connection, void *closure)
{
    (void)connection;
    set_up(closure, true);
}

static void on_disconnected(natsConnection *connection, void *closure)
{
    (void)connection;
    set_up(closure, false);
}

/* bus_nats_disconnect() waits for is_closed: afterwards the bus may not exist any more. */
static void on_closed(natsConnection *connection, void *closure)
{
    struct nats *nats = closure;

    (void)connection;
    set_up(nats, false);
    pthread_mutex_lock(&nats->lock);
    nats->is_closed = true;
    bus_nats_wake(nats);
    pthread_mutex_unlock(&nats->lock);
}

/* Without it the library prints to standard error. */
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
    struct backoff backoff = {.min_ms = RECONNECT_MIN_MS,
                              .max_ms = RECONNECT_MAX_MS,
                              .failures = attempts > 1 ? (unsigned)attempts - 1 : 0};

    (void)connection;
    (void)closure;
    return backoff_next_ms(&backoff);
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

/* nats.c puts the text into JSON without escapes. */
static bool can_be_sent(const char *text)
{
    return !text || !strpbrk(text, "\"\\\r\n");
}

#define ALSO(call) status = status == NATS_OK ? (call) : status

enum status bus_nats_options_create(struct nats *nats, const struct bus_nats_config *config,
                                    struct error *error)
{
    const struct bus_security *security = &config->security;
    natsStatus status = natsOptions_Create(&nats->options);
    natsOptions *options = nats->options;

    if (status == NATS_OK && set_servers(options, config->servers) != NATS_OK)
        return error_set(error, STATUS_CONFIG, "nats.servers: 1 to 16 of nats://HOST:PORT");
    if (!can_be_sent(security->username) || !can_be_sent(security->password) ||
        !can_be_sent(config->client_name))
        return error_set(
            error, STATUS_CONFIG,
            "nats: quotes and backslashes are not allowed in username, password and client name");
    if (security->tls)
        ALSO(natsOptions_SetSecure(options, true));
    if (security->ca_file)
        ALSO(natsOptions_LoadCATrustedCertificates(options, security->ca_file));
    if (security->certificate_file)
        ALSO(natsOptions_LoadCertificatesChain(options, security->certificate_file, security->key_file));
    if (security->username && !security->password_file)
        ALSO(natsOptions_SetUserInfo(options, security->username,
                                     security->password ? security->password : ""));
    if (security->credentials_file)
        ALSO(natsOptions_SetUserCredentialsFromFiles(options, security->credentials_file, NULL));
    if (status != NATS_OK)
        return error_set(error, STATUS_CONFIG, "nats: security settings: %s", nats_GetLastError(NULL));
    ALSO(natsOptions_SetTimeout(options, CONNECT_MS));
    ALSO(natsOptions_SetPingInterval(options, PING_MS));
    ALSO(natsOptions_SetMaxPingsOut(options, PINGS_OUT_MAX));
    ALSO(natsOptions_SetWriteDeadline(options, WRITE_MS));
    ALSO(natsOptions_SetSendAsap(options, true)); /* otherwise each message waits up to a millisecond */
    ALSO(natsOptions_SetMaxReconnect(options, -1));
    ALSO(natsOptions_SetReconnectBufSize(options, 1));
    ALSO(natsOptions_SetFailRequestsOnDisconnect(options, true));
    ALSO(natsOptions_SetCustomReconnectDelay(options, reconnect_delay, nats));
    ALSO(natsOptions_SetRetryOnFailedConnect(options, true, on_connected, nats));
    ALSO(natsOptions_SetReconnectedCB(options, on_connected, nats));
    ALSO(natsOptions_SetDisconnectedCB(options, on_disconnected, nats));
    ALSO(natsOptions_SetClosedCB(options, on_closed, nats));
    ALSO(natsOptions_SetErrorHandler(options, on_error, nats));
    ALSO(natsOptions_UseGlobalMessageDelivery(options, true)); /* no thread for each subscription */
    if (config->client_name)
        ALSO(natsOptions_SetName(options, config->client_name));
    return status == NATS_OK ? STATUS_OK
                             : error_set(error, STATUS_INTERNAL, "nats: %s", nats_GetLastError(NULL));
}

#undef ALSO

/* Before each connection: the password may have been rotated. */
static enum status set_password_from_file(struct nats *nats, struct error *error)
{
    const struct bus_security *security = &nats->config.security;
    struct secret password;
    natsStatus set = NATS_OK;

    if (!security->password_file)
        return STATUS_OK;
    enum status status = secret_read(&password, security->password_file, error);
    if (status == STATUS_OK && !can_be_sent(password.text))
        status = error_set(error, STATUS_CONFIG, "quotes and backslashes are not allowed in the password");
    if (status == STATUS_OK)
        set = natsOptions_SetUserInfo(nats->options, security->username ? security->username : "",
                                      password.text);
    secret_wipe(&password);
    return set == NATS_OK ? status : error_set(error, STATUS_INTERNAL, "%s", natsStatus_GetText(set));
}

/* ---- subscriptions ---- */

static void on_complete(void *closure)
{
    struct nats *nats = closure;

    pthread_mutex_lock(&nats->lock);
    nats->subscriptions--;
    pthread_cond_broadcast(&nats->changed);
    pthread_mutex_unlock(&nats->lock);
}

natsStatus bus_nats_subscribe(struct nats *nats, natsSubscription **subscription, const char *subject,
                              const char *queue, natsMsgHandler handler, void *closure)
{
    natsStatus status =
        queue
            ? natsConnection_QueueSubscribe(subscription, nats->connection, subject, queue, handler, closure)
            : natsConnection_Subscribe(subscription, nats->connection, subject, handler, closure);

    if (status != NATS_OK)
        return status;
    natsSubscription_SetPendingLimits(*subscription, -1, -1); /* pull requests are the limit */
    atomic_fetch_add(&nats->subscriptions, 1);
    return natsSubscription_SetOnCompleteCB(*subscription, on_complete, nats);
}

/* The server knows it before all that is sent next. */
void bus_nats_unsubscribe(natsSubscription **subscription)
{
    natsSubscription_Destroy(*subscription);
    *subscription = NULL;
}

static void ignore_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message,
                           void *closure)
{
    (void)connection;
    (void)subscription;
    (void)closure;
    natsMsg_Destroy(message);
}

/* ---- connect and close ---- */

static void replace_connection(struct nats *nats, natsConnection *connection, jsCtx *js)
{
    struct nats_old_connection *old = memory_zalloc(sizeof *old);
    struct nats_listener *listener;

    old->connection = nats->connection;
    old->js = nats->js;
    SLIST_INSERT_HEAD(&nats->old_connections, old, link);
    bus_nats_unsubscribe(&nats->last_subscription);
    LIST_FOREACH(listener, &nats->listeners, link)
        bus_nats_unsubscribe(&listener->subscription);
    for (size_t i = 0; i < nats->reader_count; i++) {
        struct nats_reader *reader = nats->readers[i];
        bus_nats_unsubscribe(&reader->members_inbox);
        bus_nats_unsubscribe(&reader->own_inbox);
        for (unsigned at = 0; at < reader->partition_count; at++) {
            bus_nats_unsubscribe(&reader->partitions[at].pull.inbox);
            for (int kind = 0; kind < ADVISORY_KINDS; kind++)
                bus_nats_unsubscribe(&reader->partitions[at].watches[kind].inbox);
        }
    }
    nats->connection = connection;
    nats->js = js;
}

/* Logged once for each outage. */
static bool connect_failed(struct nats *nats, const char *error)
{
    if (!atomic_exchange(&nats->is_failure_logged, true))
        log_warn("nats_unreachable", LOG_CSTR("servers", shown_servers(nats)), LOG_CSTR("error", error));
    return false;
}

/* The client stops reconnecting only when it is refused (wrong password, twice). Then there is a new connection, since the
 * refusal may end. */
bool bus_nats_connect(struct nats *nats)
{
    natsConnection *connection = NULL;
    jsCtx *js = NULL;
    jsOptions options;
    natsInbox *inbox = NULL;
    struct error error = {0};

    pthread_mutex_lock(&nats->lock);
    bool is_needed = !nats->connection || nats->is_closed;
    bool is_due = is_needed && clock_mono_ns() >= nats->connect_ns;
    bool is_allowed = is_due && set_password_from_file(nats, &error) == STATUS_OK;
    if (is_allowed)
        nats->is_closed = false;
    pthread_mutex_unlock(&nats->lock);
    if (!is_due)
        return !is_needed && atomic_load(&nats->bus.is_up);
    nats->connect_ns = clock_deadline_ms(RECONNECT_MAX_MS);
    if (!is_allowed)
        return connect_failed(nats, error.message);
    natsStatus opened = natsConnection_Connect(&connection, nats->options);
    if (opened != NATS_OK && opened != NATS_NOT_YET_CONNECTED)
        return connect_failed(nats, natsStatus_GetText(opened));
    jsOptions_Init(&options);
    options.Wait = NATS_API_MS;
    options.PublishAsync.AckHandler = bus_nats_on_ack;
    options.PublishAsync.AckHandlerClosure = nats;
    natsStatus status = natsConnection_JetStream(&js, connection, &options);
    replace_connection(nats, connection, js);
    /* acknowledgements arrive by a subscription of the library, which does not report its end: this one ends after it, on the
     * same thread */
    if (status == NATS_OK)
        status = natsInbox_Create(&inbox);
    if (status == NATS_OK)
        status = bus_nats_subscribe(nats, &nats->last_subscription, inbox, NULL, ignore_message, nats);
    natsInbox_Destroy(inbox);
    if (status == NATS_OK)
        status = bus_nats_listeners_subscribe(nats);
    if (status != NATS_OK)
        return connect_failed(nats, natsStatus_GetText(status));
    if (opened != NATS_OK)
        return connect_failed(nats, "it is tried again");
    set_up(nats, true);
    return true;
}

/* The client calls nothing of ours after this. */
void bus_nats_disconnect(struct nats *nats)
{
    int64_t limit_ns = clock_deadline_ms(CLOSE_MS);

    if (!nats->connection)
        return;
    natsConnection_Close(nats->connection);
    pthread_mutex_lock(&nats->lock);
    while ((!nats->is_closed || nats->subscriptions > 0) && clock_mono_ns() < limit_ns)
        clock_cond_wait(&nats->changed, &nats->lock, limit_ns);
    atomic_store(&nats->bus.is_up, false);
    pthread_mutex_unlock(&nats->lock);
}

/* ---- pull requests to a consumer, and replies to its messages ----
 * A request is asynchronous: messages arrive at its inbox, on the client's threads, until it is filled or its time is over. It is
 * shorter than a lease, so that a redelivery does not go to a holder that is frozen. */

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
    pull->until_ns = clock_deadline_ms(nats->config.ack_wait_ms + PULL_SLACK_MS);
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
