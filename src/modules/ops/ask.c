/* The databases, and how all of them are asked at once: one that does not answer costs its own deadline and nothing else. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernel/store.h"
#include "modules/ops/ops.h"

enum { CONNECTIONS = 3, SITES_MAX = 64 };

/* ---- sites ---- */

struct sites_builder {
    struct ops *ops;
    struct ops_sites *sites;
    const struct db_server *servers[SITES_MAX];
};

static void add_site(struct sites_builder *builder, const struct db_target *configured, bool is_store)
{
    struct ops_sites *sites = builder->sites;
    struct error error;
    if (sites->count == SITES_MAX)
        return;
    struct ops_site *site = &sites->items[sites->count];
    struct db_target target = db_target_copy(configured, NULL, &sites->arena);
    *site = (struct ops_site){.name = target.name, .is_store = is_store};
    target.connections_max = CONNECTIONS;
    target.fixed_plans = true;
    target.server = kernel_server_of(builder->ops->kernel, configured);
    if (db_pool_create(&target, &site->pool, &error) != STATUS_OK)
        return; /* not of a configuration that was checked */
    for (size_t i = 0; i < sites->count; i++)
        site->is_twin |= target.server && builder->servers[i] == target.server;
    builder->servers[sites->count++] = target.server;
}

static void add_database(const struct db_target *target, const struct module *module, void *arg)
{
    (void)module;
    add_site(arg, target, false);
}

struct ops_sites *ops_sites_create(struct ops *ops, struct config *config)
{
    struct ops_sites *sites = memory_zalloc(sizeof *sites);
    struct sites_builder builder = {.ops = ops, .sites = sites};
    struct db_target store;
    atomic_init(&sites->refs, 1);
    sites->arena = ARENA(4096);
    sites->items = arena_zalloc(&sites->arena, SITES_MAX * sizeof *sites->items);
    if (kernel_store_find(config, ops->modules, &store))
        add_site(&builder, &store, true);
    kernel_each_database(config, ops->modules, add_database, &builder);
    return sites;
}

struct ops_sites *ops_sites_hold(struct ops *ops)
{
    pthread_mutex_lock(&ops->lock);
    struct ops_sites *sites = ops->sites;
    atomic_fetch_add(&sites->refs, 1);
    pthread_mutex_unlock(&ops->lock);
    return sites;
}

void ops_sites_unref(struct ops_sites *sites)
{
    if (!sites || atomic_fetch_sub(&sites->refs, 1) != 1)
        return;
    for (size_t i = 0; i < sites->count; i++)
        db_pool_destroy(sites->items[i].pool);
    arena_deinit(&sites->arena);
    free(sites);
}

/* ---- asking ---- */

struct ops_latch {
    pthread_mutex_t lock;
    pthread_cond_t is_done;
    size_t left;
};

enum status ops_asks_init(const struct ops_sites *sites, enum ops_place place, struct str only,
                          struct ops_ask *asks, size_t *count, struct error *error)
{
    *count = 0;
    for (size_t i = 0; i < sites->count; i++) {
        const struct ops_site *site = &sites->items[i];
        bool is_here = place == OPS_ANYWHERE ? !site->is_twin : (place == OPS_STORE) == site->is_store;
        if (is_here && (!only.ptr || str_eq(only, str_from(site->name))))
            asks[(*count)++] = (struct ops_ask){.site = site};
    }
    if (*count == 0 && only.ptr)
        return error_set_field(error, STATUS_BAD_REQUEST, "database", "there is no database of this name");
    return STATUS_OK;
}

static void ask_one(struct ops_ask *ask)
{
    struct db_conn *conn = NULL;
    ask->error = (struct error){0};
    ask->status = db_acquire(ask->site->pool, ask->deadline_ns, &conn, &ask->error);
    if (conn)
        ask->status = ask->run(ask, conn, &ask->error);
    if (ask->status == STATUS_DB_ERROR)
        log_error("ops_statement_refused", LOG_CSTR("database", ask->site->name),
                  LOG_ERROR_FIELDS(&ask->error));
    db_release(conn);
}

static void run_ask(struct worker_job *job)
{
    ask_one(CONTAINER_OF(job, struct ops_ask, job));
}

static void ask_done(struct worker_job *job)
{
    struct ops_ask *ask = CONTAINER_OF(job, struct ops_ask, job);
    struct ops_latch *latch = ask->latch;
    if (job->cancelled)
        ask->status = error_set(&ask->error, STATUS_CANCELLED, "the process stops");
    pthread_mutex_lock(&latch->lock);
    if (--latch->left == 0)
        pthread_cond_signal(&latch->is_done);
    pthread_mutex_unlock(&latch->lock);
}

void ops_ask_all(struct ops *ops, struct ops_ask *asks, size_t count,
                 enum status (*run)(struct ops_ask *ask, struct db_conn *conn, struct error *error),
                 void *context)
{
    struct ops_latch latch = {.lock = PTHREAD_MUTEX_INITIALIZER, .is_done = PTHREAD_COND_INITIALIZER};
    int64_t deadline_ns = clock_deadline_ms(ops->settings->database_timeout_ms);
    latch.left = count > 1 ? count - 1 : 0;
    for (size_t i = 0; i < count; i++) {
        asks[i].run = run;
        asks[i].context = context;
        asks[i].deadline_ns = deadline_ns;
        asks[i].latch = &latch;
        asks[i].job = (struct worker_job){.run = run_ask, .done = ask_done};
        if (i > 0 && !worker_pool_submit(ops->askers, &asks[i].job)) {
            asks[i].job.cancelled = true;
            ask_done(&asks[i].job);
        }
    }
    if (count)
        ask_one(&asks[0]);
    pthread_mutex_lock(&latch.lock);
    while (latch.left > 0)
        pthread_cond_wait(&latch.is_done, &latch.lock);
    pthread_mutex_unlock(&latch.lock);
    pthread_mutex_destroy(&latch.lock);
    pthread_cond_destroy(&latch.is_done);
}

void ops_put_unavailable(struct buf *out, const struct ops_ask *asks, size_t count)
{
    json_put_open(out, "unavailable", '[');
    for (size_t i = 0; i < count; i++) {
        if (asks[i].status == STATUS_OK)
            continue;
        const char *message = *asks[i].error.message ? asks[i].error.message : status_message(asks[i].status);
        json_put_open(out, NULL, '{');
        json_put_member_str(out, "database", str_from(asks[i].site->name));
        json_put_member_str(out, "error", str_from(message));
        buf_put_char(out, '}');
    }
    buf_put_char(out, ']');
}

void ops_put_count(struct buf *out, const char *name, int64_t count, bool has_more)
{
    json_put_open(out, name, '{');
    json_put_member_i64(out, "count", count);
    json_put_member_bool(out, "more", has_more);
    buf_put_char(out, '}');
}

void ops_put_oldest_age(struct buf *out, int64_t age_s)
{
    json_put_key(out, STR("oldest_pending_age_seconds"));
    buf_printf(out, age_s >= 0 ? "%lld" : "null", (long long)age_s);
}

void ops_add_items(struct buf *list, struct str items)
{
    if (items.len && buf_len(list))
        buf_put_char(list, ',');
    buf_put_str(list, items);
}

void ops_send_items(struct http_request *request, const struct buf *items, const struct buf *cursor,
                    const struct ops_ask *asks, size_t count)
{
    struct buf body = {0};
    buf_put_str(&body, STR("{\"items\":["));
    buf_put_str(&body, buf_str(items));
    buf_put_char(&body, ']');
    json_put_member_str_or_null(&body, "next_cursor", buf_len(cursor) ? buf_str(cursor) : STR_NONE);
    ops_put_unavailable(&body, asks, count);
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
}
