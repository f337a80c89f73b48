/* The listener: LISTENs on a loop and passes notices on. What is sent while it is not connected is lost, as
 * always with NOTIFY; on_listening tells when to look for it. */
#include "db/db.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/memory.h"
#include "db/link.h"

struct db_listener {
    struct db_link link; /* first: the two share their address */
    struct db_listener_config config;
    char *listen_sql;
    bool listening, destroyed;
};

static struct db_listener *listener_of(struct db_link *link)
{
    return (struct db_listener *)link;
}

static void on_ready(struct db_link *link)
{
    db_link_sent(link, PQsendQuery(link->pg, listener_of(link)->listen_sql));
}

static void on_down(struct db_link *link)
{
    listener_of(link)->listening = false;
}

/* The answers to our LISTENs. A refusal ends the connection: trying again later is all that is left. */
static bool take_results(struct db_listener *listener)
{
    struct db_link *link = &listener->link;
    bool refused = false, ended = false;

    while (!ended && !PQisBusy(link->pg)) {
        PGresult *result = PQgetResult(link->pg);
        refused |= result && db_result_is_failure(result);
        ended = !result;
        PQclear(result);
    }
    if (refused)
        db_link_sent(link, 0);
    else if (ended && !listener->listening) {
        listener->listening = true;
        db_link_answered(link);
        if (listener->config.on_listening)
            listener->config.on_listening(listener->config.context);
    }
    return link->state == DB_LINK_READY;
}

static void on_input(struct db_link *link)
{
    struct db_listener *listener = listener_of(link);
    PGnotify *notice;

    if (!take_results(listener))
        return;
    while (!listener->destroyed && (notice = PQnotifies(link->pg))) {
        listener->config.on_notice(listener->config.context, str_from(notice->relname),
                                   str_from(notice->extra));
        PQfreemem(notice);
    }
}

static const struct db_link_events link_events = {
    .role = "listener", .on_ready = on_ready, .on_input = on_input, .on_down = on_down};

static char *make_listen_sql(const char *const *channels)
{
    struct buf sql;

    buf_init(&sql);
    for (; *channels; channels++)
        buf_printf(&sql, "LISTEN \"%s\";", *channels);
    char *text = str_dup(buf_str(&sql));
    buf_deinit(&sql);
    return text;
}

struct db_listener *db_listener_create(const struct db_listener_config *config)
{
    struct db_listener *listener = memory_zalloc(sizeof *listener);

    if (db_link_init(&listener->link, config->loop, config->target, &link_events, NULL) != STATUS_OK) {
        free(listener);
        return NULL;
    }
    listener->config = *config;
    listener->config.target = NULL; /* borrowed for this call only */
    listener->config.channels = NULL;
    listener->listen_sql = make_listen_sql(config->channels);
    db_link_start(&listener->link);
    return listener;
}

static void free_listener(void *memory)
{
    struct db_listener *listener = memory;

    free(listener->listen_sql);
    free(listener);
}

/* May be called by its own callbacks: what they return to is freed when the tick is over. */
void db_listener_destroy(struct db_listener *listener)
{
    if (!listener)
        return;
    listener->destroyed = true;
    listener->link.state = DB_LINK_WAITING;
    db_link_deinit(&listener->link);
    loop_free_later(listener->link.loop, listener, free_listener);
}
