/* The kernel: what a process is made of, and the contract a module fulfils to be part of it.
 *
 * A module exports one `const struct module`; src/app/modules.c lists them, nothing registers itself. The kernel reads
 * the configuration by the modules' sections, builds loops, workers, authentication and the HTTP server, starts the
 * modules whose roles were asked for, reloads them on SIGHUP or a changed file, and stops everything in order.
 *
 * Threads: start, reload, stop and destroy are called on the main thread, one at a time; health on any loop. */
#ifndef FRESHET_KERNEL_KERNEL_H
#define FRESHET_KERNEL_KERNEL_H

#include "auth/auth.h"
#include "base/metrics.h"
#include "base/setting.h"
#include "base/status.h"
#include "db/db.h"
#include "http/http.h"
#include "kernel/config.h"
#include "loop/group.h"
#include "loop/worker.h"

struct kernel;
struct health;
struct bus;
struct outbox_table;
struct kernel_topic;
struct kernel_dead_topic;
struct kernel_dead_table;

/* The routes of one role: only where it runs. */
struct module_routes {
    const char *role; /* NULL ends the table */
    const struct http_route *routes;
};

/* Life of a module: check (configuration alone) → start → [reload …] → stop → destroy. */
struct books;
struct trial;
struct db_conn;
struct ops_view;
struct ops_keys;
struct module {
    const char *name;
    const char *const *roles;             /* any of them switches it on; NULL-terminated */
    const struct config_section *section; /* its key in the file */
    const struct module_routes *routes;   /* NULL = none; added with the module's state as context */
    struct metric_family *const *metrics; /* NULL-terminated; registered at start */
    const struct db_migration *migrations;
    /* Of a role that does not migrate: SQL with :role for its name; NULL with no migrations. */
    const char *grants;
    /* Before all checks: fills in from other sections what this one leaves out. NULL: nothing. */
    void (*complete)(struct config *config, void *section);
    /* Checks that need no server: templates, references between settings. Errors carry file, line, column, field. */
    enum status (*check)(const struct config *config, const void *section, struct error *error);
    /* The authentication settings of the module's section (the specification keeps the tenant claim under refdata). */
    void (*adjust_auth)(const void *section, struct auth_settings *auth);
    /* The name that the section gives to this process; empty = made of the host's name (the specification keeps it under refdata). */
    struct str (*pod_id)(const void *section);
    /* The databases the section names, for migrations: calls fn for each. */
    void (*each_database)(struct config *config, const void *section,
                          void (*fn)(const struct db_target *target, void *arg), void *arg);
    /* Must not wait for any server. The section stays readable until destroy, whatever is reloaded. */
    enum status (*start)(struct kernel *kernel, const void *section, void **state, struct error *error);
    /* A new configuration took the place of the old one, which stays readable until the call returns. */
    void (*reload)(void *state, struct config *config, const void *section);
    /* Loops still run: end activity, cancel timers, wait for own threads. NULL: there is nothing of the kind. */
    void (*stop)(void *state);
    void (*destroy)(void *state); /* loops have ended: free */
    /* NULL: its roles are as well as the store that it keeps and, with `reads_events`, the bus of events. */
    void (*health)(void *state, struct health *health);
    bool reads_events;

    /* ---- modules whose tables are in the store (store.h) ---- */
    bool keeps_store; /* migrations are run there */
    /* Keeps nothing there, but uses its bus to reach other modules: this process has a store if there is
     * a database for it. NULL = no. */
    bool (*uses_store)(const struct kernel *kernel, const void *section);
    /* Types of entities that a role of it answers for (hydration); NULL-terminated; NULL = none. */
    const char *const *provides;
    /* Topics of events that it publishes, of every module, also of those that do not run here: the only one, or those that
     * depend on its settings. */
    const struct kernel_topic *topic;
    void (*each_topic)(const void *section, void (*fn)(const struct kernel_topic *topic, void *arg),
                       void *arg);
    /* Home loop, once: the bus of events is open and has not started. Handlers are called until every module has stopped
     * (outboxes need the bus to the end), so what they touch stays until destroy(). */
    enum status (*subscribe)(void *state, struct bus *events, struct error *error);
    /* For `freshet outbox`: in the store, or in each of each_database(). NULL-terminated; NULL = none. */
    const struct outbox_table *const *outboxes;
    /* For `freshet verify --books`: what one database of it has accepted beside the rows of its outboxes (books.h), in the caller's read-only
     * transaction, which sees one snapshot and which it may begin again. Blocks. NULL: nothing. */
    enum status (*books)(struct books *books, struct db_conn *conn, struct error *error);
    /* For `freshet config --connect`: tries the SQL that the section has for one database of it (trial.h), in transactions of its own, and
     * changes nothing. Fails only where the database could not be asked. Blocks. NULL: there is none. */
    enum status (*try_sql)(struct trial *trial, struct db_conn *conn, struct error *error);
    /* For operators (dead_letters.h): topics of its own, and what is known of others; tables with dead letters, ended by a row without a
     * name. NULL: none. */
    void (*each_dead_topic)(const struct config *config, const void *section,
                            void (*fn)(const struct kernel_dead_topic *topic, void *arg), void *arg);
    const struct kernel_dead_table *dead_tables;
    /* For operators (ops.h): what may be listed, ended by a row without a name; NULL = nothing. */
    const struct ops_view *views;
    /* Home loop, every few seconds: JSON members about what is in the process's memory, into `out`, for the process's own row. Cheap, and
     * at most KERNEL_REPORT_BYTES. NULL: nothing. */
    void (*report)(void *state, struct buf *out);
    /* On a worker: keys of a dictionary that is in this process's memory. False: it is not. NULL: the module has none. */
    bool (*list_keys)(void *state, struct ops_keys *keys);
};
enum { KERNEL_REPORT_BYTES = 32 * 1024 };

/* ---- health (C8): every role and component of the process, UP or DOWN ----
 * A module adds its own; the process is ready while at least one of its roles can work. */
struct health {
    struct buf roles, components; /* JSON members gathered so far */
    struct buf lines;             /* the same for metrics: kernel_health_lines() */
    unsigned roles_up, roles_down;
    /* A role has not finished what it does before its first request (preloads): alive, but not ready yet. */
    bool starting;
};

/* A role can work or not. `detail` (may be empty) is for people: never a secret. */
void health_role(struct health *health, const char *role, bool up, struct str detail);
/* The same of a role that helps with the others and works whatever happens to them: the process is ready by the others, if it has any. */
void health_side_role(struct health *health, const char *role, bool up, struct str detail);
/* A thing the process depends on: reported, but by itself no reason to be taken out of service. */
void health_component(struct health *health, const char *kind, struct str name, bool up, struct str detail);

/* ---- what a module may use of the process it runs in ---- */
struct loop_group *kernel_loops(struct kernel *kernel);
struct worker_pool *kernel_workers(struct kernel *kernel);
bool kernel_has_role(const struct kernel *kernel, const char *role);
const char *kernel_pod_id(const struct kernel *kernel); /* a name of its own among all processes */
/* What carries what (C2), and how PostgreSQL does where it does. */
enum { KERNEL_POSTGRES, KERNEL_KAFKA = 1, KERNEL_REDIS = 1, KERNEL_NATS = 1 };
struct kernel_bus_settings {
    int commands, invalidations, events; /* KERNEL_POSTGRES, or the one engine that can do it instead */
    struct setting_place commands_place, invalidations_place, events_place;
    int migrate; /* auto, always, never */
    int64_t partitions, handlers, poll_ms, keep_ms, keep_unread_ms, keep_dead_ms;
};
const struct kernel_bus_settings *kernel_bus(const struct kernel *kernel);
/* A section of the file as it was at the start; readable as long as the process serves. */
const void *kernel_section(const struct kernel *kernel, const char *name);
struct config *kernel_config(struct kernel *kernel); /* main thread: as it is in force */
/* Any thread: as it was at the start. */
const struct config *kernel_config_first(const struct kernel *kernel);
const struct module *const *kernel_modules(const struct kernel *kernel); /* of the program */
/* The last reload was refused: why and when, any thread. False: it was not. */
bool kernel_refused_config(struct kernel *kernel, struct buf *problems, int64_t *at_us);
void *kernel_module_state(const struct kernel *kernel,
                          const struct module *module); /* NULL = it does not run here */
/* debug.enabled: routes that show what is inside. */
bool kernel_debug_is_enabled(const struct kernel *kernel);
bool kernel_migrates(const struct kernel *kernel); /* does this process create and migrate schemas (C10)? */

/* The identity the gate let through. A hot handler may use it until it returns; one that parks keeps it first. */
static inline const struct auth_identity *kernel_identity(const struct http_request *request)
{
    return request->identity;
}
void kernel_identity_keep(struct http_request *request);

/* ---- database settings, the same rows wherever a `postgres:` block stands ---- */
struct kernel_postgres {
    struct str name, url, username, password_env, password_file, schema;
    int64_t connections_max, connect_timeout_ms, statement_timeout_ms, idle_timeout_ms;
    struct setting_place place, username_place, password_place; /* of jdbcUrl, username and passwordFromEnv */
    struct setting_place password_file_place;
};
extern const struct setting_row kernel_postgres_rows[];
/* A target for db_pool_create(); strings are borrowed from the settings and the environment. */
struct db_target kernel_postgres_target(const struct kernel_postgres *settings);
/* Its password is set, its URL can be understood. `block`: "refdata.postgres", for errors. */
enum status kernel_postgres_check(const struct config *config, const struct kernel_postgres *settings,
                                  const char *block, struct error *error) MUST_CHECK;

/* ---- where a process listens ---- */
struct str kernel_http_address(const struct config *config); /* the first of http.listen */
/* The URL of such an address, in the arena. `host` stands for an address that means all of a machine; empty = this one. */
struct str kernel_http_url(const struct config *config, struct str address, struct str host,
                           struct arena *arena);

/* ---- certificates that the file names ---- */
struct kernel_certificate {
    const char *field; /* "http.tls" */
    struct str file;
    int64_t not_after_s; /* unix */
};
/* Of the server and of the clients of engines, those that can be read. */
void kernel_certificates_each(const struct config *config,
                              void (*fn)(const struct kernel_certificate *certificate, void *arg), void *arg);

/* ---- a process ---- */
struct kernel_options {
    const char *config_path;
    const struct module *const *modules; /* NULL-terminated */
    struct str roles;                    /* comma list; empty = all */
    struct str listen;                   /* overrides http.listen; empty = as configured */
    const char *commit;                  /* that the program was built from; NULL = unknown */
};

/* All sections: the kernel's own and the modules'. For `freshet config`, and for config_load(). */
const struct config_section *kernel_sections(const struct module *const *modules, struct arena *arena);
/* Loads and checks the file. NULL on failure, and then `problems` has a line for each. */
struct config *kernel_config_load(const struct kernel_options *options, struct buf *problems);
/* The same; the problems go to standard error. */
struct config *kernel_config_load_or_print(const struct kernel_options *options);
/* Runs until SIGTERM or SIGINT. The process's exit status. */
int kernel_serve(const struct kernel_options *options);
struct kernel_migration {
    enum {
        KERNEL_MIGRATE_APPLY,
        KERNEL_MIGRATE_PLAN,  /* prints the SQL; changes nothing */
        KERNEL_MIGRATE_STATE, /* prints where each schema stands; exit status 3 where migrations are missing */
        KERNEL_MIGRATE_GRANTS, /* prints what `role` needs to run without migrating; connects to nothing */
    } action;
    const char *role;
};
/* Creates and migrates every database the configuration names, or prints about it. The process's exit status. */
int kernel_migrate(const struct kernel_options *options, const struct kernel_migration *wanted);
/* "platform 6, refdata 16, …": the last migrations of this program. */
void kernel_schema_version(const struct module *const *modules, struct buf *out);
/* Every route of every module, one line each. */
int kernel_print_routes(const struct kernel_options *options);

#endif
