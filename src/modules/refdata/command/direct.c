/* The short way: where this process applies too, nothing is queued before them, and they are small deltas, updates are applied
 * in the very transaction that accepts them. One commit instead of two, and nobody has to be woken in between.
 *
 * The order holds: whoever was answered before is either applied, or queued and then this way is not taken. */
#include "modules/refdata/command/direct.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/failpoint.h"

enum { BYTES_MAX = 256 << 10 };
#define LOCK_MS 300
#define STRINGIFY_(number) #number
#define STRINGIFY(number) STRINGIFY_(number)

static bool is_small(struct refdata_post *const *posts, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += posts[i]->bytes;
        /* What a snapshot replaces may be large, however small it is itself: its SQL must not hold up other posts. */
        if (posts[i]->update.type != REFDATA_DELTA || bytes > BYTES_MAX)
            return false;
    }
    return true;
}

static int compare(const void *a, const void *b)
{
    unsigned left = *(const unsigned *)a, right = *(const unsigned *)b;
    return (left > right) - (left < right);
}

/* Each once. */
static size_t list_partitions(const struct refdata_flow *flow, struct refdata_post *const *posts,
                              size_t count, unsigned *partitions)
{
    unsigned total = (unsigned)kernel_bus(flow->refdata->kernel)->partitions;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        char key[2 * 65 + 1];
        int len = snprintf(key, sizeof key, "%s:%.*s", posts[i]->tenant, STR_ARG(posts[i]->update.dict_code));
        partitions[i] = bus_partition_of(str_of(key, (size_t)len), total);
    }
    qsort(partitions, count, sizeof *partitions, compare);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || partitions[kept - 1] != partitions[i])
            partitions[kept++] = partitions[i];
    return kept;
}

void refdata_direct_consider(struct refdata_owning *owning, struct refdata_flow *flow,
                             struct refdata_post *const *posts, size_t count, struct arena *arena)
{
    *owning = (struct refdata_owning){.bus = flow->buses.commands};
    if (!flow->apply || !is_small(posts, count) ||
        !bus_own_is_possible(flow->buses.commands, STR(REFDATA_COMMANDS)))
        return;
    owning->partitions = arena_alloc(arena, count * sizeof *owning->partitions);
    owning->count = list_partitions(flow, posts, count, owning->partitions);
}

static void take_outcome(struct refdata_post *post, const struct refdata_command *command)
{
    const struct refdata_outcome *outcome = &command->outcome;
    post->state.decision = outcome->decision;
    post->state.version = outcome->version;
    if (outcome->decision != REFDATA_FAILED)
        return;
    snprintf(post->state.code, sizeof post->state.code, "%s", status_code(outcome->failure));
    memcpy(post->state.reason, outcome->reason, sizeof post->state.reason);
}

static size_t list_commands(struct refdata_post *const *posts, size_t count, struct refdata_command *commands,
                            struct refdata_post **owners)
{
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        if (!posts[i]->is_new)
            continue;
        owners[taken] = posts[i];
        commands[taken++] = (struct refdata_command){
            .update = posts[i]->update,
            .requested_by = posts[i]->subject.len ? posts[i]->subject : STR_NONE,
            .traceparent =
                posts[i]->traceparent, /* nobody waits elsewhere: until this commit it was not there */
        };
    }
    return taken;
}

enum status refdata_direct_apply(struct refdata_direct *direct, struct refdata_flow *flow,
                                 struct db_conn *conn, struct refdata_post *const *posts, size_t count,
                                 unsigned flags, int64_t deadline_ns, struct arena *arena,
                                 struct error *error)
{
    struct refdata_post **owners = arena_alloc(arena, count * sizeof *owners);
    direct->commands = arena_alloc(arena, count * sizeof *direct->commands);
    direct->count = list_commands(posts, count, direct->commands, owners);
    if (direct->count == 0)
        return STATUS_OK;
    enum status status =
        refdata_apply_run(flow, conn, direct->commands, direct->count, flags, deadline_ns, arena, error);
    for (size_t i = 0; status == STATUS_OK && i < direct->count; i++)
        take_outcome(owners[i], &direct->commands[i]);
    return status;
}

enum status refdata_direct_add_limit(struct db_conn *conn, struct error *error)
{
    struct db_statement statement;
    db_statement_init(&statement, "select set_config('lock_timeout', '" STRINGIFY(LOCK_MS) "', true)", 0,
                      NULL);
    return db_pipeline_add(conn, &statement, NULL, error);
}

enum status refdata_direct_commit(const struct refdata_direct *direct, struct refdata_flow *flow,
                                  struct db_conn *conn, uint64_t mark, int64_t deadline_ns,
                                  struct error *error)
{
    enum status status =
        bus_own_commit(flow->buses.commands, conn, STR(REFDATA_COMMANDS), mark, deadline_ns, error);
    FAILPOINT("command.after_direct_commit");
    if (status == STATUS_OK)
        refdata_apply_report(flow, direct->commands, direct->count);
    return status;
}
