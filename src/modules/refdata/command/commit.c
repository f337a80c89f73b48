/* One transaction for a group of POSTs (R1, R11): their rows and their commands commit together, or neither.
 *
 * All of it may be run again at any time: an event's row is there once, so a try whose commit was not answered is found
 * by the next one as what it came to. Refused posts leave the group and the rest begins anew; where the server refuses a
 * statement, each is run by itself, so that one cannot spoil the others. */
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/command/direct.h"
#include "modules/refdata/commands.h"

enum {
    TRIES_MAX = 20,          /* of a transaction that the server asks to run again */
    DIRECT_MS = 300,         /* for the short way */
    DIRECT_PAUSE_MS = 2000,  /* without it, once it took longer */
    CONTENDED_PAUSE_MS = 20, /* the same once others were there first */
    PAUSE_MS = 50,           /* between tries while an outcome is unknown */
    HEADERS_MAX = 3,
};

struct group {
    struct refdata_flow *flow;
    struct refdata_post **posts;
    size_t count;
    int64_t deadline_ns;
    bool unknown;  /* some try's commit was not answered */
    bool by_bus;   /* the short way failed: not again */
    bool earnest;  /* a guess was wrong: not again */
    bool is_quiet; /* nobody is to be woken: nothing was published, or they were told */
    struct error error;
};

/* ---- the message ---- */

static void make_message(const struct refdata_post *post, struct bus_message *message, struct buf *payload,
                         struct arena *arena)
{
    struct bus_header *headers = arena_alloc(arena, HEADERS_MAX * sizeof *headers);
    unsigned count = 0;
    headers[count++] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), str_from(post->update.event_id)};
    if (post->waits)
        headers[count++] = (struct bus_header){STR(REFDATA_HEADER_WAITED), STR("1")};
    if (post->traceparent.len)
        headers[count++] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), post->traceparent};
    refdata_update_put(payload, &post->update);
    *message = (struct bus_message){
        .topic = STR(REFDATA_COMMANDS),
        .key = arena_printf(arena, "%s:%.*s", post->tenant, STR_ARG(post->update.dict_code)),
        .headers = headers,
        .header_count = count,
    };
}

static bool is_published(const struct refdata_post *post)
{
    return post->is_new || post->is_chunk_new;
}

/* In the order they came. */
static enum status publish(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct bus_message *messages = arena_alloc(arena, group->count * sizeof *messages);
    struct buf *payloads = arena_zalloc(arena, group->count * sizeof *payloads);
    size_t count = 0;
    for (size_t i = 0; i < group->count; i++) {
        if (!is_published(group->posts[i]))
            continue;
        make_message(group->posts[i], &messages[count], &payloads[count], arena);
        messages[count].payload = buf_str(&payloads[count]);
        count++;
    }
    enum status status =
        refdata_commands_put(group->flow, conn, messages, count, group->deadline_ns, &group->error);
    for (size_t i = 0; i < count; i++)
        buf_deinit(&payloads[i]);
    return status;
}

/* ---- one try ---- */

static bool has_refused(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->posts[i]->result == REFDATA_POST_REFUSED)
            return true;
    return false;
}

static enum status note_commit(struct group *group, enum status status)
{
    group->unknown |= status == STATUS_DB_DOWN || status == STATUS_TIMEOUT || status == STATUS_CANCELLED;
    FAILPOINT("command.after_commit");
    return status;
}

static enum status publish_and_commit(struct group *group, struct db_conn *conn, struct arena *arena)
{
    group->is_quiet = false;
    FAILPOINT("command.before_publish");
    enum status status = publish(group, conn, arena);
    FAILPOINT("command.before_commit");
    if (status == STATUS_OK)
        status = note_commit(group, db_commit(conn, group->deadline_ns, &group->error));
    return status;
}

/* DB_RETRY stands for whatever went wrong before its commit: the next try takes the ordinary way. SQL that takes its time
 * must not keep others from being accepted: after a timeout nobody tries it for a while. */
static enum status apply(struct group *group, struct db_conn *conn, struct refdata_direct *direct,
                         unsigned flags, struct arena *arena)
{
    int64_t soon_ns = clock_deadline_ms(DIRECT_MS);
    enum status status = refdata_direct_apply(direct, group->flow, conn, group->posts, group->count, flags,
                                              soon_ns < group->deadline_ns ? soon_ns : group->deadline_ns,
                                              arena, &group->error);
    if (status == STATUS_TIMEOUT)
        *refdata_committer_direct_from(group->flow->committer) = clock_deadline_ms(DIRECT_PAUSE_MS);
    if (status == STATUS_OK || status == STATUS_CANCELLED)
        return status;
    group->by_bus = true;
    return STATUS_DB_RETRY;
}

static enum status commit_applied(struct group *group, struct db_conn *conn,
                                  const struct refdata_direct *direct, uint64_t mark)
{
    FAILPOINT("command.before_direct_commit");
    enum status status = note_commit(
        group, refdata_direct_commit(direct, group->flow, conn, mark, group->deadline_ns, &group->error));
    group->is_quiet = status == STATUS_OK;
    group->by_bus = !group->is_quiet;
    if (status == STATUS_DB_RETRY) /* somebody holds a lock */
        *refdata_committer_direct_from(group->flow->committer) = clock_deadline_ms(DIRECT_PAUSE_MS);
    return status == STATUS_DB_ERROR ? STATUS_DB_RETRY : status;
}

static enum status apply_and_commit(struct group *group, struct db_conn *conn, uint64_t mark,
                                    struct arena *arena)
{
    struct refdata_direct direct;
    enum status status = db_pipeline_begin(conn, &group->error);
    if (status == STATUS_OK)
        status = refdata_direct_add_limit(conn, &group->error);
    db_pipeline_leave(conn, NULL, 0); /* with apply's first round trip */
    if (status == STATUS_OK)
        status = apply(group, conn, &direct, REFDATA_APPLY_OPEN, arena);
    return status == STATUS_OK ? commit_applied(group, conn, &direct, mark) : status;
}

static bool all_decided(const struct refdata_direct *direct)
{
    for (size_t i = 0; i < direct->count; i++)
        if (!direct->commands[i].decided)
            return false;
    return true;
}

/* Most updates are new, and nothing is queued before them: then their rows need not be there before they are decided, and
 * what has to be known of the partitions is asked together with apply's own questions. */
static enum status guess_and_commit(struct group *group, struct db_conn *conn, struct refdata_owning *owning,
                                    struct arena *arena)
{
    struct refdata_guess guess;
    struct refdata_direct direct = {0};
    enum status status =
        refdata_claims_guess(&guess, conn, group->posts, group->count, owning, &group->error);
    if (status == STATUS_OK)
        status = apply(group, conn, &direct, REFDATA_APPLY_OPEN | REFDATA_APPLY_INSERTS, arena);
    bool granted = refdata_claims_hold(&guess, conn, owning);
    group->earnest = true; /* the next time */
    if (status == STATUS_OK && granted && all_decided(&direct))
        return commit_applied(group, conn, &direct, owning->mark);
    if (status == STATUS_OK && !granted)
        *refdata_committer_direct_from(group->flow->committer) = clock_deadline_ms(CONTENDED_PAUSE_MS);
    return status == STATUS_OK ? STATUS_DB_RETRY : status;
}

/* One that somebody waits for, on its way to another process, is most often new: then its row, its command, the commit and
 * the news of it are one round trip. */
static bool is_lone(const struct group *group)
{
    return group->count == 1 && group->posts[0]->waits && !group->earnest &&
           refdata_claims_are_plain(group->posts, 1) &&
           bus_publish_and_commit_is_possible(group->flow->buses.commands, STR(REFDATA_COMMANDS));
}

static enum status guess_and_publish(struct group *group, struct db_conn *conn, struct arena *arena)
{
    struct bus_message message;
    struct buf payload;
    buf_init(&payload);
    make_message(group->posts[0], &message, &payload, arena);
    message.payload = buf_str(&payload);
    group->earnest = true; /* the next time */
    enum status status = refdata_claims_guess_one(conn, group->posts[0], &group->error);
    FAILPOINT("command.before_lone_commit");
    if (status == STATUS_OK)
        status = note_commit(group, bus_publish_and_commit(group->flow->buses.commands, conn, &message,
                                                           group->deadline_ns, &group->error));
    group->is_quiet = status == STATUS_OK; /* all are told */
    buf_deinit(&payload);
    return status == STATUS_DB_ERROR ? STATUS_DB_RETRY : status;
}

/* *refused: some of them leave the group, and nothing was committed. */
static enum status write_and_commit(struct group *group, struct db_conn *conn, struct arena *arena,
                                    bool *refused)
{
    struct refdata_owning owning = {0};
    if (!group->by_bus && clock_mono_ns() >= *refdata_committer_direct_from(group->flow->committer))
        refdata_direct_consider(&owning, group->flow, group->posts, group->count, arena);
    if (owning.count && !group->earnest && refdata_claims_are_plain(group->posts, group->count))
        return guess_and_commit(group, conn, &owning, arena);
    if (!owning.count && is_lone(group))
        return guess_and_publish(group, conn, arena);
    enum status status = refdata_claims_write(conn, group->posts, group->count, &owning, group->deadline_ns,
                                              arena, &group->error);
    if (status != STATUS_OK)
        return status;
    *refused = has_refused(group);
    if (*refused)
        return STATUS_OK;
    if (owning.granted)
        return apply_and_commit(group, conn, owning.mark, arena);
    return publish_and_commit(group, conn, arena);
}

static enum status try_once(struct group *group, bool *connected, bool *refused)
{
    struct db_conn *conn = NULL;
    struct arena arena;
    enum status status = db_acquire(group->flow->database->pool, group->deadline_ns, &conn, &group->error);
    *connected = status == STATUS_OK;
    if (status != STATUS_OK)
        return status;
    arena_init(&arena, 4096);
    status = write_and_commit(group, conn, &arena, refused);
    arena_deinit(&arena);
    db_release(conn); /* rolls back what was not committed */
    return status;
}

/* ---- until it is known ---- */

static void fail_all(struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        struct refdata_post *post = group->posts[i];
        post->result = group->unknown ? REFDATA_POST_UNKNOWN : REFDATA_POST_REFUSED;
        post->error = group->error;
        post->error.status = STATUS_UNAVAILABLE;
    }
    if (refdata_committer_may_complain(group->flow->committer))
        log_warn("updates_not_committed", LOG_STR("database", group->flow->database->name),
                 LOG_INT("updates", (long long)group->count), LOG_BOOL("unknown", group->unknown),
                 LOG_ERROR_FIELDS(&group->error));
}

static void keep_accepted(struct group *group)
{
    size_t kept = 0;
    for (size_t i = 0; i < group->count; i++)
        if (group->posts[i]->result != REFDATA_POST_REFUSED)
            group->posts[kept++] = group->posts[i];
    group->count = kept;
}

static void pause_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * CLOCK_NS_PER_MS}, NULL);
}

/* Is another try worth it? A connection that broke may have been an old one; without any, only those whose outcome is
 * unknown go on. */
static bool goes_on(const struct group *group, enum status status, bool connected, int tries)
{
    if (status == STATUS_CANCELLED || clock_mono_ns() >= group->deadline_ns)
        return false;
    if (status == STATUS_DB_RETRY)
        return tries < TRIES_MAX;
    if (status != STATUS_DB_DOWN && status != STATUS_TIMEOUT)
        return false;
    if (group->unknown)
        pause_a_little();
    return group->unknown || (connected && tries < 3);
}

static enum status commit(struct group *group)
{
    enum status status = STATUS_OK;
    for (int tries = 1; group->count > 0; tries++) {
        bool connected = false, refused = false;
        status = try_once(group, &connected, &refused);
        if (refused)
            keep_accepted(group);
        else if (status == STATUS_OK || !goes_on(group, status, connected, tries))
            break;
    }
    return group->count > 0 ? status : STATUS_OK;
}

static void commit_all(struct refdata_flow *flow, struct refdata_post **posts, size_t count, bool unknown)
{
    struct refdata_post **own = memory_alloc(count * sizeof *own); /* the caller's array stays whole */
    struct group group = {.flow = flow, .posts = own, .count = count, .unknown = unknown};
    memcpy(own, posts, count * sizeof *own);
    for (size_t i = 0; i < count; i++)
        group.deadline_ns =
            posts[i]->deadline_ns > group.deadline_ns ? posts[i]->deadline_ns : group.deadline_ns;
    enum status status = commit(&group);
    if (status == STATUS_DB_ERROR && group.count > 1)
        for (size_t i = 0; i < group.count; i++)
            commit_all(flow, &own[i], 1, group.unknown);
    else if (status != STATUS_OK)
        fail_all(&group);
    else if (!group.is_quiet)
        refdata_commands_wake(flow);
    free(own);
}

void refdata_commit_posts(struct refdata_flow *flow, struct refdata_post **posts, size_t count)
{
    commit_all(flow, posts, count, false);
}
