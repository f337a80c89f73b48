/* Rate limits per tenant and route, `limits.rates`. The first rule that holds for a request takes a token from the bucket of its
 * tenant and that rule; without a token the request is 429. A reload replaces all rules at once and keeps the buckets: those of a
 * rule that did not change continue. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/rate.h"
#include "kernel/kernel_inside.h"

enum { BUCKET_LINES = 8192 /* 512 KiB, for 65,536 buckets that are not full */ };

#define RATE_ROW(member) .offset = offsetof(struct kernel_rate_settings, member)
#define RATE_PLACE(member) .place_offset = 1 + offsetof(struct kernel_rate_settings, member)
const struct setting_row kernel_rate_rows[] = {
    {"tenant", SETTING_STRING, RATE_ROW(tenant),
     "The tenant that the rule holds for; * = every tenant, each by itself.", "*", 1, 64,
     RATE_PLACE(tenant_place)},
    {"route", SETTING_STRING, RATE_ROW(route),
     "The route, METHOD PATH as `freshet routes` prints it; METHOD * = all routes of a method; * = all routes.",
     "*", 1, 256, RATE_PLACE(route_place)},
    {"rate", SETTING_DECIMAL, RATE_ROW(rate), "Requests a second, on average.", NULL, 1, 100000000},
    {"burst", SETTING_INT, RATE_ROW(burst),
     "Requests at once after a pause. Without it: those of one second, at least 1.", "", 1, 1000000,
     RATE_PLACE(burst_place)},
    {.name = NULL},
};

static struct metric_family families[] = {
    {.name = "http_rate_limited_total",
     .help = "Requests refused with 429, by tenant and route of the rule in limits.rates.",
     .labels = {"tenant", "route"}},
    {.name = "http_rate_uncounted_total",
     .help =
         "Requests that passed without being counted because more tenants were active than there are buckets."},
};

struct rule {
    struct str tenant;              /* empty = every tenant */
    const struct http_route *route; /* NULL = all */
    enum http_method method;        /* HTTP_METHODS = all; of a row, so never HEAD */
    struct rate rate;
    uint64_t id; /* of its settings: another rule has other buckets */
    struct metric_series *refused;
};

struct kernel_rates {
    struct rate_table *buckets;
    struct metric_series *uncounted;
    size_t count;
    struct rule rules[];
};

/* ---- settings ---- */

static const struct http_route *find_row(const struct http_route *rows, enum http_method method,
                                         struct str path)
{
    for (; rows->handler; rows++)
        if (rows->method == method && str_eq(str_from(rows->path), path))
            return rows;
    return NULL;
}

/* The mistake in it, or NULL. Routes of roles that do not run here are valid too: processes may share one file. */
static const char *read_route(struct str text, const struct module *const *modules, struct rule *rule)
{
    struct str path = text, method;

    rule->method = HTTP_METHODS;
    rule->route = NULL;
    if (str_eq(text, STR("*")))
        return NULL;
    (void)str_split(&path, ' ', &method);
    path = str_trim(path);
    for (rule->method = HTTP_GET; rule->method < HTTP_METHODS; rule->method++)
        if (str_eq(method, str_from(http_method_name(rule->method))))
            break;
    if (rule->method == HTTP_METHODS || path.len == 0)
        return "is not *, METHOD * or METHOD PATH";
    if (rule->method == HTTP_HEAD || rule->method == HTTP_OPTIONS)
        return "cannot be limited: HEAD counts as GET, OPTIONS has no tenant";
    if (str_eq(path, STR("*")))
        return NULL;
    if (find_row(kernel_actuator_routes, rule->method, path))
        return "is public: its requests have no tenant";
    for (; *modules && !rule->route; modules++)
        for (const struct module_routes *at = (*modules)->routes; at && at->role && !rule->route; at++)
            rule->route = find_row(at->routes, rule->method, path);
    return rule->route ? NULL : "is not a route; `freshet routes` lists them";
}

/* The settings have been checked. */
static void make_rule(const struct kernel_rate_settings *setting, const struct module *const *modules,
                      struct rule *rule)
{
    int64_t burst = setting->burst ? setting->burst : (setting->rate + 999) / 1000;
    char text[512];

    (void)read_route(setting->route, modules, rule);
    rule->tenant = str_eq(setting->tenant, STR("*")) ? STR_NONE : setting->tenant;
    rule->rate = rate_make(setting->rate, burst);
    int len = snprintf(text, sizeof text, "%.*s\n%.*s\n%lld\n%lld", STR_ARG(setting->tenant),
                       STR_ARG(setting->route), (long long)setting->rate, (long long)burst);
    rule->id = hash_seeded(str_of(text, (size_t)len));
}

/* Does `rule` hold for all requests of `other`? */
static bool covers(const struct rule *rule, const struct rule *other)
{
    bool has_tenant = rule->tenant.len == 0 || str_eq(rule->tenant, other->tenant);
    bool has_method = rule->method == HTTP_METHODS || rule->method == other->method;
    return has_tenant && has_method && (!rule->route || rule->route == other->route);
}

static const struct setting_objects *settings_of(const struct config *config)
{
    return &((const struct kernel_limit_settings *)config_section(config, "limits"))->rates;
}

enum status kernel_rates_check(const struct config *config, const struct module *const *modules,
                               struct error *error)
{
    const struct setting_objects *settings = settings_of(config);
    struct rule rule, earlier;
    char field[64];

    for (size_t i = 0; i < settings->count; i++) {
        const struct kernel_rate_settings *setting = (const struct kernel_rate_settings *)settings->items + i;
        const char *mistake = read_route(setting->route, modules, &rule);
        snprintf(field, sizeof field, "limits.rates[%zu].%s", i, mistake ? "route" : "tenant");
        if (mistake)
            return config_error_at(config, setting->route_place, field, error, "\"%.*s\" %s",
                                   STR_ARG(setting->route), mistake);
        if (!str_eq(setting->tenant, STR("*")) && !str_is_name(setting->tenant))
            return config_error_at(config, setting->tenant_place, field, error,
                                   "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -, or * for every tenant");
        snprintf(field, sizeof field, "limits.rates[%zu]", i);
        if (setting->burst * 1000 / setting->rate > RATE_FILL_MS_MAX / 1000)
            return config_error_at(config, setting->burst_place, field, error,
                                   "rate and burst: a full burst would take longer than a day to return");
        make_rule(setting, modules, &rule);
        for (size_t j = 0; j < i; j++) {
            make_rule((const struct kernel_rate_settings *)settings->items + j, modules, &earlier);
            if (covers(&earlier, &rule))
                return config_error_at(
                    config, settings->places[i], field, error,
                    "has no effect: the rule at line %u holds for the same requests, and the first one counts",
                    settings->places[j].line);
        }
    }
    return STATUS_OK;
}

/* ---- the rules in force ---- */

/* One allocation: the rules, then the names of their tenants. */
static struct kernel_rates *make_rates(struct kernel *kernel, const struct setting_objects *settings)
{
    const struct kernel_rate_settings *all = settings->items;
    size_t name_bytes = 0;

    for (size_t i = 0; i < settings->count; i++)
        name_bytes += all[i].tenant.len + 1;
    struct kernel_rates *rates =
        memory_alloc(sizeof *rates + settings->count * sizeof *rates->rules + name_bytes);
    char *names = (char *)&rates->rules[settings->count];
    if (!kernel->rate_buckets)
        kernel->rate_buckets = rate_table_create(BUCKET_LINES);
    rates->buckets = kernel->rate_buckets;
    rates->uncounted = metric_series_get(&families[1], NULL);
    rates->count = settings->count;
    for (size_t i = 0; i < settings->count; i++) {
        struct rule *rule = &rates->rules[i];
        make_rule(&all[i], kernel->options.modules, rule);
        rule->tenant = str_pack(&names, rule->tenant);
        rule->refused = metric_series_get(&families[0], (struct str[]){all[i].tenant, all[i].route});
    }
    return rates;
}

void kernel_rates_set(struct kernel *kernel, const struct config *config)
{
    const struct setting_objects *settings = settings_of(config);

    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        metrics_register(&families[i]);
    struct kernel_rates *fresh = settings->count > 0 ? make_rates(kernel, settings) : NULL;
    struct kernel_rates *old = atomic_exchange(&kernel->rates, fresh);

    if (old)
        loop_group_synchronize(kernel->loops, free, old);
}

void kernel_rates_destroy(struct kernel *kernel)
{
    free(atomic_load(&kernel->rates));
    rate_table_destroy(kernel->rate_buckets);
}

/* ---- requests ---- */

bool kernel_rates_admit(const struct kernel_rates *rates, struct http_request *request)
{
    const struct http_route *route = request->route;
    struct str tenant = kernel_identity(request)->tenant;
    const struct rule *rule = rates->rules, *end = rule + rates->count;
    char line[64];
    int64_t wait_ns = 0;

    for (; rule < end; rule++)
        if ((rule->route ? rule->route == route
                         : rule->method == HTTP_METHODS || rule->method == route->method) &&
            (rule->tenant.len == 0 || str_eq(rule->tenant, tenant)))
            break;
    if (rule == end)
        return true;
    switch (rate_take(rates->buckets, hash_seeded(tenant) ^ rule->id, &rule->rate, loop_now_ns(request->loop),
                      &wait_ns)) {
    case RATE_PASSES: return true;
    case RATE_UNCOUNTED: metric_add(rates->uncounted, 1); return true;
    case RATE_REFUSED: break;
    }
    metric_add(rule->refused, 1);
    long long seconds = (wait_ns + CLOCK_NS_PER_S - 1) / CLOCK_NS_PER_S;
    snprintf(line, sizeof line, "Retry-After: %lld\r\n", seconds);
    http_send_error_with(request, &(struct error){.status = STATUS_RATE_LIMITED}, str_from(line), STR_NONE);
    return false;
}
