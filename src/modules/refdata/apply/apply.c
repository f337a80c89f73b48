/* A batch of commands through one transaction: what has to be known is read in one round trip, every command is decided
 * here, and all of it is written in another one. What needs more is a snapshot's end, a conflict of chunks, a duplicate,
 * and a command that PostgreSQL refuses. */
#include "modules/refdata/apply/apply.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/apply/batch.h"
#include "modules/refdata/merge.h"

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

/* Each key once, with what the update says of it last. */
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
enum status refdata_batch_write_deltas(struct batch *batch, struct error *error)
{
    static const struct refdata_provider *const providers[] = {&refdata_provider_builtin,
                                                               &refdata_provider_sql};
    struct refdata_write *own = arena_alloc(batch->arena, (batch->delta_count + 1) * sizeof *own);
    enum status status = STATUS_OK;
    for (size_t p = 0; p < 2 && status == STATUS_OK; p++) {
        size_t count = 0;
        for (size_t i = 0; i < batch->delta_count; i++)
            if (batch->deltas[i].dictionary->provider == providers[p])
                own[count++] = batch->deltas[i];
        if (count)
            status = providers[p]->write_deltas(own, count, &batch->writer, error);
    }
    batch->delta_count = 0;
    return status;
}

static enum status decide_delta(struct batch *batch, struct entry *entry, struct error *error)
{
    struct refdata_write *delta = &batch->deltas[batch->delta_count++];
    refdata_batch_next_version(batch, entry);
    *delta = change_of(batch, entry);
    return entry->pair->assembling ? refdata_assembly_record_delta(batch, delta, error) : STATUS_OK;
}

static enum status decide_snapshot(struct batch *batch, struct entry *entry, struct revision revision,
                                   struct error *error)
{
    enum status status = refdata_batch_write_deltas(batch, error);
    if (status == STATUS_OK)
        status = refdata_writer_allow(&batch->writer, SNAPSHOT_TIMEOUT_MS, error);
    refdata_batch_next_version(batch, entry);
    const struct refdata_write change = change_of(batch, entry);
    if (status == STATUS_OK)
        status = entry->pair->dictionary->provider->write_snapshot(&change, &batch->writer, error);
    return status == STATUS_OK ? refdata_assembly_raise_floors(batch, entry->pair, revision, error) : status;
}

static enum status decide(struct batch *batch, size_t at, struct error *error)
{
    struct refdata_command *command = &batch->commands[at];
    struct entry *entry = &batch->entries[at];
    const struct refdata_update *update = &command->update;
    const struct revision revision = {update->has_revision, update->source_revision};
    if (command->decided || entry->duplicate)
        return STATUS_OK;
    take_items(batch, update, entry);
    if (refdata_update_is_chunk(update))
        return refdata_assembly_decide(batch, at, error);
    if (refdata_revision_is_stale(revision, entry->pair->revision)) {
        refdata_command_fail(command, STATUS_STALE_SOURCE_REVISION, "%s",
                             status_message(STATUS_STALE_SOURCE_REVISION));
        return STATUS_OK;
    }
    refdata_revision_raise(&entry->pair->revision, revision);
    return update->type == REFDATA_DELTA ? decide_delta(batch, entry, error)
                                         : decide_snapshot(batch, entry, revision, error);
}

/* A duplicate within the batch shares the first one's fate. */
static void copy_outcomes(struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->entries[i].duplicate && batch->entries[i].first != i) {
            batch->commands[i].outcome = batch->commands[batch->entries[i].first].outcome;
            batch->commands[i].decided = false;
        }
}

static enum status write(struct batch *batch, struct error *error)
{
    enum status status = STATUS_OK;
    if (batch->flags & REFDATA_APPLY_ALONE) {
        struct db_statement savepoint;
        db_statement_init(&savepoint, DB_SAVEPOINT_SQL, 0, NULL);
        status = refdata_writer_add(&batch->writer, &savepoint, NULL, error);
    }
    for (size_t i = 0; i < batch->count && status == STATUS_OK; i++)
        status = decide(batch, i, error);
    if (status == STATUS_OK)
        status = refdata_batch_write_deltas(batch, error);
    copy_outcomes(batch);
    return status == STATUS_OK ? refdata_batch_record(batch, error) : status;
}

/* ---- one that PostgreSQL refuses ---- */

static bool is_refused(const struct batch *batch, enum status status)
{
    return status == STATUS_DB_ERROR || ((batch->flags & REFDATA_APPLY_LAST) && status == STATUS_TIMEOUT);
}

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
    batch->writer = (struct refdata_writer){
        .conn = batch->conn, .deadline_ns = batch->deadline_ns, .arena = batch->arena};
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

/* A deadlock or the like is no fault of the command: it is tried again here, its locks given back. */
static enum status write_alone(struct batch *batch, struct error *error)
{
    struct before before;
    struct error why = {0};
    remember(batch, &before);
    enum status status = write(batch, &why);
    for (unsigned again = 0; status == STATUS_DB_RETRY && again < RETRIES_MAX; again++) {
        status = go_back(batch, &before, &why);
        if (status == STATUS_OK)
            status = write(batch, &why);
    }
    if (is_refused(batch, status))
        return record_refusal(batch, &before, &why, error);
    if (status != STATUS_OK && error)
        *error = why;
    return status;
}

/* ---- the whole ---- */

/* Only small deltas of the built-in table are sure enough of themselves to be left to the commit. */
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

static enum status run(struct batch *batch, struct error *error)
{
    refdata_batch_open(batch);
    if (batch->flags & REFDATA_APPLY_OPEN)
        batch->flags &= may_stay_open(batch) ? ~(unsigned)REFDATA_APPLY_ALONE : ~(unsigned)REFDATA_APPLY_OPEN;
    enum status status = refdata_batch_read(batch, error);
    if (status != STATUS_OK)
        return status;
    return batch->flags & REFDATA_APPLY_ALONE ? write_alone(batch, error) : write(batch, error);
}

static void count_results(const struct batch *batch)
{
    size_t counts[APPLY_RESULTS] = {0};
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_command *command = &batch->commands[i];
        if (batch->entries[i].duplicate)
            counts[APPLY_DUPLICATE] += !command->buried;
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
    enum status status = run(&batch, error);
    if (status == STATUS_OK) {
        count_results(&batch);
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
                      LOG_CSTR("source", commands[i].update.source == REFDATA_KAFKA ? "KAFKA" : "REST"));
}

void refdata_apply_report(struct refdata_flow *flow, const struct refdata_command *commands, size_t count)
{
    size_t told = 0;
    log_committed(commands, count);
    for (size_t i = 0; i < count; i++)
        told += 1 + commands[i].other_count;
    struct refdata_outcome *outcomes = memory_alloc((told + 1) * sizeof *outcomes);
    bool *waited = memory_zalloc((told + 1) * sizeof *waited);
    told = 0;
    for (size_t i = 0; i < count; i++) {
        if (commands[i].outcome.decision != REFDATA_PENDING) {
            waited[told] = commands[i].waited;
            outcomes[told++] = commands[i].outcome;
        }
        for (size_t j = 0; j < commands[i].other_count; j++) {
            waited[told] = true; /* nobody remembers */
            outcomes[told++] = commands[i].others[j];
        }
    }
    if (told)
        refdata_flow_decided(flow, outcomes, waited, told);
    free(outcomes);
    free(waited);
}
