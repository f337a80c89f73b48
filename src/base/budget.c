/* The memory budget: a counter for each account, and one for each hash of its tenants. */
#include "base/budget.h"

#include <stdatomic.h>

#include "base/metrics.h"

enum {
    TENANTS = 64,                       /* counted apart, by a hash */
    FREED_BYTES_MIN = 32 * 1024 * 1024, /* of a burst, to be worth a trim */
    CACHE_LINE_BYTES = 64,
};

static struct account {
    _Alignas(CACHE_LINE_BYTES) atomic_size_t used;
    atomic_size_t tenants[TENANTS];
    size_t share, bound; /* set before threads charge */
    struct metric_series *used_gauge, *share_gauge, *refusals;
    const char *name;
    unsigned percent; /* of the limit; the rest is common */
    bool is_cache;    /* takes nothing from the common part: it would never release it */
} accounts[BUDGET_ACCOUNTS] = {
    [BUDGET_REQUESTS] = {.name = "requests", .percent = 20},
    [BUDGET_BODIES] = {.name = "bodies", .percent = 15},
    [BUDGET_UNSENT] = {.name = "unsent", .percent = 10},
    [BUDGET_WRITES] = {.name = "writes", .percent = 10},
    [BUDGET_STREAMS] = {.name = "streams", .percent = 10},
    [BUDGET_VERSIONS] = {.name = "versions", .percent = 5},
    [BUDGET_HYDRATION] = {.name = "hydration", .percent = 10, .is_cache = true},
    [BUDGET_TOKENS] = {.name = "tokens", .percent = 5, .is_cache = true},
};
static size_t limit, common; /* 0 = no limit */
static atomic_size_t freed;
static void (*on_freed_fn)(void *context);
static void *on_freed_context;

/* ---- limits ---- */

void budget_set_limit(size_t bytes)
{
    limit = common = bytes;
    for (size_t i = 0; i < BUDGET_ACCOUNTS; i++) {
        accounts[i].share = bytes / 100 * accounts[i].percent;
        common -= accounts[i].share;
    }
}

void budget_set_bound(enum budget_account account, size_t bytes)
{
    accounts[account].bound = bytes;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t bound_of(const struct account *at)
{
    return at->bound ? at->bound : SIZE_MAX;
}

size_t budget_share(enum budget_account account)
{
    return least(limit ? accounts[account].share : SIZE_MAX, bound_of(&accounts[account]));
}

size_t budget_most(enum budget_account account)
{
    const struct account *at = &accounts[account];
    size_t most = at->share + (at->is_cache ? 0 : common);
    return least(limit ? most : SIZE_MAX, bound_of(at));
}

size_t budget_used(enum budget_account account)
{
    return atomic_load(&accounts[account].used);
}

/* Does the account fit with `used` bytes, its own charge included? All accounts together take at most the common part beyond their
 * shares. */
static bool fits(enum budget_account account, size_t used)
{
    if (used <= budget_share(account))
        return true;
    if (used > budget_most(account))
        return false;
    size_t past = 0;
    for (enum budget_account i = 0; i < BUDGET_ACCOUNTS && limit; i++) {
        size_t other = i == account ? used : budget_used(i);
        past += other > accounts[i].share ? other - accounts[i].share : 0;
    }
    return past <= common;
}

/* ---- charging ---- */

void budget_count_refusal(enum budget_account account)
{
    if (accounts[account].refusals)
        metric_add(accounts[account].refusals, 1);
}

static bool refuse(enum budget_account account)
{
    budget_count_refusal(account);
    return false;
}

void budget_add(enum budget_account account, size_t bytes)
{
    atomic_fetch_add_explicit(&accounts[account].used, bytes, memory_order_relaxed);
}

/* Adds first, so that of two threads that charge the last free bytes both may be refused, but never both admitted. */
static bool charge(enum budget_account account, size_t bytes)
{
    size_t used = bytes + atomic_fetch_add(&accounts[account].used, bytes);
    if (fits(account, used))
        return true;
    atomic_fetch_sub_explicit(&accounts[account].used, bytes, memory_order_relaxed);
    return false;
}

bool budget_charge(enum budget_account account, size_t bytes)
{
    return charge(account, bytes) || refuse(account);
}

static atomic_size_t *tenant_of(enum budget_account account, uint64_t tenant_hash)
{
    return &accounts[account].tenants[tenant_hash % TENANTS];
}

void budget_add_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    atomic_fetch_add_explicit(tenant_of(account, tenant_hash), bytes, memory_order_relaxed);
    budget_add(account, bytes);
}

/* `own` bytes of one tenant, when the account has `used`. */
static bool fits_tenant(enum budget_account account, size_t own, size_t used)
{
    size_t most = budget_most(account);
    return used <= most && own <= most - used;
}

bool budget_hold_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    atomic_size_t *tenant = tenant_of(account, tenant_hash);
    size_t own = bytes + atomic_fetch_add_explicit(tenant, bytes, memory_order_relaxed);
    if (fits_tenant(account, own, budget_used(account)))
        return true;
    atomic_fetch_sub_explicit(tenant, bytes, memory_order_relaxed);
    return refuse(account);
}

bool budget_charge_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    if (!budget_hold_tenant(account, tenant_hash, bytes))
        return false;
    if (charge(account, bytes))
        return true;
    atomic_fetch_sub_explicit(tenant_of(account, tenant_hash), bytes, memory_order_relaxed);
    return refuse(account);
}

bool budget_has_room(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    size_t used = budget_used(account);
    size_t own = atomic_load_explicit(tenant_of(account, tenant_hash), memory_order_relaxed);
    if (bytes > budget_most(account))
        return refuse(account);
    return (fits(account, used + bytes) && fits_tenant(account, own + bytes, used)) || refuse(account);
}

bool budget_is_full(enum budget_account account)
{
    return !fits(account, budget_used(account));
}

/* ---- releasing ---- */

void budget_release(enum budget_account account, size_t bytes)
{
    atomic_fetch_sub_explicit(&accounts[account].used, bytes, memory_order_relaxed);
    size_t before = atomic_fetch_add_explicit(&freed, bytes, memory_order_relaxed);
    if (before < FREED_BYTES_MIN && before + bytes >= FREED_BYTES_MIN && on_freed_fn)
        on_freed_fn(on_freed_context);
}

void budget_leave_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    atomic_fetch_sub_explicit(tenant_of(account, tenant_hash), bytes, memory_order_relaxed);
}

void budget_release_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    budget_leave_tenant(account, tenant_hash, bytes);
    budget_release(account, bytes);
}

void budget_on_freed(void (*on_freed)(void *context), void *context)
{
    on_freed_fn = on_freed;
    on_freed_context = context;
}

void budget_freed_reset(void)
{
    atomic_store(&freed, 0);
}

/* ---- metrics ---- */

static struct metric_family limit_family = {
    .name = "memory_limit_bytes",
    .help = "limits.memory, less what the process itself took at its start, in bytes.",
    .type = METRIC_GAUGE};
static struct metric_family used_family = {.name = "memory_used_bytes",
                                           .help = "Memory that clients make the process hold, in bytes.",
                                           .type = METRIC_GAUGE,
                                           .labels = {"account"}};
static struct metric_family share_family = {
    .name = "memory_share_bytes",
    .help = "Memory that an account can always have, in bytes; past it there is a common part.",
    .type = METRIC_GAUGE,
    .labels = {"account"}};
static struct metric_family refusals_family = {
    .name = "memory_refused_total",
    .help = "Charges that were refused and users that were cut because their account was full.",
    .labels = {"account"}};

void budget_metrics_register(void)
{
    metrics_register(&limit_family);
    metrics_register(&used_family);
    metrics_register(&share_family);
    metrics_register(&refusals_family);
    for (size_t i = 0; i < BUDGET_ACCOUNTS; i++) {
        struct str name = str_from(accounts[i].name);
        accounts[i].used_gauge = metric_series_get(&used_family, &name);
        accounts[i].share_gauge = metric_series_get(&share_family, &name);
        accounts[i].refusals = metric_series_get(&refusals_family, &name);
    }
}

void budget_metrics_update(void)
{
    metric_set(metric_series_get(&limit_family, NULL), (double)limit);
    for (enum budget_account i = 0; i < BUDGET_ACCOUNTS; i++) {
        metric_set(accounts[i].used_gauge, (double)budget_used(i));
        metric_set(accounts[i].share_gauge, (double)(limit ? budget_share(i) : 0));
    }
}
