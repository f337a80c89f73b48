/* Processes as operators see them: each writes one row about itself (platform.pod) every few seconds, in each of its databases once, and
 * marks it when it stops in order. What its modules have in memory is gathered on the home loop; a worker of the site writes it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/memory.h"
#include "kernel/kernel_inside.h"

enum {
    HOST_BYTES = 48,
    ADDRESS_BYTES = 128,
    EVERY_MS = 5000,
    UNREADY_MS = 1000, /* between rows while the process is not ready: it will be in a moment */
    WRITE_MS = 4000,
    STOP_MS = 500,
    RATE_MS = 4000, /* rates are measured over at least this time */
    ROW_OWNERS_MAX = 64,
    REPORT_BYTES_MAX = 64 * 1024,
};

/* The site that writes this process's row in a database: one of those that are the same database. */
struct pod_row_owner {
    const struct db_server *server;
    const struct kernel_site *site;
};

struct kernel_pods {
    char pod_id[65], host[HOST_BYTES], address[ADDRESS_BYTES];
    struct buf roles; /* text[] */
    int64_t started_us;
    pthread_mutex_t lock; /* of the row owners */
    struct pod_row_owner row_owners[ROW_OWNERS_MAX];
    /* the home loop's */
    int64_t counted_ns;
    uint64_t reads, writes;
    double reads_per_second, writes_per_second;
};

/* One site's. */
struct kernel_pod_writer {
    struct kernel_site *site;
    struct buf report;
    bool is_ready;
};

/* ---- who this process is ---- */

struct kernel_pods *kernel_pods_create(struct kernel *kernel)
{
    struct kernel_pods *pods = memory_zalloc(sizeof *pods);
    struct str configured = STR_NONE;
    char host[HOST_BYTES];
    pthread_mutex_init(&pods->lock, NULL);
    pods->started_us = clock_unix_us();
    for (const struct module *const *at = kernel->options.modules; *at; at++) {
        if ((*at)->pod_id)
            configured = (*at)->pod_id(config_section(kernel->config, (*at)->section->name));
        for (const char *const *role = (*at)->roles; *role; role++)
            if (kernel_has_role(kernel, *role))
                db_array_put(&pods->roles, str_from(*role));
    }
    kernel_host_name(pods->host, sizeof pods->host);
    str_copy(host, sizeof host, str_from(pods->host));
    for (char *c = host; *c; c++)
        if (!str_is_name(str_of(c, 1)))
            *c = '-';
    /* A name of its own among all that run at once: a restarted container shares its host with the one before it. */
    if (configured.len)
        str_copy(pods->pod_id, sizeof pods->pod_id, configured);
    else
        snprintf(pods->pod_id, sizeof pods->pod_id, "%s-%08x", host, (unsigned)random_u64());
    return pods;
}

/* Once the server listens: with the port that it has. */
void kernel_pods_set_address(struct kernel *kernel)
{
    const struct kernel_http_settings *http = config_section(kernel->config, "http");
    struct str listen = kernel->options.listen.len ? kernel->options.listen : http->listen.items[0];
    size_t colon = listen.len;
    while (colon > 0 && listen.ptr[colon - 1] != ':')
        colon--;
    snprintf(kernel->pods->address, sizeof kernel->pods->address, "%.*s%u", (int)colon, listen.ptr,
             http_server_port(kernel->server));
}

void kernel_pods_destroy(struct kernel_pods *pods)
{
    if (!pods)
        return;
    pthread_mutex_destroy(&pods->lock);
    buf_deinit(&pods->roles);
    free(pods);
}

const char *kernel_pod_id(const struct kernel *kernel)
{
    return kernel->pods->pod_id;
}

/* ---- the report, on the home loop ---- */

/* Requests of clients, without those that watch the process. */
static void count_request(void *arg, const struct str *labels, double value)
{
    struct kernel_pods *pods = arg;
    enum { METHOD, ROUTE };
    static const char *const aside[] = {"/actuator", "/v1/ops", "/console", "/openapi", NULL};
    for (const char *const *prefix = aside; *prefix; prefix++)
        if (str_starts_with(labels[ROUTE], str_from(*prefix)))
            return;
    bool is_read = str_eq(labels[METHOD], STR("GET")) || str_eq(labels[METHOD], STR("HEAD"));
    *(is_read ? &pods->reads : &pods->writes) += (uint64_t)value;
}

static void measure_rates(struct kernel_pods *pods)
{
    int64_t now_ns = clock_mono_ns(), before_ns = pods->counted_ns;
    uint64_t reads = pods->reads, writes = pods->writes;
    if (before_ns && now_ns - before_ns < RATE_MS * CLOCK_NS_PER_MS)
        return;
    pods->reads = pods->writes = 0;
    metrics_each("http_requests_total", count_request, pods);
    pods->counted_ns = now_ns;
    double seconds = (double)(now_ns - before_ns) / 1e9;
    if (before_ns) {
        pods->reads_per_second = (double)(pods->reads - reads) / seconds;
        pods->writes_per_second = (double)(pods->writes - writes) / seconds;
    }
}

static void put_rate(struct buf *out, const char *name, double rate)
{
    json_put_key(out, str_from(name));
    buf_printf(out, "%.1f", rate);
}

struct lag_walk {
    struct buf *out;
    const struct bus *bus;
};

static void put_lag(void *arg, const struct str *labels, double value)
{
    const struct lag_walk *walk = arg;
    enum { TOPIC, GROUP };
    if (!bus_has_topic(walk->bus, labels[TOPIC]))
        return;
    json_put_open(walk->out, NULL, '{');
    json_put_member_str(walk->out, "topic", labels[TOPIC]);
    json_put_member_str(walk->out, "group", labels[GROUP]);
    json_put_member_str(walk->out, "engine", str_from(bus_engine(walk->bus)));
    json_put_member_i64(walk->out, "lag", (int64_t)value);
    buf_put_char(walk->out, '}');
}

static void put_process(struct kernel *kernel, struct buf *out)
{
    const struct kernel_pods *pods = kernel->pods;
    size_t used = 0;
    for (int account = 0; account < BUDGET_ACCOUNTS; account++)
        used += budget_used((enum budget_account)account);
    put_rate(out, "reads_per_second", pods->reads_per_second);
    put_rate(out, "writes_per_second", pods->writes_per_second);
    json_put_member_i64(out, "memory_used_bytes", (int64_t)used);
    json_put_member_i64(out, "memory_limit_bytes", (int64_t)budget_limit());
    json_put_member_i64(out, "connections", http_server_connections(kernel->server));
}

static void put_modules(struct kernel *kernel, struct buf *out)
{
    struct buf part = {0};
    bool is_cut = false;
    for (size_t i = 0; i < kernel->module_count; i++) {
        const struct kernel_module *entry = &kernel->modules[i];
        if (!entry->started || !entry->module->report)
            continue;
        buf_clear(&part);
        buf_put_char(&part, '{');
        entry->module->report(entry->state, &part);
        buf_put_char(&part, '}');
        if (buf_len(out) + buf_len(&part) < REPORT_BYTES_MAX - HOST_BYTES)
            json_put_member_raw(out, entry->module->name, buf_str(&part));
        else
            is_cut = true;
    }
    json_put_member_bool(out, "is_cut", is_cut);
    buf_deinit(&part);
}

/* The row of this database is written by this site: true, unless another site of the same database does. */
static bool take_row(struct kernel_site *site)
{
    struct kernel_pods *pods = site->kernel->pods;
    struct pod_row_owner *own = NULL;
    pthread_mutex_lock(&pods->lock);
    for (struct pod_row_owner *entry = pods->row_owners; entry < pods->row_owners + ROW_OWNERS_MAX; entry++) {
        if (entry->site && entry->server == site->target.server) {
            own = entry;
            break;
        }
        if (!entry->site && !own)
            own = entry;
    }
    if (own && !own->site)
        *own = (struct pod_row_owner){site->target.server, site};
    bool is_own = own && own->site == site;
    pthread_mutex_unlock(&pods->lock);
    return is_own;
}

static bool give_row_back(struct kernel_site *site)
{
    struct kernel_pods *pods = site->kernel->pods;
    bool was_own = false;
    pthread_mutex_lock(&pods->lock);
    for (size_t i = 0; i < ROW_OWNERS_MAX; i++)
        if (pods->row_owners[i].site == site) {
            pods->row_owners[i] = (struct pod_row_owner){0};
            was_own = true;
        }
    pthread_mutex_unlock(&pods->lock);
    return was_own;
}

static void gather_report(void *context)
{
    struct kernel_pod_writer *writer = context;
    struct kernel *kernel = writer->site->kernel;
    struct buf *out = &writer->report;
    buf_clear(out);
    if (!take_row(writer->site))
        return;
    measure_rates(kernel->pods);
    buf_put_char(out, '{');
    put_process(kernel, out);
    json_put_key(out, STR("health"));
    writer->is_ready = kernel_health_report(kernel, out);
    json_put_open(out, "lag", '['); /* of engines; what PostgreSQL carries stands in its tables */
    for (size_t i = 0; i < writer->site->bus_count; i++)
        if (strcmp(bus_engine(writer->site->buses[i]), "postgres") != 0)
            metrics_each("bus_lag", put_lag, &(struct lag_walk){out, writer->site->buses[i]});
    buf_put_char(out, ']');
    put_modules(kernel, out);
    buf_put_char(out, '}');
}

/* ---- the row, on a worker ---- */

/* Those that were not seen for a day go. The table is small, and not logged. */
static const struct db_statement write_sql = DB_STATEMENT(
    "with relaxed as (select set_config('synchronous_commit', 'off', true)),"
    " gone as (delete from platform.pod where seen_at < clock_timestamp() - interval '1 day' and pod_id <> $1)"
    " insert into platform.pod as p (pod_id, host, pid, address, roles, version, commit, started_at, seen_at, ready,"
    "                                report)"
    " select $1, $2, $3, $4, $5::text[], $6, $7, to_timestamp($8::bigint / 1000000.0), clock_timestamp(), $9, $10 from relaxed"
    "     on conflict (pod_id) do update"
    "    set host = excluded.host, pid = excluded.pid, address = excluded.address, roles = excluded.roles,"
    "        version = excluded.version, commit = excluded.commit, started_at = excluded.started_at,"
    "        seen_at = excluded.seen_at, stopped_at = null, ready = excluded.ready, report = excluded.report");

static int64_t pod_step(struct task *task, void *context)
{
    const struct kernel_pod_writer *writer = context;
    const struct kernel_site *site = writer->site;
    struct kernel_pods *pods = site->kernel->pods;
    struct buf roles = {0};
    struct error error;
    (void)task;
    if (!buf_len(&writer->report))
        return TASK_MS(EVERY_MS);
    buf_put_str(&roles, buf_str(&pods->roles));
    (void)!db_pool_exec(
        site->pool, &write_sql,
        DB_PARAMS(db_cstr(pods->pod_id), db_cstr(pods->host), db_i64(getpid()), db_cstr(pods->address),
                  db_text_array(db_array_end(&roles)), db_cstr(FRESHET_VERSION),
                  db_cstr(site->kernel->options.commit), db_i64(pods->started_us), db_bool(writer->is_ready),
                  db_jsonb(buf_str(&writer->report))),
        clock_deadline_ms(WRITE_MS), NULL, &error); /* a database that is down is reported by its site */
    buf_deinit(&roles);
    return TASK_MS(writer->is_ready ? EVERY_MS : UNREADY_MS);
}

static const struct db_statement stop_sql = DB_STATEMENT(
    "with relaxed as (select set_config('synchronous_commit', 'off', true))"
    " update platform.pod set stopped_at = clock_timestamp(), ready = false from relaxed where pod_id = $1");

struct kernel_pod_writer *kernel_pod_writer_create(struct kernel_site *site)
{
    struct kernel_pod_writer *writer = NULL;
    if (!site->kernel->pods) /* a test without a process */
        return NULL;
    writer = memory_zalloc(sizeof *writer);
    writer->site = site;
    kernel_site_adopt_task(site,
                           task_create(&(struct task_config){.name = "pod",
                                                             .loop = site->home,
                                                             .pool = site->workers,
                                                             .prepare = gather_report,
                                                             .run = pod_step,
                                                             .context = writer}),
                           TASK_NOW);
    return writer;
}

void kernel_pod_writer_stop(struct kernel_pod_writer *writer)
{
    struct error error;
    if (!writer || !give_row_back(writer->site) || !db_pool_is_up(writer->site->pool))
        return;
    (void)!db_pool_exec(writer->site->pool, &stop_sql,
                        DB_PARAMS(db_cstr(kernel_pod_id(writer->site->kernel))), clock_deadline_ms(STOP_MS),
                        NULL, &error); /* else it is gone a moment later */
}

void kernel_pod_writer_destroy(struct kernel_pod_writer *writer)
{
    if (!writer)
        return;
    buf_deinit(&writer->report);
    free(writer);
}
