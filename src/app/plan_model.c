/* The arithmetic of `freshet plan`: figures and a target in, pods and load out. Processors are processor-seconds a second. */
#include <math.h>

#include "app/plan.h"

#define MIB (1024.0 * 1024.0)
#define US 1e-6
/* Sums of both fit into 64 bits. */
#define PODS_MAX 1e5
#define POD_BYTES_MAX (64 * 1024 * 1024 * MIB)

/* Up to a whole number of steps; what floating point adds to a whole number does not make one more. */
static int64_t round_up(double value, double step)
{
    return (int64_t)(ceil(value / step - 1e-9) * step);
}

static int64_t pods_for(double processors, double room, const struct plan_target *target)
{
    int64_t needed = round_up(processors / room, 1);
    return needed > target->replicas_min ? needed : target->replicas_min;
}

static double headroom_left(const struct plan_target *target)
{
    return 1.0 - (double)target->headroom_percent / 100.0;
}

/* ---- query pods ---- */

static void compute_reads(const struct plan_figures *figures, const struct plan_target *target,
                          struct plan *plan)
{
    double pipelined = (double)target->tps * (double)target->pipelined_percent / 100.0;
    double single = (double)target->tps - pipelined;
    double loops = target->pod_cores > 1 && figures->loops_ratio > 1 ? figures->loops_ratio : 1.0;
    plan->reads_processors = (single * figures->read_us + pipelined * figures->pipelined_us) * US * loops;
    plan->update_processors = (double)target->updates * figures->pod_update_us * US;
    plan->pod_room = (double)target->pod_cores * headroom_left(target) - plan->update_processors;
    plan->proxy_processors = (double)target->tps * (double)target->proxy_us * US;
}

static void compute_query_pods(const struct plan_target *target, struct plan *plan)
{
    int64_t pods = pods_for(plan->reads_processors, plan->pod_room, target);
    int64_t left = pods - (pods + 2) / 3; /* of three zones, the largest is gone */
    double cores = (double)target->pod_cores;
    plan->roles[PLAN_QUERY] = (struct plan_role){
        .name = "query",
        .pods = pods,
        .pod_cores = target->pod_cores,
        .busy_processors = plan->reads_processors + plan->update_processors * (double)pods,
        .pod_connections = PLAN_POOL + PLAN_OWN_CONNECTIONS,
    };
    plan->busy = (plan->reads_processors / (double)pods + plan->update_processors) / cores;
    plan->busy_zone_lost =
        left ? (plan->reads_processors / (double)left + plan->update_processors) / cores : INFINITY;
    plan->reads_per_pod = (double)target->tps / (double)pods;
    plan->pod_clients = round_up((double)target->connections / (double)pods, 1);
}

/* With refdata.cache.memory and limits.memory set, anonymous memory stays below 1.1 times their sum (OPERATIONS.md). */
static void compute_memory(const struct plan_figures *figures, const struct plan_target *target,
                           struct plan *plan)
{
    plan->item_memory_bytes = (double)target->item_bytes + PLAN_WRAPPING_BYTES + figures->item_overhead_bytes;
    plan->data_bytes = (double)target->items * plan->item_memory_bytes;
    plan->cache_bytes = round_up(2 * plan->data_bytes, 64 * MIB);
    plan->clients_bytes = round_up(256 * MIB + (double)plan->pod_clients * PLAN_CONNECTION_BYTES, 64 * MIB);
    plan->roles[PLAN_QUERY].pod_memory_bytes =
        round_up(1.1 * (double)(plan->cache_bytes + plan->clients_bytes), 256 * MIB);
}

/* ---- the other roles ---- */

static void compute_writers(const struct plan_figures *figures, const struct plan_target *target,
                            struct plan *plan)
{
    const struct {
        const char *name;
        double us;
        int64_t connections;
    } rows[PLAN_ROLES] = {
        [PLAN_COMMAND] = {"command", figures->command_us, PLAN_POOL + PLAN_OWN_CONNECTIONS},
        [PLAN_APPLY] = {"apply", figures->apply_us, PLAN_POOL + PLAN_OWN_CONNECTIONS + PLAN_HANDLERS + 1},
        [PLAN_RELAY] = {"relay", figures->relay_us, PLAN_POOL + PLAN_OWN_CONNECTIONS},
    };
    for (int i = PLAN_COMMAND; i < PLAN_ROLES; i++) {
        double processors = (double)target->updates * rows[i].us * US;
        plan->roles[i] = (struct plan_role){
            .name = rows[i].name,
            .busy_processors = processors,
            .pods = pods_for(processors, PLAN_SMALL_CORES * headroom_left(target), target),
            .pod_cores = PLAN_SMALL_CORES,
            .pod_memory_bytes = (int64_t)(512 * MIB),
            .pod_connections = rows[i].connections,
        };
    }
}

/* ---- what they ask of others ---- */

static void compute_servers(const struct plan_figures *figures, const struct plan_target *target,
                            struct plan *plan)
{
    double pods = (double)plan->roles[PLAN_QUERY].pods, relays = (double)plan->roles[PLAN_RELAY].pods;
    double updates = (double)target->updates;
    double answer =
        figures->answer_bytes - PLAN_BODY_BYTES + PLAN_WRAPPING_BYTES + (double)target->item_bytes;
    plan->gbit_out = (double)target->tps * answer * 8 / 1e9;
    plan->gbit_in = (double)target->tps * PLAN_REQUEST_BYTES * 8 / 1e9;
    plan->loads_per_second = updates * pods;
    plan->wal_bytes_per_second = updates * PLAN_WAL_BYTES;
    plan->redis_processors = (updates * pods * figures->redis_pod_us + pods * figures->redis_idle_us) * US;
    plan->redis_connections = (pods + relays) * PLAN_REDIS_CONNECTIONS;
    plan->kafka_processors = updates * figures->kafka_us * US;
    plan->kafka_bytes_per_second =
        updates * (double)(PLAN_COMMAND_BYTES + target->item_bytes) * PLAN_KAFKA_COPIES;
    for (int i = 0; i < PLAN_ROLES; i++) {
        const struct plan_role *role = &plan->roles[i];
        plan->postgres_connections += role->pods * role->pod_connections;
        plan->postgres_idle += role->pods * PLAN_IDLE_CONNECTIONS;
        plan->total_pods += role->pods;
        plan->total_cores += role->pods * role->pod_cores;
        plan->total_memory_bytes += role->pods * role->pod_memory_bytes;
    }
}

/* Before anything is rounded to a whole number that could not hold it. */
static bool is_computable(const struct plan_figures *figures, const struct plan_target *target,
                          const struct plan *plan)
{
    double writer_us = fmax(figures->command_us, fmax(figures->apply_us, figures->relay_us));
    double writers = (double)target->updates * writer_us * US / (PLAN_SMALL_CORES * headroom_left(target));
    double item = (double)target->item_bytes + PLAN_WRAPPING_BYTES + figures->item_overhead_bytes;
    double bytes =
        2 * (double)target->items * item + (double)target->connections * PLAN_CONNECTION_BYTES + 1024 * MIB;
    return plan->reads_processors / plan->pod_room <= PODS_MAX && writers <= PODS_MAX &&
           1.1 * bytes <= POD_BYTES_MAX;
}

enum status plan_compute(const struct plan_figures *figures, const struct plan_target *target,
                         struct plan *plan, struct error *error)
{
    *plan = (struct plan){0};
    compute_reads(figures, target, plan);
    if (plan->pod_room <= 0)
        return error_set(
            error, STATUS_CONFIG,
            "%lld updates a second need %.2f processors of each query pod, and a pod of %lld has %.2f with the "
            "headroom: use larger pods (--pod-cores)",
            (long long)target->updates, plan->update_processors, (long long)target->pod_cores,
            (double)target->pod_cores * headroom_left(target));
    if (!is_computable(figures, target, plan))
        return error_set(
            error, STATUS_CONFIG,
            "it needs more than %.0f pods of a role, or more than 64 TiB in a pod: check the target and the figures",
            PODS_MAX);
    compute_query_pods(target, plan);
    compute_memory(figures, target, plan);
    compute_writers(figures, target, plan);
    compute_servers(figures, target, plan);
    return STATUS_OK;
}
