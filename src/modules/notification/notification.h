/* Notifications (SPEC N1–N5): events of entitlements become rows that are delivered.
 *
 *   bus "entitlement.events" ──▶ consumer.c ── one transaction ──▶ processed_events, notifications, the consumer's position
 *        ▲            │ invalid, or failed too often
 *        │            ▼
 *        │      "entitlement.events.dlq" ──▶ dead_letters.c ──▶ notification_nats_dlq
 *        └───────────── dead_letters.c ◀── `freshet dlq requeue` (dlq.c) ──┘
 *
 *   notifications ── claimed by the outbox engine (delivery.c) ──▶ log or webhook ──▶ SENT, retried, or FAILED:
 *   a trigger then writes notification_dlq
 *
 *   audit.c         finds events that were published and never arrived, and has them published again
 *   event.c         an event of entitlements as it is read from the bus
 *   titles.c        titles of items, from their owner
 *   webhook.c       the channel webhook: calls under way; places.h: how tenants share them
 *   inbox.c         GET /v1/users/{user_id}/notifications and the debug inbox
 *   notification.c  settings, retention, life, health
 *
 * Threads: subscribe() runs on the store's loop, handlers and deliveries on its workers, requests on the kernel's.
 * What they share is constant after start() but for the engines, which are made before the loops run. */
#ifndef FRESHET_MODULES_NOTIFICATION_NOTIFICATION_H
#define FRESHET_MODULES_NOTIFICATION_NOTIFICATION_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/uuid.h"
#include "bus/bus.h"
#include "hydration/hydration.h"
#include "kernel/config.h"
#include "kernel/kernel.h"
#include "kernel/store.h"
#include "outbox/outbox.h"

#define NOTIFICATION_TOPIC "entitlement.events"
/* Begins the reason of a dead letter that the consumer refused. */
#define NOTIFICATION_INVALID_EVENT "not an event of entitlements: "

/* ---- `notification:` of the file; read once, at the start ---- */
enum notification_channel { NOTIFICATION_LOG, NOTIFICATION_WEBHOOK };

struct notification_webhook_settings {
    struct str url, secret_env;
    int64_t timeout_ms, connect_timeout_ms, parallel;
    struct setting_place url_place, secret_place;
};

struct notification_settings {
    struct {
        struct str stream, durable;
        int64_t ack_wait_ms, max_deliver;
        struct str advisory_stream, terminated_stream;
        struct setting_place stream_place, durable_place, advisory_place, terminated_place;
    } nats;
    struct {
        int channel; /* enum notification_channel */
        struct setting_place channel_place;
        struct notification_webhook_settings webhook;
        struct outbox_settings engine;
    } delivery;
    struct {
        bool enabled;
        int64_t days, interval_ms;
    } retention;
    struct hydration_use hydration;
    int64_t audit_ms; /* an event that was published and is not handled for this long is audited */
};

/* Signs webhooks; empty = they are not signed. The environment's, to the process's end. */
struct str notification_webhook_secret(const struct notification_webhook_settings *webhook);

enum { NOTIFICATION_TITLE_TENANTS = 1024 };
struct notification_titles {
    struct hydration_policy waits, no_wait;
    pthread_mutex_t lock; /* for what follows */
    struct notification_pause {
        int64_t until_ns;  /* before this time batches do not wait: the owner of items did not answer */
        int64_t next_ns;   /* before this time the owner is not asked, if it was silent */
        unsigned silences; /* waits without any answer, in a row */
    } all, tenants[NOTIFICATION_TITLE_TENANTS]; /* by a hash of the tenant */
    size_t last_silent;                         /* that tenant's number + 1 */
    unsigned silent_tenants;                    /* in a row */
};

struct notification {
    struct kernel *kernel;
    const struct notification_settings *settings; /* as at the start; they stay until destroy() */
    struct outbox *delivery;
    struct webhooks *webhooks; /* NULL with the channel log */
    struct notification_titles titles;
};

extern const struct db_migration notification_migrations[]; /* sql/notification */
extern const char notification_grants[];

/* ---- consumer.c ---- */
extern struct metric_family notification_events_family, notification_lag_family;
enum status notification_consumer_subscribe(struct notification *notification, struct bus *bus,
                                            struct error *error) MUST_CHECK;

/* ---- titles.c ---- */
struct notification_event;
void notification_titles_init(struct notification *notification);
void notification_titles_deinit(struct notification *notification);
/* On a worker: sets item_title of events where the owner of items answers in time. */
void notification_titles_take(struct notification *notification, struct notification_event *events,
                              size_t count, struct arena *arena);

/* ---- audit.c ---- */
extern struct metric_family notification_audit_family;
void notification_audit_add(struct notification *notification);
struct books;
enum status notification_books(struct books *books, struct db_conn *conn, struct error *error) MUST_CHECK;

/* ---- delivery.c ---- */
extern struct metric_family notification_deliveries_family, notification_delivery_seconds_family;
extern const struct outbox_table notification_delivery_table;
/* What the table gives beside payload and type. */
enum {
    NOTIFICATION_EXTRA_EVENT_ID,
    NOTIFICATION_EXTRA_TENANT,
    NOTIFICATION_EXTRA_TRACEPARENT,
    NOTIFICATION_EXTRAS
};
void notification_delivery_create(struct notification *notification);
void notification_log_sent(const struct outbox_event *event);

/* ---- webhook.c: as an outbox's publish() and later; one thread at a time but for wake ---- */
struct webhooks *notification_webhooks_create(const struct notification_webhook_settings *settings);
void notification_webhooks_destroy(struct webhooks *webhooks);
void notification_webhooks_send(struct webhooks *webhooks, struct outbox_batch *batch);
bool notification_webhooks_may_claim(struct webhooks *webhooks, struct buf *left_out);
void notification_webhooks_wake(struct webhooks *webhooks); /* any thread */

/* ---- dead_letters.c ---- */
extern struct metric_family notification_dead_letters_family, notification_dead_family;
enum status notification_dead_letters_subscribe(struct notification *notification, struct bus *bus,
                                                struct error *error) MUST_CHECK;
void notification_dead_letters_create(struct notification *notification); /* requeueing and counting */

/* ---- event.c: an event of entitlements on the bus (api/entitlement.proto). Most random bytes are valid protobuf, so all fields and
 * headers are checked ---- */
struct notification_event {
    char event_id[UUID_TEXT_BYTES], notification_id[UUID_TEXT_BYTES];
    struct str event_type, user_id, sku, source, source_id, tenant;
    struct str item_title; /* of the item, not of the event; empty = not known */
    int64_t occurred_us, version;
    struct str traceparent; /* empty = none, or invalid */
    struct span *span;      /* NULL = not recorded */
};

#define NOTIFICATION_TEXT_BYTES_MAX 1024 /* of a user's or a sku's name, a reason, a purchase */

/* Texts live in `arena`. BAD_REQUEST with the reason if it is invalid; the message quotes nothing of the payload. */
enum status notification_event_read(const struct bus_message *message, struct arena *arena,
                                    struct notification_event *event, struct error *error) MUST_CHECK;
/* The event as JSON, as receivers get it. */
void notification_event_put(const struct notification_event *event, struct buf *out);

/* ---- inbox.c ---- */
extern const struct http_route notification_routes[];

#endif
