/* Group commit: one task takes all posts that are queued, up to a transaction's worth, and commits them. So a single POST waits for
 * its own commit only, and many share one. Tenants take turns: where more are queued than fit, each has its part of the group. In
 * a full queue the tenant with most posts is refused.
 *
 * A tenant whose SQL took too long when it was applied in its own commit is marked as slow. Its posts are queued for apply, in groups without
 * the other tenants, and after a pause one group of its own is tried again. So slow SQL holds up the others once per pause, however
 * many posts have it.
 *
 * Two posts of the same event, key or chunk never share a transaction: the later one waits for the next, and then finds the
 * row of the first. */
#include <pthread.h>
#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "loop/task.h"
#include "modules/refdata/command/command.h"

enum {
    GROUP_MAX = 500,
    /* Beside its body, which is charged to its request, a post is in a command, in an array of SQL, and in libpq's buffer. */
    COPIES = 3,
    GROUP_PART = 16, /* of the account of queues */
};
#define GROUP_BYTES_MIN (256u << 10)
#define GROUP_BYTES_MAX (8u << 20)
enum { SLOW_SHARES_MAX = 64, SLOW_PAUSE_MIN_MS = 2000, SLOW_PAUSE_MAX_MS = 64000 };

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
    struct refdata_commit_pace pace; /* the task's, as the next three */
    struct slow_share {
        uint64_t share; /* 0 = free */
        int64_t until_ns, pause_ms;
    } slow_shares[SLOW_SHARES_MAX];
    size_t slow_count;
    int64_t trial_from_ns; /* of any of them */
    pthread_mutex_t lock;  /* for what follows */
    struct turns turns;
    size_t queue_max;
    bool is_stopping;
};

/* ---- tenants whose SQL took too long ---- */

enum { GROUP_NORMAL, GROUP_QUEUED_ONLY }; /* any other: the share of a slow tenant, which is tried again */

static struct slow_share *find_slow(struct refdata_committer *committer, uint64_t share)
{
    for (size_t i = 0; committer->slow_count > 0 && i < SLOW_SHARES_MAX; i++)
        if (committer->slow_shares[i].share == share)
            return &committer->slow_shares[i];
    return NULL;
}

static uint64_t group_kind_of(struct refdata_committer *committer, const struct refdata_post *post,
                              int64_t now_ns)
{
    const struct slow_share *slow = find_slow(committer, post->share);
    if (!slow)
        return GROUP_NORMAL;
    return now_ns < slow->until_ns || now_ns < committer->trial_from_ns ? GROUP_QUEUED_ONLY : slow->share;
}

/* When the table is full, a further share is not marked until an entry is free again. */
static void mark_slow(struct refdata_committer *committer, uint64_t share, int64_t now_ns)
{
    struct slow_share *slow = find_slow(committer, share);
    if (!slow && committer->slow_count < SLOW_SHARES_MAX) {
        for (slow = committer->slow_shares; slow->share; slow++)
            ;
        *slow = (struct slow_share){.share = share, .pause_ms = SLOW_PAUSE_MIN_MS / 2};
        committer->slow_count++;
    }
    if (!slow || slow->until_ns > now_ns)
        return;
    slow->pause_ms = slow->pause_ms < SLOW_PAUSE_MAX_MS ? 2 * slow->pause_ms : SLOW_PAUSE_MAX_MS;
    slow->until_ns = now_ns + slow->pause_ms * CLOCK_NS_PER_MS;
}

/* After a group of this kind was committed. */
static void record_result(struct refdata_committer *committer, uint64_t kind, const uint64_t *shares,
                          size_t count)
{
    int64_t now_ns = clock_mono_ns();
    if (committer->pace.was_slow) {
        committer->trial_from_ns = now_ns + SLOW_PAUSE_MIN_MS * CLOCK_NS_PER_MS;
        for (size_t i = 0; i < count; i++)
            mark_slow(committer, shares[i], now_ns);
    } else if (kind > GROUP_QUEUED_ONLY) {
        find_slow(committer, kind)->share = 0;
        committer->slow_count--;
    }
}

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

static struct refdata_post *post_of(struct turns_item *item)
{
    return CONTAINER_OF(item, struct refdata_post, turn);
}

/* Exceeded by at most one post. */
static size_t group_bytes_max(void)
{
    size_t bytes = budget_share(BUDGET_QUEUES) / GROUP_PART;
    return bytes < GROUP_BYTES_MIN ? GROUP_BYTES_MIN : bytes > GROUP_BYTES_MAX ? GROUP_BYTES_MAX : bytes;
}

/* Posts that do not fit stay in the queue, in their order. All of a group are of one kind, which is set. */
static size_t take_group(struct refdata_committer *committer, struct refdata_post *group[GROUP_MAX],
                         uint64_t *kind)
{
    size_t count = 0, bytes = 0, bytes_max = group_bytes_max();
    int64_t now_ns = committer->slow_count ? clock_mono_ns() : 0;
    struct turns_items left = TAILQ_HEAD_INITIALIZER(left);
    struct turns_item *item;
    pthread_mutex_lock(&committer->lock);
    while (count < GROUP_MAX && bytes < bytes_max && (item = turns_next(&committer->turns)) != NULL) {
        struct refdata_post *post = post_of(item);
        uint64_t own_kind = group_kind_of(committer, post, now_ns);
        size_t i = 0;
        while (i < count && own_kind == *kind && !are_related(group[i], post))
            i++;
        if (i < count) {
            TAILQ_INSERT_HEAD(&left, item, link);
            continue;
        }
        *kind = own_kind;
        bytes += post->bytes;
        group[count++] = post;
    }
    while ((item = TAILQ_FIRST(&left)) != NULL) { /* the last one first */
        TAILQ_REMOVE(&left, item, link);
        turns_put_back(&committer->turns, post_of(item)->share, item);
    }
    pthread_mutex_unlock(&committer->lock);
    return count;
}

/* ---- committing it, on a worker ---- */

static int64_t committer_step(struct task *task, void *context)
{
    struct refdata_committer *committer = context;
    struct refdata_post *group[GROUP_MAX], *posts[GROUP_MAX];
    uint64_t kind = GROUP_NORMAL, shares[GROUP_MAX];
    (void)task;
    for (size_t taken; (taken = take_group(committer, group, &kind)) > 0;) {
        int64_t begun_ns = clock_mono_ns();
        size_t count = 0, charged = 0;
        for (size_t i = 0; i < taken; i++) {
            charged += COPIES * group[i]->bytes;
            if (group[i]->deadline_ns > begun_ns) {
                shares[count] = group[i]->share;
                posts[count++] = group[i];
                continue;
            } /* else it was answered, and must not be committed any more */
            group[i]->result = REFDATA_POST_REFUSED;
            error_set(&group[i]->error, STATUS_OVERLOADED,
                      "the update waited too long behind other updates; send it again");
        }
        if (count > 0) {
            if (charged > budget_share(BUDGET_QUEUES)) /* other accounts are not refused because of it */
                charged = budget_share(BUDGET_QUEUES);
            budget_add(BUDGET_QUEUES, charged);
            committer->pace.is_queued = kind == GROUP_QUEUED_ONLY;
            committer->pace.was_slow = false;
            refdata_commit_posts(committer->database, &committer->pace, posts, count);
            budget_release(BUDGET_QUEUES, charged);
            record_result(committer, kind, shares, count);
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

static const char full_text[] = "too many updates wait for their commit";

static void refuse_displaced(struct refdata_post *post)
{
    post->result = REFDATA_POST_REFUSED;
    error_set(&post->error, STATUS_OVERLOADED, full_text);
    loop_post(post->loop, &post->committed);
}

enum status refdata_committer_add(struct refdata_committer *committer, struct refdata_post *post,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    struct turns_item *displaced = NULL;
    pthread_mutex_lock(&committer->lock);
    if (committer->is_stopping)
        status = error_set(error, STATUS_CANCELLED, "the process is stopping");
    else if (committer->turns.queued >= committer->queue_max &&
             !(displaced = turns_displace(&committer->turns, post->share)))
        status = error_set(error, STATUS_OVERLOADED, full_text);
    if (status == STATUS_OK)
        turns_put(&committer->turns, post->share, &post->turn);
    pthread_mutex_unlock(&committer->lock);
    if (displaced)
        refuse_displaced(post_of(displaced));
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
    turns_init(&committer->turns);
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
    turns_deinit(&committer->turns);
    pthread_mutex_destroy(&committer->lock);
    free(committer);
}

const struct kernel_part refdata_committer_part = {
    .roles = {"command"}, .create = create_committer, .stop = stop_committer, .destroy = destroy_committer};
