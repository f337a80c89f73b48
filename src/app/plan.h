/* `freshet plan`: how many pods, processors, bytes and connections a target needs, by arithmetic over measured costs.
 *
 * Figures come from bench files (plan_figures.c), the arithmetic is a pure function of figures and target (plan_model.c), and the
 * command prints every step of it (plan.c). Nothing here asks a server. */
#ifndef FRESHET_APP_PLAN_H
#define FRESHET_APP_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

/* ---- measured ---- */

/* X(name, what it is, bench, path of its value, path of its divisor or NULL, factor) */
#define PLAN_FIGURES(X)                                                                                     \
    X(read_us, "processor time of a read, one at a time, µs", "query",                                      \
      "sections.item_1[target=freshet].server_cpu_us_per_request", NULL, 1.0)                               \
    X(pipelined_us, "processor time of a read, 16 pipelined, µs", "query",                                  \
      "sections.item_16[target=freshet].server_cpu_us_per_request", NULL, 1.0)                              \
    X(loops_ratio, "cost of a read with two loops, × one loop", "query",                                    \
      "sections.loops_freshet[target=freshet, 2 loops].ratio", NULL, 1.0)                                   \
    X(answer_bytes, "bytes of the answers that were measured", "query",                                     \
      "sections.item_1[target=freshet].bytes_per_answer", NULL, 1.0)                                        \
    X(item_overhead_bytes, "memory of an item beside its answer's body, bytes", "memory",                   \
      "sections.memory.beside_answer_body_per_item", NULL, 1.0)                                             \
    X(pod_update_us, "processor time of an update on each query pod, µs", "fleet",                          \
      "sections.cpu_seconds.query", "sections.freshness.sent", 1e6 / 3)                                     \
    X(command_us, "processor time of an update, role command, µs", "fleet", "sections.cpu_seconds.command", \
      "sections.freshness.sent", 1e6)                                                                       \
    X(apply_us, "processor time of an update, role apply, µs", "fleet", "sections.cpu_seconds.apply",       \
      "sections.freshness.sent", 1e6)                                                                       \
    X(relay_us, "processor time of an update, role relay, µs", "fleet", "sections.cpu_seconds.relay",       \
      "sections.freshness.sent", 1e6)                                                                       \
    X(kafka_us, "processor time of an update, Kafka, µs", "fleet", "sections.cpu_seconds.kafka",            \
      "sections.freshness.sent", 1e6)                                                                       \
    X(redis_pod_us, "Redis's processor time by pod and invalidation, µs", "fanout",                         \
      "sections.cost.redis.us_per_pod_and_message", NULL, 1.0)                                              \
    X(redis_idle_us, "Redis's processor time by idle pod and second, µs", "fanout",                         \
      "sections.cost.redis.idle_us_per_pod_and_second", NULL, 1.0)

struct plan_figures {
#define PLAN_MEMBER(name, ...) double name;
    PLAN_FIGURES(PLAN_MEMBER)
#undef PLAN_MEMBER
    char origin[512]; /* the benches that they are of, with their dates */
};

/* Reads the figures that the text of a bench file has; the others stay. CONFIG: it is not a bench file, a figure of its bench is missing, or
 * a figure is not a number above 0. */
enum status plan_figures_read(struct plan_figures *figures, struct str text, struct error *error) MUST_CHECK;
/* The figures that are built in: deploy/plan.json. */
void plan_figures_init(struct plan_figures *figures);
/* A file, or a folder as `./dev bench` writes it, of which query.json, memory.json, fleet.json and fanout.json are read if they are
 * there; CONFIG: nothing could be read. */
enum status plan_figures_load(struct plan_figures *figures, const char *path, struct error *error) MUST_CHECK;

/* ---- wanted ---- */

struct plan_target {
    int64_t tps, updates; /* reads and updates a second */
    int64_t items, item_bytes;
    int64_t pipelined_percent, headroom_percent;
    int64_t replicas_min, pod_cores;
    int64_t connections; /* of clients, in all */
    int64_t proxy_us;    /* of a proxy in the mesh, by read; 0 = none */
};

/* ---- computed ---- */

enum plan_role_name { PLAN_QUERY, PLAN_COMMAND, PLAN_APPLY, PLAN_RELAY, PLAN_ROLES };

struct plan_role {
    const char *name;
    double busy_processors;                                     /* of all its pods together, at the target */
    int64_t pods, pod_cores, pod_memory_bytes, pod_connections; /* connections to PostgreSQL, at most */
};

struct plan {
    struct plan_role roles[PLAN_ROLES];
    double reads_processors;     /* all reads, with the cost of several loops */
    double update_processors;    /* on each query pod */
    double pod_room;             /* processors of a query pod for reads, with the headroom */
    double busy, busy_zone_lost; /* of the query pods; the second with a third of them gone */
    double reads_per_pod;
    double item_memory_bytes, data_bytes;
    int64_t cache_bytes, clients_bytes; /* refdata.cache.memory, limits.memory */
    int64_t pod_clients;                /* connections of clients to each query pod */
    double gbit_out, gbit_in;
    double proxy_processors;
    int64_t postgres_connections, postgres_idle;
    double loads_per_second, wal_bytes_per_second;
    double redis_processors, redis_connections;
    double kafka_processors, kafka_bytes_per_second;
    int64_t total_pods, total_cores, total_memory_bytes;
};

/* Constants of the arithmetic, printed as assumptions. */
enum {
    PLAN_REQUEST_BYTES = 760, /* asked, token included: as measured */
    PLAN_BODY_BYTES = 128,    /* of the answers that were measured */
    PLAN_WRAPPING_BYTES = 21, /* {"key":…,"payload":…} */
    PLAN_CONNECTION_BYTES = 5120,
    PLAN_SMALL_CORES = 1,      /* a pod of the other roles */
    PLAN_IDLE_CONNECTIONS = 8, /* to PostgreSQL, of any process */
    PLAN_POOL = 16,            /* pool.maxSize */
    PLAN_OWN_CONNECTIONS = 4,  /* beside the pool: LISTEN, notices, relay */
    PLAN_HANDLERS = 5,         /* of apply: refdata.kafka.handlers and a fifth more */
    PLAN_WAL_BYTES = 3824,     /* of an update that is queued: bench/COSTS.md */
    PLAN_COMMAND_BYTES = 500,  /* of a command beside its items */
    PLAN_KAFKA_COPIES = 3,
    PLAN_REDIS_CONNECTIONS = 4, /* of a pod: three masters and the channel */
};

/* CONFIG: updates alone fill a query pod, or the numbers are too large to be a plan. */
enum status plan_compute(const struct plan_figures *figures, const struct plan_target *target,
                         struct plan *plan, struct error *error) MUST_CHECK;

#endif
