/*
 * The load generator: asks one server over many connections for some seconds, and prints one line of JSON.
 *
 * Its figure is the server's processor time per answer, read from the kernel's clock of the server's
 * process(es) at both ends of the measured window; rate and latency come along. It drives freshet, the floor
 * and nginx by HTTP and Redis by RESP2, so that all are measured by the same hand.
 */
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load_worker.h"

enum { THREADS_MAX = 64 };

struct settings {
    const char *connect;
    const char *requests_file;
    const char *protocol;
    const char *link;
    struct bench_pids server;
    int connections;
    int threads;
    size_t depth;
    double warmup_s;
    double seconds;
    double rate; /* requests a second, of all connections; 0 = as fast as answers come */
    const char *accepted;
    bool spins;
    bool once;
};

/* Everything that grows during a run, read at one moment. */
struct sample {
    uint64_t time_ns;
    uint64_t server_cpu_ns;
    uint64_t own_cpu_ns;
    uint64_t answers;
    uint64_t bytes;
    uint64_t errors;
};

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

static void pause_for(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &time) == EINTR) {}
}

static void usage(void)
{
    fputs(
        "usage: load --connect HOST:PORT --requests FILE [--server-pid PID[,PID...]]\n"
        "            [--protocol http|redis] [--connections 64] [--threads 1] [--pipeline 1]\n"
        "            [--warmup 0.5] [--seconds 2] [--spin] [--rate N] [--once] [--accept 200[,STATUS...]]\n"
        "            [--link plain|tls|full|resumed]\n"
        "--link is TLS, kept open or with a new handshake for each request: full, or of a resumed session.\n"
        "--spin never sleeps, so that no server pays for waking the generator: give it a processor of its own.\n"
        "--rate sends by the clock, and counts latency from when a request was due.\n"
        "--once sends every request of FILE one time and measures until the last answer.\n"
        "FILE holds one raw request, or many as netstrings (LENGTH:BYTES, one after another).\n",
        stderr);
    exit(2);
}

static double number(const char *text, double min, double max)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= min && value <= max)) {
        fprintf(stderr, "load: %s: not a number from %g to %g\n", text, min, max);
        exit(2);
    }
    return value;
}

static void setting_take(struct settings *settings, int option, const char *value)
{
    switch (option) {
    case 'c': settings->connect = value; break;
    case 'r': settings->requests_file = value; break;
    case 'P': settings->protocol = value; break;
    case 'l': settings->link = value; break;
    case 'n': settings->connections = (int)number(value, 1, 10000); break;
    case 't': settings->threads = (int)number(value, 1, THREADS_MAX); break;
    case 'd': settings->depth = (size_t)number(value, 1, 1024); break;
    case 'w': settings->warmup_s = number(value, 0, 3600); break;
    case 'S': settings->spins = true; break;
    case 'o': settings->once = true; break;
    case 'R': settings->rate = number(value, 0.1, 1e7); break;
    case 'a': settings->accepted = value; break;
    case 's': settings->seconds = number(value, 0.01, 3600); break;
    case 'p':
        if (bench_pids_parse(&settings->server, value) == 0) {
            break;
        }
        usage();
        break;
    default: usage();
    }
}

static struct settings settings_parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"connect", required_argument, NULL, 'c'},
        {"requests", required_argument, NULL, 'r'},
        {"server-pid", required_argument, NULL, 'p'},
        {"protocol", required_argument, NULL, 'P'},
        {"link", required_argument, NULL, 'l'},
        {"connections", required_argument, NULL, 'n'},
        {"threads", required_argument, NULL, 't'},
        {"pipeline", required_argument, NULL, 'd'},
        {"warmup", required_argument, NULL, 'w'},
        {"seconds", required_argument, NULL, 's'},
        {"spin", no_argument, NULL, 'S'},
        {"once", no_argument, NULL, 'o'},
        {"rate", required_argument, NULL, 'R'},
        {"accept", required_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    struct settings settings = {.protocol = "http",
                                .link = "plain",
                                .connections = 64,
                                .threads = 1,
                                .depth = 1,
                                .warmup_s = 0.5,
                                .seconds = 2,
                                .accepted = "200"};
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        setting_take(&settings, option, optarg);
    }
    if (settings.connect == NULL || settings.requests_file == NULL || optind != argc ||
        settings.connections < settings.threads) {
        usage();
    }
    return settings;
}

static void plan_address(struct bench_plan *plan, const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (colon == NULL || (size_t)(colon - address) >= sizeof host) {
        usage();
        return;
    }
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        fprintf(stderr, "load: %s: no such address\n", address);
        exit(1);
    }
    memcpy(&plan->address, found->ai_addr, found->ai_addrlen);
    plan->address_bytes = found->ai_addrlen;
    freeaddrinfo(found);
}

static void plan_link(struct bench_plan *plan, const char *name)
{
    static const char *const names[] = {"plain", "tls", "full", "resumed"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            plan->link = (enum bench_link)i;
            return;
        }
    }
    usage();
}

static void plan_accept(struct bench_plan *plan, const char *list)
{
    const char *at = list;
    for (int i = 0; i < BENCH_ACCEPTED_MAX; i++) {
        char *end = NULL;
        plan->accepted[i] = (int)strtol(at, &end, 10);
        if (end == at || plan->accepted[i] < 100 || plan->accepted[i] > 999) {
            usage();
        }
        if (*end == '\0') {
            return;
        }
        at = *end == ',' ? end + 1 : end;
    }
    usage();
}

static void workers_start(struct bench_worker *workers, const struct settings *settings,
                          struct bench_plan *plan)
{
    for (int i = 0; i < settings->threads; i++) {
        struct bench_worker *worker = &workers[i];
        int share = settings->connections / settings->threads;
        worker->plan = plan;
        worker->connections = share + (i < settings->connections % settings->threads ? 1 : 0);
        worker->first_request = plan->requests->count / (size_t)settings->threads * (size_t)i;
        errno = bench_worker_start(worker);
        if (errno != 0) {
            perror("load: thread");
            exit(1);
        }
    }
}

static bool sample_take(const struct settings *settings, struct bench_worker *workers, struct sample *sample)
{
    memset(sample, 0, sizeof *sample);
    for (int i = 0; i < settings->threads; i++) {
        sample->answers += atomic_load_explicit(&workers[i].answers, memory_order_relaxed);
        sample->bytes += atomic_load_explicit(&workers[i].bytes, memory_order_relaxed);
        sample->errors += atomic_load_explicit(&workers[i].errors, memory_order_relaxed);
    }
    sample->time_ns = clock_ns(CLOCK_MONOTONIC);
    sample->own_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    return bench_pids_cpu(&settings->server, &sample->server_cpu_ns) == 0;
}

static void report(const struct settings *settings, struct bench_worker *workers, const struct sample *from,
                   const struct sample *to)
{
    struct bench_histogram *latency = &workers[0].latency_ns;
    int bad_status = 0;
    for (int i = 0; i < settings->threads; i++) {
        if (i > 0) {
            bench_histogram_merge(latency, &workers[i].latency_ns);
        }
        int status = atomic_load(&workers[i].first_bad_status);
        bad_status = bad_status == 0 ? status : bad_status;
    }
    double answers = (double)(to->answers - from->answers);
    double per_answer = answers > 0 ? answers : 1;
    double elapsed_ns = (double)(to->time_ns - from->time_ns);
    double server_ns = (double)(to->server_cpu_ns - from->server_cpu_ns);
    double own_ns = (double)(to->own_cpu_ns - from->own_cpu_ns);
    printf("{\"requests\":%.0f,\"errors\":%llu,\"first_bad_status\":%d,", answers,
           (unsigned long long)(to->errors), bad_status);
    printf("\"bytes_per_answer\":%.1f,", (double)(to->bytes - from->bytes) / per_answer);
    printf("\"server_cpu_us_per_request\":%.4f,\"server_busy\":%.3f,", server_ns / 1e3 / per_answer,
           server_ns / elapsed_ns);
    printf("\"client_cpu_us_per_request\":%.4f,\"rps\":%.0f,", own_ns / 1e3 / per_answer,
           answers / (elapsed_ns / 1e9));
    printf("\"p50_us\":%.1f,\"p95_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"seconds\":%.3f}\n",
           (double)bench_histogram_quantile(latency, 0.5) / 1e3,
           (double)bench_histogram_quantile(latency, 0.95) / 1e3,
           (double)bench_histogram_quantile(latency, 0.99) / 1e3,
           (double)bench_histogram_quantile(latency, 0.999) / 1e3, elapsed_ns / 1e9);
}

static bool workers_join(const struct settings *settings, struct bench_worker *workers)
{
    bool well = true;
    for (int i = 0; i < settings->threads; i++) {
        pthread_join(workers[i].thread, NULL);
        well = well && !atomic_load(&workers[i].failed);
    }
    return well;
}

/* Warms up, measures, stops. False when a worker or the server was lost on the way. */
static bool measure(const struct settings *settings, struct bench_worker *workers, struct bench_plan *plan)
{
    struct sample from;
    struct sample to;
    workers_start(workers, settings, plan);
    pause_for(settings->warmup_s);
    bool well = sample_take(settings, workers, &from);
    atomic_store_explicit(&plan->phase, BENCH_MEASURING, memory_order_release);
    pause_for(settings->seconds);
    well = sample_take(settings, workers, &to) && well;
    atomic_store_explicit(&plan->phase, BENCH_STOPPING, memory_order_release);
    well = workers_join(settings, workers) && well;
    if (well) {
        report(settings, workers, &from, &to);
    }
    return well;
}

/* Every request one time, from the first byte to the last answer. */
static bool measure_once(const struct settings *settings, struct bench_worker *workers,
                         struct bench_plan *plan)
{
    struct sample from;
    struct sample to;
    bool well = sample_take(settings, workers, &from);
    atomic_store_explicit(&plan->phase, BENCH_MEASURING, memory_order_release);
    workers_start(workers, settings, plan);
    well = workers_join(settings, workers) && well;
    well = sample_take(settings, workers, &to) && well;
    if (well) {
        report(settings, workers, &from, &to);
    }
    return well;
}

int main(int argc, char **argv)
{
    struct settings settings = settings_parse(argc, argv);
    struct bench_requests requests;
    struct bench_plan plan = {
        .requests = &requests, .depth = settings.depth, .spins = settings.spins, .once = settings.once};
    if (settings.rate > 0) {
        plan.interval_ns = (uint64_t)(1e9 * settings.threads * (double)settings.depth / settings.rate);
    }
    if (strcmp(settings.protocol, "http") == 0) {
        plan.head = bench_wire_http_head;
    } else if (strcmp(settings.protocol, "redis") == 0) {
        plan.head = bench_wire_resp_head;
    } else {
        usage();
    }
    plan_link(&plan, settings.link);
    plan_accept(&plan, settings.accepted);
    plan_address(&plan, settings.connect);
    if (bench_requests_read(&requests, settings.requests_file, settings.depth) != 0) {
        return 1;
    }
    struct bench_worker *workers = calloc((size_t)settings.threads, sizeof *workers);
    bool well = workers != NULL && (settings.once ? measure_once : measure)(&settings, workers, &plan);
    free(workers);
    bench_requests_deinit(&requests);
    return well ? 0 : 1;
}
