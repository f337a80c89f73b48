/* POST /updates: a request from its arrival to its answer. Everything runs on the request's loop, except that a worker parses a large
 * body.
 *
 *     NEW ─▶ PARSING ─▶ COMMITTING ─▶ ANSWERED
 *      └──────────────▶     └▶ WAITING (parked again, a waiter of its decision) ─▶ ANSWERED
 *
 * A small body goes from NEW to COMMITTING. A refused post goes to ANSWERED from any step.
 *
 * A post of an event that was known before also reads that event's row from time to time while it waits: the process that decides
 * it may not know that a client waits, and then sends no notice.
 *
 * The client may go away at any time: then `ref` is empty, and the post is freed when no worker and no message has it. */
#include <assert.h>
#include <stdlib.h>

#include "base/budget.h"
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

/* ---- reading and checking the request ---- */

/* Sets *wait_ms if the query has timeoutMs. */
static enum status read_query(const struct http_request *request, bool *waits, int64_t *wait_ms,
                              struct error *error)
{
    static const char *const names[] = {"consistencyMode", "timeoutMs", NULL};
    struct str mode = STR_NONE, timeout = STR_NONE;
    bool has_mode = false, has_timeout = false;
    enum status status = http_request_query_only(request, names, error);
    if (status == STATUS_OK)
        status = http_request_query(request, STR("consistencyMode"), &has_mode, &mode, error);
    if (status != STATUS_OK)
        return status;
    *waits = str_eq(mode, STR("WAIT_COMMIT"));
    if (has_mode && !*waits && !str_eq(mode, STR("ASYNC")))
        return error_set_field(error, STATUS_BAD_REQUEST, "consistencyMode",
                               "consistencyMode must be ASYNC or WAIT_COMMIT");
    status = http_request_query(request, STR("timeoutMs"), &has_timeout, &timeout, error);
    if (status != STATUS_OK)
        return status;
    if (has_timeout && (!str_to_i64(timeout, wait_ms) || *wait_ms < WAIT_MS_MIN || *wait_ms > WAIT_MS_MAX))
        return error_set_field(error, STATUS_BAD_REQUEST, "timeoutMs", "timeoutMs must be %d to %d",
                               WAIT_MS_MIN, WAIT_MS_MAX);
    if (!str_is_name(kernel_identity(request)->tenant))
        return error_set_field(error, STATUS_BAD_REQUEST, "tenantId",
                               "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ -");
    return STATUS_OK;
}

/* Checks that the body is an update of a dictionary that exists and accepts it. In the order of R1: the dictionary and the caller's right to write
 * before the rest of the body. On a loop or a worker: it touches only the post and a catalog that the caller holds. */
static enum status check_post(struct refdata_post *post, const struct refdata_catalog *catalog)
{
    const struct refdata_limits *limits = &catalog->updates.limits;
    struct json_value body;
    struct str code;
    struct refdata_dictionary *dictionary;
    enum status status = refdata_update_open(post->body, limits, &body, &code, &post->arena, &post->error);
    if (status == STATUS_OK)
        status = refdata_acceptance_find(catalog, code, &dictionary, &post->error);
    if (status != STATUS_OK)
        return status;
    post->dictionary = refdata_dictionary_ref(dictionary);
    const char *scope = atomic_load(&dictionary->write_scope);
    if (scope && !post->identity) /* the configuration was reloaded in between */
        return error_set(&post->error, STATUS_UNAVAILABLE, "the configuration has just changed, try again");
    if (scope && !auth_has_scope(post->identity, str_from(scope)))
        return error_set(&post->error, STATUS_INSUFFICIENT_SCOPE,
                         "updating this dictionary needs the scope %s", scope);
    status = refdata_update_read(&body, REFDATA_FROM_CLIENT, str_from(post->tenant), limits, &post->arena,
                                 &post->update, &post->error);
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
    assert(from[to] & 1u << post->step);
    post->step = to;
}

static void discharge_body(struct refdata_post *post)
{
    if (post->is_charged)
        atomic_fetch_sub(&post->refdata->post_bytes, (long long)post->bytes);
    post->is_charged = false;
    if (post->charged_bytes)
        budget_release_tenant(BUDGET_WRITES, post->share, post->charged_bytes);
    post->charged_bytes = 0;
}

/* The bodies of all updates that wait for their commit are bounded together (refdata.updates.queueBytes); a single one may be larger.
 * The memory of updates is bounded by tenant (limits.memory). The memory that a large body needs for parsing is added when it is
 * parsed. */
static bool charge_body(struct refdata_post *post, long long queue_bytes_max)
{
    long long before = atomic_fetch_add(&post->refdata->post_bytes, (long long)post->bytes);
    post->is_charged = true;
    if (before > 0 && before + (long long)post->bytes > queue_bytes_max)
        return false;
    size_t bytes = arena_bytes(&post->arena);
    if (!budget_charge_tenant(BUDGET_WRITES, post->share, bytes))
        return false;
    post->charged_bytes = bytes;
    return true;
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

/* No worker has it. It is freed at once or, while the message of its decision is on its way, when that has arrived. */
static void end_post(struct refdata_post *post)
{
    move_post(post, REFDATA_POST_ANSWERED);
    if (post->is_listed && refdata_decisions_remove(post->database->decisions, &post->waiter))
        post->is_listed = false;
    if (!post->is_listed)
        destroy_post(post);
}

/* Its request was answered by a timeout, or its client has gone. */
static void abandon_post(struct http_request *request, void *context)
{
    struct refdata_post *post = context;
    (void)request;
    post->ref = (struct loop_park_ref){0};
    /* Otherwise a worker or the committer has it, and ends it later. */
    if (post->step != REFDATA_POST_PARSING && post->step != REFDATA_POST_COMMITTING)
        end_post(post);
}

static bool park_post(struct http_request *request, struct refdata_post *post, int64_t deadline_ns,
                      http_timeout_fn *on_timeout)
{
    if (!http_request_park(request, deadline_ns, on_timeout, post, &post->ref))
        return false;
    http_request_on_drop(request, abandon_post);
    return true;
}

/* Called before its arena is freed. */
static void end_span(struct refdata_post *post, const struct error *error)
{
    struct span *span = post->span;
    if (!span)
        return;
    span_put_str(span, "freshet.tenant.id", str_from(post->tenant));
    span_put_str(span, "freshet.dict.code", post->update.dict_code);
    span_put_str(span, "freshet.event.id", str_from(post->update.event_id));
    if (error)
        span_fail(span, str_from(status_code(error->status)));
    else
        span_put_str(span, "freshet.commit.way",
                     post->acceptance.state.decision == REFDATA_PENDING ? STR("queued") : STR("direct"));
    span_end(span);
    post->span = NULL;
}

/* Returns the request, to be answered now; NULL: it was answered already, or its client has gone. */
static struct http_request *unpark_post(struct refdata_post *post)
{
    struct http_request *request = post->ref.generation ? http_request_unpark(post->ref) : NULL;
    post->ref = (struct loop_park_ref){0};
    return request;
}

static void refuse_post(struct refdata_post *post, const struct error *error)
{
    end_span(post, error);
    struct http_request *request = unpark_post(post);
    if (request)
        refdata_answer_error(request, error);
    end_post(post);
}

/* ---- back from the committer ---- */

static void on_wait_over(struct http_request *request, void *context)
{
    refdata_answer_post(request, context);
    abandon_post(request, context);
}

static void on_reread(struct loop_timer *timer)
{
    struct refdata_post *post = CONTAINER_OF(timer, struct refdata_post, reread);
    if (post->step != REFDATA_POST_WAITING)
        return;
    refdata_decisions_read(post->database->decisions);
    post->reread_ms = post->reread_ms * 2 < REREAD_MAX_MS ? post->reread_ms * 2 : REREAD_MAX_MS;
    loop_timer_start(post->loop, timer, clock_deadline_ms(post->reread_ms), on_reread);
}

static void on_committed(struct loop *loop, struct loop_message *message)
{
    (void)loop;
    struct refdata_post *post = CONTAINER_OF(message, struct refdata_post, committed);
    struct http_request *request = unpark_post(post);
    bool is_accepted = post->result == REFDATA_POST_ACCEPTED || post->result == REFDATA_POST_REPLAYED;
    discharge_body(post);
    end_span(post, is_accepted ? NULL : &post->error);
    arena_deinit(&post->arena); /* thousands may wait for their decision; they do not need their bodies */
    post->arena = ARENA(256);
    bool has_to_wait = is_accepted && post->is_listed && !post->acceptance.is_keys_event &&
                       post->acceptance.state.decision == REFDATA_PENDING &&
                       post->wait_until_ns > loop_now_ns(post->loop);
    if (request && has_to_wait) { /* its parking place has just become free, so parking succeeds */
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
        refdata_answer_post(request, post);
    end_post(post);
}

/* May arrive before or after on_committed(). */
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
        refdata_answer_post(request, post);
    end_post(post);
}

/* ---- to the committer ---- */

static struct refdata_post *create_post(struct http_request *request, bool waits, int64_t wait_ms)
{
    struct refdata *refdata = request->context;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    const struct refdata_update_settings *settings = &catalog->updates;
    const struct auth_identity *identity = kernel_identity(request);
    int64_t now_ns = loop_now_ns(request->loop);
    struct refdata_post *post = memory_zalloc(sizeof *post);

    post->arena = ARENA(request->body.len + 1024);
    post->refdata = refdata;
    post->loop = request->loop;
    post->committed.on_message = on_committed;
    post->waits = waits;
    post->wait_until_ns = now_ns + wait_ms * CLOCK_NS_PER_MS;
    post->deadline_ns = now_ns + settings->commit_timeout_ms * CLOCK_NS_PER_MS;
    memcpy(post->tenant, identity->tenant.ptr, identity->tenant.len);
    post->share = hash_seeded(identity->tenant);
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
    post->traceparent = span_follow(&post->span, SPAN_INTERNAL, "commit update",
                                    trace_text(&request->trace, &post->arena), &post->arena);
    return post;
}

static void on_commit_overdue(struct http_request *request, void *context)
{
    struct refdata_post *post = context;
    if (post->step == REFDATA_POST_COMMITTING)
        refdata_answer_unknown(request, post);
    else /* it is still being parsed: nothing was accepted, nor will be */
        refdata_answer_error(request, &(struct error){.status = STATUS_TIMEOUT});
    abandon_post(request, post);
}

static void hand_to_committer(struct refdata_post *post)
{
    struct error error = {0};
    /* While a large body was parsed, a reload may have given the dictionary another database. */
    if (!refdata_database_runs(post->dictionary->database)) {
        struct refdata_dictionary *now =
            refdata_catalog_find(atomic_load(&post->refdata->catalog), post->dictionary->code);
        if (now) {
            refdata_dictionary_ref(now);
            refdata_dictionary_unref(post->dictionary);
            post->dictionary = now;
        }
    }
    post->database = post->dictionary->database;
    enum status status = refdata_database_runs(post->database)
                             ? refdata_commands_check(post->database, &post->update, &error)
                             : error_set(&error, STATUS_UNAVAILABLE, "the database is not ready");
    if (status == STATUS_OK && post->waits) { /* before the commit: no decision can be missed */
        post->waiter = (struct refdata_waiter){
            .message.on_message = on_decided,
            .loop = post->loop,
            .tenant = str_from(post->tenant),
            .event_id = str_from(post->update.event_id),
        };
        post->is_listed = true;
        refdata_decisions_add(post->database->decisions, &post->waiter);
    }
    if (status == STATUS_OK) {
        move_post(post, REFDATA_POST_COMMITTING);
        status = refdata_committer_add(post->database->committer, post, &error);
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
    size_t more = arena_bytes(&post->arena) - post->charged_bytes;
    budget_add_tenant(BUDGET_WRITES, post->share, more);
    post->charged_bytes += more;
}

static void parsing_done(struct worker_job *job)
{
    struct refdata_post *post = CONTAINER_OF(job, struct refdata_post, parsing);
    if (job->cancelled)
        error_set(&post->error, job->displaced ? STATUS_OVERLOADED : STATUS_CANCELLED,
                  job->displaced ? "too many large updates wait to be parsed; send it again"
                                 : "the process is stopping");
    if (post->error.status != STATUS_OK || !post->ref.generation)
        refuse_post(post, &post->error);
    else
        hand_to_committer(post);
}

static void post_update(struct http_request *request)
{
    struct refdata *refdata = request->context;
    const struct refdata_catalog *catalog = atomic_load(&refdata->catalog);
    int64_t wait_ms = catalog->wait_commit_timeout_ms;
    struct error error = {0};
    bool waits;
    if (read_query(request, &waits, &wait_ms, &error) != STATUS_OK) {
        refdata_answer_error(request, &error);
        return;
    }
    struct refdata_post *post = create_post(request, waits, wait_ms);
    bool is_small = post->bytes <= PARSE_HERE_BYTES_MAX;
    if (is_small && check_post(post, catalog) != STATUS_OK) {
        refdata_answer_error(request, &post->error);
        destroy_post(post);
        return;
    }
    if (!charge_body(post, catalog->updates.queue_bytes_max)) {
        refdata_answer_error(request, &(struct error){.status = STATUS_OVERLOADED});
        destroy_post(post);
    } else if (!park_post(request, post, post->deadline_ns, on_commit_overdue)) {
        refdata_answer_count_unavailable();
        destroy_post(post);
    } else if (is_small) {
        hand_to_committer(post);
    } else {
        post->parsing = (struct worker_job){
            .loop = post->loop, .share = post->share, .run = run_parsing, .done = parsing_done};
        move_post(post, REFDATA_POST_PARSING);
        if (!worker_pool_submit(kernel_workers(refdata->kernel), &post->parsing))
            refuse_post(post, &(struct error){.status = STATUS_OVERLOADED});
    }
}

const struct http_route refdata_command_routes[] = {
    {HTTP_POST, REFDATA_UPDATES_ROUTE, post_update, .tenant_param = "tenantId",
     .idempotency = HTTP_KEY_REJECT},
    {HTTP_GET, "/v1/tenants/{tenantId}/updates/{eventId}", refdata_get_update, .kind = HTTP_WORKER,
     .tenant_param = "tenantId"},
    {.handler = NULL},
};
