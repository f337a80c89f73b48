/* A batch of an external topic: what is an update is accepted in the bus's own transaction, what is none gets its reason.
 *
 * Nothing of a message is decided by time: one that is not committed comes again and is judged again. A dictionary whose
 * SQL PostgreSQL refuses for now is no fault of the message: the partition waits for it, as the sender of a POST would. */
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/trace.h"
#include "modules/refdata/acceptance.h"
#include "modules/refdata/adapter/adapter.h"

enum { ARENA_BYTES = 65536, HEADERS_MAX = 2 };

struct metric_family refdata_adapter_messages_family = {
    .name = "refdata_adapter_messages_total",
    .help = "Messages of external topics: accepted, replayed (known before), refused (now a dead letter).",
    .type = METRIC_COUNTER,
    .labels = {"topic", "result", NULL},
};

/* From the handler to the commit. */
struct memo {
    struct arena arena;
    struct refdata_intake *intakes;
    size_t count;
    bool published;
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
    struct refdata_intake *intake = &memo->intakes[memo->count];
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
    intake->hash = refdata_acceptance_hash(&intake->update, &memo->arena);
    intake->requested_by = arena_printf(&memo->arena, "kafka:%.*s", STR_ARG(reader->source->topic));
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

/* ---- its command ---- */

static void make_command(const struct refdata_intake *intake, struct bus_message *message,
                         struct buf *payload, struct arena *arena)
{
    struct bus_header *headers = arena_alloc(arena, HEADERS_MAX * sizeof *headers);
    const struct refdata_update *update = &intake->update;
    headers[0] = (struct bus_header){STR(BUS_HEADER_EVENT_ID), str_from(update->event_id)};
    headers[1] = (struct bus_header){STR(BUS_HEADER_TRACEPARENT), intake->traceparent};
    refdata_update_put(payload, update);
    *message = (struct bus_message){
        .topic = STR(REFDATA_COMMANDS),
        .key = arena_printf(arena, "%.*s:%.*s", STR_ARG(update->tenant), STR_ARG(update->dict_code)),
        .payload = buf_str(payload),
        .headers = headers,
        .header_count = intake->traceparent.len ? 2 : 1,
    };
}

/* In the order they came. */
static enum status publish(struct refdata_reader *reader, struct memo *memo, const struct bus_batch *batch,
                           struct error *error)
{
    struct bus_message *messages = arena_alloc(&memo->arena, memo->count * sizeof *messages);
    struct buf *payloads = arena_zalloc(&memo->arena, memo->count * sizeof *payloads);
    size_t count = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < memo->count; i++)
        if (refdata_intake_is_published(&memo->intakes[i])) {
            make_command(&memo->intakes[i], &messages[count], &payloads[count], &memo->arena);
            count++;
        }
    FAILPOINT("adapter.before_publish");
    if (count)
        status = refdata_commands_put(reader->flow, batch->conn, messages, count, batch->deadline_ns, error);
    for (size_t i = 0; i < count; i++)
        buf_deinit(&payloads[i]);
    memo->published = count > 0;
    return status;
}

/* ---- all of them ---- */

static enum status set_savepoint(const struct bus_batch *batch, struct error *error)
{
    struct db_statement savepoint;
    db_statement_init(&savepoint, DB_SAVEPOINT_SQL, 0, NULL);
    return db_exec(batch->conn, &savepoint, NULL, batch->deadline_ns, NULL, error);
}

static enum status take_in(struct refdata_reader *reader, struct memo *memo, const struct bus_batch *batch,
                           struct error *error)
{
    enum status status = memo->count == 1 ? set_savepoint(batch, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = refdata_intakes_write(batch->conn, memo->intakes, memo->count, batch->deadline_ns,
                                       &memo->arena, error);
    FAILPOINT("adapter.after_requests");
    return status == STATUS_OK ? publish(reader, memo, batch, error) : status;
}

/* The commands' topic will never take it, so its request must not stay either. Among others it cannot be told which it
 * was: then each comes by itself. */
static bool undo_oversized(struct memo *memo, const struct bus_batch *batch, enum status status,
                           struct error *error)
{
    if (memo->count != 1 || (status != STATUS_PAYLOAD_TOO_LARGE && status != STATUS_BAD_REQUEST))
        return false;
    struct refdata_intake *intake = &memo->intakes[0];
    intake->error = *error;
    intake->result = REFDATA_INTAKE_REFUSED;
    memo->published = false;
    return db_rollback_to_savepoint(batch->conn, batch->deadline_ns, error) == STATUS_OK;
}

static void judge(const struct memo *memo, struct bus_batch *batch)
{
    for (size_t i = 0; i < memo->count; i++) {
        const struct refdata_intake *intake = &memo->intakes[i];
        if (intake->result == REFDATA_INTAKE_REFUSED)
            bus_batch_term(batch, intake->at, "%s: %s", status_code(intake->error.status),
                           intake->error.message);
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
    enum status status = take_in(reader, memo, batch, &error);
    FAILPOINT("adapter.before_commit");
    if (status == STATUS_OK || undo_oversized(memo, batch, status, &error))
        judge(memo, batch);
    else if (status != STATUS_DB_DOWN && status != STATUS_CANCELLED) /* which are the bus's to find */
        bus_batch_rollback(batch, "%s", error.message);
}

/* ---- after it ---- */

static void count_results(const struct refdata_reader *reader, const struct memo *memo,
                          const struct bus_batch *batch, size_t settled)
{
    uint64_t replayed = 0, refused = 0;
    for (size_t i = 0; i < settled; i++)
        refused += batch->verdicts[i].kind == BUS_TERM;
    for (size_t i = 0; i < memo->count; i++)
        replayed += memo->intakes[i].at < settled && memo->intakes[i].result != REFDATA_INTAKE_REFUSED &&
                    !refdata_intake_is_published(&memo->intakes[i]);
    metric_add(reader->outcomes[REFDATA_INTAKE_ACCEPTED], settled - refused - replayed);
    metric_add(reader->outcomes[REFDATA_INTAKE_REPLAYED], replayed);
    metric_add(reader->outcomes[REFDATA_INTAKE_REFUSED], refused);
}

/* The bus has told the reason of each; here is whose update it would have been. */
static void log_refused(const struct memo *memo, size_t settled)
{
    for (size_t i = 0; i < memo->count; i++) {
        const struct refdata_intake *intake = &memo->intakes[i];
        if (intake->at < settled && intake->result == REFDATA_INTAKE_REFUSED)
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
    if (memo->published)
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
