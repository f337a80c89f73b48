/* Requests off the loop against a list of what was asked (C7): parked by the gate, by a prepare step or by the handler, or on a worker,
 * with deadlines, and clients that send several at once or disconnect at any moment. Each request of a client that stays is answered
 * once, in order, with its own number; on_drop and the end of its key are called once; no reference outlives its parking. In the end no
 * tenant holds a connection or memory. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/clock.h"
#include "harness.h"
#include "http/http_inside.h"
#include "loop/loop_inside.h"
#include "model.h"

enum { CLIENTS = 5, ASKED_MAX = 512, WORK_MS = 60, OLD = 32, JOBS_MAX = 16, TENANTS = 2 };

enum kind { NOW, PARK, GATE, WORK, PREPARE, KINDS };
enum state { SENT, PARKED, RUNS /* on a worker or on its way there */, OVER };

struct asked {
    size_t client, connection; /* a client that disconnected may connect again */
    enum kind kind;
    enum state state;
    struct loop_park_ref ref;
    int64_t deadline_ns, route_deadline_ns;
    bool has_run, has_key, was_read;
    int status; /* of its answer; 0: not known yet */
};

static struct harness harness;
static struct client clients[CLIENTS];
static bool is_open[CLIENTS];
static size_t connections[CLIENTS];
static struct asked asked[ASKED_MAX];
static size_t asked_count, keys_held;
static struct loop_park_ref old[OLD];
static size_t old_count;
static struct worker_job *queued[JOBS_MAX], *ran[JOBS_MAX];
static size_t queued_count, ran_count;
static bool workers_are_full;

/* ---- the server's side ---- */

static struct asked *asked_by(const struct http_request *request)
{
    struct error error;
    struct str id;
    uint64_t number = 0;
    MODEL_CHECK(http_request_param(request, "id", &id, &error) == STATUS_OK && str_to_u64(id, &number),
                "no number");
    return &asked[number];
}

static uint64_t tenant_of(const struct http_request *request)
{
    return 1 + asked_by(request)->client % TENANTS;
}

static void send_number(struct http_request *request, int status)
{
    char text[16];
    struct asked *own = asked_by(request);
    snprintf(text, sizeof text, "%td", own - asked);
    own->status = status;
    http_send(request, &(struct http_response){.status = status, .body = str_from(text)});
}

static void end_parking(struct asked *own)
{
    old[old_count++ % OLD] = own->ref;
    own->ref.generation = 0;
}

static void on_drop(struct http_request *request, void *context)
{
    struct asked *own = context;
    (void)request;
    MODEL_CHECK(own->state == PARKED, "dropped, but not parked");
    MODEL_CHECK(!is_open[own->client] || connections[own->client] > own->connection,
                "dropped, but its client is there");
    own->state = OVER;
    end_parking(own);
}

static void on_timeout(struct http_request *request, void *context)
{
    struct asked *own = context;
    MODEL_CHECK(own->state == PARKED && own == asked_by(request),
                "a timeout of a request that is not parked");
    MODEL_CHECK(own->deadline_ns <= model_now_ns(), "timed out too early");
    own->state = OVER;
    end_parking(own);
    send_number(request, 202);
}

/* Before a worker's run it is parked until the route's deadline at most. */
static void park(struct http_request *request)
{
    struct asked *own = asked_by(request);
    own->deadline_ns = model_now_ns() + (1 + (int64_t)model_below(WORK_MS - 1)) * CLOCK_NS_PER_MS;
    if (own->kind == PREPARE && !own->route_deadline_ns)
        own->route_deadline_ns = model_now_ns() + WORK_MS * CLOCK_NS_PER_MS;
    int64_t asked_ns = own->deadline_ns;
    if (own->kind == PREPARE && own->deadline_ns > own->route_deadline_ns)
        own->deadline_ns = own->route_deadline_ns;
    own->state = PARKED;
    MODEL_CHECK(http_request_park(request, asked_ns, on_timeout, own, &own->ref), "cannot be parked");
    http_request_on_drop(request, on_drop);
}

static void handle_now(struct http_request *request)
{
    MODEL_CHECK(asked_by(request)->state == SENT, "handled twice");
    asked_by(request)->state = OVER;
    send_number(request, 200);
}

static void handle_park(struct http_request *request)
{
    MODEL_CHECK(asked_by(request)->state == SENT, "handled twice");
    park(request);
}

static void handle_work(struct http_request *request)
{
    MODEL_CHECK(!asked_by(request)->has_run, "runs twice");
    asked_by(request)->has_run = true;
    send_number(request, 203);
}

static enum http_step gate(struct http_request *request, void *context)
{
    (void)context;
    if (!str_eq(request->authorization, STR("wait")))
        return HTTP_STEP_PASS;
    park(request);
    return HTTP_STEP_PARKED;
}

static enum http_step prepare(struct http_request *request, void *context)
{
    (void)context;
    park(request);
    return HTTP_STEP_PARKED;
}

static enum http_step take_key(struct http_request *request, void *context)
{
    (void)context;
    struct asked *own = asked_by(request);
    MODEL_CHECK(!own->has_key, "two keys");
    own->has_key = true;
    keys_held++;
    request->idempotency_memo = own;
    return HTTP_STEP_PASS;
}

static void on_key_end(struct http_request *request)
{
    struct asked *own = request->idempotency_memo;
    MODEL_CHECK(own->has_key, "a key ends twice");
    own->has_key = false;
    keys_held--;
}

#define POST_ROW(name, ...)                                                                         \
    {                                                                                               \
        .method = HTTP_POST, .path = name, .handler = handle_work, .kind = HTTP_WORKER,             \
        .consumes = HTTP_ANY, .deadline_ms = WORK_MS, .idempotency = HTTP_KEY_REJECT, ##__VA_ARGS__ \
    }

static const struct http_route routes[] = {
    {.method = HTTP_GET, .path = "/now/{id}", .handler = handle_now},
    {.method = HTTP_GET, .path = "/park/{id}", .handler = handle_park},
    POST_ROW("/job/{id}"),
    POST_ROW("/prepare/{id}", .prepare = prepare),
    {0},
};

/* ---- the workers ---- */

bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job);
bool __wrap_worker_pool_submit(struct worker_pool *pool, struct worker_job *job)
{
    (void)pool;
    job->cancelled = false;
    if (workers_are_full || queued_count == JOBS_MAX)
        return false;
    queued[queued_count++] = job;
    return true;
}

static struct worker_job *take_job(struct worker_job **jobs, size_t *count)
{
    size_t at = model_below(*count);
    struct worker_job *job = jobs[at];
    jobs[at] = jobs[--*count];
    return job;
}

static void run_job(void)
{
    if (queued_count == 0 || ran_count == JOBS_MAX)
        return;
    struct worker_job *job = take_job(queued, &queued_count);
    if (model_one_in(10))
        job->cancelled = true;
    else
        job->run(job);
    ran[ran_count++] = job;
}

static void on_done(struct loop *loop, struct loop_message *message)
{
    struct worker_job *job = (struct worker_job *)message;
    (void)loop;
    job->done(job);
}

static void job_done(void)
{
    if (ran_count == 0)
        return;
    struct worker_job *job = take_job(ran, &ran_count);
    job->message.on_message = on_done;
    loop_post(job->loop, &job->message);
}

static void fill_workers(void)
{
    workers_are_full = !workers_are_full && model_one_in(3);
}

/* ---- the clients' side ---- */

static void open_client(size_t client)
{
    client_connect(&harness, &clients[client]);
    is_open[client] = true;
    connections[client]++;
}

static void send_requests(void)
{
    size_t client = model_below(CLIENTS);
    if (!is_open[client])
        open_client(client);
    for (uint64_t count = 1 + model_below(3); count > 0 && asked_count < ASKED_MAX; count--) {
        enum kind kind = (enum kind)model_below(KINDS);
        const char *const path = kind == PARK      ? "park"
                                 : kind == WORK    ? "job"
                                 : kind == PREPARE ? "prepare"
                                                   : "now";
        char text[128];
        int len = snprintf(text, sizeof text, "%s /%s/%zu HTTP/1.1\r\nHost: a\r\n%s%s\r\n",
                           kind >= WORK ? "POST" : "GET", path, asked_count,
                           kind == GATE ? "Authorization: wait\r\n" : "",
                           kind >= WORK ? "Content-Length: 0\r\n" : "");
        model_note("client %zu sends %zu: %s", client, asked_count, kind == GATE ? "gate" : path);
        asked[asked_count++] =
            (struct asked){.client = client, .connection = connections[client], .kind = kind};
        if (send(clients[client].fd, text, (size_t)len, MSG_NOSIGNAL) < 0)
            MODEL_CHECK(errno == EPIPE || errno == ECONNRESET, "cannot send");
    }
}

/* What it asked for and has not read is nobody's any more. */
static void forget_client(size_t client)
{
    is_open[client] = false;
    close(clients[client].fd);
    buf_deinit(&clients[client].in);
    for (size_t i = 0; i < asked_count; i++)
        if (asked[i].client == client)
            asked[i].was_read = true;
}

static void disconnect(void)
{
    size_t client = model_below(CLIENTS);
    if (!is_open[client])
        return;
    model_note("client %zu", client);
    forget_client(client);
    if (model_one_in(2))
        return; /* another one may come before the server knows */
    harness_turn(&harness, 2);
    for (size_t i = 0; i < asked_count; i++)
        MODEL_CHECK(asked[i].client != client || asked[i].state != PARKED, "%zu is still parked", i);
}

static struct asked *next_of(size_t client)
{
    for (size_t i = 0; i < asked_count; i++)
        if (asked[i].client == client && !asked[i].was_read)
            return &asked[i];
    return NULL;
}

static void check_answer(size_t client, const struct answer *answer)
{
    struct asked *own = next_of(client);
    MODEL_CHECK(own, "an answer that client %zu did not ask for", client);
    own->was_read = true;
    model_note("client %zu reads %d for %td", client, answer->status, own - asked);
    if (answer->status == 503) {
        MODEL_CHECK(own->kind >= WORK, "503 without a worker");
        own->state = OVER;
        return;
    }
    MODEL_CHECK(answer->status == own->status, "status %d, not %d", answer->status, own->status);
    uint64_t number = 0;
    MODEL_CHECK(str_to_u64(answer->body, &number) && &asked[number] == own,
                "the answer to %.*s is read for %td", STR_ARG(answer->body), own - asked);
}

static void read_answers(size_t client)
{
    struct client *own = &clients[client];
    if (!is_open[client])
        return;
    for (ssize_t got = 1; got > 0;) {
        got = recv(own->fd, buf_reserve(&own->in, 65536), 65536, 0);
        if (got > 0)
            buf_commit(&own->in, (size_t)got);
        own->at_end = got == 0 || (got < 0 && errno != EAGAIN);
    }
    bool was_late = false;
    while (buf_len(&own->in) > 0) {
        struct answer answer = client_take(own);
        was_late = answer.status == 503;
        check_answer(client, &answer);
    }
    MODEL_CHECK(!own->at_end || was_late, "client %zu was disconnected", client);
    if (own->at_end)
        forget_client(client);
}

static void read_some(void)
{
    read_answers(model_below(CLIENTS));
}

/* ---- what follows parking ---- */

static void unpark(void)
{
    size_t first = model_below(asked_count + 1);
    struct asked *own = NULL;
    for (size_t i = 0; i < asked_count && !own; i++)
        if (asked[(first + i) % asked_count].state == PARKED)
            own = &asked[(first + i) % asked_count];
    if (!own)
        return;
    struct http_request *request = http_request_unpark(own->ref);
    model_note("%td", own - asked);
    MODEL_CHECK(request && asked_by(request) == own, "another request is parked there");
    end_parking(own);
    if (model_one_in(4)) {
        park(request);
    } else if (own->kind == PARK || model_one_in(4)) {
        own->state = OVER;
        send_number(request, 201);
    } else {
        own->state = own->kind == GATE ? SENT : RUNS;
        http_request_resume(request);
    }
}

static void unpark_old(void)
{
    if (old_count > 0)
        MODEL_CHECK(!http_request_unpark(old[model_below(old_count < OLD ? old_count : OLD)]),
                    "an old reference finds a request");
}

static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(40));
    harness_turn(&harness, 1);
    for (size_t i = 0; i < asked_count; i++)
        MODEL_CHECK(asked[i].state != PARKED || asked[i].deadline_ns > model_now_ns(), "%zu did not time out",
                    i);
}

static void turn(void)
{
    harness_turn(&harness, 1);
}

/* ---- life ---- */

static void begin(void)
{
    asked_count = keys_held = old_count = queued_count = ran_count = 0;
    workers_are_full = false;
    harness_init(&harness, routes);
    harness.config.gate = gate;
    harness.config.share_of = tenant_of;
    harness.config.limits.held_max = ASKED_MAX;
    harness.config.idempotency = take_key;
    harness.config.on_idempotency_end = on_key_end;
    harness.config.workers = (struct worker_pool *)&harness; /* never looked into */
    harness.config.limits.idle_timeout_ms = harness.config.limits.write_timeout_ms = 600000;
    harness_start(&harness);
    for (size_t i = 0; i < CLIENTS; i++)
        is_open[i] = false;
}

static void check(void)
{
    size_t parked = 0, occupied = harness.loop->parking.occupied;
    for (size_t i = 0; i < asked_count; i++)
        parked += asked[i].state == PARKED;
    MODEL_CHECK(occupied >= parked && occupied <= parked + CLIENTS + queued_count + ran_count,
                "%zu places are occupied, %zu requests parked", occupied, parked);
}

static void settle(void)
{
    for (int i = 0; i < 20; i++) {
        unpark();
        while (queued_count)
            run_job();
        while (ran_count)
            job_done();
        harness_turn(&harness, 2);
        for (size_t client = 0; client < CLIENTS; client++)
            read_answers(client);
    }
}

static bool is_all_read(void)
{
    for (size_t i = 0; i < asked_count; i++)
        if (!asked[i].was_read)
            return false;
    return true;
}

/* Everything that was asked is answered before the server ends, or the server ends in the middle of it. */
static void end(void)
{
    bool ends_at_once = model_one_in(2);
    for (int i = 0; i < 30 && !ends_at_once && !is_all_read(); i++)
        settle();
    for (size_t i = 0; i < asked_count && !ends_at_once; i++)
        MODEL_CHECK(asked[i].was_read, "%zu has no answer", i);
    for (size_t i = 0; i < CLIENTS; i++)
        if (is_open[i])
            forget_client(i);
    if (model_one_in(2))
        harness_turn(&harness, 3);
    for (int i = 0; i < 5;
         i++) { /* the server may begin what was sent before it knows that the client is gone */
        while (queued_count)
            run_job();
        while (ran_count)
            job_done();
        harness_turn(&harness, 3);
    }
    MODEL_CHECK(keys_held == 0, "%zu keys did not end", keys_held);
    MODEL_CHECK(harness.loop->parking.occupied == 0, "%zu places are occupied",
                harness.loop->parking.occupied);
    for (size_t i = 0; i < HTTP_HOLDERS; i++)
        MODEL_CHECK(harness.server->held[i] == 0, "%u connections are held", harness.server->held[i]);
    harness_deinit(&harness);
    MODEL_CHECK(budget_used(BUDGET_REQUESTS) == 0, "%zu bytes are charged", budget_used(BUDGET_REQUESTS));
    size_t all = budget_most(BUDGET_REQUESTS) - budget_share(BUDGET_REQUESTS) / 8; /* but the reserve */
    for (uint64_t tenant = 1; tenant <= TENANTS; tenant++) {
        MODEL_CHECK(budget_hold_tenant(BUDGET_REQUESTS, tenant, all), "a tenant still holds memory");
        budget_leave_tenant(BUDGET_REQUESTS, tenant, all);
    }
}

static void set_limit(void)
{
    budget_set_limit(64 << 20);
}

int main(void)
{
    static const struct model_operation operations[] = {
        {"send", 25, send_requests}, {"disconnect", 4, disconnect},
        {"read", 15, read_some},     {"turn", 20, turn},
        {"unpark", 15, unpark},      {"unpark old", 4, unpark_old},
        {"run job", 10, run_job},    {"job done", 10, job_done},
        {"pass time", 8, pass_time}, {"full workers", 2, fill_workers}};
    return model_main(&(struct model){.name = "parked requests",
                                      .seeds = 2000,
                                      .steps = 80,
                                      .open = set_limit,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
