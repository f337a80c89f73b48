/* The checks, those of most effect first among the same severity. */
#include "app/doctor.h"

/* Samples of a metric of a pod that are below, or above, the limit. */
#define BELOW(name, limit, what, help)          \
    &(const struct doctor_metric)               \
    {                                           \
        name, true, limit, 0, false, what, help \
    }
#define ABOVE(name, limit, what, help)           \
    &(const struct doctor_metric)                \
    {                                            \
        name, false, limit, 0, false, what, help \
    }
#define SHOW_HEALTH "!curl -sS %URL%/actuator/health"

const struct doctor_check doctor_checks[] = {
    /* A place that does not answer is found by its first check. */
    {"database_down", DOCTOR_CRITICAL, DOCTOR_REFDATA | DOCTOR_STORE, doctor_check_database,
     "a database of the configuration does not answer", NULL},
    {"schema_version", DOCTOR_CRITICAL, DOCTOR_REFDATA | DOCTOR_STORE, doctor_check_schema,
     "migrations are missing, or the schema is too new for this program", NULL},
    {"engine_down", DOCTOR_CRITICAL, DOCTOR_ENGINE, doctor_check_engine,
     "Kafka, Redis or NATS does not answer, or some of its servers do not", NULL},
    {"pod_down", DOCTOR_CRITICAL, DOCTOR_POD, doctor_check_pod, "a pod does not answer", NULL},
    {"role_missing", DOCTOR_CRITICAL, DOCTOR_REFDATA | DOCTOR_STORE, doctor_check_roles,
     "work waits for a role that no process reports to run", NULL},
    {"role_down", DOCTOR_CRITICAL, DOCTOR_POD, doctor_check_metric, "a role of a pod cannot work",
     &(const struct doctor_metric){"freshet_role_up", true, .limit = 1, .is_joined = true,
                                   .what = "%s cannot work", .help = SHOW_HEALTH}},
    {"template_refused", DOCTOR_CRITICAL, DOCTOR_REFDATA, doctor_check_templates,
     "PostgreSQL refuses the SQL of a dictionary", NULL},
    {"dictionary_unavailable", DOCTOR_CRITICAL, DOCTOR_POD, doctor_check_metric,
     "a pod does not serve a dictionary, because PostgreSQL refuses its SQL",
     ABOVE("dict_unavailable", 0, "PostgreSQL refuses the templates of %s", "config --connect")},
    {"keys_missing", DOCTOR_CRITICAL, DOCTOR_POD, doctor_check_metric,
     "a pod has no key to check tokens with",
     BELOW("auth_keys", 1, "no key to check tokens with is known%s: every request is refused", SHOW_HEALTH)},
    {"update_pending", DOCTOR_CRITICAL, DOCTOR_REFDATA, doctor_check_updates,
     "updates are PENDING for more than a minute", NULL},
    {"outbox_failed", DOCTOR_CRITICAL, DOCTOR_REFDATA | DOCTOR_STORE, doctor_check_outbox_failed,
     "events could not be published, and are not tried again", NULL},
    {"outbox_locked", DOCTOR_CRITICAL, DOCTOR_REFDATA | DOCTOR_STORE, doctor_check_outbox_locked,
     "events have a lease that does not end for hours", NULL},
    {"outbox_old", DOCTOR_WARNING, DOCTOR_REFDATA | DOCTOR_STORE, doctor_check_outbox_old,
     "events wait for more than a minute to be published", NULL},
    {"consumer_lag", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_lag,
     "messages wait for more than a minute to be handled", NULL},
    {"dead_messages", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_dead_messages,
     "messages could not be handled and are dead letters", NULL},
    {"dead_notifications", DOCTOR_WARNING, DOCTOR_STORE, doctor_check_dead_notifications,
     "notifications could not be handled or delivered", NULL},
    {"version_behind", DOCTOR_WARNING, DOCTOR_POD, doctor_check_metric,
     "a pod serves a version behind the committed one",
     ABOVE("dict_version_lag", 0, "%s is served in an older version than the committed one",
           "verify %PAIR% --url %URL%")},
    {"component_down", DOCTOR_WARNING, DOCTOR_POD, doctor_check_metric,
     "a pod does not reach a database or an engine, or has no keys",
     BELOW("freshet_component_up", 1, "%s is down", SHOW_HEALTH)},
    {"process_gone", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_gone,
     "a process has not reported for 15 seconds and did not stop in order", NULL},
    {"reload_refused", DOCTOR_WARNING, DOCTOR_POD, doctor_check_metric,
     "the configuration file of a pod was changed and refused",
     BELOW("freshet_config_last_reload_successful", 1,
           "the configuration was changed and refused%s; the one before it is in force", "config")},
    {"memory_full", DOCTOR_WARNING, DOCTOR_POD, doctor_check_memory,
     "a pod uses more than 90 % of limits.memory", NULL},
    {"kafka_lag", DOCTOR_WARNING, DOCTOR_POD, doctor_check_metric,
     "Kafka has more than 10,000 messages to handle",
     ABOVE("kafka_consumer_lag", 10000, "Kafka has many messages that are not handled: %s", "top")},
    {"redis_lag", DOCTOR_WARNING, DOCTOR_POD, doctor_check_metric,
     "Redis has more than 1,000 entries to handle",
     ABOVE("redis_stream_lag", 1000, "Redis has many entries that are not handled: %s", "top")},
    {"connections_full", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_connections,
     "more than 90 % of PostgreSQL's max_connections are used", NULL},
    {"transaction_old", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_transactions,
     "a transaction is open for more than ten minutes", NULL},
    {"slot_unused", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_slots,
     "a replication slot that nothing uses keeps WAL on the disk", NULL},
    {"clock_skew", DOCTOR_WARNING, DOCTOR_DATABASE, doctor_check_clock,
     "the clocks of this machine and of the database differ by more than a second", NULL},
    {"certificate_expires", DOCTOR_WARNING, DOCTOR_MACHINE, doctor_check_certificates,
     "a certificate of the configuration expires within two weeks, or has expired", NULL},
    {"pod_certificate_expires", DOCTOR_WARNING, DOCTOR_POD, doctor_check_metric,
     "the certificate that a pod uses expires within two weeks, or has expired",
     &(const struct doctor_metric){"http_tls_certificate_expiry_timestamp_seconds", true, .less_now_days = 14,
                                   .what = "the certificate in force expires within two weeks%s",
                                   .help = SHOW_HEALTH}},
    {.name = NULL},
};
