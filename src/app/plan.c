/* `freshet plan`: prints the arithmetic of plan_model.c step by step, or its results as JSON. */
#include "app/plan.h"

#include <math.h>
#include <stdio.h>

#include "app/commands.h"
#include "app/options.h"
#include "base/json.h"

#define MIB (1024.0 * 1024.0)

/* ---- words and numbers ---- */

/* 2,000,000 */
static const char *grouped(double number)
{
    static char texts[8][64];
    static unsigned turn;
    char digits[32], *out = texts[turn++ % 8];
    int len = snprintf(digits, sizeof digits, "%.0f", number);
    if (len >= (int)sizeof digits) {
        snprintf(out, sizeof texts[0], "%.3g", number);
        return out;
    }
    size_t at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

static void print_step(const char *what, const char *arithmetic, double result, const char *unit)
{
    if (result >= 1000 || result == floor(result))
        printf("   %-34s %-46s = %10s %s\n", what, arithmetic, grouped(result), unit);
    else
        printf("   %-34s %-46s = %10.2f %s\n", what, arithmetic, result, unit);
}

#define STEP(what, result, unit, ...)                           \
    do {                                                        \
        char arithmetic[128];                                   \
        snprintf(arithmetic, sizeof arithmetic, __VA_ARGS__);   \
        print_step((what), arithmetic, (double)(result), unit); \
    } while (0)

/* ---- the steps ---- */

static void print_target(const struct plan_figures *figures, const struct plan_target *target)
{
    printf("target   %s reads a second (%lld %% of them 16 pipelined), %s updates a second,\n"
           "         %s items of %s bytes (key and payload), %s connections of clients\n",
           grouped((double)target->tps), (long long)target->pipelined_percent,
           grouped((double)target->updates), grouped((double)target->items),
           grouped((double)target->item_bytes), grouped((double)target->connections));
    printf("figures  %s\n", figures->origin);
#define PRINT_FIGURE(name, help, ...) printf("         %-22s %9.5g  %s\n", #name, figures->name, help);
    PLAN_FIGURES(PRINT_FIGURE)
#undef PRINT_FIGURE
}

static void print_query(const struct plan_figures *figures, const struct plan_target *target,
                        const struct plan *plan)
{
    const struct plan_role *query = &plan->roles[PLAN_QUERY];
    double pipelined = (double)target->tps * (double)target->pipelined_percent / 100;
    double loops = target->pod_cores > 1 && figures->loops_ratio > 1 ? figures->loops_ratio : 1;
    double left = 1 - (double)target->headroom_percent / 100;
    printf("\n1. query pods, %lld processors each\n", (long long)target->pod_cores);
    STEP("reads", plan->reads_processors, "processors", "(%s x %.3g us + %s x %.3g us) x %.3g",
         grouped((double)target->tps - pipelined), figures->read_us, grouped(pipelined),
         figures->pipelined_us, loops);
    STEP("updates, on each pod", plan->update_processors, "processors", "%s x %.4g us",
         grouped((double)target->updates), figures->pod_update_us);
    STEP("room for reads in a pod", plan->pod_room, "processors", "%lld x %.2f - %.2f",
         (long long)target->pod_cores, left, plan->update_processors);
    STEP("pods", query->pods, "pods", "%.2f / %.2f, rounded up, at least %lld", plan->reads_processors,
         plan->pod_room, (long long)target->replicas_min);
    STEP("reads by pod", plan->reads_per_pod, "a second", "%s / %lld", grouped((double)target->tps),
         (long long)query->pods);
    STEP("busy at the target", plan->busy * 100, "%", "(%.2f / %lld + %.2f) / %lld", plan->reads_processors,
         (long long)query->pods, plan->update_processors, (long long)target->pod_cores);
    STEP("the same, one zone of three lost", plan->busy_zone_lost * 100, "%", "%lld pods left",
         (long long)(query->pods - (query->pods + 2) / 3));
}

static void print_memory(const struct plan_figures *figures, const struct plan_target *target,
                         const struct plan *plan)
{
    printf("\n2. memory of a query pod\n");
    STEP("an item", plan->item_memory_bytes, "bytes", "%lld + %d + %.3g", (long long)target->item_bytes,
         PLAN_WRAPPING_BYTES, figures->item_overhead_bytes);
    STEP("all items", plan->data_bytes / MIB, "MiB", "%s x %.4g", grouped((double)target->items),
         plan->item_memory_bytes);
    STEP("refdata.cache.memory", (double)plan->cache_bytes / MIB, "MiB", "2 versions during a full load");
    STEP("limits.memory", (double)plan->clients_bytes / MIB, "MiB", "256 MiB + %s connections x %d bytes",
         grouped((double)plan->pod_clients), PLAN_CONNECTION_BYTES);
    STEP("memory limit", (double)plan->roles[PLAN_QUERY].pod_memory_bytes / MIB, "MiB",
         "1.1 x (%.0f + %.0f) MiB", (double)plan->cache_bytes / MIB, (double)plan->clients_bytes / MIB);
}

static void print_writers(const struct plan_figures *figures, const struct plan_target *target,
                          const struct plan *plan)
{
    const double us[PLAN_ROLES] = {[PLAN_COMMAND] = figures->command_us,
                                   [PLAN_APPLY] = figures->apply_us,
                                   [PLAN_RELAY] = figures->relay_us};
    printf("\n3. the roles of updates, %d processor each\n", PLAN_SMALL_CORES);
    for (int i = PLAN_COMMAND; i < PLAN_ROLES; i++)
        STEP(plan->roles[i].name, plan->roles[i].pods, "pods",
             "%s x %.4g us = %.2f processors, at least %lld", grouped((double)target->updates), us[i],
             plan->roles[i].busy_processors, (long long)target->replicas_min);
}

static void print_servers(const struct plan_figures *figures, const struct plan_target *target,
                          const struct plan *plan)
{
    double pods = (double)plan->roles[PLAN_QUERY].pods, updates = (double)target->updates;
    printf("\n4. what they ask of others\n");
    STEP("network, answers", plan->gbit_out, "Gbit/s", "%s x %.0f bytes", grouped((double)target->tps),
         plan->gbit_out * 1e9 / 8 / (double)target->tps);
    STEP("network, requests", plan->gbit_in, "Gbit/s", "%s x %d bytes", grouped((double)target->tps),
         PLAN_REQUEST_BYTES);
    if (target->proxy_us)
        STEP("proxies of the mesh", plan->proxy_processors, "processors", "%s x %lld us",
             grouped((double)target->tps), (long long)target->proxy_us);
    STEP("PostgreSQL, connections, idle", plan->postgres_idle, "", "%lld pods x %d",
         (long long)plan->total_pods, PLAN_IDLE_CONNECTIONS);
    STEP("PostgreSQL, connections, at most", plan->postgres_connections, "",
         "pools of %d and %d to %d more, each pod", PLAN_POOL, PLAN_OWN_CONNECTIONS,
         PLAN_OWN_CONNECTIONS + PLAN_HANDLERS + 1);
    STEP("PostgreSQL, loads of changed keys", plan->loads_per_second, "a second", "%s x %.0f pods",
         grouped(updates), pods);
    STEP("PostgreSQL, WAL of updates", plan->wal_bytes_per_second / MIB, "MiB/s", "%s x %d bytes",
         grouped(updates), PLAN_WAL_BYTES);
    STEP("Redis, one thread", plan->redis_processors, "processors",
         "%s x %.0f pods x %.3g us + %.0f x %.3g us", grouped(updates), pods, figures->redis_pod_us, pods,
         figures->redis_idle_us);
    STEP("Redis, connections", plan->redis_connections, "", "%lld pods x %d",
         (long long)(plan->roles[PLAN_QUERY].pods + plan->roles[PLAN_RELAY].pods), PLAN_REDIS_CONNECTIONS);
    STEP("Kafka, all brokers", plan->kafka_processors, "processors", "%s x %.4g us", grouped(updates),
         figures->kafka_us);
    STEP("Kafka, written to disks", plan->kafka_bytes_per_second / MIB, "MiB/s",
         "%s x %lld bytes x %d copies", grouped(updates),
         (long long)(PLAN_COMMAND_BYTES + target->item_bytes), PLAN_KAFKA_COPIES);
}

static void print_sum(const struct plan *plan)
{
    printf("\nrole      pods  processors each  memory each  connections to PostgreSQL each, at most\n");
    for (int i = 0; i < PLAN_ROLES; i++)
        printf("%-8s  %4lld  %15lld  %7.0f MiB  %lld\n", plan->roles[i].name, (long long)plan->roles[i].pods,
               (long long)plan->roles[i].pod_cores, (double)plan->roles[i].pod_memory_bytes / MIB,
               (long long)plan->roles[i].pod_connections);
    printf("sum       %4lld  %15lld  %7.0f MiB  %lld\n", (long long)plan->total_pods,
           (long long)plan->total_cores, (double)plan->total_memory_bytes / MIB,
           (long long)plan->postgres_connections);
}

static void print_notes(const struct plan_target *target, const struct plan *plan)
{
    printf(
        "\nassumptions\n"
        "- A processor like the measured one: for another machine run `./dev bench query memory fleet fanout` there, and give\n"
        "  its folder with --bench.\n"
        "- It was measured over the loopback interface: the work of a network card's driver comes on top, within the headroom.\n"
        "- Connections without TLS: http.tls costs more for each answer and each new connection.\n"
        "- Clients keep their connections, and a read is a GET of one item with a token that was seen before. An answer of up to\n"
        "  1 KiB costs what the measured one does; --item-bytes changes memory and network.\n"
        "- Updates are small DELTAs of dictionaries with reloadOnEvent DELTA: each pod loads the changed keys once.\n"
        "- The cost of a further loop is that of the second one. More than two were not measured.\n");
    if (!target->proxy_us)
        printf("- No proxy: a sidecar of a mesh costs far more than the read itself; --proxy-us adds it.\n");
    if (plan->busy_zone_lost > 1)
        printf(
            "note: with one zone of three lost the rest is over 100 %% busy: more --headroom, or more --replicas-min.\n");
    if (plan->pod_clients > 50000)
        printf(
            "note: %s connections a pod are over http.limits.connections (50000): raise it, or plan more pods.\n",
            grouped((double)plan->pod_clients));
    if (plan->redis_processors > 0.6)
        printf(
            "note: Redis has one thread for the stream, and would be %.0f %% busy: fewer, larger pods (--pod-cores) help.\n",
            plan->redis_processors * 100);
    if (plan->postgres_idle > 100)
        printf("note: PostgreSQL's max_connections is 100 by default: set it above %s.\n",
               grouped((double)plan->postgres_connections));
}

/* ---- JSON ---- */

static void put_number(struct buf *out, const char *name, double value)
{
    json_put_key(out, str_from(name));
    buf_put_double(out, isfinite(value) ? round(value * 1e6) / 1e6 : 1e12);
}

static void print_json(const struct plan_figures *figures, const struct plan_target *target,
                       const struct plan *plan)
{
    struct buf out = {0};
    buf_printf(&out, "{\"target\":{");
#define PUT_TARGET(name) json_put_member_i64(&out, #name, target->name)
    PUT_TARGET(tps), PUT_TARGET(updates), PUT_TARGET(items), PUT_TARGET(item_bytes),
        PUT_TARGET(pipelined_percent);
    PUT_TARGET(headroom_percent), PUT_TARGET(replicas_min), PUT_TARGET(pod_cores), PUT_TARGET(connections);
    PUT_TARGET(proxy_us);
    buf_printf(&out, "},\"figures\":{");
    json_put_member_str(&out, "origin", str_from(figures->origin));
#define PUT_FIGURE(name, ...) put_number(&out, #name, figures->name);
    PLAN_FIGURES(PUT_FIGURE)
    buf_printf(&out, "},\"roles\":{");
    for (int i = 0; i < PLAN_ROLES; i++) {
        const struct plan_role *role = &plan->roles[i];
        json_put_open(&out, role->name, '{');
        json_put_member_i64(&out, "pods", role->pods);
        json_put_member_i64(&out, "cores", role->pod_cores);
        json_put_member_i64(&out, "memory_bytes", role->pod_memory_bytes);
        json_put_member_i64(&out, "postgres_connections", role->pod_connections);
        put_number(&out, "busy_processors", role->busy_processors);
        buf_put_char(&out, '}');
    }
    buf_put_char(&out, '}');
#define PUT_PLAN(name) put_number(&out, #name, (double)plan->name)
    PUT_PLAN(reads_processors), PUT_PLAN(update_processors), PUT_PLAN(reads_per_pod), PUT_PLAN(busy);
    PUT_PLAN(busy_zone_lost), PUT_PLAN(cache_bytes), PUT_PLAN(clients_bytes), PUT_PLAN(pod_clients),
        PUT_PLAN(gbit_out);
    PUT_PLAN(gbit_in), PUT_PLAN(proxy_processors), PUT_PLAN(postgres_connections), PUT_PLAN(postgres_idle);
    PUT_PLAN(loads_per_second), PUT_PLAN(wal_bytes_per_second), PUT_PLAN(redis_processors),
        PUT_PLAN(redis_connections);
    PUT_PLAN(kafka_processors), PUT_PLAN(kafka_bytes_per_second), PUT_PLAN(total_pods), PUT_PLAN(total_cores);
    PUT_PLAN(total_memory_bytes);
    buf_printf(&out, "}\n");
    fwrite(out.data + out.start, 1, buf_len(&out), stdout);
    buf_deinit(&out);
}

/* ---- the command ---- */

static int print_plan(const struct plan_figures *figures, const struct plan_target *target, bool as_json)
{
    struct plan plan;
    struct error error = {0};
    if (plan_compute(figures, target, &plan, &error) != STATUS_OK)
        return app_fail("plan", "%s", error.message);
    if (as_json) {
        print_json(figures, target, &plan);
        return 0;
    }
    print_target(figures, target);
    print_query(figures, target, &plan);
    print_memory(figures, target, &plan);
    print_writers(figures, target, &plan);
    print_servers(figures, target, &plan);
    print_sum(&plan);
    print_notes(target, &plan);
    return 0;
}

int app_plan(int argc, char **argv)
{
    struct plan_target target = {.updates = 100,
                                 .items = 1000000,
                                 .item_bytes = 200,
                                 .headroom_percent = 40,
                                 .replicas_min = 3,
                                 .pod_cores = 4,
                                 .connections = 100000};
    struct option_list benches = {0};
    bool as_json = false;
    const struct option_row rows[] = {
        {"--tps", "N", "reads a second over all pods", .number = &target.tps, .min = 1, .max = 10000000000},
        {"--updates", "N", "updates a second (100)", .number = &target.updates, .max = 10000000},
        {"--items", "N", "items that each query pod holds (1000000)", .number = &target.items,
         .max = 100000000000},
        {"--item-bytes", "N", "bytes of an item, key and payload (200)", .number = &target.item_bytes,
         .min = 1, .max = 1 << 20},
        {"--pipelined", "PERCENT", "share of the reads that clients pipeline by 16 (0)",
         .number = &target.pipelined_percent, .max = 100},
        {"--headroom", "PERCENT", "share of a pod's processors that stays free at the target (40)",
         .number = &target.headroom_percent, .max = 95},
        {"--replicas-min", "N", "least pods of each role (3)", .number = &target.replicas_min, .min = 1,
         .max = 100000},
        {"--pod-cores", "N", "processors of a query pod (4)", .number = &target.pod_cores, .min = 1,
         .max = 256},
        {"--connections", "N", "connections of clients in all (100000)", .number = &target.connections,
         .max = 1000000000},
        {"--proxy-us", "N", "processor time of a mesh's proxy for a read, in microseconds (0)",
         .number = &target.proxy_us, .max = 1000000},
        {"--bench", "PATH",
         "a file or folder of `./dev bench` instead of the figures built in; may be repeated",
         .list = &benches},
        {"--json", NULL, "print the results as JSON", .flag = &as_json},
        {.name = NULL},
    };
    int outcome = options_read(
        argc, argv,
        "Computes pods, processors, memory, connections and the load of PostgreSQL, Redis and Kafka for a\n"
        "number of reads a second, from measured costs. It connects to no server.",
        rows);
    if (outcome != OPTIONS_RUN)
        return outcome;
    if (target.tps == 0)
        return app_misuse("plan", "--tps is missing: the number of reads a second");
    struct plan_figures figures;
    struct error error = {0};
    plan_figures_init(&figures);
    for (size_t i = 0; i < benches.count; i++)
        if (plan_figures_load(&figures, benches.items[i], &error) != STATUS_OK)
            return app_fail("plan", "%s", error.message);
    return print_plan(&figures, &target, as_json);
}
