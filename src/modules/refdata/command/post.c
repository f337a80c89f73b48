/* POST /updates: a request from its arrival to its answer. All of it on the request's loop, but for the body of a large
 * one, which a worker parses.
 *
 *     parsing ─▶ at the committer ─▶ answered
 *                                 └▶ waiting (parked again, listed in the news) ─▶ answered
 *
 * A post of an event that was known before also reads that event's row from time to time while it waits: the process that
 * decides it may not know that a client waits, and then sends no notice.
 *
 * The client may go away at any time: then `ref` is gone, and the post is freed when nobody has it any more. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "idempotency/idempotency.h"
#include "modules/refdata/command/command.h"
#include "modules/refdata/commands.h"

enum {
    PARSE_HERE_BYTES_MAX = 64 << 10, /* a larger one would keep the loop's other connections waiting */
    WAIT_MS_MIN = 50,
    WAIT_MS_MAX = 1000,
    REREAD_MIN_MS = 10, /* between two reads of the row of an event that was known before */
    REREAD_MAX_MS = 40,
};

const struct http_route refdata_command_routes[] = {
    {HTTP_POST, REFDATA_UPDATES_ROUTE, refdata_post_update, .tenant_param = "tenantId",
     .idempotency = HTTP_KEY_REJECT},
    {HTTP_GET, "/v1/tenants/{tenantId}/updates/{eventId}", refdata_get_update, .kind = HTTP_WORKER,
     .tenant_param = "tenantId"},
    {.handler = NULL},
};

/* ---- what is asked, beside the body ---- */

struct question {
    bool waits;
    int64_t wait_ms;
};

static enum status read_mode(const struct http_request *request, bool *waits, struct error *error)
{
    struct str mode = STR_NONE;
    bool found = false;
    enum status status = http_request_query(request, STR("consistencyMode"), &found, &mode, error);
    *waits = str_eq(mode, STR("WAIT_COMMIT"));
    if (status == STATUS_OK && found && !*waits && !str_eq(mode, STR("ASYNC")))
        return error_set_field(error, STATUS_BAD_REQUEST, "consistencyMode",
                               "consistencyMode must be ASYNC or WAIT_COMMIT");
    return status;
}

static enum status read_timeout(const struct http_request *request, int64_t *wait_ms, struct error *error)
{
    struct str text = STR_NONE;
    uint64_t ms = 0;
    bool found = false;
    enum status status = http_request_query(request, STR("timeoutMs"), &found, &text, error);
    if (status != STATUS_OK || !found)
        return status;
    if (!str_to_u64(text, &ms) || ms < WAIT_MS_MIN || ms > WAIT_MS_MAX)
        return error_set_field(error, STATUS_BAD_REQUEST, "timeoutMs", "timeoutMs must be %d to %d",
                               WAIT_MS_MIN, WAIT_MS_MAX);
    *wait_ms = (int64_t)ms;
    return STATUS_OK;
}

static enum status read_question(const struct http_request *request, struct question *question,
                                 struct error *error)
{
    static const char *const names[] = {"consistencyMode", "timeoutMs", NULL};
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = read_mode(request, &question->waits, error);
    if (status == STATUS_OK)
        status = read_timeout(request, &question->wait_ms, error);
    if (status == STATUS_OK && !str_is_name(kernel_identity(request)->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenantId",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    return status;
}

/* ---- life of a post ---- */

static void on_committed(struct loop *loop, struct loop_message *message);
static void on_decided(struct loop *loop, struct loop_message *message);

static struct str traceparent_of(const struct http_request *request, struct arena *arena)
{
    static const uint8_t none[sizeof request->trace.trace_id];
    char text[TRACE_PARENT_BYTES];
    if (memcmp(request->trace.trace_id, none, sizeof none) == 0)
        return STR_NONE;
    trace_format(&request->trace, text);
    return arena_str(arena, str_from(text));
}

static struct refdata_post *create(struct http_request *request, const struct question *question)
{
    struct refdata *refdata = request->context;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    const struct refdata_update_settings *settings = &catalog->updates;
    const struct auth_identity *identity = kernel_identity(request);
    int64_t now_ns = loop_now_ns(request->loop);
    struct refdata_post *post = memory_zalloc(sizeof *post);

    arena_init(&post->arena, request->body.len + 1024);
    post->refdata = refdata;
    post->loop = request->loop;
    post->committed.on_message = on_committed;
    post->waits = question->waits;
    post->wait_until_ns =
        now_ns + (question->wait_ms ? question->wait_ms : catalog->wait_commit_timeout_ms) * CLOCK_NS_PER_MS;
    post->deadline_ns = now_ns + settings->commit_timeout_ms * CLOCK_NS_PER_MS;
    post->limits = refdata_acceptance_limits(catalog);
    memcpy(post->tenant, identity->tenant.ptr, identity->tenant.len);
    post->body = arena_str(&post->arena, request->body);
    post->bytes = request->body.len;
    post->key_keep_ms = settings->key_keep_ms;
    post->acceptance = (struct refdata_acceptance){
        .update = &post->update, .subject = arena_str(&post->arena, identity->subject), .body = post->body};
    if (catalog->has_write_scopes)
        post->identity = auth_identity_copy(identity, &post->arena);
    if (request->idempotency_key.ptr) {
        post->acceptance.key = arena_str(&post->arena, request->idempotency_key);
        post->acceptance.key_lock =
            idempotency_lock_key(request, identity->tenant, identity->subject, post->acceptance.key);
    }
    post->traceparent = traceparent_of(request, &post->arena);
    return post;
}

/* The body's share of what all updates that wait for their commit may take (refdata.updates.queueBytes). One alone may be larger. */
static bool charge(struct refdata_post *post, int64_t bytes_max)
{
    long long before = atomic_fetch_add(&post->refdata->post_bytes, (long long)post->bytes);
    post->charged = true;
    return before == 0 || before + (long long)post->bytes <= bytes_max;
}

static void discharge(struct refdata_post *post)
{
    if (post->charged)
        atomic_fetch_sub(&post->refdata->post_bytes, (long long)post->bytes);
    post->charged = false;
}

static void destroy(struct refdata_post *post)
{
    discharge(post);
    loop_timer_stop(post->loop, &post->reread);
    if (post->dictionary)
        refdata_dictionary_unref(post->dictionary);
    arena_deinit(&post->arena);
    free(post);
}

/* Nobody asks any more, or it was answered: it goes as soon as no one else has it. */
static void let_go(struct refdata_post *post)
{
    if (post->busy)
        return;
    if (post->listed && refdata_news_remove(post->flow->news, &post->waiter))
        post->listed = false;
    if (!post->listed)
        destroy(post);
}

static void on_drop(struct http_request *request, void *context)
{
    (void)request;
    struct refdata_post *post = context;
    post->ref = (struct loop_park_ref){0};
    let_go(post);
}

static bool park(struct http_request *request, struct refdata_post *post, int64_t deadline_ns,
                 http_timeout_fn *on_timeout)
{
    if (!http_request_park(request, deadline_ns, on_timeout, post, &post->ref))
        return false;
    http_request_on_drop(request, on_drop);
    return true;
}

/* The request, to be answered now; NULL: nobody is there. */
static struct http_request *unpark(struct refdata_post *post)
{
    struct http_request *request = post->ref.generation ? http_request_unpark(post->ref) : NULL;
    post->ref = (struct loop_park_ref){0};
    return request;
}

static void refuse(struct refdata_post *post, const struct error *error)
{
    struct http_request *request = unpark(post);
    if (request)
        refdata_answer_error(request, error);
    let_go(post);
}

/* ---- to the committer ---- */

static void on_commit_overdue(struct http_request *request, void *context)
{
    struct refdata_post *post = context;
    post->ref = (struct loop_park_ref){0};
    if (post->flow)
        refdata_answer_unknown(request, post);
    else /* it is still being parsed: nothing was accepted, nor will be */
        refdata_answer_error(request, &(struct error){.status = STATUS_TIMEOUT});
    let_go(post);
}

static void enlist(struct refdata_post *post)
{
    post->waiter = (struct refdata_waiter){
        .message.on_message = on_decided,
        .loop = post->loop,
        .tenant = str_from(post->tenant),
        .event_id = str_from(post->update.event_id),
    };
    post->listed = true;
    refdata_news_add(post->flow->news, &post->waiter);
}

/* While a large body was parsed a reload may have given the dictionary another database. */
static struct refdata_flow *find_flow(struct refdata_post *post)
{
    struct refdata_flow *flow = refdata_flow_of(post->dictionary->database);
    struct refdata_dictionary *now =
        refdata_catalog_find(atomic_load(&post->refdata->catalog), post->dictionary->code);
    if (flow || !now)
        return flow;
    refdata_dictionary_ref(now);
    refdata_dictionary_unref(post->dictionary);
    post->dictionary = now;
    return refdata_flow_of(now->database);
}

static void hand_over(struct refdata_post *post)
{
    struct error error = {0};
    enum status status = STATUS_UNAVAILABLE;
    post->flow = find_flow(post);
    if (post->flow && refdata_commands_check(post->flow, &post->update, &error) != STATUS_OK) {
        refuse(post, &error);
        return;
    }
    if (post->flow && post->waits)
        enlist(post); /* before the commit: no decision can be missed */
    post->busy = true;
    if (post->flow)
        status = refdata_committer_add(post->flow->committer, post, &error);
    if (status == STATUS_OK)
        return;
    post->busy = false;
    error.status = status;
    refuse(post, &error);
}

static void run_parsing(struct worker_job *job)
{
    struct refdata_post *post = (struct refdata_post *)((char *)job - offsetof(struct refdata_post, parsing));
    struct refdata_catalog *catalog = refdata_catalog_hold(post->refdata);
    post->error.status = refdata_post_check(post, catalog);
    refdata_catalog_unref(catalog);
}

static void parsing_done(struct worker_job *job)
{
    struct refdata_post *post = (struct refdata_post *)((char *)job - offsetof(struct refdata_post, parsing));
    post->busy = false;
    if (job->cancelled)
        error_set(&post->error, STATUS_CANCELLED, "the process is stopping");
    if (post->error.status != STATUS_OK || !post->ref.generation)
        refuse(post, &post->error);
    else
        hand_over(post);
}

static void parse_elsewhere(struct refdata_post *post)
{
    post->parsing = (struct worker_job){.loop = post->loop, .run = run_parsing, .done = parsing_done};
    post->busy = true;
    if (worker_pool_submit(kernel_workers(post->refdata->kernel), &post->parsing))
        return;
    post->busy = false;
    refuse(post, &(struct error){.status = STATUS_OVERLOADED});
}

void refdata_post_update(struct http_request *request)
{
    struct refdata *refdata = request->context;
    struct question question = {0};
    struct error error = {0};
    if (read_question(request, &question, &error) != STATUS_OK) {
        refdata_answer_error(request, &error);
        return;
    }
    struct refdata_post *post = create(request, &question);
    bool here = request->body.len <= PARSE_HERE_BYTES_MAX;
    if (here && refdata_post_check(post, atomic_load(&refdata->catalog)) != STATUS_OK) {
        refdata_answer_error(request, &post->error);
        destroy(post);
    } else if (!charge(post, atomic_load(&refdata->catalog)->updates.queue_bytes_max)) {
        refdata_answer_error(request, &(struct error){.status = STATUS_OVERLOADED});
        destroy(post);
    } else if (!park(request, post, post->deadline_ns, on_commit_overdue)) {
        refdata_command_metrics_count(REFDATA_UPDATE_UNAVAILABLE);
        destroy(post);
    } else if (here) {
        hand_over(post);
    } else {
        parse_elsewhere(post);
    }
}

/* ---- and back ---- */

void refdata_post_return(struct refdata_post *post)
{
    loop_post(post->loop, &post->committed);
}

static void count_key(const struct http_request *request, const struct refdata_post *post)
{
    if (!request->idempotency_key.ptr)
        return;
    if (post->acceptance.is_key_known)
        idempotency_count(request->route, IDEMPOTENCY_HIT);
    else if (post->result == REFDATA_POST_TAKEN || post->result == REFDATA_POST_REPLAYED)
        idempotency_count(request->route, IDEMPOTENCY_MISS);
    else if (post->error.status == STATUS_IDEMPOTENCY_KEY_CONFLICT)
        idempotency_count(request->route, IDEMPOTENCY_CONFLICT);
    else if (post->error.status == STATUS_IDEMPOTENCY_KEY_PROCESSING)
        idempotency_count(request->route, IDEMPOTENCY_COLLISION);
}

static void answer(struct http_request *request, const struct refdata_post *post)
{
    const struct refdata_state *state = post->decided ? &post->waiter.decision : &post->acceptance.state;
    struct refdata_state pending = post->acceptance.state;
    pending.decision = REFDATA_PENDING;
    count_key(request, post);
    if (post->result == REFDATA_POST_REFUSED)
        refdata_answer_error(request, &post->error);
    else if (post->result == REFDATA_POST_UNKNOWN)
        refdata_answer_unknown(request, post);
    else if (post->result == REFDATA_POST_TAKEN && !post->waits)
        refdata_answer_state(request, post, &pending); /* ASYNC, however quick it was */
    else
        refdata_answer_state(request, post, state);
}

static void on_wait_over(struct http_request *request, void *context)
{
    struct refdata_post *post = context;
    post->ref = (struct loop_park_ref){0};
    answer(request, post);
    let_go(post);
}

static bool has_to_wait(const struct refdata_post *post)
{
    bool accepted = post->result == REFDATA_POST_TAKEN || post->result == REFDATA_POST_REPLAYED;
    return accepted && post->listed && !post->decided && !post->acceptance.is_keys_event &&
           post->acceptance.state.decision == REFDATA_PENDING && post->wait_until_ns > loop_now_ns(post->loop);
}

static void on_reread(struct loop_timer *timer)
{
    struct refdata_post *post =
        (struct refdata_post *)((char *)timer - offsetof(struct refdata_post, reread));
    if (!post->listed || !post->ref.generation)
        return;
    refdata_news_reread(post->flow->news);
    post->reread_ms = post->reread_ms * 2 < REREAD_MAX_MS ? post->reread_ms * 2 : REREAD_MAX_MS;
    loop_timer_start(post->loop, timer, clock_deadline_ms(post->reread_ms), on_reread);
}

static void on_committed(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct refdata_post *post =
        (struct refdata_post *)((char *)message - offsetof(struct refdata_post, committed));
    struct http_request *request = unpark(post);
    post->busy = false;
    discharge(post);
    arena_deinit(&post->arena); /* ten thousand may wait: without their bodies */
    arena_init(&post->arena, 64);
    if (request && has_to_wait(post)) { /* the place it just left is free: parking does not fail */
        if (!park(request, post, post->wait_until_ns, on_wait_over)) {
            let_go(post);
        } else if (post->result == REFDATA_POST_REPLAYED) {
            post->reread_ms = REREAD_MIN_MS;
            loop_timer_start(post->loop, &post->reread, clock_deadline_ms(post->reread_ms), on_reread);
        }
        return;
    }
    if (request)
        answer(request, post);
    let_go(post);
}

/* Before the commit's own message or after it. */
static void on_decided(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct refdata_post *post =
        (struct refdata_post *)((char *)message - offsetof(struct refdata_post, waiter.message));
    post->listed = false;
    post->decided = post->waiter.decision.decision != REFDATA_PENDING;
    if (post->busy)
        return;
    struct http_request *request = unpark(post);
    if (request)
        answer(request, post);
    let_go(post);
}
