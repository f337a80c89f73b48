/* GET /v1/ops/dead-letters: every source with what waits there for a decision. Each database is asked for what it has; Kafka and NATS are
 * asked along with the database that has their decisions. */
#include "modules/ops/dead_letters.h"

struct sources {
    struct ops *ops;
    struct str tenant;
    const struct kernel_dead_topic *topics;
    size_t topic_count;
    const struct ops_site *kafka_home, *nats_home;
};

/* One database's part. */
struct sources_part {
    struct arena arena;
    struct buf items, unavailable; /* JSON; engines that did not answer */
    int64_t total;
    bool has_more;
};

static void put_source(struct sources_part *part, const char *name, const char *suffix, const char *kind,
                       const char *engine, const char *database, const struct dead_count *count)
{
    char text[CLOCK_RFC3339_BYTES];
    struct buf *out = &part->items;
    buf_put_str(out, buf_len(out) ? STR(",{") : STR("{"));
    json_put_key(out, STR("source"));
    buf_printf(out, "\"%s%s\"", name, suffix);
    json_put_member_str(out, "kind", str_from(kind));
    json_put_member_str(out, "engine", str_from(engine));
    json_put_member_str(out, "database", str_from(database));
    json_put_key(out, STR("count"));
    buf_printf(out, "{\"count\":%lld,\"more\":%s}", (long long)count->count,
               count->has_more ? "true" : "false");
    json_put_key(out, STR("oldest_at"));
    if (count->oldest_us)
        json_put_string(out, str_of(text, clock_rfc3339(count->oldest_us, text)));
    else
        buf_put_str(out, STR("null"));
    buf_put_char(out, '}');
    part->total += count->count;
    part->has_more |= count->has_more;
}

/* ---- topics ---- */

static const struct kernel_dead_topic *find_topic(const struct sources *sources, struct str name,
                                                  bool *is_elsewhere)
{
    const struct kernel_dead_topic *found = NULL;
    *is_elsewhere = false;
    for (size_t i = 0; i < sources->topic_count; i++) {
        if (!str_eq(str_from(sources->topics[i].topic), name))
            continue;
        if (sources->topics[i].engine == KERNEL_ON_POSTGRES)
            found = &sources->topics[i];
        else
            *is_elsewhere = true;
    }
    return found;
}

static enum status count_topic(struct sources_part *part, const struct dead_place *place, const char *suffix,
                               const char *database, struct str tenant, struct error *error)
{
    struct dead_count count;
    struct arena arena = ARENA(65536);
    enum status status = kernel_dead_count(place, tenant, &arena, &count, error);
    if (status == STATUS_OK && (count.count > 0 || !*suffix))
        put_source(part, place->name, suffix, "topic", bus_dead_engine(place->dead), database, &count);
    arena_deinit(&arena);
    return status;
}

static enum status count_own_topics(const struct sources *sources, struct sources_part *part,
                                    struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    struct str *names;
    size_t count;
    enum status status = kernel_dead_topics_of(conn, &part->arena, &names, &count, ask->deadline_ns, error);
    struct bus_dead *dead = bus_dead_open_postgres(conn);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct kernel_dead_topic plain = {0};
        bool is_elsewhere;
        struct str topic = str_of(names[i].ptr, names[i].len - (sizeof BUS_DEAD_SUFFIX - 1));
        const struct kernel_dead_topic *known = find_topic(sources, topic, &is_elsewhere);
        plain.topic = arena_str(&part->arena, topic).ptr;
        const struct dead_place place = {.dead = dead,
                                         .conn = conn,
                                         .topic = known ? known : &plain,
                                         .name = names[i].ptr,
                                         .deadline_ns = ask->deadline_ns};
        status = count_topic(part, &place, is_elsewhere ? "@postgres" : "", ask->site->name, sources->tenant,
                             error);
    }
    bus_dead_close(dead);
    return status;
}

/* An engine that does not answer is shown, and the rest of the database with it. */
static void count_engine(const struct sources *sources, struct sources_part *part, struct ops_ask *ask,
                         enum kernel_engine engine, struct db_conn *conn)
{
    enum { ASK_MS = 1500 };
    struct bus_dead *dead = NULL;
    struct error error = {0};
    int64_t deadline_ns = clock_deadline_ms(ASK_MS);
    enum status status = kernel_dead_open(kernel_config_first(sources->ops->kernel), sources->ops->modules,
                                          engine, conn, deadline_ns, &dead, &error);
    for (size_t i = 0; i < sources->topic_count && status == STATUS_OK; i++) {
        const struct kernel_dead_topic *topic = &sources->topics[i];
        if (topic->engine != engine)
            continue;
        const struct dead_place place = {
            .dead = dead,
            .conn = conn,
            .topic = topic,
            .name = arena_printf(&part->arena, "%s" BUS_DEAD_SUFFIX, topic->topic).ptr,
            .deadline_ns = deadline_ns};
        status = count_topic(part, &place, "", ask->site->name, sources->tenant, &error);
    }
    bus_dead_close(dead);
    if (status == STATUS_OK)
        return;
    struct buf *out = &part->unavailable;
    buf_put_str(out, STR(",{"));
    json_put_member_str(out, "database", str_from(ask->site->name));
    json_put_member_str(out, "engine", str_from(kernel_engine_name(engine)));
    json_put_member_str(out, "error", str_from(error.message));
    buf_put_char(out, '}');
}

static bool has_engine(const struct sources *sources, enum kernel_engine engine)
{
    for (size_t i = 0; i < sources->topic_count; i++)
        if (sources->topics[i].engine == engine)
            return true;
    return false;
}

/* ---- tables ---- */

static enum status count_tables(const struct sources *sources, struct sources_part *part, struct ops_ask *ask,
                                struct db_conn *conn, struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct module *const *module = sources->ops->modules; *module && status == STATUS_OK;
         module++) {
        const struct kernel_dead_table *table = ask->site->is_store ? (*module)->dead_tables : NULL;
        for (; table && table->name && status == STATUS_OK; table++) {
            struct db_result *rows = NULL;
            struct dead_count count = {0};
            status = db_query(conn, &table->count,
                              DB_PARAMS(db_text(sources->tenant), db_i64(KERNEL_DEAD_COUNT_MAX + 1)),
                              ask->deadline_ns, &rows, error);
            if (status == STATUS_OK) {
                count = (struct dead_count){.count = db_result_i64(rows, 0, 0),
                                            .oldest_us = db_result_i64(rows, 0, 1)};
                count.has_more = count.count > KERNEL_DEAD_COUNT_MAX;
                count.count -= count.has_more;
                put_source(part, table->name, "", table->kind, "postgres", ask->site->name, &count);
            }
            db_result_free(rows);
        }
        const struct outbox_table *const *at = (*module)->outboxes;
        for (; at && *at && (*module)->keeps_store == ask->site->is_store && status == STATUS_OK; at++) {
            struct kernel_outbox_counts counts;
            status = kernel_outbox_count(conn, *at, sources->tenant, &part->arena, ask->deadline_ns, &counts,
                                         error);
            if (status == STATUS_OK)
                put_source(part, (*at)->name, "", "outbox", "postgres", ask->site->name,
                           &(struct dead_count){.count = counts.failed,
                                                .has_more = counts.failed >= KERNEL_COUNT_MAX,
                                                .oldest_us = counts.oldest_failed_us});
        }
    }
    return status;
}

/* ---- the answer ---- */

static enum status count_site(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    const struct sources *sources = ask->context;
    struct sources_part *part = ask->own;
    enum status status = count_tables(sources, part, ask, conn, error);
    if (status == STATUS_OK && !ask->site->is_twin)
        status = count_own_topics(sources, part, ask, conn, error);
    if (status == STATUS_OK && ask->site == sources->kafka_home)
        count_engine(sources, part, ask, KERNEL_ON_KAFKA, conn);
    if (status == STATUS_OK && ask->site == sources->nats_home)
        count_engine(sources, part, ask, KERNEL_ON_NATS, conn);
    return status;
}

/* The databases that have the decisions about letters of Kafka and NATS. */
static void find_homes(struct sources *sources, const struct ops_sites *sites)
{
    for (size_t i = 0; i < sites->count; i++) {
        const struct ops_site *site = &sites->items[i];
        if (site->is_store && !sources->nats_home && has_engine(sources, KERNEL_ON_NATS))
            sources->nats_home = site;
        if (!site->is_store && !sources->kafka_home && has_engine(sources, KERNEL_ON_KAFKA))
            sources->kafka_home = site;
    }
}

static void put_parts(struct buf *body, const struct ops_ask *asks, struct sources_part *parts, size_t count)
{
    bool is_first = true;
    buf_put_str(body, STR("{\"items\":["));
    for (size_t i = 0; i < count; i++)
        if (buf_len(&parts[i].items)) {
            buf_put_str(body, is_first ? STR("") : STR(","));
            buf_put_str(body, buf_str(&parts[i].items));
            is_first = false;
        }
    buf_put_str(body, STR("],\"next_cursor\":null"));
    ops_put_unavailable(body, asks, count);
    body->end--; /* its bracket: engines are added */
    for (size_t i = 0; i < count; i++) {
        struct str more = buf_str(&parts[i].unavailable);
        if (more.len)
            buf_put_str(body, body->data[body->end - 1] == '[' ? str_skip(more, 1) : more);
    }
    buf_put_str(body, STR("]}"));
}

void ops_get_dead_sources(struct http_request *request)
{
    static const char *const names[] = {"tenant", NULL};
    struct ops *ops = request->context;
    struct sources sources = {.ops = ops};
    struct kernel_dead_topic *topics;
    struct error error = {0};
    enum status status = http_request_query_only(request, names, &error);
    if (status == STATUS_OK)
        status = ops_tenant_read(request, STR_NONE, &sources.tenant, &error);
    if (status != STATUS_OK) {
        http_send_error(request, &error);
        return;
    }
    kernel_dead_topics(kernel_config_first(ops->kernel), ops->modules, request->arena, &topics,
                       &sources.topic_count);
    sources.topics = topics;
    struct ops_sites *sites = ops_sites_hold(ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct sources_part *parts = arena_zalloc(request->arena, (sites->count + 1) * sizeof *parts);
    struct buf body = {0};
    find_homes(&sources, sites);
    for (size_t i = 0; i < sites->count; i++) {
        asks[i] = (struct ops_ask){.site = &sites->items[i], .own = &parts[i]};
        parts[i].arena = ARENA(4096);
    }
    ops_ask_all(ops, asks, sites->count, count_site, &sources);
    put_parts(&body, asks, parts, sites->count);
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
    for (size_t i = 0; i < sites->count; i++) {
        buf_deinit(&parts[i].items);
        buf_deinit(&parts[i].unavailable);
        arena_deinit(&parts[i].arena);
    }
    ops_sites_unref(sites);
}
