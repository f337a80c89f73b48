/* Listeners: each has its channels and callbacks; those of one server on one loop share a hub, which is one connection
 * that LISTENs. What is sent while it is not connected is lost, as always with NOTIFY; on_listening reports when to look
 * for it. A channel is not UNLISTENed: its notices find no listener then. */
#include "db/db.h"

#include <stdlib.h>

#include "base/list.h"
#include "base/memory.h"
#include "db/link.h"

struct db_listener {
    LIST_ENTRY(db_listener) entry;
    struct db_hub *hub;
    struct db_listener_config config;
    enum { LISTENER_WANTED, LISTENER_ASKED, LISTENER_ANSWERED, LISTENER_LISTENING } state;
    bool destroyed;
};

struct db_hub {
    struct db_link link; /* first: the two share their address; each listener is a user */
    LIST_HEAD(, db_listener) listeners;
    bool is_waiting_for_answer; /* to LISTENs */
    bool destroyed;
};

static struct db_hub *hub_of(struct db_link *link)
{
    return (struct db_hub *)link;
}

/* Sends the LISTENs of those that wait for theirs. */
static void hub_ask(struct db_link *link)
{
    struct db_hub *hub = hub_of(link);
    struct db_listener *listener;
    struct buf sql = {0};

    if (hub->is_waiting_for_answer || link->state != DB_LINK_READY)
        return;
    LIST_FOREACH(listener, &hub->listeners, entry) {
        if (listener->state != LISTENER_WANTED)
            continue;
        listener->state = LISTENER_ASKED;
        for (const char **channel = listener->config.channels; *channel; channel++)
            buf_printf(&sql, "LISTEN \"%s\";", *channel);
    }
    hub->is_waiting_for_answer = buf_len(&sql) > 0;
    buf_put_char(&sql, '\0');
    if (hub->is_waiting_for_answer)
        db_link_sent(link, PQsendQuery(link->pg, buf_str(&sql).ptr));
    buf_deinit(&sql);
}

static void hub_on_down(struct db_link *link)
{
    struct db_hub *hub = hub_of(link);
    struct db_listener *listener;

    hub->is_waiting_for_answer = false;
    LIST_FOREACH(listener, &hub->listeners, entry)
        listener->state = LISTENER_WANTED;
}

/* Callbacks may destroy listeners: those leave the list at once, and their memory stays till the tick is over. They may also
 * create some, which ask at once and wait for an answer of their own. */
static void hub_answered(struct db_hub *hub)
{
    struct db_listener *listener, *next;

    hub->is_waiting_for_answer = false;
    db_link_answered(&hub->link);
    LIST_FOREACH(listener, &hub->listeners, entry)
        if (listener->state == LISTENER_ASKED)
            listener->state = LISTENER_ANSWERED;
    LIST_FOREACH_SAFE(listener, &hub->listeners, entry, next) {
        if (listener->destroyed || listener->state != LISTENER_ANSWERED)
            continue;
        listener->state = LISTENER_LISTENING;
        if (listener->config.on_listening)
            listener->config.on_listening(listener->config.context);
    }
    if (!hub->destroyed)
        hub_ask(&hub->link);
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
    else if (ended && hub->is_waiting_for_answer)
        hub_answered(hub);
}

static void hub_on_input(struct db_link *link)
{
    struct db_hub *hub = hub_of(link);
    struct db_listener *at, *next;
    PGnotify *notice;

    hub_take_results(hub);
    while (link->state == DB_LINK_READY && (notice = PQnotifies(link->pg))) {
        LIST_FOREACH_SAFE(at, &hub->listeners, entry, next) {
            const char *const *channel = at->config.channels;
            while (*channel && strcmp(*channel, notice->relname) != 0)
                channel++;
            if (*channel && !at->destroyed)
                at->config.on_notice(at->config.context, str_from(notice->relname), str_from(notice->extra));
        }
        PQfreemem(notice);
    }
}

static const struct db_link_kind hub_kind = {.role = "listener",
                                             .size = sizeof(struct db_hub),
                                             .on_ready = hub_ask,
                                             .on_input = hub_on_input,
                                             .on_down = hub_on_down};

/* ---- life ---- */

struct db_listener *db_listener_create(const struct db_listener_config *config)
{
    struct db_link *link = db_link_ref(config->loop, config->target, &hub_kind);

    if (!link)
        return NULL;
    struct db_listener *listener = memory_zalloc(sizeof *listener);
    listener->hub = hub_of(link);
    listener->config = *config;
    listener->config.target = NULL; /* borrowed for this call only */
    LIST_INSERT_HEAD(&listener->hub->listeners, listener, entry);
    hub_ask(link);
    return listener;
}

/* May be called by its own callbacks: what they return to is freed when the tick is over. */
void db_listener_destroy(struct db_listener *listener)
{
    if (!listener)
        return;
    struct db_hub *hub = listener->hub;
    struct loop *loop = hub->link.loop;
    listener->destroyed = true;
    LIST_REMOVE(listener, entry);
    if (db_link_unref(&hub->link)) {
        hub->destroyed = true;
        loop_free_later(loop, hub, free);
    }
    loop_free_later(loop, listener, free);
}
