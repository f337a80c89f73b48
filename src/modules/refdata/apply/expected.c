/* The state in which this process left the row of a pair. While no other process writes the pair, its next batch is decided from that
 * state instead of reading the row first, and takes one round trip. Its first statement, refdata.expect_pair(), locks the row and fails
 * if the row differs from the state; the batch is then run again and reads the row. One update of one item, which is what most batches
 * are, is a single statement: refdata.apply_one() (record.c).
 *
 * The state is used only if the last batch found the row as the batch before it had left it. So a pair that several processes
 * write is read by every batch; only the first attempt after a change by another process fails. The state is noted before the commit: if
 * the commit fails, the next attempt fails too, or is not made. */
#include "modules/refdata/apply/batch.h"

static const struct db_statement expect_sql =
    DB_STATEMENT("select refdata.expect_pair($1, $2, $3, $4, $5, $6::text[]::uuid[], $7)");

static struct refdata_left *slot_of(struct refdata_expected *expected, struct str tenant, struct str code)
{
    return &expected->slots[map_hash_pair(tenant, code) % REFDATA_EXPECTED_SLOTS];
}

/* Under the lock. */
static bool is_of(const struct refdata_left *left, struct str tenant, struct str code)
{
    return str_eq(str_from(left->tenant), tenant) && str_eq(str_from(left->code), code);
}

bool refdata_apply_expects(struct refdata_database *database, const struct refdata_command *commands,
                           size_t count)
{
    struct refdata_expected *expected = &database->expected;
    struct str tenant = commands[0].update.tenant, code = commands[0].update.dict_code;
    const struct refdata_left *left = slot_of(expected, tenant, code);
    struct refdata_catalog *catalog = refdata_database_catalog(database);
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    bool is_builtin = dictionary && dictionary->is_builtin;
    refdata_catalog_unref(catalog);
    if (!is_builtin)
        return false;
    for (size_t i = 1; i < count; i++)
        if (!str_eq(commands[i].update.tenant, tenant) || !str_eq(commands[i].update.dict_code, code))
            return false;
    pthread_mutex_lock(&expected->lock);
    bool is_quiet = left->is_quiet && is_of(left, tenant, code);
    pthread_mutex_unlock(&expected->lock);
    return is_quiet;
}

bool refdata_expected_take(struct batch *batch)
{
    struct refdata_expected *expected = &batch->database->expected;
    struct pair *pair = batch->pairs[0];
    const struct refdata_left *left = slot_of(expected, pair->tenant, pair->code);
    for (size_t i = 0; i < batch->count; i++)
        if (!batch->entries[i].pair || batch->commands[i].update.source != batch->commands[0].update.source)
            return false;
    pthread_mutex_lock(&expected->lock);
    batch->is_expected = left->is_quiet && is_of(left, pair->tenant, pair->code);
    if (batch->is_expected) {
        pair->version = pair->locked_version = left->version;
        pair->revision = pair->locked_revision = (struct revision){left->has_revision, left->revision};
        pair->event = pair->locked_event = arena_str(batch->arena, str_from(left->event_id));
    }
    pthread_mutex_unlock(&expected->lock);
    return batch->is_quiet = batch->is_expected;
}

void refdata_expected_ask(struct batch *batch)
{
    const struct pair *pair = batch->pairs[0];
    struct buf events = {0};
    for (size_t i = 0; i < batch->count; i++) {
        db_array_put(&events, str_from(batch->commands[i].update.event_id));
        batch->entries[i].first = i;
    }
    db_pipeline_begin(batch->conn);
    db_pipeline_add(batch->conn, &expect_sql,
                    DB_PARAMS(db_text(pair->tenant), db_text(pair->code), db_i64(pair->locked_version),
                              db_uuid(pair->locked_event), refdata_revision_param(pair->locked_revision),
                              db_text_array(db_array_end(&events)),
                              db_text(refdata_source_name(batch->commands[0].update.source))));
    db_pipeline_leave(batch->conn, NULL, 0);
    buf_deinit(&events);
}

void refdata_expected_found(struct batch *batch)
{
    struct refdata_expected *expected = &batch->database->expected;
    const struct pair *pair = batch->pairs[0];
    const struct refdata_left *left = slot_of(expected, pair->tenant, pair->code);
    pthread_mutex_lock(&expected->lock);
    batch->is_quiet = is_of(left, pair->tenant, pair->code) && left->version == pair->version &&
                      !pair->is_hydrated && !pair->assembling &&
                      str_eq(str_from(left->event_id), pair->event);
    pthread_mutex_unlock(&expected->lock);
}

void refdata_expected_note(struct batch *batch)
{
    struct refdata_expected *expected = &batch->database->expected;
    const struct pair *pair = batch->pairs[0];
    struct refdata_left *left = slot_of(expected, pair->tenant, pair->code);
    if (pair->tenant.len >= sizeof left->tenant || pair->code.len >= sizeof left->code)
        return;
    pthread_mutex_lock(&expected->lock);
    *left = (struct refdata_left){.version = pair->version,
                                  .revision = pair->revision.value,
                                  .has_revision = pair->revision.given,
                                  .is_quiet = batch->is_quiet};
    str_copy(left->tenant, sizeof left->tenant, pair->tenant);
    str_copy(left->code, sizeof left->code, pair->code);
    str_copy(left->event_id, sizeof left->event_id, pair->event);
    pthread_mutex_unlock(&expected->lock);
}
