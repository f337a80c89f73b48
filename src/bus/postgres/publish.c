/* Publishing, for whoever brings no transaction of his own: group commit.
 *
 * Whoever comes while a commit is under way queues; the first of the queue then leads, and commits all that has queued by
 * then in one go. So one caller alone waits for its own commit only, and many share one. */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define GROUP_MESSAGES_MAX 2000
#define GROUP_BYTES_MAX (16u << 20)
#define ATTEMPTS_MAX 5

struct publish_request {
    struct publish_request *next;
    struct bus_message *messages;
    size_t count, bytes;
    int64_t deadline_ns;
    pthread_cond_t changed;
    bool taken, leads, done;
    enum status status;
    struct error error;
};

void bus_postgres_publisher_init(struct publisher *publisher)
{
    pthread_mutex_init(&publisher->lock, NULL);
    pthread_cond_init(&publisher->left, NULL);
    publisher->last_next = &publisher->first;
}

void bus_postgres_publisher_deinit(struct publisher *publisher)
{
    pthread_cond_destroy(&publisher->left);
    pthread_mutex_destroy(&publisher->lock);
}

void bus_postgres_publisher_stop(struct publisher *publisher)
{
    pthread_mutex_lock(&publisher->lock);
    publisher->stopped = true;
    pthread_mutex_unlock(&publisher->lock);
}

void bus_postgres_publisher_wait_empty(struct publisher *publisher)
{
    pthread_mutex_lock(&publisher->lock);
    while (publisher->inside > 0)
        pthread_cond_wait(&publisher->left, &publisher->lock);
    pthread_mutex_unlock(&publisher->lock);
}

static enum status enter(struct publisher *publisher, struct error *error)
{
    pthread_mutex_lock(&publisher->lock);
    bool stopped = publisher->stopped;
    publisher->inside += !stopped;
    pthread_mutex_unlock(&publisher->lock);
    return stopped ? error_set(error, STATUS_CANCELLED, "the bus is stopping") : STATUS_OK;
}

static void leave(struct publisher *publisher)
{
    pthread_mutex_lock(&publisher->lock);
    if (--publisher->inside == 0)
        pthread_cond_broadcast(&publisher->left);
    pthread_mutex_unlock(&publisher->lock);
}

static enum status append_commit(struct postgres *postgres, struct append *append, int64_t deadline_ns,
                                 struct error *error)
{
    enum status status = STATUS_DB_RETRY;

    for (int attempt = 0; status == STATUS_DB_RETRY && attempt < ATTEMPTS_MAX; attempt++) {
        struct db_conn *conn;
        status = db_acquire(postgres->publish_pool, deadline_ns, &conn, error);
        if (status == STATUS_OK)
            status = bus_postgres_append_send(postgres, append, conn, deadline_ns, error);
        db_release(conn);
    }
    return status;
}

/* A message that comes alone is looked for where it is, and nowhere else; several are looked for in one go. */
static void wake_topics(struct postgres *postgres, const struct append *append)
{
    const struct placed *placed = append->placed;

    for (size_t i = 0, end; i < append->count; i = end) {
        for (end = i + 1; end < append->count && placed[end].topic == placed[i].topic;)
            end++;
        bus_postgres_wake(postgres, placed[i].topic, end - i == 1 ? placed[i].message : NULL);
    }
}

static enum status commit_requests(struct postgres *postgres, struct publish_request *first,
                                   const struct publish_request *end, struct error *error)
{
    struct append append = {0};
    int64_t deadline_ns = 0;

    for (struct publish_request *request = first; request != end; request = request->next) {
        bus_postgres_append_add(&append, &postgres->bus, request->messages, request->count);
        deadline_ns = request->deadline_ns > deadline_ns ? request->deadline_ns : deadline_ns;
    }
    append.relaxed = true;
    for (size_t i = 0; i < append.count; i++)
        append.relaxed &= append.placed[i].topic->spec.relaxed;
    bus_postgres_append_seal(&append);
    enum status status = append_commit(postgres, &append, deadline_ns, error);
    if (status == STATUS_OK)
        wake_topics(postgres, &append);
    bus_postgres_append_deinit(&append);
    return status;
}

/* Commits a chain of requests: together or, when the server refuses that, each for itself. */
static void commit_group(struct postgres *postgres, struct publish_request *first)
{
    struct error error = {0};
    enum status status = commit_requests(postgres, first, NULL, &error);
    bool apart = status == STATUS_DB_ERROR && first->next;

    for (struct publish_request *request = first; request; request = request->next) {
        request->status = status;
        request->error = error;
        if (apart)
            request->status = commit_requests(postgres, request, request->next, &request->error);
    }
}

/* Takes the queue's head, up to a transaction's worth, off it. Under the lock. */
static struct publish_request *take_group(struct publisher *publisher)
{
    struct publish_request *first = publisher->first, *last = first;
    size_t count = first->count, bytes = first->bytes;

    first->taken = true;
    while (last->next && count + last->next->count <= GROUP_MESSAGES_MAX &&
           bytes + last->next->bytes <= GROUP_BYTES_MAX) {
        last = last->next;
        last->taken = true;
        count += last->count;
        bytes += last->bytes;
    }
    publisher->first = last->next;
    if (!publisher->first)
        publisher->last_next = &publisher->first;
    last->next = NULL;
    return first;
}

/* Called and left with the lock held; runs without it. */
static void lead(struct postgres *postgres)
{
    struct publisher *publisher = &postgres->publisher;
    struct publish_request *group = take_group(publisher), *next;

    pthread_mutex_unlock(&publisher->lock);
    commit_group(postgres, group);
    pthread_mutex_lock(&publisher->lock);
    for (; group; group = next) {
        next = group->next; /* its owner may be gone as soon as it is done */
        group->done = true;
        pthread_cond_signal(&group->changed);
    }
    publisher->leading = publisher->first != NULL;
    if (publisher->first) {
        publisher->first->leads = true;
        pthread_cond_signal(&publisher->first->changed);
    }
}

static void leave_queue(struct publisher *publisher, struct publish_request *request)
{
    struct publish_request **at = &publisher->first;

    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    if (publisher->last_next == &request->next)
        publisher->last_next = at;
    request->status = error_set(&request->error, STATUS_TIMEOUT, "others were publishing all the time");
    request->done = true;
}

/* Under the lock: until its turn to lead, or somebody else has committed it. */
static void wait_turn(struct publisher *publisher, struct publish_request *request)
{
    struct timespec until = {.tv_sec = request->deadline_ns / CLOCK_NS_PER_S,
                             .tv_nsec = request->deadline_ns % CLOCK_NS_PER_S};

    while (!request->done && !request->leads) {
        if (request->taken)
            pthread_cond_wait(&request->changed, &publisher->lock);
        else if (pthread_cond_timedwait(&request->changed, &publisher->lock, &until) != 0 &&
                 !request->taken && !request->leads)
            leave_queue(publisher, request);
    }
}

static void request_init(struct publish_request *request)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&request->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    for (size_t i = 0; i < request->count; i++)
        request->bytes += request->messages[i].payload.len;
}

static enum status queue_and_wait(struct postgres *postgres, struct publish_request *request)
{
    struct publisher *publisher = &postgres->publisher;

    request_init(request);
    pthread_mutex_lock(&publisher->lock);
    *publisher->last_next = request;
    publisher->last_next = &request->next;
    if (!publisher->leading)
        publisher->leading = request->leads = true;
    wait_turn(publisher, request);
    if (!request->done)
        lead(postgres);
    pthread_mutex_unlock(&publisher->lock);
    pthread_cond_destroy(&request->changed);
    return request->status;
}

enum status bus_postgres_publish(struct bus *bus, struct bus_message *messages, size_t count,
                                 int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct publish_request request = {.messages = messages, .count = count, .deadline_ns = deadline_ns};
    enum status status = enter(&postgres->publisher, error);

    if (status != STATUS_OK)
        return status;
    status = bus_postgres_topics_ensure(postgres, messages, count, deadline_ns, error);
    if (status == STATUS_OK && (status = queue_and_wait(postgres, &request)) != STATUS_OK && error)
        *error = request.error;
    leave(&postgres->publisher);
    return status;
}
