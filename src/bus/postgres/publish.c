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

/* ---- committing ---- */

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
    enum status status = STATUS_DB_RETRY;
    for (int attempt = 0; status == STATUS_DB_RETRY && attempt < ATTEMPTS_MAX; attempt++) {
        struct db_conn *conn;
        status = db_acquire(postgres->publish_pool, deadline_ns, &conn, error);
        if (status == STATUS_OK)
            status = bus_postgres_append_send(postgres, &append, conn, deadline_ns, error);
        db_release(conn);
    }
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

/* ---- the queue: all of this under postgres->lock ---- */

/* Takes requests off the queue, up to the size of a transaction, and commits them without the lock: together or, when the
 * server refuses that, one by one. The leader is the first. */
static void lead_group(struct postgres *postgres)
{
    struct publish_requests group = STAILQ_HEAD_INITIALIZER(group);
    struct publish_request *request, *next;
    struct error error = {0};
    size_t count = 0, bytes = 0;

    while ((request = STAILQ_FIRST(&postgres->publish_queue)) &&
           (STAILQ_EMPTY(&group) ||
            (count + request->count <= GROUP_MESSAGES_MAX && bytes + request->bytes <= GROUP_BYTES_MAX))) {
        STAILQ_REMOVE_HEAD(&postgres->publish_queue, link);
        STAILQ_INSERT_TAIL(&group, request, link);
        request->state = REQUEST_TAKEN;
        count += request->count;
        bytes += request->bytes;
    }
    pthread_mutex_unlock(&postgres->lock);
    struct publish_request *first = STAILQ_FIRST(&group);
    error.status = commit_requests(postgres, first, false, &error);
    bool is_apart = error.status == STATUS_DB_ERROR && STAILQ_NEXT(first, link);
    STAILQ_FOREACH(request, &group, link) {
        request->error = error;
        if (is_apart)
            request->error.status = commit_requests(postgres, request, true, &request->error);
    }
    pthread_mutex_lock(&postgres->lock);
    STAILQ_FOREACH_SAFE(request, &group, link, next) { /* a request may be gone as soon as it is done */
        request->state = REQUEST_DONE;
        pthread_cond_signal(&request->changed);
    }
    request = STAILQ_FIRST(&postgres->publish_queue);
    postgres->has_leader = request != NULL;
    if (request) {
        request->state = REQUEST_LEADS;
        pthread_cond_signal(&request->changed);
    }
}

enum status bus_postgres_publish(struct bus *bus, struct bus_message *messages, size_t count,
                                 int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = (struct postgres *)bus;
    struct publish_request request = {.messages = messages, .count = count, .deadline_ns = deadline_ns};

    pthread_mutex_lock(&postgres->lock);
    bool is_stopping = postgres->is_stopping;
    postgres->publishing += !is_stopping;
    pthread_mutex_unlock(&postgres->lock);
    if (is_stopping)
        return error_set(error, STATUS_CANCELLED, "the bus is stopping");
    request.error.status = bus_postgres_topics_ensure(postgres, messages, count, deadline_ns, &request.error);
    for (size_t i = 0; i < count; i++)
        request.bytes += messages[i].payload.len;
    pthread_cond_init(&request.changed, NULL);
    pthread_mutex_lock(&postgres->lock);
    if (request.error.status == STATUS_OK) {
        STAILQ_INSERT_TAIL(&postgres->publish_queue, &request, link);
        if (!postgres->has_leader)
            request.state = REQUEST_LEADS;
        postgres->has_leader = true;
        while (request.state == REQUEST_QUEUED || request.state == REQUEST_TAKEN) {
            int64_t until_ns = request.state == REQUEST_TAKEN ? CLOCK_NEVER : deadline_ns;
            if (!clock_cond_wait(&request.changed, &postgres->lock, until_ns) &&
                request.state == REQUEST_QUEUED) {
                STAILQ_REMOVE(&postgres->publish_queue, &request, publish_request, link);
                error_set(&request.error, STATUS_TIMEOUT, "other publishers were first until the deadline");
                request.state = REQUEST_DONE;
            }
        }
        if (request.state == REQUEST_LEADS)
            lead_group(postgres);
    }
    if (--postgres->publishing == 0)
        pthread_cond_broadcast(&postgres->handled);
    pthread_mutex_unlock(&postgres->lock);
    pthread_cond_destroy(&request.changed);
    if (request.error.status != STATUS_OK && error)
        *error = request.error;
    return request.error.status;
}
