/* Verifications under way: a token goes to a worker once, however many requests of this loop ask for it,
 * and all of them get its result. Its way:
 *
 *     auth_verify ── worker ── done ──┬── remembered (verified or denied), waiters called
 *                      ▲              ├── rules or keys changed meanwhile: once more with the new ones
 *                      └── new keys ──┴── key not known: waits for one reading of the keys, no thread */
#include "auth/state.h"

#include <stdlib.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"

#define PENDING_MAX 2048 /* per loop: a storm of strange tokens must not fill the workers' queue */
#define PENDING_OF_SENDER_MAX (PENDING_MAX / 2) /* of those, sent from one address */
#define AWAITING_MAX 64                         /* of those, waiting for keys */
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
static struct metric_series *token_series[AUTH_REASONS];
static struct metric_series *verify_series;

void auth_metrics_register(void)
{
    metrics_register(&tokens);
    metrics_register(&verify_seconds);
    for (int i = 0; i < AUTH_REASONS; i++) {
        struct str label = str_from(auth_reason_label((enum auth_reason)i));
        token_series[i] = metric_series_get(&tokens, &label);
    }
    verify_series = metric_series_get(&verify_seconds, NULL);
}

/* ---- verifications ---- */

struct waiter {
    STAILQ_ENTRY(waiter) link;
    void (*on_verified)(void *context);
    void *context;
};

struct auth_verification {
    struct worker_job job;
    struct auth_loop *state;
    struct map_node node;                    /* in pending, by the hash of the header */
    TAILQ_ENTRY(auth_verification) awaiting; /* while it waits for keys */
    struct auth_rules *rules;                /* the ones it is held against */
    struct auth_keyset *keys;
    uint64_t generation;
    uint64_t sender;
    size_t charged; /* to BUDGET_REQUESTS, by the sender: what the token claims is not proved yet */
    STAILQ_HEAD(, waiter) waiters;
    bool had_its_reading;
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

static void verification_destroy(void *memory)
{
    struct auth_verification *v = memory;

    auth_rules_unref(v->rules);
    auth_keyset_unref(v->keys);
    arena_deinit(&v->arena);
    budget_release_tenant(BUDGET_REQUESTS, v->sender, v->charged);
    free(v);
}

/* ---- on the worker ---- */

static void verification_run(struct worker_job *job)
{
    struct auth_verification *v = (struct auth_verification *)job;
    int64_t begin_ns = clock_mono_ns();
    struct str token;

    v->reason = AUTH_REASON_SCHEME;
    if (auth_bearer_token(authorization_of(v), &token))
        v->reason = auth_token_verify(token, &v->rules->checks, v->keys, v->state->auth->now_us(), &v->arena,
                                      &v->claims);
    metric_add(token_series[v->reason], 1);
    metric_observe(verify_series, (double)(clock_mono_ns() - begin_ns) / 1e9);
}

/* ---- back on the loop ---- */

static void verification_done(struct worker_job *job);

static bool verification_submit(struct auth_verification *v)
{
    struct auth_loop *state = v->state;

    auth_rules_unref(v->rules);
    auth_keyset_unref(v->keys);
    v->rules = auth_rules_ref(state->rules);
    v->keys = auth_keyset_ref(state->keys);
    v->generation = state->generation;
    arena_reset(&v->arena);
    v->job.loop = state->loop;
    v->job.share = v->sender; /* senders take turns */
    v->job.run = verification_run;
    v->job.done = verification_done;
    auth_ref(state->auth);
    if (worker_pool_submit(state->auth->workers, &v->job))
        return true;
    auth_unref(state->auth);
    return false;
}

/* Out of the map first: a waiter may ask for a verification again. */
static void verification_finish(struct auth_verification *v)
{
    struct waiter *waiter;

    map_remove(&v->state->pending, &v->node);
    v->state->pending_by_sender[v->sender % AUTH_SENDERS]--;
    while ((waiter = STAILQ_FIRST(&v->waiters))) {
        STAILQ_REMOVE_HEAD(&v->waiters, link);
        waiter->on_verified(waiter->context);
        free(waiter);
    }
    loop_free_later(v->state->loop, v, verification_destroy);
}

static void verification_remember(struct auth_verification *v)
{
    struct auth_loop *state = v->state;

    if (v->reason == AUTH_REASON_VALID) {
        struct auth_verified *pushed_out;
        while ((pushed_out = auth_verified_evict(&state->verified)) != NULL)
            loop_free_later(state->loop, pushed_out, free);
        pushed_out = auth_verified_put(&state->verified, authorization_of(v), &v->claims, v->generation);
        if (pushed_out)
            loop_free_later(state->loop, pushed_out, free);
        return;
    }
    /* A refusal is remembered for some time; that of a token that is not valid yet only until it is. */
    int64_t pause_ms = v->reason == AUTH_REASON_UNKNOWN_KEY ? DENIED_UNKNOWN_KEY_MS : DENIED_MS;
    if (v->reason == AUTH_REASON_NOT_YET) {
        int64_t early_us = v->claims.nbf_us - v->rules->checks.leeway_us - state->auth->now_us();
        if (early_us < pause_ms * 1000)
            pause_ms = early_us / 1000;
    }
    /* Always a moment: the waiters ask again within this tick and must find an answer. */
    int64_t until_ns = loop_now_ns(state->loop) + (pause_ms > 0 ? pause_ms : 1) * CLOCK_NS_PER_MS;
    auth_denied_put(&state->denied, authorization_of(v), v->generation, until_ns, v->reason);
}

static void verification_done(struct worker_job *job)
{
    struct auth_verification *v = (struct auth_verification *)job;
    struct auth_loop *state = v->state;
    struct auth *auth = state->auth;

    if (job->cancelled) {
        verification_finish(v);
    } else if (v->generation != state->generation) {
        if (!verification_submit(v))
            verification_finish(v);
    } else if (v->reason == AUTH_REASON_UNKNOWN_KEY && !v->had_its_reading &&
               state->awaiting_count < AWAITING_MAX && auth_demand_keys(auth)) {
        TAILQ_INSERT_TAIL(&state->awaiting, v, awaiting);
        state->awaiting_count++;
    } else {
        verification_remember(v);
        verification_finish(v);
    }
    auth_unref(auth);
}

void auth_verifications_settle(struct auth_loop *state, bool keys_changed)
{
    struct auth_verification *v;

    while ((v = TAILQ_FIRST(&state->awaiting))) {
        TAILQ_REMOVE(&state->awaiting, v, awaiting);
        state->awaiting_count--;
        v->had_its_reading = true;
        if (keys_changed && verification_submit(v))
            continue;
        if (!keys_changed)
            verification_remember(v);
        verification_finish(v);
    }
}

/* ---- asking ---- */

bool auth_verify(struct auth *auth, struct loop *loop, uint64_t sender, struct str authorization,
                 void (*on_verified)(void *context), void *context)
{
    struct auth_loop *state = auth_loop_of(auth, loop);
    uint64_t hash = hash_seeded(authorization);
    struct auth_verification *v = NULL;
    struct map_node *node;

    MAP_MATCH(node, &state->pending, hash) {
        v = CONTAINER_OF(node, struct auth_verification, node);
        if (str_eq(authorization_of(v), authorization))
            break;
        v = NULL;
    }
    if (!v) {
        unsigned *pending = &state->pending_by_sender[sender % AUTH_SENDERS];
        if (state->pending.count == PENDING_MAX || *pending == PENDING_OF_SENDER_MAX ||
            authorization.len == 0)
            return false;
        size_t bytes = sizeof(*v) + authorization.len;
        if (!budget_charge_tenant(BUDGET_REQUESTS, sender, bytes + ARENA_BLOCK_BYTES))
            return false;
        v = memory_zalloc(bytes);
        v->charged = bytes + ARENA_BLOCK_BYTES;
        v->state = state;
        v->sender = sender;
        v->authorization_len = authorization.len;
        str_put(v->authorization, authorization);
        STAILQ_INIT(&v->waiters);
        v->arena = ARENA(ARENA_BLOCK_BYTES);
        if (!verification_submit(v)) {
            verification_destroy(v);
            return false;
        }
        map_add(&state->pending, &v->node, hash);
        ++*pending;
    }
    struct waiter *waiter = memory_alloc(sizeof(*waiter));
    *waiter = (struct waiter){.on_verified = on_verified, .context = context};
    STAILQ_INSERT_TAIL(&v->waiters, waiter, link);
    return true;
}
