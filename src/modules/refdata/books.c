/* The books of updates. In one snapshot of the database every undecided update has one carrier: a message of the embedded bus, a row of
 * command_outbox, or a snapshot that is being assembled. An update that Kafka carries has none of these. For such updates the ends of
 * the topic's partitions are read; when the group has committed past them, an update that was published before and is still undecided
 * is lost. */
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "kernel/books.h"
#include "kernel/engines.h"
#include "modules/refdata/refdata.h"

enum { ASK_AGAIN_MS = 100, ASK_MS = 10000 };

static const struct db_statement count_sql = DB_STATEMENT(
    "select count(*), count(*) filter (where status <> 'PENDING'),"
    "       (extract(epoch from clock_timestamp()) * 1000000)::bigint from refdata.update_request");

/* $1 topic, $2 group. A chunk may have several carriers: those of one event, and their snapshot. */
static const struct db_statement wrong_sql =
    DB_STATEMENT("select tenant_id, event_id, dict_code, carriers, is_given_up::int,"
                 "       (extract(epoch from coalesce(published_at, created_at)) * 1000000)::bigint"
                 " from refdata.undecided($1, $2, '-infinity', 'infinity')"
                 " where carriers = 0 or (carriers > 1 and snapshot_id is null) order by created_at");
enum { TENANT, EVENT_ID, DICT_CODE, CARRIERS, IS_PUBLISH_FAILED, AT_US };

struct refdata_book {
    struct books *books;
    const char *topic;
    char group[REFDATA_GROUP_BYTES];
    bool is_on_kafka;
    int64_t accepted, decided, now_us;
    struct db_result *wrong;
};

static enum status read_updates(struct refdata_book *book, struct db_conn *conn, struct error *error)
{
    struct db_result *counts = NULL;
    int64_t deadline_ns = book->books->deadline_ns;
    enum status status = db_query(conn, &count_sql, DB_NO_PARAMS, deadline_ns, &counts, error);
    if (status == STATUS_OK)
        status = db_query(conn, &wrong_sql, DB_PARAMS(db_cstr(book->topic), db_cstr(book->group)),
                          deadline_ns, &book->wrong, error);
    if (status == STATUS_OK) {
        book->accepted = db_result_i64(counts, 0, 0);
        book->decided = db_result_i64(counts, 0, 1);
        book->now_us = db_result_i64(counts, 0, 2);
    }
    db_result_free(counts);
    return status;
}

/* *is_passed: the group has committed everything that was in the topic when this was called. */
static enum status wait_for_group(const struct refdata_book *book, bool *is_passed, struct error *error)
{
    struct arena arena = ARENA(4096);
    struct bus_kafka_config config = {.brokers = NULL};
    struct bus_kafka_position positions[BUS_PARTITIONS_MAX];
    int64_t ends[BUS_PARTITIONS_MAX], deadline_ns = clock_deadline_ms(book->books->patience_ms);
    unsigned partitions = 0, count = 0;
    kernel_engine_kafka(config_section(book->books->config, "kafka"), &arena, &config);
    enum status status = bus_kafka_positions(&config, book->topic, book->group, clock_deadline_ms(ASK_MS),
                                             positions, &partitions, error);
    for (unsigned i = 0; i < partitions; i++)
        ends[i] = positions[i].end;
    for (count = partitions; status == STATUS_OK;) {
        *is_passed = count == partitions;
        for (unsigned i = 0; i < count && *is_passed; i++)
            *is_passed = positions[i].committed >= ends[i];
        if (*is_passed || clock_mono_ns() >= deadline_ns)
            break;
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * CLOCK_NS_PER_MS}, NULL);
        status = bus_kafka_positions(&config, book->topic, book->group, clock_deadline_ms(ASK_MS), positions,
                                     &count, error);
    }
    arena_deinit(&arena);
    return status;
}

/* For updates without a carrier in the database. Sets *published_us: those published before then are lost if the books, which are read
 * again, still have them. */
static enum status ask_kafka(struct refdata_book *book, struct db_conn *conn, int64_t *published_us,
                             struct error *error)
{
    bool is_passed = false;
    *published_us = 0; /* none is lost */
    int64_t before_us = book->now_us;
    enum status status = wait_for_group(book, &is_passed, error);
    if (status != STATUS_OK || !is_passed)
        return status;
    *published_us = before_us;
    db_rollback(conn);
    db_result_free(book->wrong);
    book->wrong = NULL;
    status = db_begin(conn, DB_REPEATABLE_READ_ONLY, book->books->deadline_ns, error);
    return status == STATUS_OK ? read_updates(book, conn, error) : status;
}

/* Its dictionary is in another database now, whose group handles its command; the auditor copies the decision, or publishes it again. */
static bool is_moved(const struct refdata_book *book, const struct refdata_settings *settings,
                     struct str code)
{
    int here = refdata_settings_database(settings, str_from(book->books->target->name));
    for (size_t i = 0; book->is_on_kafka && i < settings->dictionaries.count; i++) {
        const struct refdata_dictionary_settings *dictionary = refdata_settings_dictionary(settings, i);
        if (str_eq(dictionary->code, code))
            return refdata_settings_database(settings, dictionary->postgres) != here;
    }
    return false;
}

enum status refdata_books(struct books *books, struct db_conn *conn, struct error *error)
{
    const struct refdata_settings *settings = config_section(books->config, refdata_section.name);
    const struct kernel_bus_settings *bus = config_section(books->config, "bus");
    struct refdata_book book = {.books = books, .is_on_kafka = bus->commands == KERNEL_KAFKA};
    struct books_line line = {.kind = "update"};
    int64_t published_us = INT64_MAX;
    book.topic = book.is_on_kafka ? settings->kafka.commands_topic.ptr : REFDATA_COMMANDS;
    refdata_buses_name_group(settings, str_from(books->target->name),
                             book.is_on_kafka ? settings->kafka.group : STR(REFDATA_APPLY_GROUP),
                             bus->commands, book.group);
    enum status status = read_updates(&book, conn, error);
    if (status == STATUS_OK && book.is_on_kafka && db_result_rows(book.wrong) > 0)
        status = ask_kafka(&book, conn, &published_us, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(book.wrong); i++) {
        bool is_doubled = db_result_i64(book.wrong, i, CARRIERS) > 1;
        bool is_publish_failed = db_result_i64(book.wrong, i, IS_PUBLISH_FAILED) == 1;
        char id[256];
        if (!is_doubled && !is_publish_failed &&
            (db_result_i64(book.wrong, i, AT_US) >= published_us ||
             is_moved(&book, settings, db_result_str(book.wrong, i, DICT_CODE))))
            continue; /* Kafka may have it */
        line.lost += !is_doubled;
        line.doubled += is_doubled;
        snprintf(id, sizeof id, "%.*s/%.*s of %.*s", STR_ARG(db_result_str(book.wrong, i, TENANT)),
                 STR_ARG(db_result_str(book.wrong, i, EVENT_ID)),
                 STR_ARG(db_result_str(book.wrong, i, DICT_CODE)));
        books->on_culprit(books, line.kind, str_from(id),
                          is_doubled          ? "is carried by several messages"
                          : is_publish_failed ? "its command could not be published"
                          : book.is_on_kafka  ? "Kafka does not have its command any more"
                                              : "its command is not on the bus any more");
    }
    db_result_free(book.wrong);
    line.accepted = book.accepted;
    line.decided = book.decided;
    if (status == STATUS_OK)
        books->on_line(books, &line);
    return status;
}
