/* POST /updates: a request from its arrival to its answer. All of it runs on the request's loop, but for the body of a large one,
 * which a worker parses.
 *
 *     NEW ─▶ PARSING ─▶ COMMITTING ─▶ ANSWERED
 *      └──────────────▶     └▶ WAITING (parked again, a waiter of its decision) ─▶ ANSWERED
 *
 * A post of an event that was known before also reads that event's row from time to time while it waits: the process that decides
 * it may not know that a client waits, and then sends no notice.
 *
 * The client may go away at any time: then `ref` is empty, and the post is freed when no worker and no message has it. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
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

/* ---- the query string ---- */

struct post_query {
    bool waits;
    int64_t wait_ms; /* 0 = that of the settings */
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

static enum status read_query(const struct http_request *request, struct post_query *query,
                              struct error *error)
{
    static const char *const names[] = {"consistencyMode", "timeoutMs", NULL};
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = read_mode(request, &query->waits, error);
    if (status == STATUS_OK)
        status = read_timeout(request, &query->wait_ms, error);
    if (status == STATUS_OK && !str_is_name(kernel_identity(request)->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenantId",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    return status;
}

/* ---- the body ---- */

static enum status check_write_scope(struct refdata_post *post)
{
    const char *scope = atomic_load(&post->dictionary->write_scope);
    if (!scope)
        return STATUS_OK;
    if (!post->identity) /* the configuration was reloaded in between */
        return error_set(&post->error, STATUS_UNAVAILABLE, "the configuration has just changed, try again");
    if (auth_has_scope(post->identity, str_from(scope)))
        return STATUS_OK;
    return error_set(&post->error, STATUS_INSUFFICIENT_SCOPE, "updating this dictionary needs the scope %s",
                     scope);
}

/* Is it an update, of a dictionary that exists and can take it? In the order of R1: the dictionary and the caller's right to write
 * before the rest of the body. On a loop or a worker: nothing is touched but the post and a catalog that stays. */
static enum status check_post(struct refdata_post *post, const struct refdata_catalog *catalog)
{
    struct json_value body;
    struct str code;
    struct refdata_dictionary *dictionary;
    enum status status =
        refdata_update_open(post->body, &post->limits, &body, &code, &post->arena, &post->error);
    if (status == STATUS_OK)
        status = refdata_acceptance_find(catalog, code, &dictionary, &post->error);
    if (status == STATUS_OK) {
        post->dictionary = refdata_dictionary_ref(dictionary);
        status = check_write_scope(post);
    }
    if (status == STATUS_OK)
        status = refdata_update_read(&body, REFDATA_FROM_CLIENT, str_from(post->tenant), &post->limits,
                                     &post->arena, &post->update, &post->error);
    if (status == STATUS_OK)
        status = refdata_acceptance_check(post->dictionary, &post->update, &post->error);
    if (status != STATUS_OK)
        return status;
    post->acceptance.content_hash = refdata_acceptance_hash(&post->update, &post->arena);
    post->event_hash =
        hash_seeded(str_from(post->tenant)) * 31 + hash_seeded(str_from(post->update.event_id));
    return STATUS_OK;
}

/* ---- life of a post ---- */

static void on_committed(struct loop *loop, struct loop_message *message);
static void on_decided(struct loop *loop, struct loop_message *message);

static void move_post(struct refdata_post *post, enum refdata_post_step to)
{
    static const unsigned from[] = {
        [REFDATA_POST_NEW] = 0,
        [REFDATA_POST_PARSING] = 1u << REFDATA_POST_NEW,
        [REFDATA_POST_COMMITTING] = 1u << REFDATA_POST_NEW | 1u << REFDATA_POST_PARSING,
        [REFDATA_POST_WAITING] = 1u << REFDATA_POST_COMMITTING,
        [REFDATA_POST_ANSWERED] = 1u << REFDATA_POST_NEW | 1u << REFDATA_POST_PARSING |
                                  1u << REFDATA_POST_COMMITTING | 1u << REFDATA_POST_WAITING,
    };
    if (!(from[to] & 1u << post->step)) {
        log_error("post_step_wrong", LOG_INT("from", post->step), LOG_INT("to", to));
        abort();
    }
    post->step = to;
}

static struct str format_traceparent(const struct http_request *request, struct arena *arena)
{
    static const uint8_t none[sizeof request->trace.trace_id];
    char text[TRACE_PARENT_BYTES];
    if (memcmp(request->trace.trace_id, none, sizeof none) == 0)
        return STR_NONE;
    trace_format(&request->trace, text);
    return arena_str(arena, str_from(text));
}

static struct refdata_post *create_post(struct http_request *request, const struct post_query *query)
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
    post->waits = query->waits;
    post->wait_until_ns =
        now_ns + (query->wait_ms ? query->wait_ms : catalog->wait_commit_timeout_ms) * CLOCK_NS_PER_MS;
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
    post->traceparent = format_traceparent(request, &post->arena);
    return post;
}

/* The body's share of what all updates that wait for their commit may take (refdata.updates.queueBytes). A single one may be larger. */
static bool charge_body(struct refdata_post *post, int64_t bytes_max)
{
    long long before = atomic_fetch_add(&post->refdata->post_bytes, (long long)post->bytes);
    post->is_charged = true;
    return before == 0 || before + (long long)post->bytes <= bytes_max;
}

static void discharge_body(struct refdata_post *post)
{
    if (post->is_charged)
        atomic_fetch_sub(&post->refdata->post_bytes, (long long)post->bytes);
    post->is_charged = false;
}

static void destroy_post(struct refdata_post *post)
{
    discharge_body(post);
    loop_timer_stop(post->loop, &post->reread);
    if (post->dictionary)
        refdata_dictionary_unref(post->dictionary);
    arena_deinit(&post->arena);
    free(post);
}

/* No worker has it. Freed at once, or when the message of its decision, which is on its way, has come. */
static void end_post(struct refdata_post *post)
{
    move_post(post, REFDATA_POST_ANSWERED);
    if (post->is_listed && refdata_decisions_remove(post->flow->decisions, &post->waiter))
        post->is_listed = false;
    if (!post->is_listed)
        destroy_post(post);
}

/* Its request was answered before its time, or is gone. */
static void abandon_post(struct refdata_post *post)
{
    post->ref = (struct loop_park_ref){0};
    if (post->step != REFDATA_POST_PARSING && post->step != REFDATA_POST_COMMITTING)
        end_post(post);
}

static void on_drop(struct http_request *request, void *context)
{
    (void)request;
    abandon_post(context);
}

static bool park_post(struct http_request *request, struct refdata_post *post, int64_t deadline_ns,
                      http_timeout_fn *on_timeout)
{
    if (!http_request_park(request, deadline_ns, on_timeout, post, &post->ref))
        return false;
    http_request_on_drop(request, on_drop);
    return true;
}

/* The request, to be answered now; NULL: it is gone. */
static struct http_request *unpark_post(struct refdata_post *post)
{
    struct http_request *request = post->ref.generation ? http_request_unpark(post->ref) : NULL;
    post->ref = (struct loop_park_ref){0};
    return request;
}

static void refuse_post(struct refdata_post *post, const struct error *error)
{
    struct http_request *request = unpark_post(post);
    if (request)
        refdata_answer_error(request, error);
    end_post(post);
}

/* ---- to the committer ---- */

static void on_commit_overdue(struct http_request *request, void *context)
{
    struct refdata_post *post = context;
    if (post->step == REFDATA_POST_COMMITTING)
        refdata_answer_unknown(request, post);
    else /* it is still being parsed: nothing was accepted, nor will be */
        refdata_answer_error(request, &(struct error){.status = STATUS_TIMEOUT});
    abandon_post(post);
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

static void list_waiter(struct refdata_post *post)
{
    post->waiter = (struct refdata_waiter){
        .message.on_message = on_decided,
        .loop = post->loop,
        .tenant = str_from(post->tenant),
        .event_id = str_from(post->update.event_id),
    };
    post->is_listed = true;
    refdata_decisions_add(post->flow->decisions, &post->waiter);
}

static void hand_to_committer(struct refdata_post *post)
{
    struct error error = {0};
    post->flow = find_flow(post);
    enum status status = post->flow ? refdata_commands_check(post->flow, &post->update, &error)
                                    : error_set(&error, STATUS_UNAVAILABLE, "the database is not ready");
    if (status == STATUS_OK) {
        if (post->waits)
            list_waiter(post); /* before the commit: no decision can be missed */
        move_post(post, REFDATA_POST_COMMITTING);
        status = refdata_committer_add(post->flow->committer, post, &error);
    }
    if (status != STATUS_OK)
        refuse_post(post, &error);
}

static void run_parsing(struct worker_job *job)
{
    struct refdata_post *post = CONTAINER_OF(job, struct refdata_post, parsing);
    struct refdata_catalog *catalog = refdata_catalog_hold(post->refdata);
    post->error.status = check_post(post, catalog);
    refdata_catalog_unref(catalog);
}

static void parsing_done(struct worker_job *job)
{
    struct refdata_post *post = CONTAINER_OF(job, struct refdata_post, parsing);
    if (job->cancelled)
        error_set(&post->error, STATUS_CANCELLED, "the process is stopping");
    if (post->error.status != STATUS_OK || !post->ref.generation)
        refuse_post(post, &post->error);
    else
        hand_to_committer(post);
}

static void parse_on_worker(struct refdata_post *post)
{
    post->parsing = (struct worker_job){.loop = post->loop, .run = run_parsing, .done = parsing_done};
    move_post(post, REFDATA_POST_PARSING);
    if (!worker_pool_submit(kernel_workers(post->refdata->kernel), &post->parsing))
        refuse_post(post, &(struct error){.status = STATUS_OVERLOADED});
}

void refdata_post_update(struct http_request *request)
{
    struct refdata *refdata = request->context;
    struct post_query query = {0};
    struct error error = {0};
    if (read_query(request, &query, &error) != STATUS_OK) {
        refdata_answer_error(request, &error);
        return;
    }
    struct refdata_post *post = create_post(request, &query);
    bool is_small = request->body.len <= PARSE_HERE_BYTES_MAX;
    if (is_small && check_post(post, atomic_load(&refdata->catalog)) != STATUS_OK) {
        refdata_answer_error(request, &post->error);
        destroy_post(post);
    } else if (!charge_body(post, atomic_load(&refdata->catalog)->updates.queue_bytes_max)) {
        refdata_answer_error(request, &(struct error){.status = STATUS_OVERLOADED});
        destroy_post(post);
    } else if (!park_post(request, post, post->deadline_ns, on_commit_overdue)) {
        refdata_command_metrics_count(REFDATA_UPDATE_UNAVAILABLE);
        destroy_post(post);
    } else if (is_small) {
        hand_to_committer(post);
    } else {
        parse_on_worker(post);
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

/* While it is listed another thread may write the waiter's decision. */
static bool is_decided(const struct refdata_post *post)
{
    return !post->is_listed && post->waiter.decision.decision != REFDATA_PENDING;
}

static void answer_post(struct http_request *request, const struct refdata_post *post)
{
    struct refdata_state state = is_decided(post) ? post->waiter.decision : post->acceptance.state;
    count_key(request, post);
    if (post->result == REFDATA_POST_TAKEN && !post->waits)
        state.decision = REFDATA_PENDING; /* ASYNC, however quick it was */
    if (post->result == REFDATA_POST_REFUSED)
        refdata_answer_error(request, &post->error);
    else if (post->result == REFDATA_POST_UNKNOWN)
        refdata_answer_unknown(request, post);
    else
        refdata_answer_state(request, post, &state);
}

static void on_wait_over(struct http_request *request, void *context)
{
    struct refdata_post *post = context;
    answer_post(request, post);
    abandon_post(post);
}

static bool has_to_wait(const struct refdata_post *post)
{
    bool is_accepted = post->result == REFDATA_POST_TAKEN || post->result == REFDATA_POST_REPLAYED;
    return is_accepted && post->is_listed && !post->acceptance.is_keys_event &&
           post->acceptance.state.decision == REFDATA_PENDING &&
           post->wait_until_ns > loop_now_ns(post->loop);
}

static void on_reread(struct loop_timer *timer)
{
    struct refdata_post *post = CONTAINER_OF(timer, struct refdata_post, reread);
    if (post->step != REFDATA_POST_WAITING)
        return;
    refdata_decisions_read(post->flow->decisions);
    post->reread_ms = post->reread_ms * 2 < REREAD_MAX_MS ? post->reread_ms * 2 : REREAD_MAX_MS;
    loop_timer_start(post->loop, timer, clock_deadline_ms(post->reread_ms), on_reread);
}

static void on_committed(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct refdata_post *post = CONTAINER_OF(message, struct refdata_post, committed);
    struct http_request *request = unpark_post(post);
    discharge_body(post);
    arena_deinit(&post->arena); /* ten thousand may wait: without their bodies */
    arena_init(&post->arena, 64);
    if (request && has_to_wait(post)) { /* the place it just left is free: parking does not fail */
        move_post(post, REFDATA_POST_WAITING);
        if (!park_post(request, post, post->wait_until_ns, on_wait_over)) {
            end_post(post);
        } else if (post->result == REFDATA_POST_REPLAYED) {
            post->reread_ms = REREAD_MIN_MS;
            loop_timer_start(post->loop, &post->reread, clock_deadline_ms(post->reread_ms), on_reread);
        }
        return;
    }
    if (request)
        answer_post(request, post);
    end_post(post);
}

/* Comes before the commit's own message or after it. */
static void on_decided(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct refdata_post *post = CONTAINER_OF(message, struct refdata_post, waiter.message);
    post->is_listed = false;
    if (post->step == REFDATA_POST_ANSWERED) {
        destroy_post(post);
        return;
    }
    if (post->step != REFDATA_POST_WAITING)
        return;
    struct http_request *request = unpark_post(post);
    if (request)
        answer_post(request, post);
    end_post(post);
}
