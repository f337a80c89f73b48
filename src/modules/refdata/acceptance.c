/* Accepting updates: checks before the database, the call of refdata.accept_updates(), its results, and the states of updates. */
#include "modules/refdata/acceptance.h"

#include <stdio.h>

#include "auth/digest.h"
#include "base/hex.h"
#include "modules/refdata/writer.h"

enum status refdata_acceptance_find(const struct refdata_catalog *catalog, struct str code,
                                    struct refdata_dictionary **dictionary, struct error *error)
{
    struct refdata_dictionary *found = refdata_catalog_find(catalog, code);
    if (!found)
        return error_set(error, STATUS_UNKNOWN_DICTIONARY, "there is no dictionary called %.*s",
                         STR_ARG(code));
    if (atomic_load(&found->state) == REFDATA_DISABLED)
        return error_set(error, STATUS_DICTIONARY_UNAVAILABLE, "PostgreSQL refuses its SQL");
    *dictionary = found;
    return STATUS_OK;
}

/* The built-in table takes everything. An empty DELTA writes no item, but a dictionary without any SQL takes no updates
 * at all. */
enum status refdata_acceptance_check(const struct refdata_dictionary *dictionary,
                                     const struct refdata_update *update, struct error *error)
{
    const struct refdata_sql *sql = dictionary->sql;
    enum refdata_field missing = REFDATA_FIELDS;
    if (dictionary->is_builtin)
        return STATUS_OK;
    if (update->type == REFDATA_SNAPSHOT) {
        if (!sql[REFDATA_SNAPSHOT_STAGE].given && !sql[REFDATA_SNAPSHOT_REPLACE].given)
            missing = REFDATA_SNAPSHOT_REPLACE;
    } else if (!sql[REFDATA_UPSERT].given && (update->has_upsert || !sql[REFDATA_DELETE].given)) {
        missing = REFDATA_UPSERT;
    } else if (update->has_delete && !sql[REFDATA_DELETE].given) {
        missing = REFDATA_DELETE;
    }
    if (missing == REFDATA_FIELDS)
        return STATUS_OK;
    return error_set(error, STATUS_DICTIONARY_READ_ONLY, "the dictionary %.*s has no %s",
                     STR_ARG(dictionary->code), refdata_field_name(missing));
}

/* Chunks may share an event, so what its row remembers of them is the snapshot; each chunk's own content is kept apart. */
struct str refdata_acceptance_hash(const struct refdata_update *update, struct arena *arena)
{
    if (refdata_update_is_chunk(update))
        return arena_printf(arena, "snapshot %s/%d", update->snapshot_id, (int)update->chunks_total);
    char hex[HASH128_HEX_BYTES];
    hash128_hex(update->content, hex);
    return arena_str(arena, str_from(hex));
}

bool refdata_acceptance_is_of(const struct refdata_update *command, struct str hash, struct arena *arena)
{
    char untimed[HASH128_HEX_BYTES];
    hash128_hex(refdata_update_hash(command, false, arena), untimed);
    return str_eq(hash, refdata_acceptance_hash(command, arena)) || str_eq(hash, str_from(untimed));
}

/* ---- refdata.accept_updates() ---- */

static const struct db_statement accept_sql = DB_STATEMENT(
    "select place - 1, verdict, key_is_known, chunk_is_new, event, status, committed_version, error_code, error_message"
    " from refdata.accept_updates($1, $2, $3::uuid[], $4, $5, $6, $7::uuid[], $8::integer[], $9, $10, $11, $12,"
    " $13::bigint[], $14, $15)");

/* Its parameters: the columns of the updates are between the source and the time that keys are kept. */
enum {
    TENANTS,
    EVENTS,
    CODES,
    HASHES,
    REQUESTERS,
    SNAPSHOTS,
    INDEXES,
    CHUNKS,
    SUBJECTS,
    KEYS,
    BODIES,
    LOCKS,
    COLUMNS
};

/* What the function comes to for one update that is new, without a key and not a chunk. Fails where it is not new, too. */
static const struct db_statement accept_new_sql =
    DB_STATEMENT("insert into refdata.update_request"
                 " (tenant_id, event_id, dict_code, status, source, content_hash, requested_by)"
                 " values ($1, $2, $3, 'PENDING', $4, $5, $6)");

void refdata_acceptance_add(struct db_conn *conn, struct refdata_acceptance *const *updates, size_t count,
                            int64_t key_keep_ms, bool all_new, struct arena *arena)
{
    const struct refdata_acceptance *first = updates[0];
    if (all_new && count == 1 && !first->key.ptr && !refdata_update_is_chunk(first->update)) {
        db_pipeline_add(
            conn, &accept_new_sql,
            DB_PARAMS(db_text(first->update->tenant), db_uuid(str_from(first->update->event_id)),
                      db_text(first->update->dict_code), db_text(refdata_source_name(first->update->source)),
                      db_text(first->content_hash), db_text(first->subject.len ? first->subject : STR_NONE)));
        return;
    }
    struct db_param params[COLUMNS + 4] = {[0] = db_text(refdata_source_name(updates[0]->update->source)),
                                           [COLUMNS + 1] = db_i64(key_keep_ms),
                                           db_bool(all_new),
                                           DB_END};
    struct refdata_columns columns;
    bool has_chunks = false, has_keys = false;
    refdata_columns_begin(&columns, COLUMNS, arena);
    for (size_t i = 0; i < count; i++) {
        const struct refdata_update *update = updates[i]->update;
        struct str subject = updates[i]->subject;
        struct str row[COLUMNS] = {[TENANTS] = update->tenant,
                                   [EVENTS] = str_from(update->event_id),
                                   [CODES] = update->dict_code,
                                   [HASHES] = updates[i]->content_hash,
                                   [REQUESTERS] = subject.len ? subject : STR_NONE};
        if (refdata_update_is_chunk(update)) {
            char *hex = arena_alloc(arena, HASH128_HEX_BYTES);
            hash128_hex(update->content, hex);
            row[SNAPSHOTS] = str_from(update->snapshot_id);
            row[INDEXES] = REFDATA_I64(arena, update->chunk_index);
            row[CHUNKS] = str_from(hex);
            has_chunks = true;
        }
        if (updates[i]->key.ptr) {
            uint8_t hash[AUTH_SHA256_BYTES];
            char *hex = arena_alloc(arena, 2 * sizeof hash);
            auth_sha256(&updates[i]->body, 1, hash);
            hex_put(hex, hash, sizeof hash);
            row[SUBJECTS] = subject.len ? subject : STR("");
            row[KEYS] = updates[i]->key;
            row[BODIES] = str_of(hex, 2 * sizeof hash);
            row[LOCKS] = REFDATA_I64(arena, updates[i]->key_lock);
            has_keys = true;
        }
        refdata_columns_add(&columns, row);
    }
    refdata_columns_bind_arrays(&columns, params + 1);
    for (unsigned i = SNAPSHOTS; i < COLUMNS; i++)
        if (i <= CHUNKS ? !has_chunks : !has_keys)
            params[1 + i].value = STR_NONE;
    /* Arrays of other types than text are sent as text, which the statement casts. */
    params[1 + EVENTS].type = params[1 + SNAPSHOTS].type = params[1 + INDEXES].type = params[1 + LOCKS].type =
        DB_TEXT;
    db_pipeline_add(conn, &accept_sql, params);
    refdata_columns_free(&columns);
}

void refdata_acceptance_take_new(struct refdata_acceptance *update)
{
    update->result = REFDATA_NEW;
    update->refusal = STATUS_OK;
    update->is_key_known = update->is_keys_event = update->is_chunk_new = false;
    update->state = (struct refdata_state){.decision = REFDATA_PENDING};
    memcpy(update->state.event_id, update->update->event_id, UUID_TEXT_BYTES);
}

void refdata_state_read(const struct db_result *result, size_t row, unsigned first,
                        struct refdata_state *state)
{
    state->decision = refdata_decision_of(db_result_str(result, row, first));
    state->version = db_result_i64(result, row, first + 1);
    str_copy(state->code, sizeof state->code, db_result_str(result, row, first + 2));
    str_copy(state->reason, sizeof state->reason, db_result_str(result, row, first + 3));
}

enum status refdata_acceptance_take(struct db_conn *conn, const struct db_result *result,
                                    struct refdata_acceptance *const *updates, size_t count,
                                    int64_t deadline_ns, struct error *error)
{
    bool is_any_pending = false;
    for (size_t i = 0; i < count; i++)
        refdata_acceptance_take_new(updates[i]);
    for (size_t row = 0; row < db_result_rows(result); row++) {
        struct refdata_acceptance *update = updates[db_result_i64(result, row, 0)];
        struct str word = db_result_str(result, row, 1);
        update->is_key_known = str_eq(db_result_str(result, row, 2), STR("t"));
        update->is_chunk_new = str_eq(db_result_str(result, row, 3), STR("t"));
        if (str_eq(word, STR("RETRY")))
            return error_set(error, STATUS_DB_RETRY, "a row expired while it was read");
        if (str_eq(word, STR("NEW")))
            continue;
        if (str_eq(word, STR("KNOWN"))) {
            update->result = REFDATA_KNOWN;
            refdata_state_read(result, row, 5, &update->state);
            str_copy(update->state.event_id, UUID_TEXT_BYTES, db_result_str(result, row, 4));
            update->is_keys_event = strcmp(update->state.event_id, update->update->event_id) != 0;
            is_any_pending |= update->state.decision == REFDATA_PENDING;
        } else {
            update->result = REFDATA_REFUSED;
            update->refusal = STATUS_INTERNAL;
            for (unsigned status = STATUS_OK + 1; status < STATUS_COUNT; status++)
                if (str_eq(word, str_from(status_code((enum status)status))))
                    update->refusal = (enum status)status;
        }
    }
    /* A row that is pending can be read a moment before it is on disk, and this transaction may have nothing to write. */
    return is_any_pending ? db_exec(conn, &db_flush_sql, DB_NO_PARAMS, deadline_ns, NULL, error) : STATUS_OK;
}

void refdata_acceptance_error(const struct refdata_acceptance *update, struct error *error)
{
    const char *why = status_message(update->refusal);
    if (update->refusal == STATUS_CHUNK_CONFLICT)
        why = "this chunk of the snapshot was sent before with other content";
    else if (update->refusal == STATUS_EVENT_ID_CONFLICT)
        why = "this eventId belongs to another update";
    else if (update->refusal == STATUS_UNKNOWN_UPDATE)
        why = "the update that used this Idempotency-Key is no longer kept";
    error_set(error, update->refusal, "%s", why);
}

/* ---- what became of them ---- */

/* By the primary key, one probe for each event asked for. */
const struct db_statement refdata_states_sql = DB_STATEMENT(
    "select asked.at - 1, r.event_id, r.status, r.committed_version, r.error_code, r.error_message, r.dict_code,"
    "       (extract(epoch from r.created_at) * 1000000)::bigint,"
    "       (extract(epoch from r.updated_at) * 1000000)::bigint, r.requested_by,"
    "       r.content_hash, r.snapshot_id"
    " from unnest($1, $2) with ordinality as asked (tenant_id, event_id, at)"
    " join refdata.update_request r on r.tenant_id = asked.tenant_id and r.event_id = asked.event_id::uuid");

void refdata_states_row(const struct db_result *result, size_t row, struct refdata_state_row *out)
{
    *out = (struct refdata_state_row){.place = (size_t)db_result_i64(result, row, 0),
                                      .dict_code = db_result_str(result, row, 6),
                                      .created_us = db_result_i64(result, row, 7),
                                      .updated_us = db_result_i64(result, row, 8),
                                      .content_hash = db_result_str(result, row, 10),
                                      .is_chunk = !db_result_is_null(result, row, 11)};
    if (!db_result_is_null(result, row, 9))
        out->requested_by = db_result_str(result, row, 9);
    str_copy(out->state.event_id, UUID_TEXT_BYTES, db_result_str(result, row, 1));
    refdata_state_read(result, row, 2, &out->state);
}
