/* The notifier: one connection that sends what waits, all of it in one statement, at most once per window.
 *
 * NOTIFY in a writing transaction takes a lock that all notifying commits of the cluster queue for; sent from
 * here it costs the writers nothing. Any thread adds to a set under a short lock and wakes the loop only when
 * no round is due already. A round that failed for lack of a connection is put back; one the server refused
 * is dropped, since notices are hints that polling makes up for. */
#include "db/db.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "db/link.h"
#include "db/notices.h"

/* Nothing here needs to survive a crash, so its commits need not wait for the disk. */
static const char setup_sql[] =
    "SET synchronous_commit = off;"
    "PREPARE freshet_notify (text[], text[]) AS"
    "    SELECT count(pg_notify(channel, payload)) FROM unnest($1, $2) AS waiting (channel, payload)";

struct db_notifier {
    struct db_link link; /* first: the two share their address */
    struct loop_timer window;
    int64_t window_ns, next_round_ns;
    bool busy, refused;     /* a round (or the setup) is out; the server refused the last one */
    struct db_notices sent; /* that round's */

    pthread_mutex_t lock; /* for what follows */
    struct db_notices waiting;
    bool posted, due, destroyed; /* `message` is in the inbox; a round is to come; only the memory is left */
    struct loop_message message;
};

static struct db_notifier *notifier_of(struct db_link *link)
{
    return (struct db_notifier *)link;
}

/* Takes what waits into notifier->sent; false when there is nothing. */
static bool take_waiting(struct db_notifier *notifier)
{
    struct db_notices empty = notifier->sent;

    pthread_mutex_lock(&notifier->lock);
    notifier->sent = notifier->waiting;
    notifier->waiting = empty;
    notifier->due = false;
    pthread_mutex_unlock(&notifier->lock);
    return notifier->sent.count > 0;
}

static void send_round(struct db_notifier *notifier)
{
    struct db_link *link = &notifier->link;
    struct buf channels, payloads;

    buf_init(&channels);
    buf_init(&payloads);
    db_notices_print(&notifier->sent, &channels, &payloads);
    buf_put_char(&channels, '\0');
    buf_put_char(&payloads, '\0');
    const char *values[] = {buf_str(&channels).ptr, buf_str(&payloads).ptr};
    notifier->busy = true;
    notifier->next_round_ns = clock_mono_ns() + notifier->window_ns;
    db_link_sent(link, PQsendQueryPrepared(link->pg, "freshet_notify", 2, values, NULL, NULL, 0));
    buf_deinit(&channels);
    buf_deinit(&payloads);
}

static void on_window(struct loop_timer *timer);

/* Sends now, or as soon as the window allows; when the link is down or busy, its next event comes back
 * here. */
static void consider(struct db_notifier *notifier)
{
    pthread_mutex_lock(&notifier->lock);
    bool due = notifier->due;
    pthread_mutex_unlock(&notifier->lock);
    if (!due || notifier->busy || notifier->link.state != DB_LINK_READY)
        return;
    if (clock_mono_ns() < notifier->next_round_ns)
        loop_timer_start(notifier->link.loop, &notifier->window, notifier->next_round_ns, on_window);
    else if (take_waiting(notifier))
        send_round(notifier);
}

static void on_window(struct loop_timer *timer)
{
    consider((struct db_notifier *)((char *)timer - offsetof(struct db_notifier, window)));
}

/* ---- the link's events ---- */

static void on_ready(struct db_link *link)
{
    notifier_of(link)->busy = true;
    db_link_sent(link, PQsendQuery(link->pg, setup_sql));
}

static void report(struct db_notifier *notifier, const PGresult *failure)
{
    if (failure && !notifier->refused)
        log_warn("db_notify_refused", LOG_CSTR("database", notifier->link.parsed.name),
                 LOG_CSTR("error", PQresultErrorField(failure, PG_DIAG_MESSAGE_PRIMARY)));
    notifier->refused = failure != NULL;
}

static void on_input(struct db_link *link)
{
    struct db_notifier *notifier = notifier_of(link);

    while (notifier->busy && !PQisBusy(link->pg)) {
        PGresult *result = PQgetResult(link->pg);
        if (result)
            report(notifier, db_result_is_failure(result) ? result : NULL);
        else
            notifier->busy = false;
        PQclear(result);
    }
    if (notifier->busy)
        return;
    db_notices_clear(&notifier->sent);
    db_link_answered(link);
    consider(notifier);
}

/* Whether the last round arrived is unknown: a notice twice does no harm. */
static void on_down(struct db_link *link)
{
    struct db_notifier *notifier = notifier_of(link);

    notifier->busy = false;
    pthread_mutex_lock(&notifier->lock);
    for (size_t i = 0; i < notifier->sent.count; i++) {
        const struct db_notice *notice = &notifier->sent.at[i];
        db_notices_add(&notifier->waiting, str_of(notice->text, notice->channel_len),
                       str_of(notice->text + notice->channel_len + 1, notice->payload_len));
    }
    notifier->due |= notifier->sent.count > 0;
    pthread_mutex_unlock(&notifier->lock);
    db_notices_clear(&notifier->sent);
}

static const struct db_link_events link_events = {
    .role = "notifier", .on_ready = on_ready, .on_input = on_input, .on_down = on_down};

/* ---- from outside ---- */

static void free_notifier(void *memory)
{
    struct db_notifier *notifier = memory;

    db_notices_deinit(&notifier->sent);
    db_notices_deinit(&notifier->waiting);
    pthread_mutex_destroy(&notifier->lock);
    free(notifier);
}

static void on_message(struct loop *loop, struct loop_message *message)
{
    struct db_notifier *notifier =
        (struct db_notifier *)((char *)message - offsetof(struct db_notifier, message));

    pthread_mutex_lock(&notifier->lock);
    notifier->posted = false;
    bool destroyed = notifier->destroyed;
    pthread_mutex_unlock(&notifier->lock);
    if (destroyed)
        loop_free_later(loop, notifier, free_notifier);
    else
        consider(notifier);
}

void db_notify(struct db_notifier *notifier, struct str channel, struct str payload)
{
    pthread_mutex_lock(&notifier->lock);
    db_notices_add(&notifier->waiting, channel, payload);
    bool post = !notifier->due && !notifier->posted;
    notifier->due = true;
    notifier->posted |= post;
    pthread_mutex_unlock(&notifier->lock);
    if (post)
        loop_post(notifier->link.loop, &notifier->message);
}

struct db_notifier *db_notifier_create(struct loop *loop, const struct db_target *target, int64_t window_us)
{
    struct db_notifier *notifier = memory_zalloc(sizeof *notifier);

    if (db_link_init(&notifier->link, loop, target, &link_events, NULL) != STATUS_OK) {
        free(notifier);
        return NULL;
    }
    notifier->window_ns = window_us * 1000;
    notifier->message.on_message = on_message;
    pthread_mutex_init(&notifier->lock, NULL);
    db_notices_init(&notifier->sent);
    db_notices_init(&notifier->waiting);
    db_link_start(&notifier->link);
    return notifier;
}

void db_notifier_destroy(struct db_notifier *notifier)
{
    if (!notifier)
        return;
    struct loop *loop = notifier->link.loop;
    notifier->link.state = DB_LINK_WAITING;
    db_link_deinit(&notifier->link);
    loop_timer_stop(loop, &notifier->window);
    pthread_mutex_lock(&notifier->lock);
    notifier->destroyed = true;
    bool posted = notifier->posted; /* then the message's turn frees it */
    pthread_mutex_unlock(&notifier->lock);
    if (!posted)
        loop_free_later(loop, notifier, free_notifier);
}
