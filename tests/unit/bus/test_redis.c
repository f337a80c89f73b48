/* The Redis driver: the conformance suite on a cluster of three, and what is its own. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/metrics.h"
#include "bus/bus_redis.h"
#include "conformance.h"
#include "redis_fixture.h"

static unsigned pods; /* each process of a test is another one */

/* What the next bus has of its own. */
static struct bus_redis_config next_config;

static struct bus *create(struct loop *loop, struct worker_pool *workers, const struct bus_topic *topics,
                          size_t topic_count)
{
    struct bus_redis_config config = next_config;
    struct error error = {0};
    struct bus *bus;
    char pod[16];

    snprintf(pod, sizeof pod, "pod-%u", pods++);
    config.loop = loop;
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

static const struct conformance_driver redis = {
    .name = "redis",
    .create = create,
    .cut = cut,
    .halt = redis_fixture_halt,
    .resume = redis_fixture_resume,
    .freeze = freeze,
    .thaw = thaw,
    .repeats = true,
};

int main(int argc, char **argv)
{
    bool single = argc > 1 && strcmp(argv[1], "single") == 0;

    signal(SIGPIPE, SIG_IGN);
    log_set_level(getenv("VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
    if (single)
        redis_fixture_start_single(NULL);
    else
        redis_fixture_start_cluster(3, 0);
    next_config.cluster = !single;
    int failed = conformance_run(&redis);
    redis_fixture_stop();
    return failed ? 1 : 0;
}
