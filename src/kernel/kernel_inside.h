/* The kernel's own layout, for the files of this folder only. */
#ifndef FRESHET_KERNEL_KERNEL_INSIDE_H
#define FRESHET_KERNEL_KERNEL_INSIDE_H

#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#include "kernel/kernel.h"
#include "kernel/store.h"

enum { KERNEL_MODULES_MAX = 16, KERNEL_SECTIONS_MAX = 16 /* the kernel's own */ };

struct kernel_tls_settings {                        /* tls.c */
    struct str cert_file, key_file, client_ca_file; /* an empty certificate: connections are plain */
    int min_version, client_mode;
    struct setting_place cert_place, key_place, client_ca_place, client_mode_place;
};

struct kernel_cors_settings {
    struct setting_strings origins, expose_headers;
    bool allows_credentials;
    int64_t max_age_ms;
    struct setting_place origins_place, expose_place, credentials_place;
};

struct kernel_http_settings {
    struct setting_strings listen;
    struct setting_place listen_place;
    int64_t loops, workers, worker_queue, parked_max, reserved_descriptors, drain_delay_ms, stop_timeout_ms;
    bool gzip;
    struct http_limits limits;
    struct kernel_tls_settings tls;
    struct kernel_cors_settings cors;
};

struct kernel_debug_settings {
    bool enabled;
};

struct kernel_log_settings {
    int level;  /* enum log_level */
    int access; /* enum http_access_log */
};

struct kernel_rate_settings { /* one rule */
    struct str tenant, route;
    int64_t rate, burst; /* thousandths a second; burst 0 = by default */
    struct setting_place tenant_place, route_place, burst_place;
};

struct kernel_limit_settings {
    int64_t memory_bytes; /* 0 = from the machine */
    struct setting_place memory_place;
    struct setting_objects rates;
};

extern const struct config_section kernel_own_sections[];

struct kernel_module {
    const struct module *module;
    void *state;
    bool started;
};

struct idempotency;
struct kernel_memory;
struct kernel_scrape;
struct kernel_tls;
struct kernel_pods;
struct kernel_rates;
struct kernel_traces;
struct rate_table;

enum { KERNEL_CONSUMED_MAX = 16 };

/* Everything but the atomics belongs to the home loop. */
struct kernel_store {
    struct kernel *kernel;
    struct kernel_site site;
    _Atomic(struct bus *) events; /* the site's, when it runs */

    /* types of entities that modules here ask for, complete before the loops run */
    struct hydration *hydration;
    const char *consumed[KERNEL_CONSUMED_MAX];
    size_t consumed_count;
    bool consumes;

    struct kernel_gaps *gaps; /* audit.c */
    struct db_pool *probe_pool;
    struct worker_pool *prober;
    struct task *probe;
    enum status probe_status; /* of the last one, with its reason */
    struct error probe_error;
};

struct kernel {
    struct kernel_options options;
    struct arena arena;
    const struct config_section *sections;
    struct config *config; /* the main thread's: a reload replaces it */
    struct config *first;  /* as it was at the start, for every thread */
    struct kernel_module modules[KERNEL_MODULES_MAX];
    size_t module_count;
    struct loop_group *loops;
    struct worker_pool *workers;
    struct worker_pool *verifiers; /* of signatures alone: a dead PostgreSQL may block every worker */
    struct kernel_scrape *scrape;  /* actuator.c: renders the metrics */
    struct kernel_traces *traces;  /* traces.c: exports spans; NULL = off */
    struct kernel_memory *memory;  /* memory.c: limits.memory */
    struct kernel_pods *pods;      /* pods.c: what operators see of this process */
    struct auth *auth;
    struct db_server *servers;  /* those that a target of this process ever named */
    struct kernel_store *store; /* NULL where no role keeps anything there */
    struct http_router *router;
    struct http_server *server;
    struct kernel_tls *tls; /* NULL = connections are plain */
    struct idempotency *idempotency;
    _Atomic(struct kernel_rates *) rates; /* NULL = no limits */
    struct rate_table *rate_buckets;
    int64_t stop_deadline_ns; /* stopTimeout after the signal; CLOCK_NEVER while it serves, 0 until then */
    atomic_bool stopping;     /* readiness is DOWN while clients leave and requests in flight are finished */
    pthread_mutex_t refused_lock; /* of the next two */
    struct buf refused;           /* problems of the last reload; empty = it was accepted */
    int64_t refused_us;
    atomic_bool must_stop; /* as by SIGTERM, with exit status 1; the reason was logged */
    atomic_bool had_keys;  /* until the configured keys are read once, readiness is DOWN */
};

bool kernel_wants_module(const struct kernel *kernel, const struct module *module); /* by its roles */
http_step_fn kernel_gate, kernel_idempotency_step; /* context: struct kernel */
struct str kernel_tenant_of(const struct http_request *request);
uint64_t kernel_share_of(const struct http_request *request); /* its tenant's, of the memory for bodies */
/* ---- rates.c ---- */
extern const struct setting_row kernel_rate_rows[];
enum status kernel_rates_check(const struct config *config, const struct module *const *modules,
                               struct error *error) MUST_CHECK;
void kernel_rates_set(struct kernel *kernel, const struct config *config); /* also while loops run */
void kernel_rates_destroy(struct kernel *kernel);
/* On the loop, when the gate knows the tenant. False: answered 429. */
bool kernel_rates_admit(const struct kernel_rates *rates, struct http_request *request);

/* ---- tls.c: the main thread's, but for the health ---- */
extern const struct setting_row kernel_tls_rows[];
enum status kernel_tls_check(const struct config *config,
                             struct error *error) MUST_CHECK; /* reads the files */
bool kernel_tls_asks_clients(const struct config *config);    /* for their certificates */
enum status kernel_tls_create(struct kernel *kernel, struct error *error) MUST_CHECK;
/* cors.c */
extern const struct setting_row kernel_cors_rows[];
enum status kernel_cors_check(const struct config *config, struct error *error) MUST_CHECK;
struct http_cors *kernel_cors_create(const struct config *config); /* NULL = none */
void kernel_cors_reload(struct kernel *kernel, const struct config *fresh);

struct http_tls *kernel_tls_current(const struct kernel *kernel); /* NULL = connections are plain */
void kernel_tls_reload(struct kernel *kernel, const struct config *fresh);
void kernel_tls_watch(struct kernel *kernel); /* every second: have the files changed? */
void kernel_tls_health(const struct kernel *kernel, struct health *health);
void kernel_tls_destroy(struct kernel *kernel);

/* ---- kernel.c: has a file changed since it was looked at? By its name: a mounted ConfigMap or Secret changes by swapping a symbolic
 * link. One that is not there has not changed. ---- */
struct kernel_file_mark {
    struct timespec modified;
    ino_t inode;
    off_t size;
};
struct kernel_file_mark kernel_file_mark(const char *path);
bool kernel_file_changed(const struct kernel_file_mark *before, const struct kernel_file_mark *now);

extern const struct http_route kernel_actuator_routes[]; /* open to everyone; context: struct kernel */
http_handler_fn kernel_get_health, kernel_get_readiness, kernel_get_liveness;
struct kernel_scrape *kernel_scrape_create(struct loop *loop);
void kernel_scrape_stop(struct kernel_scrape *scrape); /* while the loops still run messages */
void kernel_scrape_destroy(struct kernel_scrape *scrape);

/* On any loop: a line for each role and component, state (1 or 0), "role" or "component" and name, with tabs between them. */
void kernel_health_lines(struct kernel *kernel, struct buf *out);

/* On any loop: {"roles":{…},"components":{…}}, as GET /actuator/health has them; components are left out where there are too many. Is the
 * process ready? */
bool kernel_health_report(struct kernel *kernel, struct buf *out);

/* ---- pods.c ---- */
struct kernel_pods *kernel_pods_create(struct kernel *kernel);                /* before the modules start */
void kernel_pods_set_address(struct kernel *kernel);                          /* when the server listens */
void kernel_pods_destroy(struct kernel_pods *pods);                           /* NULL is fine */
struct kernel_pod_writer *kernel_pod_writer_create(struct kernel_site *site); /* home loop */
/* Main thread, its task has stopped: the process ends in order, or leaves this database. */
void kernel_pod_writer_stop(struct kernel_pod_writer *writer);                              /* NULL is fine */
void kernel_pod_writer_destroy(struct kernel_pod_writer *writer);                           /* NULL is fine */
void kernel_site_adopt_task(struct kernel_site *site, struct task *task, int64_t delay_ns); /* site.c */

void kernel_host_name(char *name, size_t bytes); /* HOSTNAME, or the system's; "unknown" without either */
/* ---- process.c: metrics of the process as a whole ---- */
void kernel_process_metrics_register(const char *commit);
/* By the scrape's thread; no lines: health is as it was. `shown`: the lines that the metrics show, empty at first. */
void kernel_process_metrics_update(struct str health_lines, struct buf *shown);
void kernel_process_reloaded(bool is_accepted); /* the configuration file was read again */

/* Every connection is a descriptor: takes as many as the system lets us have. Before kernel_http_limits(). */
void kernel_descriptors_raise(void);
struct http_limits kernel_http_limits(const struct kernel_http_settings *http);

/* ---- cgroup.c: limits of the process's cgroup; 0 = there is none. `root` stands before the paths of the system's files, "" but in tests ---- */
uint64_t kernel_cgroup_memory(const char *root);     /* bytes */
uint64_t kernel_cgroup_processors(const char *root); /* its quota of processor time, rounded up */
unsigned kernel_processors(void); /* that this process may use: by its affinity and its quota; at least 1 */

/* ---- memory.c ---- */
enum status kernel_memory_check(const struct config *config, struct error *error) MUST_CHECK;
void kernel_memory_prepare(void); /* before threads are created */
/* At the end of the start, before the loops run: what the process has taken until now is its own. */
struct kernel_memory *kernel_memory_create(struct kernel *kernel);
void kernel_memory_stop(struct kernel_memory *memory); /* NULL is fine, as for the next one */
void kernel_memory_destroy(struct kernel_memory *memory);

/* auth.* with the auth settings of the modules' sections. */
struct auth_settings kernel_auth_settings(const struct config *config, const struct module *const *modules);

/* ---- events.c: on the home loop ---- */
enum status kernel_events_open(struct kernel_store *store, struct error *error) MUST_CHECK;
/* Of the configuration alone: topics that modules name must be the same ones. */
/* Topics of events, and dead letters of those in NATS (dead_letters.h). */
struct bus_dead;
void kernel_events_dead_topics(const struct config *config, const struct module *const *modules,
                               void (*fn)(const struct kernel_dead_topic *topic, void *arg), void *arg);
enum status kernel_events_dead_open(const struct config *config, const struct module *const *modules,
                                    int64_t deadline_ns, struct bus_dead **dead,
                                    struct error *error) MUST_CHECK;
enum status kernel_events_check(const struct config *config, const struct module *const *modules,
                                struct error *error) MUST_CHECK;

/* Checks `postgres:` as far as the file allows. */
enum status kernel_store_check(const struct config *config, struct error *error) MUST_CHECK;

/* ---- the process's life: kernel.c, all no-ops without a store ---- */
/* Before the modules start, if one of them keeps something there. Opens no connection. */
enum status kernel_store_create(struct kernel *kernel, struct error *error) MUST_CHECK;
void kernel_store_start(struct kernel *kernel);       /* before the loops run */
void kernel_store_begin_stop(struct kernel *kernel);  /* before modules stop: outboxes do */
void kernel_store_finish_stop(struct kernel *kernel); /* after modules have; loops still run */
void kernel_store_destroy(struct kernel *kernel);     /* after modules are gone, before the loops are */
void kernel_store_health(const struct kernel *kernel, struct health *health);
/* Of a module that reports none itself. */
void kernel_store_role_health(const struct kernel *kernel, const struct module *module,
                              struct health *health);

#endif
