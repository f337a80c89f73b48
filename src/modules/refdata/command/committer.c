/* Group commit: one task takes all posts that are queued, up to a transaction's worth, and commits them. So a single POST waits for
 * its own commit only, and many share one.
 *
 * Two posts of the same event, key or chunk never share a transaction: the later one waits for the next, and then finds the
 * row of the first. */
#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "loop/task.h"
#include "modules/refdata/command/command.h"

enum { GROUP_MAX = 500 };
#define GROUP_BYTES_MAX (8u << 20) /* exceeded by at most one post */

struct metric_family refdata_commit_size_family = {
    .name = "refdata_commit_batch_size",
    .help = "Updates in one commit.",
    .type = METRIC_HISTOGRAM,
    .buckets = (const double[]){1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 0},
};
struct metric_family refdata_commit_seconds_family = {
    .name = "refdata_commit_seconds",
    .help = "Time of such a commit with all retries, in seconds.",
    .type = METRIC_HISTOGRAM,
};

struct refdata_committer {
    struct refdata_database *database;
    struct task *task;
    struct refdata_commit_pace pace; /* the task's */
    pthread_mutex_t lock;            /* for what follows */
    TAILQ_HEAD(post_queue, refdata_post) queue;
    size_t queued, queue_max;
    bool is_stopping;
};

/* ---- taking a group ---- */

/* Of the same event, key or chunk. */
static bool are_related(const struct refdata_post *a, const struct refdata_post *b)
{
    const struct refdata_acceptance *left = &a->acceptance, *right = &b->acceptance;
    bool is_same_event =
        a->event_hash == b->event_hash && strcmp(a->update.event_id, b->update.event_id) == 0;
    bool is_same_key = left->key.ptr && right->key.ptr && str_eq(left->key, right->key) &&
                       str_eq(left->subject, right->subject);
    bool is_same_chunk = refdata_update_is_chunk(&a->update) && refdata_update_is_chunk(&b->update) &&
                         a->update.chunk_index == b->update.chunk_index &&
                         strcmp(a->update.snapshot_id, b->update.snapshot_id) == 0;
    return (is_same_event || is_same_key || is_same_chunk) && strcmp(a->tenant, b->tenant) == 0;
}

/* Posts that do not fit stay in the queue, in their order. */
static size_t take_group(struct refdata_committer *committer, struct refdata_post *group[GROUP_MAX])
{
    size_t count = 0, bytes = 0;
    pthread_mutex_lock(&committer->lock);
    for (struct refdata_post *post = TAILQ_FIRST(&committer->queue), *next;
         post && count < GROUP_MAX && bytes < GROUP_BYTES_MAX; post = next) {
        size_t i = 0;
        next = TAILQ_NEXT(post, queue);
        while (i < count && !are_related(group[i], post))
            i++;
        if (i < count)
            continue;
        TAILQ_REMOVE(&committer->queue, post, queue);
        bytes += post->bytes;
        group[count++] = post;
    }
    committer->queued -= count;
    pthread_mutex_unlock(&committer->lock);
    return count;
}

/* ---- committing it, on a worker ---- */

static int64_t committer_step(struct task *task, void *context)
{
    struct refdata_committer *committer = context;
    struct refdata_post *group[GROUP_MAX], *posts[GROUP_MAX];
    (void)task;
    for (size_t taken; (taken = take_group(committer, group)) > 0;) {
        int64_t begun_ns = clock_mono_ns();
        size_t count = 0;
        for (size_t i = 0; i < taken; i++) {
            if (group[i]->deadline_ns > begun_ns) {
                posts[count++] = group[i];
                continue;
            } /* else it was answered, and must not be committed any more */
            group[i]->result = REFDATA_POST_REFUSED;
            error_set(&group[i]->error, STATUS_OVERLOADED, "other updates were committed all the time");
        }
        if (count > 0) {
            refdata_commit_posts(committer->database, &committer->pace, posts, count);
            metric_observe(metric_series_get(&refdata_commit_size_family, NULL), (double)count);
            metric_observe(metric_series_get(&refdata_commit_seconds_family, NULL),
                           (double)(clock_mono_ns() - begun_ns) / 1e9);
        }
        for (size_t i = 0; i < taken; i++)
            loop_post(group[i]->loop, &group[i]->committed);
    }
    return TASK_IDLE;
}

/* ---- from outside ---- */

enum status refdata_committer_add(struct refdata_committer *committer, struct refdata_post *post,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    pthread_mutex_lock(&committer->lock);
    if (committer->is_stopping)
        status = error_set(error, STATUS_CANCELLED, "the process is stopping");
    else if (committer->queued >= committer->queue_max)
        status = error_set(error, STATUS_OVERLOADED, "too many updates wait for their commit");
    if (status == STATUS_OK) {
        TAILQ_INSERT_TAIL(&committer->queue, post, queue);
        committer->queued++;
    }
    pthread_mutex_unlock(&committer->lock);
    if (status == STATUS_OK)
        task_wake(committer->task);
    return status;
}

static void *create_committer(void *owner, struct error *error)
{
    struct refdata_database *database = owner;
    struct refdata_committer *committer = database->committer = memory_zalloc(sizeof *committer);
    (void)error;
    committer->database = database;
    committer->queue_max = (size_t)database->catalog->updates.queue_max;
    TAILQ_INIT(&committer->queue);
    pthread_mutex_init(&committer->lock, NULL);
    committer->task = kernel_site_task(&database->site, "committer", committer_step, committer);
    task_start(committer->task, TASK_IDLE);
    return committer;
}

/* Posts that are still queued after the last run are committed here, on the caller's thread. */
static void stop_committer(void *part)
{
    struct refdata_committer *committer = part;
    pthread_mutex_lock(&committer->lock);
    committer->is_stopping = true;
    pthread_mutex_unlock(&committer->lock);
    task_stop(committer->task, TASK_FOREVER);
    (void)committer_step(committer->task, committer);
}

static void destroy_committer(void *part)
{
    struct refdata_committer *committer = part;
    task_destroy(committer->task);
    pthread_mutex_destroy(&committer->lock);
    free(committer);
}

const struct kernel_part refdata_committer_part = {
    .roles = {"command"}, .create = create_committer, .stop = stop_committer, .destroy = destroy_committer};
