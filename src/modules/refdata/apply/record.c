/* What is written of every decision, for a whole batch at once: the versions, the outbox, the statuses. */
#include "modules/refdata/apply/batch.h"

#include "base/failpoint.h"

/* The time of the change, from which freshness is measured: as late as can be. */
#define VERSIONS(rows)                                                             \
    "update refdata.dictionary_meta m set version = u.version::bigint,"            \
    "  last_source_revision = u.revision::bigint, updated_at = clock_timestamp()," \
    "  last_event_id = u.e::uuid"                                                  \
    " from " rows " as u (t, d, version, revision, e)"                             \
    " where m.tenant_id = u.t and m.dict_code = u.d"
static const struct refdata_rows_sql versions_sql = REFDATA_ROWS_SQL(VERSIONS, "$1, $2, $3, $4, $5");
/* Ids ascend in the order of the rows, hence within a pair with its versions. A version that was set back is published again. */
#define EVENTS(rows, published)                                                                                    \
    "insert into refdata.outbox_event (tenant_id, event_id, dict_code, version, payload, keys, traceparent,"       \
    "  previous_event_id, published, published_at)"                                                                \
    " select t, e::uuid, d, v::bigint, jsonb_build_object('eventId', e, 'tenantId', t, 'dictCode', d,"             \
    "   'version', v::bigint, 'committedAt',"                                                                      \
    "   to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')), keys::text[], trace," \
    "   previous::uuid, " published ", case when " published " then now() end"                                     \
    " from " rows " as u (t, e, d, v, keys, trace, previous, at) order by at"                                      \
    " on conflict (tenant_id, dict_code, version) do update set id = excluded.id, event_id = excluded.event_id,"   \
    "   payload = excluded.payload, keys = excluded.keys, traceparent = excluded.traceparent,"                     \
    "   previous_event_id = excluded.previous_event_id, created_at = excluded.created_at,"                         \
    "   published = excluded.published, published_at = excluded.published_at, failed_at = null,"                   \
    "   attempt_count = 0, claim_count = 0, claim_id = null, locked_by = null, locked_until = null,"               \
    "   next_attempt_at = null, last_error = null"
#define OUTBOX(rows) EVENTS(rows, "false")
static const struct refdata_rows_sql outbox_sql = REFDATA_ORDERED_SQL(OUTBOX, "$1, $2, $3, $4, $5, $6, $7");
/* The same for the versions of one pair, $8 and $9, which are published too (relay.c): $10 the partition of the topic, whose row is
 * locked to the end of the transaction, $11 their number. They are left to a relay while earlier ones of the pair wait for it, and where
 * the partition is locked: commits do not wait for one another's disk. For the same reason no notice goes with the commit: the caller
 * wakes the relay. */
#define PARTITION "topic = '" REFDATA_INVALIDATIONS "' and partition = $10"
#define IS_NEXT "exists (select from next)"
#define MADE(rows) " made as (" EVENTS(rows, IS_NEXT) " returning id, event_id, traceparent, payload),"
#define PUBLISH_MADE(made)                                                                          \
    "with next as materialized ("                                                                   \
    "   select from platform.bus_partition where " PARTITION                                        \
    "     and not exists (select from refdata.outbox_event where tenant_id = $8 and dict_code = $9" \
    "                     and not published and failed_at is null) for update skip locked)," made   \
    " slot as ("                                                                                    \
    "   update platform.bus_partition set next_offset = next_offset + $11"                          \
    "    where " PARTITION " and " IS_NEXT " returning next_offset - $11 as base),"                 \
    " sent as ("                                                                                    \
    "   insert into platform.bus_message (topic, partition, message_offset, key, headers, payload)" \
    "   select '" REFDATA_INVALIDATIONS "', $10, base + row_number() over (order by id) - 1,"       \
    "          convert_to($8 || ':' || $9, 'UTF8'),"                                                \
    "          array['" BUS_HEADER_EVENT_ID "', event_id::text] ||"                                 \
    "            case when coalesce(traceparent, '') = '' then '{}'"                                \
    "                 else array['" BUS_HEADER_TRACEPARENT "', traceparent] end,"                   \
    "          convert_to(payload::text, 'UTF8')"                                                   \
    "   from slot, made)"                                                                           \
    " select " IS_NEXT
#define PUBLISH(rows) PUBLISH_MADE(MADE(rows))
static const struct refdata_rows_sql publish_sql = REFDATA_ORDERED_SQL(PUBLISH, "$1, $2, $3, $4, $5, $6, $7");
/* For hydration, where some consumer asked for an item of the dictionary (H4). */
enum { CHANGE_KEYS_MAX = 1000 }; /* with more, what consumers hold is looked up instead */
#define CHANGES(rows)                                              \
    "insert into refdata.item_change (tenant_id, dict_code, keys)" \
    " select t, d, keys::text[] from " rows " as u (t, d, keys)"
static const struct refdata_rows_sql changes_sql = REFDATA_ROWS_SQL(CHANGES, "$1, $2, $3");
#define STATUSES(rows)                                                                              \
    "update refdata.update_request r set status = u.status, committed_version = u.version::bigint," \
    "  error_code = u.code, error_message = u.message, updated_at = clock_timestamp()"              \
    " from " rows " as u (t, e, status, version, code, message)"                                    \
    " where r.tenant_id = u.t and r.event_id = u.e::uuid and r.status = 'PENDING'"
static const struct refdata_rows_sql statuses_sql = REFDATA_ROWS_SQL(STATUSES, "$1, $2, $3, $4, $5, $6");

/* Fails where such an event is there already. */
#define INSERT(rows)                                                                                  \
    "insert into refdata.update_request (tenant_id, event_id, status, committed_version, error_code," \
    "  error_message, dict_code, source, content_hash, requested_by)"                                 \
    " select t, e::uuid, status, version::bigint, code, message, d, source, hash, requester"          \
    " from " rows "  as u (t, e, status, version, code, message, d, source, hash, requester)"
static const struct refdata_rows_sql insert_sql =
    REFDATA_ROWS_SQL(INSERT, "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10");

/* A text[] as an element, as text: PostgreSQL has no arrays of arrays of different lengths. */
static struct str keys_of(const struct entry *entry, struct arena *arena)
{
    struct buf keys = {0};
    for (size_t i = 0; i < entry->item_count; i++)
        db_array_put(&keys, entry->items[i].key);
    struct str text = arena_str(arena, db_array_end(&keys));
    buf_deinit(&keys);
    return text;
}

/* What was allowed to take long has its own deadline. */
static bool may_be_left(const struct batch *batch)
{
    return batch->flags & REFDATA_APPLY_OPEN && batch->writer.deadline_ns == batch->deadline_ns;
}

/* Versions are published where the commit follows at once: the lock of the partition is held no longer than that. */
static bool may_be_published(const struct batch *batch)
{
    return batch->pair_count == 1 && may_be_left(batch) &&
           refdata_relay_publishes_in_commits(batch->database);
}

static struct db_param partition_of(const struct batch *batch)
{
    return db_int(
        refdata_buses_invalidation_partition(batch->pairs[0]->tenant, batch->pairs[0]->code, batch->arena));
}

/* The last statement tells whether the versions are published. */
static void ask_published(struct batch *batch)
{
    db_pipeline_ask(batch->conn);
    for (size_t i = 0; i < batch->count; i++)
        batch->commands[i].outcome.is_published = batch->entries[i].published;
}

static void write_outbox(struct batch *batch, struct refdata_columns *outbox)
{
    enum { COLUMNS = 7 };
    const struct pair *pair = batch->pairs[0];
    struct db_param params[REFDATA_COLUMNS_MAX + 1];
    if (!outbox->rows || !may_be_published(batch)) {
        refdata_columns_write(outbox, &outbox_sql, &batch->writer);
        return;
    }
    const struct db_statement *statement = refdata_columns_bind(outbox, &publish_sql, params);
    params[COLUMNS] = db_text(pair->tenant);
    params[COLUMNS + 1] = db_text(pair->code);
    params[COLUMNS + 2] = partition_of(batch);
    params[COLUMNS + 3] = db_i64((int64_t)outbox->rows);
    params[COLUMNS + 4] = DB_END;
    refdata_writer_add(&batch->writer, statement, params);
    ask_published(batch);
    refdata_columns_free(outbox);
}

/* Of the commands that made a version: a row for the outbox, and one for hydration. */
static void write_published(struct batch *batch)
{
    struct refdata_columns outbox, changes;
    refdata_columns_begin(&outbox, 7, batch->arena);
    refdata_columns_begin(&changes, 3, batch->arena);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *update = &batch->commands[i].update;
        const struct entry *entry = &batch->entries[i];
        bool is_delta = update->type == REFDATA_DELTA;
        if (!entry->published)
            continue;
        refdata_columns_add(&outbox, REFDATA_ROW(update->tenant, str_from(update->event_id),
                                                 update->dict_code, REFDATA_I64(batch->arena, entry->version),
                                                 is_delta ? keys_of(entry, batch->arena) : STR_NONE,
                                                 batch->commands[i].traceparent, entry->previous_event));
        if (!entry->pair->is_hydrated)
            continue;
        bool names_keys = is_delta && entry->item_count <= CHANGE_KEYS_MAX;
        refdata_columns_add(&changes, REFDATA_ROW(update->tenant, update->dict_code,
                                                  names_keys ? keys_of(entry, batch->arena) : STR_NONE));
    }
    write_outbox(batch, &outbox);
    refdata_columns_write(&changes, &changes_sql, &batch->writer);
}

/* Of rows that are there, or with the flag INSERTS of new ones. */
static void write_statuses(struct batch *batch)
{
    bool inserts = batch->flags & REFDATA_APPLY_INSERTS;
    struct refdata_columns columns;
    refdata_columns_begin(&columns, inserts ? 10 : 6, batch->arena);
    for (size_t i = 0; i < batch->count; i++) {
        const struct refdata_update *update = &batch->commands[i].update;
        const struct refdata_state *state = &batch->commands[i].outcome.state;
        bool is_failed = state->decision == REFDATA_FAILED;
        if (!batch->commands[i].decided)
            continue;
        bool is_committed = state->decision == REFDATA_COMMITTED;
        refdata_columns_add(&columns,
                            REFDATA_ROW(update->tenant, str_from(state->event_id),
                                        str_from(refdata_decision_name(state->decision)),
                                        is_committed ? REFDATA_I64(batch->arena, state->version) : STR_NONE,
                                        is_failed ? str_from(state->code) : STR_NONE,
                                        is_failed ? str_from(state->reason) : STR_NONE,
                                        /* of an insert: */
                                        update->dict_code, refdata_source_name(update->source),
                                        inserts ? refdata_acceptance_hash(update, batch->arena) : STR_NONE,
                                        batch->commands[i].requested_by));
    }
    refdata_columns_write(&columns, inserts ? &insert_sql : &statuses_sql, &batch->writer);
}

enum status refdata_batch_record(struct batch *batch, struct error *error)
{
    struct refdata_columns versions;
    refdata_assembly_write(batch);
    write_statuses(batch);
    FAILPOINT("apply.before_version");
    write_published(batch);
    refdata_columns_begin(&versions, 5, batch->arena);
    for (size_t i = 0; i < batch->pair_count; i++) {
        const struct pair *pair = batch->pairs[i];
        if (pair->version == pair->locked_version)
            continue;
        refdata_columns_add(
            &versions,
            REFDATA_ROW(pair->tenant, pair->code, REFDATA_I64(batch->arena, pair->version),
                        pair->revision.given ? REFDATA_I64(batch->arena, pair->revision.value) : STR_NONE,
                        pair->event));
    }
    refdata_columns_write(&versions, &versions_sql, &batch->writer);
    return may_be_left(batch) ? refdata_writer_leave(&batch->writer, error)
                              : refdata_writer_wait(&batch->writer, error);
}

/* ---- one update of one item ---- */

static const struct db_statement one_sql =
    DB_STATEMENT("select refdata.apply_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)");

bool refdata_batch_is_one(const struct batch *batch)
{
    return batch->is_expected && batch->count == 1 && batch->entries[0].published &&
           batch->entries[0].item_count == 1 && may_be_left(batch) &&
           !FAILPOINT_IS_ARMED("apply.before_version");
}

enum status refdata_batch_record_one(struct batch *batch, struct error *error)
{
    const struct refdata_command *command = &batch->commands[0];
    const struct refdata_update *update = &command->update;
    const struct pair *pair = batch->pairs[0];
    const struct refdata_item *item = &batch->entries[0].items[0];
    bool inserts = batch->flags & REFDATA_APPLY_INSERTS, is_published = may_be_published(batch);
    refdata_writer_add(&batch->writer, &one_sql,
                       DB_PARAMS(db_text(pair->tenant), db_text(pair->code), db_i64(pair->locked_version),
                                 db_uuid(pair->locked_event), refdata_revision_param(pair->locked_revision),
                                 refdata_revision_param(pair->revision), db_uuid(pair->event),
                                 db_text(refdata_source_name(update->source)),
                                 db_text(inserts ? refdata_acceptance_hash(update, batch->arena) : STR_NONE),
                                 db_text(command->requested_by), db_text(command->traceparent),
                                 db_text(item->key), db_jsonb(item->is_delete ? STR_NONE : item->payload),
                                 is_published ? partition_of(batch) : db_null(DB_INT)));
    if (is_published)
        ask_published(batch);
    return refdata_writer_leave(&batch->writer, error);
}
