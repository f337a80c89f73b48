/* The memory budget: a counter for each account, and one for each hash of its tenants. */
#include "base/budget.h"

#include <stdatomic.h>

#include "base/metrics.h"

enum {
    TENANTS = 4096,                     /* counted apart, by a hash */
    RESERVE_PART = 8,                   /* an eighth of a share */
    FIRST_PART = 256,                   /* of the reserve: a tenant's first bytes, … */
    FIRST_BYTES_MIN = 64 * 1024,        /* … or this much, for a small budget … */
    FIRST_PART_MAX = 8,                 /* … but not more than this part of the reserve */
    FREED_BYTES_MIN = 32 * 1024 * 1024, /* below the peak of a burst, to be worth a trim, … */
    FREED_PART = 4,                     /* … or this part of a small limit */
    CACHE_LINE_BYTES = 64,
};

static struct account {
    _Alignas(CACHE_LINE_BYTES) atomic_size_t used;
    atomic_size_t first; /* of that, the first bytes of each tenant: the sum of first_of() over `tenants` */
    atomic_size_t tenants[TENANTS];
    size_t share, bound; /* set before threads charge */
    struct metric_series *used_gauge, *share_gauge, *refusals;
    const char *name;
    unsigned percent; /* of the limit; the rest is common */
    bool is_cache;    /* takes nothing from the common part: it would never release it */
    bool has_tenants; /* keeps a reserve for the first bytes of each */
} accounts[BUDGET_ACCOUNTS] = {
    [BUDGET_REQUESTS] = {.name = "requests", .percent = 20, .has_tenants = true},
    [BUDGET_BODIES] = {.name = "bodies", .percent = 15, .has_tenants = true},
    [BUDGET_UNSENT] = {.name = "unsent", .percent = 10},
    [BUDGET_WRITES] = {.name = "writes", .percent = 10, .has_tenants = true},
    [BUDGET_STREAMS] = {.name = "streams", .percent = 5},
    [BUDGET_VERSIONS] = {.name = "versions", .percent = 5},
    [BUDGET_QUEUES] = {.name = "queues", .percent = 5},
    [BUDGET_HYDRATION] = {.name = "hydration", .percent = 10, .is_cache = true},
    [BUDGET_TOKENS] = {.name = "tokens", .percent = 5, .is_cache = true},
};
static size_t limit, common;      /* 0 = no limit */
static atomic_size_t total, peak; /* of all accounts; the most there was since budget_freed_reset() */
static atomic_bool is_freed_reported;
static void (*on_freed_fn)(void *context);
static void *on_freed_context;

/* ---- limits ---- */

size_t budget_limit(void)
{
    return limit;
}

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

/* a - b, at least 0. */
static size_t past(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

static size_t bound_of(const struct account *at)
{
    return at->bound ? at->bound : SIZE_MAX;
}

static size_t share_of(const struct account *at)
{
    return least(limit ? at->share : SIZE_MAX, bound_of(at));
}

size_t budget_share(enum budget_account account)
{
    return share_of(&accounts[account]);
}

size_t budget_most(enum budget_account account)
{
    const struct account *at = &accounts[account];
    size_t most = at->share + (at->is_cache ? 0 : common);
    return least(limit ? most : SIZE_MAX, bound_of(at));
}

static size_t reserve_of(const struct account *at)
{
    return at->has_tenants ? share_of(at) / RESERVE_PART : 0;
}

static size_t first_bytes_max(const struct account *at)
{
    size_t reserve = reserve_of(at), part = reserve / FIRST_PART;
    return part > FIRST_BYTES_MIN ? part : least(FIRST_BYTES_MIN, reserve / FIRST_PART_MAX);
}

size_t budget_first(enum budget_account account)
{
    return first_bytes_max(&accounts[account]);
}

size_t budget_used(enum budget_account account)
{
    return atomic_load(&accounts[account].used);
}

/* What an account has beside its reserve. */
static size_t general_of(const struct account *at)
{
    size_t covered = least(atomic_load(&at->first), reserve_of(at));
    return past(atomic_load(&at->used), covered);
}

/* What it may have beside its reserve: the rest of its share, and what is left of the common part. */
static size_t general_max(const struct account *at)
{
    if (limit == 0)
        return bound_of(at) - reserve_of(at);
    size_t left = at->is_cache ? 0 : common;
    for (const struct account *other = accounts; other < accounts + BUDGET_ACCOUNTS; other++)
        if (other != at)
            left = past(left, past(general_of(other), other->share - reserve_of(other)));
    return least(at->share + left, bound_of(at)) - reserve_of(at);
}

/* Is there room for so many bytes more beside the reserve? */
static bool fits(const struct account *at, size_t more)
{
    size_t general = general_of(at) + more;
    return general <= share_of(at) - reserve_of(at) || general <= general_max(at);
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

/* Only what was charged in the end: a charge that is refused raises no peak. */
static void raise_total(size_t bytes)
{
    size_t now = atomic_fetch_add_explicit(&total, bytes, memory_order_relaxed) + bytes;
    size_t before = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > before && !atomic_compare_exchange_weak(&peak, &before, now))
        ;
}

void budget_add(enum budget_account account, size_t bytes)
{
    atomic_fetch_add_explicit(&accounts[account].used, bytes, memory_order_relaxed);
    raise_total(bytes);
}

/* Adds first, so that of two threads that charge the last free bytes both may be refused, but never both admitted. */
bool budget_charge(enum budget_account account, size_t bytes)
{
    struct account *at = &accounts[account];
    atomic_fetch_add(&at->used, bytes);
    if (fits(at, 0)) {
        raise_total(bytes);
        return true;
    }
    atomic_fetch_sub_explicit(&at->used, bytes, memory_order_relaxed);
    return refuse(account);
}

static atomic_size_t *tenant_of(struct account *at, uint64_t tenant_hash)
{
    return &at->tenants[tenant_hash % TENANTS];
}

/* Returns what the tenant has now. The account was charged before. */
static size_t add_to_tenant(struct account *at, uint64_t tenant_hash, size_t bytes)
{
    size_t max = first_bytes_max(at), before = atomic_fetch_add(tenant_of(at, tenant_hash), bytes);
    atomic_fetch_add(&at->first, least(before + bytes, max) - least(before, max));
    return before + bytes;
}

static void take_from_tenant(struct account *at, uint64_t tenant_hash, size_t bytes)
{
    size_t max = first_bytes_max(at), before = atomic_fetch_sub(tenant_of(at, tenant_hash), bytes);
    atomic_fetch_sub(&at->first, least(before, max) - least(before - bytes, max));
}

void budget_add_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    budget_add(account, bytes);
    (void)add_to_tenant(&accounts[account], tenant_hash, bytes);
}

/* May a tenant have `own` bytes, of which `more` are not counted yet? The reserve has its first bytes; past them it has at most as
 * much as is free. */
static bool fits_tenant(const struct account *at, size_t own, size_t more)
{
    if (own <= first_bytes_max(at) && atomic_load(&at->first) + more <= reserve_of(at))
        return true;
    return fits(at, more) && own <= past(general_max(at), general_of(at));
}

bool budget_hold_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    struct account *at = &accounts[account];
    if (fits_tenant(at, add_to_tenant(at, tenant_hash, bytes), 0))
        return true;
    take_from_tenant(at, tenant_hash, bytes);
    return refuse(account);
}

bool budget_charge_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    atomic_fetch_add_explicit(&accounts[account].used, bytes, memory_order_relaxed);
    if (budget_hold_tenant(account, tenant_hash, bytes)) {
        raise_total(bytes);
        return true;
    }
    atomic_fetch_sub_explicit(&accounts[account].used, bytes, memory_order_relaxed);
    return false;
}

bool budget_has_room(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    struct account *at = &accounts[account];
    if (bytes > budget_most(account)) /* before it is added to anything */
        return refuse(account);
    return fits_tenant(at, atomic_load(tenant_of(at, tenant_hash)) + bytes, bytes) || refuse(account);
}

bool budget_is_full(enum budget_account account)
{
    return !fits(&accounts[account], 0);
}

/* ---- releasing ---- */

static size_t freed_min(void)
{
    return limit ? least(FREED_BYTES_MIN, limit / FREED_PART) : FREED_BYTES_MIN;
}

void budget_release(enum budget_account account, size_t bytes)
{
    atomic_fetch_sub_explicit(&accounts[account].used, bytes, memory_order_relaxed);
    size_t now = atomic_fetch_sub_explicit(&total, bytes, memory_order_relaxed) - bytes;
    if (past(atomic_load_explicit(&peak, memory_order_relaxed), now) >= freed_min() && on_freed_fn &&
        !atomic_exchange_explicit(&is_freed_reported, true, memory_order_relaxed))
        on_freed_fn(on_freed_context);
}

void budget_leave_tenant(enum budget_account account, uint64_t tenant_hash, size_t bytes)
{
    take_from_tenant(&accounts[account], tenant_hash, bytes);
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
    atomic_store(&peak, atomic_load(&total));
    atomic_store(&is_freed_reported, false);
}

/* ---- metrics ---- */

static struct metric_family limit_family = {
    .name = "freshet_memory_limit_bytes",
    .help = "limits.memory, less what the process itself took at its start, in bytes.",
    .type = METRIC_GAUGE};
static struct metric_family used_family = {.name = "freshet_memory_used_bytes",
                                           .help = "Memory that clients make the process hold, in bytes.",
                                           .type = METRIC_GAUGE,
                                           .labels = {"account"}};
static struct metric_family share_family = {
    .name = "freshet_memory_share_bytes",
    .help = "Memory that an account can always have, in bytes; past it there is a common part.",
    .type = METRIC_GAUGE,
    .labels = {"account"}};
static struct metric_family refusals_family = {
    .name = "freshet_memory_refused_total",
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
