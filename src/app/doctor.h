/* `freshet doctor`: everything that is wrong now. A check is a row of doctor_checks[]; a place is what checks look at: this machine,
 * a database, an engine, a pod. Places are looked at side by side, each by a thread of its own, so that one that does not answer holds
 * up no other; the checks of a place run in the order of the table, each with a deadline of its own. */
#ifndef FRESHET_APP_DOCTOR_H
#define FRESHET_APP_DOCTOR_H

#include <pthread.h>

#include "app/options.h"
#include "app/sites.h"
#include "fetch/fetch.h"
#include "modules/refdata/catalog.h"

enum doctor_severity { DOCTOR_CRITICAL, DOCTOR_WARNING, DOCTOR_SEVERITIES };

/* Where a check looks. */
enum doctor_kind {
    DOCTOR_MACHINE = 1,  /* the configuration and its files, once */
    DOCTOR_DATABASE = 2, /* each database of the configuration, once */
    DOCTOR_REFDATA = 4,  /* each that has dictionaries */
    DOCTOR_STORE = 8,    /* the one that has the tables of the other modules */
    DOCTOR_ENGINE = 16,
    DOCTOR_POD = 32,
};

enum doctor_engine { DOCTOR_KAFKA, DOCTOR_REDIS, DOCTOR_NATS };

struct doctor_place;
struct doctor_check {
    const char *name;              /* "update_pending"; NULL ends the table */
    enum doctor_severity severity; /* of what it finds */
    unsigned kinds;                /* enum doctor_kind: where it looks */
    void (*run)(struct doctor_place *place);
    const char *about;    /* what is wrong then, for --list and the documentation */
    const void *argument; /* its own */
};
extern const struct doctor_check doctor_checks[];

struct doctor;
struct doctor_place {
    struct doctor *doctor;
    unsigned kinds;              /* enum doctor_kind */
    const char *name;            /* "database main at …" */
    const struct app_site *site; /* of a database */
    struct db_pool *pool;
    bool is_behind; /* its schema is older than the program: tables may be missing */
    struct str url; /* of a pod */
    bool is_given;  /* it was named, so that it must answer here */
    struct buf metrics;
    enum doctor_engine engine;
    const struct setting_strings *nodes; /* of an engine */
    bool has_tls;

    const struct doctor_check *check; /* the current one, and its deadline */
    int64_t deadline_ns;
    bool is_lost; /* it does not answer: its other checks are left out */
    struct arena arena;
    pthread_t thread;
    bool is_done; /* under the doctor's lock */
};

enum { DOCTOR_PLACES_MAX = 256, DOCTOR_CHECK_MS = 2000 };

struct doctor {
    const char *config_path; /* as given; NULL = the default */
    struct fetch_tls tls;
    struct config *config;
    struct refdata_catalog *catalog;
    struct app_sites sites;
    int64_t deadline_ns;

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    struct doctor_place *places[DOCTOR_PLACES_MAX];
    size_t place_count, done_count;
    struct doctor_finding {
        const struct doctor_check *check;
        bool is_unchecked; /* `what` says why it could not be checked */
        size_t order;
        const char *place, *what, *help;
    } * findings;
    size_t finding_count, run_count;
    struct arena arena; /* of findings */
};

/* ---- for checks: on the place's thread ---- */
/* Something is wrong. `help` is a command; texts of others are made safe for a terminal. */
void doctor_found(struct doctor_place *place, const char *help, const char *format, ...) PRINTF_LIKE(3, 4);
/* It could not be found out. */
void doctor_unchecked(struct doctor_place *place, const char *format, ...) PRINTF_LIKE(2, 3);
/* "freshet …" with the --config of this call, in the place's arena. */
const char *doctor_command(struct doctor_place *place, const char *format, ...) PRINTF_LIKE(2, 3);
/* psql on the place's database with this statement; without a password. */
const char *doctor_psql(struct doctor_place *place, const char *sql);
/* As one word of a shell. */
const char *doctor_word(struct doctor_place *place, struct str text);
bool doctor_is_here(struct str host); /* is it this machine? */
/* systemctl on this machine, or by ssh on another host. */
const char *doctor_restart(struct doctor_place *place, const char *service, struct str host);
/* NULL: it failed, which is noted. Freed by the caller. */
struct db_result *doctor_query(struct doctor_place *place, const struct db_statement *statement,
                               const struct db_param *params);
/* Another place to look at, such as a pod that a database names; looked at only once. Any thread. */
void doctor_add_pod(struct doctor *doctor, struct str url, bool is_given);

/* ---- doctor_print.c: prints the findings; the exit status ---- */
int doctor_print(struct doctor *doctor, bool is_json);

/* ---- the functions of the table ---- */
typedef void doctor_check_fn(struct doctor_place *place);
doctor_check_fn doctor_check_certificates; /* doctor_files.c */
doctor_check_fn doctor_check_database, doctor_check_clock, doctor_check_schema, doctor_check_connections,
    doctor_check_slots, doctor_check_transactions;            /* doctor_postgres.c */
doctor_check_fn doctor_check_templates, doctor_check_updates; /* doctor_refdata.c */
doctor_check_fn doctor_check_outbox_failed, doctor_check_outbox_old, doctor_check_outbox_locked,
    doctor_check_lag, doctor_check_dead_messages, doctor_check_dead_notifications; /* doctor_work.c */
doctor_check_fn doctor_check_gone, doctor_check_roles;                             /* doctor_processes.c */
doctor_check_fn doctor_check_pod, doctor_check_memory, doctor_check_metric;        /* doctor_pods.c */
doctor_check_fn doctor_check_engine;                                               /* doctor_engines.c */

/* What doctor_check_metric() looks for: samples of a metric of a pod that are above or below a limit. */
struct doctor_metric {
    const char *name;
    bool is_below;
    double limit;
    double less_now_days; /* not 0: the value is a time, of which this many days must be left */
    bool is_joined;       /* one finding for all its samples: they have the same cause */
    const char *what;     /* with %s for the labels */
    const char *help;     /* arguments of freshet, with %URL% for the pod's; or a whole command after a ! */
};

#endif
