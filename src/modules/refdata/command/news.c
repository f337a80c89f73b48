/* News of decisions. Between processes they travel as notices, coalesced and sent after the commit:
 *
 *     tenant/event/COMMITTED/17
 *     tenant/event/FAILED/0/UPDATE_REFUSED/why
 *
 * A notice that was lost (the listener's connection broke, too many at once) is made up for by reading the rows of all
 * who still wait, once, as soon as there is a connection again.
 *
 * Every role that may connect can send a notice. Where another role than superusers can log in, a notice only says that an update
 * is decided: the decision is read from its row. A bus in PostgreSQL looks for such roles. Without one, the process looks when
 * it reads rows, and trusts notices for a few seconds after that. */
#include "modules/refdata/command/news.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "bus/bus_postgres.h"
#include "modules/refdata/command/waiters.h"

#define CHANGES_CHANNEL "freshet_refdata_item_change"

enum {
    NOTIFY_WINDOW_US = 200, /* a lone decision leaves at once, a stream of them is gathered */
    REREAD_MS = 2000,
    PRIVATE_MS = 5000, /* between two looks for other roles, as of the bus */
};

struct refdata_news {
    struct refdata_flow *flow;
    struct db_notifier *notifier; /* where updates are decided */
    struct db_listener *listener; /* where somebody may wait for others' decisions */
    atomic_llong
        private_until_ns; /* without a bus in PostgreSQL: no other role can log in, as of the last look */
    int64_t look_ns;      /* the next look; the reread's own */
    pthread_mutex_t lock; /* for what follows */
    struct refdata_waiters waiters;
    bool stopped, rereading, reread_again;
    struct worker_job reread;
};

/* ---- those who wait ---- */

void refdata_news_add(struct refdata_news *news, struct refdata_waiter *waiter)
{
    pthread_mutex_lock(&news->lock);
    refdata_waiters_add(&news->waiters, waiter);
    pthread_mutex_unlock(&news->lock);
}

bool refdata_news_remove(struct refdata_news *news, struct refdata_waiter *waiter)
{
    pthread_mutex_lock(&news->lock);
    bool removed = refdata_waiters_remove(&news->waiters, waiter);
    pthread_mutex_unlock(&news->lock);
    return removed;
}

static void post_all(struct refdata_waiter *chain, const struct refdata_state *decision)
{
    while (chain) {
        struct refdata_waiter *waiter = chain;
        chain = waiter->next; /* its owner may be gone as soon as it is posted */
        waiter->decision = *decision;
        loop_post(waiter->loop, &waiter->message);
    }
}

static void release(struct refdata_news *news, struct str tenant, const struct refdata_state *state)
{
    pthread_mutex_lock(&news->lock);
    struct refdata_waiter *chain = refdata_waiters_take(&news->waiters, tenant, str_from(state->event_id));
    pthread_mutex_unlock(&news->lock);
    post_all(chain, state);
}

/* ---- decided here ---- */

static void put_decision(struct buf *out, struct str tenant, struct str event_id,
                         enum refdata_decision decision, int64_t version)
{
    buf_printf(out, "%.*s/%.*s/%s/%lld", STR_ARG(tenant), STR_ARG(event_id), refdata_decision_name(decision),
               (long long)version);
}

void refdata_news_put_committed(struct buf *out, struct str tenant, struct str event_id, int64_t version)
{
    put_decision(out, tenant, event_id, REFDATA_COMMITTED, version);
}

static void notify(struct refdata_news *news, struct str tenant, const struct refdata_state *state)
{
    struct buf payload;
    if (!news->notifier)
        return;
    buf_init(&payload);
    put_decision(&payload, tenant, str_from(state->event_id), state->decision, state->version);
    if (state->decision == REFDATA_FAILED)
        buf_printf(&payload, "/%s/%s", state->code, state->reason);
    db_notify(news->notifier, STR(REFDATA_NEWS_CHANNEL), buf_str(&payload));
    buf_deinit(&payload);
}

void refdata_news_decided(struct refdata_news *news, const struct refdata_outcome *outcomes,
                          const bool *waited, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct refdata_state state;
        refdata_outcome_state(&outcomes[i], &state);
        release(news, outcomes[i].tenant, &state);
        if (waited && waited[i]) /* also where somebody waited here: it may have been sent to several */
            notify(news, outcomes[i].tenant, &state);
    }
}

void refdata_news_changed(struct refdata_news *news)
{
    if (news->flow->changes)
        refdata_changes_wake(news->flow->changes);
    else if (news->notifier)
        db_notify(news->notifier, STR(CHANGES_CHANNEL), STR(""));
}

/* ---- decided elsewhere ---- */

static bool parse_notice(struct str payload, struct str *tenant, struct refdata_state *state)
{
    struct str event_id, decision, version, code = STR_NONE;
    if (!str_split(&payload, '/', tenant) || !str_split(&payload, '/', &event_id) ||
        !str_split(&payload, '/', &decision) || !str_split(&payload, '/', &version) ||
        event_id.len != UUID_TEXT_BYTES - 1 || !str_to_i64(version, &state->version))
        return false;
    state->decision = str_eq(decision, STR("COMMITTED")) ? REFDATA_COMMITTED : REFDATA_FAILED;
    (void)str_split(&payload, '/', &code);
    snprintf(state->event_id, sizeof state->event_id, "%.*s", STR_ARG(event_id));
    snprintf(state->code, sizeof state->code, "%.*s", STR_ARG(code));
    snprintf(state->reason, sizeof state->reason, "%.*s", STR_ARG(payload));
    return true;
}

static bool is_trusted(const struct refdata_news *news)
{
    const struct refdata_buses *buses = &news->flow->buses;
    return bus_is_private(buses->commands) || bus_is_private(buses->invalidations) ||
           clock_mono_ns() < atomic_load(&news->private_until_ns);
}

static bool is_waited_for(struct refdata_news *news, struct str tenant, struct str event_id)
{
    pthread_mutex_lock(&news->lock);
    bool is_waited = refdata_waiters_has(&news->waiters, tenant, event_id);
    pthread_mutex_unlock(&news->lock);
    return is_waited;
}

static void on_notice(void *context, struct str channel, struct str payload)
{
    struct refdata_news *news = context;
    struct refdata_state state = {0};
    struct str tenant;
    if (str_eq(channel, STR(CHANGES_CHANNEL))) {
        if (news->flow->changes)
            refdata_changes_wake(news->flow->changes);
        return;
    }
    if (!parse_notice(payload, &tenant, &state))
        refdata_news_reread(news); /* too many at once: it says only that there are some */
    else if (is_trusted(news))
        release(news, tenant, &state);
    else if (is_waited_for(news, tenant, str_from(state.event_id)))
        refdata_news_reread(news);
}

static void on_listening(void *context)
{
    refdata_news_reread(context);
}

/* ---- what notices may have missed ---- */

/* The tenants go into an arena of the caller's: a waiter may be gone by the time its row is read. */
static size_t list_waiting(struct refdata_news *news, struct buf *tenants, struct buf *event_ids,
                           struct arena *arena, struct str **names)
{
    size_t count = 0;
    db_array_begin(tenants);
    db_array_begin(event_ids);
    pthread_mutex_lock(&news->lock);
    *names = arena_alloc(arena, (news->waiters.count + 1) * sizeof(struct str));
    for (size_t i = 0; i < news->waiters.bucket_count; i++) {
        for (const struct refdata_waiter *at = news->waiters.buckets[i]; at; at = at->next) {
            (*names)[count++] = arena_str(arena, at->tenant);
            db_array_put(tenants, at->tenant);
            db_array_put(event_ids, at->event_id);
        }
    }
    pthread_mutex_unlock(&news->lock);
    db_array_end(tenants);
    db_array_end(event_ids);
    return count;
}

static bool is_look_due(const struct refdata_news *news)
{
    const struct kernel_bus_settings *bus = kernel_bus(news->flow->refdata->kernel);
    return bus->commands != KERNEL_POSTGRES && bus->invalidations != KERNEL_POSTGRES &&
           clock_mono_ns() >= news->look_ns;
}

static enum status look_for_roles(struct refdata_news *news, struct db_conn *conn, int64_t deadline_ns,
                                  struct error *error)
{
    bool is_private;
    int64_t until_ns = clock_deadline_ms(PRIVATE_MS);
    enum status status = bus_postgres_look_private(conn, deadline_ns, &is_private, error);
    if (status == STATUS_OK) {
        news->look_ns = until_ns;
        atomic_store(&news->private_until_ns, is_private ? until_ns : 0);
    }
    return status;
}

static enum status read_rows(struct refdata_news *news, const struct buf *tenants,
                             const struct buf *event_ids, const struct str *names, struct error *error)
{
    int64_t deadline_ns = clock_deadline_ms(REREAD_MS);
    struct db_result *result = NULL;
    struct db_conn *conn = NULL;
    enum status status = db_acquire(news->flow->database->pool, deadline_ns, &conn, error);
    if (status == STATUS_OK)
        status =
            refdata_states_query(conn, buf_str(tenants), buf_str(event_ids), deadline_ns, &result, error);
    for (size_t row = 0; status == STATUS_OK && row < db_result_rows(result); row++) {
        struct refdata_state_row found;
        refdata_states_row(result, row, &found);
        if (found.state.decision != REFDATA_PENDING)
            release(news, names[found.place], &found.state);
    }
    db_result_free(result);
    if (status == STATUS_OK && is_look_due(news))
        status = look_for_roles(news, conn, deadline_ns, error);
    if (conn)
        db_release(conn);
    return status;
}

static void reread_now(struct refdata_news *news)
{
    struct buf tenants, event_ids;
    struct error error = {0};
    struct arena arena;
    struct str *names;
    buf_init(&tenants);
    buf_init(&event_ids);
    arena_init(&arena, 4096);
    if (list_waiting(news, &tenants, &event_ids, &arena, &names) > 0 &&
        read_rows(news, &tenants, &event_ids, names, &error) != STATUS_OK)
        log_warn("news_not_reread", LOG_STR("database", news->flow->database->name),
                 LOG_ERROR_FIELDS(&error));
    arena_deinit(&arena);
    buf_deinit(&tenants);
    buf_deinit(&event_ids);
}

static struct refdata_news *news_of(struct worker_job *job)
{
    return (struct refdata_news *)((char *)job - offsetof(struct refdata_news, reread));
}

static void run_reread(struct worker_job *job)
{
    reread_now(news_of(job));
}

static void reread_done(struct worker_job *job)
{
    struct refdata_news *news = news_of(job);
    pthread_mutex_lock(&news->lock);
    bool again = news->reread_again;
    news->rereading = news->reread_again = false;
    pthread_mutex_unlock(&news->lock);
    if (again)
        refdata_news_reread(news);
}

void refdata_news_reread(struct refdata_news *news)
{
    pthread_mutex_lock(&news->lock);
    bool wanted = news->waiters.count > 0 && !news->stopped;
    bool start = wanted && !news->rereading;
    news->reread_again |= wanted && news->rereading;
    news->rereading |= wanted;
    if (start)
        news->reread = (struct worker_job){.run = run_reread, .done = reread_done};
    pthread_mutex_unlock(&news->lock);
    if (start && !worker_pool_submit(news->flow->workers, &news->reread))
        log_warn("news_not_reread", LOG_STR("database", news->flow->database->name));
}

/* ---- life ---- */

struct refdata_news *refdata_news_create(struct refdata_flow *flow)
{
    static const char *const channels[] = {REFDATA_NEWS_CHANNEL, CHANGES_CHANNEL, NULL};
    struct refdata_news *news = memory_zalloc(sizeof *news);
    news->flow = flow;
    pthread_mutex_init(&news->lock, NULL);
    refdata_waiters_init(&news->waiters);
    if (refdata_has_role(flow->refdata, "apply"))
        news->notifier = db_notifier_create(flow->refdata->home, &flow->database->target, NOTIFY_WINDOW_US);
    if (refdata_has_role(flow->refdata, "command"))
        news->listener = db_listener_create(&(struct db_listener_config){
            .loop = flow->refdata->home,
            .target = &flow->database->target,
            .channels = channels,
            .on_notice = on_notice,
            .on_listening = on_listening,
            .context = news,
        });
    return news;
}

void refdata_news_stop(struct refdata_news *news)
{
    pthread_mutex_lock(&news->lock);
    news->stopped = true;
    struct refdata_waiter *chain = refdata_waiters_take_all(&news->waiters);
    pthread_mutex_unlock(&news->lock);
    post_all(chain, &(struct refdata_state){.decision = REFDATA_PENDING});
}

void refdata_news_destroy(struct refdata_news *news)
{
    if (news->listener)
        db_listener_destroy(news->listener);
    if (news->notifier)
        db_notifier_destroy(news->notifier);
    refdata_waiters_deinit(&news->waiters);
    pthread_mutex_destroy(&news->lock);
    free(news);
}
