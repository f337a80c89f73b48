/* Topics with dead letters, and how their engines are reached. */
#include "kernel/dead_letters.h"

#include "bus/bus_kafka.h"
#include "kernel/engines.h"
#include "kernel/kernel_inside.h"
#include "kernel/outbox_views.h"
#include "kernel/store.h"

enum { TOPICS_MAX = 128 };

const char *kernel_engine_name(enum kernel_engine engine)
{
    static const char *const names[] = {
        [KERNEL_ON_POSTGRES] = "postgres", [KERNEL_ON_KAFKA] = "kafka", [KERNEL_ON_NATS] = "nats"};
    return names[engine];
}

/* ---- what the configuration names ---- */

struct topic_list {
    struct arena *arena;
    struct kernel_dead_topic *items;
    size_t count;
};

/* The first row of a topic stays; the others only add its group. */
static void add_topic(const struct kernel_dead_topic *topic, void *arg)
{
    struct topic_list *list = arg;
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].topic, topic->topic) == 0 && list->items[i].engine == topic->engine) {
            if (topic->group)
                list->items[i].group = arena_str(list->arena, str_from(topic->group)).ptr;
            return;
        }
    if (list->count == TOPICS_MAX)
        return;
    list->items[list->count] = *topic;
    list->items[list->count].topic = arena_str(list->arena, str_from(topic->topic)).ptr;
    if (topic->group)
        list->items[list->count].group = arena_str(list->arena, str_from(topic->group)).ptr;
    list->count++;
}

void kernel_dead_topics(const struct config *config, const struct module *const *modules, struct arena *arena,
                        struct kernel_dead_topic **topics, size_t *count)
{
    struct topic_list list = {.arena = arena,
                              .items = arena_zalloc(arena, TOPICS_MAX * sizeof(struct kernel_dead_topic))};
    kernel_events_dead_topics(config, modules, add_topic, &list);
    for (; *modules; modules++)
        if ((*modules)->each_dead_topic)
            (*modules)->each_dead_topic(config, config_section(config, (*modules)->section->name), add_topic,
                                        &list);
    *topics = list.items;
    *count = list.count;
}

/* ---- dead letter stores ---- */

/* On the engine that the configuration has the topic on. */
static bool find_topic(const struct config *config, const struct module *const *modules, struct str name,
                       struct arena *arena, struct dead_letter_store *letter_store)
{
    struct kernel_dead_topic *topics;
    size_t count;
    bool is_elsewhere = str_ends_with(name, STR(DEAD_ELSEWHERE));
    if (is_elsewhere)
        name.len -= sizeof DEAD_ELSEWHERE - 1;
    if (!str_ends_with(name, STR(BUS_DEAD_SUFFIX)) || !str_is_name(name))
        return false;
    struct str topic = str_of(name.ptr, name.len - (sizeof BUS_DEAD_SUFFIX - 1));
    letter_store->kind = DEAD_OF_TOPIC;
    letter_store->name = arena_str(arena, name).ptr;
    letter_store->topic.topic = arena_str(arena, topic).ptr;
    if (config)
        kernel_dead_topics(config, modules, arena, &topics, &count);
    for (size_t i = 0; config && i < count; i++)
        if (str_eq(str_from(topics[i].topic), topic) &&
            (topics[i].engine == KERNEL_ON_POSTGRES ? letter_store->topic.engine == KERNEL_ON_POSTGRES
                                                    : !is_elsewhere))
            letter_store->topic = topics[i];
    return true;
}

bool kernel_dead_letter_store(const struct config *config, const struct module *const *modules,
                              struct str name, struct arena *arena, struct dead_letter_store *letter_store)
{
    *letter_store = (struct dead_letter_store){.kind = DEAD_OF_TABLE, .name = arena_str(arena, name).ptr};
    for (const struct module *const *module = modules; *module; module++)
        for (letter_store->table = (*module)->dead_tables; letter_store->table && letter_store->table->name;
             letter_store->table++)
            if (str_eq(name, str_from(letter_store->table->name)))
                return true;
    letter_store->table = NULL;
    letter_store->outbox = kernel_outbox_find(modules, name, &letter_store->module);
    if (letter_store->outbox) {
        letter_store->kind = DEAD_OF_OUTBOX;
        return true;
    }
    return find_topic(config, modules, name, arena, letter_store);
}

/* ---- engines ---- */

static enum status open_kafka(const struct config *config, struct bus_dead **dead, struct error *error)
{
    const struct kernel_kafka *kafka = config_section(config, "kafka");
    struct bus_kafka_config there = {.message_bytes_max = (size_t)kafka->message_bytes_max};
    struct arena arena = ARENA(1024);
    kernel_engine_kafka(kafka, &arena, &there);
    enum status status = bus_dead_open_kafka(&there, dead, error);
    arena_deinit(&arena);
    return status;
}

enum status kernel_dead_open(const struct config *config, const struct module *const *modules,
                             enum kernel_engine engine, struct db_conn *conn, int64_t deadline_ns,
                             struct bus_dead **dead, struct error *error)
{
    switch (engine) {
    case KERNEL_ON_KAFKA: return open_kafka(config, dead, error);
    case KERNEL_ON_NATS: return kernel_events_dead_open(config, modules, deadline_ns, dead, error);
    case KERNEL_ON_POSTGRES: break;
    }
    *dead = bus_dead_open_postgres(conn);
    return STATUS_OK;
}

/* ---- one place after the other ---- */

static const struct db_statement names_sql = DB_STATEMENT(
    "SELECT topic FROM platform.bus_partition WHERE partition = 0 AND right(topic, 4) = '" BUS_DEAD_SUFFIX
    "' ORDER BY topic");

static bool is_wanted(const struct dead_walk *walk, struct str name, enum kernel_engine engine)
{
    const struct dead_letter_store *only = walk->only;
    return !only || (only->kind == DEAD_OF_TOPIC && only->topic.engine == engine &&
                     str_eq(name, str_from(only->name)));
}

static enum status each_in_postgres(const struct dead_walk *walk, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_query(walk->conn, &names_sql, DB_NO_PARAMS, walk->deadline_ns, &rows, error);
    struct bus_dead *dead = bus_dead_open_postgres(walk->conn);
    for (size_t i = 0; status == STATUS_OK && i < db_result_rows(rows); i++) {
        struct str name = arena_str(walk->arena, db_result_str(rows, i, 0)),
                   own = str_of(name.ptr, name.len - (sizeof BUS_DEAD_SUFFIX - 1));
        struct kernel_dead_topic topic = {.topic = arena_str(walk->arena, own).ptr};
        bool is_elsewhere = false;
        for (size_t j = 0; j < walk->topic_count; j++) {
            if (strcmp(walk->topics[j].topic, topic.topic) != 0)
                continue;
            if (walk->topics[j].engine == KERNEL_ON_POSTGRES)
                topic = walk->topics[j];
            else
                is_elsewhere = true;
        }
        const struct dead_place place = {dead, walk->conn, &topic, name.ptr, walk->deadline_ns};
        if (is_wanted(walk, name, KERNEL_ON_POSTGRES))
            status = walk->visit(walk->arg, &place, is_elsewhere, error);
    }
    bus_dead_close(dead);
    db_result_free(rows);
    return status;
}

enum status kernel_dead_each(const struct dead_walk *walk, enum kernel_engine engine, struct error *error)
{
    struct dead_place place = {.conn = walk->conn, .deadline_ns = walk->deadline_ns};
    enum status status = STATUS_OK;
    if (engine == KERNEL_ON_POSTGRES)
        return each_in_postgres(walk, error);
    for (size_t i = 0; i < walk->topic_count && status == STATUS_OK; i++) {
        struct str name = arena_printf(walk->arena, "%s" BUS_DEAD_SUFFIX, walk->topics[i].topic);
        if (walk->topics[i].engine != engine || !is_wanted(walk, name, engine))
            continue;
        place.topic = &walk->topics[i];
        place.name = name.ptr;
        if (!place.dead)
            status = kernel_dead_open(walk->config, walk->modules, engine, walk->conn, walk->deadline_ns,
                                      &place.dead, error);
        if (status == STATUS_OK)
            status = walk->visit(walk->arg, &place, false, error);
    }
    bus_dead_close(place.dead);
    return status;
}
