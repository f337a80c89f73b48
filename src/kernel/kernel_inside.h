/* The kernel's own layout, for the files of this folder only. */
#ifndef FRESHET_KERNEL_KERNEL_INSIDE_H
#define FRESHET_KERNEL_KERNEL_INSIDE_H

#include <stdatomic.h>

#include "kernel/kernel.h"

enum { KERNEL_MODULES_MAX = 16, KERNEL_SECTIONS_MAX = 16 /* the kernel's own */ };

struct kernel_http_settings {
    struct setting_strings listen;
    struct setting_place listen_place;
    int64_t loops, workers, worker_queue, parked_max;
    int64_t body_bytes_max, target_bytes_max, header_bytes_max, header_count_max, connections_max;
    int64_t reserved_descriptors;
    int64_t bodies_bytes_max, unsent_bytes_max, body_rate_min, write_rate_min;
    int64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms, request_timeout_ms;
    int64_t stop_timeout_ms;
};

struct kernel_debug_settings {
    bool enabled;
};

struct kernel_log_settings {
    int level; /* enum log_level */
};

extern const struct config_section kernel_own_sections[];

struct kernel_module {
    const struct module *module;
    void *state;
    bool started;
};

struct kernel_store;
struct kernel_scrape;

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
    struct auth *auth;
    struct db_server *servers;  /* those that a target of this process ever named */
    struct kernel_store *store; /* store_inside.h; NULL where no role keeps anything there */
    struct http_router *router;
    struct http_server *server;
    struct idempotency *idempotency;
    int64_t stop_deadline_ns; /* stopTimeout after the signal; 0 = a start that failed */
    atomic_bool stopping;     /* readiness is DOWN while requests in flight are finished */
};

bool kernel_wants_module(const struct kernel *kernel, const struct module *module); /* by its roles */
http_step_fn kernel_gate, kernel_idempotency_step; /* context: struct kernel */
void kernel_leave(struct http_request *request, void *context);
uint64_t kernel_share_of(const struct http_request *request); /* its tenant's, of the memory for bodies */
extern const struct http_route kernel_actuator_routes[];      /* open to everyone; context: struct kernel */
http_handler_fn kernel_get_health, kernel_get_readiness, kernel_get_liveness;
struct kernel_scrape *kernel_scrape_create(void);
void kernel_scrape_stop(struct kernel_scrape *scrape); /* while the loops still run messages */
void kernel_scrape_destroy(struct kernel_scrape *scrape);

/* Every connection is a descriptor: takes as many as the system lets us have. Before kernel_http_limits(). */
void kernel_descriptors_raise(void);
struct http_limits kernel_http_limits(const struct kernel_http_settings *http);

/* auth.* with the auth settings of the modules' sections. */
struct auth_settings kernel_auth_settings(const struct config *config, const struct module *const *modules);

#endif
