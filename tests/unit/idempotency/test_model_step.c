/* The idempotency step against lines of requests (I3): one request has a key, the others wait in the order they came, each of them for
 * the step's time at most; clients disconnect at any moment, also between the call of their request and its message. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"
#include "idempotency/idempotency.h"
#include "loop/loop_inside.h"
#include "model.h"

enum { CLIENTS = 10, KEYS = 3, ASKED_MAX = 256, WAIT_MS = 100 };

enum state { SENT, WAITS, INSIDE, OVER };

struct asked {
    size_t client, key; /* key KEYS: none */
    enum state state;
    uint64_t entered; /* its place in the order of arrival */
    int64_t deadline_ns;
    struct loop_park_ref ref;
    bool is_gone; /* its client */
};

static struct harness harness;
static struct idempotency *keys;
static struct client clients[CLIENTS];
static bool is_open[CLIENTS];
static size_t asking[CLIENTS]; /* what an open client waits for, + 1 */
static struct asked asked[ASKED_MAX];
static size_t asked_count;
static uint64_t entries;

/* ---- the server's side ---- */

static struct asked *asked_by(const struct http_request *request)
{
    uint64_t number = 0;
    MODEL_CHECK(str_to_u64(http_request_header(request, STR("X-Number")), &number), "no number");
    return &asked[number];
}

static struct asked *holder_of(size_t key)
{
    for (size_t i = 0; i < asked_count; i++)
        if (asked[i].state == INSIDE && asked[i].key == key)
            return &asked[i];
    return NULL;
}

static enum http_step enter(struct http_request *request, void *context)
{
    struct asked *own = asked_by(request);
    own->entered = ++entries;
    own->deadline_ns = model_now_ns() + WAIT_MS * CLOCK_NS_PER_MS;
    own->state = WAITS;
    enum http_step step = idempotency_enter(context, request, STR("t"), STR("u"));
    MODEL_CHECK(step != HTTP_STEP_ANSWERED, "refused");
    return step;
}

static void on_drop(struct http_request *request, void *context)
{
    struct asked *own = context;
    (void)request;
    MODEL_CHECK(own->state == INSIDE && own->is_gone, "dropped, but not inside");
    own->state = OVER;
}

/* Of those that wait for a key and are still there, the first one gets it. */
static void stay(struct http_request *request)
{
    struct asked *own = asked_by(request);
    MODEL_CHECK(own->state == WAITS, "handled twice");
    MODEL_CHECK(own->key == KEYS || !holder_of(own->key), "two requests have key %zu", own->key);
    for (size_t i = 0; i < asked_count && own->key < KEYS; i++)
        MODEL_CHECK(asked[i].key != own->key || asked[i].state != WAITS || asked[i].is_gone ||
                        asked[i].entered >= own->entered,
                    "%zu came before %td", i, own - asked);
    own->state = INSIDE;
    model_note("%td has key %zu", own - asked, own->key);
    MODEL_CHECK(http_request_park(request, CLOCK_NEVER, NULL, own, &own->ref), "cannot be parked");
    http_request_on_drop(request, on_drop);
}

static const struct http_route routes[] = {{.method = HTTP_POST,
                                            .path = "/line",
                                            .handler = stay,
                                            .consumes = HTTP_ANY,
                                            .idempotency = HTTP_KEY_SERIALIZE},
                                           {0}};

/* ---- the clients' side ---- */

static void post_key(size_t client, size_t key)
{
    char text[160], key_line[48] = "";
    if ((is_open[client] && asking[client]) || asked_count == ASKED_MAX)
        return;
    if (!is_open[client])
        client_connect(&harness, &clients[client]);
    if (key < KEYS)
        snprintf(key_line, sizeof key_line, "Idempotency-Key: key%zu\r\n", key);
    snprintf(text, sizeof text,
             "POST /line HTTP/1.1\r\nHost: a\r\nX-Number: %zu\r\n%sContent-Length: 0\r\n\r\n", asked_count,
             key_line);
    model_note("client %zu sends %zu with key %zu", client, asked_count, key);
    is_open[client] = true;
    asked[asked_count++] = (struct asked){.client = client, .key = key};
    asking[client] = asked_count;
    client_send(&clients[client], str_from(text));
}

static void post(void)
{
    size_t client = model_below(CLIENTS);
    post_key(client, model_below(KEYS + 1));
}

static void forget_client(size_t client)
{
    is_open[client] = false;
    close(clients[client].fd);
    buf_deinit(&clients[client].in);
    if (asking[client])
        asked[asking[client] - 1].is_gone = true;
    asking[client] = 0;
}

static void disconnect(void)
{
    size_t client = model_below(CLIENTS);
    if (!is_open[client])
        return;
    model_note("client %zu", client);
    forget_client(client);
}

static void read_answers(void)
{
    for (size_t i = 0; i < CLIENTS; i++) {
        struct client *client = &clients[i];
        if (!is_open[i])
            continue;
        ssize_t got = recv(client->fd, buf_reserve(&client->in, 65536), 65536, 0);
        MODEL_CHECK(got > 0 || (got < 0 && errno == EAGAIN), "client %zu was disconnected", i);
        if (got < 0)
            continue;
        buf_commit(&client->in, (size_t)got);
        int status = client_take(client).status;
        MODEL_CHECK(asking[i] && buf_len(&client->in) == 0, "client %zu has an answer too many", i);
        struct asked *own = &asked[asking[i] - 1];
        asking[i] = 0;
        model_note("%td has %d", own - asked, status);
        if (own->state == WAITS) {
            MODEL_CHECK(status == 409 && own->deadline_ns <= model_now_ns(), "%d while it waits", status);
            own->state = OVER;
        }
        MODEL_CHECK(own->state == OVER, "answered while it is inside");
    }
}

/* ---- turns ---- */

static void turn(void)
{
    harness_turn(&harness, 1);
    read_answers();
}

static void finish(void)
{
    size_t first = model_below(asked_count + 1);
    for (size_t i = 0; i < asked_count; i++) {
        struct asked *own = &asked[(first + i) % asked_count];
        if (own->state != INSIDE)
            continue;
        struct http_request *request = http_request_unpark(own->ref);
        MODEL_CHECK(request && asked_by(request) == own, "another request is parked there");
        model_note("%td", own - asked);
        own->state = OVER;
        http_send(request, &(struct http_response){.status = 200});
        return;
    }
}

static void pass_time(void)
{
    model_pass_ms((int64_t)model_below(60));
    turn();
    for (size_t i = 0; i < asked_count; i++)
        MODEL_CHECK(asked[i].state != WAITS || asked[i].is_gone || asked[i].deadline_ns > model_now_ns(),
                    "%zu waits too long", i);
}

static bool is_any_inside(void)
{
    for (size_t i = 0; i < asked_count; i++)
        if (asked[i].state == INSIDE)
            return true;
    return false;
}

static void settle(void)
{
    for (int i = 0; i < 6; i++)
        turn();
    for (size_t key = 0; key < KEYS; key++)
        for (size_t i = 0; i < asked_count; i++)
            MODEL_CHECK(asked[i].key != key || asked[i].state != WAITS || asked[i].is_gone || holder_of(key),
                        "%zu waits for key %zu, which nobody has", i, key);
}

/* ---- life ---- */

static void begin(void)
{
    asked_count = 0;
    entries = 0;
    keys = idempotency_create(WAIT_MS);
    harness_init(&harness, routes);
    harness.config.idempotency = enter;
    harness.config.on_idempotency_end = idempotency_leave;
    harness.config.context = keys;
    harness.config.limits.idle_timeout_ms = 600000;
    harness_start(&harness);
    for (size_t i = 0; i < CLIENTS; i++)
        is_open[i] = false, asking[i] = 0;
}

static void check(void)
{
    size_t inside[KEYS + 1] = {0};
    for (size_t i = 0; i < asked_count; i++)
        inside[asked[i].key] += asked[i].state == INSIDE;
    for (size_t key = 0; key < KEYS; key++)
        MODEL_CHECK(inside[key] <= 1, "%zu requests have key %zu", inside[key], key);
}

/* All that is left gets its turn, or its clients are gone all at once: then the keys are free. */
static void end(void)
{
    bool all_go = model_one_in(2);
    for (size_t i = 0; i < CLIENTS && all_go; i++)
        if (is_open[i])
            forget_client(i);
    if (!all_go)
        settle();
    while (!all_go && is_any_inside()) {
        finish();
        settle();
    }
    for (int i = 0; i < 10; i++)
        harness_turn(&harness, 1);
    for (size_t i = 0; i < CLIENTS; i++)
        MODEL_CHECK(!is_open[i] || !asking[i], "client %zu has no answer", i);
    MODEL_CHECK(harness.loop->parking.occupied == 0, "%zu places are occupied",
                harness.loop->parking.occupied);
    for (size_t key = 0; key < KEYS && asked_count < ASKED_MAX; key++) {
        post_key(key, key);
        harness_turn(&harness, 2);
        MODEL_CHECK(holder_of(key), "key %zu is not free", key);
    }
    for (size_t i = 0; i < CLIENTS; i++)
        if (is_open[i])
            forget_client(i);
    harness_turn(&harness, 3);
    harness_deinit(&harness);
    idempotency_destroy(keys);
}

int main(void)
{
    static const struct model_operation operations[] = {
        {"post", 40, post},          {"turn", 25, turn},
        {"finish", 20, finish},      {"disconnect", 12, disconnect},
        {"pass time", 6, pass_time}, {"settle", 4, settle}};
    return model_main(&(struct model){.name = "idempotency step",
                                      .seeds = 2000,
                                      .steps = 100,
                                      .begin = begin,
                                      .check = check,
                                      .end = end,
                                      MODEL_OPERATIONS(operations)});
}
