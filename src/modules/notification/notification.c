/* The module: settings, retention, life and health. */
#include "modules/notification/notification.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "fetch/fetch.h"
#include "kernel/store.h"
#include "modules/notification/dlq.h"

/* ---- settings: the specification's names ---- */

#define ROW(member) .offset = offsetof(struct notification_settings, member)
#define PLACE(member) .place_offset = 1 + offsetof(struct notification_settings, member)
#define HOUR_MS INT64_C(3600000)

enum { NAME_BYTES_MAX = 60, URL_BYTES_MAX = 2048 };

static const char *const channels[] = {
    [NOTIFICATION_LOG] = "log", [NOTIFICATION_WEBHOOK] = "webhook", [NOTIFICATION_WEBHOOK + 1] = NULL};

static const struct setting_row advisory_rows[] = {
    {"stream", SETTING_STRING, ROW(nats.advisory_stream),
     "The stream of JetStream's advisories about messages without deliveries left; empty = freshet_advisories.",
     "", 0, NAME_BYTES_MAX, PLACE(nats.advisory_place)},
    {.name = NULL},
};

static const struct setting_row terminated_rows[] = {
    {"stream", SETTING_STRING, ROW(nats.terminated_stream),
     "The stream of advisories about terminated messages; empty = freshet_advisories.", "", 0, NAME_BYTES_MAX,
     PLACE(nats.terminated_place)},
    {.name = NULL},
};

static const struct setting_row nats_rows[] = {
    {"stream", SETTING_STRING, ROW(nats.stream), "The stream of events; empty = entitlement.nats.stream.", "",
     0, NAME_BYTES_MAX, PLACE(nats.stream_place)},
    {"durable", SETTING_STRING, ROW(nats.durable),
     "The durable consumer, on PostgreSQL the consumer group: processes with the same name share the events.",
     "notification", 1, NAME_BYTES_MAX, PLACE(nats.durable_place)},
    {"ack-wait", SETTING_DURATION_MS, ROW(nats.ack_wait_ms),
     "A message that is not acknowledged for this long is delivered to another process.", "5s", 100, HOUR_MS},
    {"max-deliver", SETTING_INT, ROW(nats.max_deliver),
     "After so many failed deliveries a message is a dead letter. Outages of the database do not count.",
     "10", 1, 1000},
    {"advisory", SETTING_OBJECT, .help = "MaxDeliver advisories.", .rows = advisory_rows, .fallback = ""},
    {"terminated-advisory", SETTING_OBJECT, .help = "Terminated advisories.", .rows = terminated_rows,
     .fallback = ""},
    {.name = NULL},
};

static const struct setting_row webhook_rows[] = {
    {"url", SETTING_STRING, ROW(delivery.webhook.url), "Where notifications are POSTed; http or https.", "",
     0, URL_BYTES_MAX, PLACE(delivery.webhook.url_place), .secret = true},
    {"timeout", SETTING_DURATION_MS, ROW(delivery.webhook.timeout_ms), "Longest wait for the whole answer.",
     "10s", 10, HOUR_MS},
    {"connect-timeout", SETTING_DURATION_MS, ROW(delivery.webhook.connect_timeout_ms),
     "Longest wait for the connection.", "3s", 10, HOUR_MS},
    {"secret-from-env", SETTING_STRING, ROW(delivery.webhook.secret_env),
     "The environment variable that holds the secret of X-Freshet-Signature; empty = not signed.", "", 0, 255,
     PLACE(delivery.webhook.secret_place)},
    {"parallel", SETTING_INT, ROW(delivery.webhook.parallel),
     "Most calls under way at once, in each process. One tenant has at most five sixths of them.", "16", 1,
     256},
    {.name = NULL},
};

/* The engine's keys are in the same block as the channel's. */
#define ENGINE(member) ROW(delivery.engine.member)
static const struct setting_row delivery_rows[] = {
    {"channel", SETTING_ENUM, ROW(delivery.channel), "log: one line each; webhook: a POST each.", "log",
     .choices = channels, PLACE(delivery.channel_place)},
    {"webhook", SETTING_OBJECT, .help = "The receiver of channel webhook.", .rows = webhook_rows,
     .fallback = ""},
    {"poll-interval", SETTING_DURATION_MS, ENGINE(poll_ms),
     "How often the table is read without a notice of a new notification.", "1s", 10, HOUR_MS},
    {"batch-size", SETTING_INT, ENGINE(batch), "Most notifications claimed together.", "50", 1, 1000},
    {"lease", SETTING_DURATION_MS, ENGINE(lease_ms),
     "How long a claim is valid; a batch that takes longer renews it.", "30s", 100, HOUR_MS},
    {"max-attempt", SETTING_INT, ENGINE(attempts_max),
     "After so many failures a notification is FAILED and stored in notification_dlq.", "10", 1, 1000},
    {"backoff-base", SETTING_DURATION_MS, ENGINE(backoff_base_ms),
     "Pause after the first failure; doubled each time.", "1s", 1, HOUR_MS},
    {"backoff-max", SETTING_DURATION_MS, ENGINE(backoff_max_ms), "Longest pause, before the jitter.", "60s",
     1, 24 * HOUR_MS},
    {"backoff-min", SETTING_DURATION_MS, ENGINE(backoff_min_ms), "Shortest pause, after the jitter.", "0", 0,
     HOUR_MS},
    {"backoff-jitter-min", SETTING_DECIMAL, ENGINE(jitter_min),
     "Lower bound of the random factor of a pause.", "0.5", 0, 10000},
    {"backoff-jitter-max", SETTING_DECIMAL, ENGINE(jitter_max),
     "Upper bound of the random factor of a pause.", "1.5", 0, 10000},
    {.name = NULL},
};

static const struct setting_row retention_rows[] = {
    {"enabled", SETTING_BOOL, ROW(retention.enabled), "false: nothing is deleted.", "true"},
    {"retention-days", SETTING_INT, ROW(retention.days),
     "Processed events, and notifications that were sent or failed, are deleted when they are older.", "30",
     1, 36500},
    {"cleanup-interval", SETTING_DURATION_MS, ROW(retention.interval_ms), "How often old rows are deleted.",
     "1h", 10, 24 * HOUR_MS},
    {.name = NULL},
};

static const struct setting_row notification_rows[] = {
    {"nats", SETTING_OBJECT, .help = "How events of entitlements are consumed.", .rows = nats_rows,
     .fallback = ""},
    {"delivery", SETTING_OBJECT, .help = "How notifications are delivered.", .rows = delivery_rows,
     .fallback = ""},
    {"retention", SETTING_OBJECT, .help = "Deleting old rows.", .rows = retention_rows, .fallback = ""},
    {"hydration", SETTING_OBJECT, ROW(hydration),
     "Whether the title of the item is looked up at its owner and added to the notification.", "",
     .rows = hydration_use_rows_on},
    {"audit-after", SETTING_DURATION_MS, ROW(audit_ms),
     "A published event that did not become a notification for this long is audited: if it was lost, it is published again.",
     "5m", 100, 24 * HOUR_MS},
    {.name = NULL},
};

static const struct config_section notification_section = {
    .name = "notification",
    .help = "Events of entitlements become notifications, which are delivered.",
    .rows = notification_rows,
    .struct_bytes = sizeof(struct notification_settings),
};

/* ---- checks ---- */

struct str notification_webhook_secret(const struct notification_webhook_settings *webhook)
{
    return webhook->secret_env.len ? str_from(getenv(webhook->secret_env.ptr)) : STR_NONE;
}

/* `needed`: an empty name is refused too. */
static enum status check_name(const struct config *config, struct str name, bool needed,
                              struct setting_place place, const char *field, struct error *error)
{
    bool is_name = str_is_name(name) && !memchr(name.ptr, '.', name.len);
    return is_name || (!name.len && !needed)
               ? STATUS_OK
               : config_error_at(config, place, field, error, "a name in NATS is made of A-Z a-z 0-9 _ -");
}

static enum status check_settings(const struct config *config, const void *section, struct error *error)
{
    const struct notification_settings *settings = section;
    const struct notification_webhook_settings *webhook = &settings->delivery.webhook;
    enum status status = check_name(config, settings->nats.durable, true, settings->nats.durable_place,
                                    "notification.nats.durable", error);
    if (status == STATUS_OK)
        status = check_name(config, settings->nats.advisory_stream, false, settings->nats.advisory_place,
                            "notification.nats.advisory.stream", error);
    if (status == STATUS_OK)
        status = check_name(config, settings->nats.terminated_stream, false, settings->nats.terminated_place,
                            "notification.nats.terminated-advisory.stream", error);
    if (status != STATUS_OK || settings->delivery.channel != NOTIFICATION_WEBHOOK)
        return status;
    if (!fetch_is_url(webhook->url))
        return config_error_at(config,
                               webhook->url.len ? webhook->url_place : settings->delivery.channel_place,
                               "notification.delivery.webhook.url", error,
                               "channel webhook needs the http or https URL of its receiver");
    if (webhook->secret_env.len && !notification_webhook_secret(webhook).len)
        return config_error_at(config, webhook->secret_place, "notification.delivery.webhook.secret-from-env",
                               error, "there is no environment variable %s, or it is empty",
                               webhook->secret_env.ptr);
    return STATUS_OK;
}

/* ---- retention (N4): rows that are older than so many days. An older notification that is neither sent nor failed stays, and is
 * logged as an error ---- */

static struct metric_family overdue_family = {
    .name = "notification_overdue",
    .help = "Notifications older than the retention that are neither sent nor failed.",
    .type = METRIC_GAUGE,
};

#define DAY_MS (INT64_C(24) * 3600 * 1000)
#define OLDER(column) column " < now() - $1 * interval '1 ms'"
#define DELETE(table, condition, column)                                                               \
    "DELETE FROM " table " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " table " WHERE " condition OLDER( \
        column) " ORDER BY " column " LIMIT $2 FOR UPDATE SKIP LOCKED))"
/* Dead letters are kept until an operator decides; the decision stays in dlq_audit. */
#define DECIDED "status IN ('REQUEUED', 'DISCARDED') AND "

/* $1 milliseconds. */
static const struct db_statement overdue_sql =
    DB_STATEMENT("SELECT count(*), min(notification_id::text), min(event_id::text),"
                 "       coalesce((extract(epoch FROM now() - min(created_at)) * 1000)::bigint, 0)"
                 " FROM (SELECT * FROM notification.notifications"
                 "       WHERE status IN ('PENDING', 'PROCESSING') AND " OLDER(
                     "created_at") " ORDER BY created_at LIMIT 1000) o");

static void inspect_overdue(void *context, struct db_conn *conn, int64_t deadline_ns)
{
    const struct notification *notification = context;
    struct db_result *rows = NULL;
    struct error error = {0};
    if (db_query(conn, &overdue_sql, DB_PARAMS(db_i64(notification->settings->retention.days * DAY_MS)),
                 deadline_ns, &rows, &error) == STATUS_OK) {
        int64_t count = db_result_i64(rows, 0, 0);
        metric_set(metric_series_get(&overdue_family, NULL), (double)count);
        if (count > 0)
            log_error("notifications_overdue", LOG_INT("count", count),
                      LOG_STR("notificationId", db_result_str(rows, 0, 1)),
                      LOG_STR("eventId", db_result_str(rows, 0, 2)),
                      LOG_INT("oldestAgeMs", db_result_i64(rows, 0, 3)));
    }
    db_result_free(rows);
}

static void add_retention(struct notification *notification)
{
    const struct retention_rule rules[] = {
        {.name = "notification.processed_events",
         .sql = DELETE("notification.processed_events", "", "processed_at")},
        {.name = "notification.notifications",
         .sql = DELETE("notification.notifications", "status IN ('SENT', 'FAILED') AND ", "created_at"),
         .inspect = inspect_overdue},
        {.name = "notification.notification_dlq",
         .sql = DELETE("notification.notification_dlq", DECIDED, "decided_at")},
        {.name = "notification.notification_nats_dlq",
         .sql = DELETE("notification.notification_nats_dlq", DECIDED, "decided_at")},
    };
    if (!notification->settings->retention.enabled)
        return;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct retention_rule rule = rules[i];
        rule.keep_ms = notification->settings->retention.days * DAY_MS;
        rule.interval_ms = notification->settings->retention.interval_ms;
        rule.context = notification;
        kernel_retention_add(notification->kernel, &rule);
    }
}

/* ---- life ---- */

/* As a reader: entitlement owns the topic. */
static void each_notification_topic(const void *section,
                                    void (*fn)(const struct kernel_topic *topic, void *arg), void *arg)
{
    const struct notification_settings *settings = section;
    const struct kernel_topic topic = {
        .topic = {.name = NOTIFICATION_TOPIC, .group = settings->nats.durable.ptr},
        .stream = str_or_null(settings->nats.stream),
        .stream_field = "notification.nats.stream",
        .stream_place = settings->nats.stream_place,
        .advisory_stream = str_or_null(settings->nats.advisory_stream),
        .terminated_stream = str_or_null(settings->nats.terminated_stream),
        .ack_wait_ms = settings->nats.ack_wait_ms,
    };
    fn(&topic, arg);
}

/* Dead letters that this module has stored are in its table. */
static void each_dead_topic(const struct config *config, const void *section,
                            void (*fn)(const struct kernel_dead_topic *topic, void *arg), void *arg)
{
    const struct kernel_bus_settings *bus = config_section(config, "bus");
    const struct notification_settings *settings = section;
    fn(&(struct kernel_dead_topic){.topic = NOTIFICATION_TOPIC,
                                   .engine = bus->events == KERNEL_NATS ? KERNEL_ON_NATS : KERNEL_ON_POSTGRES,
                                   .group = settings->nats.durable.ptr},
       arg);
}

static enum status start_notification(struct kernel *kernel, const void *section, void **state,
                                      struct error *error)
{
    (void)error;
    struct notification *notification = memory_zalloc(sizeof *notification);
    notification->kernel = kernel;
    notification->settings = section;
    notification_titles_init(notification);
    notification_delivery_create(notification);
    notification_dead_letters_create(notification);
    add_retention(notification);
    notification_audit_add(notification);
    *state = notification;
    return STATUS_OK;
}

static void destroy_notification(void *state)
{
    struct notification *notification = state;
    if (notification->webhooks)
        notification_webhooks_destroy(notification->webhooks);
    notification_titles_deinit(notification);
    free(notification);
}

static enum status subscribe_notification(void *state, struct bus *events, struct error *error)
{
    enum status status = notification_consumer_subscribe(state, events, error);
    return status == STATUS_OK ? notification_dead_letters_subscribe(state, events, error) : status;
}

const struct module notification_module = {
    .name = "notification",
    .roles = (const char *const[]){"notification", NULL},
    .section = &notification_section,
    .routes = (const struct module_routes[]){{"notification", notification_routes}, {.role = NULL}},
    .metrics = (struct metric_family *const[]){&notification_events_family, &notification_lag_family,
                                               &notification_deliveries_family,
                                               &notification_delivery_seconds_family,
                                               &notification_dead_letters_family, &notification_dead_family,
                                               &overdue_family, &notification_audit_family, NULL},
    .migrations = notification_migrations,
    .grants = notification_grants,
    .check = check_settings,
    .start = start_notification,
    .destroy = destroy_notification,
    .reads_events = true,
    .keeps_store = true,
    .each_topic = each_notification_topic,
    .each_dead_topic = each_dead_topic,
    .dead_tables = notification_dead_tables,
    .subscribe = subscribe_notification,
    .books = notification_books,
};
