/* Listeners: each has its channels and callbacks; those of one server on one loop share a hub, which is one connection
 * that LISTENs. What is sent while it is not connected is lost, as always with NOTIFY; on_listening reports when to look
 * for it. A channel is not UNLISTENed: its notices find no listener then. */
#include "db/db.h"

#include <stdlib.h>

#include "base/list.h"
#include "base/memory.h"
#include "db/link.h"
#include "db/server.h"

struct db_listener {
    TAILQ_ENTRY(db_listener) entry;
    struct db_hub *hub;
    struct db_listener_config config;
    char *channels; /* each ends with NUL, the last one with two */
    enum { LISTENER_WANTED, LISTENER_ASKED, LISTENER_ANSWERED, LISTENER_LISTENING } state;
    bool destroyed;
};

struct db_hub {
    struct db_link link;      /* first: the two share their address */
    struct db_server *server; /* NULL: the hub of one listener */
    struct db_hub *next;      /* of the server's */
    TAILQ_HEAD(, db_listener) listeners;
    bool asking; /* LISTENs wait for their answer */
    bool destroyed;
};

static struct db_hub *hub_of(struct db_link *link)
{
    return (struct db_hub *)link;
}

/* Sends the LISTENs of those that wait for theirs. */
static void hub_ask(struct db_hub *hub)
{
    struct db_listener *listener;
    struct buf sql;

    if (hub->asking || hub->link.state != DB_LINK_READY)
        return;
    buf_init(&sql);
    TAILQ_FOREACH(listener, &hub->listeners, entry) {
        if (listener->state != LISTENER_WANTED)
            continue;
        listener->state = LISTENER_ASKED;
        for (const char *at = listener->channels; *at; at += strlen(at) + 1)
            buf_printf(&sql, "LISTEN \"%s\";", at);
    }
    hub->asking = buf_len(&sql) > 0;
    buf_put_char(&sql, '\0');
    if (hub->asking)
        db_link_sent(&hub->link, PQsendQuery(hub->link.pg, buf_str(&sql).ptr));
    buf_deinit(&sql);
}

static void hub_on_ready(struct db_link *link)
{
    hub_ask(hub_of(link));
}

static void hub_on_down(struct db_link *link)
{
    struct db_hub *hub = hub_of(link);
    struct db_listener *listener;

    hub->asking = false;
    TAILQ_FOREACH(listener, &hub->listeners, entry)
        listener->state = LISTENER_WANTED;
}

/* Callbacks may destroy listeners: those leave the list at once, and their memory stays till the tick is over. They may also
 * create some, which ask at once and wait for an answer of their own. */
static void hub_answered(struct db_hub *hub)
{
    struct db_listener *listener, *next;

    hub->asking = false;
    db_link_answered(&hub->link);
    TAILQ_FOREACH(listener, &hub->listeners, entry)
        if (listener->state == LISTENER_ASKED)
            listener->state = LISTENER_ANSWERED;
    for (struct db_listener *at = TAILQ_FIRST(&hub->listeners); at; at = next) {
        next = TAILQ_NEXT(at, entry);
        if (at->destroyed || at->state != LISTENER_ANSWERED)
            continue;
        at->state = LISTENER_LISTENING;
        if (at->config.on_listening)
            at->config.on_listening(at->config.context);
    }
    if (!hub->destroyed)
        hub_ask(hub);
}

/* The answers to our LISTENs. A refusal ends the connection: trying again later is all that is left. */
static void hub_take_results(struct db_hub *hub)
{
    bool refused = false, ended = false;

    while (!ended && !PQisBusy(hub->link.pg)) {
        PGresult *result = PQgetResult(hub->link.pg);
        refused |= result && db_result_is_failure(result);
        ended = !result;
        PQclear(result);
    }
    if (refused)
        db_link_sent(&hub->link, 0);
    else if (ended && hub->asking)
        hub_answered(hub);
}

static bool has_channel(const struct db_listener *listener, const char *channel)
{
    const char *at = listener->channels;

    while (*at && strcmp(at, channel) != 0)
        at += strlen(at) + 1;
    return *at != '\0';
}

static void hub_deliver(struct db_hub *hub, const PGnotify *notice)
{
    struct db_listener *next;

    for (struct db_listener *at = TAILQ_FIRST(&hub->listeners); at; at = next) {
        next = TAILQ_NEXT(at, entry);
        if (!at->destroyed && has_channel(at, notice->relname))
            at->config.on_notice(at->config.context, str_from(notice->relname), str_from(notice->extra));
    }
}

static void hub_on_input(struct db_link *link)
{
    struct db_hub *hub = hub_of(link);
    PGnotify *notice;

    hub_take_results(hub);
    while (link->state == DB_LINK_READY && (notice = PQnotifies(link->pg))) {
        hub_deliver(hub, notice);
        PQfreemem(notice);
    }
}

static const struct db_link_events hub_events = {
    .role = "listener", .on_ready = hub_on_ready, .on_input = hub_on_input, .on_down = hub_on_down};

/* ---- life ---- */

static struct db_hub *hub_create(struct loop *loop, const struct db_target *target)
{
    struct db_hub *hub = memory_zalloc(sizeof *hub);

    if (db_link_init(&hub->link, loop, target, &hub_events, NULL) != STATUS_OK) {
        free(hub);
        return NULL;
    }
    TAILQ_INIT(&hub->listeners);
    hub->server = target->server;
    db_link_start(&hub->link);
    return hub;
}

static struct db_hub *hub_find(struct loop *loop, const struct db_target *target)
{
    struct db_server *server = target->server;

    if (!server)
        return hub_create(loop, target);
    pthread_mutex_lock(&server->lock);
    struct db_hub *hub = server->hubs;
    while (hub && hub->link.loop != loop)
        hub = hub->next;
    if (!hub && (hub = hub_create(loop, target))) {
        hub->next = server->hubs;
        server->hubs = hub;
    }
    pthread_mutex_unlock(&server->lock);
    return hub;
}

static char *copy_channels(const char *const *channels)
{
    struct buf names;

    buf_init(&names);
    for (; *channels; channels++)
        buf_printf(&names, "%s%c", *channels, '\0');
    char *text = str_dup(buf_str(&names)); /* adds the last NUL */
    buf_deinit(&names);
    return text;
}

struct db_listener *db_listener_create(const struct db_listener_config *config)
{
    struct db_hub *hub = hub_find(config->loop, config->target);

    if (!hub)
        return NULL;
    struct db_listener *listener = memory_zalloc(sizeof *listener);
    listener->hub = hub;
    listener->config = *config;
    listener->config.target = NULL; /* borrowed for this call only */
    listener->config.channels = NULL;
    listener->channels = copy_channels(config->channels);
    TAILQ_INSERT_TAIL(&hub->listeners, listener, entry);
    hub_ask(hub);
    return listener;
}

static void hub_destroy(struct db_hub *hub)
{
    if (hub->server) {
        pthread_mutex_lock(&hub->server->lock);
        struct db_hub **at = &hub->server->hubs;
        while (*at != hub)
            at = &(*at)->next;
        *at = hub->next;
        pthread_mutex_unlock(&hub->server->lock);
    }
    hub->destroyed = true;
    hub->link.state = DB_LINK_WAITING;
    db_link_deinit(&hub->link);
    loop_free_later(hub->link.loop, hub, free);
}

static void free_listener(void *memory)
{
    struct db_listener *listener = memory;

    free(listener->channels);
    free(listener);
}

/* May be called by its own callbacks: what they return to is freed when the tick is over. */
void db_listener_destroy(struct db_listener *listener)
{
    if (!listener)
        return;
    struct db_hub *hub = listener->hub;
    listener->destroyed = true;
    TAILQ_REMOVE(&hub->listeners, listener, entry);
    if (TAILQ_EMPTY(&hub->listeners))
        hub_destroy(hub);
    loop_free_later(hub->link.loop, listener, free_listener);
}
