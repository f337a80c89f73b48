/* Processes in the overview: by their rows in platform.pod, in all databases. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "modules/ops/overview.h"

enum { POD_ID, SEEN_AT, STATE, IS_READY, ROLES, HEALTH, FRESHNESS, READS, WRITES, FAILING, ENGINE_LAG };

const struct db_statement overview_pods_sql = DB_STATEMENT(
    "select p.pod_id, platform.rfc3339(p.seen_at),"
    "       case when p.stopped_at is not null then 'stopped'"
    "            when p.seen_at > clock_timestamp() - interval '15 s' then 'up' else 'gone' end,"
    "       p.ready, to_jsonb(p.roles), p.report -> 'health', p.report #> '{refdata,freshness}',"
    "       p.report -> 'reads_per_second', p.report -> 'writes_per_second',"
    "       (select count(*) from jsonb_each(p.report #> '{refdata,pairs}') e"
    "         where e.value ->> 6 is not null and ($1::text is null or starts_with(e.key, $1 || '/'))),"
    "       (select coalesce(max((l ->> 'lag')::bigint), 0) from jsonb_array_elements(p.report -> 'lag') l)"
    "  from platform.pod p order by p.seen_at desc limit 2000");

/* ---- reading ---- */

static struct json_value read_json(const struct db_result *rows, size_t row, unsigned column,
                                   struct arena *arena)
{
    struct json_value value = {.type = JSON_NULL, .raw = STR_NONE};
    struct str text = db_result_is_null(rows, row, column) ? STR_NONE : db_result_str(rows, row, column);
    if (!text.ptr || json_parse_stored(arena_str(arena, text), JSON_DEPTH_LIMIT, &value, NULL) != STATUS_OK)
        value = (struct json_value){.type = JSON_NULL, .raw = STR_NONE};
    return value;
}

static struct overview_pod read_pod(const struct db_result *rows, size_t row, struct arena *arena)
{
    return (struct overview_pod){
        .pod_id = arena_str(arena, db_result_str(rows, row, POD_ID)),
        .seen_at = arena_str(arena, db_result_str(rows, row, SEEN_AT)),
        .state = arena_str(arena, db_result_str(rows, row, STATE)),
        .is_ready = str_eq(db_result_str(rows, row, IS_READY), STR("t")),
        .roles = read_json(rows, row, ROLES, arena),
        .health = read_json(rows, row, HEALTH, arena),
        .freshness = read_json(rows, row, FRESHNESS, arena),
        .reads_per_second = strtod(arena_str(arena, db_result_str(rows, row, READS)).ptr, NULL),
        .writes_per_second = strtod(arena_str(arena, db_result_str(rows, row, WRITES)).ptr, NULL),
        .failing_pairs = db_result_i64(rows, row, FAILING),
        .engine_lag = db_result_i64(rows, row, ENGINE_LAG),
    };
}

void overview_pods_add(struct overview_pods *pods, const struct db_result *rows, struct arena *arena)
{
    size_t known_before = pods->count;
    if (!pods->items)
        pods->items = arena_alloc(arena, OVERVIEW_PODS_MAX * sizeof *pods->items);
    for (size_t row = 0; row < db_result_rows(rows); row++) {
        struct str id = db_result_str(rows, row, POD_ID), seen_at = db_result_str(rows, row, SEEN_AT);
        size_t at = 0;
        while (at < known_before && !str_eq(pods->items[at].pod_id, id))
            at++;
        if (at == known_before && pods->count < OVERVIEW_PODS_MAX)
            pods->items[pods->count++] = read_pod(rows, row, arena);
        else if (at < known_before && str_compare(seen_at, pods->items[at].seen_at) > 0)
            pods->items[at] = read_pod(rows, row, arena);
    }
}

static bool is_up(const struct overview_pod *pod)
{
    return str_eq(pod->state, STR("up"));
}

/* ---- roles: of processes that are up or gone; those that have stopped are not missed ---- */

enum { ROLES_MAX = 32 };
struct role_count {
    struct str name;
    size_t pods, up;
};

static size_t count_roles(const struct overview_pods *pods, struct role_count roles[ROLES_MAX],
                          struct arena *arena)
{
    size_t count = 0;
    for (size_t i = 0; i < pods->count; i++) {
        struct json_iter it;
        struct json_value role;
        json_iter_init(&it, &pods->items[i].roles);
        while (!str_eq(pods->items[i].state, STR("stopped")) && json_iter_next(&it, NULL, &role)) {
            struct str name = json_str_decode(role.raw, arena);
            size_t at = 0;
            while (at < count && !str_eq(roles[at].name, name))
                at++;
            if (at == ROLES_MAX)
                continue;
            if (at == count)
                roles[count++] = (struct role_count){.name = name};
            roles[at].pods++;
            roles[at].up += is_up(&pods->items[i]);
        }
    }
    return count;
}

/* ---- freshness ---- */

/* The value that a part of the observations does not exceed, in ms; within a bucket they are taken as spread evenly. < 0: none. */
static double quantile_ms(const double *bounds, const double *counts, size_t bound_count, double part)
{
    double total = 0, before = 0;
    for (size_t i = 0; i <= bound_count; i++)
        total += counts[i];
    if (total <= 0)
        return -1;
    for (size_t i = 0; i < bound_count; i++) {
        double from = i ? bounds[i - 1] : 0;
        if (before + counts[i] >= part * total)
            return 1000 * (from + (bounds[i] - from) * (part * total - before) / counts[i]);
        before += counts[i];
    }
    return 1000 * bounds[bound_count - 1];
}

static size_t read_numbers(const struct json_value *object, struct str name,
                           double numbers[OVERVIEW_BUCKETS_MAX], bool adds)
{
    struct json_value list, number;
    struct json_iter it;
    size_t count = 0;
    double value;
    if (object->type != JSON_OBJECT || !json_get(object, name, &list))
        return 0;
    json_iter_init(&it, &list);
    while (count < OVERVIEW_BUCKETS_MAX && json_iter_next(&it, NULL, &number) &&
           json_to_double(&number, &value)) {
        numbers[count] = adds ? numbers[count] + value : value;
        count++;
    }
    return count;
}

static void put_freshness(const struct overview_pods *pods, struct buf *out)
{
    double bounds[OVERVIEW_BUCKETS_MAX] = {0}, counts[OVERVIEW_BUCKETS_MAX] = {0};
    size_t count = 0;
    for (size_t i = 0; i < pods->count; i++)
        if (is_up(&pods->items[i]) && pods->items[i].freshness.type == JSON_OBJECT) {
            count = read_numbers(&pods->items[i].freshness, STR("bounds"), bounds, false);
            (void)read_numbers(&pods->items[i].freshness, STR("counts"), counts, true);
        }
    static const struct {
        const char *name;
        double part;
    } parts[] = {{"p50", 0.5}, {"p99", 0.99}};
    json_put_open(out, "freshness_ms", '{');
    for (size_t i = 0; i < 2; i++) {
        bool is_known = count > 0 && count < OVERVIEW_BUCKETS_MAX;
        double ms = is_known ? quantile_ms(bounds, counts, count, parts[i].part) : -1;
        json_put_key(out, str_from(parts[i].name));
        buf_printf(out, ms >= 0 ? "%.3f" : "null", ms);
    }
    buf_put_char(out, '}');
}

void overview_pods_put(const struct overview_pods *pods, struct buf *out, struct arena *arena)
{
    struct role_count roles[ROLES_MAX];
    size_t up = 0, gone = 0, count = count_roles(pods, roles, arena);
    double reads = 0, writes = 0;
    for (size_t i = 0; i < pods->count; i++) {
        up += is_up(&pods->items[i]);
        gone += str_eq(pods->items[i].state, STR("gone"));
        reads += is_up(&pods->items[i]) ? pods->items[i].reads_per_second : 0;
        writes += is_up(&pods->items[i]) ? pods->items[i].writes_per_second : 0;
    }
    json_put_key(out, STR("pods"));
    buf_printf(out, "{\"up\":%zu,\"gone\":%zu}", up, gone);
    json_put_open(out, "roles", '[');
    for (size_t i = 0; i < count; i++) {
        json_put_open(out, NULL, '{');
        json_put_member_str(out, "role", roles[i].name);
        json_put_member_i64(out, "pods", (int64_t)roles[i].pods);
        json_put_member_i64(out, "up", (int64_t)roles[i].up);
        buf_put_char(out, '}');
    }
    buf_put_char(out, ']');
    json_put_key(out, STR("reads_per_second"));
    buf_printf(out, "%.1f", reads);
    json_put_key(out, STR("writes_per_second"));
    buf_printf(out, "%.1f", writes);
    put_freshness(pods, out);
}

/* ---- engines ---- */

enum overview_state overview_engine_state(const struct overview_pods *pods, const char *prefix,
                                          struct str *detail, struct arena *arena)
{
    enum overview_state state = OVERVIEW_UNKNOWN;
    for (size_t i = 0; i < pods->count; i++) {
        struct json_value components, component, status;
        struct json_iter it;
        struct str name;
        if (!is_up(&pods->items[i]) || pods->items[i].health.type != JSON_OBJECT ||
            !json_get(&pods->items[i].health, STR("components"), &components))
            continue;
        json_iter_init(&it, &components);
        while (json_iter_next(&it, &name, &component)) {
            if (!str_starts_with(json_str_decode(name, arena), str_from(prefix)) ||
                !json_get_string(&component, STR("status"), &status))
                continue;
            if (!json_str_eq(status.raw, STR("UP"))) {
                state = OVERVIEW_DOWN;
                *detail = json_get_text(&component, STR("detail"), arena);
            } else if (state == OVERVIEW_UNKNOWN) {
                state = OVERVIEW_UP;
            }
        }
    }
    return state;
}

/* ---- problems ---- */

void overview_problem(struct overview_problems *problems, bool is_critical, const char *help,
                      const char *format, ...)
{
    struct buf *out = is_critical ? &problems->critical : &problems->warnings;
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    json_put_open(out, NULL, '{');
    json_put_member_str(out, "severity", is_critical ? STR("critical") : STR("warning"));
    json_put_member_str(out, "what", str_from(what));
    json_put_member_str(out, "help", str_from(help));
    buf_put_char(out, '}');
}

void overview_pods_find_problems(const struct overview_pods *pods, struct overview_problems *problems)
{
    enum { NAMED_MAX = 5 };
    size_t gone = 0, unready = 0;
    int64_t failing = 0;
    for (size_t i = 0; i < pods->count; i++) {
        const struct overview_pod *pod = &pods->items[i];
        if (str_eq(pod->state, STR("gone")) && gone++ < NAMED_MAX)
            overview_problem(problems, false, "freshet doctor; the log of the process has the reason",
                             "pod %.*s was last seen at %.*s and did not stop in order", STR_ARG(pod->pod_id),
                             STR_ARG(pod->seen_at));
        if (is_up(pod) && !pod->is_ready && unready++ < NAMED_MAX)
            overview_problem(problems, true, "freshet doctor", "pod %.*s is not ready", STR_ARG(pod->pod_id));
        failing = is_up(pod) && pod->failing_pairs > failing ? pod->failing_pairs : failing;
    }
    if (failing)
        overview_problem(problems, false, "GET /v1/ops/dictionaries shows last_error of each",
                         "%lld dictionaries cannot be loaded in their newest version", (long long)failing);
}

void overview_works_find_problems(const struct overview_works *works, const struct overview_pods *pods,
                                  struct overview_problems *problems, struct arena *arena)
{
    struct role_count roles[ROLES_MAX];
    char help[64];
    size_t role_count = count_roles(pods, roles, arena);
    for (size_t i = 0; i < works->count && pods->count; i++) {
        const struct overview_work *work = &works->items[i];
        bool is_one = work->count == 1 && !work->has_more, is_run = false;
        for (size_t j = 0; j < role_count; j++)
            is_run |= roles[j].up > 0 && str_eq(roles[j].name, str_from(work->role));
        if (is_run)
            continue;
        snprintf(help, sizeof help, "freshet serve --roles %s", work->role);
        overview_problem(problems, true, help, "no process runs the role %s, for which %lld%s %s%s wait%s",
                         work->role, (long long)work->count, work->has_more ? " or more" : "", work->noun,
                         is_one ? "" : "s", is_one ? "s" : "");
    }
}
