/* Publishing: messages become rows of their partitions (sql/platform/001_bus.sql), on a connection of the caller, in its transaction,
 * or by group commit.
 *
 * Group commit: a caller that comes while a commit is under way queues; then the first of the queue leads, and commits everything
 * that has queued by then in one transaction. So a single caller waits for its own commit only, and many share one.
 *
 *   QUEUED ── first of the queue, without a leader ──▶ LEADS ──┐
 *      ├── a leader takes it ──▶ TAKEN ────────────────────────┴──▶ DONE
 *      └── its deadline is over ──────────────────────────────────▶ DONE */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "bus/postgres/inside.h"

#define GROUP_MESSAGES_MAX 2000
#define GROUP_BYTES_MAX (16u << 20)
#define ATTEMPTS_MAX 5

/* The commit does not wait for the disk: the setting ends with the statement's own transaction. */
#define RELAXED ", set_config('synchronous_commit', 'off', true)"

#define APPEND(more)                                                                                     \
    "SELECT bus_publish" more " FROM platform.bus_publish($1::text[], $2::text::int[], $3::text::int[]," \
    " $4, $5::text::text[], $6)"
static const struct db_statement append_sql = DB_STATEMENT(APPEND(""));
static const struct db_statement append_relaxed_sql = DB_STATEMENT(APPEND(RELAXED));

/* The same for a single message, as in most calls: no function, no arrays. A missing partition is an error, since an offset is
 * never NULL. */
#define APPEND_ONE                                                                                   \
    "WITH slot AS (UPDATE platform.bus_partition SET next_offset = next_offset + 1"                  \
    "              WHERE topic = $1 AND partition = $2 RETURNING next_offset - 1 AS message_offset)" \
    " INSERT INTO platform.bus_message (topic, partition, message_offset, key, headers, payload)"    \
    " VALUES ($1, $2, (SELECT message_offset FROM slot), $3, $4, $5)"                                \
    " RETURNING message_offset, " POSTGRES_CREATED_US("bus_message")
static const struct db_statement append_one_sql = DB_STATEMENT(APPEND_ONE);
static const struct db_statement append_one_relaxed_sql = DB_STATEMENT(APPEND_ONE RELAXED);

/* ---- messages of one statement ---- */

struct placed { /* a message on its way to its partition */
    struct bus_message *message;
    struct bus_topic_state *topic;
    size_t at; /* keeps the order of equals */
};
struct append {
    struct placed *placed;
    size_t count;
    struct buf topics, partitions, counts, keys, headers, payloads; /* array literals */
    bool relaxed;                                                   /* the commit need not reach the disk */
    bool is_sorted;                                                 /* and the arrays are written */
};

static int compare_placed(const void *left, const void *right)
{
    const struct placed *a = left, *b = right;
    int order = a->topic == b->topic ? 0 : str_compare(a->topic->name, b->topic->name);

    if (order == 0)
        order =
            (a->message->partition > b->message->partition) - (a->message->partition < b->message->partition);
    return order ? order : (a->at > b->at) - (a->at < b->at);
}

static void append_deinit(struct append *append)
{
    free(append->placed);
    struct buf *bufs[] = {&append->topics, &append->partitions, &append->counts,
                          &append->keys,   &append->headers,    &append->payloads};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        buf_deinit(bufs[i]);
}

/* The end of the messages of placed[begin]'s partition. */
static size_t slot_end(const struct append *append, size_t begin)
{
    const struct placed *placed = append->placed;
    size_t end = begin + 1;

    while (end < append->count && placed[end].topic == placed[begin].topic &&
           placed[end].message->partition == placed[begin].message->partition)
        end++;
    return end;
}

static struct str payload_of(const struct bus_message *message)
{
    return message->payload.ptr ? message->payload : STR("");
}

static void append_add(struct append *append, struct bus *bus, struct bus_message *messages, size_t count)
{
    append->placed = memory_realloc_array(append->placed, append->count + count, sizeof append->placed[0]);
    for (size_t i = 0; i < count; i++, append->count++)
        append->placed[append->count] = (struct placed){
            .message = &messages[i], .topic = bus_topic_find(bus, messages[i].topic), .at = append->count};
}

/* A text[] literal: name, value, name, value … */
static void put_headers(struct buf *out, const struct bus_message *message)
{
    for (unsigned i = 0; i < message->header_count; i++) {
        db_array_put(out, message->headers[i].name);
        db_array_put(out, message->headers[i].value);
    }
    db_array_end(out);
}

/* Sorts the messages by partition, and writes the arrays. */
static void append_seal(struct append *append)
{
    append->is_sorted = true;
    if (append->count == 1) {
        put_headers(&append->headers, append->placed[0].message);
        return;
    }
    qsort(append->placed, append->count, sizeof append->placed[0], compare_placed);
    for (size_t begin = 0, end; begin < append->count; begin = end) {
        end = slot_end(append, begin);
        db_array_put(&append->topics, append->placed[begin].topic->name);
        db_array_put_i64(&append->partitions, append->placed[begin].message->partition);
        db_array_put_i64(&append->counts, (int64_t)(end - begin));
    }
    db_bytes_array_begin(&append->keys, append->count);
    db_bytes_array_begin(&append->payloads, append->count);
    for (size_t i = 0; i < append->count; i++) {
        const struct bus_message *message = append->placed[i].message;
        struct buf headers = {0};
        put_headers(&headers, message);
        db_array_put(&append->headers, buf_str(&headers));
        buf_deinit(&headers);
        db_bytes_array_put(&append->keys, message->key);
        db_bytes_array_put(&append->payloads, payload_of(message));
    }
    db_array_end(&append->topics);
    db_array_end(&append->partitions);
    db_array_end(&append->counts);
    db_array_end(&append->headers);
}

static void take_offsets(struct append *append, const struct db_result *result)
{
    /* The time is known of a message that was appended alone: bus_publish() returns offsets only. */
    int64_t created_us = append->count == 1 ? db_result_i64(result, 0, 1) : 0;
    size_t slot = 0;

    for (size_t begin = 0, end; begin < append->count; begin = end, slot++) {
        end = slot_end(append, begin);
        int64_t base = db_result_i64(result, slot, 0);
        for (size_t i = begin; i < end; i++) {
            append->placed[i].message->offset = base + (int64_t)(i - begin);
            append->placed[i].message->created_us = created_us;
        }
        metric_add(append->placed[begin].topic->published, end - begin);
    }
}

#define SINGLE_PARAMS(append)                                                                              \
    DB_PARAMS(db_text((append)->placed[0].message->topic), db_int((append)->placed[0].message->partition), \
              db_bytea((append)->placed[0].message->key), db_text_array(buf_str(&(append)->headers)),      \
              db_bytea(payload_of((append)->placed[0].message)))

/* If the tables were emptied, the topics are created again before the next message. */
static void check_vanished(struct append *append, struct db_conn *conn)
{
    const char *state = db_sqlstate(conn);

    if (strcmp(state, "FB001") != 0 && strcmp(state, "23502") != 0)
        return;
    for (size_t i = 0; i < append->count; i++)
        atomic_store(&append->placed[i].topic->known, false);
}

/* The statement, in the open pipeline. */
static void append_queue(struct append *append, struct db_conn *conn)
{
    if (!append->is_sorted)
        append_seal(append);
    if (append->count == 1)
        db_pipeline_add(conn, append->relaxed ? &append_one_relaxed_sql : &append_one_sql,
                        SINGLE_PARAMS(append));
    else
        db_pipeline_add(conn, append->relaxed ? &append_relaxed_sql : &append_sql,
                        DB_PARAMS(db_text_array(buf_str(&append->topics)),
                                  db_text(buf_str(&append->partitions)), db_text(buf_str(&append->counts)),
                                  db_bytea_array(buf_str(&append->keys)), db_text(buf_str(&append->headers)),
                                  db_bytea_array(buf_str(&append->payloads))));
}

/* The end of the pipeline, in which it was the first statement since the begin. */
static enum status append_end(struct postgres *postgres, struct append *append, struct db_conn *conn,
                              int64_t deadline_ns, struct error *error)
{
    struct db_result *result;
    enum status status = db_pipeline_end(conn, deadline_ns, &result, 1, NULL, error);
    long long opened_ns = db_conn_opened_ns(conn), known = atomic_load(&postgres->published_by_ns);

    /* After this, no connection that is younger than published_by_ns has published. */
    while (known < opened_ns && !atomic_compare_exchange_weak(&postgres->published_by_ns, &known, opened_ns))
        ;
    if (status == STATUS_OK)
        take_offsets(append, result);
    else
        check_vanished(append, conn);
    db_result_free(result);
    return status;
}

static enum status append_send(struct postgres *postgres, struct append *append, struct db_conn *conn,
                               int64_t deadline_ns, struct error *error)
{
    db_pipeline_begin(conn);
    append_queue(append, conn);
    return append_end(postgres, append, conn, deadline_ns, error);
}

enum status bus_postgres_publish_in_tx(struct postgres *postgres, struct db_conn *conn,
                                       struct bus_message *messages, size_t count, int64_t deadline_ns,
                                       struct error *error)
{
    struct append append = {0};
    /* On another connection: the caller's transaction must not lock what every publisher needs. */
    enum status status = bus_postgres_topics_ensure(postgres, messages, count, deadline_ns, error);

    if (status != STATUS_OK)
        return status;
    append_add(&append, &postgres->bus, messages, count);
    status = append_send(postgres, &append, conn, deadline_ns, error);
    append_deinit(&append);
    return status;
}

enum status bus_publish_in_tx(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                              size_t count, int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = bus_postgres_of(bus, error);

    if (!postgres)
        return STATUS_NOT_IMPLEMENTED;
    enum status status = bus_check_messages(bus, messages, count, error);
    if (status != STATUS_OK || count == 0)
        return status;
    return bus_postgres_publish_in_tx(postgres, conn, messages, count, deadline_ns, error);
}

void bus_appended(struct bus *bus, struct str topic, size_t count)
{
    struct postgres *postgres = bus_postgres_of(bus, NULL);
    struct bus_topic_state *found = bus_topic_find(bus, topic);
    char text[POSTGRES_NOTICE_BYTES];

    if (!postgres || !found)
        return;
    metric_add(found->published, count);
    if (postgres->notifier)
        db_notify(postgres->notifier, STR(POSTGRES_CHANNEL),
                  bus_postgres_notice(postgres, found, POSTGRES_ANYWHERE, text));
}

/* A message that a client waits for: the commit does not wait for the disk, and takes the notice along. So the lock that all notices
 * queue for is held for a moment only, and the consumer begins while the transaction after it, which is empty, waits for the disk.
 * What the consumer commits follows in the log, so it is never kept without this. */
static void add_urgently(struct postgres *postgres, struct append *append, struct db_conn *conn)
{
    const struct bus_message *message = append->placed[0].message;
    struct buf notice = {0};
    char where[POSTGRES_NOTICE_BYTES];

    buf_put_str(&notice,
                bus_postgres_notice(postgres, append->placed[0].topic, (int)message->partition, where));
    if (atomic_load(&postgres->is_trusted))
        bus_postgres_attach(&notice, message);
    db_pipeline_add_notice(conn, STR(POSTGRES_CHANNEL), buf_str(&notice));
    db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
    db_pipeline_add(conn, &db_flush_sql, DB_NO_PARAMS);
    buf_deinit(&notice);
}

/* One round trip with what the caller left in its pipeline. */
enum status bus_publish_and_commit(struct bus *bus, struct db_conn *conn, struct bus_message *messages,
                                   size_t count, bool is_urgent, int64_t deadline_ns, struct error *error)
{
    struct postgres *postgres = bus_postgres_of(bus, error);
    struct append append = {0};

    if (!postgres)
        return STATUS_NOT_IMPLEMENTED;
    enum status status = bus_check_messages(bus, messages, count, error); /* offsets are -1 until known */
    if (status != STATUS_OK)
        return status;
    append_add(&append, bus, messages, count);
    struct bus_topic_state *topic = append.placed[0].topic;
    db_pipeline_begin(conn);
    append_queue(&append, conn);
    if (is_urgent)
        add_urgently(postgres, &append, conn);
    else
        db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
    status = append_end(postgres, &append, conn, deadline_ns, error);
    if (status == STATUS_OK && is_urgent)
        bus_postgres_wake_topic(postgres, topic, (int)messages[0].partition, STR_NONE, &messages[0]);
    else if (status == STATUS_OK)
        bus_postgres_wake(postgres, topic, count == 1 ? &messages[0] : NULL);
    append_deinit(&append);
    return status;
}

/* ---- group commit ---- */

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
        append_add(&append, &postgres->bus, request->messages, request->count);
        deadline_ns = request->deadline_ns > deadline_ns ? request->deadline_ns : deadline_ns;
    }
    for (size_t i = 0; i < append.count; i++)
        append.relaxed &= append.placed[i].topic->spec.relaxed;
    enum status status = STATUS_DB_RETRY;
    for (int attempt = 0; status == STATUS_DB_RETRY && attempt < ATTEMPTS_MAX; attempt++) {
        struct db_conn *conn;
        status = db_acquire(postgres->publish_pool, deadline_ns, &conn, error);
        if (status == STATUS_OK)
            status = append_send(postgres, &append, conn, deadline_ns, error);
        db_release(conn);
    }
    /* Readers of a single message of a topic look for it in its partition, others look anywhere. */
    const struct placed *placed = append.placed;
    for (size_t i = 0, end; i < append.count && status == STATUS_OK; i = end) {
        for (end = i + 1; end < append.count && placed[end].topic == placed[i].topic;)
            end++;
        bus_postgres_wake(postgres, placed[i].topic, end - i == 1 ? placed[i].message : NULL);
    }
    append_deinit(&append);
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
