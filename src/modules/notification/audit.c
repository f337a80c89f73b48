/* The auditor of events: an event of entitlements that was published and never arrived here (sql/notification/003_audit.sql) is published
 * again from its outbox. An event that arrives twice has no second effect.
 *
 * On PostgreSQL an event is lost if no message has it. On NATS it is lost if a later event has been handled. While there is no later
 * one, each step publishes a few of the oldest events again as probes, twice as many as in the step before if those have arrived: a
 * consumer that is only slow gets few repetitions. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/metrics.h"
#include "kernel/books.h"
#include "modules/notification/notification.h"

enum {
    STEP_MS = 30000,
    INTERVAL_MIN_MS = 50,
    INTERVAL_MAX_MS = 60000,
    PROBES_MIN = 10,
    PROBES_MAX = 1000,
    /* For so many times ack-wait a message may still be redelivered after a later one was handled. */
    ACK_WAITS = 3,
};
#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define FOR_EVER_MS (3650 * DAY_MS)

struct metric_family notification_audit_family = {
    .name = "notification_audit_total",
    .help = "Events published again: lost, and probes (on NATS, not known to be lost).",
    .type = METRIC_COUNTER,
    .labels = {"result", NULL},
};

/* $1 topic, NULL on NATS, $2 group, $3 age in ms, $4 pause, $5 redelivery, $6 keep, $7 probes. */
static const struct db_statement audit_sql =
    DB_STATEMENT("SELECT tenant_id, event_id, aggregate_key, is_lost::int"
                 " FROM notification.audit_events($1, $2, $3, $4, $5, $6, $7)");

/* $1 topic, $2 group, $3 keep in ms, $4 redelivery in ms, $5 microseconds: the group has settled all that was published before. Events that
 * an operator discarded have an error. */
#define IS_LOST "(u.is_lost OR u.published_at < timestamptz 'epoch' + $5 * interval '1 microsecond')"
#define UNHANDLED                                                                                 \
    " FROM notification.unhandled($1, $2, '-infinity', 'infinity', now() - $3 * interval '1 ms'," \
    "                             $4 * interval '1 ms') u"
static const struct db_statement books_sql = DB_STATEMENT(
    "SELECT (SELECT count(*) FROM entitlement.outbox_events e WHERE e.status = 'PUBLISHED' AND e.last_error IS NULL"
    "         AND e.created_at >= now() - $3 * interval '1 ms'),"
    "       count(*), count(*) FILTER (WHERE " IS_LOST
    "), (extract(epoch from now()) * 1000000)::bigint" UNHANDLED);
static const struct db_statement lost_sql =
    DB_STATEMENT("SELECT u.tenant_id, u.event_id, u.aggregate_key" UNHANDLED " WHERE " IS_LOST
                 " ORDER BY u.published_at LIMIT 1000");
enum { ACCEPTED, OPEN, LOST, NOW_US };

struct notification_audit {
    struct notification *notification;
    int64_t probes;
    size_t probed; /* in the last step */
    bool is_failing;
};

static struct db_param topic_param(const struct kernel_bus_settings *bus)
{
    return bus->events == KERNEL_NATS ? db_null(DB_TEXT) : db_cstr(NOTIFICATION_TOPIC);
}

static int64_t redelivery_ms(const struct notification_settings *settings)
{
    int64_t waits_ms = ACK_WAITS * settings->nats.ack_wait_ms;
    return settings->audit_ms > waits_ms ? settings->audit_ms : waits_ms;
}

/* How long processed_events are kept: whether older events were handled is not known. */
static int64_t keep_ms(const struct notification_settings *settings)
{
    return settings->retention.enabled ? settings->retention.days * DAY_MS : FOR_EVER_MS;
}

static int64_t audit_interval_ms(const struct notification_settings *settings)
{
    int64_t interval_ms = settings->audit_ms / 2;
    return interval_ms < INTERVAL_MIN_MS   ? INTERVAL_MIN_MS
           : interval_ms > INTERVAL_MAX_MS ? INTERVAL_MAX_MS
                                           : interval_ms;
}

static void report_published(struct notification_audit *audit, const struct db_result *rows)
{
    size_t before = audit->probed;
    audit->probed = 0;
    for (size_t i = 0; i < db_result_rows(rows); i++) {
        bool is_lost = db_result_i64(rows, i, 3) == 1;
        const char *result = is_lost ? "lost" : "probe";
        audit->probed += !is_lost;
        metric_add(metric_series_get(&notification_audit_family, (struct str[]){str_from(result)}), 1);
        log_warn("event_lost", LOG_STR("eventId", db_result_str(rows, i, 1)),
                 LOG_STR("tenantId", db_result_str(rows, i, 0)),
                 LOG_STR("aggregateKey", db_result_str(rows, i, 2)), LOG_CSTR("result", result));
    }
    bool arrive = before > 0 && (int64_t)before >= audit->probes;
    audit->probes = arrive && audit->probes < PROBES_MAX ? 2 * audit->probes : audit->probes;
    if (audit->probed == 0)
        audit->probes = PROBES_MIN;
}

static int64_t audit_step(struct task *task, void *context)
{
    struct notification_audit *audit = context;
    const struct notification_settings *settings = audit->notification->settings;
    struct kernel *kernel = audit->notification->kernel;
    int64_t interval_ms = audit_interval_ms(settings);
    struct db_result *rows = NULL;
    struct error error = {0};
    (void)task;
    enum status status = kernel_store_query(
        kernel, &audit_sql,
        DB_PARAMS(topic_param(kernel_bus(kernel)), db_text(settings->nats.durable),
                  db_i64(settings->audit_ms), db_i64(interval_ms), db_i64(redelivery_ms(settings)),
                  db_i64(keep_ms(settings)), db_int(audit->probes)),
        clock_deadline_ms(STEP_MS), &rows, &error);
    if (status == STATUS_OK)
        report_published(audit, rows);
    db_result_free(rows);
    bool is_failing = status != STATUS_OK && status != STATUS_CANCELLED && status != STATUS_UNAVAILABLE;
    if (is_failing && !audit->is_failing)
        log_warn("audit_failed", LOG_CSTR("database", "store"), LOG_ERROR_FIELDS(&error));
    audit->is_failing = is_failing;
    return TASK_MS(interval_ms);
}

void notification_audit_add(struct notification *notification)
{
    struct kernel_site *site = kernel_store(notification->kernel);
    struct notification_audit *audit = arena_zalloc(&site->arena, sizeof *audit);
    audit->notification = notification;
    audit->probes = PROBES_MIN;
    kernel_site_add_task(site, "audit", audit_step, audit,
                         TASK_MS(audit_interval_ms(notification->settings)));
}

/* ---- books ---- */

struct notification_book {
    struct db_param params[6]; /* of books_sql and lost_sql */
    struct db_result *counts, *lost;
};

static enum status read_events(struct notification_book *book, struct books *books, struct db_conn *conn,
                               int64_t settled_us, struct error *error)
{
    db_result_free(book->counts);
    db_result_free(book->lost);
    book->counts = book->lost = NULL;
    book->params[4] = db_i64(settled_us);
    enum status status = db_query(conn, &books_sql, book->params, books->deadline_ns, &book->counts, error);
    return status == STATUS_OK
               ? db_query(conn, &lost_sql, book->params, books->deadline_ns, &book->lost, error)
               : status;
}

/* Only the engine knows its messages: when the group has settled all of them, an event that was published before, and is still not handled,
 * is lost. */
static enum status ask_nats(struct notification_book *book, struct books *books, struct db_conn *conn,
                            const char *group, struct error *error)
{
    /* dead letters last: a message that became one is there when it is settled */
    static const char *const topics[] = {NOTIFICATION_TOPIC, NOTIFICATION_TOPIC BUS_DEAD_SUFFIX};
    int64_t before_us = db_result_i64(book->counts, 0, NOW_US);
    int64_t deadline_ns = clock_deadline_ms(books->patience_ms);
    bool are_settled = true;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < 2 && are_settled && status == STATUS_OK; i++)
        status = kernel_events_are_settled(books->config, books->modules, topics[i], group, deadline_ns,
                                           &are_settled, error);
    if (status != STATUS_OK || !are_settled)
        return status;
    db_rollback(conn);
    status = db_begin(conn, DB_REPEATABLE_READ_ONLY, books->deadline_ns, error);
    return status == STATUS_OK ? read_events(book, books, conn, before_us, error) : status;
}

enum status notification_books(struct books *books, struct db_conn *conn, struct error *error)
{
    const struct notification_settings *settings = config_section(books->config, "notification");
    const struct kernel_bus_settings *bus = config_section(books->config, "bus");
    struct notification_book book = {.params = {topic_param(bus), db_text(settings->nats.durable),
                                                db_i64(keep_ms(settings)),
                                                db_i64(redelivery_ms(settings)), [5] = DB_END}};
    struct books_line line = {.kind = "entitlement.events"};
    enum status status =
        kernel_books_count_rows(books, conn, &notification_delivery_table,
                                "its lease ends in hours: set lease_until of its row to null", error);
    if (status == STATUS_OK)
        status = read_events(&book, books, conn, 0, error);
    if (status == STATUS_OK && bus->events == KERNEL_NATS &&
        db_result_i64(book.counts, 0, OPEN) > db_result_i64(book.counts, 0, LOST))
        status = ask_nats(&book, books, conn, settings->nats.durable.ptr, error);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(book.lost); i++)
        books->on_culprit(books, line.kind, db_result_str(book.lost, i, 1),
                          "was published, and neither became a notification nor is on the bus");
    if (status == STATUS_OK) {
        line.accepted = db_result_i64(book.counts, 0, ACCEPTED);
        line.decided = line.accepted - db_result_i64(book.counts, 0, OPEN);
        line.lost = db_result_i64(book.counts, 0, LOST);
        books->on_line(books, &line);
    }
    db_result_free(book.counts);
    db_result_free(book.lost);
    return status;
}
