/* One transaction for a group of POSTs (R1, R11): their rows and their commands commit together, or neither. Two ways:
 *
 *     direct   BEGIN, cursors of the partitions, accept ─ apply ─ COMMIT
 *     queued   BEGIN, accept ─ publish ─ COMMIT; apply receives the commands from the topic
 *
 * Direct is for small deltas where this process applies too. It guesses that all updates are new and that nothing is queued before
 * them, and falls back to queued, once, where it was wrong or failed before its commit. The order holds: an update that was answered
 * before is applied, or it is queued, and then the cursors are not granted.
 *
 * A group may be run again at any time: a retry finds the rows of a commit whose reply was lost. Refused posts leave the group, and
 * the others begin again. Where the server refuses a statement each post is run alone, so that one cannot make the others fail. */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "modules/refdata/apply/apply.h"
#include "modules/refdata/command/command.h"
#include "modules/refdata/commands.h"

enum {
    TRIES_MAX = 20,  /* of a transaction that the server asks to run again */
    DIRECT_MS = 300, /* for applying directly */
    DIRECT_BYTES_MAX = 256 << 10,
    SLOW_PAUSE_MS = 2000,    /* without direct, after it took longer */
    CONTENDED_PAUSE_MS = 20, /* the same after others held the cursors */
    UNKNOWN_PAUSE_MS = 50,   /* between tries while the outcome of a commit is unknown */
};
/* A lock that another transaction holds must not keep the other updates waiting. */
static const struct db_statement lock_timeout_sql =
    DB_STATEMENT("select set_config('lock_timeout', '300', true)");
static const struct db_statement begin_sql = DB_STATEMENT("BEGIN");

enum way { DIRECT, QUEUED };

struct group {
    struct refdata_flow *flow;
    struct refdata_commit_pace *pace;
    struct refdata_post **posts;
    size_t count;
    int64_t deadline_ns;
    enum way way;
    bool guess_failed;   /* its single update was not new: it takes a round trip more */
    bool is_unknown;     /* the reply to some COMMIT was lost */
    bool is_to_be_woken; /* the consumers of the topic */
    struct error error;
};

static bool has_keys(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->posts[i]->acceptance.key.ptr)
            return true;
    return false;
}

static struct refdata_acceptance **list_acceptances(const struct group *group, struct arena *arena)
{
    struct refdata_acceptance **list = arena_alloc(arena, group->count * sizeof(struct refdata_acceptance *));
    for (size_t i = 0; i < group->count; i++)
        list[i] = &group->posts[i]->acceptance;
    return list;
}

static enum status note_commit(struct group *group, enum status status)
{
    group->is_unknown |= status == STATUS_DB_DOWN || status == STATUS_TIMEOUT || status == STATUS_CANCELLED;
    FAILPOINT("command.after_commit");
    return status;
}

/* ---- direct ---- */

struct direct {
    unsigned *partitions; /* of the commands' topic that the posts belong to, each once */
    size_t partition_count;
    uint64_t mark;                /* bus_direct_commit()'s */
    struct db_result *results[2]; /* of BEGIN and of the question for the cursors */
    struct refdata_command *commands;
    bool writes_requests; /* apply inserts the rows of update_request, as decided: a key needs them before */
};

static bool may_be_direct(const struct group *group)
{
    struct refdata_flow *flow = group->flow;
    size_t bytes = 0;
    for (size_t i = 0; i < group->count; i++) {
        bytes += group->posts[i]->bytes;
        /* What a snapshot replaces may be large, however small it is itself: its SQL must not hold up other posts. */
        if (group->posts[i]->update.type != REFDATA_DELTA || bytes > DIRECT_BYTES_MAX)
            return false;
    }
    return flow->apply && clock_mono_ns() >= group->pace->direct_from_ns &&
           bus_direct_is_possible(flow->buses.commands, STR(REFDATA_COMMANDS));
}

static int compare_partitions(const void *a, const void *b)
{
    unsigned left = *(const unsigned *)a, right = *(const unsigned *)b;
    return (left > right) - (left < right);
}

static void list_partitions(const struct group *group, struct direct *direct, struct arena *arena)
{
    unsigned total = (unsigned)kernel_bus(group->flow->refdata->kernel)->partitions;
    unsigned *partitions = arena_alloc(arena, group->count * sizeof *partitions);
    for (size_t i = 0; i < group->count; i++) {
        const struct refdata_update *update = &group->posts[i]->update;
        struct str key =
            arena_printf(arena, "%.*s:%.*s", STR_ARG(update->tenant), STR_ARG(update->dict_code));
        partitions[i] = bus_partition_of(key, total);
    }
    qsort(partitions, group->count, sizeof *partitions, compare_partitions);
    direct->partitions = partitions;
    for (size_t i = 0; i < group->count; i++)
        if (i == 0 || partitions[direct->partition_count - 1] != partitions[i])
            partitions[direct->partition_count++] = partitions[i];
}

/* All of it goes out with apply's first round trip. */
static enum status add_direct_opening(struct group *group, struct db_conn *conn, struct direct *direct,
                                      struct arena *arena)
{
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &begin_sql, DB_NO_PARAMS);
    enum status status =
        bus_direct_ask(group->flow->buses.commands, conn, STR(REFDATA_COMMANDS), REFDATA_APPLY_GROUP,
                       direct->partitions, direct->partition_count, &direct->mark, &group->error);
    db_pipeline_add(conn, &lock_timeout_sql, DB_NO_PARAMS);
    if (!direct->writes_requests)
        refdata_acceptance_add(conn, list_acceptances(group, arena), group->count,
                               group->posts[0]->key_keep_ms, true, arena);
    db_pipeline_leave(conn, direct->results, 2);
    return status;
}

static enum status apply_directly(struct group *group, struct db_conn *conn, struct direct *direct,
                                  struct arena *arena)
{
    int64_t soon_ns = clock_deadline_ms(DIRECT_MS);
    direct->commands = arena_zalloc(arena, group->count * sizeof *direct->commands);
    for (size_t i = 0; i < group->count; i++) {
        const struct refdata_post *post = group->posts[i];
        direct->commands[i] = (struct refdata_command){
            .update = post->update,
            .requested_by = post->acceptance.subject.len ? post->acceptance.subject : STR_NONE,
            .traceparent =
                post->traceparent, /* no other process waits for it: before this commit it was not there */
        };
    }
    return refdata_apply_run(group->flow, conn, direct->commands, group->count,
                             REFDATA_APPLY_OPEN | (direct->writes_requests ? REFDATA_APPLY_INSERTS : 0),
                             soon_ns < group->deadline_ns ? soon_ns : group->deadline_ns, arena,
                             &group->error);
}

static bool all_decided(const struct group *group, const struct direct *direct)
{
    for (size_t i = 0; i < group->count; i++)
        if (!direct->commands[i].decided)
            return false;
    return true;
}

static void take_outcomes(struct group *group, const struct direct *direct)
{
    for (size_t i = 0; i < group->count; i++) {
        const struct refdata_outcome *outcome = &direct->commands[i].outcome;
        struct refdata_acceptance *acceptance = &group->posts[i]->acceptance;
        refdata_acceptance_take_new(acceptance);
        refdata_outcome_state(outcome, &acceptance->state);
    }
}

static enum status commit_applied(struct group *group, struct db_conn *conn, const struct direct *direct)
{
    FAILPOINT("command.before_direct_commit");
    enum status status = bus_direct_commit(group->flow->buses.commands, conn, STR(REFDATA_COMMANDS),
                                           direct->mark, group->deadline_ns, &group->error);
    FAILPOINT("command.after_direct_commit");
    if (status == STATUS_OK) {
        take_outcomes(group, direct);
        refdata_apply_report(group->flow, direct->commands, group->count);
    }
    if (status == STATUS_DB_RETRY) /* another transaction holds a lock */
        group->pace->direct_from_ns = clock_deadline_ms(SLOW_PAUSE_MS);
    status = note_commit(group, status);
    return status == STATUS_DB_ERROR ? STATUS_DB_RETRY : status;
}

/* SQL that takes long must not keep others from being accepted: after a timeout direct is not tried for a while. */
static enum status commit_direct(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct direct direct = {.writes_requests = !has_keys(group)};
    group->way = QUEUED; /* the next time */
    list_partitions(group, &direct, arena);
    enum status status = add_direct_opening(group, conn, &direct, arena);
    if (status == STATUS_OK)
        status = apply_directly(group, conn, &direct, arena);
    db_pipeline_leave(conn, NULL, 0); /* the results have come, or they are not needed any more */
    bool is_granted = direct.results[1] && bus_direct_is_granted(direct.results[1], direct.partition_count);
    db_result_free(direct.results[0]);
    db_result_free(direct.results[1]);
    if (status == STATUS_OK && is_granted && all_decided(group, &direct))
        return commit_applied(group, conn, &direct);
    if (status == STATUS_TIMEOUT)
        group->pace->direct_from_ns = clock_deadline_ms(SLOW_PAUSE_MS);
    else if (status == STATUS_OK && !is_granted)
        group->pace->direct_from_ns = clock_deadline_ms(CONTENDED_PAUSE_MS);
    return status == STATUS_CANCELLED ? status : STATUS_DB_RETRY;
}

/* ---- queued ---- */

/* A single update that a client waits for is most often new: then its rows, its command, the commit and the notice to the
 * consumers are one round trip. */
static bool may_guess(const struct group *group)
{
    return group->count == 1 && group->posts[0]->waits && !group->guess_failed &&
           refdata_commands_can_commit(group->flow);
}

static struct refdata_accepted accepted_of(const struct refdata_post *post)
{
    return (struct refdata_accepted){&post->update, post->traceparent, post->waits};
}

static enum status commit_single(struct group *group, struct db_conn *conn, struct arena *arena)
{
    const struct refdata_accepted accepted = accepted_of(group->posts[0]);
    db_pipeline_leave(conn, NULL, 0); /* with the commit */
    group->guess_failed = true;       /* the next time */
    FAILPOINT("command.before_single_commit");
    enum status status =
        note_commit(group, refdata_commands_put_and_commit(group->flow, conn, &accepted, group->deadline_ns,
                                                           arena, &group->error));
    if (status == STATUS_OK)
        refdata_acceptance_take_new(&group->posts[0]->acceptance);
    group->is_to_be_woken |=
        status != STATUS_OK; /* it may be queued, without a notice to this process's own consumer */
    return status == STATUS_DB_ERROR ? STATUS_DB_RETRY : status;
}

static enum status publish_and_commit(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct refdata_accepted *accepted = arena_alloc(arena, group->count * sizeof *accepted);
    size_t count = 0;
    for (size_t i = 0; i < group->count; i++)
        if (refdata_acceptance_is_published(&group->posts[i]->acceptance))
            accepted[count++] = accepted_of(group->posts[i]);
    FAILPOINT("command.before_publish");
    enum status status =
        refdata_commands_put(group->flow, conn, accepted, count, group->deadline_ns, arena, &group->error);
    FAILPOINT("command.before_commit");
    if (status == STATUS_OK)
        status = note_commit(group, db_commit(conn, group->deadline_ns, &group->error));
    group->is_to_be_woken |= count > 0; /* also by an earlier try whose reply was lost */
    return status;
}

static bool has_refused(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->posts[i]->acceptance.verdict == REFDATA_REFUSED)
            return true;
    return false;
}

/* OK with some of them refused: nothing was committed. */
static enum status commit_queued(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct refdata_acceptance **acceptances = list_acceptances(group, arena);
    struct db_result *results[2] = {NULL};
    bool is_guess = may_guess(group);
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &begin_sql, DB_NO_PARAMS);
    refdata_acceptance_add(conn, acceptances, group->count, group->posts[0]->key_keep_ms, is_guess, arena);
    if (is_guess)
        return commit_single(group, conn, arena);
    enum status status = db_pipeline_end(conn, group->deadline_ns, results, 2, NULL, &group->error);
    if (status == STATUS_OK)
        status = refdata_acceptance_take(results[1], acceptances, group->count, &group->error);
    db_result_free(results[0]);
    db_result_free(results[1]);
    return status == STATUS_OK && !has_refused(group) ? publish_and_commit(group, conn, arena) : status;
}

/* ---- until it is known ---- */

static enum status try_once(struct group *group, bool *is_connected)
{
    struct db_conn *conn = NULL;
    struct arena arena;
    enum status status =
        db_acquire(group->flow->database->site.pool, group->deadline_ns, &conn, &group->error);
    *is_connected = status == STATUS_OK;
    if (status != STATUS_OK)
        return status;
    arena_init(&arena, 4096);
    status = group->way == DIRECT ? commit_direct(group, conn, &arena) : commit_queued(group, conn, &arena);
    arena_deinit(&arena);
    db_release(conn); /* rolls back what was not committed */
    return status;
}

static void drop_refused(struct group *group)
{
    size_t kept = 0;
    for (size_t i = 0; i < group->count; i++) {
        struct refdata_post *post = group->posts[i];
        if (post->acceptance.verdict != REFDATA_REFUSED) {
            group->posts[kept++] = post;
            continue;
        }
        post->result = REFDATA_POST_REFUSED;
        refdata_acceptance_error(&post->acceptance, &post->error);
    }
    group->count = kept;
}

/* Is another try worth it? A connection that broke may have been an old one; without any, only updates whose outcome is
 * unknown go on. */
static bool may_try_again(const struct group *group, enum status status, bool is_connected, int tries)
{
    if (status == STATUS_CANCELLED || clock_mono_ns() >= group->deadline_ns)
        return false;
    if (status == STATUS_DB_RETRY)
        return tries < TRIES_MAX;
    if (status != STATUS_DB_DOWN && status != STATUS_TIMEOUT)
        return false;
    if (group->is_unknown)
        nanosleep(&(struct timespec){.tv_nsec = UNKNOWN_PAUSE_MS * CLOCK_NS_PER_MS}, NULL);
    return group->is_unknown || (is_connected && tries < 3);
}

static enum status commit_group(struct group *group)
{
    enum status status = STATUS_OK;
    for (int tries = 1; group->count > 0; tries++) {
        bool is_connected = false;
        status = try_once(group, &is_connected);
        if (status == STATUS_OK && has_refused(group))
            drop_refused(group);
        else if (status == STATUS_OK || !may_try_again(group, status, is_connected, tries))
            break;
    }
    return group->count > 0 ? status : STATUS_OK;
}

static void finish_group(struct group *group)
{
    for (size_t i = 0; i < group->count; i++)
        group->posts[i]->result =
            group->posts[i]->acceptance.verdict == REFDATA_NEW ? REFDATA_POST_TAKEN : REFDATA_POST_REPLAYED;
    if (group->is_to_be_woken)
        refdata_commands_wake(group->flow);
}

static void fail_group(struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct refdata_post *post = group->posts[i];
        post->result = group->is_unknown ? REFDATA_POST_UNKNOWN : REFDATA_POST_REFUSED;
        post->error = group->error;
        post->error.status = STATUS_UNAVAILABLE;
    }
    if (clock_mono_ns() < group->pace->warn_from_ns)
        return;
    group->pace->warn_from_ns = clock_deadline_ms(1000);
    log_warn("updates_not_committed", LOG_STR("database", group->flow->database->name),
             LOG_INT("updates", (long long)group->count), LOG_BOOL("unknown", group->is_unknown),
             LOG_ERROR_FIELDS(&group->error));
}

static void commit_posts(struct refdata_flow *flow, struct refdata_commit_pace *pace,
                         struct refdata_post **posts, size_t count, bool is_unknown)
{
    struct refdata_post **kept = memory_alloc(count * sizeof *kept); /* the caller's array stays whole */
    struct group group = {
        .flow = flow, .pace = pace, .posts = kept, .count = count, .is_unknown = is_unknown};
    memcpy(kept, posts, count * sizeof *kept);
    for (size_t i = 0; i < count; i++)
        if (posts[i]->deadline_ns > group.deadline_ns)
            group.deadline_ns = posts[i]->deadline_ns;
    group.way = may_be_direct(&group) ? DIRECT : QUEUED;
    enum status status = commit_group(&group);
    if (status == STATUS_OK)
        finish_group(&group);
    else if (status == STATUS_DB_ERROR && group.count > 1)
        for (size_t i = 0; i < group.count; i++)
            commit_posts(flow, pace, &kept[i], 1, group.is_unknown);
    else
        fail_group(&group);
    free(kept);
}

void refdata_commit_posts(struct refdata_flow *flow, struct refdata_commit_pace *pace,
                          struct refdata_post **posts, size_t count)
{
    commit_posts(flow, pace, posts, count, false);
}
