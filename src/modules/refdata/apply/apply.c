/* A batch of commands through one transaction: what has to be known is read in one round trip, every command is decided
 * here, and all of it is written in another one. What needs more is a snapshot's end, a conflict of chunks, a duplicate,
 * and a command that PostgreSQL refuses. */
#include "modules/refdata/apply/apply.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "modules/refdata/apply/batch.h"
#include "modules/refdata/provider.h"

static const struct db_statement savepoint_sql = DB_STATEMENT(DB_SAVEPOINT_SQL);

#define RETRIES_MAX 3
#define OPEN_BYTES_MAX (256u << 10)

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

void refdata_apply_metrics_register(void)
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
        totals[i] = metric_series_get(&total_family, (struct str[]){str_from(names[i])});
    refdata_audit_metrics_register();
    sizes = metric_series_get(&size_family, NULL);
    seconds = metric_series_get(&seconds_family, NULL);
}

void refdata_apply_count(enum apply_result result)
{
    metric_add(totals[result], 1);
}

/* ---- deciding ---- */

void refdata_batch_next_version(struct batch *batch, struct entry *entry)
{
    struct refdata_command *command = &batch->commands[entry - batch->entries];
    entry->published = true;
    entry->version = ++entry->pair->version;
    entry->previous_event = entry->pair->event;
    entry->pair->event = str_from(command->update.event_id);
    command->decided = true;
    command->outcome.state.decision = REFDATA_COMMITTED;
    command->outcome.state.version = entry->version;
    command->outcome.is_hydrated = entry->pair->is_hydrated;
    command->outcome.makes_version = true;
}

/* Each key once, with its last item. */
static void take_items(struct batch *batch, const struct refdata_update *update, struct entry *entry)
{
    struct refdata_items reader;
    struct refdata_item *items = arena_alloc(batch->arena, (update->item_count + 1) * sizeof *items);
    struct refdata_merge merge;
    size_t count = 0;
    refdata_merge_begin(&merge, update->item_count, batch->arena);
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

/* Deltas wait for each other, so that they can be written as one. */
static void write_deltas(struct batch *batch)
{
    refdata_write_deltas(batch->deltas, batch->delta_count, &batch->writer);
    batch->delta_count = 0;
}

void refdata_batch_before_snapshot(struct batch *batch)
{
    write_deltas(batch);
    refdata_writer_allow(&batch->writer, SNAPSHOT_TIMEOUT_MS);
}

static void decide_command(struct batch *batch, size_t at)
{
    struct refdata_command *command = &batch->commands[at];
    struct entry *entry = &batch->entries[at];
    struct pair *pair = entry->pair;
    const struct refdata_update *update = &command->update;
    const struct revision revision = {update->has_revision, update->source_revision};
    if (command->decided || entry->duplicate)
        return;
    take_items(batch, update, entry);
    if (refdata_update_is_chunk(update)) {
        refdata_assembly_decide(batch, at);
        return;
    }
    if (refdata_revision_is_stale(revision, pair->revision)) {
        refdata_command_fail(command, STATUS_STALE_SOURCE_REVISION, "%s",
                             status_message(STATUS_STALE_SOURCE_REVISION));
        return;
    }
    refdata_revision_raise(&pair->revision, revision);
    if (update->type == REFDATA_SNAPSHOT)
        refdata_batch_before_snapshot(batch);
    refdata_batch_next_version(batch, entry);
    const struct refdata_write change = {
        .dictionary = pair->dictionary,
        .tenant = pair->tenant,
        .snapshot_id = str_from(update->snapshot_id[0] ? update->snapshot_id : update->event_id),
        .version = entry->version,
        .epoch_ms = update->occurred_at_us / 1000,
        .items = entry->items,
        .item_count = entry->item_count};
    if (update->type == REFDATA_SNAPSHOT) {
        refdata_write_snapshot(&change, &batch->writer);
        refdata_assembly_raise_floors(batch, pair, revision);
    } else {
        batch->deltas[batch->delta_count++] = change;
        if (pair->assembling)
            refdata_assembly_record_delta(batch, &change);
    }
}

static enum status write_batch(struct batch *batch, struct error *error)
{
    if (batch->flags & REFDATA_APPLY_ALONE)
        refdata_writer_add(&batch->writer, &savepoint_sql, DB_NO_PARAMS);
    for (size_t i = 0; i < batch->count; i++)
        decide_command(batch, i);
    if (batch->is_expected) { /* the decisions were made without a statement */
        if (refdata_batch_is_one(batch))
            return refdata_batch_record_one(batch, error);
        refdata_expected_ask(batch);
    }
    write_deltas(batch);
    for (size_t i = 0; i < batch->count; i++) {
        const struct entry *entry = &batch->entries[i];
        if (!entry->duplicate || entry->first == i)
            continue;
        batch->commands[i].outcome =
            batch->commands[entry->first].outcome; /* of the same event, in this batch */
        batch->commands[i].decided = false;
    }
    return refdata_batch_record(batch, error);
}

/* ---- one that PostgreSQL refuses ---- */

/* What was known at the savepoint: the locks and what was read stand, what was decided since does not. */
struct before {
    struct entry entry;
    struct pair pair;
    struct assembly assembly;
    size_t assembly_count;
};

static enum status go_back(struct batch *batch, const struct before *before, struct error *error)
{
    struct refdata_command *command = &batch->commands[0];
    batch->entries[0] = before->entry;
    batch->assembly_count = before->assembly_count;
    batch->delta_count = 0;
    if (before->entry.assembly)
        *before->entry.assembly = before->assembly;
    if (before->entry.pair) {
        *before->entry.pair = before->pair;
        command->outcome.state.decision = REFDATA_PENDING;
        command->outcome.makes_version = false;
        command->decided = false;
    }
    batch->writer = (struct refdata_writer){.conn = batch->conn,
                                            .deadline_ns = batch->deadline_ns,
                                            .arena = batch->arena}; /* without the failure */
    return db_rollback_to_savepoint(batch->conn, batch->deadline_ns, error);
}

/* A deadlock is not the command's fault: it is tried again here, its locks given back. Of a command that PostgreSQL refuses only
 * the failure is recorded; a snapshot that cannot be written fails with all its chunks. */
static enum status write_alone(struct batch *batch, struct error *error)
{
    struct refdata_command *command = &batch->commands[0];
    struct before before = {.entry = batch->entries[0], .assembly_count = batch->assembly_count};
    struct error why = {0};
    if (before.entry.pair)
        before.pair = *before.entry.pair;
    if (before.entry.assembly)
        before.assembly = *before.entry.assembly;
    enum status status = write_batch(batch, &why);
    for (unsigned again = 0; status == STATUS_DB_RETRY && again < RETRIES_MAX; again++) {
        status = go_back(batch, &before, &why);
        if (status == STATUS_OK)
            status = write_batch(batch, &why);
    }
    if (status != STATUS_DB_ERROR && !((batch->flags & REFDATA_APPLY_LAST) && status == STATUS_TIMEOUT)) {
        if (status != STATUS_OK && error)
            *error = why;
        return status;
    }
    struct assembly *assembly = batch->entries[0].assembly;
    bool ends = assembly && assembly->ending;
    status = go_back(batch, &before, error);
    if (status != STATUS_OK)
        return status;
    refdata_command_fail(command, STATUS_UPDATE_REFUSED, "%s", why.message);
    if (ends) {
        assembly->state = command->outcome.state;
        assembly->ending = command;
    }
    return refdata_batch_record(batch, error);
}

/* ---- the whole ---- */

enum status refdata_apply_run(struct refdata_database *database, struct db_conn *conn,
                              struct refdata_command *commands, size_t count, unsigned flags,
                              int64_t deadline_ns, struct arena *arena, struct error *error)
{
    int64_t begun_ns = clock_mono_ns();
    struct batch batch = {
        .database = database,
        .catalog = refdata_database_catalog(database),
        .conn = conn,
        .arena = arena,
        .commands = commands,
        .count = count,
        .flags = flags,
        .deadline_ns = deadline_ns,
        .writer = {.conn = conn, .deadline_ns = deadline_ns, .arena = arena},
    };
    bool may_stay_open = true;
    size_t bytes = 0;
    refdata_batch_open(&batch);
    /* Only small deltas of the built-in table hardly ever fail: they may be left to the commit. */
    for (size_t i = 0; i < batch.pair_count; i++)
        may_stay_open &= batch.pairs[i]->dictionary->is_builtin;
    for (size_t i = 0; i < count; i++) {
        bytes += commands[i].update.items.raw.len;
        may_stay_open &= commands[i].update.type == REFDATA_DELTA && bytes <= OPEN_BYTES_MAX;
    }
    if (flags & REFDATA_APPLY_OPEN)
        batch.flags &= may_stay_open ? ~(unsigned)REFDATA_APPLY_ALONE : ~(unsigned)REFDATA_APPLY_OPEN;
    bool is_single = batch.pair_count == 1;
    enum status status = STATUS_OK;
    if (!(flags & REFDATA_APPLY_EXPECTED && batch.flags & REFDATA_APPLY_OPEN && is_single &&
          refdata_expected_take(&batch))) {
        status = refdata_batch_read(&batch, error);
        if (status == STATUS_OK && is_single)
            refdata_expected_found(&batch);
    }
    if (status == STATUS_OK)
        status = batch.flags & REFDATA_APPLY_ALONE ? write_alone(&batch, error) : write_batch(&batch, error);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        enum apply_result result = !commands[i].decided                                      ? APPLY_STAGED
                                   : commands[i].outcome.state.decision == REFDATA_COMMITTED ? APPLY_COMMITTED
                                                                                             : APPLY_FAILED;
        if (batch.entries[i].duplicate)
            result = commands[i].is_dead_letter ? APPLY_RESULTS : APPLY_DUPLICATE;
        commands[i].result = result;
    }
    if (status == STATUS_OK && is_single)
        refdata_expected_note(&batch);
    if (status == STATUS_OK) {
        metric_observe(sizes, (double)count);
        metric_observe(seconds, (double)(clock_mono_ns() - begun_ns) / 1e9);
    }
    refdata_catalog_unref(batch.catalog);
    return status;
}

void refdata_apply_report(struct refdata_database *database, const struct refdata_command *commands,
                          size_t count, bool is_published)
{
    size_t decided = 0;
    for (size_t i = 0; i < count; i++)
        decided += 1 + commands[i].other_count;
    struct refdata_outcome *outcomes = memory_alloc((decided + 1) * sizeof *outcomes);
    bool *waited = memory_zalloc((decided + 1) * sizeof *waited);
    decided = 0;
    for (size_t i = 0; i < count; i++) {
        const struct refdata_outcome *outcome = &commands[i].outcome;
        if (commands[i].result < APPLY_RESULTS)
            refdata_apply_count(commands[i].result);
        if (commands[i].decided && outcome->state.decision == REFDATA_COMMITTED)
            log_debug("update_committed", LOG_CSTR("eventId", outcome->state.event_id),
                      LOG_STR("tenantId", outcome->tenant), LOG_STR("dictCode", outcome->dict_code),
                      LOG_INT("version", outcome->state.version),
                      LOG_STR("source", refdata_source_name(commands[i].update.source)),
                      LOG_TRACE(commands[i].traceparent));
        if (outcome->state.decision != REFDATA_PENDING) {
            waited[decided] = commands[i].waited;
            outcomes[decided] = *outcome;
            outcomes[decided].traceparent = commands[i].traceparent;
            outcomes[decided++].is_published &= is_published;
        }
        for (size_t j = 0; j < commands[i].other_count; j++) {
            waited[decided] = true; /* whether a client waits is not stored */
            outcomes[decided++] = commands[i].others[j];
        }
    }
    if (decided)
        refdata_database_decided(database, outcomes, waited, decided);
    free(outcomes);
    free(waited);
}
