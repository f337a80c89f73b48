/* A batch of commands through one transaction: what has to be known is read in one round trip, every command is decided
 * here, and all of it is written in another one. What needs more is a snapshot's end, a conflict of chunks, a duplicate,
 * and a command that PostgreSQL refuses. */
#include "modules/refdata/apply/apply.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "modules/refdata/apply/batch.h"
#include "modules/refdata/merge.h"

static const struct db_statement savepoint_sql = DB_STATEMENT(DB_SAVEPOINT_SQL);

#define RETRIES_MAX 3
#define OPEN_BYTES_MAX (256u << 10)

/* ---- deciding ---- */

int64_t refdata_batch_next_version(struct batch *batch, struct entry *entry)
{
    struct refdata_command *command = &batch->commands[entry - batch->entries];
    entry->published = true;
    entry->version = ++entry->pair->version;
    entry->previous_event = entry->pair->event;
    entry->pair->event = str_from(command->update.event_id);
    command->decided = true;
    command->outcome.decision = REFDATA_COMMITTED;
    command->outcome.version = entry->version;
    command->outcome.is_hydrated = entry->pair->is_hydrated;
    command->outcome.makes_version = true;
    return entry->version;
}

/* Each key once, with its last item. */
static void take_items(struct batch *batch, const struct refdata_update *update, struct entry *entry)
{
    struct refdata_items reader;
    struct refdata_item *items = arena_alloc(batch->arena, (update->item_count + 1) * sizeof *items);
    struct refdata_merge merge;
    size_t count = 0;
    refdata_merge_begin(&merge, batch->arena);
    refdata_items_begin(&reader, update, batch->arena);
    for (; count < update->item_count && refdata_items_next(&reader, &items[count]); count++)
        refdata_merge_put(&merge, NULL, &items[count]);
    entry->item_count = merge.count;
    entry->items = items;
    if (merge.count == count)
        return;
    entry->items = arena_alloc(batch->arena, merge.count * sizeof *items);
    for (size_t i = 0; i < merge.count; i++)
        entry->items[i] = *merge.at[i].item;
}

static struct refdata_write change_of(const struct batch *batch, const struct entry *entry)
{
    const struct refdata_update *update = &batch->commands[entry - batch->entries].update;
    return (struct refdata_write){
        .dictionary = entry->pair->dictionary,
        .tenant = entry->pair->tenant,
        .snapshot_id = str_from(update->snapshot_id[0] ? update->snapshot_id : update->event_id),
        .version = entry->version,
        .epoch_ms = update->occurred_at_us / 1000,
        .items = entry->items,
        .item_count = entry->item_count};
}

/* Deltas wait for each other, so that those of one provider can be written as one. */
void refdata_batch_write_deltas(struct batch *batch)
{
    static const struct refdata_provider *const providers[] = {&refdata_provider_builtin,
                                                               &refdata_provider_sql};
    struct refdata_write *own = arena_alloc(batch->arena, (batch->delta_count + 1) * sizeof *own);
    for (size_t p = 0; p < 2; p++) {
        size_t count = 0;
        for (size_t i = 0; i < batch->delta_count; i++)
            if (batch->deltas[i].dictionary->provider == providers[p])
                own[count++] = batch->deltas[i];
        if (count)
            providers[p]->write_deltas(own, count, &batch->writer);
    }
    batch->delta_count = 0;
}

static void decide_delta(struct batch *batch, struct entry *entry)
{
    struct refdata_write *delta = &batch->deltas[batch->delta_count++];
    refdata_batch_next_version(batch, entry);
    *delta = change_of(batch, entry);
    if (entry->pair->assembling)
        refdata_assembly_record_delta(batch, delta);
}

static void decide_snapshot(struct batch *batch, struct entry *entry, struct revision revision)
{
    refdata_batch_write_deltas(batch);
    refdata_writer_allow(&batch->writer, SNAPSHOT_TIMEOUT_MS);
    refdata_batch_next_version(batch, entry);
    const struct refdata_write change = change_of(batch, entry);
    entry->pair->dictionary->provider->write_snapshot(&change, &batch->writer);
    refdata_assembly_raise_floors(batch, entry->pair, revision);
}

static void decide(struct batch *batch, size_t at)
{
    struct refdata_command *command = &batch->commands[at];
    struct entry *entry = &batch->entries[at];
    const struct refdata_update *update = &command->update;
    const struct revision revision = {update->has_revision, update->source_revision};
    if (command->decided || entry->duplicate)
        return;
    take_items(batch, update, entry);
    if (refdata_update_is_chunk(update)) {
        refdata_assembly_decide(batch, at);
    } else if (refdata_revision_is_stale(revision, entry->pair->revision)) {
        refdata_command_fail(command, STATUS_STALE_SOURCE_REVISION, "%s",
                             status_message(STATUS_STALE_SOURCE_REVISION));
    } else {
        refdata_revision_raise(&entry->pair->revision, revision);
        if (update->type == REFDATA_DELTA)
            decide_delta(batch, entry);
        else
            decide_snapshot(batch, entry, revision);
    }
}

/* A duplicate within the batch has the first one's outcome. */
static void copy_outcomes(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->entries[i].duplicate && batch->entries[i].first != i) {
            batch->commands[i].outcome = batch->commands[batch->entries[i].first].outcome;
            batch->commands[i].decided = false;
        }
}

static enum status write_batch(struct batch *batch, struct error *error)
{
    if (batch->flags & REFDATA_APPLY_ALONE)
        refdata_writer_add(&batch->writer, &savepoint_sql, DB_NO_PARAMS);
    for (size_t i = 0; i < batch->count; i++)
        decide(batch, i);
    refdata_batch_write_deltas(batch);
    copy_outcomes(batch);
    return refdata_batch_record(batch, error);
}

/* ---- one that PostgreSQL refuses ---- */

/* Back to where the savepoint was set: the locks and what was read stand, what was decided since does not. */
struct before {
    struct entry entry;
    struct pair pair;
    struct assembly assembly;
    size_t assembly_count;
};

static void remember(const struct batch *batch, struct before *before)
{
    before->entry = batch->entries[0];
    before->assembly_count = batch->assembly_count;
    if (before->entry.pair)
        before->pair = *before->entry.pair;
    if (before->entry.assembly)
        before->assembly = *before->entry.assembly;
}

static enum status go_back(struct batch *batch, const struct before *before, struct error *error)
{
    struct refdata_command *command = &batch->commands[0];
    batch->entries[0] = before->entry;
    batch->assembly_count = before->assembly_count;
    batch->delta_count = 0;
    if (before->entry.pair)
        *before->entry.pair = before->pair;
    if (before->entry.assembly)
        *before->entry.assembly = before->assembly;
    if (before->entry.pair) {
        command->outcome.decision = REFDATA_PENDING;
        command->outcome.makes_version = false;
        command->decided = false;
    }
    batch->writer = (struct refdata_writer){.conn = batch->conn,
                                            .deadline_ns = batch->deadline_ns,
                                            .arena = batch->arena}; /* without the failure */
    return db_rollback_to_savepoint(batch->conn, batch->deadline_ns, error);
}

/* Nothing of it stands but its failure; a snapshot that cannot be written fails with all its chunks. */
static enum status record_refusal(struct batch *batch, const struct before *before, const struct error *why,
                                  struct error *error)
{
    struct refdata_command *command = &batch->commands[0];
    struct assembly *assembly = batch->entries[0].assembly;
    bool ends = assembly && assembly->ending;
    enum status status = go_back(batch, before, error);
    if (status != STATUS_OK)
        return status;
    refdata_command_fail(command, STATUS_UPDATE_REFUSED, "%s", why->message);
    if (ends) {
        assembly->decision = REFDATA_FAILED;
        assembly->failure = STATUS_UPDATE_REFUSED;
        assembly->reason = str_from(command->outcome.reason);
        assembly->ending = command;
    }
    return refdata_batch_record(batch, error);
}

/* A deadlock is not the command's fault: it is tried again here, its locks given back. */
static enum status write_alone(struct batch *batch, struct error *error)
{
    struct before before;
    struct error why = {0};
    remember(batch, &before);
    enum status status = write_batch(batch, &why);
    for (unsigned again = 0; status == STATUS_DB_RETRY && again < RETRIES_MAX; again++) {
        status = go_back(batch, &before, &why);
        if (status == STATUS_OK)
            status = write_batch(batch, &why);
    }
    if (status == STATUS_DB_ERROR || ((batch->flags & REFDATA_APPLY_LAST) && status == STATUS_TIMEOUT))
        return record_refusal(batch, &before, &why, error);
    if (status != STATUS_OK && error)
        *error = why;
    return status;
}

/* ---- the whole ---- */

/* Only small deltas of the built-in table hardly ever fail: they may be left to the commit. */
static bool may_stay_open(const struct batch *batch)
{
    size_t bytes = 0;
    for (size_t i = 0; i < batch->pair_count; i++)
        if (batch->pairs[i]->dictionary->provider != &refdata_provider_builtin)
            return false;
    for (size_t i = 0; i < batch->count; i++) {
        bytes += batch->commands[i].update.items.raw.len;
        if (batch->commands[i].update.type != REFDATA_DELTA || bytes > OPEN_BYTES_MAX)
            return false;
    }
    return true;
}

static enum status run_batch(struct batch *batch, struct error *error)
{
    refdata_batch_open(batch);
    if (batch->flags & REFDATA_APPLY_OPEN)
        batch->flags &= may_stay_open(batch) ? ~(unsigned)REFDATA_APPLY_ALONE : ~(unsigned)REFDATA_APPLY_OPEN;
    enum status status = refdata_batch_read(batch, error);
    if (status != STATUS_OK)
        return status;
    return batch->flags & REFDATA_APPLY_ALONE ? write_alone(batch, error) : write_batch(batch, error);
}

static void count_batch(const struct batch *batch)
{
    size_t counts[APPLY_RESULTS] = {0};
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_command *command = &batch->commands[i];
        if (batch->entries[i].duplicate)
            counts[APPLY_DUPLICATE] += !command->is_dead_letter;
        else if (!command->decided)
            counts[APPLY_STAGED]++;
        else
            counts[command->outcome.decision == REFDATA_COMMITTED ? APPLY_COMMITTED : APPLY_FAILED]++;
    }
    for (size_t i = 0; i < APPLY_RESULTS; i++)
        if (counts[i])
            refdata_apply_metrics_count((enum apply_result)i, counts[i]);
}

enum status refdata_apply_run(struct refdata_flow *flow, struct db_conn *conn,
                              struct refdata_command *commands, size_t count, unsigned flags,
                              int64_t deadline_ns, struct arena *arena, struct error *error)
{
    int64_t begun_ns = clock_mono_ns();
    struct batch batch = {
        .flow = flow,
        .catalog = refdata_flow_catalog(flow),
        .conn = conn,
        .arena = arena,
        .commands = commands,
        .count = count,
        .flags = flags,
        .deadline_ns = deadline_ns,
        .writer = {.conn = conn, .deadline_ns = deadline_ns, .arena = arena},
    };
    enum status status = run_batch(&batch, error);
    if (status == STATUS_OK) {
        count_batch(&batch);
        refdata_apply_metrics_run(count, begun_ns);
    }
    refdata_catalog_unref(batch.catalog);
    return status;
}

static void log_committed(const struct refdata_command *commands, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (commands[i].decided && commands[i].outcome.decision == REFDATA_COMMITTED)
            log_debug("update_committed", LOG_STR("eventId", commands[i].outcome.event_id),
                      LOG_STR("tenantId", commands[i].outcome.tenant),
                      LOG_STR("dictCode", commands[i].outcome.dict_code),
                      LOG_INT("version", commands[i].outcome.version),
                      LOG_STR("source", refdata_source_name(commands[i].update.source)));
}

void refdata_apply_report(struct refdata_flow *flow, const struct refdata_command *commands, size_t count)
{
    size_t decided = 0;
    log_committed(commands, count);
    for (size_t i = 0; i < count; i++)
        decided += 1 + commands[i].other_count;
    struct refdata_outcome *outcomes = memory_alloc((decided + 1) * sizeof *outcomes);
    bool *waited = memory_zalloc((decided + 1) * sizeof *waited);
    decided = 0;
    for (size_t i = 0; i < count; i++) {
        if (commands[i].outcome.decision != REFDATA_PENDING) {
            waited[decided] = commands[i].waited;
            outcomes[decided++] = commands[i].outcome;
        }
        for (size_t j = 0; j < commands[i].other_count; j++) {
            waited[decided] = true; /* whether a client waits is not stored */
            outcomes[decided++] = commands[i].others[j];
        }
    }
    if (decided)
        refdata_flow_decided(flow, outcomes, waited, decided);
    free(outcomes);
    free(waited);
}

/* ---- metrics ---- */

static const double batch_buckets[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000, 0};

static struct metric_family total_family = {
    .name = "refdata_apply_total",
    .help = "Commands by result: committed, failed, staged (a chunk), duplicate, unreadable.",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};
static struct metric_family size_family = {.name = "refdata_apply_batch_size",
                                           .help = "Commands in one transaction.",
                                           .type = METRIC_HISTOGRAM,
                                           .buckets = batch_buckets};
static struct metric_family seconds_family = {
    .name = "refdata_apply_seconds",
    .help = "Time from the first statement of a batch to its commit, in seconds.",
    .type = METRIC_HISTOGRAM};

static struct metric_series *totals[APPLY_RESULTS], *sizes, *seconds;

static void get_metric_series(void)
{
    static const char *const names[APPLY_RESULTS] = {[APPLY_COMMITTED] = "committed",
                                                     [APPLY_FAILED] = "failed",
                                                     [APPLY_STAGED] = "staged",
                                                     [APPLY_DUPLICATE] = "duplicate",
                                                     [APPLY_UNREADABLE] = "unreadable"};
    metrics_register(&total_family);
    metrics_register(&size_family);
    metrics_register(&seconds_family);
    for (size_t i = 0; i < APPLY_RESULTS; i++)
        totals[i] = metric_series_get(&total_family, &(struct str){names[i], strlen(names[i])});
    sizes = metric_series_get(&size_family, NULL);
    seconds = metric_series_get(&seconds_family, NULL);
}

void refdata_apply_metrics_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, get_metric_series);
}

void refdata_apply_metrics_count(enum apply_result result, size_t count)
{
    metric_add(totals[result], count);
}

void refdata_apply_metrics_run(size_t commands, int64_t begun_ns)
{
    metric_observe(sizes, (double)commands);
    metric_observe(seconds, (double)(clock_mono_ns() - begun_ns) / 1e9);
}
