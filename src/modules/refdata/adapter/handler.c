/* A batch of an external topic: what is an update is accepted in the bus's own transaction, what is none gets its reason.
 *
 * Nothing of a message is decided by time: one that is not committed comes again and is judged again. A dictionary whose
 * SQL PostgreSQL refuses for now is no fault of the message: the partition waits for it, as the sender of a POST would. */
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/trace.h"
#include "modules/refdata/adapter/adapter.h"

enum { ARENA_BYTES = 65536 };

struct metric_family refdata_adapter_messages_family = {
    .name = "refdata_adapter_messages_total",
    .help = "Messages of external topics: accepted, replayed (known before), refused (now a dead letter).",
    .type = METRIC_COUNTER,
    .labels = {"topic", "result", NULL},
};

struct intake {
    size_t at; /* which of the batch's messages */
    struct refdata_update update;
    struct str traceparent; /* empty = none */
    struct refdata_acceptance acceptance;
    struct error error; /* of REFUSED */
};

/* From the handler to the commit. */
struct memo {
    struct arena arena;
    struct intake *intakes;
    size_t count;
    bool is_published; /* some of them */
};

static void free_memo(struct memo *memo)
{
    if (!memo)
        return;
    arena_deinit(&memo->arena);
    free(memo);
}

/* ---- one message ---- */

static enum status check_dictionary(const struct refdata_reader *reader,
                                    const struct refdata_catalog *catalog,
                                    const struct refdata_update *update, struct error *error)
{
    struct refdata_dictionary *dictionary;
    enum status status = refdata_acceptance_find(catalog, update->dict_code, &dictionary, error);
    if (status != STATUS_OK)
        return status;
    if (dictionary->database != reader->flow->database)
        return error_set_field(error, STATUS_BAD_REQUEST, "dictCode",
                               "the dictionary %.*s lives in another database than this source's",
                               STR_ARG(dictionary->code));
    status = refdata_acceptance_check(dictionary, update, error);
    return status == STATUS_OK ? refdata_commands_check(reader->flow, update, error) : status;
}

static struct str traceparent_of(const struct bus_message *message)
{
    struct str text = bus_message_header(message, STR(BUS_HEADER_TRACEPARENT));
    struct trace trace;
    return trace_parse(text, &trace) ? text : STR_NONE;
}

/* False: no message behind it may be looked at. */
static bool read_message(const struct refdata_reader *reader, const struct refdata_catalog *catalog,
                         struct memo *memo, struct bus_batch *batch, size_t at)
{
    const struct bus_message *message = &batch->messages[at];
    const struct refdata_limits limits = refdata_acceptance_limits(catalog);
    struct intake *intake = &memo->intakes[memo->count];
    struct error error = {0};
    enum status status =
        refdata_translate(reader->source, message, &limits, &memo->arena, &intake->update, &error);
    if (status == STATUS_OK)
        status = check_dictionary(reader, catalog, &intake->update, &error);
    if (status == STATUS_DICTIONARY_UNAVAILABLE) {
        log_warn("adapter_waits", LOG_STR("topic", message->topic), LOG_INT("partition", message->partition),
                 LOG_INT("offset", message->offset), LOG_STR("dictCode", intake->update.dict_code),
                 LOG_ERROR_FIELDS(&error));
        bus_batch_retry(batch, at, "the dictionary %.*s: %s", STR_ARG(intake->update.dict_code),
                        error.message);
        return false;
    }
    if (status != STATUS_OK) {
        bus_batch_term(batch, at, "%s: %s", status_code(status), error.message);
        return true;
    }
    intake->at = at;
    intake->acceptance = (struct refdata_acceptance){
        .update = &intake->update,
        .content_hash = refdata_acceptance_hash(&intake->update, &memo->arena),
        .subject = arena_printf(&memo->arena, "kafka:%.*s", STR_ARG(reader->source->topic))};
    intake->traceparent = traceparent_of(message);
    memo->count++;
    return true;
}

static struct memo *read_messages(const struct refdata_reader *reader, struct bus_batch *batch)
{
    struct refdata_catalog *catalog = refdata_flow_catalog(reader->flow);
    struct memo *memo = memory_zalloc(sizeof *memo);
    arena_init(&memo->arena, ARENA_BYTES);
    memo->intakes = arena_zalloc(&memo->arena, batch->count * sizeof *memo->intakes);
    for (size_t i = 0; i < batch->count && read_message(reader, catalog, memo, batch, i); i++)
        ;
    refdata_catalog_unref(catalog);
    return memo;
}

/* ---- all of them ---- */

/* Where a single update turns out to be refused, what was written for it is rolled back to this place. */
static enum status add_savepoint(const struct bus_batch *batch, struct error *error)
{
    struct db_statement savepoint;
    db_statement_init(&savepoint, DB_SAVEPOINT_SQL, 0, NULL);
    return db_pipeline_add_checked(batch->conn, &savepoint, NULL, error);
}

static enum status accept_updates(struct memo *memo, const struct bus_batch *batch, struct error *error)
{
    struct refdata_acceptance **acceptances =
        arena_alloc(&memo->arena, memo->count * sizeof(struct refdata_acceptance *));
    struct db_result *results[2] = {NULL};
    bool is_single = memo->count == 1;
    for (size_t i = 0; i < memo->count; i++)
        acceptances[i] = &memo->intakes[i].acceptance;
    enum status status = db_pipeline_begin_checked(batch->conn, error);
    if (status == STATUS_OK && is_single)
        status = add_savepoint(batch, error);
    if (status == STATUS_OK)
        status = refdata_acceptance_add(batch->conn, acceptances, memo->count, 0, false, error);
    if (status == STATUS_OK)
        status = db_pipeline_end(batch->conn, batch->deadline_ns, results, 1 + is_single, NULL, error);
    if (status == STATUS_OK)
        status = refdata_acceptance_take(results[is_single], acceptances, memo->count, error);
    db_result_free(results[0]);
    db_result_free(results[1]);
    return status;
}

/* The chunk of a refused update was never accepted: it must stay free for another update. Others of the batch may have found it
 * known: then the bus hands over each alone. */
static enum status free_chunks(const struct memo *memo, const struct bus_batch *batch, struct error *error)
{
    for (size_t i = 0; i < memo->count; i++) {
        const struct refdata_acceptance *acceptance = &memo->intakes[i].acceptance;
        if (acceptance->verdict == REFDATA_REFUSED && acceptance->is_chunk_new)
            return memo->count > 1 ? error_set(error, STATUS_DB_RETRY, "a chunk of a refused update")
                                   : db_rollback_to_savepoint(batch->conn, batch->deadline_ns, error);
    }
    return STATUS_OK;
}

static enum status publish_commands(struct refdata_reader *reader, struct memo *memo,
                                    const struct bus_batch *batch, struct error *error)
{
    struct refdata_accepted *accepted = arena_alloc(&memo->arena, memo->count * sizeof *accepted);
    size_t count = 0;
    for (size_t i = 0; i < memo->count; i++)
        if (refdata_acceptance_is_published(&memo->intakes[i].acceptance))
            accepted[count++] =
                (struct refdata_accepted){&memo->intakes[i].update, memo->intakes[i].traceparent, false};
    memo->is_published = count > 0;
    FAILPOINT("adapter.before_publish");
    return refdata_commands_put(reader->flow, batch->conn, accepted, count, batch->deadline_ns, &memo->arena,
                                error);
}

/* The commands' topic will never take it, so its request must not stay either. Which one of several it was is not known: then
 * the bus hands over each alone. */
static bool undo_oversized(struct memo *memo, const struct bus_batch *batch, enum status status,
                           struct error *error)
{
    struct intake *intake = &memo->intakes[0];
    if (memo->count != 1 || (status != STATUS_PAYLOAD_TOO_LARGE && status != STATUS_BAD_REQUEST))
        return false;
    intake->error = *error;
    intake->acceptance.verdict = REFDATA_REFUSED;
    memo->is_published = false;
    return db_rollback_to_savepoint(batch->conn, batch->deadline_ns, error) == STATUS_OK;
}

static void refuse_messages(struct memo *memo, struct bus_batch *batch)
{
    for (size_t i = 0; i < memo->count; i++) {
        struct intake *intake = &memo->intakes[i];
        if (intake->acceptance.verdict != REFDATA_REFUSED)
            continue;
        if (intake->error.status == STATUS_OK)
            refdata_acceptance_error(&intake->acceptance, &intake->error);
        bus_batch_term(batch, intake->at, "%s: %s", status_code(intake->error.status), intake->error.message);
    }
}

void refdata_reader_handle(void *context, struct bus_batch *batch)
{
    struct refdata_reader *reader = context;
    struct error error = {0};
    struct memo *memo = read_messages(reader, batch);
    batch->memo = memo;
    if (memo->count == 0)
        return;
    enum status status = accept_updates(memo, batch, &error);
    FAILPOINT("adapter.after_requests");
    if (status == STATUS_OK)
        status = free_chunks(memo, batch, &error);
    if (status == STATUS_OK)
        status = publish_commands(reader, memo, batch, &error);
    FAILPOINT("adapter.before_commit");
    if (status == STATUS_OK || undo_oversized(memo, batch, status, &error))
        refuse_messages(memo, batch);
    else if (status != STATUS_DB_DOWN &&
             status != STATUS_CANCELLED) /* the bus finds a lost connection itself */
        bus_batch_rollback(batch, "%s", error.message);
}

/* ---- after the commit ---- */

static void count_results(const struct refdata_reader *reader, const struct memo *memo,
                          const struct bus_batch *batch, size_t settled)
{
    uint64_t replayed = 0, refused = 0;
    for (size_t i = 0; i < settled; i++)
        refused += batch->verdicts[i].kind == BUS_TERM;
    for (size_t i = 0; i < memo->count; i++)
        replayed += memo->intakes[i].at < settled && memo->intakes[i].acceptance.verdict != REFDATA_REFUSED &&
                    !refdata_acceptance_is_published(&memo->intakes[i].acceptance);
    metric_add(reader->outcomes[REFDATA_NEW], settled - refused - replayed);
    metric_add(reader->outcomes[REFDATA_KNOWN], replayed);
    metric_add(reader->outcomes[REFDATA_REFUSED], refused);
}

/* The bus logs the reason of each; this is whose update it would have been. */
static void log_refused(const struct memo *memo, size_t settled)
{
    for (size_t i = 0; i < memo->count; i++) {
        const struct intake *intake = &memo->intakes[i];
        if (intake->at < settled && intake->acceptance.verdict == REFDATA_REFUSED)
            log_warn("update_refused", LOG_CSTR("eventId", intake->update.event_id),
                     LOG_STR("tenantId", intake->update.tenant),
                     LOG_STR("dictCode", intake->update.dict_code), LOG_CSTR("source", "KAFKA"),
                     LOG_CSTR("code", status_code(intake->error.status)));
    }
}

void refdata_reader_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    struct refdata_reader *reader = context;
    struct memo *memo = batch->memo;
    if (!memo)
        return;
    FAILPOINT("adapter.after_commit");
    if (memo->is_published)
        refdata_commands_wake(reader->flow);
    count_results(reader, memo, batch, settled);
    log_refused(memo, settled);
    free_memo(memo);
}

void refdata_reader_uncommitted(void *context, const struct bus_batch *batch)
{
    (void)context;
    free_memo(batch->memo);
}

void refdata_reader_gap(void *context, unsigned partition, int64_t offset, int64_t next)
{
    const struct refdata_reader *reader = context;
    log_error("adapter_messages_lost", LOG_STR("topic", reader->source->topic),
              LOG_INT("partition", partition), LOG_INT("offset", offset), LOG_INT("next", next));
}
