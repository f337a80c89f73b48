/* The Redis driver. "single": the conformance suite and everything of its own that needs no cluster, on one Redis;
 * "cluster": the suite on three masters, but for the restarts (a cluster takes seconds for each), and what moves there. */
#include "test_redis.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"

struct bus_redis_config redis_next;

struct bus *redis_bus_create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                             size_t topic_count)
{
    static unsigned pods; /* each process of a test is another one */
    struct bus_redis_config config = redis_next;
    struct error error = {0};
    struct bus *bus;
    char pod[16];

    snprintf(pod, sizeof pod, "pod-%u", pods++);
    (void)loop; /* the driver has its own */
    config.workers = workers;
    config.nodes = config.nodes ? config.nodes : redis_fixture_addresses();
    config.node_count = config.node_count ? config.node_count : redis_fixture_count();
    config.pod = config.pod ? config.pod : pod;
    config.topics = topics;
    config.topic_count = topic_count;
    config.poll_ms = config.poll_ms ? config.poll_ms : 200;
    config.answer_ms = config.answer_ms ? config.answer_ms : 1000;
    if (bus_redis_create(&config, &bus, &error) != STATUS_OK)
        fail_msg("create: %s", error.message);
    return bus;
}

void redis_open_with(struct process *process, const struct bus_topic *topic)
{
    process->loop = loop_create(0, 0);
    process->workers = worker_pool_create("bus", 4, 100);
    process->bus = redis_bus_create(process->loop, process->workers, topic, 1);
}

void redis_close_unstarted(struct process *process)
{
    bus_stop(process->bus, 0);
    bus_destroy(process->bus);
    worker_pool_destroy(process->workers);
    loop_destroy(process->loop);
}

size_t redis_gaps(struct recorder *recorder)
{
    pthread_mutex_lock(&recorder->lock);
    size_t gaps = recorder->gaps;
    pthread_mutex_unlock(&recorder->lock);
    return gaps;
}

void recorder_hold(struct recorder *recorder, struct bus_batch *batch)
{
    recorder_add(recorder, batch, batch->count);
    recorder_await_step(recorder, 1);
}

/* ---- the driver's table ---- */

static void cut(void)
{
    redis_fixture_ask_all("CLIENT KILL TYPE normal");
    redis_fixture_ask_all("CLIENT KILL TYPE pubsub");
}

static void freeze(void)
{
    for (unsigned i = 0; i < redis_fixture_count(); i++)
        redis_fixture_freeze(i);
}

static void thaw(void)
{
    for (unsigned i = 0; i < redis_fixture_count(); i++)
        redis_fixture_thaw(i);
}

static struct conformance_driver redis = {
    .name = "redis",
    .create = redis_bus_create,
    .cut = cut,
    .halt = redis_fixture_halt,
    .resume = redis_fixture_resume,
    .freeze = freeze,
    .thaw = thaw,
    .repeats = true,
    .lacks_shared = true,
    .partitions_max = 1,
};

static int run_single(void)
{
    redis_fixture_start_single(NULL);
    int failed = conformance_run(&redis) + redis_run_streams();
    redis_fixture_stop();
    return failed + redis_run_hostile() + redis_run_security();
}

static int run_cluster(void)
{
    redis.resume = NULL;
    redis_next.cluster = true;
    redis_fixture_start_cluster(3, 1);
    int failed = conformance_run(&redis) + redis_run_cluster();
    redis_fixture_stop();
    return failed;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    log_set_level(getenv("VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR + 1);
    driver = &redis;
    return (argc > 1 && strcmp(argv[1], "cluster") == 0 ? run_cluster() : run_single()) ? 1 : 0;
}
