/* GET /v1/ops/dead-letters: every dead letter store with the number of letters that wait there for a decision. Each database is asked
 * for what it has; Kafka and NATS are asked along with the database that has their decisions. */
#include "modules/ops/dead_letters.h"

struct dead_letter_stores {
    struct ops *ops;
    struct str tenant;
    const struct kernel_dead_topic *topics;
    size_t topic_count;
    const struct ops_site *kafka_home, *nats_home; /* have the decisions about letters of these engines */
};

/* One database's part. */
struct stores_part {
    struct arena arena;
    struct buf items, unavailable; /* JSON; engines that did not answer */
};

static void put_store(struct stores_part *part, const char *name, const char *suffix, const char *kind,
                      const char *engine, const char *database, const struct dead_count *count)
{
    char text[CLOCK_RFC3339_BYTES];
    struct buf *out = &part->items;
    json_put_open(out, NULL, '{');
    json_put_key(out, STR("source"));
    buf_printf(out, "\"%s%s\"", name, suffix);
    json_put_member_str(out, "kind", str_from(kind));
    json_put_member_str(out, "engine", str_from(engine));
    json_put_member_str(out, "database", str_from(database));
    ops_put_count(out, "count", count->count, count->has_more);
    json_put_member_str_or_null(
        out, "oldest_at", count->oldest_us ? str_of(text, clock_rfc3339(count->oldest_us, text)) : STR_NONE);
    buf_put_char(out, '}');
}

/* ---- topics ---- */

static enum status count_topic(void *arg, const struct dead_place *place, bool is_elsewhere,
                               struct error *error)
{
    const struct ops_ask *ask = arg;
    const struct dead_letter_stores *stores = ask->context;
    struct dead_count count;
    struct arena arena = ARENA(65536);
    enum status status = kernel_dead_count(place, stores->tenant, &arena, &count, error);
    if (status == STATUS_OK && (count.count > 0 || !is_elsewhere))
        put_store(ask->own, place->name, is_elsewhere ? DEAD_ELSEWHERE : "", "topic",
                  bus_dead_engine(place->dead), ask->site->name, &count);
    arena_deinit(&arena);
    return status;
}

static enum status count_topics(struct ops_ask *ask, enum kernel_engine engine, struct db_conn *conn,
                                int64_t deadline_ns, struct error *error)
{
    const struct dead_letter_stores *stores = ask->context;
    struct stores_part *part = ask->own;
    const struct dead_walk walk = {.config = kernel_config_first(stores->ops->kernel),
                                   .modules = stores->ops->modules,
                                   .topics = stores->topics,
                                   .topic_count = stores->topic_count,
                                   .conn = conn,
                                   .deadline_ns = deadline_ns,
                                   .arena = &part->arena,
                                   .visit = count_topic,
                                   .arg = ask};
    return kernel_dead_each(&walk, engine, error);
}

/* An engine that does not answer is shown, and the rest of the database with it. */
static void count_engine(struct ops_ask *ask, enum kernel_engine engine, struct db_conn *conn)
{
    enum { ASK_MS = 1500 };
    struct error error = {0};
    if (count_topics(ask, engine, conn, clock_deadline_ms(ASK_MS), &error) == STATUS_OK)
        return;
    struct buf *out = &((struct stores_part *)ask->own)->unavailable;
    json_put_open(out, NULL, '{');
    json_put_member_str(out, "database", str_from(ask->site->name));
    json_put_member_str(out, "engine", str_from(kernel_engine_name(engine)));
    json_put_member_str(out, "error", str_from(error.message));
    buf_put_char(out, '}');
}

/* ---- tables ---- */

static enum status count_tables(const struct dead_letter_stores *stores, struct stores_part *part,
                                struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    enum status status = STATUS_OK;
    for (const struct module *const *module = stores->ops->modules; *module && status == STATUS_OK;
         module++) {
        const struct kernel_dead_table *table = ask->site->is_store ? (*module)->dead_tables : NULL;
        for (; table && table->name && status == STATUS_OK; table++) {
            struct db_result *rows = NULL;
            struct dead_count count = {0};
            status = db_query(conn, &table->count,
                              DB_PARAMS(db_text(stores->tenant), db_i64(KERNEL_DEAD_COUNT_MAX + 1)),
                              ask->deadline_ns, &rows, error);
            if (status == STATUS_OK) {
                count = (struct dead_count){.count = db_result_i64(rows, 0, 0),
                                            .oldest_us = db_result_i64(rows, 0, 1)};
                count.has_more = count.count > KERNEL_DEAD_COUNT_MAX;
                count.count -= count.has_more;
                put_store(part, table->name, "", table->kind, "postgres", ask->site->name, &count);
            }
            db_result_free(rows);
        }
        const struct outbox_table *const *at = (*module)->outboxes;
        for (; at && *at && (*module)->keeps_store == ask->site->is_store && status == STATUS_OK; at++) {
            struct kernel_outbox_counts counts;
            status = kernel_outbox_count(conn, *at, stores->tenant, &part->arena, ask->deadline_ns, &counts,
                                         error);
            if (status == STATUS_OK)
                put_store(part, (*at)->name, "", "outbox", "postgres", ask->site->name,
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
    const struct dead_letter_stores *stores = ask->context;
    enum status status = count_tables(stores, ask->own, ask, conn, error);
    if (status == STATUS_OK && !ask->site->is_twin)
        status = count_topics(ask, KERNEL_ON_POSTGRES, conn, ask->deadline_ns, error);
    if (status == STATUS_OK && ask->site == stores->kafka_home)
        count_engine(ask, KERNEL_ON_KAFKA, conn);
    if (status == STATUS_OK && ask->site == stores->nats_home)
        count_engine(ask, KERNEL_ON_NATS, conn);
    return status;
}

static void put_parts(struct buf *body, const struct ops_ask *asks, struct stores_part *parts, size_t count)
{
    struct buf items = {0};
    for (size_t i = 0; i < count; i++)
        ops_add_items(&items, buf_str(&parts[i].items));
    buf_put_str(body, STR("{\"items\":["));
    buf_put_str(body, buf_str(&items));
    buf_put_str(body, STR("],\"next_cursor\":null"));
    buf_deinit(&items);
    ops_put_unavailable(body, asks, count);
    body->end--; /* its bracket: engines are added */
    for (size_t i = 0; i < count; i++) {
        if (buf_len(&parts[i].unavailable) && body->data[body->end - 1] != '[')
            buf_put_char(body, ',');
        buf_put_str(body, buf_str(&parts[i].unavailable));
    }
    buf_put_str(body, STR("]}"));
}

void ops_get_dead_letter_stores(struct http_request *request)
{
    struct ops *ops = request->context;
    struct dead_letter_stores stores = {.ops = ops};
    struct kernel_dead_topic *topics;
    if (!ops_tenant_only(request, &stores.tenant))
        return;
    kernel_dead_topics(kernel_config_first(ops->kernel), ops->modules, request->arena, &topics,
                       &stores.topic_count);
    stores.topics = topics;
    struct ops_sites *sites = ops_sites_hold(ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct stores_part *parts = arena_zalloc(request->arena, (sites->count + 1) * sizeof *parts);
    struct buf body = {0};
    for (size_t i = 0; i < sites->count; i++) {
        const struct ops_site **home = sites->items[i].is_store ? &stores.nats_home : &stores.kafka_home;
        if (!*home)
            *home = &sites->items[i];
        asks[i] = (struct ops_ask){.site = &sites->items[i], .own = &parts[i]};
        parts[i].arena = ARENA(4096);
    }
    ops_ask_all(ops, asks, sites->count, count_site, &stores);
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
