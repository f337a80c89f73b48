/* Group commit: one job at a time takes all that has queued, up to a transaction's worth, and commits it. So a lone POST
 * waits for its own commit only, and many share one.
 *
 * Two of the same event, key or chunk never share a transaction: the later one waits for the next, and then finds what
 * the first has left. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/command/command.h"
#include "modules/refdata/writer.h"

enum {
    GROUP_MAX = 500,
    EXPIRE_MS = 10 * 60 * 1000,  /* between two looks for keys and chunks that are too old (I6) */
    EXPIRE_FIRST_MS = 60 * 1000, /* before the first, also for a process that is restarted often */
};
#define GROUP_BYTES_MAX (8u << 20) /* exceeded by at most one */

struct refdata_committer {
    struct refdata_flow *flow;
    struct worker_job job;
    int64_t expire_ns, direct_from_ns, complain_ns; /* the job's */

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t idle;
    struct refdata_post *first, **last;
    size_t queued, queue_max;
    bool running, stopping;
};

static struct refdata_committer *committer_of(struct worker_job *job)
{
    return (struct refdata_committer *)((char *)job - offsetof(struct refdata_committer, job));
}

/* ---- taking a group ---- */

static bool is_same_event(const struct refdata_post *a, const struct refdata_post *b)
{
    return a->event_hash == b->event_hash && strcmp(a->update.event_id, b->update.event_id) == 0 &&
           strcmp(a->tenant, b->tenant) == 0;
}

static bool is_same_key(const struct refdata_post *a, const struct refdata_post *b)
{
    return a->key.ptr && b->key.ptr && str_eq(a->key, b->key) && str_eq(a->subject, b->subject) &&
           strcmp(a->tenant, b->tenant) == 0;
}

static bool is_same_chunk(const struct refdata_post *a, const struct refdata_post *b)
{
    return refdata_update_is_chunk(&a->update) && refdata_update_is_chunk(&b->update) &&
           a->update.chunk_index == b->update.chunk_index &&
           strcmp(a->update.snapshot_id, b->update.snapshot_id) == 0 && strcmp(a->tenant, b->tenant) == 0;
}

static bool fits(struct refdata_post *const *group, size_t count, const struct refdata_post *post)
{
    for (size_t i = 0; i < count; i++)
        if (is_same_event(group[i], post) || is_same_key(group[i], post) || is_same_chunk(group[i], post))
            return false;
    return true;
}

/* Under the lock. What does not fit stays in the queue, in its order. */
static size_t take_group(struct refdata_committer *committer, struct refdata_post *group[GROUP_MAX])
{
    size_t count = 0, bytes = 0;
    struct refdata_post **at = &committer->first;
    while (*at && count < GROUP_MAX && bytes < GROUP_BYTES_MAX) {
        struct refdata_post *post = *at;
        if (!fits(group, count, post)) {
            at = &post->next;
            continue;
        }
        *at = post->next;
        bytes += post->bytes;
        group[count++] = post;
    }
    if (!*at)
        committer->last = at;
    committer->queued -= count;
    return count;
}

/* ---- the job ---- */

/* Those whose time is up were told so: they must not be committed any more. */
static size_t drop_overdue(struct refdata_post **group, size_t count)
{
    int64_t now_ns = clock_mono_ns();
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (group[i]->deadline_ns > now_ns) {
            group[kept++] = group[i];
            continue;
        }
        group[i]->result = REFDATA_POST_REFUSED;
        error_set(&group[i]->error, STATUS_OVERLOADED, "others were committed all the time");
        refdata_post_return(group[i]);
    }
    return kept;
}

static void commit_group(struct refdata_committer *committer, struct refdata_post **group, size_t count)
{
    count = drop_overdue(group, count);
    if (count == 0)
        return;
    int64_t begun_ns = clock_mono_ns();
    refdata_commit_posts(committer->flow, group, count);
    refdata_command_metrics_commit(count, (double)(clock_mono_ns() - begun_ns) / 1e9);
    for (size_t i = 0; i < count; i++)
        refdata_post_return(group[i]);
}

/* Keys past their time, and chunks that no pending update needs. */
static const char expire_sql[] =
    "WITH old_key AS (DELETE FROM refdata.update_key WHERE ctid = ANY (ARRAY("
    "         SELECT ctid FROM refdata.update_key WHERE created_at < clock_timestamp() - $1 * interval '1 ms'"
    "         LIMIT 10000 FOR UPDATE SKIP LOCKED)) RETURNING 1),"
    " old_chunk AS (DELETE FROM refdata.chunk_request WHERE ctid = ANY (ARRAY("
    "         SELECT ctid FROM refdata.chunk_request c WHERE created_at < clock_timestamp() - interval '1 day'"
    "            AND NOT EXISTS (SELECT FROM refdata.update_request r WHERE r.tenant_id = c.tenant_id"
    "                             AND r.event_id = c.event_id AND r.status = 'PENDING')"
    "         LIMIT 10000 FOR UPDATE SKIP LOCKED)))"
    " SELECT count(*) FROM old_key";

static enum status delete_expired(struct db_conn *conn, int64_t key_keep_ms, int64_t deadline_ns,
                                  struct error *error)
{
    char keep[REFDATA_NUMBER_BYTES];
    struct db_statement statement;
    struct db_result *result = NULL;
    db_statement_init(&statement, expire_sql, 1, (const enum db_type[]){DB_BIGINT});
    enum status status = db_query(conn, &statement, &(struct db_param){refdata_number(keep, key_keep_ms)},
                                  deadline_ns, &result, error);
    if (status == STATUS_OK && db_result_i64(result, 0, 0) > 0)
        refdata_acceptance_keys_expired(db_result_i64(result, 0, 0));
    db_result_free(result);
    return status;
}

static void expire(struct refdata_committer *committer)
{
    struct error error = {0};
    struct db_conn *conn = NULL;
    int64_t deadline_ns = clock_deadline_ms(2000);
    if (clock_mono_ns() < committer->expire_ns)
        return;
    committer->expire_ns = clock_deadline_ms(EXPIRE_MS);
    struct refdata_catalog *catalog = refdata_flow_catalog(committer->flow);
    int64_t key_keep_ms = catalog->updates.key_keep_ms;
    refdata_catalog_unref(catalog);
    enum status status = db_acquire(committer->flow->database->pool, deadline_ns, &conn, &error);
    if (status == STATUS_OK)
        status = delete_expired(conn, key_keep_ms, deadline_ns, &error);
    if (status != STATUS_OK)
        log_warn("update_keys_not_expired", LOG_STR("database", committer->flow->database->name),
                 LOG_ERROR_FIELDS(&error));
    if (conn)
        db_release(conn);
}

static void run(struct worker_job *job)
{
    struct refdata_committer *committer = committer_of(job);
    struct refdata_post *group[GROUP_MAX];
    for (;;) {
        pthread_mutex_lock(&committer->lock);
        size_t count = take_group(committer, group);
        pthread_mutex_unlock(&committer->lock);
        if (count == 0)
            break;
        commit_group(committer, group, count);
        expire(committer);
    }
}

static bool submit(struct refdata_committer *committer)
{
    return worker_pool_submit(committer->flow->workers, &committer->job);
}

/* Whoever came between the last look and now found it running. */
static void done(struct worker_job *job)
{
    struct refdata_committer *committer = committer_of(job);
    pthread_mutex_lock(&committer->lock);
    committer->running = committer->first && submit(committer);
    if (!committer->running)
        pthread_cond_broadcast(&committer->idle);
    pthread_mutex_unlock(&committer->lock);
}

int64_t *refdata_committer_direct_from(struct refdata_committer *committer)
{
    return &committer->direct_from_ns;
}

bool refdata_committer_may_complain(struct refdata_committer *committer)
{
    int64_t now_ns = clock_mono_ns();
    if (now_ns < committer->complain_ns)
        return false;
    committer->complain_ns = now_ns + CLOCK_NS_PER_S;
    return true;
}

/* ---- from outside ---- */

enum status refdata_committer_add(struct refdata_committer *committer, struct refdata_post *post,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    pthread_mutex_lock(&committer->lock);
    if (committer->stopping)
        status = error_set(error, STATUS_CANCELLED, "the process is stopping");
    else if (committer->queued >= committer->queue_max)
        status = error_set(error, STATUS_OVERLOADED, "too many updates wait for their commit");
    else if (!committer->running && !submit(committer))
        status = error_set(error, STATUS_CANCELLED, "the process is stopping");
    if (status == STATUS_OK) {
        committer->running = true;
        post->next = NULL;
        *committer->last = post;
        committer->last = &post->next;
        committer->queued++;
    }
    pthread_mutex_unlock(&committer->lock);
    return status;
}

struct refdata_committer *refdata_committer_create(struct refdata_flow *flow)
{
    const struct refdata_catalog *catalog = flow->catalog;
    struct refdata_committer *committer = memory_zalloc(sizeof *committer);
    committer->flow = flow;
    committer->job = (struct worker_job){.run = run, .done = done};
    committer->last = &committer->first;
    committer->queue_max = (size_t)catalog->updates.queue_max;
    committer->expire_ns = clock_deadline_ms(EXPIRE_FIRST_MS);
    pthread_mutex_init(&committer->lock, NULL);
    pthread_cond_init(&committer->idle, NULL);
    return committer;
}

/* Nobody comes any more; what has come is committed. */
void refdata_committer_stop(struct refdata_committer *committer)
{
    pthread_mutex_lock(&committer->lock);
    committer->stopping = true;
    while (committer->running)
        pthread_cond_wait(&committer->idle, &committer->lock);
    struct refdata_post *left = committer->first;
    committer->first = NULL;
    pthread_mutex_unlock(&committer->lock);
    while (left) {
        struct refdata_post *post = left;
        left = post->next;
        post->result = REFDATA_POST_REFUSED;
        error_set(&post->error, STATUS_CANCELLED, "the process is stopping");
        refdata_post_return(post);
    }
}

void refdata_committer_destroy(struct refdata_committer *committer)
{
    pthread_cond_destroy(&committer->idle);
    pthread_mutex_destroy(&committer->lock);
    free(committer);
}
