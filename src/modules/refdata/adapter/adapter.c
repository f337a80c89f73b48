/* The adapter. What is an update is accepted in the bus's own transaction, what is not becomes a dead letter with its reason.
 *
 * Nothing of a message is decided by time: one that is not committed is redelivered and judged again. A dictionary whose SQL
 * PostgreSQL refuses for now is not the message's fault: the partition waits for it, as the sender of a POST would.
 *
 * Each database that a source writes to has a Kafka bus of its own, so that positions commit after that database's transactions,
 * and threads of its own, so that however many partitions wait for PostgreSQL, nothing else waits for them. */
#include "modules/refdata/adapter/adapter.h"

#include <stdlib.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/span.h"

enum { ARENA_BYTES = 65536, OWN_THREADS = 2 };

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
    struct span *span;      /* NULL = not recorded */
    struct refdata_acceptance acceptance;
    struct error error; /* of REFUSED */
};

/* From the handler to the commit. */
struct memo {
    struct arena arena;
    struct intake *intakes;
    size_t count;
    size_t published; /* so many of them */
};

static void free_memo(struct memo *memo)
{
    if (!memo)
        return;
    arena_deinit(&memo->arena);
    free(memo);
}

static void end_span(const struct intake *intake, bool is_committed)
{
    if (!intake->span)
        return;
    span_put_str(intake->span, "freshet.tenant.id", intake->update.tenant);
    span_put_str(intake->span, "freshet.dict.code", intake->update.dict_code);
    span_put_str(intake->span, "freshet.event.id", str_from(intake->update.event_id));
    if (!is_committed)
        span_fail(intake->span, STR("not_committed"));
    else if (intake->acceptance.result == REFDATA_REFUSED)
        span_fail(intake->span, str_from(status_code(intake->error.status)));
    span_end(intake->span);
}

/* ---- one message ---- */

/* False: no later message may be looked at. */
static bool read_message(const struct refdata_reader *reader, const struct refdata_catalog *catalog,
                         struct memo *memo, struct bus_batch *batch, size_t at)
{
    const struct bus_message *message = &batch->messages[at];
    const struct refdata_limits *limits = &catalog->updates.limits;
    struct str traceparent = bus_message_header(message, STR(BUS_HEADER_TRACEPARENT));
    struct intake *intake = &memo->intakes[memo->count];
    struct refdata_dictionary *dictionary;
    struct error error = {0};
    struct trace trace;
    enum status status =
        refdata_translate(reader->source, message, limits, &memo->arena, &intake->update, &error);
    if (status == STATUS_OK)
        status = refdata_acceptance_find(catalog, intake->update.dict_code, &dictionary, &error);
    if (status == STATUS_OK && dictionary->database != reader->database)
        status = error_set_field(&error, STATUS_BAD_REQUEST, "dictCode",
                                 "the dictionary %.*s lives in another database than this source's",
                                 STR_ARG(dictionary->code));
    if (status == STATUS_OK)
        status = refdata_acceptance_check(dictionary, &intake->update, &error);
    if (status == STATUS_OK)
        status = refdata_commands_check(reader->database, &intake->update, &error);
    if (status == STATUS_DICTIONARY_UNAVAILABLE) {
        log_warn("adapter_waits", LOG_STR("topic", message->topic), LOG_INT("partition", message->partition),
                 LOG_INT("offset", message->offset), LOG_STR("dictCode", intake->update.dict_code),
                 LOG_TRACE(traceparent), LOG_ERROR_FIELDS(&error));
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
        .subject = arena_printf(&memo->arena, "kafka:%.*s", STR_ARG(reader->source->settings->topic))};
    intake->traceparent =
        span_follow_root(&intake->span, SPAN_CONSUMER, "accept message",
                         trace_parse(traceparent, &trace) ? traceparent : STR_NONE, &memo->arena);
    span_put_str(intake->span, "messaging.system", STR("kafka"));
    span_put_str(intake->span, "messaging.destination.name", message->topic);
    span_put_int(intake->span, "messaging.kafka.offset", message->offset);
    memo->count++;
    return true;
}

/* ---- all of them ---- */

/* Where a single update turns out to be refused, what was written for it is rolled back to the savepoint: its chunk was never
 * accepted, and must stay free for another update. Others of a larger batch may have found that chunk known: then the bus hands
 * over each message alone. */
static enum status accept_updates(struct memo *memo, const struct bus_batch *batch, struct error *error)
{
    static const struct db_statement savepoint_sql = DB_STATEMENT(DB_SAVEPOINT_SQL);
    struct refdata_acceptance **acceptances =
        arena_alloc(&memo->arena, memo->count * sizeof(struct refdata_acceptance *));
    struct db_result *results[2] = {NULL};
    bool is_single = memo->count == 1;
    for (size_t i = 0; i < memo->count; i++)
        acceptances[i] = &memo->intakes[i].acceptance;
    db_pipeline_begin(batch->conn);
    if (is_single)
        db_pipeline_add(batch->conn, &savepoint_sql, DB_NO_PARAMS);
    refdata_acceptance_add(batch->conn, acceptances, memo->count, 0, false, &memo->arena);
    enum status status =
        db_pipeline_end(batch->conn, batch->deadline_ns, results, 1 + is_single, NULL, error);
    if (status == STATUS_OK)
        status = refdata_acceptance_take(batch->conn, results[is_single], acceptances, memo->count,
                                         batch->deadline_ns, error);
    db_result_free(results[0]);
    db_result_free(results[1]);
    FAILPOINT("adapter.after_requests");
    for (size_t i = 0; status == STATUS_OK && i < memo->count; i++)
        if (acceptances[i]->result == REFDATA_REFUSED && acceptances[i]->is_chunk_new)
            return is_single ? db_rollback_to_savepoint(batch->conn, batch->deadline_ns, error)
                             : error_set(error, STATUS_DB_RETRY, "a chunk of a refused update");
    return status;
}

void refdata_reader_handle(void *context, struct bus_batch *batch)
{
    struct refdata_reader *reader = context;
    struct error error = {0};
    struct refdata_catalog *catalog = refdata_database_catalog(reader->database);
    struct memo *memo = batch->memo = memory_zalloc(sizeof *memo);
    memo->arena = ARENA(ARENA_BYTES);
    memo->intakes = arena_zalloc(&memo->arena, batch->count * sizeof *memo->intakes);
    for (size_t i = 0; i < batch->count && read_message(reader, catalog, memo, batch, i); i++)
        ;
    refdata_catalog_unref(catalog);
    if (memo->count == 0)
        return;
    enum status status = accept_updates(memo, batch, &error);
    if (status == STATUS_OK) {
        struct refdata_accepted *accepted = arena_alloc(&memo->arena, memo->count * sizeof *accepted);
        size_t count = 0;
        for (size_t i = 0; i < memo->count; i++)
            if (refdata_acceptance_is_published(&memo->intakes[i].acceptance))
                accepted[count++] =
                    (struct refdata_accepted){&memo->intakes[i].update, memo->intakes[i].traceparent, false};
        memo->published = count;
        FAILPOINT("adapter.before_publish");
        status = refdata_commands_put(reader->database, batch->conn, accepted, count, batch->deadline_ns,
                                      &memo->arena, &error);
    }
    FAILPOINT("adapter.before_commit");
    /* One that the commands' topic will never take is refused, and its request must not stay either. Which one of several it was is
     * not known: then the bus hands over each alone. */
    if (memo->count == 1 && (status == STATUS_PAYLOAD_TOO_LARGE || status == STATUS_BAD_REQUEST)) {
        memo->intakes[0].error = error;
        memo->intakes[0].acceptance.result = REFDATA_REFUSED;
        memo->published = 0;
        if (db_rollback_to_savepoint(batch->conn, batch->deadline_ns, &error) == STATUS_OK)
            status = STATUS_OK;
    }
    if (status != STATUS_OK) {
        if (status != STATUS_DB_DOWN &&
            status != STATUS_CANCELLED) /* the bus finds a lost connection itself */
            bus_batch_rollback(batch, "%s", error.message);
        return;
    }
    for (size_t i = 0; i < memo->count; i++) {
        struct intake *intake = &memo->intakes[i];
        if (intake->acceptance.result != REFDATA_REFUSED)
            continue;
        if (intake->error.status == STATUS_OK)
            refdata_acceptance_error(&intake->acceptance, &intake->error);
        bus_batch_term(batch, intake->at, "%s: %s", status_code(intake->error.status), intake->error.message);
    }
}

/* ---- after the commit ---- */

/* The bus logs the reason of each dead letter; this names the update. */
void refdata_reader_committed(void *context, const struct bus_batch *batch, size_t settled)
{
    struct refdata_reader *reader = context;
    struct memo *memo = batch->memo;
    uint64_t replayed = 0, refused = 0;
    if (!memo)
        return;
    FAILPOINT("adapter.after_commit");
    if (memo->published > 0)
        refdata_commands_wake(reader->database, memo->published);
    for (size_t i = 0; i < settled; i++)
        refused += batch->verdicts[i].kind == BUS_TERM;
    for (size_t i = 0; i < memo->count; i++) {
        const struct intake *intake = &memo->intakes[i];
        end_span(intake, intake->at < settled);
        if (intake->at >= settled)
            continue;
        if (intake->acceptance.result == REFDATA_REFUSED)
            log_warn("update_refused", LOG_CSTR("eventId", intake->update.event_id),
                     LOG_STR("tenantId", intake->update.tenant),
                     LOG_STR("dictCode", intake->update.dict_code), LOG_CSTR("source", "KAFKA"),
                     LOG_CSTR("code", status_code(intake->error.status)), LOG_TRACE(intake->traceparent));
        else
            replayed += !refdata_acceptance_is_published(&intake->acceptance);
    }
    metric_add(reader->outcomes[REFDATA_NEW], settled - refused - replayed);
    metric_add(reader->outcomes[REFDATA_KNOWN], replayed);
    metric_add(reader->outcomes[REFDATA_REFUSED], refused);
    free_memo(memo);
}

void refdata_reader_uncommitted(void *context, const struct bus_batch *batch)
{
    struct memo *memo = batch->memo;
    (void)context;
    for (size_t i = 0; memo && i < memo->count; i++)
        end_span(&memo->intakes[i], false);
    free_memo(memo);
}

void refdata_reader_gap(void *context, unsigned partition, int64_t offset, int64_t next)
{
    const struct refdata_reader *reader = context;
    log_error("adapter_messages_lost", LOG_STR("topic", reader->source->settings->topic),
              LOG_INT("partition", partition), LOG_INT("offset", offset), LOG_INT("next", next));
}

/* ---- what is read for a database ---- */

struct refdata_adapter {
    struct arena arena; /* of the sources */
    struct worker_pool *workers;
    struct bus *bus; /* the site's; NULL: it could not be made */
    size_t count;
    struct refdata_reader readers[];
};

/* A reader for each source whose updates go to this database. */
static enum status add_readers(struct refdata_adapter *adapter, struct refdata_database *database,
                               struct error *error)
{
    static const char *const results[] = {
        [REFDATA_NEW] = "accepted", [REFDATA_KNOWN] = "replayed", [REFDATA_REFUSED] = "refused"};
    const struct refdata_settings *settings = database->refdata->first;
    const struct refdata_source_settings *sources = settings->adapter.sources.items;
    const struct kernel_postgres *blocks = settings->postgres.items;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < settings->adapter.sources.count && status == STATUS_OK; i++) {
        int block = refdata_source_database(settings, &sources[i]);
        if (block < 0 || !str_eq(blocks[block].name, database->name))
            continue;
        struct refdata_adapter_source *source = arena_alloc(&adapter->arena, sizeof *source);
        struct refdata_reader *reader = &adapter->readers[adapter->count++];
        status = refdata_source_init(source, &sources[i], i, NULL, &adapter->arena, error);
        *reader = (struct refdata_reader){.database = database, .source = source};
        for (size_t k = 0; k < sizeof results / sizeof results[0]; k++)
            reader->outcomes[k] = metric_series_get(&refdata_adapter_messages_family,
                                                    (struct str[]){sources[i].topic, str_from(results[k])});
    }
    return status;
}

/* What is in a topic when the group is new is wanted too. */
static enum status open_bus(struct refdata_adapter *adapter, struct refdata_database *database,
                            struct error *error)
{
    struct bus_topic *topics = arena_zalloc(&adapter->arena, adapter->count * sizeof *topics);
    struct db_target target = database->site.target;
    target.connections_max = (unsigned)database->refdata->first->adapter.handlers;
    for (size_t i = 0; i < adapter->count; i++)
        topics[i].name =
            adapter->readers[i].source->settings->topic.ptr; /* its partitions are not ours to count */
    enum status status = refdata_buses_open_kafka(
        database->refdata,
        &(struct bus_kafka_config){
            .workers = adapter->workers, .target = &target, .topics = topics, .topic_count = adapter->count},
        &adapter->bus, error);
    for (size_t i = 0; i < adapter->count && status == STATUS_OK; i++) {
        struct refdata_reader *reader = &adapter->readers[i];
        status = bus_subscribe(adapter->bus,
                               &(struct bus_subscription){.topic = reader->source->settings->topic.ptr,
                                                          .group = reader->source->settings->group.ptr,
                                                          .mode = BUS_SHARED,
                                                          .from = BUS_FROM_START,
                                                          .parallel = target.connections_max,
                                                          .context = reader,
                                                          .handler = refdata_reader_handle,
                                                          .on_committed = refdata_reader_committed,
                                                          .on_uncommitted = refdata_reader_uncommitted,
                                                          .on_gap = refdata_reader_gap},
                               error);
    }
    return status;
}

static void *create_adapter(void *owner, struct error *failure)
{
    struct refdata_database *database = owner;
    size_t sources = database->refdata->first->adapter.sources.count;
    struct refdata_adapter *adapter = database->adapter =
        memory_zalloc(sizeof *adapter + sources * sizeof adapter->readers[0]);
    struct error error = {0};
    (void)failure; /* the others go on without it */
    adapter->arena = ARENA(4096);
    enum status status = add_readers(adapter, database, &error);
    if (adapter->count == 0) {
        free(adapter);
        return database->adapter = NULL;
    }
    adapter->workers = worker_pool_create(
        "adapter", (unsigned)database->refdata->first->adapter.handlers + OWN_THREADS, SIZE_MAX);
    if (status == STATUS_OK)
        status = open_bus(adapter, database, &error);
    if (status != STATUS_OK) {
        log_error("adapter_not_started", LOG_STR("database", database->name), LOG_ERROR_FIELDS(&error));
        bus_destroy(adapter->bus);
        adapter->bus = NULL;
    } else {
        kernel_site_add_bus(&database->site, adapter->bus);
    }
    return adapter;
}

static void stop_adapter(void *part)
{
    const struct refdata_adapter *adapter = part;
    worker_pool_stop(adapter->workers);
}

static void destroy_adapter(void *part)
{
    struct refdata_adapter *adapter = part;
    worker_pool_destroy(adapter->workers);
    arena_deinit(&adapter->arena);
    free(adapter);
}

const struct kernel_part refdata_adapter_part = {.roles = {"adapter"},
                                                 .create = create_adapter,
                                                 .stop = stop_adapter,
                                                 .destroy = destroy_adapter,
                                                 .outlives_buses = true};

bool refdata_adapter_is_up(const struct refdata_adapter *adapter)
{
    return adapter->bus && bus_is_up(adapter->bus);
}
