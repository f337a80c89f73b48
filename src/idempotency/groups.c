/* Calls that share a transaction, its round trip and its wait for the disk.
 *
 * Some calls of a tenant run at the same time, each alone: PostgreSQL flushes their commits together. Those that come meanwhile, for which
 * there may be no connection, queue, and the first of them runs all that have queued until then when a running one ends:
 *
 *     BEGIN ─ try all locks ─ effect + stored answer of each ─ COMMIT
 *
 * No member can fail for another's sake. One whose key is known gets no row and no effect, and runs alone afterwards, as all do
 * when one of the keys is busy or the transaction fails: by the effect of one, or since one has waited LOCK_WAIT for a row. Then no
 * groups are made for a moment, so that what fails again and again costs the others of its tenant little. Tenants share no transaction.
 * A call that has queued for long runs alone too: those before it may be blocked.
 *
 * Deadlocks between groups end by LOCK_WAIT. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "idempotency/idempotency_inside.h"

#define LOCK_WAIT "20ms"
enum {
    LINES = 64, /* tenants by hash: those of one line share its lock and its pause */
    MEMBERS_MAX = 32,
    PAUSE_MS = 200, /* without groups, after one that failed */
    AT_MEMBERS = 2, /* after BEGIN and the locks */
};

struct line {
    unsigned running_max; /* of each tenant */
    pthread_mutex_t lock;
    struct idempotency_member *first, **last; /* calls of tenants of which running_max run */
    LIST_HEAD(, idempotency_member) running;
    int64_t alone_until_ns;
};

struct idempotency_groups {
    int64_t wait_ms;
    struct line lines[LINES];
};

struct idempotency_groups *idempotency_groups_create(unsigned running_max, int64_t wait_ms)
{
    struct idempotency_groups *groups = memory_zalloc(sizeof *groups);
    groups->wait_ms = wait_ms;
    for (size_t i = 0; i < LINES; i++) {
        pthread_mutex_init(&groups->lines[i].lock, NULL);
        groups->lines[i].last = &groups->lines[i].first;
        LIST_INIT(&groups->lines[i].running);
        groups->lines[i].running_max = running_max;
    }
    return groups;
}

void idempotency_groups_destroy(struct idempotency_groups *groups)
{
    for (size_t i = 0; groups && i < LINES; i++)
        pthread_mutex_destroy(&groups->lines[i].lock);
    free(groups);
}

static struct line *line_of(struct idempotency_groups *groups, const struct idempotency_member *member)
{
    return &groups->lines[member->tenant_hash % LINES];
}

/* ---- the transaction ---- */

/* One that is busy is marked in the transaction, which the members' statements look for. */
static const struct db_statement locks_sql =
    DB_STATEMENT("SELECT set_config('lock_timeout', '" LOCK_WAIT "', true),"
                 " (SELECT count(platform.idempotency_lock(k::bigint, 0)) FROM unnest($1) AS k)");

static enum status commit_group(struct db_conn *conn, struct idempotency_member *leader, int64_t deadline_ns,
                                struct db_result **results)
{
    struct buf keys = {0};
    size_t count = AT_MEMBERS + 1;
    for (const struct idempotency_member *member = leader; member; member = member->next)
        db_array_put_i64(&keys, member->lock_key);
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
    db_pipeline_add(conn, &locks_sql, DB_PARAMS(db_text_array(db_array_end(&keys))));
    for (const struct idempotency_member *member = leader; member; member = member->next, count++)
        db_pipeline_add(conn, &member->statement, member->params);
    db_pipeline_add(conn, &db_commit_sql, DB_NO_PARAMS);
    enum status status = db_pipeline_end(conn, deadline_ns, results, count, NULL, NULL);
    buf_deinit(&keys);
    return status;
}

/* False: no member was decided. Each member gets its outcome here, and its state by the caller, under the lock. */
static bool run_group(struct idempotency_member *leader, bool *decided)
{
    struct db_result *results[AT_MEMBERS + MEMBERS_MAX + 1] = {NULL};
    struct db_conn *conn = NULL;
    int64_t deadline_ns = leader->call->deadline_ns;
    size_t at = 0;
    bool is_any = false;
    for (const struct idempotency_member *member = leader->next; member; member = member->next)
        if (member->call->deadline_ns < deadline_ns)
            deadline_ns = member->call->deadline_ns;
    enum status status = db_acquire(leader->call->pool, deadline_ns, &conn, NULL);
    if (status == STATUS_OK)
        status = commit_group(conn, leader, deadline_ns, results);
    for (struct idempotency_member *member = leader; member; member = member->next, at++) {
        struct db_result **rows = &results[AT_MEMBERS + at];
        member->unknown = conn && (status == STATUS_DB_DOWN || status == STATUS_TIMEOUT);
        decided[at] = status == STATUS_OK && db_result_rows(*rows) > 0;
        is_any |= decided[at];
        if (decided[at]) {
            member->outcome->error.status = idempotency_take_effect(*rows, member->outcome);
            *rows = NULL;
        }
    }
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        db_result_free(results[i]);
    db_release(conn); /* rolls back what was not committed */
    return is_any;
}

/* ---- turns; all with the line's lock held ---- */

static void line_remove(struct line *line, struct idempotency_member **at)
{
    struct idempotency_member *member = *at;
    *at = member->next;
    if (line->last == &member->next)
        line->last = at;
    member->next = NULL;
}

static bool line_may_run(const struct line *line, const struct idempotency_member *member)
{
    const struct idempotency_member *other;
    unsigned running = 0;
    LIST_FOREACH(other, &line->running, running)
        running += other->tenant_hash == member->tenant_hash;
    return running < line->running_max;
}

static void line_run(struct line *line, struct idempotency_member *member)
{
    LIST_INSERT_HEAD(&line->running, member, running);
    member->is_counted = true;
}

/* The first in the queue whose tenant may run one more leads all of that tenant. */
static void line_next(struct line *line)
{
    struct idempotency_member **first = &line->first, *leader, **tail;
    while (*first && !line_may_run(line, *first))
        first = &(*first)->next;
    leader = *first;
    if (!leader)
        return;
    line_remove(line, first);
    line_run(line, leader);
    leader->state = IDEMPOTENCY_LEADS;
    tail = &leader->next;
    size_t count = 1;
    for (struct idempotency_member **at = first; *at && count < MEMBERS_MAX;) {
        struct idempotency_member *member = *at;
        if (str_eq(member->call->tenant, leader->call->tenant)) {
            line_remove(line, at);
            member->state = IDEMPOTENCY_FOLLOWS;
            *tail = member;
            tail = &member->next;
            count++;
        } else {
            at = &member->next;
        }
    }
    pthread_cond_signal(&leader->decided);
}

static void line_ended(struct line *line, struct idempotency_member *member)
{
    if (member->is_counted)
        LIST_REMOVE(member, running);
    member->is_counted = false;
    line_next(line);
}

static void line_lead(struct line *line, struct idempotency_member *leader)
{
    bool decided[MEMBERS_MAX];
    size_t at = 0;
    pthread_mutex_unlock(&line->lock);
    bool is_any = run_group(leader, decided);
    pthread_mutex_lock(&line->lock);
    if (!is_any)
        line->alone_until_ns = clock_deadline_ms(PAUSE_MS);
    for (struct idempotency_member *member = leader, *next; member; member = next, at++) {
        next = member->next; /* a member is gone once it is signalled and the lock released */
        member->state = decided[at] ? IDEMPOTENCY_DECIDED : IDEMPOTENCY_ALONE;
        pthread_cond_signal(&member->decided);
    }
    line_ended(line, leader);
}

static void line_wait(struct line *line, struct idempotency_member *member, int64_t until_ns)
{
    *line->last = member;
    line->last = &member->next;
    line_next(line);
    while (member->state == IDEMPOTENCY_QUEUED)
        if (!clock_cond_wait(&member->decided, &line->lock, until_ns) &&
            member->state == IDEMPOTENCY_QUEUED) {
            struct idempotency_member **at = &line->first;
            while (*at != member)
                at = &(*at)->next;
            line_remove(line, at);
            member->state = IDEMPOTENCY_ALONE;
        }
    if (member->state == IDEMPOTENCY_LEADS && member->next)
        line_lead(line, member);
    while (member->state == IDEMPOTENCY_FOLLOWS)
        pthread_cond_wait(&member->decided, &line->lock);
}

bool idempotency_groups_enter(struct idempotency_groups *groups, struct idempotency_member *member)
{
    member->tenant_hash = hash_seeded(member->call->tenant);
    struct line *line = line_of(groups, member);
    pthread_mutex_lock(&line->lock);
    bool is_free = line_may_run(line, member), runs = is_free || clock_mono_ns() < line->alone_until_ns;
    if (is_free)
        line_run(line, member);
    pthread_mutex_unlock(&line->lock);
    return runs;
}

bool idempotency_groups_wait(struct idempotency_groups *groups, struct idempotency_member *member)
{
    struct line *line = line_of(groups, member);
    pthread_cond_init(&member->decided, NULL);
    pthread_mutex_lock(&line->lock);
    line_wait(line, member, clock_deadline_ms(groups->wait_ms));
    pthread_mutex_unlock(&line->lock);
    pthread_cond_destroy(&member->decided);
    return member->state == IDEMPOTENCY_DECIDED;
}

void idempotency_groups_leave(struct idempotency_groups *groups, struct idempotency_member *member)
{
    struct line *line = line_of(groups, member);
    if (!member->is_counted)
        return;
    pthread_mutex_lock(&line->lock);
    line_ended(line, member);
    pthread_mutex_unlock(&line->lock);
}

size_t idempotency_groups_queued(struct idempotency_groups *groups)
{
    size_t count = 0;
    for (size_t i = 0; i < LINES; i++) {
        pthread_mutex_lock(&groups->lines[i].lock);
        for (const struct idempotency_member *member = groups->lines[i].first; member; member = member->next)
            count++;
        pthread_mutex_unlock(&groups->lines[i].lock);
    }
    return count;
}
