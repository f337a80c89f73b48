/* Notifications (SPEC N1–N5): events of entitlements become rows that are delivered.
 *
 *   bus "entitlement.events" ──▶ consumer.c ── one transaction ──▶ processed_events, notifications ──▶ its position
 *        ▲            │ makes no sense, or fails again and again
 *        │            ▼
 *        │      "entitlement.events.dlq" ──▶ dead_letters.c ──▶ notification_nats_dlq
 *        └──────────────── requeue.c ◀── `freshet dlq requeue` ──┘
 *
 *   notifications ── claimed by the outbox engine (delivery.c) ──▶ log, or webhook.c ──▶ SENT, again later, or FAILED:
 *   a trigger then writes notification_dlq
 *
 *   titles.c     what the item is called, asked of its owner before a notification is written
 *   inbox.c      GET /v1/users/{user_id}/notifications and the debug inbox
 *   retention.c  what goes when it is old
 *   gauges.c     how many dead letters wait, for alerts
 *   dlq.c        dead letters by hand, for the command line
 *
 * Threads: subscribe() and on_store() run on the store's loop, handlers and deliveries on its workers, requests on the
 * kernel's. What they share is constant after start() but for the engines, which are made before the loops run. */
#ifndef FRESHET_MODULES_NOTIFICATION_NOTIFICATION_H
#define FRESHET_MODULES_NOTIFICATION_NOTIFICATION_H

#include <stdatomic.h>

#include "bus/bus.h"
#include "hydration/hydration.h"
#include "kernel/kernel.h"
#include "kernel/store.h"
#include "modules/notification/settings.h"
#include "outbox/outbox.h"

#define NOTIFICATION_TOPIC "entitlement.events"

struct notification_gauges;

struct notification {
    struct kernel *kernel;
    const struct notification_settings *settings; /* as at the start; stay till destroy() */
    struct outbox *delivery, *requeue;
    struct notification_gauges *gauges;
    struct hydration_policy titles, titles_at_hand; /* the second hardly waits */
    _Atomic int64_t at_hand_until_ns;               /* the owner of items was silent */
    _Atomic int64_t at_hand_ns;                     /* then the next question, while nothing is answered */
    atomic_uint title_silences;                     /* in a row */
};

extern const struct module notification_module;
extern const struct db_migration notification_migrations[]; /* sql/notification */

/* ---- consumer.c, dead_letters.c: what is read of the bus ---- */
enum status notification_consumer_subscribe(struct notification *notification, struct bus *bus,
                                            struct error *error) MUST_CHECK;
enum status notification_dead_letters_subscribe(struct notification *notification, struct bus *bus,
                                                struct error *error) MUST_CHECK;

/* ---- titles.c ---- */
struct notification_event;
void notification_titles_init(struct notification *notification);
/* On a worker: one wait for all of them. Texts are the arena's; an event stays without where nobody knows in time. */
void notification_titles_take(struct notification *notification, struct notification_event *events,
                              size_t count, struct arena *arena);

/* ---- delivery.c, requeue.c: engines ---- */
extern const struct outbox_table notification_delivery_table, notification_requeue_table;
enum status notification_delivery_create(struct notification *notification, struct error *error) MUST_CHECK;
void notification_delivery_log_sent(const struct outbox_event *event);
enum status notification_requeue_create(struct notification *notification, struct error *error) MUST_CHECK;

/* ---- webhook.c: a worker's; gives a verdict for each event ---- */
void notification_webhook_send(const struct notification_webhook_settings *webhook,
                               struct outbox_batch *batch);
/* What the table of deliveries hands over beside payload and type. */
enum { NOTIFICATION_EXTRA_EVENT_ID, NOTIFICATION_EXTRA_TENANT, NOTIFICATION_EXTRA_TRACEPARENT };

/* ---- inbox.c ---- */
extern const struct http_route notification_routes[];

/* ---- retention.c, gauges.c: on the store's loop, in on_store() ---- */
void notification_retention_start(struct notification *notification);
struct notification_gauges *notification_gauges_start(struct notification *notification);
void notification_gauges_stop(struct notification_gauges *gauges); /* not on a loop; NULL is fine */
void notification_gauges_destroy(struct notification_gauges *gauges);

/* ---- metrics.c ---- */
extern struct metric_family *const notification_metrics[];
enum notification_event_result { NOTIFICATION_CREATED, NOTIFICATION_DUPLICATE, NOTIFICATION_TERMINATED };
void notification_count_events(enum notification_event_result result, uint64_t count);
void notification_observe_lag(double seconds);
enum notification_delivery_result {
    NOTIFICATION_SENT,
    NOTIFICATION_RETRIED,
    NOTIFICATION_REFUSED,
    NOTIFICATION_LEFT
};
void notification_count_delivery(enum notification_channel channel, enum notification_delivery_result result);
void notification_observe_delivery(enum notification_channel channel, double seconds);
void notification_count_letters(const char *kind, uint64_t count);
void notification_set_dead(const char *kind, int64_t count);
void notification_set_overdue(int64_t count);

#endif
