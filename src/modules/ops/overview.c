/* GET /v1/ops/overview: how everything is, in one answer. Every database is asked once, with its own deadline; counts end at 10,000. */
#include "modules/ops/overview.h"

#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "kernel/outbox_views.h"

enum { PENDING_AGE_MAX_S = 60, OUTBOX_AGE_MAX_S = 60, LAG_MAX = 10000 };

/* $1 the tenant, null = all. What waits is counted by its carriers, and among the newest updates, which Kafka may carry: an index by status
 * would cost every update. The larger number counts. `offset 0` here and below: planned on empty tables, a plain join would read all
 * messages of the topic, and all decisions. */
static const struct db_statement updates_sql = DB_STATEMENT(
    "with recent as materialized ("
    "  select r.tenant_id, r.status, r.created_at from refdata.update_request r order by r.created_at desc limit 20000),"
    " carried as materialized ("
    "  (select m.created_at from platform.bus_cursor c"
    "     cross join lateral (select b.created_at, b.key from platform.bus_message b where b.topic = c.topic"
    "           and b.partition = c.partition and b.message_offset >= c.position offset 0) m"
    "    where c.topic = 'refdata.commands'"
    "      and ($1::text is null or substring(m.key for octet_length($1) + 1) = convert_to($1 || ':', 'UTF8')) limit 10001)"
    "  union all"
    "  (select o.created_at from refdata.command_outbox o"
    "    where not o.published and o.failed_at is null and ($1::text is null or o.tenant_id = $1) limit 10001)"
    "  union all"
    "  (select r.created_at from refdata.snapshot s"
    "     join refdata.update_request r on r.tenant_id = s.tenant_id and r.snapshot_id = s.snapshot_id"
    "    where s.status = 'PENDING' and r.status = 'PENDING' and ($1::text is null or s.tenant_id = $1) limit 10001)),"
    " waiting as materialized ("
    "  select count(*) as n, min(created_at) as oldest from carried union all"
    "  select count(*), min(created_at) from recent where status = 'PENDING' and ($1::text is null or tenant_id = $1)),"
    " failed as materialized ("
    "  select count(*) as n from recent where status = 'FAILED' and created_at > clock_timestamp() - interval '1 hour'"
    "     and ($1::text is null or tenant_id = $1))"
    " select least((select max(n) from waiting), 10000), ((select max(n) from waiting) > 10000)::int,"
    "        extract(epoch from clock_timestamp() - (select min(oldest) from waiting))::bigint,"
    "        least((select n from failed), 10000),"
    "        (select count(*) = 20000 and min(created_at) > clock_timestamp() - interval '1 hour' from recent)::int");
enum { PENDING, PENDING_MORE, OLDEST_AGE, FAILED, FAILED_MORE };

/* Letters of PostgreSQL's topics that are open: of all tenants those of the partitions minus those decided; of one tenant among the newest
 * 20,000 of each partition. The most that a group has not handled of a topic, and what notification has not. */
static const struct db_statement bus_sql = DB_STATEMENT(
    "with dead as materialized ("
    "  select p.topic, p.partition, p.next_offset, o.message_offset as first, o.letter_us from platform.bus_partition p"
    "   cross join lateral (select m.message_offset, (extract(epoch from m.created_at) * 1000000)::bigint as letter_us"
    "       from platform.bus_message m where m.topic = p.topic and m.partition = p.partition"
    "      order by m.message_offset limit 1) o"
    "   where p.topic like '%.dlq')"
    " select case when $1::text is null then"
    "         (select coalesce(sum(dead.next_offset - dead.first - (select count(*) from platform.dead_letter_decision d"
    "             where d.engine = 'postgres' and d.topic = dead.topic and d.partition = dead.partition"
    "               and d.message_offset >= dead.first and d.letter_us >= dead.letter_us)), 0)::bigint from dead)"
    "       else (select count(*) from (select from dead cross join lateral (select * from platform.bus_message m"
    "           where m.topic = dead.topic and m.partition = dead.partition order by m.message_offset desc limit 20000) m"
    "         where (m.headers[array_position(m.headers, 'tenant_id') + 1] = $1"
    "                or substring(m.key for octet_length($1) + 1) = convert_to($1 || ':', 'UTF8'))"
    "           and not exists (select from platform.dead_letter_decision d where d.engine = 'postgres' and d.topic = m.topic"
    "                and d.partition = m.partition and d.message_offset = m.message_offset and d.letter_us >= dead.letter_us"
    "                offset 0)"
    "         limit 10001) n) end,"
    "       max(g.lag), sum(g.lag) filter (where starts_with(g.group_name, 'notification'))"
    "  from (select c.group_name, sum(p.next_offset - c.position)::bigint as lag from platform.bus_cursor c"
    "          join platform.bus_partition p on p.topic = c.topic and p.partition = c.partition group by c.group_name, c.topic) g");
enum { DEAD, LAG, LAG_OF_NOTIFICATION };

struct counted {
    int64_t count;
    bool has_more;
};

/* One database's. */
struct overview_part {
    struct arena arena;
    struct db_result *pods;
    struct counted pending, failed, dead;
    int64_t oldest_age_s; /* -1 = nothing waits */
    int64_t lag;
    struct kernel_outbox_counts outboxes; /* of all tables */
    struct overview_works works;
};

struct overview {
    struct ops *ops;
    struct str tenant; /* ptr NULL = all */
};

static void add_work(struct overview_works *works, struct overview_work work)
{
    struct overview_work *end = works->items + works->count, *at = works->items;
    while (at < end && strcmp(at->role, work.role) != 0)
        at++;
    if (work.count == 0 || at == works->items + OVERVIEW_WORKS_MAX)
        return;
    if (at == end)
        works->items[works->count++] = (struct overview_work){.role = work.role, .noun = work.noun};
    at->count += work.count;
    at->has_more |= work.has_more;
}

static enum status count_updates(struct overview_part *part, struct str tenant, struct db_conn *conn,
                                 int64_t deadline_ns, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_query(conn, &updates_sql, DB_PARAMS(db_text(tenant)), deadline_ns, &rows, error);
    if (status == STATUS_OK) {
        part->pending =
            (struct counted){db_result_i64(rows, 0, PENDING), db_result_i64(rows, 0, PENDING_MORE)};
        part->failed = (struct counted){db_result_i64(rows, 0, FAILED), db_result_i64(rows, 0, FAILED_MORE)};
        part->oldest_age_s = db_result_is_null(rows, 0, OLDEST_AGE) ? -1 : db_result_i64(rows, 0, OLDEST_AGE);
        add_work(&part->works,
                 (struct overview_work){"apply", "update", part->pending.count, part->pending.has_more});
    }
    db_result_free(rows);
    return status;
}

static enum status count_bus(struct overview_part *part, struct str tenant, struct db_conn *conn,
                             int64_t deadline_ns, struct error *error)
{
    struct db_result *rows = NULL;
    enum status status = db_query(conn, &bus_sql, DB_PARAMS(db_text(tenant)), deadline_ns, &rows, error);
    if (status == STATUS_OK) {
        int64_t dead = db_result_i64(rows, 0, DEAD);
        part->dead =
            (struct counted){dead < KERNEL_COUNT_MAX ? dead : KERNEL_COUNT_MAX, dead > KERNEL_COUNT_MAX};
        part->lag = db_result_i64(rows, 0, LAG);
        add_work(&part->works, (struct overview_work){"notification", "message",
                                                      db_result_i64(rows, 0, LAG_OF_NOTIFICATION), false});
    }
    db_result_free(rows);
    return status;
}

static void add_outbox(struct kernel_outbox_counts *sum, const struct kernel_outbox_counts *one)
{
    sum->pending += one->pending;
    sum->in_flight += one->in_flight;
    sum->failed += one->failed;
    sum->has_more |= one->has_more;
    if (one->pending + one->in_flight > 0 && one->oldest_pending_age_s > sum->oldest_pending_age_s)
        sum->oldest_pending_age_s = one->oldest_pending_age_s;
}

static enum status count_outboxes(const struct overview *overview, struct ops_ask *ask, struct db_conn *conn,
                                  struct error *error)
{
    struct overview_part *part = ask->own;
    enum status status = STATUS_OK;
    part->outboxes.oldest_pending_age_s = -1;
    for (const struct module *const *module = overview->ops->modules; *module; module++) {
        const struct outbox_table *const *at = (*module)->outboxes;
        bool is_here = at && (*module)->keeps_store == ask->site->is_store;
        for (; is_here && *at && status == STATUS_OK; at++) {
            struct kernel_outbox_counts counts = {0};
            status = kernel_outbox_count(conn, *at, overview->tenant, &part->arena, ask->deadline_ns, &counts,
                                         error);
            if (status != STATUS_OK)
                break;
            add_outbox(&part->outboxes, &counts);
            add_work(&part->works,
                     (struct overview_work){outbox_role(*at), "event", counts.pending + counts.in_flight,
                                            counts.has_more});
        }
    }
    return status;
}

static enum status ask_database(struct ops_ask *ask, struct db_conn *conn, struct error *error)
{
    const struct overview *overview = ask->context;
    struct overview_part *part = ask->own;
    enum status status = STATUS_OK;
    part->oldest_age_s = -1;
    if (!ask->site->is_twin)
        status = db_query(conn, &overview_pods_sql, DB_PARAMS(db_text(overview->tenant)), ask->deadline_ns,
                          &part->pods, error);
    if (status == STATUS_OK && !ask->site->is_twin)
        status = count_bus(part, overview->tenant, conn, ask->deadline_ns, error);
    if (status == STATUS_OK && !ask->site->is_store)
        status = count_updates(part, overview->tenant, conn, ask->deadline_ns, error);
    if (status == STATUS_OK)
        status = count_outboxes(overview, ask, conn, error);
    return status;
}

/* ---- the answer ---- */

static struct counted add_counted(struct counted a, struct counted b)
{
    struct counted sum = {a.count + b.count, a.has_more || b.has_more};
    if (sum.count > KERNEL_COUNT_MAX)
        sum = (struct counted){KERNEL_COUNT_MAX, true};
    return sum;
}

static void put_engine(struct buf *out, const char *name, const char *database, const char *flows,
                       enum overview_state state, struct str detail)
{
    static const char *const states[] = {
        [OVERVIEW_UNKNOWN] = "unknown", [OVERVIEW_UP] = "up", [OVERVIEW_DOWN] = "down"};
    json_put_open(out, NULL, '{');
    json_put_member_str(out, "name", str_from(name));
    if (database)
        json_put_member_str(out, "database", str_from(database));
    json_put_open(out, "flows", '[');
    buf_printf(out, "%s]", flows);
    json_put_member_str(out, "state", str_from(states[state]));
    if (detail.len)
        json_put_member_str(out, "detail", detail);
    buf_put_char(out, '}');
}

/* Databases by what they answered just now, engines by the health of the processes that are up. */
static void put_engines(const struct ops *ops, const struct overview_pods *pods, const struct ops_ask *asks,
                        size_t count, struct overview_problems *problems, struct buf *out,
                        struct arena *arena)
{
    const struct kernel_bus_settings *bus = kernel_bus(ops->kernel);
    const struct {
        const char *name, *prefix, *flows;
        bool is_used;
    } engines[] = {
        {"kafka", "kafka:", "\"commands\"", bus->commands == KERNEL_KAFKA},
        {"redis", "redis:", "\"invalidations\"", bus->invalidations == KERNEL_REDIS},
        {"nats", "nats:", "\"events\"", bus->events == KERNEL_NATS},
    };
    json_put_open(out, "engines", '[');
    for (size_t i = 0; i < count; i++) {
        bool is_up = asks[i].status == STATUS_OK;
        const char *flows =
            asks[i].site->is_store ? bus->events == KERNEL_POSTGRES ? "\"data\",\"events\"" : "\"data\""
            : bus->commands != KERNEL_POSTGRES && bus->invalidations != KERNEL_POSTGRES ? "\"data\""
            : bus->commands != KERNEL_POSTGRES      ? "\"data\",\"invalidations\""
            : bus->invalidations != KERNEL_POSTGRES ? "\"data\",\"commands\""
                                                    : "\"data\",\"commands\",\"invalidations\"";
        put_engine(out, "postgres", asks[i].site->name, flows, is_up ? OVERVIEW_UP : OVERVIEW_DOWN,
                   is_up ? STR_NONE : str_from(asks[i].error.message));
        if (!is_up)
            overview_problem(problems, true, "is PostgreSQL up, and can this process reach it?",
                             "the database %s does not answer: %.300s", asks[i].site->name,
                             asks[i].error.message);
    }
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        struct str detail = STR_NONE;
        if (!engines[i].is_used)
            continue;
        enum overview_state state = overview_engine_state(pods, engines[i].prefix, &detail, arena);
        put_engine(out, engines[i].name, NULL, engines[i].flows, state, detail);
        if (state == OVERVIEW_DOWN)
            overview_problem(problems, true, "GET /v1/ops/pods shows which processes do not reach it",
                             "%s does not answer: %.*s", engines[i].name, STR_ARG(detail));
    }
    buf_put_char(out, ']');
}

static void put_sums(const struct overview_part *sum, int64_t lag, struct overview_problems *problems,
                     struct buf *out)
{
    json_put_open(out, "updates", '{');
    ops_put_count(out, "pending", sum->pending.count, sum->pending.has_more);
    ops_put_count(out, "failed_last_hour", sum->failed.count, sum->failed.has_more);
    ops_put_oldest_age(out, sum->oldest_age_s);
    buf_put_char(out, '}');
    json_put_open(out, "outboxes", '{');
    json_put_member_i64(out, "pending", sum->outboxes.pending);
    json_put_member_i64(out, "in_flight", sum->outboxes.in_flight);
    json_put_member_i64(out, "failed", sum->outboxes.failed);
    json_put_member_bool(out, "more", sum->outboxes.has_more);
    ops_put_oldest_age(out, sum->outboxes.oldest_pending_age_s);
    buf_put_char(out, '}');
    ops_put_count(out, "dead_letters", sum->dead.count, sum->dead.has_more);
    json_put_open(out, "lag", '{');
    json_put_member_i64(out, "max_messages", lag);
    buf_put_char(out, '}');
    if (sum->oldest_age_s > PENDING_AGE_MAX_S)
        overview_problem(problems, true, "freshet updates list --status PENDING",
                         "an update is PENDING for %lld s", (long long)sum->oldest_age_s);
    if (sum->outboxes.oldest_pending_age_s > OUTBOX_AGE_MAX_S)
        overview_problem(problems, true, "freshet outbox list", "an event waits to be published for %lld s",
                         (long long)sum->outboxes.oldest_pending_age_s);
    if (sum->outboxes.failed)
        overview_problem(problems, false, "freshet outbox list", "%lld event%s could not be published",
                         (long long)sum->outboxes.failed, sum->outboxes.failed == 1 ? "" : "s");
    if (sum->dead.count)
        overview_problem(problems, false, "freshet dlq list", "there %s %lld%s dead letter%s",
                         sum->dead.count == 1 ? "is" : "are", (long long)sum->dead.count,
                         sum->dead.has_more ? " or more" : "", sum->dead.count == 1 ? "" : "s");
    if (lag > LAG_MAX)
        overview_problem(problems, false, "freshet top --once", "a group is %lld messages behind",
                         (long long)lag);
}

static void sum_parts(const struct overview_part *parts, size_t count, struct overview_pods *pods,
                      struct overview_part *sum, int64_t *lag, struct arena *arena)
{
    *sum = (struct overview_part){.oldest_age_s = -1, .outboxes.oldest_pending_age_s = -1};
    *lag = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].pods)
            overview_pods_add(pods, parts[i].pods, arena);
        sum->pending = add_counted(sum->pending, parts[i].pending);
        sum->failed = add_counted(sum->failed, parts[i].failed);
        sum->dead = add_counted(sum->dead, parts[i].dead);
        if (parts[i].oldest_age_s > sum->oldest_age_s)
            sum->oldest_age_s = parts[i].oldest_age_s;
        *lag = parts[i].lag > *lag ? parts[i].lag : *lag;
        add_outbox(&sum->outboxes, &parts[i].outboxes);
        for (size_t j = 0; j < parts[i].works.count; j++)
            add_work(&sum->works, parts[i].works.items[j]);
    }
    for (size_t i = 0; i < pods->count; i++)
        if (str_eq(pods->items[i].state, STR("up")) && pods->items[i].engine_lag > *lag)
            *lag = pods->items[i].engine_lag;
}

static void send_overview(struct http_request *request, const struct ops_ask *asks,
                          const struct overview_part *parts, size_t count)
{
    struct ops *ops = request->context;
    struct overview_pods pods = {0};
    struct overview_problems problems = {0};
    struct overview_part sum;
    struct buf body = {0}, refused = {0};
    char now[CLOCK_RFC3339_BYTES];
    int64_t lag, refused_us;
    sum_parts(parts, count, &pods, &sum, &lag, request->arena);
    clock_rfc3339(clock_unix_us(), now);
    buf_put_char(&body, '{');
    json_put_member_str(&body, "now", str_from(now));
    json_put_member_str(&body, "pod_id", str_from(kernel_pod_id(ops->kernel)));
    overview_pods_put(&pods, &body, request->arena);
    put_engines(ops, &pods, asks, count, &problems, &body, request->arena);
    put_sums(&sum, lag, &problems, &body);
    overview_works_find_problems(&sum.works, &pods, &problems, request->arena);
    overview_pods_find_problems(&pods, &problems);
    if (kernel_refused_config(ops->kernel, &refused, &refused_us))
        overview_problem(&problems, false, "freshet config checks the file",
                         "the changed configuration was refused: %.*s",
                         STR_ARG(str_utf8_cut(buf_str(&refused), 300)));
    json_put_open(&body, "problems", '[');
    buf_printf(&body, "%.*s%s%.*s]", STR_ARG(buf_str(&problems.critical)),
               buf_len(&problems.critical) && buf_len(&problems.warnings) ? "," : "",
               STR_ARG(buf_str(&problems.warnings)));
    ops_put_unavailable(&body, asks, count);
    buf_put_char(&body, '}');
    http_send(request, &(struct http_response){.status = 200, .body = buf_str(&body)});
    buf_deinit(&body);
    buf_deinit(&refused);
    buf_deinit(&problems.critical);
    buf_deinit(&problems.warnings);
}

void ops_get_overview(struct http_request *request)
{
    struct overview overview = {.ops = request->context};
    if (!ops_tenant_only(request, &overview.tenant))
        return;
    struct ops_sites *sites = ops_sites_hold(overview.ops);
    struct ops_ask *asks = arena_zalloc(request->arena, (sites->count + 1) * sizeof *asks);
    struct overview_part *parts = arena_zalloc(request->arena, (sites->count + 1) * sizeof *parts);
    for (size_t i = 0; i < sites->count; i++) {
        asks[i] = (struct ops_ask){.site = &sites->items[i], .own = &parts[i]};
        parts[i] = (struct overview_part){
            .arena = ARENA(4096), .oldest_age_s = -1, .outboxes.oldest_pending_age_s = -1};
    }
    ops_ask_all(overview.ops, asks, sites->count, ask_database, &overview);
    send_overview(request, asks, parts, sites->count);
    for (size_t i = 0; i < sites->count; i++) {
        db_result_free(parts[i].pods);
        arena_deinit(&parts[i].arena);
    }
    ops_sites_unref(sites);
}
