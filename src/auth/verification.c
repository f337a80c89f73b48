/* Verifications under way: a token goes to a worker once, however many requests of this loop ask for it,
 * and all of them are told when it comes back. Its way:
 *
 *     auth_verify ── worker ── done ──┬── remembered (verified or denied), waiters told
 *                      ▲              ├── rules or keys changed meanwhile: once more with the new ones
 *                      └── new keys ──┴── key not known: waits for one reading of the keys, no thread */
#include "auth/state.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"

#define PENDING_MAX 1024 /* per loop: a storm of strange tokens must not fill the workers' queue */
#define AWAITING_MAX 64  /* of those, waiting for keys */
#define DENIED_MS 10000
#define DENIED_UNKNOWN_KEY_MS 1000 /* it may become known at any time */
#define ARENA_BLOCK_BYTES 4096

/* ---- metrics: label values come from fixed tables, so their number is bounded ---- */

static struct metric_family tokens = {
    .name = "auth_tokens_total",
    .help = "Tokens whose signature and claims were checked (those found in the cache are not), by result.",
    .type = METRIC_COUNTER,
    .labels = {"result"},
};
static struct metric_family verify_seconds = {
    .name = "auth_verify_seconds",
    .help = "Time one check of a token took on a worker, in seconds.",
    .type = METRIC_HISTOGRAM,
};
static struct metric_family keys = {
    .name = "auth_keys",
    .help = "Keys that tokens may be signed by.",
    .type = METRIC_GAUGE,
};
static struct metric_family refreshes = {
    .name = "auth_jwks_refresh_total",
    .help = "Readings of the key file or URL, by result (changed, unchanged, failed).",
    .type = METRIC_COUNTER,
    .labels = {"result"},
};

static struct metric_series *token_series[AUTH_REASONS];
static struct metric_series *verify_series, *keys_series;

void auth_metrics_register(void)
{
    metrics_register(&tokens);
    metrics_register(&verify_seconds);
    metrics_register(&keys);
    metrics_register(&refreshes);
    for (int i = 0; i < AUTH_REASONS; i++) {
        struct str label = str_from(auth_reason_label((enum auth_reason)i));
        token_series[i] = metric_series_get(&tokens, &label);
    }
    verify_series = metric_series_get(&verify_seconds, NULL);
    keys_series = metric_series_get(&keys, NULL);
}

void auth_metrics_token(enum auth_reason reason, double seconds)
{
    metric_add(token_series[reason], 1);
    metric_observe(verify_series, seconds);
}

void auth_metrics_refresh(const char *result)
{
    struct str label = str_from(result);
    metric_add(metric_series_get(&refreshes, &label), 1);
}

void auth_metrics_keys(size_t count)
{
    metric_set(keys_series, (double)count);
}

/* ---- verifications ---- */

struct waiter {
    struct waiter *next;
    void (*on_verified)(void *context);
    void *context;
};

struct auth_verification {
    struct worker_job job;
    struct auth_loop *state;
    struct auth_verification *next; /* in its chain of pending */
    struct auth_rules *rules;       /* the ones it is held against */
    struct auth_keyset *keys;
    uint64_t generation, hash;
    struct waiter *first, **last_next;
    bool awaiting_keys, had_its_reading;
    struct arena arena; /* of the claims */
    struct auth_claims claims;
    enum auth_reason reason;
    size_t authorization_len;
    char authorization[];
};

static struct str authorization_of(const struct auth_verification *v)
{
    return str_of(v->authorization, v->authorization_len);
}

static void destroy(void *memory)
{
    struct auth_verification *v = memory;

    auth_rules_unref(v->rules);
    auth_keyset_unref(v->keys);
    arena_deinit(&v->arena);
    free(v);
}

/* ---- on the worker ---- */

static void run(struct worker_job *job)
{
    struct auth_verification *v = (struct auth_verification *)job;
    int64_t begin_ns = clock_mono_ns();
    struct str token;

    v->reason = AUTH_REASON_SCHEME;
    if (auth_bearer_token(authorization_of(v), &token))
        v->reason = auth_token_verify(token, &v->rules->checks, v->keys, v->state->auth->now_us(), &v->arena,
                                      &v->claims);
    auth_metrics_token(v->reason, (double)(clock_mono_ns() - begin_ns) / 1e9);
}

/* ---- back on the loop ---- */

static void done(struct worker_job *job);

static bool submit(struct auth_verification *v)
{
    struct auth_loop *state = v->state;

    auth_rules_unref(v->rules);
    auth_keyset_unref(v->keys);
    v->rules = auth_rules_ref(state->rules);
    v->keys = auth_keyset_ref(state->keys);
    v->generation = state->generation;
    arena_reset(&v->arena);
    v->job.loop = state->loop;
    v->job.run = run;
    v->job.done = done;
    auth_ref(state->auth);
    if (worker_pool_submit(state->auth->workers, &v->job))
        return true;
    auth_unref(state->auth);
    return false;
}

static struct auth_verification **chain_of(struct auth_loop *state, uint64_t hash)
{
    return &state->pending[hash % AUTH_PENDING_CHAINS];
}

/* Out of the list first: a waiter may ask for a verification again. */
static void finish(struct auth_verification *v)
{
    struct auth_loop *state = v->state;
    struct auth_verification **at = chain_of(state, v->hash);

    while (*at != v)
        at = &(*at)->next;
    *at = v->next;
    state->pending_count--;
    for (struct waiter *waiter = v->first, *next; waiter; waiter = next) {
        next = waiter->next;
        waiter->on_verified(waiter->context);
        free(waiter);
    }
    loop_free_later(state->loop, v, destroy);
}

/* How long a refusal is remembered; one that comes too early only until its time has come. */
static int64_t denied_until_ns(const struct auth_verification *v)
{
    int64_t now_ns = loop_now_ns(v->state->loop);
    int64_t pause_ms = v->reason == AUTH_REASON_UNKNOWN_KEY ? DENIED_UNKNOWN_KEY_MS : DENIED_MS;

    if (v->reason == AUTH_REASON_NOT_YET) {
        int64_t early_us = v->claims.nbf_us - v->rules->checks.leeway_us - v->state->auth->now_us();
        if (early_us < pause_ms * 1000)
            pause_ms = early_us / 1000;
    }
    /* Always a moment: the waiters ask again within this tick and must find an answer. */
    return now_ns + (pause_ms > 0 ? pause_ms : 1) * CLOCK_NS_PER_MS;
}

static void remember(struct auth_verification *v)
{
    struct auth_loop *state = v->state;

    if (v->reason != AUTH_REASON_VALID) {
        auth_denied_put(&state->denied, authorization_of(v), v->generation, denied_until_ns(v), v->reason);
        return;
    }
    struct auth_verified *pushed_out =
        auth_verified_put(&state->verified, authorization_of(v), &v->claims, v->generation);
    if (pushed_out)
        loop_free_later(state->loop, pushed_out, free);
}

static bool waits_for_keys(struct auth_verification *v)
{
    struct auth_loop *state = v->state;

    if (v->reason != AUTH_REASON_UNKNOWN_KEY || v->had_its_reading || state->awaiting_count == AWAITING_MAX ||
        !auth_demand_keys(state->auth))
        return false;
    v->awaiting_keys = true;
    state->awaiting_count++;
    return true;
}

static void done(struct worker_job *job)
{
    struct auth_verification *v = (struct auth_verification *)job;
    struct auth_loop *state = v->state;
    struct auth *auth = state->auth;

    if (job->cancelled) {
        finish(v);
    } else if (v->generation != state->generation) {
        if (!submit(v))
            finish(v);
    } else if (!waits_for_keys(v)) {
        remember(v);
        finish(v);
    }
    auth_unref(auth);
}

static void settle(struct auth_verification *v, bool keys_changed)
{
    v->awaiting_keys = false;
    v->had_its_reading = true;
    v->state->awaiting_count--;
    if (keys_changed && submit(v))
        return;
    if (!keys_changed)
        remember(v);
    finish(v);
}

void auth_verifications_settle(struct auth_loop *state, bool keys_changed)
{
    /* settle() changes the chain it stands in, so each chain is walked from its head until none waits. */
    for (int i = 0; i < AUTH_PENDING_CHAINS && state->awaiting_count > 0; i++) {
        struct auth_verification *v = state->pending[i];
        while (v) {
            if (v->awaiting_keys) {
                settle(v, keys_changed);
                v = state->pending[i];
            } else {
                v = v->next;
            }
        }
    }
}

/* ---- asking ---- */

static void add_waiter(struct auth_verification *v, void (*on_verified)(void *context), void *context)
{
    struct waiter *waiter = memory_alloc(sizeof(*waiter));

    *waiter = (struct waiter){.on_verified = on_verified, .context = context};
    *v->last_next = waiter;
    v->last_next = &waiter->next;
}

static struct auth_verification *find_pending(struct auth_loop *state, uint64_t hash,
                                              struct str authorization)
{
    for (struct auth_verification *v = *chain_of(state, hash); v; v = v->next)
        if (v->hash == hash && str_eq(authorization_of(v), authorization))
            return v;
    return NULL;
}

static struct auth_verification *create(struct auth_loop *state, uint64_t hash, struct str authorization)
{
    struct auth_verification *v = memory_zalloc(sizeof(*v) + authorization.len);

    v->state = state;
    v->hash = hash;
    v->last_next = &v->first;
    v->authorization_len = authorization.len;
    memcpy(v->authorization, authorization.ptr, authorization.len);
    arena_init(&v->arena, ARENA_BLOCK_BYTES);
    return v;
}

bool auth_verify(struct auth *auth, struct loop *loop, struct str authorization,
                 void (*on_verified)(void *context), void *context)
{
    struct auth_loop *state = auth_loop_of(auth, loop);
    uint64_t hash = hash_seeded(authorization);
    struct auth_verification *v = find_pending(state, hash, authorization);

    if (!v) {
        if (state->pending_count == PENDING_MAX || authorization.len == 0)
            return false;
        v = create(state, hash, authorization);
        if (!submit(v)) {
            destroy(v);
            return false;
        }
        struct auth_verification **chain = chain_of(state, hash);
        v->next = *chain;
        *chain = v;
        state->pending_count++;
    }
    add_waiter(v, on_verified, context);
    return true;
}
