/* The notifier: one connection on a loop (link.c) that sends the notices that wait, all of them in one statement, at most once
 * per window. NOTIFY in a writing transaction takes a lock that all notifying commits of the cluster queue for; sent from here
 * it costs the writers nothing. Any thread adds to a set under a short lock and wakes the loop only when no round is due
 * already. A round that failed for lack of a connection is put back; one that the server refused is dropped, since notices
 * are hints that polling makes up for. */
#include "db/db.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "db/link.h"

/* ---- the notifier's sets: notices in order, the same one once; bounded ---- */

#define NOTICES_MAX 10000
#define NOTICES_SPARE 100 /* room for channels with their payload dropped, once the set is full */
#define PAYLOAD_BYTES_MAX 7999
#define CHANNEL_BYTES_MAX 63

struct notice {
    struct map_node node;
    STAILQ_ENTRY(notice) link;
    struct str channel, payload; /* in `text` */
    char text[];
};

struct notice_set {
    struct map map;
    STAILQ_HEAD(, notice) order;
};

/* A payload PostgreSQL would refuse (8,000 bytes, NUL, not UTF-8) or that finds the set full becomes "". */
static void notices_add(struct notice_set *set, struct str channel, struct str payload)
{
    struct map_node *node;

    if (channel.len == 0 || channel.len > CHANNEL_BYTES_MAX)
        return;
    if (set->map.count >= NOTICES_MAX || payload.len > PAYLOAD_BYTES_MAX || !str_is_text(payload))
        payload = STR("");
    uint64_t hash = map_hash_pair(channel, payload);
    MAP_MATCH(node, &set->map, hash) {
        const struct notice *notice = CONTAINER_OF(node, struct notice, node);
        if (str_eq(notice->channel, channel) && str_eq(notice->payload, payload))
            return;
    }
    if (set->map.count >= NOTICES_MAX + NOTICES_SPARE)
        return;
    struct notice *notice = memory_alloc(sizeof *notice + channel.len + payload.len);
    memcpy(notice->text, channel.ptr, channel.len);
    if (payload.len > 0)
        memcpy(notice->text + channel.len, payload.ptr, payload.len);
    notice->channel = str_of(notice->text, channel.len);
    notice->payload = str_of(notice->text + channel.len, payload.len);
    map_add(&set->map, &notice->node, hash);
    STAILQ_INSERT_TAIL(&set->order, notice, link);
}

static void notices_clear(struct notice_set *set)
{
    struct notice *notice;

    while ((notice = STAILQ_FIRST(&set->order)) != NULL) {
        STAILQ_REMOVE_HEAD(&set->order, link);
        map_remove(&set->map, &notice->node);
        free(notice);
    }
}

/* ---- the notifier ---- */

/* Nothing here needs to survive a crash, so its commits need not wait for the disk. */
static const char setup_sql[] =
    "SET synchronous_commit = off;"
    "PREPARE freshet_notify (text[], text[]) AS"
    "    SELECT count(pg_notify(channel, payload)) FROM unnest($1, $2) AS waiting (channel, payload)";

struct db_notifier {
    struct db_link link; /* first: the two share their address */
    struct loop_timer window;
    int64_t window_ns, next_round_ns;
    bool busy, refused;               /* a round (or the setup) is out; the server refused the last one */
    struct notice_set sets[2], *sent; /* that round's */

    pthread_mutex_t lock; /* for what follows */
    struct notice_set *waiting;
    bool posted, due, destroyed; /* `message` is in the inbox; a round is to come; only the memory is left */
    struct loop_message message;
};

static struct db_notifier *notifier_of(struct db_link *link)
{
    return (struct db_notifier *)link;
}

static void on_window(struct loop_timer *timer);

/* Sends now, or as soon as the window allows; when the link is down or busy, its next event comes back here. */
static void send_when_due(struct db_notifier *notifier)
{
    struct db_link *link = &notifier->link;
    struct buf channels = {0}, payloads = {0};
    const struct notice *notice;

    if (notifier->busy || link->state != DB_LINK_READY)
        return;
    pthread_mutex_lock(&notifier->lock);
    bool is_due = notifier->due, is_early = clock_mono_ns() < notifier->next_round_ns;
    if (is_due && !is_early) {
        struct notice_set *empty = notifier->sent;
        notifier->sent = notifier->waiting;
        notifier->waiting = empty;
        notifier->due = false;
    }
    pthread_mutex_unlock(&notifier->lock);
    if (is_due && is_early)
        loop_timer_start(link->loop, &notifier->window, notifier->next_round_ns, on_window);
    if (!is_due || is_early || notifier->sent->map.count == 0)
        return;
    STAILQ_FOREACH(notice, &notifier->sent->order, link) {
        db_array_put(&channels, notice->channel);
        db_array_put(&payloads, notice->payload);
    }
    db_array_end(&channels);
    db_array_end(&payloads);
    buf_put_char(&channels, '\0');
    buf_put_char(&payloads, '\0');
    const char *values[] = {buf_str(&channels).ptr, buf_str(&payloads).ptr};
    notifier->busy = true;
    notifier->next_round_ns = clock_mono_ns() + notifier->window_ns;
    db_link_sent(link, PQsendQueryPrepared(link->pg, "freshet_notify", 2, values, NULL, NULL, 0));
    buf_deinit(&channels);
    buf_deinit(&payloads);
}

static void on_window(struct loop_timer *timer)
{
    send_when_due(CONTAINER_OF(timer, struct db_notifier, window));
}

/* ---- the link's events ---- */

static void notifier_on_ready(struct db_link *link)
{
    notifier_of(link)->busy = true;
    db_link_sent(link, PQsendQuery(link->pg, setup_sql));
}

static void notifier_on_input(struct db_link *link)
{
    struct db_notifier *notifier = notifier_of(link);

    while (notifier->busy && !PQisBusy(link->pg)) {
        PGresult *result = PQgetResult(link->pg);
        bool is_refused = result && db_result_is_failure(result);
        if (is_refused && !notifier->refused)
            log_warn("db_notify_refused", LOG_CSTR("database", link->parsed.name),
                     LOG_CSTR("error", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY)));
        if (result)
            notifier->refused = is_refused;
        else
            notifier->busy = false;
        PQclear(result);
    }
    if (notifier->busy)
        return;
    notices_clear(notifier->sent);
    db_link_answered(link);
    send_when_due(notifier);
}

/* Whether the last round arrived is unknown: a notice twice does no harm. */
static void notifier_on_down(struct db_link *link)
{
    struct db_notifier *notifier = notifier_of(link);
    const struct notice *notice;

    notifier->busy = false;
    pthread_mutex_lock(&notifier->lock);
    STAILQ_FOREACH(notice, &notifier->sent->order, link)
        notices_add(notifier->waiting, notice->channel, notice->payload);
    notifier->due |= notifier->sent->map.count > 0;
    pthread_mutex_unlock(&notifier->lock);
    notices_clear(notifier->sent);
}

static const struct db_link_kind notifier_kind = {.role = "notifier",
                                                  .size = sizeof(struct db_notifier),
                                                  .on_ready = notifier_on_ready,
                                                  .on_input = notifier_on_input,
                                                  .on_down = notifier_on_down};

/* ---- from outside ---- */

static void free_notifier(void *memory)
{
    struct db_notifier *notifier = memory;

    for (int i = 0; i < 2; i++) {
        notices_clear(&notifier->sets[i]);
        map_deinit(&notifier->sets[i].map);
    }
    pthread_mutex_destroy(&notifier->lock);
    free(notifier);
}

static void on_message(struct loop *loop, struct loop_message *message)
{
    struct db_notifier *notifier = CONTAINER_OF(message, struct db_notifier, message);

    pthread_mutex_lock(&notifier->lock);
    notifier->posted = false;
    bool destroyed = notifier->destroyed;
    pthread_mutex_unlock(&notifier->lock);
    if (destroyed)
        loop_free_later(loop, notifier, free_notifier);
    else
        send_when_due(notifier);
}

void db_notify(struct db_notifier *notifier, struct str channel, struct str payload)
{
    pthread_mutex_lock(&notifier->lock);
    notices_add(notifier->waiting, channel, payload);
    bool post = !notifier->due && !notifier->posted;
    notifier->due = true;
    notifier->posted |= post;
    pthread_mutex_unlock(&notifier->lock);
    if (post)
        loop_post(notifier->link.loop, &notifier->message);
}

struct db_notifier *db_notifier_create(struct loop *loop, const struct db_target *target, int64_t window_us)
{
    struct db_link *link = db_link_ref(loop, target, &notifier_kind);
    struct db_notifier *notifier = link ? notifier_of(link) : NULL;

    if (!notifier)
        return NULL;
    if (!notifier->sent) { /* it is new */
        notifier->window_ns = window_us * 1000;
        notifier->message.on_message = on_message;
        pthread_mutex_init(&notifier->lock, NULL);
        notifier->sent = &notifier->sets[0];
        notifier->waiting = &notifier->sets[1];
        for (int i = 0; i < 2; i++)
            STAILQ_INIT(&notifier->sets[i].order);
    }
    if (window_us * 1000 < notifier->window_ns)
        notifier->window_ns = window_us * 1000;
    return notifier;
}

void db_notifier_destroy(struct db_notifier *notifier)
{
    if (!notifier || !db_link_unref(&notifier->link))
        return;
    struct loop *loop = notifier->link.loop;
    loop_timer_stop(loop, &notifier->window);
    pthread_mutex_lock(&notifier->lock);
    notifier->destroyed = true;
    bool posted = notifier->posted; /* then the message's turn frees it */
    pthread_mutex_unlock(&notifier->lock);
    if (!posted)
        loop_free_later(loop, notifier, free_notifier);
}
