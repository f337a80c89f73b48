/* Apply on the bus: messages to commands, and a batch of them into the bus's own transaction.
 *
 * A batch that fails as a whole is redelivered one by one, and a single command records its own failure. A command that takes too
 * long is tried updates.attempts times, with the bus's backoff in between, and is refused then: a statement that never ends must not
 * block its partition for ever. */
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "modules/refdata/apply/batch.h"

#define ARENA_BYTES 65536
#define BACKOFF_MIN_MS 10

/* A message was accepted by the limits of its publisher: here the widest ones hold. */
static const struct refdata_limits limits = {.items_max = 1000000,
                                             .key_bytes_max = 1024,
                                             .payload_bytes_max = 256u << 20,
                                             .depth_max = JSON_DEPTH_LIMIT};

/* From the handler to the commit. */
struct memo {
    struct refdata_database *database;
    struct refdata_catalog *catalog; /* referenced */
    struct arena arena;
    struct refdata_command *commands;
    size_t count;
};

static void free_memo(struct memo *memo)
{
    if (!memo)
        return;
    refdata_catalog_unref(memo->catalog);
    arena_deinit(&memo->arena);
    free(memo);
}

/* ---- reading ---- */

/* Whose update was this, if that much can be read? Then it is decided: it failed. */
static bool name_unreadable(struct str text, struct arena *arena, struct refdata_update *update)
{
    struct json_value body;
    struct uuid uuid;
    if (json_parse_stored(text, JSON_DEPTH_LIMIT, &body, NULL) != STATUS_OK || body.type != JSON_OBJECT)
        return false;
    *update = (struct refdata_update){.tenant = json_get_text(&body, STR("tenantId"), arena),
                                      .dict_code = json_get_text(&body, STR("dictCode"), arena),
                                      .chunk_index = 1,
                                      .chunks_total = 1};
    if (!str_is_name(update->tenant) || !uuid_parse(json_get_text(&body, STR("eventId"), arena), &uuid))
        return false;
    uuid_format(&uuid, update->event_id);
    if (!str_is_name(update->dict_code))
        update->dict_code = STR("");
    return true;
}

/* It may have been accepted: then its status shows why it failed. */
static void note_failure(struct memo *memo, enum status failure, const char *why)
{
    struct refdata_command *command = &memo->commands[memo->count++];
    command->is_dead_letter = true;
    refdata_command_fail(command, failure, "%s", why);
}

enum owner { OWN_DATABASE, OTHER_DATABASE, NO_DATABASE };

static enum owner owner_of(const struct refdata_database *database, const struct refdata_catalog *catalog,
                           struct str code)
{
    const struct refdata_dictionary *dictionary = refdata_catalog_find(catalog, code);
    if (!dictionary)
        return NO_DATABASE;
    return dictionary->database == database ? OWN_DATABASE
           : database->buses.shared         ? OTHER_DATABASE
                                            : NO_DATABASE;
}

static void read_message(struct memo *memo, struct bus_batch *batch, size_t at)
{
    const struct bus_message *message = &batch->messages[at];
    struct refdata_command *command = &memo->commands[memo->count];
    struct refdata_update *update = &command->update;
    struct error error = {0};
    struct json_value body;
    struct str code, tenant = STR_NONE, waited = bus_message_header(message, STR(REFDATA_HEADER_WAITED));
    *command = (struct refdata_command){
        .waited = str_eq(waited, STR("1")),
        .is_accepted = waited.ptr != NULL,
    };
    command->traceparent =
        span_follow(&command->span, SPAN_CONSUMER, "apply update",
                    bus_message_header(message, STR(BUS_HEADER_TRACEPARENT)), &memo->arena);
    span_put_str(command->span, "messaging.destination.name", message->topic);
    enum status status = refdata_update_open(message->payload, &limits, &body, &code, &memo->arena, &error);
    if (status == STATUS_OK)
        status =
            refdata_update_read(&body, REFDATA_FROM_BUS, STR_NONE, &limits, &memo->arena, update, &error);
    bool is_named = status == STATUS_OK || name_unreadable(message->payload, &memo->arena, update);
    /* The key is what order rests on: with another one it would be in another partition. */
    code = message->key;
    if (status == STATUS_OK && !(str_split(&code, ':', &tenant) && str_eq(tenant, update->tenant) &&
                                 str_eq(code, update->dict_code)))
        status = error_set(&error, STATUS_BAD_REQUEST, "its key is not {tenantId}:{dictCode}");
    enum owner owner =
        status == STATUS_OK ? owner_of(memo->database, memo->catalog, update->dict_code) : OWN_DATABASE;
    if (owner == NO_DATABASE)
        status =
            error_set(&error, STATUS_UNKNOWN_DICTIONARY, "%s", status_message(STATUS_UNKNOWN_DICTIONARY));
    if (status == STATUS_OK) {
        memo->count += owner == OWN_DATABASE;
        return;
    }
    if (memo->database->buses.dead_letters) {
        refdata_apply_count(APPLY_UNREADABLE);
        bus_batch_term(batch, at, "not a command: %s", error.message);
    }
    if (is_named)
        note_failure(memo, status == STATUS_UNKNOWN_DICTIONARY ? status : STATUS_BAD_REQUEST, error.message);
}

static struct memo *create_memo(struct refdata_database *database, struct bus_batch *batch)
{
    struct memo *memo = memory_zalloc(sizeof *memo);
    memo->arena = ARENA(ARENA_BYTES);
    memo->database = database;
    memo->catalog = refdata_database_catalog(database);
    memo->commands = arena_zalloc(&memo->arena, batch->count * sizeof *memo->commands);
    batch->memo = memo;
    return memo;
}

/* ---- the bus's callbacks ---- */

/* A lost connection is the bus's to find: it takes the batch up again as it was. */
static enum status apply_memo(struct memo *memo, struct bus_batch *batch)
{
    struct error error = {0};
    unsigned flags = batch->attempt == 0 ? REFDATA_APPLY_OPEN : 0;
    for (size_t i = 0; i < batch->count; i++)
        if (batch->verdicts[i].kind !=
            BUS_ACK) /* dead letters are published before the commit: nothing may be left to it */
            flags &= ~(unsigned)REFDATA_APPLY_OPEN;
    for (size_t i = 0; i < memo->count; i++)
        if (!memo->commands[i].is_accepted)
            flags |= REFDATA_APPLY_UNKNOWN;
    if (batch->is_unlocked && !(flags & REFDATA_APPLY_UNKNOWN))
        flags |= REFDATA_APPLY_EXPECTED;
    if (memo->count == 1)
        flags |= REFDATA_APPLY_ALONE;
    if (memo->count == 1 && batch->attempt + 1 >= memo->catalog->updates.attempts_max)
        flags |= REFDATA_APPLY_LAST;
    enum status status = refdata_apply_run(memo->database, batch->conn, memo->commands, memo->count, flags,
                                           batch->deadline_ns, &memo->arena, &error);
    if (status != STATUS_OK && status != STATUS_DB_DOWN && status != STATUS_CANCELLED)
        bus_batch_rollback(batch, "%s", error.message);
    return status;
}

static void apply_batch(void *context, struct bus_batch *batch)
{
    struct memo *memo = create_memo(context, batch);
    const struct refdata_command *command = &memo->commands[0];
    const struct refdata_outcome *outcome = &command->outcome;
    for (size_t i = 0; i < batch->count; i++)
        read_message(memo, batch, i);
    if (memo->count == 0)
        return;
    if (memo->count == 1 && batch->attempt >= memo->catalog->updates.attempts_max)
        refdata_command_fail(&memo->commands[0], STATUS_UPDATE_REFUSED, "given up: it did not end in time");
    enum status status = apply_memo(memo, batch);
    FAILPOINT("apply.before_commit");
    if (status != STATUS_OK || memo->count != 1 || !command->waited || !command->decided ||
        command->other_count > 0 || outcome->state.decision != REFDATA_COMMITTED)
        return;
    /* A single update whose client waits in another process: the notice goes out in the commit's round trip. */
    struct buf text = {0};
    refdata_decisions_put_committed(&text, outcome);
    batch->notice_channel = STR(REFDATA_DECISIONS_CHANNEL);
    batch->notice_payload = arena_str(&memo->arena, buf_str(&text));
    buf_deinit(&text);
}

/* An update whose command is exhausted is decided: it failed. Of the message only its names are read. */
static void record_given_up(void *context, struct bus_batch *batch)
{
    struct memo *memo = create_memo(context, batch);
    struct refdata_command *command = &memo->commands[0];
    if (!name_unreadable(batch->messages[0].payload, &memo->arena, &command->update) ||
        owner_of(memo->database, memo->catalog, command->update.dict_code) == OTHER_DATABASE)
        return;
    note_failure(memo, STATUS_UPDATE_REFUSED,
                 arena_printf(&memo->arena, "given up: %s", batch->verdicts[0].reason).ptr);
    (void)apply_memo(memo, batch);
}

static void end_span(const struct refdata_command *command, bool is_committed)
{
    const struct refdata_state *state = &command->outcome.state;
    struct span *span = command->span;
    if (!span)
        return;
    span_put_str(span, "freshet.tenant.id", command->update.tenant);
    span_put_str(span, "freshet.dict.code", command->update.dict_code);
    span_put_str(span, "freshet.event.id", str_from(command->update.event_id));
    if (!is_committed)
        span_fail(span, STR("not_committed"));
    else if (command->decided && state->decision == REFDATA_FAILED)
        span_fail(span, str_from(state->code));
    else if (command->decided && state->decision == REFDATA_COMMITTED)
        span_put_int(span, "freshet.dict.version", state->version);
    span_end(span);
}

static void batch_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    struct memo *memo = batch->memo;
    (void)settled; /* a batch of ours is settled whole */
    FAILPOINT("apply.after_commit");
    if (!memo)
        return;
    if (batch->is_notice_sent)
        memo->commands[0].waited = false;
    refdata_apply_report(context, memo->commands, memo->count, batch->is_true);
    for (size_t i = 0; i < memo->count; i++) {
        const struct refdata_command *command = &memo->commands[i];
        const struct refdata_state *state = &command->outcome.state;
        end_span(command, true);
        if (!command->decided || state->decision != REFDATA_FAILED)
            continue;
        log_warn(
            "update_failed", LOG_CSTR("eventId", state->event_id),
            LOG_STR("tenantId", command->outcome.tenant), LOG_STR("dictCode", command->outcome.dict_code),
            LOG_STR("source", refdata_source_name(command->update.source)), LOG_CSTR("code", state->code),
            LOG_CSTR("reason", state->reason), LOG_TRACE(command->traceparent));
    }
    free_memo(memo);
}

static void batch_uncommitted(void *context, const struct bus_batch *batch)
{
    struct memo *memo = batch->memo;
    (void)context;
    for (size_t i = 0; memo && i < memo->count; i++)
        end_span(&memo->commands[i], false);
    free_memo(memo);
}

/* Slow SQL of one tenant, or of one dictionary for many tenants, leaves handlers to the others. */
static unsigned read_shares(const struct bus_message *message, uint64_t shares[BUS_SHARES_MAX])
{
    struct str code = message->key, tenant;
    if (!str_split(&code, ':', &tenant))
        return 0;
    shares[0] = map_hash_pair(tenant, STR("tenant")) | 1;
    shares[1] = map_hash_pair(code, STR("dictionary")) | 1;
    return 2;
}

/* ---- the role's part ---- */

static void *create_apply(void *owner, struct error *error)
{
    struct refdata_database *database = owner;
    database->applies = true;
    kernel_site_add_task(&database->site, "apply_upkeep", refdata_upkeep_step, database,
                         refdata_upkeep_interval_ns(database->catalog));
    refdata_audit_add(database);
    const struct bus_subscription subscription = {.topic = database->buses.commands_topic,
                                                  .group = database->buses.apply_group,
                                                  .mode = BUS_SHARED,
                                                  .uses_attached = true,
                                                  .from = BUS_FROM_START,
                                                  .backoff_min_ms = BACKOFF_MIN_MS,
                                                  .batch_max = (unsigned)database->catalog->updates.batch_max,
                                                  .parallel = database->buses.parallel,
                                                  .shares = read_shares,
                                                  .context = database,
                                                  .handler = apply_batch,
                                                  .on_given_up = record_given_up,
                                                  .on_committed = batch_committed,
                                                  .on_uncommitted = batch_uncommitted};
    if (bus_subscribe(database->buses.commands, &subscription, error) != STATUS_OK)
        (void)!error_context(error, "apply");
    return database;
}

const struct kernel_part refdata_apply_part = {.roles = {"apply"}, .create = create_apply};
