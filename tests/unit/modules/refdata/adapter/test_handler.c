/* Batches of an external topic against PostgreSQL (R9): each message is accepted once, in order, with its request and its
 * command in one transaction; what is none gets its reason, and what is behind it goes on. */
#include "../load.h"

#include <stdio.h>
#include <stdlib.h>

#include "../../../db/pg_fixture.h"
#include "base/clock.h"
#include "bus/bus_postgres.h"
#include "modules/refdata/adapter/adapter.h"

#define EVENT_A "aaaaaaaa-0000-4000-8000-000000000001"
#define EVENT_B "bbbbbbbb-0000-4000-8000-000000000002"
#define SNAP "cccccccc-0000-4000-8000-000000000003"
#define BATCH_MAX 8

static const char yaml[] =
    "refdata:\n  postgres: {jdbcUrl: \"%s\"}\n"
    "  dictionaries:\n    - code: C\n    - {code: RO, loadSql: \"select 'a' as k, '1'::jsonb as v where :tenantId = ''\"}\n"
    "  updates: {items: 3}\n"
    "  adapter: {sources: [{topic: mdm, tenant: {fixed: acme}}]}\n";

struct rig {
    struct config *config;
    struct arena arena;
    struct refdata refdata;
    struct refdata_database *database;
    struct refdata_adapter_source source;
    struct refdata_reader reader;
    struct refdata_catalog *catalog;
    struct worker_pool *workers;
    struct bus_message messages[BATCH_MAX];
    struct bus_verdict verdicts[BATCH_MAX];
    size_t count;
    int64_t offset;
};

static int64_t soon(void)
{
    return clock_deadline_ms(10000);
}

static struct db_conn *acquire(struct rig *rig)
{
    struct db_conn *conn = NULL;
    struct error error = {0};
    if (db_acquire(rig->catalog->databases[0]->site.pool, soon(), &conn, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return conn;
}

/* One line a row, columns with a space between. */
static void table_is(struct rig *rig, const char *sql, const char *expected)
{
    struct db_conn *conn = acquire(rig);
    struct db_statement statement;
    struct db_result *result = NULL;
    struct error error = {0};
    struct buf text = {0};
    statement = db_statement_of(str_from(sql));
    if (db_query(conn, &statement, NULL, soon(), &result, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    for (size_t row = 0; row < db_result_rows(result); row++)
        buf_printf(&text, "%s\n", db_result_str(result, row, 0).ptr);
    bool same = str_eq(buf_str(&text), str_from(expected));
    if (!same)
        print_message("%.*s", STR_ARG(buf_str(&text)));
    db_result_free(result);
    db_release(conn);
    buf_deinit(&text);
    assert_true(same);
}

static void run(struct rig *rig, const char *sql)
{
    struct db_conn *conn = acquire(rig);
    struct db_statement statement;
    struct error error = {0};
    statement = db_statement_of(str_from(sql));
    if (db_exec(conn, &statement, NULL, soon(), NULL, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    db_release(conn);
}

static void migrate(struct rig *rig)
{
    struct error error = {0};
    unsigned applied;
    if (db_migrate(rig->catalog->databases[0]->site.pool, "platform", platform_migrations, soon(), &applied,
                   &error) != STATUS_OK ||
        db_migrate(rig->catalog->databases[0]->site.pool, "refdata", refdata_migrations, soon(), &applied,
                   &error) != STATUS_OK)
        fail_msg("%s", error.message);
}

/* Nothing is published by it: commands are rows of an outbox here. It only says how large one may be. */
static void open_commands(struct rig *rig)
{
    const struct bus_topic topic = {.name = REFDATA_COMMANDS, .partitions = 1};
    struct db_target target = rig->database->site.target;
    struct error error = {0};
    rig->workers = worker_pool_create("test", 1, SIZE_MAX);
    target.connections_max = 3;
    if (bus_postgres_create(&(struct bus_postgres_config){.loop = rig->refdata.home,
                                                          .workers = rig->workers,
                                                          .target = &target,
                                                          .topics = &topic,
                                                          .topic_count = 1,
                                                          .message_bytes_max = 4096},
                            &rig->database->buses.commands, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    struct kernel_site *site = &rig->database->site;
    site->home = rig->refdata.home;
    site->workers = rig->workers;
    rig->database->buses.shared = true;
    if (!refdata_commands_part.create(rig->database, &error) || error.status != STATUS_OK)
        fail_msg("%s", error.message);
}

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof *rig);
    struct error error = {0};
    char text[1024];
    snprintf(text, sizeof text, yaml, pg_fixture_url());
    rig->config = load(text);
    rig->arena = ARENA(1024);
    assert_int_equal(refdata_source_init(&rig->source, settings_of(rig->config)->adapter.sources.items, 0,
                                         NULL, &rig->arena, &error),
                     STATUS_OK);
    rig->catalog = catalog_of(text, NULL);
    pthread_mutex_init(&rig->refdata.catalog_lock, NULL);
    rig->refdata.home = loop_create(0, 0);
    rig->database = rig->catalog->databases[0];
    rig->database->refdata = &rig->refdata;
    rig->database->catalog = rig->catalog;
    open_commands(rig);
    metrics_register(&refdata_adapter_messages_family);
    rig->reader = (struct refdata_reader){.database = rig->database, .source = &rig->source};
    static const char *const results[] = {"accepted", "replayed", "refused"};
    for (size_t i = 0; i < 3; i++)
        rig->reader.outcomes[i] =
            metric_series_get(&refdata_adapter_messages_family,
                              (struct str[]){rig->source.settings->topic, str_from(results[i])});
    migrate(rig);
    run(rig,
        "truncate refdata.update_request, refdata.chunk_request, refdata.command_outbox restart identity");
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;
    bus_stop(rig->database->buses.commands, 0);
    bus_destroy(rig->database->buses.commands);
    kernel_site_close(&rig->database->site); /* with the workers */
    loop_destroy(rig->refdata.home);
    pthread_mutex_destroy(&rig->refdata.catalog_lock);
    refdata_catalog_unref(rig->catalog);
    arena_deinit(&rig->arena);
    config_free(rig->config);
    free(rig);
    return 0;
}

static void add(struct rig *rig, const char *payload)
{
    rig->messages[rig->count++] = (struct bus_message){.topic = STR("mdm"),
                                                       .payload = str_from(payload),
                                                       .offset = rig->offset++,
                                                       .created_us = 1772193600123456};
}

/* As the driver hands a batch over. Returns what was settled; 0 = it was rolled back. */
static size_t deliver(struct rig *rig)
{
    struct bus_batch batch = {.messages = rig->messages,
                              .count = rig->count,
                              .verdicts = rig->verdicts,
                              .conn = acquire(rig),
                              .deadline_ns = soon()};
    struct error error = {0};
    size_t settled = 0;
    memset(rig->verdicts, 0, sizeof rig->verdicts);
    assert_int_equal(db_begin(batch.conn, DB_READ_COMMITTED, soon(), &error), STATUS_OK);
    refdata_reader_handle(&rig->reader, &batch);
    bool stands = !batch.rolled_back;
    if (stands && db_commit(batch.conn, soon(), &error) != STATUS_OK)
        fail_msg("%s", error.message);
    db_release(batch.conn);
    while (stands && settled < batch.count && rig->verdicts[settled].kind != BUS_RETRY)
        settled++;
    if (stands)
        refdata_reader_committed(&rig->reader, &batch, settled);
    else
        refdata_reader_uncommitted(&rig->reader, &batch);
    rig->count = 0;
    return settled;
}

static void dead(struct rig *rig, size_t at, const char *reason)
{
    assert_int_equal(rig->verdicts[at].kind, BUS_TERM);
    assert_string_equal(rig->verdicts[at].reason, reason);
}

#define DELTA(event, key)                                                                              \
    "{\"eventId\":\"" event "\",\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[{\"key\":\"" key \
    "\",\"op\":\"UPSERT\",\"payload\":{\"n\" : 1.10}}]}"
#define CHUNK(event, index, key)                                                                      \
    "{\"eventId\":\"" event "\",\"dictCode\":\"C\",\"eventType\":\"SNAPSHOT\",\"snapshotId\":\"" SNAP \
    "\",\"chunkIndex\":" #index ",\"chunksTotal\":2,\"items\":[{\"key\":\"" key "\",\"payload\":1}]}"
#define REQUESTS                                                                                                            \
    "select event_id || ' ' || tenant_id || ' ' || dict_code || ' ' || status || ' ' || source from refdata.update_request" \
    " order by 1"
#define COMMANDS \
    "select event_id || ' ' || (payload::json->'items'->0->>'key') from refdata.command_outbox order by id"

static void a_message_is_accepted_with_its_command(void **state)
{
    struct rig *rig = *state;
    uint64_t before = metric_value(rig->reader.outcomes[REFDATA_NEW]);
    struct bus_header trace = {STR("traceparent"),
                               STR("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")};
    add(rig, DELTA(EVENT_B, "b"));
    add(rig, DELTA(EVENT_A, "a"));
    rig->messages[0].headers = &trace;
    rig->messages[0].header_count = 1;
    assert_int_equal(deliver(rig), 2);
    table_is(rig, REQUESTS, EVENT_A " acme C PENDING KAFKA\n" EVENT_B " acme C PENDING KAFKA\n");
    table_is(rig, COMMANDS, EVENT_B " b\n" EVENT_A " a\n");
    table_is(rig, "select coalesce(traceparent, 'none') from refdata.command_outbox order by id",
             "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nnone\n");
    table_is(
        rig, "select payload from refdata.command_outbox where id = 1",
        "{\"eventId\":\"" EVENT_B "\",\"tenantId\":\"acme\",\"source\":\"KAFKA\",\"dictCode\":\"C\","
        "\"eventType\":\"DELTA\",\"chunkIndex\":1,\"chunksTotal\":1,\"occurredAt\":\"2026-02-27T12:00:00.123456Z\","
        "\"items\":[{\"key\":\"b\",\"op\":\"UPSERT\",\"payload\":{\"n\" : 1.10}}]}\n");
    assert_int_equal(metric_value(rig->reader.outcomes[REFDATA_NEW]) - before, 2);
}

static void the_same_message_twice_has_one_effect(void **state)
{
    struct rig *rig = *state;
    uint64_t before = metric_value(rig->reader.outcomes[REFDATA_KNOWN]);
    add(rig, DELTA(EVENT_A, "a"));
    add(rig, " " DELTA(EVENT_A, "a")); /* a sender's second try, in the same batch */
    add(rig, "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[]}");
    assert_int_equal(deliver(rig), 3);
    rig->offset = 0; /* the offsets were not committed */
    add(rig, DELTA(EVENT_A, "a"));
    add(rig, DELTA(EVENT_A, "a"));
    add(rig, "{\"dictCode\":\"C\",\"eventType\":\"DELTA\",\"items\":[]}");
    assert_int_equal(deliver(rig), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(rig->verdicts[i].kind, BUS_ACK);
    table_is(rig, "select count(*)::text from refdata.update_request", "2\n");
    table_is(rig, "select count(*)::text from refdata.command_outbox", "2\n");
    assert_int_equal(metric_value(rig->reader.outcomes[REFDATA_KNOWN]) - before, 4);
}

static void another_content_under_a_known_event_is_a_dead_letter(void **state)
{
    struct rig *rig = *state;
    add(rig, DELTA(EVENT_A, "a"));
    add(rig, DELTA(EVENT_A, "other"));
    add(rig, DELTA(EVENT_B, "b"));
    assert_int_equal(deliver(rig), 3);
    dead(rig, 1, "EVENT_ID_CONFLICT: this eventId belongs to another update");
    table_is(rig, COMMANDS, EVENT_A " a\n" EVENT_B " b\n");
    add(rig, DELTA(EVENT_B, "other"));
    assert_int_equal(deliver(rig), 1);
    dead(rig, 0, "EVENT_ID_CONFLICT: this eventId belongs to another update");
    table_is(rig, COMMANDS, EVENT_A " a\n" EVENT_B " b\n");
}

static void what_is_no_update_is_a_dead_letter_and_the_rest_goes_on(void **state)
{
    struct rig *rig = *state;
    uint64_t before = metric_value(rig->reader.outcomes[REFDATA_REFUSED]);
    add(rig, "garbage");
    add(rig, DELTA(EVENT_A, "a"));
    add(rig, "{\"dictCode\":\"NONE\",\"eventType\":\"DELTA\",\"items\":[]}");
    add(rig, "{\"dictCode\":\"RO\",\"eventType\":\"DELTA\",\"items\":[]}");
    add(rig, "{\"dictCode\":\"C\",\"eventType\":\"SNAPSHOT\",\"items\":[1,2]}");
    add(rig, "");
    char large[3200];
    snprintf(
        large, sizeof large,
        "{\"dictCode\":\"C\",\"eventType\":\"SNAPSHOT\",\"items\":[{\"key\":\"k\",\"payload\":\"%0*d\"}]}",
        3080, 0);
    add(rig, large); /* for a message on the bus, with all that belongs to it */
    add(rig, DELTA(EVENT_B, "b"));
    assert_int_equal(deliver(rig), 8);
    assert_int_equal(rig->verdicts[0].kind, BUS_TERM);
    dead(rig, 2, "UNKNOWN_DICTIONARY: there is no dictionary called NONE");
    dead(rig, 3, "DICTIONARY_READ_ONLY: the dictionary RO has no apply.upsertSql");
    dead(rig, 4, "BAD_REQUEST: items[0]: must be an object");
    dead(rig, 5, "BAD_REQUEST: the message has no value");
    dead(rig, 6, "PAYLOAD_TOO_LARGE: items: at most 3072 bytes are taken");
    table_is(rig, COMMANDS, EVENT_A " a\n" EVENT_B " b\n");
    assert_int_equal(metric_value(rig->reader.outcomes[REFDATA_REFUSED]) - before, 6);
}

static void a_dictionary_that_is_out_of_order_holds_up_its_partition(void **state)
{
    struct rig *rig = *state;
    struct refdata_dictionary *dictionary = refdata_catalog_find(rig->catalog, STR("RO"));
    atomic_store(&dictionary->state, REFDATA_DISABLED);
    add(rig, DELTA(EVENT_A, "a"));
    add(rig, "{\"dictCode\":\"RO\",\"eventType\":\"DELTA\",\"items\":[]}");
    add(rig, "garbage");
    assert_int_equal(deliver(rig), 1);
    assert_int_equal(rig->verdicts[1].kind, BUS_RETRY);
    assert_int_equal(rig->verdicts[2].kind, BUS_ACK); /* not looked at */
    table_is(rig, COMMANDS, EVENT_A " a\n");
}

static void chunks_are_known_by_snapshot_and_index(void **state)
{
    struct rig *rig = *state;
    add(rig, CHUNK(EVENT_A, 1, "one"));
    add(rig, CHUNK(EVENT_A, 2, "two"));   /* of the same event */
    add(rig, CHUNK(EVENT_B, 1, "one"));   /* again, under another */
    add(rig, CHUNK(EVENT_A, 2, "other")); /* not the same */
    assert_int_equal(deliver(rig), 4);
    dead(rig, 3, "CHUNK_CONFLICT: this chunk of the snapshot was sent before with other content");
    table_is(rig, COMMANDS, EVENT_A " one\n" EVENT_A " two\n" EVENT_B " one\n");
    table_is(rig, REQUESTS, EVENT_A " acme C PENDING KAFKA\n" EVENT_B " acme C PENDING KAFKA\n");
    table_is(rig, "select chunk_index || ' ' || event_id from refdata.chunk_request order by 1",
             "1 " EVENT_A "\n2 " EVENT_A "\n");
}

static void a_chunk_of_a_refused_update_is_free_for_another(void **state)
{
    struct rig *rig = *state;
    add(rig, DELTA(EVENT_A, "a"));
    assert_int_equal(deliver(rig), 1);
    add(rig, CHUNK(EVENT_A, 1, "one")); /* the event is another update's */
    add(rig, CHUNK(EVENT_B, 1, "one"));
    assert_int_equal(deliver(rig), 0); /* they come again one by one */
    add(rig, CHUNK(EVENT_A, 1, "one"));
    assert_int_equal(deliver(rig), 1);
    dead(rig, 0, "EVENT_ID_CONFLICT: this eventId belongs to another update");
    add(rig, CHUNK(EVENT_B, 1, "one"));
    assert_int_equal(deliver(rig), 1);
    table_is(rig, COMMANDS, EVENT_A " a\n" EVENT_B " one\n");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static int start_server(void **state)
{
    (void)state;
    pg_fixture_start();
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    pg_fixture_stop();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_message_is_accepted_with_its_command),
        TEST(the_same_message_twice_has_one_effect),
        TEST(another_content_under_a_known_event_is_a_dead_letter),
        TEST(what_is_no_update_is_a_dead_letter_and_the_rest_goes_on),
        TEST(a_dictionary_that_is_out_of_order_holds_up_its_partition),
        TEST(chunks_are_known_by_snapshot_and_index),
        TEST(a_chunk_of_a_refused_update_is_free_for_another),
    };
    return cmocka_run_group_tests(tests, start_server, stop_server);
}
