/* One transaction for a group of POSTs (R1, R11): their rows and their commands commit together, or neither. There are two ways, and
 * each is tried in one round trip first, where that may succeed; ─ is a wait for PostgreSQL's answers:
 *
 *              in one trip                             step by step, if that failed
 *     direct   BEGIN, lock, accept, apply, COMMIT      BEGIN, lock, accept, read ─ apply ─ COMMIT      if that failed: queued
 *     queued   BEGIN, accept, publish, COMMIT          BEGIN, accept ─ publish ─ COMMIT                if that failed: the same again
 *
 * Queued: apply receives the commands from the topic. Direct: they are applied here, for small deltas where this process applies too.
 * "lock" are the cursor locks of the partitions, which are granted if nothing is queued there. So the order of updates holds: one that
 * was answered earlier is either applied, or still queued, and then the locks are not granted. All updates must be new; if no post has an
 * Idempotency-Key, apply writes the rows and accept is left out.
 *
 * Direct in one trip is called expected: only this process writes the pair, which is as it left it. Queued in one trip is called
 * guessed: all updates are guessed to be new (GLOSSARY.md).
 *
 * A group may be run again at any time: a retry finds the rows of a commit whose reply was lost. Refused posts leave the group, and
 * the others begin again. Where the server refuses a statement each post is run alone, so that one cannot make the others fail. */
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
    UNGUESSED_PAUSE_MS = 1000, /* guessed is not used for this long after an update that was known */
    CONTENDED_PAUSE_MS = 20,   /* without direct, after the cursor locks were not granted */
    UNKNOWN_PAUSE_MS = 50,     /* between tries while the outcome of a commit is unknown */
};
/* A lock that another transaction holds must not keep the other updates waiting. */
static const struct db_statement lock_timeout_sql =
    DB_STATEMENT("select set_config('lock_timeout', '300', true)");

enum way { DIRECT, QUEUED };

struct group {
    struct refdata_database *database;
    struct refdata_commit_pace *pace;
    struct refdata_post **posts; /* those that are refused leave it */
    size_t count;
    int64_t deadline_ns;
    enum way way;         /* this and in_one_trip: of the next try */
    bool in_one_trip;     /* if it may succeed */
    bool is_unknown;      /* the reply to some COMMIT was lost */
    bool wakes_consumers; /* of the topic, after the commit: commands may be queued */
    size_t queued;        /* commands in the last commit */
    struct error error;
};

/* The statement that accepts the group, in the open pipeline. */
static struct refdata_acceptance **add_acceptances(const struct group *group, struct db_conn *conn,
                                                   bool all_new, struct arena *arena)
{
    struct refdata_acceptance **list = arena_alloc(arena, group->count * sizeof(struct refdata_acceptance *));
    for (size_t i = 0; i < group->count; i++)
        list[i] = &group->posts[i]->acceptance;
    refdata_acceptance_add(conn, list, group->count, group->posts[0]->key_keep_ms, all_new, arena);
    return list;
}

static enum status note_commit(struct group *group, enum status status)
{
    group->is_unknown |= status == STATUS_DB_DOWN || status == STATUS_TIMEOUT || status == STATUS_CANCELLED;
    FAILPOINT("command.after_commit");
    return status;
}

/* ---- direct ---- */

static bool may_be_direct(const struct group *group)
{
    struct refdata_database *database = group->database;
    size_t bytes = 0;
    for (size_t i = 0; i < group->count; i++) {
        bytes += group->posts[i]->bytes;
        /* What a snapshot replaces may be large, however small it is itself: its SQL must not hold up other posts. */
        if (group->posts[i]->update.type != REFDATA_DELTA || bytes > DIRECT_BYTES_MAX)
            return false;
    }
    return database->applies && !group->pace->is_queued && clock_mono_ns() >= group->pace->direct_from_ns &&
           bus_shares_commits(database->buses.commands, STR(REFDATA_COMMANDS));
}

/* The partitions of the posts, each once, ascending. */
static size_t list_partitions(const struct group *group, unsigned *partitions, struct arena *arena)
{
    unsigned topic_partitions = (unsigned)kernel_bus(group->database->refdata->kernel)->partitions;
    bool is_wanted[BUS_PARTITIONS_MAX] = {false};
    size_t count = 0;
    for (size_t i = 0; i < group->count; i++) {
        const struct refdata_update *update = &group->posts[i]->update;
        struct str key =
            arena_printf(arena, "%.*s:%.*s", STR_ARG(update->tenant), STR_ARG(update->dict_code));
        is_wanted[bus_partition_of(key, topic_partitions)] = true;
    }
    for (unsigned i = 0; i < topic_partitions; i++)
        if (is_wanted[i])
            partitions[count++] = i;
    return count;
}

/* BEGIN, the request for the cursor locks and the acceptance are sent with apply's first round trip, which in one trip is that of the
 * commit. OK: the locks are held, so that the group applies its updates in place of the topic's consumers, and all are decided; in one
 * trip, otherwise the commit fails. */
static enum status apply_directly(struct group *group, struct db_conn *conn, struct refdata_command *commands,
                                  uint64_t *mark, struct arena *arena)
{
    int64_t soon_ns = clock_deadline_ms(DIRECT_MS), slow_ns = clock_deadline_ms(DIRECT_MS / 2);
    unsigned partitions[BUS_PARTITIONS_MAX], flags = REFDATA_APPLY_OPEN | REFDATA_APPLY_INSERTS;
    size_t partition_count = list_partitions(group, partitions, arena);
    struct db_result *results[2] = {NULL}; /* of BEGIN and of the request for the cursor locks */
    for (size_t i = 0; i < group->count; i++) {
        const struct refdata_post *post = group->posts[i];
        /* apply inserts the rows of update_request with their final status; with an Idempotency-Key they must exist earlier */
        if (post->acceptance.key.ptr)
            flags &= ~(unsigned)REFDATA_APPLY_INSERTS;
        commands[i] = (struct refdata_command){
            .update = post->update,
            .requested_by = post->acceptance.subject.len ? post->acceptance.subject : STR_NONE,
            .traceparent = post->traceparent,
            /* not `waited`: no other process can wait for it, since it was not there before this commit */
        };
    }
    group->in_one_trip = group->in_one_trip && refdata_apply_expects(group->database, commands, group->count);
    flags |= group->in_one_trip ? REFDATA_APPLY_EXPECTED : 0;
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
    enum status status =
        bus_direct_ask(group->database->buses.commands, conn, STR(REFDATA_COMMANDS), REFDATA_APPLY_GROUP,
                       partitions, partition_count, group->in_one_trip, mark, &group->error);
    if (!group->in_one_trip) /* apply's statement sets it otherwise */
        db_pipeline_add(conn, &lock_timeout_sql, DB_NO_PARAMS);
    if (!(flags & REFDATA_APPLY_INSERTS))
        add_acceptances(group, conn, true, arena);
    db_pipeline_leave(conn, results, 2);
    if (status == STATUS_OK)
        status = refdata_apply_run(group->database, conn, commands, group->count, flags,
                                   soon_ns < group->deadline_ns ? soon_ns : group->deadline_ns, arena,
                                   &group->error);
    group->pace->was_slow |= status != STATUS_OK && clock_mono_ns() >= slow_ns;
    db_pipeline_forget(conn); /* the results have come, or they are not needed any more */
    if (status == STATUS_OK && !group->in_one_trip &&
        !(results[1] && bus_direct_is_granted(results[1], partition_count))) {
        group->pace->direct_from_ns = clock_deadline_ms(CONTENDED_PAUSE_MS);
        status = STATUS_DB_RETRY;
    }
    for (size_t i = 0; i < group->count && status == STATUS_OK; i++)
        if (!commands[i].decided) /* it was known before */
            status = STATUS_DB_RETRY;
    db_result_free(results[0]);
    db_result_free(results[1]);
    return status;
}

/* SQL that takes long must not keep others from being accepted: after a timeout the committer keeps its tenants apart. */
static enum status commit_direct(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct refdata_command *commands = arena_zalloc(arena, group->count * sizeof *commands);
    uint64_t mark = 0;
    enum status status = apply_directly(group, conn, commands, &mark, arena);
    if (status != STATUS_OK)
        return status == STATUS_CANCELLED ? status : STATUS_DB_RETRY;

    FAILPOINT("command.before_direct_commit");
    status = bus_direct_commit(group->database->buses.commands, conn, STR(REFDATA_COMMANDS), mark,
                               group->deadline_ns, &group->error);
    FAILPOINT("command.after_direct_commit");
    for (size_t i = 0; status == STATUS_OK && i < group->count; i++) {
        struct refdata_acceptance *acceptance = &group->posts[i]->acceptance;
        refdata_acceptance_take_new(acceptance);
        acceptance->state = commands[i].outcome.state;
    }
    if (status == STATUS_OK)
        refdata_apply_report(group->database, commands, group->count, db_pipeline_is_true(conn));
    group->pace->was_slow |= status == STATUS_DB_RETRY; /* another transaction holds a lock */
    status = note_commit(group, status);
    return status == STATUS_DB_ERROR ? STATUS_DB_RETRY : status;
}

/* ---- queued ---- */

static struct refdata_accepted accepted_of(const struct refdata_post *post)
{
    return (struct refdata_accepted){&post->update, post->traceparent, post->waits};
}

/* Updates are most often new. If all of the group are, then their rows, their commands, the commit and, for a single one that a client
 * waits for, the notice to the consumers are one round trip. */
static bool may_be_guessed(const struct group *group)
{
    size_t bytes = 0;
    bool is_single = group->count == 1 && group->posts[0]->waits;
    for (size_t i = 0; i < group->count; i++)
        bytes += group->posts[i]->bytes;
    if (!is_single &&
        (FAILPOINT_IS_ARMED("command.before_publish") || FAILPOINT_IS_ARMED("command.before_commit")))
        return false; /* a process can die between two statements only if they are sent separately */
    return (is_single || (bytes <= DIRECT_BYTES_MAX && clock_mono_ns() >= group->pace->guess_from_ns)) &&
           bus_shares_commits(group->database->buses.commands, STR(REFDATA_COMMANDS));
}

static enum status commit_guessed(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct refdata_accepted *accepted = arena_alloc(arena, group->count * sizeof *accepted);
    for (size_t i = 0; i < group->count; i++)
        accepted[i] = accepted_of(group->posts[i]);
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
    add_acceptances(group, conn, true, arena);
    db_pipeline_leave(conn, NULL, 0); /* with the commit */
    FAILPOINT("command.before_single_commit");
    enum status status =
        note_commit(group, refdata_commands_put_and_commit(group->database, conn, accepted, group->count,
                                                           group->deadline_ns, arena, &group->error));
    for (size_t i = 0; i < group->count && status == STATUS_OK; i++)
        refdata_acceptance_take_new(&group->posts[i]->acceptance);
    if (status == STATUS_OK)
        return status;
    group->wakes_consumers = true; /* they may be queued, without a notice to this process's own consumer */
    if (status == STATUS_DB_ERROR &&
        !(group->count == 1 && group->posts[0]->waits)) /* clients may be repeating many updates */
        group->pace->guess_from_ns = clock_deadline_ms(UNGUESSED_PAUSE_MS);
    return status == STATUS_DB_ERROR ? STATUS_DB_RETRY : status;
}

static enum status commit_queued(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct db_result *results[2] = {NULL};
    db_pipeline_begin(conn);
    db_pipeline_add(conn, &db_begin_sql, DB_NO_PARAMS);
    struct refdata_acceptance **acceptances = add_acceptances(group, conn, false, arena);
    enum status status = db_pipeline_end(conn, group->deadline_ns, results, 2, NULL, &group->error);
    if (status == STATUS_OK)
        status = refdata_acceptance_take(conn, results[1], acceptances, group->count, group->deadline_ns,
                                         &group->error);
    db_result_free(results[0]);
    db_result_free(results[1]);
    if (status != STATUS_OK)
        return status;
    size_t kept = 0, all = group->count, count = 0;
    for (size_t i = 0; i < all; i++) {
        struct refdata_post *post = group->posts[i];
        if (post->acceptance.result != REFDATA_REFUSED) {
            group->posts[kept++] = post;
            continue;
        }
        post->result = REFDATA_POST_REFUSED;
        refdata_acceptance_error(&post->acceptance, &post->error);
    }
    group->count = kept;
    if (kept < all) /* the others begin again, without its rows */
        return error_set(&group->error, STATUS_DB_RETRY, "another update of the transaction was refused");

    struct refdata_accepted *accepted = arena_alloc(arena, group->count * sizeof *accepted);
    for (size_t i = 0; i < group->count; i++)
        if (refdata_acceptance_is_published(&group->posts[i]->acceptance))
            accepted[count++] = accepted_of(group->posts[i]);
    FAILPOINT("command.before_publish");
    status = refdata_commands_put(group->database, conn, accepted, count, group->deadline_ns, arena,
                                  &group->error);
    FAILPOINT("command.before_commit");
    if (status == STATUS_OK)
        status = note_commit(group, db_commit(conn, group->deadline_ns, &group->error));
    group->queued = count;
    group->wakes_consumers |= count > 0; /* also by an earlier try whose reply was lost */
    return status;
}

/* ---- tries, until the outcome is known ---- */

static enum status try_once(struct group *group, struct db_conn *conn)
{
    enum status status;
    struct arena arena = ARENA(4096);
    if (group->way == DIRECT)
        status = commit_direct(group, conn, &arena);
    else if (group->in_one_trip && may_be_guessed(group))
        status = commit_guessed(group, conn, &arena);
    else
        status = commit_queued(group, conn, &arena);
    arena_deinit(&arena);
    if (group->in_one_trip) { /* the next try, if this one failed */
        group->in_one_trip = false;
    } else if (group->way == DIRECT) {
        group->way = QUEUED;
        group->in_one_trip = true;
    }
    return status;
}

/* Is another try worth it? A connection that broke may have been an old one, so a few more are tried. Where none can be opened,
 * only updates whose outcome is unknown are tried again. */
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

/* False: the server refuses a statement, and it is not known for which of several posts. */
static bool commit_group(struct group *group)
{
    enum status status = STATUS_DB_RETRY;
    bool is_connected = true;
    for (size_t i = 0; i < group->count; i++)
        if (group->posts[i]->deadline_ns > group->deadline_ns)
            group->deadline_ns = group->posts[i]->deadline_ns;
    group->way = may_be_direct(group) ? DIRECT : QUEUED;
    group->in_one_trip = true;
    for (int tries = 0; group->count > 0; tries++) {
        struct db_conn *conn = NULL;
        if (tries > 0 && !may_try_again(group, status, is_connected, tries))
            break;
        status = db_acquire(group->database->site.pool, group->deadline_ns, &conn, &group->error);
        is_connected = status == STATUS_OK;
        if (is_connected)
            status = try_once(group, conn);
        db_release(conn); /* rolls back what was not committed */
        if (status == STATUS_OK)
            break;
    }
    if (group->count == 0) /* all of them were refused */
        status = STATUS_OK;
    if (status == STATUS_DB_ERROR && group->count > 1)
        return false;
    for (size_t i = 0; i < group->count; i++) {
        struct refdata_post *post = group->posts[i];
        if (status == STATUS_OK) {
            post->result =
                post->acceptance.result == REFDATA_NEW ? REFDATA_POST_ACCEPTED : REFDATA_POST_REPLAYED;
            continue;
        }
        post->result = group->is_unknown ? REFDATA_POST_UNKNOWN : REFDATA_POST_REFUSED;
        post->error = group->error;
        post->error.status = STATUS_UNAVAILABLE;
    }
    if (status == STATUS_OK && group->wakes_consumers)
        refdata_commands_wake(group->database, group->queued);
    if (status == STATUS_OK || clock_mono_ns() < group->pace->warn_from_ns)
        return true;
    group->pace->warn_from_ns = clock_deadline_ms(1000);
    log_warn("updates_not_committed", LOG_STR("database", group->database->name),
             LOG_INT("updates", (long long)group->count), LOG_BOOL("unknown", group->is_unknown),
             LOG_ERROR_FIELDS(&group->error));
    return true;
}

void refdata_commit_posts(struct refdata_database *database, struct refdata_commit_pace *pace,
                          struct refdata_post **posts, size_t count)
{
    struct group group = {.database = database, .pace = pace, .posts = posts, .count = count};
    if (commit_group(&group))
        return;
    for (size_t i = 0; i < group.count; i++)
        commit_group(&(struct group){.database = database,
                                     .pace = pace,
                                     .posts = &posts[i],
                                     .count = 1,
                                     .is_unknown = group.is_unknown});
}
