/* Opening the bus of events: topics as every module names them, in PostgreSQL or in NATS. Nothing here waits for a server;
 * a bus connects by itself, whenever its engine is there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "bus/bus_nats.h"
#include "bus/bus_postgres.h"
#include "kernel/dead_letters.h"
#include "kernel/engines.h"
#include "kernel/kernel_inside.h"

enum {
    TOPICS_MAX = 16,
    HOST_BYTES = 256,
    OWN_CONNECTIONS = 2, /* of the embedded bus: publishing and upkeep */
    /* More handlers where handlers call one another: one that waits must not block the one that answers. */
    ANSWERERS = 2,
};

struct topics {
    const struct kernel_bus_settings *settings;
    struct bus_topic topics[TOPICS_MAX];
    struct bus_nats_names names[TOPICS_MAX];
    const char *advisory_stream, *terminated_stream;
    int64_t ack_wait_ms;
    size_t count;
    struct kernel_topic misnamed; /* a reader's, if its stream is not … */
    const char *owners_stream;    /* … this one, of the topic's owner */
};

static void add_topic(const struct kernel_topic *wanted, void *arg)
{
    struct topics *all = arg;
    if (wanted->advisory_stream)
        all->advisory_stream = wanted->advisory_stream;
    if (wanted->terminated_stream)
        all->terminated_stream = wanted->terminated_stream;
    if (wanted->ack_wait_ms)
        all->ack_wait_ms = wanted->ack_wait_ms;
    if (wanted->topic.partitions == 0) { /* a reader's: its owner has named the topic before */
        for (size_t i = 0; i < all->count; i++) {
            const char *stream = all->names[i].stream;
            if (strcmp(all->topics[i].name, wanted->topic.name) != 0)
                continue;
            all->topics[i].group = wanted->topic.group;
            if (stream && wanted->stream && strcmp(stream, wanted->stream) != 0) {
                all->misnamed = *wanted;
                all->owners_stream = stream;
            }
        }
        return;
    }
    if (all->count == TOPICS_MAX || (wanted->is_plain_in_nats && all->settings->events == KERNEL_NATS))
        return;
    struct bus_topic *topic = &all->topics[all->count];
    *topic = wanted->topic;
    if (!topic->keep_ms)
        topic->keep_ms = all->settings->keep_ms;
    if (!topic->keep_ms_hard)
        topic->keep_ms_hard =
            all->settings->keep_unread_ms > topic->keep_ms ? all->settings->keep_unread_ms : topic->keep_ms;
    if (all->settings->events == KERNEL_NATS)
        topic->partitions = 1; /* one subject, one stream, so that others read it by the names they know */
    all->names[all->count++] = (struct bus_nats_names){
        .topic = topic->name,
        .stream = wanted->stream,
        .subject = wanted->subject,
        .duplicate_window_ms = wanted->duplicate_window_ms,
    };
}

/* Of every module, also of those that do not run here: a reader of a topic need not be its owner. */
static void list_topics(const struct config *config, const struct module *const *modules, struct topics *all)
{
    *all = (struct topics){.settings = config_section(config, "bus")};
    for (; *modules; modules++) {
        if ((*modules)->topic)
            add_topic((*modules)->topic, all);
        if ((*modules)->each_topic)
            (*modules)->each_topic(config_section(config, (*modules)->section->name), add_topic, all);
    }
}

enum status kernel_events_check(const struct config *config, const struct module *const *modules,
                                struct error *error)
{
    struct topics all;
    list_topics(config, modules, &all);
    if (all.settings->events != KERNEL_NATS || !all.owners_stream)
        return STATUS_OK;
    return config_error_at(config, all.misnamed.stream_place, all.misnamed.stream_field, error,
                           "events are published to the stream %s, not %s", all.owners_stream,
                           all.misnamed.stream);
}

static enum status open_postgres(struct kernel_store *store, const struct topics *all, struct bus **bus,
                                 struct error *error)
{
    struct db_target target = store->site.target;
    target.connections_max =
        (unsigned)all->settings->handlers + OWN_CONNECTIONS + (store->consumes ? ANSWERERS : 0);
    return bus_postgres_create(
        &(struct bus_postgres_config){
            .loop = store->site.home,
            .workers = store->site.workers,
            .target = &target,
            .topics = all->topics,
            .topic_count = all->count,
            .poll_ms = all->settings->poll_ms,
            .keep_dead_ms = all->settings->keep_dead_ms,
        },
        bus, error);
}

/* `servers` is the caller's, and has the addresses. */
static struct bus_nats_config nats_config(const struct kernel_nats *nats, const struct topics *all,
                                          struct buf *servers)
{
    struct bus_security security = kernel_engine_security(&nats->tls, &nats->login);
    for (size_t i = 0; i < nats->servers.count; i++)
        buf_printf(servers, "%s%.*s", i ? "," : "", STR_ARG(nats->servers.items[i]));
    buf_put_char(servers, '\0');
    security.credentials_file = str_or_null(nats->credentials_file);
    return (struct bus_nats_config){
        .servers = buf_str(servers).ptr,
        .security = security,
        .topics = all->topics,
        .topic_count = all->count,
        .names = all->names,
        .name_count = all->count,
        .replicas = (unsigned)nats->replicas,
        .ack_wait_ms = all->ack_wait_ms,
        .advisory_stream = all->advisory_stream,
        .terminated_stream = all->terminated_stream,
        .keep_dead_ms = all->settings->keep_dead_ms,
    };
}

static enum status open_nats(struct kernel_store *store, const struct topics *all, struct bus **bus,
                             struct error *error)
{
    struct db_target target = store->site.target;
    struct buf servers = {0};
    char host[HOST_BYTES];
    kernel_host_name(host, sizeof host);
    target.connections_max = (unsigned)all->settings->handlers;
    struct bus_nats_config config = nats_config(kernel_section(store->kernel, "nats"), all, &servers);
    config.loop = store->site.home;
    config.workers = store->site.workers;
    config.client_name = host;
    config.target = &target;
    enum status status = bus_nats_create(&config, bus, error);
    buf_deinit(&servers);
    return status;
}

enum status kernel_events_are_settled(const struct config *config, const struct module *const *modules,
                                      const char *topic, const char *group, int64_t deadline_ns,
                                      bool *are_settled, struct error *error)
{
    struct topics all;
    struct buf servers = {0};
    list_topics(config, modules, &all);
    struct bus_nats_config there = nats_config(config_section(config, "nats"), &all, &servers);
    there.client_name = "freshet verify";
    enum status status = bus_nats_is_settled(&there, topic, group, deadline_ns, are_settled, error);
    buf_deinit(&servers);
    return status;
}

void kernel_events_dead_topics(const struct config *config, const struct module *const *modules,
                               void (*fn)(const struct kernel_dead_topic *topic, void *arg), void *arg)
{
    struct topics all;
    list_topics(config, modules, &all);
    for (size_t i = 0; i < all.count; i++)
        fn(&(struct kernel_dead_topic){.topic = all.topics[i].name,
                                       .engine = all.settings->events == KERNEL_NATS ? KERNEL_ON_NATS
                                                                                     : KERNEL_ON_POSTGRES},
           arg);
}

enum status kernel_events_dead_open(const struct config *config, const struct module *const *modules,
                                    int64_t deadline_ns, struct bus_dead **dead, struct error *error)
{
    struct topics all;
    struct buf servers = {0};
    list_topics(config, modules, &all);
    struct bus_nats_config there = nats_config(config_section(config, "nats"), &all, &servers);
    there.client_name = "freshet dead letters";
    enum status status = bus_dead_open_nats(&there, deadline_ns, dead, error);
    buf_deinit(&servers);
    return status;
}

enum status kernel_events_open(struct kernel_store *store, struct error *error)
{
    struct topics all;
    struct bus *bus = NULL;
    list_topics(store->kernel->first, store->kernel->options.modules, &all);
    enum status status =
        (all.settings->events == KERNEL_NATS ? open_nats : open_postgres)(store, &all, &bus, error);
    if (status == STATUS_OK)
        kernel_site_add_bus(&store->site, bus);
    return status;
}

const char *kernel_events_stream(const struct kernel *kernel, const char *topic)
{
    struct topics all;
    list_topics(kernel->first, kernel->options.modules, &all);
    for (size_t i = 0; i < all.count && all.settings->events == KERNEL_NATS; i++)
        if (strcmp(all.names[i].topic, topic) == 0)
            return all.names[i].stream;
    return NULL;
}

bool kernel_events_are_up(const struct kernel *kernel)
{
    struct bus *bus = kernel->store ? atomic_load(&kernel->store->events) : NULL;
    return kernel_bus(kernel)->events == KERNEL_POSTGRES || (bus && bus_is_up(bus));
}
