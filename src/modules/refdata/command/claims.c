/* What a transaction of the committer claims before it publishes: idempotency keys, chunks, and the rows of
 * update_request, which make an event happen once. Whoever finds another's claim waits for that one's end, in
 * PostgreSQL; what it then sees is committed. */
#include <stdlib.h>

#include "auth/digest.h"
#include "modules/refdata/command/direct.h"
#include "modules/refdata/command/states.h"

enum { REQUEST_COLUMNS = 6 };

/* `keyKeep` after it was first used a key is free again; replays do not extend it (I6). Whoever does not get the key's lock is
 * not made to wait for who has it (I3). Twins in one transaction share the lock: the later one finds the earlier one's row. */
static const char key_insert_sql[] =
    "INSERT INTO refdata.update_key AS k (tenant_id, subject, idempotency_key, body_hash, event_id)"
    " SELECT $1, $2, $3, $4, $5 WHERE pg_try_advisory_xact_lock($6)"
    " ON CONFLICT (tenant_id, subject, idempotency_key) DO UPDATE"
    " SET body_hash = excluded.body_hash, event_id = excluded.event_id, created_at = clock_timestamp()"
    " WHERE k.created_at < clock_timestamp() - $7 * interval '1 ms'";
static const char key_select_sql[] = "SELECT body_hash, event_id FROM refdata.update_key"
                                     " WHERE tenant_id = $1 AND subject = $2 AND idempotency_key = $3"
                                     " AND NOT created_at < clock_timestamp() - $4 * interval '1 ms'";

static const char chunk_insert_sql[] =
    "INSERT INTO refdata.chunk_request (tenant_id, dict_code, snapshot_id, chunk_index, content_hash, event_id)"
    " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING";
static const char chunk_select_sql[] =
    "SELECT content_hash FROM refdata.chunk_request"
    " WHERE tenant_id = $1 AND dict_code = $2 AND snapshot_id = $3 AND chunk_index = $4";

/* In the order of the arrays, which are sorted: everybody locks in that order, so nobody deadlocks. The rows come back
 * in the same order, those that were there already left out. */
static const char request_sql[] =
    "INSERT INTO refdata.update_request (tenant_id, event_id, dict_code, status, content_hash, snapshot_id, requested_by)"
    " SELECT tenant_id, event_id::uuid, dict_code, 'PENDING', content_hash, nullif(snapshot_id, '')::uuid,"
    "        nullif(requested_by, '')"
    " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])"
    "      AS asked (tenant_id, event_id, dict_code, content_hash, snapshot_id, requested_by)"
    " ON CONFLICT DO NOTHING RETURNING tenant_id, event_id";

/* One that is taken to be new: where it is not, the whole transaction is refused. */
static const char request_one_sql[] =
    "INSERT INTO refdata.update_request (tenant_id, event_id, dict_code, status, content_hash, requested_by)"
    " VALUES ($1, $2, $3, 'PENDING', $4, nullif($5, ''))";

static const enum db_type request_types[REQUEST_COLUMNS] = {DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY,
                                                            DB_TEXT_ARRAY, DB_TEXT_ARRAY, DB_TEXT_ARRAY};

static enum status add_opening(struct db_conn *conn, struct refdata_owning *owning, size_t *added,
                               struct error *error)
{
    struct db_statement begin;
    db_statement_init(&begin, "BEGIN", 0, NULL);
    enum status status = db_pipeline_add(conn, &begin, NULL, error);
    *added = 1;
    if (status != STATUS_OK || owning->count == 0)
        return status;
    *added = 2;
    return bus_own_ask(owning->bus, conn, STR(REFDATA_COMMANDS), REFDATA_APPLY_GROUP, owning->partitions,
                       owning->count, &owning->mark, error);
}

static void take_opening(struct refdata_owning *owning, struct db_result *const *results)
{
    if (owning->count)
        owning->granted = bus_own_is_granted(results[1], owning->count);
}

static void refuse(struct refdata_post *post, enum status status, const char *why)
{
    post->result = REFDATA_POST_REFUSED;
    error_set(&post->error, status, "%s", why);
}

/* ---- keys and chunks: few, so each has statements of its own, but all of them one round trip ---- */

static struct str body_hash(struct refdata_post *post, struct arena *arena)
{
    uint8_t hash[AUTH_SHA256_BYTES];
    char *hex = arena_alloc(arena, 2 * sizeof hash);
    auth_sha256(&post->body, 1, hash);
    for (size_t i = 0; i < 2 * sizeof hash; i++)
        hex[i] = "0123456789abcdef"[hash[i / 2] >> (i % 2 ? 0 : 4) & 15];
    return str_of(hex, 2 * sizeof hash);
}

static enum status add_key(struct db_conn *conn, struct refdata_post *post, struct arena *arena,
                           struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_TEXT, DB_TEXT, DB_TEXT, DB_UUID, DB_BIGINT, DB_BIGINT};
    static const enum db_type select_types[] = {DB_TEXT, DB_TEXT, DB_TEXT, DB_BIGINT};
    struct db_statement insert, select;
    struct str keep = arena_printf(arena, "%lld", (long long)post->key_keep_ms);
    struct db_param params[] = {{str_from(post->tenant)},
                                {post->subject.ptr ? post->subject : STR("")},
                                {post->key},
                                {body_hash(post, arena)},
                                {str_from(post->update.event_id)},
                                {arena_printf(arena, "%lld", (long long)post->key_lock)},
                                {keep}};
    const struct db_param select_params[] = {params[0], params[1], params[2], {keep}};
    db_statement_init(&insert, key_insert_sql, 7, types);
    db_statement_init(&select, key_select_sql, 4, select_types);
    enum status status = db_pipeline_add(conn, &insert, params, error);
    return status == STATUS_OK ? db_pipeline_add(conn, &select, select_params, error) : status;
}

static enum status add_chunk(struct db_conn *conn, struct refdata_post *post, struct arena *arena,
                             struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_TEXT, DB_UUID, DB_INT, DB_TEXT, DB_UUID};
    const struct refdata_update *update = &post->update;
    char hex[HASH128_HEX_BYTES];
    struct db_statement insert, select;
    hash128_hex(update->content, hex);
    struct db_param params[] = {{str_from(post->tenant)},
                                {update->dict_code},
                                {str_from(update->snapshot_id)},
                                {arena_printf(arena, "%d", (int)update->chunk_index)},
                                {str_from(hex)},
                                {str_from(update->event_id)}};
    db_statement_init(&insert, chunk_insert_sql, 6, types);
    db_statement_init(&select, chunk_select_sql, 4, types);
    enum status status = db_pipeline_add(conn, &insert, params, error);
    return status == STATUS_OK ? db_pipeline_add(conn, &select, params, error) : status;
}

/* The key's row is this post's own, or an earlier one's: of the same event where the sender chose its id. Neither: another
 * process is at it. */
static void take_key(struct refdata_post *post, const struct db_result *insert,
                     const struct db_result *select, struct arena *arena)
{
    if (db_result_affected(insert) > 0)
        return;
    enum status refusal = STATUS_OK;
    if (db_result_rows(select) == 0)
        refusal = STATUS_IDEMPOTENCY_KEY_PROCESSING;
    else if (!str_eq(db_result_str(select, 0, 0), body_hash(post, arena)))
        refusal = STATUS_IDEMPOTENCY_KEY_CONFLICT;
    if (refusal != STATUS_OK) {
        refuse(post, refusal, status_message(refusal));
        return;
    }
    post->is_key_known = true;
    post->by_key = !str_eq(db_result_str(select, 0, 1), str_from(post->update.event_id));
    memcpy(post->state.event_id, db_result_str(select, 0, 1).ptr, UUID_TEXT_BYTES);
}

static void take_chunk(struct refdata_post *post, const struct db_result *insert,
                       const struct db_result *select)
{
    char hex[HASH128_HEX_BYTES];
    hash128_hex(post->update.content, hex);
    post->is_chunk_new = db_result_affected(insert) > 0;
    if (db_result_rows(select) > 0 && !str_eq(db_result_str(select, 0, 0), str_from(hex)))
        refuse(post, STATUS_CHUNK_CONFLICT, "this chunk of the snapshot came before with other content");
}

static int compare_keys(const void *left, const void *right)
{
    const struct refdata_post *a = *(struct refdata_post *const *)left;
    const struct refdata_post *b = *(struct refdata_post *const *)right;
    int order = strcmp(a->tenant, b->tenant);
    order = order ? order : str_compare(a->subject, b->subject);
    return order ? order : str_compare(a->key, b->key);
}

static int compare_chunks(const void *left, const void *right)
{
    const struct refdata_post *a = *(struct refdata_post *const *)left;
    const struct refdata_post *b = *(struct refdata_post *const *)right;
    int order = strcmp(a->tenant, b->tenant);
    order = order ? order : str_compare(a->update.dict_code, b->update.dict_code);
    order = order ? order : strcmp(a->update.snapshot_id, b->update.snapshot_id);
    return order ? order : a->update.chunk_index - b->update.chunk_index;
}

/* Those that have a key, then those that are chunks, each kind sorted: every process locks in that order, so none
 * deadlocks with another. */
struct singles {
    struct refdata_post **keys, **chunks;
    size_t key_count, chunk_count;
};

static void sort_singles(struct singles *singles, struct refdata_post **posts, size_t count,
                         struct arena *arena)
{
    *singles = (struct singles){.keys = arena_alloc(arena, count * sizeof *posts),
                                .chunks = arena_alloc(arena, count * sizeof *posts)};
    for (size_t i = 0; i < count; i++) {
        if (posts[i]->key.ptr)
            singles->keys[singles->key_count++] = posts[i];
        if (refdata_update_is_chunk(&posts[i]->update))
            singles->chunks[singles->chunk_count++] = posts[i];
    }
    qsort(singles->keys, singles->key_count, sizeof *posts, compare_keys);
    qsort(singles->chunks, singles->chunk_count, sizeof *posts, compare_chunks);
}

static enum status add_singles(struct db_conn *conn, const struct singles *singles, struct arena *arena,
                               struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < singles->key_count && status == STATUS_OK; i++)
        status = add_key(conn, singles->keys[i], arena, error);
    for (size_t i = 0; i < singles->chunk_count && status == STATUS_OK; i++)
        status = add_chunk(conn, singles->chunks[i], arena, error);
    return status;
}

static void take_singles(const struct singles *singles, struct db_result *const *results, struct arena *arena)
{
    for (size_t i = 0; i < singles->key_count; i++, results += 2)
        take_key(singles->keys[i], results[0], results[1], arena);
    for (size_t i = 0; i < singles->chunk_count; i++, results += 2)
        take_chunk(singles->chunks[i], results[0], results[1]);
}

static enum status claim_singles(struct db_conn *conn, struct refdata_post **posts, size_t count,
                                 struct refdata_owning *owning, int64_t deadline_ns, struct arena *arena,
                                 struct error *error)
{
    struct singles singles;
    size_t opening = 0;
    sort_singles(&singles, posts, count, arena);
    size_t added = 2 * (singles.key_count + singles.chunk_count);
    struct db_result **results = arena_zalloc(arena, (added + OPENING_MAX) * sizeof *results);
    enum status status = db_pipeline_begin(conn, error);
    if (status == STATUS_OK)
        status = add_opening(conn, owning, &opening, error);
    if (status == STATUS_OK)
        status = add_singles(conn, &singles, arena, error);
    if (status == STATUS_OK)
        status = db_pipeline_end(conn, deadline_ns, results, opening + added, NULL, error);
    if (status == STATUS_OK) {
        take_opening(owning, results);
        take_singles(&singles, results + opening, arena);
    }
    for (size_t i = 0; i < opening + added; i++)
        db_result_free(results[i]);
    return status;
}

/* ---- update_request ---- */

static int compare_events(const void *left, const void *right)
{
    const struct refdata_post *a = *(struct refdata_post *const *)left;
    const struct refdata_post *b = *(struct refdata_post *const *)right;
    int order = strcmp(a->tenant, b->tenant);
    return order ? order : strcmp(a->update.event_id, b->update.event_id);
}

/* The rows that came back are a subsequence of what was asked for. */
static void take_inserted(struct refdata_post **sorted, size_t count, const struct db_result *result)
{
    for (size_t row = 0, i = 0; row < db_result_rows(result); row++, i++) {
        while (i < count && !(str_eq(db_result_str(result, row, 1), str_from(sorted[i]->update.event_id)) &&
                              str_eq(db_result_str(result, row, 0), str_from(sorted[i]->tenant))))
            i++;
        if (i < count)
            sorted[i]->is_new = true;
    }
}

/* `owning` NULL: the transaction is open already. */
static enum status send_requests(struct db_conn *conn, const struct db_param params[REQUEST_COLUMNS],
                                 struct refdata_owning *owning, int64_t deadline_ns,
                                 struct db_result **inserted, struct error *error)
{
    struct db_result *results[OPENING_MAX + 1] = {NULL};
    struct db_statement statement;
    size_t opening = 0;
    db_statement_init(&statement, request_sql, REQUEST_COLUMNS, request_types);
    if (!owning)
        return db_query(conn, &statement, params, deadline_ns, inserted, error);
    enum status status = db_pipeline_begin(conn, error);
    if (status == STATUS_OK)
        status = add_opening(conn, owning, &opening, error);
    if (status == STATUS_OK)
        status = db_pipeline_add(conn, &statement, params, error);
    if (status == STATUS_OK)
        status = db_pipeline_end(conn, deadline_ns, results, opening + 1, NULL, error);
    if (status != STATUS_OK)
        return status;
    take_opening(owning, results);
    *inserted = results[opening];
    for (size_t i = 0; i < opening; i++)
        db_result_free(results[i]);
    return STATUS_OK;
}

struct request_columns {
    struct buf at[REQUEST_COLUMNS];
    struct db_param params[REQUEST_COLUMNS];
};

static void put_requests(struct request_columns *columns, struct refdata_post *const *sorted, size_t count)
{
    *columns = (struct request_columns){0};
    for (size_t c = 0; c < REQUEST_COLUMNS; c++)
        db_array_begin(&columns->at[c]);
    for (size_t i = 0; i < count; i++) {
        const struct refdata_update *update = &sorted[i]->update;
        bool chunk = refdata_update_is_chunk(update);
        db_array_put(&columns->at[0], str_from(sorted[i]->tenant));
        db_array_put(&columns->at[1], str_from(update->event_id));
        db_array_put(&columns->at[2], update->dict_code);
        db_array_put(&columns->at[3], sorted[i]->hash);
        db_array_put(&columns->at[4], chunk ? str_from(update->snapshot_id) : STR(""));
        db_array_put(&columns->at[5], sorted[i]->subject.len ? sorted[i]->subject : STR(""));
    }
    for (size_t c = 0; c < REQUEST_COLUMNS; c++) {
        db_array_end(&columns->at[c]);
        columns->params[c].value = buf_str(&columns->at[c]);
    }
}

static void free_requests(struct request_columns *columns)
{
    for (size_t c = 0; c < REQUEST_COLUMNS; c++)
        buf_deinit(&columns->at[c]);
}

static enum status insert_requests(struct db_conn *conn, struct refdata_post **sorted, size_t count,
                                   struct refdata_owning *owning, int64_t deadline_ns, struct error *error)
{
    struct request_columns columns;
    struct db_result *inserted = NULL;
    put_requests(&columns, sorted, count);
    enum status status = send_requests(conn, columns.params, owning, deadline_ns, &inserted, error);
    if (status == STATUS_OK)
        take_inserted(sorted, count, inserted);
    db_result_free(inserted);
    free_requests(&columns);
    return status;
}

static void take_state(struct refdata_post *post, const struct refdata_states_row *row)
{
    if (!post->by_key &&
        (!str_eq(row->content_hash, post->hash) || !str_eq(row->dict_code, post->update.dict_code))) {
        refuse(post, STATUS_EVENT_ID_CONFLICT, "this eventId belongs to another update");
        return;
    }
    post->result = REFDATA_POST_REPLAYED;
    post->state = row->state;
}

/* Those that were there before: `posts` are the ones to look up. */
static enum status find_states(struct db_conn *conn, struct refdata_post **posts, size_t count,
                               int64_t deadline_ns, struct error *error)
{
    struct buf tenants = {0}, event_ids = {0};
    struct db_result *result = NULL;
    db_array_begin(&tenants);
    db_array_begin(&event_ids);
    for (size_t i = 0; i < count; i++) {
        db_array_put(&tenants, str_from(posts[i]->tenant));
        db_array_put(&event_ids, str_from(posts[i]->state.event_id));
        refuse(posts[i], STATUS_UNKNOWN_UPDATE, "the update this stands for is no longer kept");
    }
    db_array_end(&tenants);
    db_array_end(&event_ids);
    enum status status =
        refdata_states_query(conn, buf_str(&tenants), buf_str(&event_ids), deadline_ns, &result, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++) {
        struct refdata_states_row found;
        refdata_states_row(result, row, &found);
        take_state(posts[found.asked], &found);
    }
    db_result_free(result);
    buf_deinit(&tenants);
    buf_deinit(&event_ids);
    return status;
}

static void start_anew(struct refdata_post *post)
{
    post->is_new = post->is_chunk_new = post->by_key = post->is_key_known = false;
    post->result = REFDATA_POST_TAKEN;
    post->state = (struct refdata_state){.decision = REFDATA_PENDING};
    memcpy(post->state.event_id, post->update.event_id, UUID_TEXT_BYTES);
}

enum status refdata_claims_write(struct db_conn *conn, struct refdata_post **posts, size_t count,
                                 struct refdata_owning *owning, int64_t deadline_ns, struct arena *arena,
                                 struct error *error)
{
    struct refdata_post **sorted = arena_alloc(arena, count * sizeof *sorted);
    struct refdata_post **known = arena_alloc(arena, count * sizeof *known);
    size_t asked = 0, known_count = 0, singles = 0;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < count; i++) {
        start_anew(posts[i]);
        singles += posts[i]->key.ptr || refdata_update_is_chunk(&posts[i]->update);
    }
    if (singles)
        status = claim_singles(conn, posts, count, owning, deadline_ns, arena, error);
    for (size_t i = 0; i < count; i++) {
        if (posts[i]->by_key)
            known[known_count++] = posts[i];
        else if (posts[i]->result == REFDATA_POST_TAKEN)
            sorted[asked++] = posts[i];
    }
    qsort(sorted, asked, sizeof *sorted, compare_events);
    if (status == STATUS_OK && asked)
        status = insert_requests(conn, sorted, asked, singles ? NULL : owning, deadline_ns, error);
    for (size_t i = 0; i < asked; i++)
        if (!sorted[i]->is_new)
            known[known_count++] = sorted[i];
    if (status == STATUS_OK && known_count)
        status = find_states(conn, known, known_count, deadline_ns, error);
    return status;
}

/* ---- as a guess ---- */

bool refdata_claims_are_plain(struct refdata_post *const *posts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (posts[i]->key.ptr || refdata_update_is_chunk(&posts[i]->update))
            return false;
    return true;
}

enum status refdata_claims_guess(struct refdata_guess *guess, struct db_conn *conn,
                                 struct refdata_post **posts, size_t count, struct refdata_owning *owning,
                                 struct error *error)
{
    size_t opening = 0;
    *guess = (struct refdata_guess){0};
    for (size_t i = 0; i < count; i++) {
        start_anew(posts[i]);
        posts[i]->is_new = true;
    }
    enum status status = db_pipeline_begin(conn, error);
    if (status == STATUS_OK)
        status = add_opening(conn, owning, &opening, error);
    if (status == STATUS_OK)
        status = refdata_direct_add_limit(conn, error);
    if (status == STATUS_OK)
        db_pipeline_leave(conn, guess->results, OPENING_MAX);
    return status;
}

enum status refdata_claims_guess_one(struct db_conn *conn, struct refdata_post *post, struct error *error)
{
    static const enum db_type types[] = {DB_TEXT, DB_UUID, DB_TEXT, DB_TEXT, DB_TEXT};
    struct db_statement begin, insert;
    start_anew(post);
    post->is_new = true;
    struct db_param params[] = {{str_from(post->tenant)},
                                {str_from(post->update.event_id)},
                                {post->update.dict_code},
                                {post->hash},
                                {post->subject.len ? post->subject : STR("")}};
    db_statement_init(&begin, "BEGIN", 0, NULL);
    db_statement_init(&insert, request_one_sql, 5, types);
    enum status status = db_pipeline_begin(conn, error);
    if (status == STATUS_OK)
        status = db_pipeline_add(conn, &begin, NULL, error);
    if (status == STATUS_OK)
        status = db_pipeline_add(conn, &insert, params, error);
    if (status == STATUS_OK)
        db_pipeline_leave(conn, NULL, 0);
    return status;
}

bool refdata_claims_hold(struct refdata_guess *guess, struct db_conn *conn, struct refdata_owning *owning)
{
    db_pipeline_leave(conn, NULL, 0); /* whatever is still on its way, its answers are not wanted any more */
    if (guess->results[OPENING_MAX - 1])
        take_opening(owning, guess->results);
    for (size_t i = 0; i < OPENING_MAX; i++)
        db_result_free(guess->results[i]);
    return owning->granted;
}
