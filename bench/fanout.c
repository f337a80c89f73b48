/* Many pods in one process, as far as Redis can tell: each is a Redis driver of its own, with its subscription, its
 * connection and its consumer group, and a handler that does nothing but look when the message was committed.
 *
 *     fanout HOST:PORT PODS
 *
 * Prints {"ready":N} when every group stands, and then goes by lines of standard input, each with a version that it waits
 * for until every pod has been handed it. `begin V` counts from there on and prints {"begun":V}; `end V` prints the figures as
 * one line of JSON and leaves. Both times are from the payload's committedAt: `told` by the channel, which may lose, and
 * `handled` by the stream, which must not. It expects the versions of one dictionary. */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_redis.h"
#include "load_stats.h"

enum {
    PODS_MAX = 4096,
    WORKERS = 2,
    SAMPLE_MS = 20,
    PATIENCE_S = 60,
};

static const char topic_name[] = "refdata.invalidations";

struct pod {
    struct fleet *fleet;
    struct bus *bus;
    char name[32];
    atomic_llong
        last; /* the newest version it was handed; what follows is its handler's, till the bus has stopped */
    uint64_t handed, missed, repeated;
    struct bench_histogram told, handled;
};

struct fleet {
    struct worker_pool *workers;
    struct pod *pods;
    unsigned count;
    atomic_uint ready;
    atomic_llong begin; /* versions up to this one are not counted */
    long long behind_max;
};

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "fanout: %s\n", what);
    exit(1);
}

/* ---- what a pod is handed ---- */

static bool read_message(struct str payload, struct arena *arena, int64_t *version, int64_t *committed_us)
{
    struct json_value body, value;

    return json_parse(payload, JSON_DEPTH_MAX, &body, NULL) == STATUS_OK &&
           json_get(&body, STR("version"), &value) && json_to_i64(&value, version) &&
           json_get(&body, STR("committedAt"), &value) && value.type == JSON_STRING &&
           clock_rfc3339_parse(json_str_decode(value.raw, arena), committed_us);
}

static void take_handled(struct pod *pod, int64_t version, uint64_t took_us)
{
    long long begin = atomic_load(&pod->fleet->begin), last = atomic_load(&pod->last);

    if (version > begin) {
        last = last > begin ? last : begin;
        pod->handed++;
        pod->repeated += version <= last;
        pod->missed += version > last ? (uint64_t)(version - last - 1) : 0;
        bench_histogram_add(&pod->handled, took_us, 1);
    }
    if (version > last)
        atomic_store(&pod->last, version);
}

/* A batch is either of the stream or, with offsets of -1, of the channel; the two may come at once. */
static void on_batch(void *context, struct bus_batch *batch)
{
    struct pod *pod = context;
    int64_t version, committed_us, now_us = clock_unix_us();
    struct arena arena = ARENA(1024);

    for (size_t i = 0; i < batch->count; i++) {
        if (!read_message(batch->messages[i].payload, &arena, &version, &committed_us))
            give_up("a message that is no invalidation");
        uint64_t took_us = now_us > committed_us ? (uint64_t)(now_us - committed_us) : 0;
        if (batch->messages[i].offset >= 0)
            take_handled(pod, version, took_us);
        else if (version > atomic_load(&pod->fleet->begin))
            bench_histogram_add(&pod->told, took_us, 1);
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static void on_ready(void *context)
{
    struct pod *pod = context;
    atomic_fetch_add(&pod->fleet->ready, 1);
}

/* ---- the fleet ---- */

/* Everything as a query pod has it. */
static void open_pod(struct fleet *fleet, struct pod *pod, const char *address)
{
    const struct bus_topic topic = {.name = topic_name, .partitions = 1};
    struct error error = {0};

    pod->fleet = fleet;
    snprintf(pod->name, sizeof pod->name, "fanout-%d-%u", (int)getpid(), (unsigned)(pod - fleet->pods));
    const struct bus_redis_config config = {.workers = fleet->workers,
                                            .nodes = &address,
                                            .node_count = 1,
                                            .pod = pod->name,
                                            .topics = &topic,
                                            .topic_count = 1,
                                            .stream = "refdata:inv:stream",
                                            .channel = "refdata:inv:pub"};
    const struct bus_subscription subscription = {.topic = topic_name,
                                                  .group = "refdata-query-pods",
                                                  .mode = BUS_EVERY,
                                                  .from = BUS_FROM_NOW,
                                                  .batch_max = 1000,
                                                  .hints = true,
                                                  .context = pod,
                                                  .handler = on_batch,
                                                  .on_ready = on_ready};
    if (bus_redis_create(&config, &pod->bus, &error) != STATUS_OK ||
        bus_subscribe(pod->bus, &subscription, &error) != STATUS_OK)
        give_up(error.message);
    bus_start(pod->bus);
}

static void open_fleet(struct fleet *fleet, const char *address)
{
    fleet->workers = worker_pool_create("pods", WORKERS, 4 * (size_t)fleet->count);
    fleet->pods = memory_zalloc(fleet->count * sizeof fleet->pods[0]);
    atomic_store(&fleet->begin, INT64_MAX);
    for (unsigned i = 0; i < fleet->count; i++)
        open_pod(fleet, &fleet->pods[i], address);
    int64_t late_ns = clock_deadline_ms(PATIENCE_S * 1000);
    while (atomic_load(&fleet->ready) < fleet->count) {
        if (clock_mono_ns() > late_ns)
            give_up("not every pod has its group");
        poll(NULL, 0, SAMPLE_MS);
    }
    printf("{\"ready\":%u}\n", fleet->count);
    fflush(stdout);
}

static void close_fleet(struct fleet *fleet)
{
    for (unsigned i = 0; i < fleet->count; i++)
        bus_stop(fleet->pods[i].bus, 1000);
    worker_pool_stop(fleet->workers);
    for (unsigned i = 0; i < fleet->count; i++)
        bus_destroy(fleet->pods[i].bus);
    worker_pool_destroy(fleet->workers);
}

/* The version that every pod has; notes how far the last is behind the first. */
static long long look(struct fleet *fleet)
{
    long long least = INT64_MAX, most = 0;

    for (unsigned i = 0; i < fleet->count; i++) {
        long long last = atomic_load(&fleet->pods[i].last);
        least = last < least ? last : least;
        most = last > most ? last : most;
    }
    long long begin = atomic_load(&fleet->begin), from = least > begin ? least : begin;
    if (most - from > fleet->behind_max)
        fleet->behind_max = most - from;
    return least;
}

/* ---- lines ---- */

/* Reads `WORD V`, and waits until every pod has V or that takes too long. */
static long long wait_for(struct fleet *fleet, const char *word)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char line[64], found[8];
    long long version;

    while (poll(&input, 1, SAMPLE_MS) == 0)
        look(fleet);
    if (!fgets(line, sizeof line, stdin) || sscanf(line, "%7s %lld", found, &version) != 2 ||
        strcmp(found, word) != 0)
        give_up("`begin V` and `end V`, please");
    int64_t late_ns = clock_deadline_ms(PATIENCE_S * 1000);
    while (look(fleet) < version && clock_mono_ns() < late_ns)
        poll(NULL, 0, SAMPLE_MS);
    return version;
}

static void print_times(const char *name, const struct bench_histogram *times)
{
    printf(",\"%s\":{\"count\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f}", name,
           (unsigned long long)times->total, (double)bench_histogram_quantile(times, 0.5) / 1e3,
           (double)bench_histogram_quantile(times, 0.99) / 1e3,
           (double)bench_histogram_quantile(times, 1.0) / 1e3);
}

static void print_figures(const struct fleet *fleet, long long end)
{
    static struct bench_histogram told, handled;
    uint64_t missed = 0, repeated = 0;

    for (unsigned i = 0; i < fleet->count; i++) {
        const struct pod *pod = &fleet->pods[i];
        long long last = atomic_load(&pod->last), begin = atomic_load(&fleet->begin);
        last = last > begin ? last : begin;
        missed += pod->missed + (end > last ? (uint64_t)(end - last) : 0);
        repeated += pod->repeated;
        bench_histogram_merge(&told, &pod->told);
        bench_histogram_merge(&handled, &pod->handled);
    }
    printf("{\"pods\":%u,\"missed\":%llu,\"repeated\":%llu,\"behind_max\":%lld", fleet->count,
           (unsigned long long)missed, (unsigned long long)repeated, fleet->behind_max);
    print_times("told", &told);
    print_times("handled", &handled);
    printf("}\n");
}

static void allow_files(void)
{
    struct rlimit files;

    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv)
{
    static struct fleet fleet;

    if (argc != 3 || (fleet.count = (unsigned)strtoul(argv[2], NULL, 10)) == 0 || fleet.count > PODS_MAX) {
        fputs("usage: fanout HOST:PORT PODS\n", stderr);
        return 2;
    }
    allow_files();
    log_set_level(LOG_LEVEL_WARN);
    open_fleet(&fleet, argv[1]);
    long long begin = wait_for(&fleet, "begin");
    atomic_store(&fleet.begin, begin);
    fleet.behind_max = 0;
    printf("{\"begun\":%lld}\n", begin);
    fflush(stdout);
    long long end = wait_for(&fleet, "end");
    close_fleet(&fleet);
    print_figures(&fleet, end);
    free(fleet.pods);
    return 0;
}
