/* Publishing without a transaction of the caller: group commit.
 *
 * A caller that comes while a commit is under way queues; then the first of the queue leads, and commits everything that has queued
 * by then in one transaction. So a single caller waits for its own commit only, and many share one.
 *
 *   QUEUED ── first of the queue, without a leader ──▶ LEADS ──┐
 *      ├── a leader takes it ──▶ TAKEN ────────────────────────┴──▶ DONE
 *      └── its deadline is over ──────────────────────────────────▶ DONE */

#include "base/clock.h"
#include "bus/postgres/inside.h"

#define GROUP_MESSAGES_MAX 2000
#define GROUP_BYTES_MAX (16u << 20)
#define ATTEMPTS_MAX 5

enum request_state { REQUEST_QUEUED, REQUEST_LEADS, REQUEST_TAKEN, REQUEST_DONE };

struct publish_request {
    STAILQ_ENTRY(publish_request) link;
    enum request_state state;
    struct bus_message *messages;
    size_t count, bytes;
    int64_t deadline_ns;
    pthread_cond_t changed;
    struct error error; /* with the status when it is done */
};

void bus_postgres_publisher_init(struct publisher *publisher)
{
    pthread_mutex_init(&publisher->lock, NULL);
    pthread_cond_init(&publisher->left, NULL);
    STAILQ_INIT(&publisher->queue);
}

void bus_postgres_publisher_deinit(struct publisher *publisher)
{
    pthread_cond_destroy(&publisher->left);
    pthread_mutex_destroy(&publisher->lock);
}

void bus_postgres_publisher_stop(struct publisher *publisher)
{
    pthread_mutex_lock(&publisher->lock);
    publisher->is_stopped = true;
    pthread_mutex_unlock(&publisher->lock);
}

void bus_postgres_publisher_wait_empty(struct publisher *publisher)
{
    pthread_mutex_lock(&publisher->lock);
    while (publisher->inside > 0)
        pthread_cond_wait(&publisher->left, &publisher->lock);
    pthread_mutex_unlock(&publisher->lock);
}

/* ---- committing ---- */

static enum status append_and_commit(struct postgres *postgres, struct append *append, int64_t deadline_ns,
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

/* Commits the requests from `first` on, or only that one. */
static enum status commit_requests(struct postgres *postgres, struct publish_request *first, bool is_single,
                                   struct error *error)
{
    struct append append = {.relaxed = true};
    int64_t deadline_ns = 0;

    for (struct publish_request *request = first; request;
         request = is_single ? NULL : STAILQ_NEXT(request, link)) {
        bus_postgres_append_add(&append, &postgres->bus, request->messages, request->count);
        deadline_ns = request->deadline_ns > deadline_ns ? request->deadline_ns : deadline_ns;
    }
    for (size_t i = 0; i < append.count; i++)
        append.relaxed &= append.placed[i].topic->spec.relaxed;
    enum status status = append_and_commit(postgres, &append, deadline_ns, error);
    /* Readers of a single message of a topic look for it in its partition, others look anywhere. */
    const struct placed *placed = append.placed;
    for (size_t i = 0, end; i < append.count && status == STATUS_OK; i = end) {
        for (end = i + 1; end < append.count && placed[end].topic == placed[i].topic;)
            end++;
        bus_postgres_wake(postgres, placed[i].topic, end - i == 1 ? placed[i].message : NULL);
    }
    bus_postgres_append_deinit(&append);
    return status;
}

/* Together or, when the server refuses that, one by one. */
static void commit_group(struct postgres *postgres, struct publish_requests *group)
{
    struct publish_request *first = STAILQ_FIRST(group), *request;
    struct error error = {0};
    error.status = commit_requests(postgres, first, false, &error);
    bool is_apart = error.status == STATUS_DB_ERROR && STAILQ_NEXT(first, link);

    STAILQ_FOREACH(request, group, link) {
        request->error = error;
        if (is_apart)
            request->error.status = commit_requests(postgres, request, true, &request->error);
    }
}

/* ---- the queue: all of this under the lock ---- */

/* Takes requests off the queue, up to the size of a transaction. The leader is the first. */
static void take_group(struct publisher *publisher, struct publish_requests *group)
{
    struct publish_request *request;
    size_t count = 0, bytes = 0;

    while ((request = STAILQ_FIRST(&publisher->queue)) &&
           (STAILQ_EMPTY(group) ||
            (count + request->count <= GROUP_MESSAGES_MAX && bytes + request->bytes <= GROUP_BYTES_MAX))) {
        STAILQ_REMOVE_HEAD(&publisher->queue, link);
        STAILQ_INSERT_TAIL(group, request, link);
        request->state = REQUEST_TAKEN;
        count += request->count;
        bytes += request->bytes;
    }
}

/* Commits without the lock. */
static void lead_group(struct postgres *postgres)
{
    struct publisher *publisher = &postgres->publisher;
    struct publish_requests group = STAILQ_HEAD_INITIALIZER(group);
    struct publish_request *request, *next;

    take_group(publisher, &group);
    pthread_mutex_unlock(&publisher->lock);
    commit_group(postgres, &group);
    pthread_mutex_lock(&publisher->lock);
    STAILQ_FOREACH_SAFE(request, &group, link, next) { /* a request may be gone as soon as it is done */
        request->state = REQUEST_DONE;
        pthread_cond_signal(&request->changed);
    }
    request = STAILQ_FIRST(&publisher->queue);
    publisher->has_leader = request != NULL;
    if (request) {
        request->state = REQUEST_LEADS;
        pthread_cond_signal(&request->changed);
    }
}

static void wait_turn(struct publisher *publisher, struct publish_request *request)
{
    while (request->state == REQUEST_QUEUED || request->state == REQUEST_TAKEN) {
        if (request->state == REQUEST_TAKEN) {
            pthread_cond_wait(&request->changed, &publisher->lock);
        } else if (!clock_cond_wait(&request->changed, &publisher->lock, request->deadline_ns) &&
                   request->state == REQUEST_QUEUED) {
            STAILQ_REMOVE(&publisher->queue, request, publish_request, link);
            error_set(&request->error, STATUS_TIMEOUT, "other publishers were first until the deadline");
            request->state = REQUEST_DONE;
        }
    }
}

static void queue_and_wait(struct postgres *postgres, struct publish_request *request)
{
    struct publisher *publisher = &postgres->publisher;

    pthread_cond_init(&request->changed, NULL);
    for (size_t i = 0; i < request->count; i++)
        request->bytes += request->messages[i].payload.len;
    pthread_mutex_lock(&publisher->lock);
    STAILQ_INSERT_TAIL(&publisher->queue, request, link);
    if (!publisher->has_leader) {
        publisher->has_leader = true;
        request->state = REQUEST_LEADS;
    }
    wait_turn(publisher, request);
    if (request->state == REQUEST_LEADS)
        lead_group(postgres);
    pthread_mutex_unlock(&publisher->lock);
    pthread_cond_destroy(&request->changed);
}

enum status bus_postgres_publish(struct bus *bus, struct bus_message *messages, size_t count,
                                 int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct publisher *publisher = &postgres->publisher;
    struct publish_request request = {.messages = messages, .count = count, .deadline_ns = deadline_ns};

    pthread_mutex_lock(&publisher->lock);
    bool is_stopped = publisher->is_stopped;
    publisher->inside += !is_stopped;
    pthread_mutex_unlock(&publisher->lock);
    if (is_stopped)
        return error_set(error, STATUS_CANCELLED, "the bus is stopping");
    enum status status = bus_postgres_topics_ensure(postgres, messages, count, deadline_ns, error);
    if (status == STATUS_OK) {
        queue_and_wait(postgres, &request);
        status = request.error.status;
        if (status != STATUS_OK && error)
            *error = request.error;
    }
    pthread_mutex_lock(&publisher->lock);
    if (--publisher->inside == 0)
        pthread_cond_broadcast(&publisher->left);
    pthread_mutex_unlock(&publisher->lock);
    return status;
}
